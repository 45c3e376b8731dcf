use super::*;
use crate::testing::{TABLE, worker_with_table};
use crate::{Batch, Op, PullTarget, ReadRows, TableFailure, TicketFailure, TicketOutcome, Values};
use shard::Server;
use std::collections::VecDeque;
use types::{
    Codecs, Combine, Consistency, Initial, Key, NodeId, NumberType, PART_BYTES, Plan, PositionRange, Reduce, Source,
    UpdaterSpec,
};
use update::{Number, UpdateStep, Updater, Updaters};
use wire::{Control, Frame, Head, Message, Pool, Refusal};

const SERVER: NodeId = NodeId::Server(0);

/// A worker, a server that has all of its table, and the frames under way between the two.
struct Pair {
    worker: Worker,
    server: Server,
    to_server: VecDeque<Frame>,
    to_worker: VecDeque<Frame>,
    out: Outbox,
}

impl Pair {
    fn of(spec: &TableSpec, registry: Updaters) -> Self {
        let plan = Plan::first(1, vec![Source(1)]);
        let mut out = Outbox::new();
        let mut server = Server::new(SERVER, plan, registry, Pool::new());
        let added = Message::Control(Control::AddTable { table: TABLE, spec: spec.clone() });
        server.handle(Time(0), Frame { head: Head::plain(NodeId::Coordinator, SERVER), message: added }, &mut out);
        let worker = worker_with_table(spec.clone(), 1);
        out.drain().for_each(drop);
        Self { worker, server, to_server: VecDeque::new(), to_worker: VecDeque::new(), out }
    }

    fn new(spec: &TableSpec) -> Self {
        Self::of(spec, Updaters::builtin())
    }

    /// Puts the worker's frames on their way to the server.
    fn sent(&mut self) {
        self.to_server.extend(self.out.drain());
    }

    /// The server takes the frames on their way to it, and answers.
    fn serve(&mut self) {
        for frame in self.to_server.drain(..) {
            // Over a network, no payload is more than a part.
            assert!(frame.message.payloads().iter().all(|payload| payload.len() <= PART_BYTES));
            self.server.handle(Time(0), frame, &mut self.out);
        }
        self.server.settle(&mut self.out);
        self.to_worker.extend(self.out.drain());
        assert!(self.to_worker.iter().all(|frame| frame.message.payloads().iter().all(|it| it.len() <= PART_BYTES)));
    }

    /// Delivers frames until none is under way.
    fn settle(&mut self) {
        while !self.to_server.is_empty() || !self.to_worker.is_empty() {
            self.serve();
            for frame in std::mem::take(&mut self.to_worker) {
                self.worker.handle(Time(0), frame, &mut self.out);
            }
            self.sent();
        }
    }

    fn wait(&mut self, ticket: TicketId) -> Result<TicketOutcome, Refusal> {
        self.settle();
        let taken = self.worker.take(ticket).expect("finished");
        taken.map_err(|(_, TicketFailure { refusal })| refusal)
    }

    fn push<T: Number>(&mut self, keys: &Keys, values: &[T], examples: u64) -> TicketId {
        let batch = Batch { keys: keys.clone(), values: numbers(values), examples, lease: None };
        let ticket = self.worker.submit(Time(0), TABLE, Op::Push { batch }, None, &[], &mut self.out).expect("fits");
        self.sent();
        ticket
    }

    fn set<T: Number>(&mut self, keys: &Keys, values: &[T]) -> Result<TicketId, TableFailure> {
        let set = Op::Set { keys: keys.clone(), values: numbers(values) };
        let ticket = self.worker.submit(Time(0), TABLE, set, None, &[], &mut self.out);
        self.sent();
        ticket
    }

    fn delete(&mut self, keys: &Keys) -> TicketId {
        let delete = Op::Delete { keys: keys.clone() };
        let ticket = self.worker.submit(Time(0), TABLE, delete, None, &[], &mut self.out).expect("fits");
        self.sent();
        ticket
    }

    fn end_clock(&mut self) {
        self.worker.end_clock(Time(0), &mut self.out);
        self.sent();
    }

    fn kept(&mut self, keys: Option<&Keys>) -> Result<ReadRows, Refusal> {
        let all = Op::Scan { range: PositionRange::ALL, row_state: true };
        let op = keys.map_or(all, |keys| Op::RowState { keys: keys.clone() });
        let ticket = self.worker.submit(Time(0), TABLE, op, None, &[], &mut self.out).expect("fits");
        self.sent();
        match self.wait(ticket)? {
            TicketOutcome::Rows(rows) => Ok(rows),
            TicketOutcome::Done => panic!("a read brings rows"),
        }
    }

    fn pull(&mut self, keys: &Keys) -> TicketId {
        let pull = Op::Pull { keys: keys.clone() };
        let ticket = self.worker.submit(Time(0), TABLE, pull, None, &[], &mut self.out).expect("fits");
        self.sent();
        ticket
    }

    /// The rows, and how many of them came from the cache.
    fn read(&mut self, keys: &Keys) -> (Vec<f32>, usize) {
        let ticket = self.pull(keys);
        match self.wait(ticket) {
            Ok(TicketOutcome::Rows(ReadRows { values: PullTarget::F32(values), cached_rows, .. })) => {
                (values, cached_rows)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn numbers<T: Number>(values: &[T]) -> Values {
    Values { number: T::TYPE, bytes: Pool::new().copy(values) }
}

fn f32s(rows: ReadRows) -> (Vec<u64>, Vec<f32>) {
    let ReadRows { values: PullTarget::F32(values), positions, .. } = rows else { panic!("of f32") };
    (positions, values)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn refusal(failure: TableFailure) -> Refusal {
    let TableFailure::Unfit { refusal, .. } = failure else { panic!("{failure}") };
    refusal
}

fn updaters() -> Vec<(UpdaterSpec, usize)> {
    vec![
        (UpdaterSpec::Sum, 4),
        (UpdaterSpec::Assign, 4),
        (UpdaterSpec::Sgd { rate: 0.3 }, 4),
        (UpdaterSpec::Momentum { rate: 0.3, momentum: 0.9 }, 8),
        (UpdaterSpec::Adagrad { rate: 0.3, epsilon: 1e-8 }, 8),
        (UpdaterSpec::Adam { rate: 0.3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 }, 13),
        (UpdaterSpec::Ftrl { rate: 0.3, beta: 1.0, l1: 0.01, l2: 0.1 }, 8),
        (UpdaterSpec::Proximal { rate: 0.3, l1: 0.1 }, 4),
    ]
}

/// Gradients for rows of four numbers, different for each `salt`. For a proximal table, half of
/// each row are curvatures.
fn gradients(rows: usize, salt: u32) -> Vec<f32> {
    (0..rows as u32 * 4).map(|place| 0.1 + ((place * 7 + salt * 13) % 11) as f32 / 8.0).collect()
}

#[test]
fn row_state_that_is_read_and_set_again_continues_the_same_way() {
    for (updater, width) in updaters() {
        for sparse in [false, true] {
            let spec = if sparse { TableSpec::sparse("t", 4) } else { TableSpec::dense("t", 6, 4) };
            let spec = spec.updater(updater.clone()).consistency(Consistency::slack(1));
            let placement = spec.shape.placement();
            let all = Keys::distinct(placement, &[0, 1, 2, 3, 4, 5]);
            let some = Keys::distinct(placement, &[1, 2, 4]);
            let mut set = Pair::new(&spec);
            let mut left = Pair::new(&spec);
            for pair in [&mut set, &mut left] {
                pair.push(&all, &gradients(6, 1), 10);
                pair.push(&some, &gradients(3, 2), 10);
            }
            let (positions, then) = f32s(left.kept(None).expect("kept"));
            assert_eq!(then.len(), 6 * width, "{updater}");
            let listed = f32s(left.kept(Some(&all)).expect("kept"));
            assert_eq!(listed, (positions.clone(), then.clone()), "{updater}: by key, too");
            // One of them learns more, then is set back.
            set.push(&all, &gradients(6, 3), 0);
            set.push(&some, &gradients(3, 4), 0);
            assert_ne!(f32s(set.kept(None).expect("kept")).1, then, "{updater}");
            let ids: Vec<u64> = positions.iter().map(|at| placement.key(types::Position(*at)).0).collect();
            let keys = Keys::in_order(placement, &ids).expect("as they were found");
            let ticket = set.set(&keys, &then).expect("fits");
            set.wait(ticket).expect("taken");
            assert_eq!(bits(&f32s(set.kept(None).expect("kept")).1), bits(&then), "{updater}");
            for pair in [&mut set, &mut left] {
                pair.push(&some, &gradients(3, 5), 7);
                pair.push(&all, &gradients(6, 6), 7);
            }
            let rows = [set.kept(None), left.kept(None)].map(|rows| bits(&f32s(rows.expect("kept")).1));
            assert_eq!(rows[0], rows[1], "{updater}");
            assert_eq!(bits(&set.read(&all).0), bits(&left.read(&all).0), "{updater}: as readers see them");
        }
    }
}

#[test]
fn row_state_of_i64_and_f64_tables_is_set() {
    let keys = Keys::run(0..2);
    let spec = TableSpec::dense("t", 2, 1).number(NumberType::I64);
    let mut counts = Pair::new(&spec);
    let ticket = counts.set(&keys, &[i64::MAX, -7]).expect("fits");
    counts.wait(ticket).expect("taken");
    assert!(matches!(counts.kept(None), Ok(ReadRows { values: PullTarget::I64(rows), .. }) if rows == [i64::MAX, -7]));
    let adagrad = UpdaterSpec::Adagrad { rate: 1.0, epsilon: 0.0 };
    let mut reals = Pair::new(&spec.number(NumberType::F64).updater(adagrad));
    let ticket = reals.set(&keys, &[1.0f64, 4.0, 0.1, 0.2]).expect("fits");
    reals.wait(ticket).expect("taken");
    let kept = reals.kept(Some(&keys));
    assert!(matches!(kept, Ok(ReadRows { values: PullTarget::F64(rows), .. }) if rows == [1.0, 4.0, 0.1, 0.2]));
}

#[test]
fn row_state_that_does_not_fit_is_refused_before_anything_is_sent() {
    let keys = Keys::run(0..2);
    let adagrad = UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 };
    let spec = TableSpec::dense("t", 2, 3).updater(adagrad);
    let by_clock = spec.clone().combine(Combine::Clock(Reduce::Sum));
    let wrong_number = Refusal::WrongNumber { expected: NumberType::F32, found: NumberType::F64 };
    let cases = [
        (&spec, numbers(&[0f32; 6]), Refusal::WrongLength { expected: 48, found: 24 }),
        (&spec, numbers(&[0f32; 13]), Refusal::WrongLength { expected: 48, found: 52 }),
        (&spec, numbers(&[0f64; 6]), wrong_number),
        (&by_clock, numbers(&[0f32; 12]), Refusal::SetByClock),
    ];
    for (spec, values, expected) in cases {
        let mut pair = Pair::new(spec);
        let failure =
            pair.worker.submit(Time(0), TABLE, Op::Set { keys: keys.clone(), values }, None, &[], &mut pair.out);
        assert_eq!(refusal(failure.expect_err("does not fit")), expected);
        assert_eq!(pair.out.drain().count(), 0);
    }
    let mut pair = Pair::new(&spec);
    let beyond = pair.set(&Keys::run(1..3), &[0f32; 12]).expect_err("two rows");
    assert_eq!(refusal(beyond), Refusal::OutOfRange { position: types::Position(2) });
}

/// An updater that only the server knows: the mean of the pushed values, with a count beside each
/// row.
struct Mean;

impl Updater<f32> for Mean {
    fn state(&self, _: usize) -> usize {
        1
    }
    fn update(&self, _: &UpdateStep, width: usize, row: &mut [f32], gradient: &[f32]) {
        row[width] += 1.0;
        for index in 0..width {
            row[index] += (gradient[index] - row[index]) / row[width];
        }
    }
}

#[test]
fn row_state_of_a_custom_updater_has_the_width_that_the_server_tells() {
    let mut registry = Updaters::builtin();
    registry.register::<f32>("mean", |_| Box::new(Mean));
    let own = UpdaterSpec::Custom { name: "mean".into(), settings: Vec::new() };
    let mut pair = Pair::of(&TableSpec::dense("t", 2, 2).updater(own), registry);
    let keys = Keys::run(0..2);
    pair.push(&keys, &[1f32, 2.0, 3.0, 4.0], 1);
    let (_, kept) = f32s(pair.kept(Some(&keys)).expect("kept"));
    assert_eq!(kept, [1.0, 2.0, 1.0, 3.0, 4.0, 1.0]);
    let ticket = pair.set(&keys, &[5f32, 6.0, 3.0, 7.0, 8.0, 3.0]).expect("may fit");
    pair.wait(ticket).expect("taken");
    pair.push(&keys, &[1f32, 2.0, 3.0, 4.0], 1);
    assert_eq!(pair.read(&keys).0, [4.0, 5.0, 6.0, 7.0], "the mean of four pushes");
    let wide = pair.set(&keys, &[0f32; 8]).expect("may fit");
    assert_eq!(pair.wait(wide).expect_err("a number too many"), Refusal::WrongLength { expected: 24, found: 32 });
    let crooked = pair.set(&keys, &[0f32; 7]).expect_err("seven numbers are not two rows");
    assert_eq!(refusal(crooked), Refusal::WrongLength { expected: 32, found: 28 });
}

#[test]
fn row_state_that_is_almost_a_part_wide_travels_one_row_to_a_part() {
    // The weights of a row are a quarter of a part, and its row state is almost a whole part.
    let adam = UpdaterSpec::Adam { rate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
    let spec = TableSpec::sparse("t", 1 << 16).updater(adam);
    let keys = Keys::distinct(spec.shape.placement(), &(0..9).collect::<Vec<u64>>());
    let width = 3 * (1 << 16) + 1;
    let rows: Vec<f32> = (0..9 * width).map(|place| (place / width) as f32 + 0.5).collect();
    let mut pair = Pair::new(&spec);
    let ticket = pair.set(&keys, &rows).expect("fits");
    assert_eq!(pair.to_server.len(), 9, "one row each");
    pair.wait(ticket).expect("taken");
    for asked in [None, Some(&keys)] {
        let (positions, kept) = f32s(pair.kept(asked).expect("kept"));
        assert!(kept == rows && positions.iter().enumerate().all(|(index, at)| keys.position(index).0 == *at));
    }
    let adagrad = UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 };
    let spec = TableSpec::dense("t", 2, (1 << 17) + 1).updater(adagrad);
    let too_wide = Refusal::WideRows { bytes: (1 << 20) + 8 };
    let mut pair = Pair::new(&spec);
    let failure = pair.set(&Keys::run(0..1), &vec![0f32; (1 << 18) + 2]).expect_err("too wide");
    assert_eq!((refusal(failure), pair.kept(None).expect_err("too wide")), (too_wide.clone(), too_wide));
}

#[test]
fn row_state_of_a_key_without_a_row_is_zeros_and_setting_it_makes_the_row() {
    let adagrad = UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 };
    let spec = TableSpec::sparse("t", 1).updater(adagrad);
    let keys = Keys::distinct(spec.shape.placement(), &[7, 9]);
    let mut pair = Pair::new(&spec);
    assert_eq!(f32s(pair.kept(Some(&keys)).expect("kept")).1, [0.0; 4]);
    assert_eq!(f32s(pair.kept(None).expect("kept")), (Vec::new(), Vec::new()), "reading has made no rows");
    let nine = Keys::distinct(spec.shape.placement(), &[9]);
    pair.set(&nine, &[1f32, 2.0]).expect("fits");
    let at = spec.shape.placement().position(Key(9)).0;
    assert_eq!(f32s(pair.kept(None).expect("kept")), (vec![at], vec![1.0, 2.0]));
}

#[test]
fn cache_drops_rows_that_are_set_and_asks_the_shard() {
    let spec = TableSpec::dense("t", 3, 1).consistency(Consistency::slack(1)).cached(3);
    let keys = Keys::run(0..3);
    let mut pair = Pair::new(&spec);
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 0));
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 3), "cached rows are kept");
    pair.set(&keys, &[10f32, 20.0, 30.0]).expect("fits");
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    assert_eq!(pair.read(&keys), (vec![11.0, 21.0, 31.0], 0));
    assert_eq!(pair.read(&keys), (vec![11.0, 21.0, 31.0], 3));
}

#[test]
fn cache_does_not_keep_an_answer_from_before_rows_were_set() {
    let spec = TableSpec::dense("t", 3, 1).consistency(Consistency::slack(1)).cached(3);
    let keys = Keys::run(0..3);
    let mut pair = Pair::new(&spec);
    let before = pair.pull(&keys);
    pair.serve();
    // The answer is on its way when the rows are set and added to.
    let ticket = pair.set(&keys, &[10f32, 20.0, 30.0]).expect("fits");
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    for frame in std::mem::take(&mut pair.to_worker) {
        pair.worker.handle(Time(0), frame, &mut pair.out);
    }
    assert!(matches!(pair.worker.take(before), Some(Ok(TicketOutcome::Rows(_)))));
    assert_eq!(pair.read(&keys), (vec![11.0, 21.0, 31.0], 0));
    pair.wait(ticket).expect("taken");
}

#[test]
fn setting_rows_drops_their_residuals() {
    let spec = TableSpec::dense("t", 2, 4).codecs(Codecs::up(["topk=25%"]));
    let keys = Keys::run(0..2);
    let mut pair = Pair::new(&spec);
    pair.push(&keys, &[8f32, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0], 1);
    assert_eq!(pair.read(&keys).0, [8.0, 0.0, 0.0, 0.0, 8.0, 0.0, 0.0, 0.0], "the rest is residual");
    pair.set(&Keys::run(0..1), &[0.1f32, 0.2, 0.3, 0.4]).expect("fits");
    assert_eq!(pair.read(&Keys::run(0..1)).0, [0.1, 0.2, 0.3, 0.4], "as the program gave it: no codec has encoded it");
    for _ in 0..9 {
        pair.push(&keys, &[0f32; 8], 1);
    }
    assert_eq!(pair.read(&keys).0, [0.1, 0.2, 0.3, 0.4, 8.0, 1.0, 1.0, 1.0]);
}

#[test]
fn set_rows_that_wait_for_bandwidth_keep_their_order_among_pushes() {
    let mut pair = Pair::new(&TableSpec::dense("t", 1, 1));
    pair.worker.limit(Time(0), Some(types::Bandwidth::from_bytes_per_second(1000)), &mut pair.out);
    let key = Keys::run(0..1);
    // Sums may go in any order: the largest goes first.
    pair.push(&key, &[1f32], 1);
    pair.push(&key, &[2f32], 1);
    pair.set(&key, &[100f32]).expect("fits");
    pair.push(&key, &[1000f32], 1);
    pair.push(&key, &[3000f32], 1);
    assert_eq!(pair.to_server.len(), 0, "everything waits");
    (1..4000).for_each(|ms| pair.worker.tick(Time(ms * 1_000_000), &mut pair.out));
    pair.sent();
    let first = |frame: &Frame| match &frame.message {
        Message::Push(push) => Some((push.writes, push.values.numbers::<f32>()?[0])),
        _ => None,
    };
    let sent: Vec<_> = pair.to_server.iter().filter_map(first).collect();
    assert_eq!(sent.len(), 5);
    assert_eq!(sent[2], (Writes::Rows, 100.0), "{sent:?}");
    assert_eq!(pair.read(&key).0, [4100.0]);
}

/// Found by random calls: the worker cut an empty set into parts of rows of zero width.
#[test]
fn setting_and_reading_no_rows_finishes_at_once() {
    let mut pair = Pair::new(&TableSpec::dense("t", 2, 1));
    let none = Keys::run(0..0);
    let ticket = pair.set::<f32>(&none, &[]).expect("fits");
    assert!(pair.to_server.is_empty() && matches!(pair.wait(ticket), Ok(TicketOutcome::Done)));
    assert_eq!(f32s(pair.kept(Some(&none)).expect("kept")), (Vec::new(), Vec::new()));
}

/// The keys of a sparse table.
fn sparse(spec: &TableSpec, ids: &[u64]) -> Keys {
    Keys::distinct(spec.shape.placement(), ids)
}

#[test]
fn deleting_rows_drops_their_residuals() {
    let spec = TableSpec::sparse("t", 4).ordered().codecs(Codecs::up(["topk=25%"]));
    let keys = sparse(&spec, &[0, 1]);
    let mut pair = Pair::new(&spec);
    pair.push(&keys, &[8f32, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0], 1);
    pair.delete(&sparse(&spec, &[0]));
    assert_eq!(f32s(pair.kept(None).expect("kept")), (vec![1], vec![8.0, 0.0, 0.0, 0.0]));
    for _ in 0..9 {
        pair.push(&keys, &[0f32; 8], 1);
    }
    assert_eq!(pair.read(&keys).0, [0.0, 0.0, 0.0, 0.0, 8.0, 1.0, 1.0, 1.0]);
}

#[test]
fn deleted_rows_leave_nothing_to_push_when_the_worker_leaves() {
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        let spec = TableSpec::sparse("t", 4).ordered().combine(combine).codecs(Codecs::up(["topk=25%"]));
        let keys = sparse(&spec, &[0, 1]);
        let mut pair = Pair::new(&spec);
        pair.push(&keys, &[8f32, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0], 1);
        pair.delete(&keys);
        if combine != Combine::Each {
            // Of the same clock, so the delete applies after it.
            pair.push(&keys, &[8f32, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0], 1);
        }
        pair.end_clock();
        assert_eq!(f32s(pair.kept(None).expect("kept")), (vec![], vec![]), "{combine:?}");
        assert!(!pair.worker.flush_residuals(Time(0), &mut pair.out), "{combine:?}: residuals are left");
    }
}

#[test]
fn push_after_a_delete_in_its_clock_leaves_no_residual_and_one_of_the_next_clock_does() {
    let spec = TableSpec::sparse("t", 4).ordered().combine(Combine::Clock(Reduce::Sum));
    let spec = spec.consistency(Consistency::LOCK_STEP).codecs(Codecs::up(["topk=25%"]));
    let keys = sparse(&spec, &[7]);
    let mut pair = Pair::new(&spec);
    pair.delete(&keys);
    pair.push(&keys, &[8f32, 1.0, 1.0, 1.0], 1);
    pair.end_clock();
    assert_eq!(pair.read(&keys).0, [0.0; 4], "deleted after the update of the clock");
    pair.push(&keys, &[0f32, 0.0, 0.0, 5.0], 1);
    pair.push(&keys, &[0f32, 0.0, 2.0, 3.0], 1);
    pair.end_clock();
    assert_eq!(pair.read(&keys).0, [0.0, 0.0, 0.0, 8.0]);
    pair.push(&keys, &[0f32; 4], 1);
    pair.end_clock();
    assert_eq!(pair.read(&keys).0, [0.0, 0.0, 2.0, 8.0], "the residual of the clock before");
}

/// The table's reads are encoded as deltas of published rows, by one bit for each number.
#[test]
fn deleted_rows_read_as_never_pushed_where_reads_come_as_deltas() {
    for (slack, initial) in [(0, Initial::Zero), (0, Initial::Uniform { seed: 5, scale: 1.0 }), (1, Initial::Zero)] {
        let spec = TableSpec::sparse("t", 64).ordered().combine(Combine::Clock(Reduce::Sum)).initial(initial);
        let spec = spec.consistency(Consistency::slack(slack)).cached(10).codecs(Codecs::default().down(["1bit"]));
        let one = sparse(&spec, &[3]);
        let both = sparse(&spec, &[3, 4]);
        let mut pair = Pair::new(&spec);
        let never_pushed = pair.read(&both).0;
        let gradient: Vec<f32> = (0..128).map(|place| ((place * 7) % 13) as f32).collect();
        for _ in 0..3 {
            pair.push(&both, &gradient, 1);
            pair.end_clock();
            pair.read(&both);
        }
        pair.delete(&one);
        (0..=slack).for_each(|_| pair.end_clock());
        assert_eq!(pair.read(&one).0, never_pushed[..64], "slack {slack}, {initial:?}");
        let row = &pair.read(&both).0[64..];
        let pushed = never_pushed[64..].iter().zip(&gradient[64..]).map(|(initial, value)| initial + 3.0 * value);
        assert!(row.iter().zip(pushed).all(|(value, exact)| (value - exact).abs() < 1e-4), "whole, so exact: {row:?}");
        // A push makes the row anew, from its initial values.
        pair.push(&one, &[1f32; 64], 1);
        (0..=slack).for_each(|_| pair.end_clock());
        let row = &pair.read(&one).0;
        assert!(row.iter().zip(&never_pushed).all(|(value, initial)| (value - initial - 1.0).abs() < 1e-4), "{row:?}");
    }
}

#[test]
fn the_cache_drops_deleted_rows_and_asks_the_shard() {
    let spec = TableSpec::sparse("t", 1).ordered().consistency(Consistency::slack(1)).cached(3);
    let keys = sparse(&spec, &[0, 1, 2]);
    let mut pair = Pair::new(&spec);
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 0));
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 3), "cached rows are kept");
    pair.delete(&keys);
    assert_eq!(pair.read(&keys), (vec![0.0; 3], 0));
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 3), "cached as never pushed, and pushed to since");
}

#[test]
fn an_answer_from_before_rows_were_deleted_is_not_kept() {
    let spec = TableSpec::sparse("t", 1).ordered().consistency(Consistency::slack(1)).cached(3);
    let keys = sparse(&spec, &[0, 1, 2]);
    let mut pair = Pair::new(&spec);
    pair.push(&keys, &[7f32, 7.0, 7.0], 1);
    let before = pair.pull(&keys);
    pair.serve();
    // The answer is on its way when the rows are deleted and pushed to.
    pair.delete(&keys);
    pair.push(&keys, &[1f32, 1.0, 1.0], 1);
    for frame in std::mem::take(&mut pair.to_worker) {
        pair.worker.handle(Time(0), frame, &mut pair.out);
    }
    assert!(matches!(pair.worker.take(before), Some(Ok(TicketOutcome::Rows(_)))));
    assert_eq!(pair.read(&keys), (vec![1.0; 3], 0));
}

#[test]
fn deletes_that_wait_for_bandwidth_neither_overtake_pushes_nor_are_overtaken() {
    let spec = TableSpec::sparse("t", 1).ordered();
    let key = sparse(&spec, &[5]);
    let mut pair = Pair::new(&spec);
    pair.worker.limit(Time(0), Some(types::Bandwidth::from_bytes_per_second(1000)), &mut pair.out);
    pair.push(&key, &[1f32], 1);
    pair.push(&key, &[2f32], 1);
    pair.delete(&key);
    pair.push(&key, &[1000f32], 1);
    pair.push(&key, &[3000f32], 1);
    assert_eq!(pair.to_server.len(), 0, "everything waits");
    (1..4000).for_each(|ms| pair.worker.tick(Time(ms * 1_000_000), &mut pair.out));
    pair.sent();
    let writes = |frame: &Frame| if let Message::Push(push) = &frame.message { Some(push.writes) } else { None };
    let sent: Vec<Writes> = pair.to_server.iter().filter_map(writes).collect();
    assert_eq!((sent.len(), sent[2]), (5, Writes::Nothing), "{sent:?}");
    assert_eq!(pair.read(&key).0, [4000.0]);
}
