//! A coordinator keeps running after any control messages of servers and workers, before a run
//! begins and after.
#![no_main]

use coordinator::{Coordinator, Membership, RunSize};
use inputs::{number, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use types::{Clock, NodeId, PlanNumber, ShardId, Source, Span, TableId, Time};
use wire::{Control, Frame, Head, Message, NodeRole, Outbox};

const SIZE: RunSize = RunSize { servers: 1, workers: 2 };

fn control(input: &mut Unstructured) -> Result<Control> {
    Ok(match input.int_in_range(0..=9)? {
        0..=2 => {
            let role = *input.choose(&[NodeRole::Server, NodeRole::Worker])?;
            let place = if input.ratio(1, 4)? { Some(number(input)? as u32) } else { None };
            Control::Join { role, address: String::new(), token: input.int_in_range(0..=7)?, place, job: String::new() }
        }
        3 | 4 => Control::Heartbeat { heard: 0 },
        5 => Control::MakeTable { spec: input.choose(&specs())?.clone() },
        6 => {
            let problem = input.ratio(1, 4)?.then(String::new);
            Control::TableAdded { table: TableId(input.int_in_range(0..=3)?), problem }
        }
        7 => Control::Barrier { number: number(input)? },
        8 if input.ratio(1, 8)? => Control::Fail { reason: String::new() },
        8 if input.ratio(1, 4)? => {
            let table = TableId(input.int_in_range(0..=3)?);
            let shard = ShardId(input.int_in_range(0..=3)?);
            let server = input.int_in_range(0..=2)?;
            let plan = PlanNumber(input.int_in_range(1..=6)?);
            Control::Backfilled { table, shard, server, plan }
        }
        8 => {
            let plan = PlanNumber(input.int_in_range(1..=6)?);
            let enacted = input.arbitrary()?;
            Control::Adopted { plan, enacted, frontier: Clock(number(input)?) }
        }
        _ => Control::Bye,
    })
}

fn run(input: &mut Unstructured) -> Result<()> {
    let elastic =
        Membership::Elastic { replicas: input.int_in_range(0..=2)?, shards_per_server: input.int_in_range(0..=2)? };
    let membership = if input.arbitrary()? { elastic } else { Membership::Static };
    let mut coordinator = Coordinator::new(SIZE, membership, Span::from_secs(2));
    let mut out = Outbox::new();
    // The sources of the workers, from the last Welcome of each. Most messages carry these, so that
    // the coordinator accepts them.
    let mut sources = [Source(0); 2];
    let mut now = 0;
    while !input.is_empty() {
        now += input.int_in_range(0..=2)? * 500_000_000;
        if input.ratio(1, 6)? {
            coordinator.tick(Time(now), &mut out);
        } else {
            let worker: u32 = input.int_in_range(0..=2)?;
            let from = *input.choose(&[NodeId::Server(0), NodeId::Worker(worker), NodeId::Worker(worker)])?;
            let mut head = Head::plain(from, NodeId::Coordinator);
            head.source = match sources.get(worker as usize) {
                Some(source) if input.ratio(7, 8)? => *source,
                _ => Source(number(input)?),
            };
            let frame = Frame { head, message: Message::Control(control(input)?) };
            coordinator.handle(Time(now), frame, &mut out);
        }
        for frame in out.drain() {
            if let Message::Control(Control::Welcome { node: NodeId::Worker(rank), source, .. }) = &frame.message {
                if let Some(known) = sources.get_mut(*rank as usize) {
                    *known = *source;
                }
            }
            let _ = inputs::bytes_of(&frame);
        }
        assert!(!coordinator.has_begun() || coordinator.missing().is_none(), "the run has begun without all its nodes");
    }
    let _ = (coordinator.is_finished(), coordinator.lost());
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});
