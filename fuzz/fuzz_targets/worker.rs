//! A worker keeps running after any frames of servers and the coordinator, between the calls of its
//! program.
#![no_main]

use inputs::{SERVER, WORKER, frame, number, plan, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use types::{
    NodeId, NumberType, Placement, Position, PositionRange, Setting, Source, Span, TableId, TableSpec, Time, WorkerId,
};
use wire::{Bits, Control, Frame, Head, KeyPart, Keys, Message, Outbox, Payload, Pool, Pull, Wants};
use worker::{Batch, Op, PullTarget, TicketId, Values, Worker, WorkerSettings};

/// A batch of `numbers` zeros of type `of`.
fn zeros(input: &mut Unstructured, keys: Keys, of: NumberType, numbers: usize) -> Result<Batch> {
    let bytes = Payload::new(vec![0u8; numbers * of.bytes()]);
    Ok(Batch { keys, values: Values { number: of, bytes }, examples: number(input)? >> 32, lease: None })
}

/// A random operation of the program.
fn call(input: &mut Unstructured, worker: &mut Worker, now: Time, out: &mut Outbox) -> Result<()> {
    let specs = specs();
    let index = input.choose_index(specs.len())?;
    let table = TableId(index as u32);
    let spec = &specs[index];
    let ids = (0..input.int_in_range(0..=4)?).map(|_| number(input)).collect::<Result<Vec<u64>>>()?;
    let keys = match (spec.shape.placement(), input.ratio(1, 3)?) {
        (Placement::Ordered, true) => Keys::run(0..input.int_in_range(0..=9)?),
        (placement, _) => Keys::distinct(placement, &ids),
    };
    let after: Vec<TicketId> = (0..input.int_in_range(0..=1)?).map(TicketId).collect();
    let keys = if input.ratio(1, 3)? {
        let mut bits = Bits::none(keys.len());
        (0..keys.len()).step_by(2).for_each(|index| bits.set(index));
        keys.choose(&bits)
    } else {
        keys
    };
    let numbers = keys.len() * spec.width as usize;
    let mut into = None;
    let op = match input.int_in_range(0..=8)? {
        0 | 1 => Op::Push { batch: zeros(input, keys, spec.number, numbers)? },
        2 => {
            into = input.arbitrary::<bool>()?.then(|| match spec.number {
                NumberType::F32 => PullTarget::F32(vec![0.0; numbers]),
                NumberType::F64 => PullTarget::F64(vec![0.0; numbers]),
                NumberType::I64 => PullTarget::I64(vec![0; numbers]),
            });
            Op::Pull { keys }
        }
        3 => {
            let range = PositionRange { first: Position(number(input)?), last: Position(number(input)?) };
            Op::Scan { range, row_state: input.arbitrary()? }
        }
        4 => Op::Active { keys },
        5 => {
            let numbers = keys.len() * update::row_state_width(spec).unwrap_or(1);
            let bytes = Payload::new(vec![0u8; numbers * spec.number.bytes()]);
            Op::Set { keys, values: Values { number: spec.number, bytes } }
        }
        6 => Op::RowState { keys },
        7 => Op::PushPull { batch: zeros(input, keys, spec.number, numbers)? },
        _ => Op::Tune { setting: Setting::Rate(0.5) },
    };
    let ticket = worker.submit(now, table, op, into, &after, out);
    if let Ok(ticket) = ticket
        && input.arbitrary()?
    {
        worker.detach(ticket);
    }
    Ok(())
}

/// Makes most answers match a pull that the worker has sent. Otherwise the worker would ignore most
/// of them as answers to unknown requests.
fn aim(input: &mut Unstructured, asked: &[Pull], frame: &mut Frame) -> Result<()> {
    if asked.is_empty() || input.ratio(1, 8)? {
        return Ok(());
    }
    let pull = input.choose(asked)?;
    match &mut frame.message {
        Message::Pulled(pulled) => {
            (pulled.table, pulled.shard, pulled.request) = (pull.table, pull.shard, pull.request);
            let rows = pull.keys.count().unwrap_or(pulled.positions.len() as u64 / 8) as usize;
            let mut row_bytes = specs().get(pull.table.0 as usize).map_or(4, TableSpec::row_bytes);
            if pull.wants == Wants::Active {
                let byte: u8 = input.arbitrary()?;
                (pulled.positions, pulled.values) = (Pool::new().copy(&vec![byte; rows.div_ceil(8)]), Payload::EMPTY);
            } else {
                if let (Wants::RowState, KeyPart::List { positions, .. }) = (pull.wants, &pull.keys) {
                    pulled.positions = positions.clone();
                    row_bytes *= input.int_in_range(1..=2)?;
                }
                pulled.values = Pool::new().copy(&vec![0u8; rows * row_bytes]);
            }
        }
        Message::PullRefused(refused) => {
            (refused.table, refused.shard, refused.request) = (pull.table, pull.shard, pull.request);
        }
        _ => {}
    }
    Ok(())
}

fn run(input: &mut Unstructured) -> Result<()> {
    let settings = WorkerSettings {
        resend_after: input.arbitrary::<bool>()?.then_some(Span::from_secs(1)),
        ..WorkerSettings::default()
    };
    let mut worker = Worker::new(WorkerId(0), Source(1), plan(), settings);
    let mut out = Outbox::new();
    for (table, spec) in (0..).map(TableId).zip(specs()) {
        let name = spec.name.clone();
        worker.make_table(spec, &mut out);
        let message = Message::Control(Control::TableMade { table, name });
        worker.handle(Time(0), Frame { head: Head::plain(NodeId::Coordinator, WORKER), message }, &mut out);
    }
    let mut nanoseconds = 0;
    let mut asked = Vec::new();
    while !input.is_empty() {
        nanoseconds += 500_000_000;
        let now = Time(nanoseconds);
        match input.int_in_range(0..=11)? {
            0..=3 => call(input, &mut worker, now, &mut out)?,
            4 if worker.is_flushed() => worker.end_clock(now, &mut out),
            4 => {}
            5 => drop(worker.barrier(&mut out)),
            6 => worker.reconnected(now, *input.choose(&[NodeId::Coordinator, SERVER, NodeId::Server(1)])?, &mut out),
            7 => worker.tick(now, &mut out),
            8 => drop(worker.take(TicketId(input.int_in_range(0..=20)?))),
            _ => {
                let mut frame = frame(input, SERVER, WORKER)?;
                aim(input, &asked, &mut frame)?;
                worker.handle(now, frame, &mut out);
            }
        }
        for frame in out.drain() {
            let _ = inputs::bytes_of(&frame);
            if let Message::Pull(pull) = frame.message {
                asked.push(pull);
            }
        }
    }
    worker.take_unreported();
    worker.take_notices();
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});
