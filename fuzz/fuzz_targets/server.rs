//! Whatever frames arrive, in whatever order, a server goes on.
#![no_main]

use inputs::{SERVER, WORKER, frame, plan, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use machine::{Outbox, Server};
use types::{NodeId, TableId, Time};
use update::Registry;
use wire::{Control, Frame, Head, Message, Pool};

fn run(input: &mut Unstructured) -> Result<()> {
    let mut server = Server::new(SERVER, plan(), Registry::builtin(), Pool::new());
    let mut out = Outbox::new();
    for (table, spec) in (0..).map(TableId).zip(specs()) {
        let message = Message::Control(Control::AddTable { table, spec });
        server.handle(Time(0), Frame { head: Head::plain(NodeId::Coordinator, SERVER), message }, &mut out);
    }
    let mut now = 0;
    while !input.is_empty() {
        now += 500_000_000;
        match input.int_in_range(0..=7)? {
            0 => server.tick(Time(now), &mut out),
            1 => server.settle(&mut out),
            _ => server.handle(Time(now), frame(input, WORKER, SERVER)?, &mut out),
        }
        // What it says must have a spelling, too.
        out.drain().for_each(|frame| drop(inputs::bytes_of(&frame)));
    }
    server.counts();
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});
