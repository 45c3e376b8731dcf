//! Replays any bytes as a recording: its inputs are fed to a machine, or the file is refused.
#![no_main]

use coordinator::CoordinatorInput;
use inputs::{SERVER, WORKER, frame, number, plan, specs};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use node::replay_from;
use shard::ServerInput;
use types::{
    Bandwidth, NodeId, NumberType, Placement, Position, PositionRange, Setting, Source, TableId, Time, WorkerId,
};
use update::Updaters;
use wire::{Bits, Control, Field, Frame, Head, Keys, Message, Pool};
use worker::{Batch, KeyListDictionary, Op, RowsOfPush, TicketId, Values, WorkerInput};

/// Adds an entry with the right checksum.
fn put(file: &mut Vec<u8>, kind: u8, body: &[u8]) {
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let start = file.len();
    file.push(kind);
    file.extend_from_slice(body);
    let check = xxhash_rust::xxh3::xxh3_64(&file[start..]);
    file.extend_from_slice(&check.to_le_bytes());
}

fn time(input: &mut Unstructured) -> Result<Time> {
    Ok(Time(number(input)?))
}

fn keys(input: &mut Unstructured) -> Result<Keys> {
    if input.ratio(1, 3)? {
        let first = number(input)?;
        return Ok(Keys::run(first..first.saturating_add(number(input)?)));
    }
    let ids = (0..input.int_in_range(0..=4)?).map(|_| number(input)).collect::<Result<Vec<u64>>>()?;
    let keys = Keys::distinct(*input.choose(&[Placement::Spread, Placement::Ordered])?, &ids);
    if input.ratio(2, 3)? {
        return Ok(keys);
    }
    let mut bits = Bits::none(keys.len());
    (0..keys.len()).step_by(2).for_each(|index| bits.set(index));
    Ok(keys.choose(&bits))
}

fn batch(input: &mut Unstructured) -> Result<Batch> {
    let keys = keys(input)?;
    let number_type = *input.choose(&[NumberType::F32, NumberType::F64, NumberType::I64])?;
    let width = input.int_in_range(0..=2)?;
    let bytes = Pool::new().copy(&vec![0u8; keys.len().min(20) * width * number_type.bytes()]);
    Ok(Batch { keys, values: Values { number: number_type, bytes }, examples: number(input)?, lease: None })
}

fn worker_input(input: &mut Unstructured) -> Result<WorkerInput> {
    let table = TableId(input.int_in_range(0..=9)?);
    let ticket = TicketId(input.int_in_range(0..=6)?);
    Ok(match input.int_in_range(0..=19)? {
        0 | 1 => WorkerInput::Frame(time(input)?, Box::new(frame(input, SERVER, WORKER)?)),
        2 => WorkerInput::Tick(time(input)?),
        3 => WorkerInput::Reconnected(time(input)?, *input.choose(&[NodeId::Coordinator, SERVER])?),
        4 => WorkerInput::MakeTable(input.choose(&specs())?.clone()),
        5..=12 => {
            let after = if input.arbitrary()? { vec![ticket] } else { vec![] };
            WorkerInput::Submit(time(input)?, table, op(input)?, after)
        }
        13 | 14 => WorkerInput::BeginPush(table, keys(input)?, number(input)?),
        15 | 16 => {
            let Batch { keys, values, .. } = batch(input)?;
            let start = number(input)? as usize;
            let end = number(input)? as usize;
            let rows = start..end;
            WorkerInput::PushRows(time(input)?, RowsOfPush { ticket, table, keys, rows, values: values.bytes })
        }
        17 => WorkerInput::EndPush(ticket),
        18 => WorkerInput::Limit(time(input)?, Some(Bandwidth::from_bytes_per_second(number(input)?))),
        _ => input.choose(&[WorkerInput::EndClock(Time(9)), WorkerInput::Barrier, WorkerInput::Leave])?.clone(),
    })
}

fn op(input: &mut Unstructured) -> Result<Op> {
    Ok(match input.int_in_range(0..=7)? {
        0 => Op::Push { batch: batch(input)? },
        1 => Op::Pull { keys: keys(input)? },
        2 => Op::PushPull { batch: batch(input)? },
        3 => {
            let range = PositionRange { first: Position(number(input)?), last: Position(number(input)?) };
            Op::Scan { range, row_state: input.arbitrary()? }
        }
        4 => {
            let Batch { keys, values, .. } = batch(input)?;
            Op::Set { keys, values }
        }
        5 => Op::RowState { keys: keys(input)? },
        6 => Op::Active { keys: keys(input)? },
        _ => Op::Tune { setting: Setting::Rate(0.5) },
    })
}

/// Replays a recording of a server (0), the coordinator (1) or a worker (2).
fn run(input: &mut Unstructured) -> Result<()> {
    let mut file = b"SLKWREC\0".to_vec();
    file.extend_from_slice(&[2, 0]);
    file.extend_from_slice(&wire::VERSION.to_le_bytes());
    let which = input.int_in_range(0u8..=2)?;
    let mut body = vec![which];
    match which {
        0 => {
            SERVER.put(&mut body);
            plan().put(&mut body);
            number(input)?.put(&mut body);
            (if input.arbitrary()? { Some(number(input)?) } else { None }).put(&mut body);
        }
        1 => {
            (2u32, 2u32).put(&mut body);
            (if input.arbitrary()? { Some((2u32, 2u32)) } else { None }).put(&mut body);
            number(input)?.put(&mut body);
        }
        _ => {
            WorkerId(0).put(&mut body);
            Source(1).put(&mut body);
            plan().put(&mut body);
            (number(input)?, number(input)?).put(&mut body);
            Some(number(input)?).put(&mut body);
        }
    }
    put(&mut file, 0, &body);
    let mut lists = KeyListDictionary::default();
    for (table, spec) in (0..).map(TableId).zip(specs()) {
        let head = Head::plain(NodeId::Coordinator, if which == 0 { SERVER } else { WORKER });
        let made = Frame { head, message: Message::Control(Control::AddTable { table, spec }) };
        body.clear();
        match which {
            0 => ServerInput::Frame(Time(0), Box::new(made)).put(&mut body),
            1 => continue,
            _ => WorkerInput::Frame(Time(0), Box::new(made)).put(&mut lists, &mut body),
        }
        put(&mut file, 1, &body);
    }
    while !input.is_empty() {
        body.clear();
        let kind = match (input.int_in_range(0..=9)?, which) {
            (0, _) => {
                let length = input.int_in_range(0..=40)?.min(input.len());
                body.extend_from_slice(input.bytes(length)?);
                input.int_in_range(0..=4)?
            }
            (_, 0) => {
                let told = match input.int_in_range(0..=3)? {
                    0 => ServerInput::Settle,
                    1 => ServerInput::Tick(time(input)?),
                    _ => ServerInput::Frame(time(input)?, Box::new(frame(input, WORKER, SERVER)?)),
                };
                told.put(&mut body);
                1
            }
            (_, 1) => {
                let told = match input.int_in_range(0..=3)? {
                    0 => CoordinatorInput::Tick(time(input)?),
                    _ => CoordinatorInput::Frame(
                        time(input)?,
                        Box::new(frame(input, WORKER, NodeId::Coordinator)?),
                        None,
                    ),
                };
                told.put(&mut body);
                1
            }
            _ => {
                worker_input(input)?.put(&mut lists, &mut body);
                1
            }
        };
        put(&mut file, kind, &body);
    }
    replay_from(&file[..], &Updaters::builtin()).ok();
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
    replay_from(bytes, &Updaters::builtin()).ok();
});
