//! A server keeps running after any frames, in any order.
#![no_main]

use inputs::{SERVER, WORKER, any_plan, frame, plan, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use shard::Server;
use std::collections::BTreeMap;
use types::{NodeId, Source, Span, TableId, Time};
use update::Updaters;
use wire::{Control, Frame, Head, Message, Outbox, Pool};

fn run(input: &mut Unstructured) -> Result<()> {
    // The server is the only replica of its shards, or any replica of their chains, or under
    // backfill.
    let plan = if input.arbitrary()? { plan() } else { any_plan(input)? };
    let lease = if input.arbitrary()? { Some(Span::from_secs(5)) } else { None };
    let mut server = Server::new(SERVER, plan, Updaters::builtin(), Pool::new()).leased(lease);
    let mut out = Outbox::new();
    for (table, spec) in (0..).map(TableId).zip(specs()) {
        let message = Message::Control(Control::AddTable { table, spec });
        server.handle(Time(0), Frame { head: Head::plain(NodeId::Coordinator, SERVER), message }, &mut out);
    }
    let mut now = 0;
    // The last acknowledged sequence number of each stream. Most frames get the next one; otherwise
    // few would pass the once-only gate.
    let mut finished: BTreeMap<(Source, TableId), u64> = BTreeMap::new();
    while !input.is_empty() {
        now += 500_000_000;
        match input.int_in_range(0..=9)? {
            0 => server.tick(Time(now), &mut out),
            8 => server.heartbeat(Time(now), &mut out),
            9 => {
                let from = *input.choose(&[NodeId::Server(1), NodeId::Server(2), NodeId::Coordinator])?;
                let frame = frame(input, from, SERVER)?;
                server.handle(Time(now), frame, &mut out);
            }
            1 => server.settle(&mut out),
            _ => {
                let mut frame = frame(input, WORKER, SERVER)?;
                let table = match &frame.message {
                    Message::Push(push) => Some(push.table),
                    Message::Marker(marker) => Some(marker.table),
                    Message::Tune(tune) => Some(tune.table),
                    _ => None,
                };
                if let Some(table) = table
                    && input.ratio(7, 8)?
                {
                    frame.head.number = finished.get(&(frame.head.source, table)).map_or(1, |number| number + 1);
                }
                server.handle(Time(now), frame, &mut out);
                server.settle(&mut out);
            }
        }
        for frame in out.drain() {
            if let Message::Acked(acked) = &frame.message
                && acked.through < 1_000
            {
                finished.insert((frame.head.source, acked.table), acked.through);
            }
            // Every frame that the server sends can be encoded.
            let _ = inputs::bytes_of(&frame);
        }
    }
    let _ = server.counts();
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});
