//! Shared by the fuzz targets: generators and checks.
//!
//! - Generators make frames from arbitrary bytes. The frames pass the outer checks, so that a
//!   fuzzer spends its time behind them.
//! - Checks state what holds for rows read from any text or file.

mod memory;

pub use memory::within;

use data::{Cuts, DataError, DataReader, Minibatch, ReaderSettings, TextParser};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use types::{
    CacheSpec, Chain, Clock, Codecs, Combine, Consistency, Initial, NodeId, NumberType, Plan, PlanNumber, Position,
    PositionRange, Reduce, Setting, ShardId, Source, TableId, TableSpec, UpdaterSpec, WorkerId,
};
use wire::{
    Acked, Bits, ChangeChunk, ChunkContents, Control, Delta, FailedClock, Frame, HEADER_BYTES, Head, Header, KeyPart,
    LeasedPart, Marker, Message, Payload, Pool, Pull, PullRefused, Pulled, Push, ReadWaiting, Refresh, Refreshed,
    Refusal, Refused, ReplicaChunk, Replicated, Resend, ResendReason, Signature, Tune, Wants, WireError, Writes,
    decode, encode_unchecked,
};

/// The node of the server under test.
pub const SERVER: NodeId = NodeId::Server(0);
/// The node of the worker under test.
pub const WORKER: NodeId = NodeId::Worker(0);

/// A plan of two servers and two workers.
#[must_use]
pub fn plan() -> Plan {
    Plan::first(2, vec![Source(1), Source(2)])
}

/// Any plan: shards may have several replicas, replicas under backfill, or none at all.
pub fn any_plan(input: &mut Unstructured) -> Result<Plan> {
    let server = |input: &mut Unstructured| input.int_in_range(0..=2u32);
    let chain =
        |input: &mut Unstructured| Ok(Chain { replicas: many(input, server)?, backfilling: many(input, server)? });
    let chains = if input.ratio(7, 8)? { vec![chain(input)?, chain(input)?] } else { many(input, chain)? };
    let source =
        |input: &mut Unstructured| Ok(if input.ratio(3, 4)? { Some(Source(input.int_in_range(0..=3)?)) } else { None });
    Ok(Plan { number: PlanNumber(number(input)?), chains, workers: many(input, source)? })
}

/// One table of every kind that handles messages differently.
#[must_use]
pub fn specs() -> Vec<TableSpec> {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    let normal = Initial::Normal { seed: 1, scale: 0.1 };
    let adam = UpdaterSpec::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let proximal = UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 };
    let ftrl = UpdaterSpec::Ftrl { rate: 0.1, beta: 1.0, l1: 0.1, l2: 0.1 };
    vec![
        TableSpec::dense("dense", 10, 2).cached(8),
        TableSpec::sparse("spread", 1).max_rows(20).consistency(eager).cached(16),
        TableSpec::sparse("ordered", 1).number(NumberType::I64).ordered().consistency(Consistency::slack(u64::MAX)),
        TableSpec::dense("means", 7, 1).combine(Combine::Clock(Reduce::Mean)).updater(adam),
        TableSpec::sparse("sums", 1).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum)).initial(normal),
        TableSpec::sparse("ftrl", 1).updater(ftrl).consistency(Consistency::Unbounded),
        TableSpec::sparse("delay", 1).ordered().cached(8).consistency(eager).updater(UpdaterSpec::Assign),
        TableSpec::sparse("late", 1).consistency(Consistency::Delay { tau: 1 }),
        TableSpec::dense("deltas", 9, 2)
            .combine(Combine::Clock(Reduce::Sum))
            .cached(8)
            .codecs(Codecs::both(["keys", "fixed4", "lz4"])),
        TableSpec::sparse("filtered", 2)
            .combine(Combine::Clock(Reduce::Sum))
            .updater(proximal)
            .codecs(Codecs::up(["kkt"])),
    ]
    .into_iter()
    .map(|mut spec| {
        if spec.name == "delay" {
            spec.cache = CacheSpec::Rows { max_rows: 4 };
        }
        spec
    })
    .collect()
}

/// The bytes of a frame, with its payloads.
#[must_use]
pub fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_unchecked(frame, &mut bytes);
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

/// Decodes the first frame of `bytes`, cut as a transport cuts it. Returns it with the number of
/// its bytes; `None` if the bytes end too early.
pub fn cut(bytes: &[u8]) -> Option<(std::result::Result<Frame, WireError>, usize)> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = match Header::parse(header) {
        Ok(header) => header,
        Err(error) => return Some((Err(error), bytes.len())),
    };
    let (body, rest) = rest.split_at_checked(header.body)?;
    let (positions, rest) = rest.split_at_checked(header.payloads[0])?;
    let (values, rest) = rest.split_at_checked(header.payloads[1])?;
    let pool = Pool::new();
    let frame = decode(&header, body, [positions, values].map(|payload| pool.copy(payload)));
    Some((frame, bytes.len() - rest.len()))
}

/// A number, mostly near an end of its range, where arithmetic overflows.
pub fn number(input: &mut Unstructured) -> Result<u64> {
    Ok(match input.int_in_range(0..=9)? {
        0..=6 => input.int_in_range(0..=11)?,
        7 => u64::MAX - input.int_in_range(0..=2)?,
        8 => u64::MAX / 2 + input.int_in_range(0..=2)?,
        _ => input.arbitrary()?,
    })
}

fn bytes(input: &mut Unstructured, most: usize) -> Result<Vec<u8>> {
    let length = input.int_in_range(0..=most)?;
    Ok(input.bytes(length.min(input.len()))?.to_vec())
}

/// A payload of a few positions, mostly sorted. A few payloads are arbitrary bytes.
pub fn positions(input: &mut Unstructured) -> Result<Payload> {
    let count = input.int_in_range(0..=6)?;
    let mut list = (0..count).map(|_| number(input)).collect::<Result<Vec<u64>>>()?;
    if input.ratio(3, 4)? {
        list.sort_unstable();
        list.dedup();
    }
    if input.ratio(1, 16)? {
        return Ok(Pool::new().copy(&bytes(input, 30)?));
    }
    Ok(Pool::new().copy(&list))
}

fn number_type(input: &mut Unstructured) -> Result<NumberType> {
    Ok(*input.choose(&[NumberType::F32, NumberType::F32, NumberType::F64, NumberType::I64])?)
}

/// The numbers of a chunk of the change log.
fn changes(input: &mut Unstructured) -> Result<ChangeChunk> {
    let from = number(input)?;
    let to = number(input)?;
    let chunk = number(input)? as u32;
    Ok(ChangeChunk { from, to, chunk, ends: input.arbitrary()? })
}

/// Values for `count` rows of one or two numbers. A few payloads are arbitrary bytes.
fn values(input: &mut Unstructured, count: u64, number: NumberType) -> Result<Payload> {
    let width = input.int_in_range(1..=2)?;
    let numbers = count.min(100) as usize * width;
    let value = *input.choose(&[1.0, -2.5, 0.0, f64::NAN, f64::MAX])?;
    let pool = Pool::new();
    Ok(match (input.int_in_range(0..=15)?, number) {
        (0, _) => pool.copy(&bytes(input, 40)?),
        (_, NumberType::F32) => pool.copy(&vec![value as f32; numbers]),
        (_, NumberType::F64) => pool.copy(&vec![value; numbers]),
        (_, NumberType::I64) => pool.copy(&vec![value as i64; numbers]),
    })
}

fn keys(input: &mut Unstructured) -> Result<KeyPart> {
    let signature = Signature(u128::from(input.int_in_range(0u8..=2)?));
    let start = number(input)?;
    Ok(match input.int_in_range(0..=7)? {
        6 => {
            let list = positions(input)?;
            let mut packed = Vec::new();
            codec::keys::encode(
                list.numbers().filter(|list| list.is_sorted_by(|a, b| a < b)).unwrap_or(&[]),
                &mut packed,
            );
            if input.ratio(1, 4)? {
                packed = bytes(input, 40)?;
            }
            KeyPart::Packed { signature, start, count: (list.len() / 8) as u32, packed: Payload::new(packed) }
        }
        0 | 1 => KeyPart::Run { first: Position(number(input)?), count: number(input)? },
        2 | 3 => KeyPart::List { signature, start, positions: positions(input)? },
        4 => KeyPart::Known { signature, start, count: number(input)? as u32 },
        5 => {
            let count = input.int_in_range(0..=9)?;
            let mut bits = Bits::none(count);
            for index in 0..count {
                if input.arbitrary()? {
                    bits.set(index);
                }
            }
            KeyPart::Chosen { signature, start, count: count as u32, bits: Pool::new().copy(bits.bytes()) }
        }
        _ => KeyPart::Scan { range: PositionRange { first: Position(number(input)?), last: Position(number(input)?) } },
    })
}

fn refusal(input: &mut Unstructured) -> Result<Refusal> {
    let position = Position(number(input)?);
    Ok(match input.int_in_range(0..=8)? {
        0 => Refusal::NotFinite { position },
        1 => Refusal::UnknownTable,
        2 => Refusal::OutOfRange { position },
        3 => Refusal::Expelled,
        4 => Refusal::NotOrdered,
        5 => Refusal::PastClock,
        6 => Refusal::FarAhead { most: 128 },
        7 => Refusal::TooManyReads { most: 256 },
        _ => Refusal::UnknownKeys { signature: input.int_in_range(0u8..=2)?.into() },
    })
}

/// A list of up to three things.
fn many<T>(input: &mut Unstructured, one: impl Fn(&mut Unstructured) -> Result<T>) -> Result<Vec<T>> {
    let count = input.int_in_range(0..=3)?;
    (0..count).map(|_| one(input)).collect()
}

fn control(input: &mut Unstructured) -> Result<Control> {
    let worker = |input: &mut Unstructured| Ok(WorkerId(number(input)? as u32));
    Ok(match input.int_in_range(0..=7)? {
        0 => Control::Adopt { plan: any_plan(input)?, members: Vec::new(), enacted: input.arbitrary()? },
        1 => Control::Finish,
        2 => Control::TableMade {
            table: TableId(input.int_in_range(0..=12)?),
            name: input.choose(&specs())?.name.clone(),
        },
        3 => Control::TableRefused { name: input.choose(&specs())?.name.clone(), problem: String::new() },
        4 => Control::BarrierPassed { number: number(input)? },
        5 => Control::BarrierWaiting { number: number(input)?, on: many(input, worker)? },
        6 => Control::Heartbeat { heard: 0 },
        _ => Control::AddTable { table: TableId(input.int_in_range(0..=12)?), spec: input.choose(&specs())?.clone() },
    })
}

/// Any message, mostly about a table that exists.
pub fn message(input: &mut Unstructured) -> Result<Message> {
    let table = TableId(input.int_in_range(0..=9)?);
    let shard = ShardId(input.int_in_range(0..=2)?);
    let request = number(input)?;
    Ok(match input.int_in_range(0..=18)? {
        16 | 17 => {
            let positions = positions(input)?;
            let kind = number_type(input)?;
            let count = positions.len() as u64 / 8 * input.int_in_range(1..=3)?;
            let values = values(input, count, kind)?;
            let contents = match input.int_in_range(0..=4)? {
                0 => ChunkContents::Rows,
                4 => ChunkContents::ClockRemovals { clock: Clock(number(input)?) },
                3 => ChunkContents::RemovedRows,
                1 => ChunkContents::ClockSums { clock: Clock(number(input)?) },
                _ => ChunkContents::Metadata { bytes: many(input, |input| input.arbitrary())? },
            };
            let backfill = if input.arbitrary()? { Some(number(input)?) } else { None };
            let changes = changes(input)?;
            Message::ReplicaChunk(ReplicaChunk { table, shard, changes, backfill, contents, positions, values })
        }
        18 => {
            let backfill = if input.arbitrary()? { Some((number(input)?, number(input)? as u32)) } else { None };
            Message::Replicated(Replicated { table, shard, through: request, backfill })
        }
        14 => {
            let sequence = input.int_in_range(0..=2)?;
            let keys = keys(input)?;
            let values = values(input, keys.count().unwrap_or(1), NumberType::F32)?;
            let changes = changes(input)?;
            let reaches = Clock(number(input)?);
            Message::Delta(Delta { table, shard, sequence, changes, reaches, keys, values })
        }
        0..=2 => {
            let keys = keys(input)?;
            let kind = number_type(input)?;
            let values = values(input, keys.count().unwrap_or(1), kind)?;
            let lease = if input.arbitrary()? {
                Some(LeasedPart { set: input.int_in_range(0..=1)?, lease: number(input)?, part: number(input)? })
            } else {
                None
            };
            let writes = if input.ratio(1, 4)? { Writes::Rows } else { Writes::Gradients { lease } };
            Message::Push(Push { table, shard, settled: request, number: kind, writes, keys, values })
        }
        3 | 4 => Message::Marker(Marker { table, shard, settled: request, since: Clock(number(input)?) }),
        5 => {
            let rate = *input.choose(&[0.5, -1.0, f64::NAN, f64::INFINITY])?;
            let at = Clock(number(input)?);
            let setting = Setting::Rate(rate);
            Message::Tune(Tune { table, shard, settled: request, at, setting })
        }
        6 => {
            let one = |input: &mut Unstructured| Ok(Refused { number: number(input)?, refusal: refusal(input)? });
            Message::Acked(Acked { table, shard, through: request, refused: many(input, one)? })
        }
        7 => {
            let signature = input.int_in_range(0u8..=2)?.into();
            let reason = *input.choose(&[ResendReason::Gap, ResendReason::UnknownKeys { signature }])?;
            Message::Resend(Resend { table, shard, next: request, reason })
        }
        8 | 9 => {
            let after = number(input)?;
            let frontier = Clock(number(input)?);
            let subscribe = input.arbitrary()?;
            let keys = keys(input)?;
            let deltas = if input.arbitrary()? { Some((number(input)?, number(input)?)) } else { None };
            let wants = *input.choose(&[Wants::Values, Wants::Values, Wants::Active, Wants::RowState])?;
            Message::Pull(Pull { table, shard, request, after, frontier, subscribe, deltas, wants, keys })
        }
        10 => {
            let failed = |input: &mut Unstructured| {
                let clock = Clock(number(input)?);
                let worker = WorkerId(number(input)? as u32);
                Ok(FailedClock { clock, worker, refusal: refusal(input)? })
            };
            let positions = positions(input)?;
            Message::Pulled(Pulled {
                table,
                shard,
                request,
                contains: number(input)?,
                sequence: if input.arbitrary()? { Some((number(input)?, number(input)?)) } else { None },
                released_by: None,
                failed: many(input, failed)?,
                more: if input.arbitrary()? { Some(Position(number(input)?)) } else { None },
                values: {
                    let count = number(input)?;
                    let kind = number_type(input)?;
                    values(input, count, kind)?
                },
                positions,
            })
        }
        11 => Message::PullRefused(PullRefused { table, shard, request, refusal: refusal(input)? }),
        12 => Message::ReadWaiting(ReadWaiting { table, shard, request, on: Vec::new() }),
        13 => {
            let positions = positions(input)?;
            let kind = number_type(input)?;
            Message::Refresh(Refresh {
                table,
                shard,
                sequence: number(input)?,
                changes: changes(input)?,
                from: Clock(number(input)?),
                failed: Vec::new(),
                contains: number(input)?,
                values: values(input, positions.len() as u64 / 8, kind)?,
                positions,
            })
        }
        _ if input.arbitrary()? => {
            Message::Refreshed(Refreshed { table, shard, sequence: request, number: number(input)? })
        }
        _ => Message::Control(control(input)?),
    })
}

/// Any frame from `from` to `to`.
pub fn frame(input: &mut Unstructured, from: NodeId, to: NodeId) -> Result<Frame> {
    let mut head = Head::plain(from, to);
    head.plan = PlanNumber(number(input)?);
    head.source = Source(input.int_in_range(0..=3)?);
    head.number = number(input)?;
    head.clock = Clock(number(input)?);
    head.examples = number(input)?;
    if input.ratio(1, 4)? {
        head.codecs.0[0] = input.int_in_range(0..=33)?;
        head.codecs.0[1] = *input.choose(&[0, 0, 7])?;
    }
    Ok(Frame { head, message: message(input)? })
}

/// Parses the lines of a text, and checks the rows: a malformed line adds nothing, all numbers are
/// finite, and keys, values and fields are equally many.
pub fn lines(parser: &mut TextParser, text: &[u8]) -> Minibatch {
    let mut rows = Minibatch::new();
    for line in text.split(|&byte| byte == b'\n') {
        let before = (rows.rows(), rows.features());
        if let Err(fault) = parser.line(line, &mut rows) {
            assert_eq!((rows.rows(), rows.keys().len(), rows.values().len()), (before.0, before.1, before.1));
            assert!(fault.column as usize <= line.len() + 1, "{fault} beyond the line");
        }
        assert!(rows.rows() <= before.0 + 1);
    }
    assert!(rows.values().iter().chain(rows.labels()).all(|number| number.is_finite()));
    assert!(rows.fields().is_none_or(|fields| fields.len() == rows.features()));
    assert!(rows.importances().is_none_or(|importances| importances.len() == rows.rows()));
    rows
}

/// A folder of this process, for files that are written anew for each input.
#[must_use]
pub fn folder() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("slackwater-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// Reads a file to its end or to the error that ends it, or until `most` rows: a file may claim any
/// number of empty rows. Checks the rows.
pub fn rows_of(
    path: &std::path::Path,
    settings: ReaderSettings,
    most: usize,
) -> std::result::Result<Minibatch, DataError> {
    let reader = DataReader::open(&[path.to_str().unwrap_or_default()], settings)?;
    let mut all = Minibatch::new();
    let mut batch = Minibatch::new();
    let mut source = reader.source();
    while all.rows() < most && source.fill(&mut batch)? {
        for row in batch.iter() {
            row.keys.iter().zip(row.values).for_each(|(key, value)| all.push(*key, *value));
            all.end_row(row.label.unwrap_or(0.0));
        }
    }
    assert!(all.values().iter().chain(all.labels()).all(|number| number.is_finite()));
    if all.rows() < most {
        check_ranges(&reader, &all);
    }
    Ok(all)
}

/// Checks that a file gives the same rows in ranges as in one piece, if it has few ranges.
fn check_ranges(reader: &DataReader, all: &Minibatch) {
    let cuts = Cuts::of(reader, 64).expect("the file was read before");
    if cuts.ranges() > 4 {
        return;
    }
    let mut rows = all.iter();
    let mut batch = Minibatch::new();
    for range in 0..cuts.ranges() {
        let mut source = cuts.open(range).expect("the range exists").source();
        while source.fill(&mut batch).expect("the file was read before") {
            for row in batch.iter() {
                let whole = rows.next().expect("ranges have no more rows than the file");
                assert_eq!(
                    (row.keys, row.values, row.label.unwrap_or(0.0)),
                    (whole.keys, whole.values, whole.label.unwrap_or(0.0))
                );
            }
        }
    }
    assert_eq!(rows.len(), 0, "rows that are in no range");
}
