//! Tests of a server alone: what it answers to the messages of one worker.

use super::*;
use types::{Combine, HELD_CLOCKS, NumberType, PARKED_READS, PlanNumber, Position, Reduce, Source};
use wire::{KeyPart, Marker, Payload, Pull, Push, Wants, Writes};

const NODE: NodeId = NodeId::Server(0);

/// What a new server answers to these messages of a worker, each with its clock.
fn answers(spec: &TableSpec, messages: impl IntoIterator<Item = (u64, Message)>) -> Vec<Message> {
    let plan = Plan::first(1, vec![Source(1), Source(2)]);
    let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
    let mut out = Outbox::new();
    server.add_table(TableId(0), spec, &mut out).expect("made");
    let mut number = 0;
    for (clock, message) in messages {
        let mut head = Head::plain(NodeId::Worker(0), NODE);
        number += u64::from(!matches!(message, Message::Pull(_)));
        head.source = Source(1);
        head.number = number;
        head.clock = Clock(clock);
        server.handle(Time(0), Frame { head, message }, &mut out);
        server.settle(&mut out);
    }
    out.drain().map(|frame| frame.message).collect()
}

fn push(first: u64, values: Vec<f32>) -> Message {
    let keys = KeyPart::Run { first: Position(first), count: values.len() as u64 };
    Message::Push(Push {
        table: TableId(0),
        shard: ShardId(0),
        settled: 0,
        number: NumberType::F32,
        writes: Writes::GRADIENTS,
        keys,
        values: Payload::new(values),
    })
}

fn refusals(answers: Vec<Message>) -> Vec<Refusal> {
    let refused = answers.into_iter().flat_map(|answer| match answer {
        Message::Acked(acked) => acked.refused.into_iter().map(|refused| refused.refusal).collect(),
        Message::PullRefused(refused) => vec![refused.refusal],
        _ => Vec::new(),
    });
    refused.collect()
}

#[test]
fn server_refuses_more_parked_reads_than_a_worker_may_have() {
    let spec = TableSpec::dense("t", 1, 1).consistency(types::Consistency::LOCK_STEP);
    let pull = |request| {
        let pull = Pull {
            table: TableId(0),
            shard: ShardId(0),
            request,
            after: 0,
            frontier: Clock(0),
            subscribe: false,
            deltas: None,
            wants: Wants::Values,
            keys: KeyPart::Run { first: Position(0), count: 1 },
        };
        (9, Message::Pull(pull))
    };
    let within = PARKED_READS as u64;
    assert_eq!(refusals(answers(&spec, (1..=within).chain(1..=within).map(pull))), [], "repeated ones count once");
    let most = within;
    assert_eq!(refusals(answers(&spec, (1..=within + 1).map(pull))), [Refusal::TooManyReads { most }]);
}

/// The shard refuses a part that it cannot decode. Only its worker's present clock fails.
#[test]
fn undecodable_part_fails_only_its_workers_present_clock() {
    let spec = TableSpec::dense("t", 1, 1).combine(Combine::Clock(Reduce::Sum));
    let plan = Plan::first(1, vec![Source(1), Source(2)]);
    for (clock, refusal) in [(0, Refusal::Undecodable), (3, Refusal::PastClock), (u64::MAX, Refusal::PastClock)] {
        let mut server = Server::new(NODE, plan.clone(), Updaters::builtin(), Pool::new());
        let mut out = Outbox::new();
        server.add_table(TableId(0), &spec, &mut out).expect("made");
        let mut head = Head::plain(NodeId::Worker(0), NODE);
        head.source = Source(1);
        head.number = 1;
        head.clock = Clock(clock);
        head.codecs.0 = [99, 0, 0, 0, 0, 0, 0, 0];
        server.handle(Time(0), Frame { head, message: push(0, vec![1.0]) }, &mut out);
        server.settle(&mut out);
        assert_eq!(refusals(out.drain().map(|frame| frame.message).collect()), [refusal], "clock {clock}");
        let marker = || Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: 0, since: Clock(0) });
        for ended in 0..5 {
            for (worker, source) in [(0, 1), (1, 2)] {
                let mut head = Head::plain(NodeId::Worker(worker), NODE);
                let number = ended + 1 + u64::from(worker == 0);
                head.source = Source(source);
                head.number = number;
                head.clock = Clock(ended);
                server.handle(Time(0), Frame { head, message: marker() }, &mut out);
            }
        }
        let failed = u64::from(clock == 0);
        assert_eq!(server.counts().shards.failed_clocks, failed, "clock {clock}");
    }
}

#[test]
fn contributions_too_far_ahead_are_refused() {
    let spec = TableSpec::dense("t", 1, 1).combine(Combine::Clock(Reduce::Sum));
    let marker =
        || Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: u64::MAX, since: Clock(0) });
    let run = |clocks: u64| (0..clocks).flat_map(move |clock| [(clock, push(0, vec![1.0])), (clock, marker())]);
    assert_eq!(refusals(answers(&spec, run(HELD_CLOCKS))), []);
    let refused = refusals(answers(&spec, run(HELD_CLOCKS + 1)));
    assert!(refused.iter().all(|refusal| *refusal == Refusal::FarAhead { most: HELD_CLOCKS }), "{refused:?}");
    assert!(!refused.is_empty());
}

/// Found by reading: a shard trusted the clock of a part with the wrong number type, and failed
/// that clock for all workers.
#[test]
fn part_with_a_wrong_clock_fails_no_clock() {
    let spec = TableSpec::dense("t", 1, 1).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum));
    assert_eq!(refusals(answers(&spec, [(7, push(0, vec![1.0]))])), [Refusal::PastClock]);
}

#[test]
fn server_refuses_bad_settings_and_too_many_settings() {
    let spec = TableSpec::dense("t", 1, 1).updater(types::UpdaterSpec::Sgd { rate: 1.0 });
    let tune = |at: u64, rate: f64| {
        let tune = wire::Tune {
            table: TableId(0),
            shard: ShardId(0),
            settled: u64::MAX,
            at: Clock(at),
            setting: types::Setting::Rate(rate),
        };
        (0, Message::Tune(tune))
    };
    for (rate, expected) in [
        (0.5, None),
        (0.0, None),
        (-0.5, Some(Refusal::BadSetting)),
        (f64::NAN, Some(Refusal::BadSetting)),
        (f64::INFINITY, Some(Refusal::BadSetting)),
    ] {
        assert_eq!(refusals(answers(&spec, [tune(0, rate)])), Vec::from_iter(expected), "{rate}");
    }
    let refused = refusals(answers(&spec, (0..2_000).map(|at| tune(at, 0.5))));
    assert!(matches!(refused[..], [Refusal::FarAhead { most: 1024 }, ..]), "{refused:?}");
}

#[test]
fn server_refuses_pushes_of_an_incarnation_that_has_left() {
    let plan = Plan::first(1, vec![Source(5), Source(6)]);
    let without = Plan { number: PlanNumber(2), workers: vec![None, Some(Source(6))], ..plan.clone() };
    let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
    let mut out = Outbox::new();
    server.add_table(TableId(0), &TableSpec::dense("t", 1, 1), &mut out).expect("made");
    let mut send = |from: NodeId, source: u64, number: u64, message: Message| {
        let mut head = Head::plain(from, NODE);
        head.source = Source(source);
        head.number = number;
        server.handle(Time(0), Frame { head, message }, &mut out);
        server.settle(&mut out);
        let answers: Vec<Message> = out.drain().map(|frame| frame.message).collect();
        (refusals(answers), server.counts().shards.parts)
    };
    let worker = NodeId::Worker(0);
    assert_eq!(send(worker, 5, 1, push(0, vec![1.0])), (vec![], 1));
    send(
        NodeId::Coordinator,
        0,
        0,
        Message::Control(Control::Adopt { plan: without, members: Vec::new(), enacted: true }),
    );
    // Two incarnations of the same rank: one that has left, and one that the plan does not have.
    for source in [5, 7] {
        assert_eq!(send(worker, source, 2, push(0, vec![1.0])), (vec![Refusal::Expelled], 1), "source {source}");
    }
    assert_eq!(send(NodeId::Worker(1), 6, 1, push(0, vec![1.0])), (vec![], 2));
}

/// Found by the fuzz target `server`: each of these overflowed.
#[test]
fn server_survives_numbers_at_the_end_of_their_range() {
    let plan = Plan::first(1, vec![Source(1)]);
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        let mut server = Server::new(NODE, plan.clone(), Updaters::builtin(), Pool::new());
        let mut out = Outbox::new();
        let spec = TableSpec::sparse("t", 1).ordered().combine(combine);
        server.add_table(TableId(0), &spec, &mut out).expect("made");
        let table = TableId(0);
        let shard = ShardId(0);
        let run = |first: u64, count: u64| KeyPart::Run { first: Position(first), count };
        let push = |keys: KeyPart, values: Vec<f32>| {
            Message::Push(Push {
                table,
                shard,
                settled: u64::MAX,
                number: NumberType::F32,
                writes: Writes::GRADIENTS,
                keys,
                values: Payload::new(values),
            })
        };
        let messages = [
            push(run(u64::MAX, 2), vec![1.0, f32::NAN]),
            push(run(u64::MAX - 1, 2), vec![1.0, 2.0]),
            Message::Marker(Marker { table, shard, settled: 0, since: Clock(0) }),
            push(run(7, 1), vec![f32::INFINITY]),
            Message::Marker(Marker { table, shard, settled: 0, since: Clock(0) }),
            Message::Pull(Pull {
                table,
                shard,
                request: 1,
                after: 0,
                frontier: Clock(0),
                subscribe: true,
                deltas: None,
                wants: Wants::Values,
                keys: run(7, 1),
            }),
        ];
        for (number, message) in (1..).zip(messages) {
            let mut head = Head::plain(NodeId::Worker(0), NODE);
            head.source = Source(1);
            head.number = number;
            head.examples = u64::MAX;
            // The clock is 0 until the first marker, so that the pushes before it are accepted.
            head.clock = Clock(if number < 3 { 0 } else { u64::MAX });
            server.handle(Time(0), Frame { head, message }, &mut out);
            server.settle(&mut out);
            server.tick(Time(u64::MAX), &mut out);
        }
        assert!(out.drain().any(|frame| matches!(frame.message, Message::Pulled(_))), "the read is answered");
    }
}

#[test]
fn server_answers_only_after_its_first_heartbeat_is_acknowledged() {
    let plan = Plan::first(1, vec![Source(1)]);
    let length = types::Span::from_secs(1);
    let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new()).leased(Some(length));
    let mut out = Outbox::new();
    let spec = TableSpec::dense("t", 1, 1).consistency(types::Consistency::LOCK_STEP);
    server.add_table(TableId(0), &spec, &mut out).expect("made");
    let mut says = |server: &mut Server, from: NodeId, number: u64, message: Message| {
        let head = Head { source: Source(1), number, ..Head::plain(from, NODE) };
        server.handle(Time(2), Frame { head, message }, &mut out);
        server.settle(&mut out);
        out.drain().map(|frame| frame.message).collect::<Vec<_>>()
    };
    let pull = Pull {
        table: TableId(0),
        shard: ShardId(0),
        request: 1,
        after: 0,
        frontier: Clock(0),
        subscribe: false,
        deltas: None,
        wants: Wants::Values,
        keys: KeyPart::Run { first: Position(0), count: 1 },
    };
    assert!(says(&mut server, NodeId::Worker(0), 1, push(0, vec![1.0])).is_empty());
    assert!(says(&mut server, NodeId::Worker(0), 0, Message::Pull(pull)).is_empty());
    let mut asked = Outbox::new();
    server.heartbeat(Time(3), &mut asked);
    let number = asked.drain().find(|frame| frame.head.to == NodeId::Coordinator).map(|frame| frame.head.number);
    let answered = says(
        &mut server,
        NodeId::Coordinator,
        number.expect("a heartbeat"),
        Message::Control(Control::Heartbeat { heard: 0 }),
    );
    let is_read = |answers: &[Message]| answers.iter().any(|answer| matches!(answer, Message::Pulled(_)));
    let is_acked = |answers: &[Message]| answers.iter().any(|answer| matches!(answer, Message::Acked(_)));
    assert!(is_read(&answered) && is_acked(&answered), "{answered:?}");
}

/// A message that sets rows of one number each.
fn set(first: u64, values: Vec<f32>) -> Message {
    let Message::Push(wire) = push(first, values) else { unreachable!("a push") };
    Message::Push(Push { writes: Writes::Rows, ..wire })
}

/// A read of the row state of the first `count` rows.
fn pull_row_state(count: u64) -> Message {
    Message::Pull(Pull {
        table: TableId(0),
        shard: ShardId(0),
        request: 1,
        after: 0,
        frontier: Clock(0),
        subscribe: false,
        deltas: None,
        wants: Wants::RowState,
        keys: KeyPart::Run { first: Position(0), count },
    })
}

/// The values of the last answer to a read.
fn rows(answers: &[Message]) -> Vec<f32> {
    let last = answers.iter().rev().find_map(|answer| match answer {
        Message::Pulled(pulled) => pulled.values.numbers::<f32>().map(<[f32]>::to_vec),
        _ => None,
    });
    last.expect("an answer")
}

#[test]
fn malformed_rows_to_set_are_refused_whole() {
    let adagrad = types::UpdaterSpec::Adagrad { rate: 1.0, epsilon: 0.0 };
    let spec = TableSpec::dense("t", 2, 1).updater(adagrad);
    // A message that sets `count` rows.
    let whole = |values: Vec<f32>, count, number| {
        let Message::Push(push) = set(0, values) else { unreachable!("a push") };
        Message::Push(Push { keys: KeyPart::Run { first: Position(0), count }, number, ..push })
    };
    let cases = [
        (whole(vec![1.0; 4], 2, NumberType::F32), None),
        (whole(vec![1.0; 2], 2, NumberType::F32), Some(Refusal::WrongLength { expected: 16, found: 8 })),
        (whole(vec![1.0; 5], 2, NumberType::F32), Some(Refusal::WrongLength { expected: 16, found: 20 })),
        (
            whole(vec![1.0; 4], 2, NumberType::F64),
            Some(Refusal::WrongNumber { expected: NumberType::F32, found: NumberType::F64 }),
        ),
        (
            // Not finite in the updater's state of the second row, which readers do not see.
            whole(vec![1.0, 1.0, 1.0, f32::INFINITY], 2, NumberType::F32),
            Some(Refusal::NotFinite { position: Position(1) }),
        ),
        (whole(vec![1.0; 6], 3, NumberType::F32), Some(Refusal::OutOfRange { position: Position(2) })),
    ];
    for (message, refusal) in cases {
        let all = answers(&spec, [(0, push(0, vec![2.0, 3.0])), (0, message), (0, pull_row_state(2))]);
        let expected = if refusal.is_none() { [1.0; 4] } else { [-1.0, 4.0, -1.0, 9.0] };
        assert_eq!(rows(&all), expected, "{refusal:?}");
        assert_eq!(refusals(all), refusal.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn rows_are_set_once_if_they_arrive_twice() {
    let spec = TableSpec::dense("t", 1, 1);
    let plan = Plan::first(1, vec![Source(1)]);
    let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
    let mut out = Outbox::new();
    server.add_table(TableId(0), &spec, &mut out).expect("made");
    // The set arrives again after the push that followed it.
    for (number, message) in [(1, set(0, vec![5.0])), (2, push(0, vec![1.0])), (1, set(0, vec![5.0]))] {
        let mut head = Head::plain(NodeId::Worker(0), NODE);
        head.source = Source(1);
        head.number = number;
        server.handle(Time(0), Frame { head, message }, &mut out);
        server.settle(&mut out);
    }
    let counts = server.counts().shards;
    assert_eq!((counts.parts, counts.repeated), (2, 1));
    let head = Head { source: Source(1), ..Head::plain(NodeId::Worker(0), NODE) };
    server.handle(Time(0), Frame { head, message: pull_row_state(1) }, &mut out);
    assert_eq!(rows(&out.drain().map(|frame| frame.message).collect::<Vec<_>>()), [6.0]);
}

/// Setting rows is refused in a `clock` table, where it fails no clock. Encoded rows are refused
/// too.
#[test]
fn rows_to_set_are_refused_by_clock_tables_and_when_encoded() {
    let spec = TableSpec::dense("t", 2, 1);
    let by_clock = spec.clone().combine(Combine::Clock(Reduce::Sum));
    let halved = codec::Formats::default().then(codec::PayloadFormat::Values(codec::ValueFormat::Bf16)).0;
    // Two rows, if each number takes two bytes.
    let Message::Push(two) = set(0, vec![5.0]) else { unreachable!("a push") };
    let two = Push { keys: KeyPart::Run { first: Position(0), count: 2 }, ..two };
    for (spec, codecs, refusal) in [(by_clock, [0; 8], Refusal::SetByClock), (spec, halved, Refusal::Undecodable)] {
        let plan = Plan::first(1, vec![Source(1)]);
        let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
        let mut out = Outbox::new();
        server.add_table(TableId(0), &spec, &mut out).expect("made");
        let marker = Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: 1, since: Clock(0) });
        for (number, codecs, message) in [(1, codecs, Message::Push(two.clone())), (2, [0; 8], marker)] {
            let mut head = Head::plain(NodeId::Worker(0), NODE);
            head.source = Source(1);
            head.number = number;
            head.codecs.0 = codecs;
            server.handle(Time(0), Frame { head, message }, &mut out);
            server.settle(&mut out);
        }
        assert_eq!(refusals(out.drain().map(|frame| frame.message).collect()), [refusal]);
        assert_eq!(server.counts().shards.failed_clocks, 0);
    }
}

/// Found by reading: a row as large as a part, with its key, did not fit an answer, and a scan
/// asked for the same row for ever.
#[test]
fn scan_of_rows_as_large_as_a_part_makes_progress() {
    let spec = TableSpec::dense("t", 2, 1 << 18);
    assert_eq!(spec.row_bytes(), types::PART_BYTES);
    let keys = KeyPart::Scan { range: types::PositionRange::ALL };
    let Message::Pull(pull) = pull_row_state(0) else { unreachable!("a pull") };
    for wants in [Wants::Values, Wants::RowState] {
        let pull = Message::Pull(Pull { wants, keys: keys.clone(), ..pull.clone() });
        let answers = answers(&spec, [(0, pull)]);
        let [Message::Pulled(pulled)] = &answers[..] else { panic!("one answer") };
        assert_eq!((pulled.positions.len(), pulled.values.len()), (8, types::PART_BYTES));
        assert_eq!(pulled.more, Some(Position(1)));
    }
}

/// Without a bound, a read waited until the slowest worker had come to the reader's clock, once the
/// tail was behind the frontier.
#[test]
fn unbounded_read_waits_only_until_the_tail_holds_the_frontier() {
    let mut plan = Plan::first(1, vec![Source(1), Source(2)]);
    plan.chains = vec![types::Chain { replicas: vec![0, 1], backfilling: Vec::new() }];
    let mut server = Server::new(NODE, plan.clone(), Updaters::builtin(), Pool::new());
    let mut out = Outbox::new();
    let spec =
        TableSpec::dense("t", 1, 1).consistency(types::Consistency::Unbounded).combine(Combine::Clock(Reduce::Sum));
    server.add_table(TableId(0), &spec, &mut out).expect("made");
    let (table, shard) = (TableId(0), ShardId(0));
    let marker = || Message::Marker(Marker { table, shard, settled: 0, since: Clock(0) });
    let mut says = |server: &mut Server, worker: u32, number: u64, clock: u64, message: Message| {
        let head = Head {
            source: Source(worker as u64 + 1),
            number,
            clock: Clock(clock),
            ..Head::plain(NodeId::Worker(worker), NODE)
        };
        server.handle(Time(0), Frame { head, message }, &mut out);
        server.settle(&mut out);
        out.drain().map(|frame| frame.message).collect::<Vec<_>>()
    };
    // Worker 0 is at clock 3, and worker 1 at clock 1, which is the frontier.
    (0..3).for_each(|clock| drop(says(&mut server, 0, clock + 1, clock, marker())));
    says(&mut server, 1, 1, 0, marker());
    let keys = KeyPart::Run { first: Position(0), count: 1 };
    let (request, after, frontier, subscribe, deltas, wants) = (1, 0, Clock(0), false, None, Wants::Values);
    let pull = Message::Pull(Pull { table, shard, request, after, frontier, subscribe, deltas, wants, keys });
    let is_read = |answers: &[Message]| answers.iter().any(|answer| matches!(answer, Message::Pulled(_)));
    assert!(!is_read(&says(&mut server, 0, 0, 3, pull)), "the tail is behind the frontier");
    let mut answered = false;
    for through in 1..=4 {
        let mut out = Outbox::new();
        let replicated = wire::Replicated { table, shard, through, backfill: None };
        let head = Head { plan: plan.number, ..Head::plain(NodeId::Server(1), NODE) };
        server.handle(Time(0), Frame { head, message: Message::Replicated(replicated) }, &mut out);
        server.settle(&mut out);
        server.tick(Time(through * 1_000_000_000), &mut out);
        answered |= is_read(&out.drain().map(|frame| frame.message).collect::<Vec<_>>());
    }
    assert!(answered, "the tail holds the frontier");
}

/// A connection proves who its peer is, and not which stream the peer's frames belong to.
#[test]
fn server_drops_frames_of_one_worker_in_the_stream_of_another() {
    let spec = TableSpec::dense("t", 4, 1);
    let plan = Plan::first(1, vec![Source(1), Source(2)]);
    let mut server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
    let mut out = Outbox::new();
    server.add_table(TableId(0), &spec, &mut out).expect("made");
    out.drain().for_each(drop);
    // (rank of the sender, source in the frame, whether it is dropped)
    for (rank, source, dropped) in [(0, 2, true), (7, 1, true), (0, 1, false), (1, 2, false), (0, 9, false)] {
        let head = Head { source: Source(source), number: 1, ..Head::plain(NodeId::Worker(rank), NODE) };
        let before = server.counts().misdirected;
        server.handle(Time(0), Frame { head, message: push(0, vec![1.0]) }, &mut out);
        server.settle(&mut out);
        assert_eq!(server.counts().misdirected - before, u64::from(dropped), "worker {rank} with source {source}");
        assert_eq!(out.drain().count(), usize::from(!dropped), "an answer goes to the owner of a stream only");
    }
    assert_eq!(server.counts().shards.parts, 2);
}
