//! Restores a coordinator from any bytes as its memory in a registry. They are refused, or they
//! make a coordinator that keeps running and can be saved and restored again.
#![no_main]

use coordinator::{Coordinator, Membership, RunSize};
use inputs::{number, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use types::{Clock, NodeId, PlanNumber, ShardId, Source, Span, TableId, Time};
use wire::{Control, Frame, Head, LeaseTerms, Message, NodeRole, Outbox};

const SIZE: RunSize = RunSize { servers: 1, workers: 1 };
const ELASTIC: Membership = Membership::Elastic { replicas: 1, shards_per_server: 2 };
const FAILURE_TIMEOUT: Span = Span::from_secs(2);

/// Gives the coordinator a control message from a node.
fn say(coordinator: &mut Coordinator, now: Time, from: NodeId, source: Source, control: Control) {
    let head = Head { source, clock: Clock(3), ..Head::plain(from, NodeId::Coordinator) };
    coordinator.handle(now, Frame { head, message: Message::Control(control) }, &mut Outbox::new());
}

/// A random message of a node, or a tick. Numbers often name something that exists.
fn step(coordinator: &mut Coordinator, now: &mut Time, input: &mut Unstructured) -> Result<()> {
    *now = Time(now.0.saturating_add(input.int_in_range(0..=4)? * 400_000_000));
    let from = *input.choose(&[NodeId::Server(0), NodeId::Server(1), NodeId::Worker(0), NodeId::Worker(1)])?;
    let source = Source(input.int_in_range(0..=5)?);
    let terms = LeaseTerms {
        ranges: input.int_in_range(0..=9)?,
        epochs: 2,
        shuffle: None,
        per_clock: 4,
        fingerprint: 1,
        input: String::new(),
    };
    let table = TableId(input.int_in_range(0..=2)?);
    let shard = ShardId(input.int_in_range(0..=2)?);
    let set = 0;
    let lease = input.int_in_range(0..=9)?;
    let clock = Clock(number(input)?);
    let control = match input.int_in_range(0..=13)? {
        0 => {
            coordinator.tick(*now, &mut Outbox::new());
            return Ok(());
        }
        1 => {
            let role = *input.choose(&[NodeRole::Server, NodeRole::Worker])?;
            Control::Join {
                role,
                address: String::new(),
                token: input.int_in_range(0..=5)?,
                place: None,
                job: String::new(),
            }
        }
        2 => Control::MakeTable { spec: input.choose(&specs())?.clone() },
        3 => Control::TableAdded { table, problem: None },
        4 => Control::Barrier { number: number(input)? },
        5 => Control::Adopted { plan: PlanNumber(input.int_in_range(0..=4)?), enacted: true, frontier: clock },
        6 => Control::OpenLeases { name: "train".to_owned(), terms },
        7 => Control::AskLeases { set, number: number(input)?, wanted: number(input)? },
        8 => Control::CommitLease { set, lease, clock, examples: 1, busy: Span(1) },
        9 => Control::Written { number: 1, table, shard, entry: String::new() },
        10 => Control::ResidualsWritten { number: 1, entry: None },
        11 => {
            if coordinator.may_checkpoint() {
                coordinator.checkpoint(*now, String::new(), String::new(), &mut Outbox::new());
            }
            drop(coordinator.take_checkpoint_end());
            return Ok(());
        }
        12 => Control::Bye,
        _ => Control::Heartbeat { heard: 0 },
    };
    say(coordinator, *now, from, source, control);
    Ok(())
}

/// The memory of a coordinator after random steps, with up to three bytes changed.
fn memory_of_a_run(input: &mut Unstructured) -> Result<Vec<u8>> {
    let mut coordinator = Coordinator::new(SIZE, ELASTIC, FAILURE_TIMEOUT);
    for (token, (node, role)) in
        [(NodeId::Server(0), NodeRole::Server), (NodeId::Worker(0), NodeRole::Worker)].iter().enumerate()
    {
        let join =
            Control::Join { role: *role, address: String::new(), token: token as u64, place: None, job: String::new() };
        say(&mut coordinator, Time(0), *node, Source(0), join);
        say(&mut coordinator, Time(0), *node, Source(token as u64 + 1), Control::Heartbeat { heard: 0 });
    }
    let mut now = Time(0);
    for _ in 0..input.int_in_range(0..=30)? {
        step(&mut coordinator, &mut now, input)?;
    }
    let mut memory = coordinator.memory();
    for _ in 0..input.int_in_range(0..=3)? {
        let at = input.choose_index(memory.len())?;
        memory[at] = input.arbitrary()?;
    }
    Ok(memory)
}

/// Restores a coordinator, uses it, and checks that its memory can be restored again.
fn use_it(memory: &[u8], input: &mut Unstructured) -> Result<()> {
    let Ok(mut coordinator) = Coordinator::recall(Time(0), memory, SIZE, ELASTIC, FAILURE_TIMEOUT) else {
        return Ok(());
    };
    let mut now = Time(0);
    for _ in 0..10 {
        step(&mut coordinator, &mut now, input)?;
    }
    let again = coordinator.memory();
    assert!(Coordinator::recall(now, &again, SIZE, ELASTIC, FAILURE_TIMEOUT).is_ok(), "its own memory is refused");
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    use_it(bytes, &mut Unstructured::new(bytes)).ok();
    let mut input = Unstructured::new(bytes);
    if let Ok(memory) = memory_of_a_run(&mut input) {
        use_it(&memory, &mut input).ok();
    }
});
