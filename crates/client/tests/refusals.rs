//! Refusals, a table row per bad input: the error says what and where, table rows stay as they
//! were, and the servers go on.

mod embedded;

use net::{Exchange, Transport, TransportEvent, Waiter};
use node::{CoordinatorSettings, ServerSettings, join, run_coordinator, run_server};
use slackwater::policy::{Combine, Initial, NumberType, Placement, Reduce};
use slackwater::table::PullOptions;
use slackwater::{Consistency, Error, Keys, RunSize, Session, Table, TableSpec, UpdaterSpec};
use std::time::{Duration, Instant};
use types::{NodeId, Position, PositionRange, ShardId, Source, TableId};
use wire::{
    Acked, Control, Frame, Head, KeyPart, Message, NodeRole, Payload, Pull, PullRefused, Push, Refusal, Signature,
    Wants, Writes,
};

/// A test that waits longer for an answer hangs.
const LIMIT: Duration = Duration::from_secs(30);

fn one_worker() -> Session {
    Session::embedded(RunSize { servers: 2, workers: 1 }).expect("a run").remove(0)
}

struct Tables {
    session: Session,
    /// Ten rows of two.
    dense: Table<f32>,
    spread: Table<f32>,
    ordered: Table<f32>,
    /// At most three rows a shard.
    small: Table<f32>,
    counts: Table<i64>,
    learning: Table<f64>,
}

impl Tables {
    fn new() -> Self {
        let session = one_worker();
        let sgd = UpdaterSpec::Sgd { rate: 0.5 };
        Self {
            dense: session.table(TableSpec::dense("dense", 10, 2)).expect("made"),
            spread: session.table(TableSpec::sparse("spread", 1)).expect("made"),
            ordered: session.table(TableSpec::sparse("ordered", 1).ordered()).expect("made"),
            small: session.table(TableSpec::sparse("small", 1).max_rows(3)).expect("made"),
            counts: session.table(TableSpec::dense("counts", 4, 1).number(NumberType::I64)).expect("made"),
            learning: session
                .table(TableSpec::dense("learning", 4, 1).number(NumberType::F64).updater(sgd))
                .expect("made"),
            session,
        }
    }

    /// Some rows of every table, as text, to check that they stay as they were.
    fn rows(&self) -> Vec<String> {
        let hundred: Vec<u64> = (0..100).collect();
        macro_rules! read {
            ($($ticket:expr),* $(,)?) => {
                vec![$({
                    let rows = $ticket.expect("asked").wait().expect("read");
                    format!("{:?} {:?}", rows.ids(), rows.values())
                }),*]
            };
        }
        read![
            self.dense.pull(&Keys::run(0..10)),
            self.spread.pull(&self.spread.keys(&hundred)),
            self.ordered.scan(0..u64::MAX),
            self.small.pull(&self.small.keys(&hundred)),
            self.counts.pull(&Keys::run(0..4)),
            self.learning.pull(&Keys::run(0..4)),
        ]
    }
}

/// The error of a call that must fail.
fn refused<R>(result: Result<R, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was taken"),
        Err(error) => error,
    }
}

#[test]
fn bad_input_is_refused_with_a_reason_and_changes_no_row() {
    let tables = Tables::new();
    let dense = &tables.dense;
    let spread = &tables.spread;
    let ordered = &tables.ordered;
    spread.push(&spread.keys(&[1, 2]), vec![1.0, 2.0]).expect("sent").wait().expect("pushed");
    dense.push(&Keys::run(0..10), vec![1.0; 20]).expect("sent").wait().expect("pushed");
    let before = tables.rows();
    type Case = (&'static str, fn(&Tables) -> Error, &'static [&'static str]);
    let cases: &[Case] = &[
        (
            "a NaN",
            |t| refused(t.spread.push(&t.spread.keys(&[7]), vec![f32::NAN]).and_then(|ticket| ticket.wait())),
            &["worker 0", "key 7", "'spread'", "not finite", "stay as they were"],
        ),
        (
            "an infinity among good values",
            |t| {
                // All rows are in one part. Rows of another shard would be another part, and be
                // applied.
                let mut values = vec![1.0; 10];
                values[7] = f32::INFINITY;
                refused(t.dense.push(&Keys::run(0..5), values).and_then(|ticket| ticket.wait()))
            },
            &["worker 0", "key 3", "'dense'", "not finite"],
        ),
        (
            "an infinity in f64",
            |t| refused(t.learning.push(&Keys::run(1..2), vec![f64::NEG_INFINITY]).and_then(|ticket| ticket.wait())),
            &["key 1", "'learning'", "not finite"],
        ),
        (
            "too few values",
            |t| refused(t.dense.push(&Keys::run(0..10), vec![1.0; 19])),
            &["'dense'", "80 bytes", "not 76"],
        ),
        ("no values", |t| refused(t.spread.push(&t.spread.keys(&[1]), vec![])), &["'spread'", "4 bytes", "not 0"]),
        (
            "a target of another size",
            |t| {
                let keys = t.spread.keys(&[1, 2]);
                refused(
                    t.spread
                        .pull_opts(&keys, PullOptions { into: Some(vec![0.0; 3].into()), ..PullOptions::default() }),
                )
            },
            &["'spread'", "8 bytes", "not 12"],
        ),
        (
            "row state into the caller's memory",
            |t| {
                let into = Some(vec![0.0; 1].into());
                let options = PullOptions { into, row_state: true, ..PullOptions::default() };
                refused(t.spread.pull_opts(&t.spread.keys(&[1]), options))
            },
            &["'spread'", "row state", "leave out `into` or `row_state`"],
        ),
        (
            "a table of another number type",
            |t| refused(t.session.table::<f64>(TableSpec::dense("another", 4, 1))),
            &["'another'", "f32", "not f64", ".number("],
        ),
        (
            "a NaN in a list that was sent before",
            |t| {
                let keys = t.spread.keys(&[70, 71]);
                t.spread.push(&keys, vec![0.0; 2]).and_then(|ticket| ticket.wait()).expect("fine");
                let second = keys.ids().nth(1).expect("two keys");
                let result = t.spread.push(&keys, vec![0.0, f32::NAN]).and_then(|ticket| ticket.wait());
                assert!(result.as_ref().is_err_and(|error| error.to_string().contains(&format!("key {second} "))));
                refused(result)
            },
            &["not finite", "'spread'"],
        ),
        ("a row beyond the last", |t| refused(t.dense.pull(&Keys::run(5..11))), &["'dense'", "no key 10"]),
        ("a push beyond the last", |t| refused(t.dense.push(&t.dense.keys(&[3, 10]), vec![0.0; 4])), &["no key 10"]),
        ("rows without end", |t| refused(t.dense.pull(&Keys::run(0..u64::MAX))), &["'dense'", "no key"]),
        (
            "whether endless rows are active",
            |t| refused(t.ordered.active(&Keys::run(0..u64::MAX))),
            &["'ordered'", "bytes"],
        ),
        (
            "values without end",
            |t| refused(t.ordered.push(&Keys::run(0..u64::MAX), vec![1.0])),
            &["'ordered'", "bytes"],
        ),
        ("unsorted keys", |t| refused(t.ordered.keys_in_order(&[1, 5, 4])), &["key 4", "index 2", "order"]),
        ("repeated keys", |t| refused(t.ordered.keys_in_order(&[1, 5, 5])), &["key 5", "index 2", "twice"]),
        (
            "unsorted positions",
            |_| refused(Keys::at(Placement::Ordered, &[9, 3]).map_err(Error::from)),
            &["key 3", "index 1", "order"],
        ),
        (
            "repeated positions",
            |_| refused(Keys::at(Placement::Ordered, &[3, 3]).map_err(Error::from)),
            &["key 3", "index 1", "twice"],
        ),
        (
            "keys of another order",
            |t| refused(t.spread.push(&t.ordered.keys(&[1]), vec![1.0])),
            &["another order", "keys()"],
        ),
        ("a range of a spread table", |t| refused(t.spread.scan(0..9)), &["'spread'", ".ordered()"]),
        ("a push to a range of it", |t| refused(t.spread.push(&Keys::run(0..9), vec![0.0; 9])), &["another order"]),
        (
            "two specs for one name",
            |t| refused(t.session.table::<f32>(TableSpec::dense("dense", 11, 2))),
            &["'dense'", "two specs", "rows: 10", "rows: 11", "same spec"],
        ),
        (
            "an updater that is not registered",
            |t| {
                let max = UpdaterSpec::Custom { name: "max".into(), settings: vec![] };
                refused(t.session.table::<f32>(TableSpec::dense("custom", 4, 1).updater(max)))
            },
            &["server", "max"],
        ),
        (
            "more rows than the shard takes",
            |t| {
                let keys = t.small.keys(&(0..100).collect::<Vec<_>>());
                refused(t.small.push(&keys, vec![1.0; 100]).and_then(|ticket| ticket.wait()))
            },
            &["'small'", "3 rows", "max_rows"],
        ),
        ("a negative learning rate", |t| refused(t.learning.set_rate(-0.1)), &["-0.1", "'learning'", "not negative"]),
        ("a learning rate of NaN", |t| refused(t.learning.set_rate(f64::NAN)), &["NaN", "'learning'", "finite"]),
        (
            "a spec with a negative rate",
            |t| {
                let sgd = UpdaterSpec::Sgd { rate: -1.0 };
                refused(t.session.table::<f32>(TableSpec::dense("sgd", 4, 1).updater(sgd)))
            },
            &["'sgd'", "rate", "-1", "not negative"],
        ),
        (
            "a random start for integers",
            |t| {
                let spec = TableSpec::dense("random", 4, 1).number(NumberType::I64);
                refused(t.session.table::<i64>(spec.initial(Initial::Normal { seed: 1, scale: 1.0 })))
            },
            &["'random'", "i64"],
        ),
        (
            "an eager table without a cache",
            |t| {
                let eager = Consistency::Bounded { slack: 1, eager: true };
                refused(t.session.table::<f32>(TableSpec::dense("eager", 4, 1).consistency(eager)))
            },
            &["'eager'", "cached"],
        ),
    ];
    for (what, attempt, words) in cases {
        let message = attempt(&tables).to_string();
        for word in *words {
            assert!(message.contains(word), "{what}: '{word}' is not in: {message}");
        }
        assert_eq!(tables.rows(), before, "after {what}");
    }
    // All tables still work.
    ordered.push(&Keys::run(3..5), vec![1.0, 2.0]).expect("sent").wait().expect("pushed");
    tables.counts.push(&Keys::run(0..4), vec![1; 4]).expect("sent").wait().expect("pushed");
    tables.learning.set_rate(0.25).expect("sent").wait().expect("tuned");
    tables.session.clock().expect("ended");
    tables.session.close().expect("left");
}

#[test]
fn clock_reports_the_failure_of_a_dropped_ticket() {
    let session = one_worker();
    let table = session.table::<f32>(TableSpec::sparse("weights", 1)).expect("made");
    drop(table.push(&table.keys(&[5]), vec![f32::NAN]).expect("sent"));
    // A later push is acknowledged, so the shard has answered the first one too.
    table.push(&table.keys(&[5]), vec![1.0]).expect("sent").wait().expect("pushed");
    let error = refused(session.clock());
    let message = "a push or pull of worker 0 was refused: the value for key 5 of table 'weights' is not finite; its rows stay \
                   as they were";
    assert_eq!(error.to_string(), message);
    // The fields that a program decides by.
    let Error::Refused { worker, table: name, placement, refusal: Refusal::NotFinite { position }, others } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((worker.0, name.as_str(), placement.key(position).0, others), (0, "weights", 5, 0));
    assert_eq!(session.now().0, 1, "the clock has ended all the same");
    session.clock().expect("reported once");
    // With several refusals, the error names the first and counts the others.
    for (others, words) in [(1, "; so was one more"), (2, "; so were 2 more")] {
        for _ in 0..=others {
            drop(table.push(&table.keys(&[6]), vec![f32::INFINITY]).expect("sent"));
        }
        table.push(&table.keys(&[5]), vec![1.0]).expect("sent").wait().expect("pushed");
        let message = refused(session.clock()).to_string();
        assert!(message.contains("key 6") && message.ends_with(words), "{message}");
    }
    session.close().expect("left");
}

#[test]
fn refused_push_fails_its_clock_for_all_workers() {
    let spec = TableSpec::dense("gradients", 2, 1).combine(Combine::Clock(Reduce::Sum));
    embedded::run(1, 2, |session| {
        let table = session.table::<f32>(spec.clone()).expect("made");
        let value = if session.rank() == 1 { f32::NAN } else { 1.0 };
        let pushed = table.push(&Keys::run(0..2), vec![value; 2]).expect("sent").wait();
        assert_eq!(pushed.is_err(), session.rank() == 1);
        session.clock().expect("ended");
        let rows = table.pull(&Keys::run(0..2)).expect("asked").wait().expect("read");
        assert_eq!(rows.values(), [0.0, 0.0]);
        let failed = &rows.failed_clocks()[0];
        assert_eq!((failed.clock.0, failed.worker.0), (0, 1), "clock and worker are named");
        table.push(&Keys::run(0..2), vec![1.0; 2]).expect("sent").wait().expect("pushed");
        session.clock().expect("ended");
        let rows = table.pull(&Keys::run(0..2)).expect("asked").wait().expect("read");
        assert_eq!(rows.values(), [2.0, 2.0], "the next clock counts");
    });
}

// ── Frames that our workers never send ──────────────────────────────────────────────────────

/// A run with one server, to which a test sends single frames in a worker's place.
struct Raw {
    transport: Box<dyn Transport>,
    waiter: Box<dyn Waiter>,
    source: Source,
    number: u64,
}

impl Raw {
    fn start(spec: &TableSpec) -> Self {
        let exchange = Exchange::new();
        let size = coordinator::RunSize { servers: 1, workers: 1 };
        let (transport, waiter) = exchange.join(NodeId::Coordinator);
        std::thread::spawn(move || run_coordinator(transport, waiter, CoordinatorSettings::new(size), None));
        let settings = ServerSettings::new(1);
        let (transport, waiter) = exchange.join(NodeId::Server(9));
        std::thread::spawn(move || run_server(transport, waiter, settings, None));
        let (mut transport, mut waiter) = exchange.join(NodeId::Worker(9));
        let joined = join(
            &mut transport,
            &mut waiter,
            node::JoinRequest::any(NodeRole::Worker),
            "",
            2,
            LIMIT,
            &node::LeaveSignal::default(),
        )
        .expect("joined");
        let mut raw =
            Self { transport: Box::new(transport), waiter: Box::new(waiter), source: joined.source, number: 0 };
        let control = Message::Control(Control::MakeTable { spec: spec.clone() });
        let mut head = Head::plain(joined.node, NodeId::Coordinator);
        head.source = joined.source;
        raw.say(Frame { head, message: control });
        raw.hear(|message| matches!(message, Message::Control(Control::TableMade { .. })).then_some(()));
        raw
    }

    fn head(&self, source: Source, number: u64) -> Head {
        let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
        (head.source, head.number) = (source, number);
        head
    }

    fn say(&mut self, frame: Frame) {
        self.transport.send(frame);
        self.transport.flush();
    }

    fn hear<R>(&mut self, mut wanted: impl FnMut(Message) -> Option<R>) -> R {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < LIMIT, "no answer");
            self.waiter.wait(Some(Duration::from_millis(20)));
            while let Some(event) = self.transport.next() {
                if let TransportEvent::Frame(frame) = event
                    && let Some(result) = wanted(frame.message)
                {
                    return result;
                }
            }
        }
    }

    /// Sends a push. Returns the server's refusal, or `None` if it accepts the push.
    fn push(
        &mut self,
        table: u32,
        source: Source,
        number: NumberType,
        keys: KeyPart,
        values: Payload,
    ) -> Option<Refusal> {
        // A push outside the worker's stream takes no sequence number of it.
        let inside = table == 0 && source == self.source;
        self.number += u64::from(inside);
        let of = if inside { self.number } else { 77 };
        let push = Push {
            table: TableId(table),
            shard: ShardId(0),
            settled: 0,
            number,
            writes: Writes::GRADIENTS,
            keys,
            values,
        };
        self.say(Frame { head: self.head(source, of), message: Message::Push(push) });
        self.hear(|message| match message {
            Message::Acked(Acked { through, refused, .. }) if through == of => {
                Some(refused.into_iter().find(|refused| refused.number == of).map(|refused| refused.refusal))
            }
            _ => None,
        })
    }

    fn pull(&mut self, table: u32, source: Source, keys: KeyPart) -> Result<Vec<f32>, Refusal> {
        self.number += 1_000; // a request number that no push uses
        let request = self.number;
        self.number -= 1_000;
        let pull = Pull {
            table: TableId(table),
            shard: ShardId(0),
            request,
            after: 0,
            frontier: types::Clock(0),
            subscribe: true,
            deltas: None,
            wants: Wants::Values,
            keys,
        };
        self.say(Frame { head: self.head(source, 0), message: Message::Pull(pull) });
        self.hear(|message| match message {
            Message::Pulled(pulled) => Some(Ok(pulled.values.numbers::<f32>().expect("aligned").to_vec())),
            Message::PullRefused(PullRefused { refusal, .. }) => Some(Err(refusal)),
            _ => None,
        })
    }
}

#[test]
fn server_refuses_malformed_frames() {
    let spec = TableSpec::sparse("weights", 1);
    let mut raw = Raw::start(&spec);
    let own = raw.source;
    let stranger = Source(99);
    // Any function of the list works as a signature.
    let signed = |positions: &[u64]| Signature(positions.iter().fold(7, |sum, p| sum * 31 + u128::from(*p)));
    let list = |positions: &[u64]| KeyPart::List {
        signature: signed(positions),
        start: 0,
        positions: Payload::new(positions.to_vec()),
    };
    let known =
        |positions: &[u64]| KeyPart::Known { signature: signed(positions), start: 0, count: positions.len() as u32 };
    let chosen = |positions: &[u64], bits: u8| KeyPart::Chosen {
        signature: signed(positions),
        start: 0,
        count: positions.len() as u32,
        bits: Payload::new(vec![bits]),
    };
    let floats = |values: &[f32]| Payload::new(values.to_vec());
    assert_eq!(raw.push(0, own, NumberType::F32, list(&[3, 5]), floats(&[1.0, 2.0])), None);
    let scan = || KeyPart::Scan { range: PositionRange::ALL };
    let run = |first: u64, count: u64| KeyPart::Run { first: Position(first), count };
    // (what, table, source, type, keys, values, words)
    let cases = [
        ("an expelled source", 0, stranger, NumberType::F32, list(&[3]), floats(&[1.0]), "expelled"),
        ("an unknown table", 8, own, NumberType::F32, list(&[3]), floats(&[1.0]), "no table"),
        ("another number type", 0, own, NumberType::I64, list(&[3]), Payload::new(vec![1i64]), "f32, not i64"),
        ("too many values", 0, own, NumberType::F32, list(&[3]), floats(&[1.0, 2.0]), "4 bytes"),
        ("two values for one key of two", 0, own, NumberType::F32, chosen(&[3, 5], 2), floats(&[1.0, 2.0]), "4 bytes"),
        ("half a number", 0, own, NumberType::F32, list(&[3]), Payload::new(vec![1u8, 2]), "4 bytes"),
        ("keys out of order", 0, own, NumberType::F32, list(&[5, 3]), floats(&[1.0, 2.0]), "out of order"),
        ("a key twice", 0, own, NumberType::F32, list(&[5, 5]), floats(&[1.0, 2.0]), "twice"),
        ("a NaN", 0, own, NumberType::F32, list(&[3, 5]), floats(&[1.0, f32::NAN]), "not finite"),
        ("a NaN in a run past the end", 0, own, NumberType::F32, run(u64::MAX, 2), floats(&[0.0, f32::NAN]), "no"),
        ("a run", 0, own, NumberType::F32, run(3, 1), floats(&[1.0]), "not ordered"),
        ("a run past the end", 0, own, NumberType::F32, run(u64::MAX, 2), floats(&[1.0, 1.0]), "no key"),
        ("a push to a scan", 0, own, NumberType::F32, scan(), floats(&[1.0]), "not ordered"),
    ];
    for (what, table, source, number, keys, values, words) in cases {
        let refusal = raw.push(table, source, number, keys, values).unwrap_or_else(|| panic!("{what} was taken"));
        let message = refusal.describe("weights", spec.shape.placement());
        assert!(message.contains(words), "{what}: {message}");
        assert_eq!(raw.pull(0, own, list(&[3, 5])), Ok(vec![1.0, 2.0]), "after {what}");
    }
    assert_eq!(raw.pull(0, own, chosen(&[3, 5], 2)), Ok(vec![2.0]), "the second of the two");
    // (what, table, source, keys, words)
    let reads = [
        ("an expelled source", 0, stranger, list(&[3]), "expelled"),
        ("an unknown table", 8, own, list(&[3]), "no table"),
        ("keys out of order", 0, own, list(&[5, 3]), "out of order"),
        ("a list never sent", 0, own, known(&[3, 4, 5]), "sent again"),
        ("a choice from a list never sent", 0, own, chosen(&[3, 4, 5], 5), "sent again"),
        ("a run", 0, own, run(3, 1), "not ordered"),
        ("more than a part", 0, own, run(3, u64::MAX), "bytes"),
    ];
    for (what, table, source, keys, words) in reads {
        let refusal = raw.pull(table, source, keys).expect_err(what);
        let message = refusal.describe("weights", spec.shape.placement());
        assert!(message.contains(words), "{what}: {message}");
    }
    assert_eq!(raw.push(0, own, NumberType::F32, known(&[3, 5]), floats(&[1.0, 1.0])), None);
    assert_eq!(raw.pull(0, own, known(&[3, 5])), Ok(vec![2.0, 3.0]), "the server goes on");
}
