use super::*;
use crate::testing::ones;
use crate::{KeyListDictionary, WorkerInput};
use types::{Combine, Position, Reduce, TableId, Time};
use wire::{Bits, Payload, Reader};

fn values(number: NumberType, bytes: usize) -> Values {
    Values { number, bytes: Payload::new(vec![1u8; bytes]) }
}

/// One operation of each kind, by its place in the list.
fn each() -> Vec<Op> {
    let keys = || Keys::distinct(Placement::Spread, &[7, 8, 900]);
    let range = PositionRange { first: Position(3), last: Position(u64::MAX) };
    let leased = Batch { lease: Some(LeaseId { set: 1, number: 9 }), ..ones(keys(), 2, 32) };
    vec![
        Op::Push { batch: leased },
        Op::Pull { keys: Keys::run(4..9) },
        Op::PushPull { batch: ones(keys(), 1, 1) },
        Op::Scan { range, row_state: true },
        Op::Set { keys: keys(), values: values(NumberType::F64, 24) },
        Op::RowState { keys: keys().choose(&every_other(3)) },
        Op::Active { keys: keys() },
        Op::Tune { setting: Setting::Rate(0.25) },
        Op::Delete { keys: keys() },
        Op::Follow { cursor: FeedCursor::Batch { sequence: 1, number: 9 }, first: Position(3) },
    ]
}

fn every_other(keys: usize) -> Bits {
    let mut bits = Bits::none(keys);
    (0..keys).step_by(2).for_each(|index| bits.set(index));
    bits
}

/// The place of an operation in the list. A new operation takes the next place, and adds a sample
/// to [`each`].
fn place(op: &Op) -> usize {
    match op {
        Op::Push { .. } => 0,
        Op::Pull { .. } => 1,
        Op::PushPull { .. } => 2,
        Op::Scan { .. } => 3,
        Op::Set { .. } => 4,
        Op::RowState { .. } => 5,
        Op::Active { .. } => 6,
        Op::Tune { .. } => 7,
        Op::Delete { .. } => 8,
        Op::Follow { .. } => 9,
    }
}

fn submitted(op: Op) -> WorkerInput {
    WorkerInput::Submit(Time(5), TableId(2), op, vec![crate::TicketId(4)])
}

#[test]
fn operation_survives_its_recorded_form() {
    for (index, op) in each().into_iter().enumerate() {
        assert_eq!(place(&op), index, "{op:?}");
        let mut bytes = Vec::new();
        let input = submitted(op);
        input.put(&mut KeyListDictionary::default(), &mut bytes);
        let mut reader = Reader(&bytes);
        let again = WorkerInput::get(&mut reader, &mut KeyListDictionary::default()).expect("what was written");
        assert!(reader.0.is_empty());
        assert_eq!(format!("{again:?}"), format!("{input:?}"));
        let mut rewritten = Vec::new();
        again.put(&mut KeyListDictionary::default(), &mut rewritten);
        assert_eq!(rewritten, bytes, "{input:?}");
        for cut in 0..bytes.len() {
            let read = WorkerInput::get(&mut Reader(&bytes[..cut]), &mut KeyListDictionary::default());
            assert!(read.is_err(), "{input:?} cut after {cut} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn recorded_operation_of_an_unknown_kind_is_refused() {
    let mut bytes = Vec::new();
    let input = submitted(Op::Tune { setting: Setting::Rate(0.5) });
    input.put(&mut KeyListDictionary::default(), &mut bytes);
    // After the tag of the input, a time and a table.
    let tag = 1 + 8 + 4;
    assert_eq!(usize::from(bytes[tag]), place(&Op::Tune { setting: Setting::Rate(0.5) }));
    bytes[tag] = each().len() as u8;
    let read = WorkerInput::get(&mut Reader(&bytes), &mut KeyListDictionary::default());
    assert!(read.expect_err("no such operation").to_string().contains("unknown kind of Op"));
}

#[test]
fn key_list_is_recorded_in_full_once() {
    let ids: Vec<u64> = (0..1000).collect();
    let keys = Keys::distinct(Placement::Spread, &ids);
    let mut lists = KeyListDictionary::default();
    let mut length = |op: Op| {
        let mut bytes = Vec::new();
        submitted(op).put(&mut lists, &mut bytes);
        bytes.len()
    };
    assert!(length(Op::Pull { keys: keys.clone() }) > 8 * ids.len());
    for again in [Op::Pull { keys: keys.clone() }, Op::Active { keys: keys.clone() }, Op::RowState { keys }] {
        assert!(length(again) < 100);
    }
}

#[test]
fn operation_check_refuses_what_does_not_fit_the_table() {
    let dense = TableSpec::dense("t", 10, 2);
    let spread = TableSpec::sparse("t", 1);
    let by_clock = TableSpec::dense("t", 10, 1).combine(Combine::Clock(Reduce::Sum));
    let some = PositionRange { first: Position(0), last: Position(4) };
    let beyond = Refusal::OutOfRange { position: Position(10) };
    let short = |expected, found| Refusal::WrongLength { expected, found };
    let integers = Refusal::WrongNumber { expected: NumberType::F32, found: NumberType::I64 };
    // (operation, table, what is wrong with it)
    let cases = [
        (Op::Push { batch: ones(Keys::run(0..3), 2, 1) }, &dense, None),
        (Op::Push { batch: ones(Keys::run(8..11), 2, 1) }, &dense, Some(beyond.clone())),
        (Op::PushPull { batch: ones(Keys::run(0..3), 1, 1) }, &dense, Some(short(24, 12))),
        (Op::Pull { keys: Keys::run(0..11) }, &dense, Some(beyond.clone())),
        (Op::Scan { range: some, row_state: false }, &dense, None),
        (Op::Scan { range: some, row_state: false }, &spread, Some(Refusal::NotOrdered)),
        (Op::Scan { range: some, row_state: true }, &spread, Some(Refusal::NotOrdered)),
        (Op::Scan { range: PositionRange::ALL, row_state: true }, &spread, None),
        (Op::Set { keys: Keys::run(0..1), values: values(NumberType::F32, 8) }, &dense, None),
        (Op::Set { keys: Keys::run(0..1), values: values(NumberType::F32, 4) }, &dense, Some(short(8, 4))),
        (Op::Set { keys: Keys::run(0..1), values: values(NumberType::I64, 8) }, &dense, Some(integers)),
        (Op::Set { keys: Keys::run(0..1), values: values(NumberType::F32, 4) }, &by_clock, Some(Refusal::SetByClock)),
        (Op::RowState { keys: Keys::run(9..11) }, &dense, Some(beyond.clone())),
        (Op::Active { keys: Keys::run(9..11) }, &dense, Some(beyond)),
        (Op::Tune { setting: Setting::Rate(0.5) }, &spread, None),
    ];
    for (op, spec, wrong) in cases {
        assert_eq!(op.check(spec).err(), wrong.map(|refusal| unfit(spec, refusal)), "{op:?}");
    }
    let keys = Keys::run(0..1);
    assert_eq!(Op::Pull { keys }.check(&spread), Err(TableFailure::Placement));
}

#[test]
fn pull_takes_memory_for_exactly_its_rows_or_makes_it() {
    let spec = TableSpec::dense("t", 10, 2);
    let pull = Op::Pull { keys: Keys::run(0..3) };
    let count = |target: Result<PullTarget, _>| target.map(|mut target| target.bytes_mut().len() / 4);
    assert_eq!(count(pull.target(&spec, None)), Ok(6));
    assert_eq!(count(pull.target(&spec, Some(PullTarget::F32(vec![0.0; 6])))), Ok(6));
    let short = Refusal::WrongLength { expected: 24, found: 20 };
    assert_eq!(count(pull.target(&spec, Some(PullTarget::F32(vec![0.0; 5])))), Err(unfit(&spec, short)));
    let integers = Refusal::WrongNumber { expected: NumberType::F32, found: NumberType::I64 };
    assert_eq!(count(pull.target(&spec, Some(PullTarget::I64(vec![0; 3])))), Err(unfit(&spec, integers)));
    let huge = TableSpec::dense("t", u64::MAX, 2);
    let most = Op::Pull { keys: Keys::run(0..1 << 62) };
    assert!(count(most.target(&huge, None)).is_err());
    let scan = Op::Scan { range: PositionRange::ALL, row_state: false };
    assert_eq!(count(scan.target(&spec, None)), Ok(0), "a scan collects what it finds");
}
