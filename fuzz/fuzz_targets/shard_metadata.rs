//! Restores a shard from any bytes as its metadata, residuals of workers or leases in a checkpoint.
//! They are refused, or they make a shard that keeps running.
#![no_main]

use inputs::{SERVER, WORKER, frame, plan, specs};
use lease::SavedLeases;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use shard::{ResidualRows, Restored, Server};
use types::{Clock, NodeId, TableId, TableSpec, Time};
use update::Updaters;
use wire::{Control, Field, Frame, Head, Message, Outbox, Pool, Reader};

const TABLE: TableId = TableId(0);

fn server() -> Server {
    Server::new(SERVER, plan(), Updaters::builtin(), Pool::new())
}

/// Gives the server a control message of the coordinator.
fn told(server: &mut Server, control: Control) {
    let head = Head::plain(NodeId::Coordinator, SERVER);
    server.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut Outbox::new());
    server.settle(&mut Outbox::new());
}

/// Gives the server up to `most` random frames.
fn hears(server: &mut Server, input: &mut Unstructured, most: usize) -> Result<()> {
    for now in 0..input.int_in_range(0..=most)? {
        let frame = frame(input, WORKER, SERVER)?;
        server.handle(Time(now as u64), frame, &mut Outbox::new());
        server.settle(&mut Outbox::new());
    }
    Ok(())
}

/// Makes a checkpoint of the server's shards.
fn copy(server: &mut Server, number: u64) -> Vec<shard::ShardImage> {
    let checkpoint =
        Control::Checkpoint { number, clock: Clock(number), last: true, location: String::new(), name: String::new() };
    told(server, checkpoint);
    server.take_images()
}

/// Restores a server from changed images, and lets it go on.
fn go_on(spec: TableSpec, mut images: Vec<shard::ShardImage>, input: &mut Unstructured) -> Result<()> {
    if let Some(image) = images.first_mut() {
        match input.int_in_range(0..=2)? {
            // Arbitrary bytes, or the written metadata with up to three bytes changed.
            0 => image.metadata = input.bytes(input.len() / 2)?.to_vec(),
            _ => {
                for _ in 0..input.int_in_range(0..=3)? {
                    let at = input.choose_index(image.metadata.len())?;
                    image.metadata[at] = input.arbitrary()?;
                }
            }
        }
    }
    let residuals = ResidualRows::get(&mut Reader(input.bytes(input.len() / 4)?)).ok();
    let restored = Restored { table: TABLE, spec, clock: Clock(1), images, residuals: residuals.into_iter().collect() };
    let mut next = server();
    next.restore(Time(0), restored, &mut Outbox::new());
    // A peer may speak before the table is made.
    hears(&mut next, input, 8)?;
    while next.has_work() {
        next.work(Time(0), &mut Outbox::new());
    }
    hears(&mut next, input, 8)?;
    next.tick(Time(u64::MAX / 2), &mut Outbox::new());
    drop(copy(&mut next, 1));
    let _ = next.counts();
    Ok(())
}

fn run(input: &mut Unstructured) -> Result<()> {
    let spec = input.choose(&specs())?.clone();
    let mut first = server();
    told(&mut first, Control::AddTable { table: TABLE, spec: spec.clone() });
    hears(&mut first, input, 6)?;
    let images = copy(&mut first, 1);
    go_on(spec, images, input)
}

fuzz_target!(|bytes: &[u8]| {
    SavedLeases::get(&mut Reader(bytes)).ok();
    ResidualRows::get(&mut Reader(bytes)).ok();
    run(&mut Unstructured::new(bytes)).ok();
});
