//! What a reader sees, by consistency, combine and updater: one row per case, without faults. The
//! table of cases is the definition of the rules.
//!
//! Two workers share a dense table of two rows, row 0 on server 0 and row 1 on server 1. A program
//! is a line of words:
//!
//! | word | what it does |
//! | --- | --- |
//! | `+v` | pushes v to row 0 (`+v/1`: to row 1) |
//! | `nan` | pushes NaN to row 0 (`nan*`: in one batch with a 1 for row 1) |
//! | `?` | reads row 0 (`?1`: row 1, `?*`: both) and waits for it |
//! | `.` | ends the clock |
//! | `~` | computes for 100 ms, in which everything under way arrives |
//! | `-` | computes for 1 ms, in which a message arrives and its answer does not |
//!
//! What it sees is a word for each read: the row, `@` the reported frontier, `c` if it came from
//! the worker's cache, and `!k` for each failed clock k that it was told of. A worker leaves after
//! its program.

use shard::Server;
use sim::{Action, Cluster, Faults, HistoryEvent, ReadRecord, RunSize, TableIndex, Write};
use types::{
    Clock, Combine, Consistency, NodeId, Plan, Reduce, ShardId, Source, Span, TableId, TableSpec, UpdaterSpec,
};
use wire::{Control, Frame, Head, Marker, Message, Outbox, Refusal};

fn step(word: &str, table: TableIndex) -> Action {
    let push = |rows: &[u64], values: Vec<f64>| Action::push(table, rows, Write::Numbers(values));
    match word {
        "." => Action::EndClock,
        "~" => Action::Compute(Span::from_millis(100)),
        "-" => Action::Compute(Span::from_millis(1)),
        "?" => Action::pull(table, &[0]),
        "?1" => Action::pull(table, &[1]),
        "?*" => Action::pull(table, &[0, 1]),
        "nan" => push(&[0], vec![f64::NAN]),
        "nan*" => push(&[0, 1], vec![f64::NAN, 1.0]),
        _ => {
            let (value, row) = word.split_once('/').unwrap_or((word, "0"));
            push(&[row.parse().expect("a row")], vec![value.parse().expect("a value")])
        }
    }
}

fn shown(read: &ReadRecord) -> String {
    let rows: Vec<String> = read.values.iter().map(f64::to_string).collect();
    let cached = if read.cached_rows == read.keys.len() { "c" } else { "" };
    let failed: String = read.failed.iter().map(|failed| format!("!{}", failed.clock.0)).collect();
    format!("{}@{}{cached}{failed}", rows.join(","), read.clock.0)
}

/// The words of each worker's reads.
fn seen(spec: TableSpec, programs: [&str; 2]) -> [String; 2] {
    let mut cluster = Cluster::new(0, RunSize { servers: 2, workers: 2 }, Faults::NONE);
    let table = cluster.table(spec);
    for (worker, program) in (0..).zip(programs) {
        let words = program.split_whitespace().map(|word| step(word, table));
        let together = [Action::MakeTable(table), Action::Barrier];
        cluster.program(worker, together.into_iter().chain(words).collect());
    }
    cluster.run();
    [0, 1].map(|worker| {
        let reads = cluster.history().entries.iter().filter(|entry| entry.worker == worker);
        let shown: Vec<String> = reads
            .filter_map(|entry| match &entry.event {
                HistoryEvent::PullReturned { read, .. } => Some(shown(read)),
                _ => None,
            })
            .collect();
        shown.join(" ")
    })
}

const EAGER: Consistency = Consistency::Bounded { slack: 1, eager: true };
const EACH: Combine = Combine::Each;
const SUM: Combine = Combine::Clock(Reduce::Sum);
const MEAN: Combine = Combine::Clock(Reduce::Mean);

struct Case {
    what: &'static str,
    consistency: Consistency,
    combine: Combine,
    updater: UpdaterSpec,
    cached: bool,
    programs: [&'static str; 2],
    seen: [&'static str; 2],
}

fn case(
    what: &'static str,
    consistency: Consistency,
    combine: Combine,
    programs: [&'static str; 2],
    seen: [&'static str; 2],
) -> Case {
    Case { what, consistency, combine, updater: UpdaterSpec::Sum, cached: false, programs, seen }
}

impl Case {
    fn updater(self, updater: UpdaterSpec) -> Self {
        Self { updater, ..self }
    }

    fn cached(self) -> Self {
        Self { cached: true, ..self }
    }
}

#[test]
#[rustfmt::skip] // One row per case.
fn a_reader_sees_what_its_policy_says() {
    let slack = Consistency::slack;
    let delay = |tau| Consistency::Delay { tau };
    let sgd = || UpdaterSpec::Sgd { rate: 1.0 };
    let cases = [
        // When a read is answered: Bounded.
        case("slack 0 waits for all workers' earlier clocks", slack(0), EACH, ["+1 . ?", "~ +2 ."], ["3@1", ""]),
        case("slack 0 at clock 0 waits for no worker", slack(0), EACH, ["?", "~ +2"], ["0@0", ""]),
        case("each promises a lower bound and may hold more", slack(0), EACH, ["~ ?", "+2 ~ ~"], ["2@0", ""]),
        case("slack 1 reads one clock ahead at once", slack(1), EACH, ["+1 . ?", "~ +2 ."], ["1@0", ""]),
        case("slack 1 waits two clocks ahead", slack(1), EACH, ["+1 . . ?", "~ +2 . ~ +4 ."], ["3@1", ""]),
        case("slack 3 reads three ahead", slack(3), EACH, ["+1 . . . ?", "~ +2"], ["1@0", ""]),
        case("a read holds the reader's own pushes", slack(0), EACH, ["+1 ? +1 ?", "~"], ["1@0 2@0", ""]),
        case("all workers see the same clocks", slack(0), EACH, ["+1 . ~ ?", "+2 . ~ ?"], ["3@1", "3@1"]),
        // Unbounded and Delay.
        case("unbounded waits for no worker", Consistency::Unbounded, EACH, ["+1 . . . . ?", "~ ~"], ["1@0", ""]),
        // The other worker's push reaches row 1 after a read that is sent at once, and before a
        // read that waits for an answer.
        case("delay 0 is sequential", delay(0), EACH, ["+1 ?1", "- +2/1 ~"], ["2@0", ""]),
        case("delay 1 lets a task overtake the one before it", delay(1), EACH, ["+1 ?1", "- +2/1 ~"], ["0@0", ""]),
        case("delay 1 waits for the one before that", delay(1), EACH, ["+1 +1 ?1", "- +2/1 ~"], ["2@0", ""]),
        case("delay 0 reads what was pushed", delay(0), EACH, ["+1 +1 ? . . ?", "~"], ["2@0 2@0", ""]),
        case("delay bounds no reads", delay(9), EACH, [". . . ~ ?", "+2 ~ ~"], ["2@0", ""]),
        // When pushes are applied: each.
        case("each applies in arrival order", slack(9), EACH, ["+1 ~ ~ ?", "~ +2 ~"], ["2@0", ""]).updater(UpdaterSpec::Assign),
        case("each applies a worker's pushes in its order", slack(0), EACH, ["+1 +2 ?", "~"], ["2@0", ""]).updater(UpdaterSpec::Assign),
        case("each steps once for each push", slack(0), EACH, ["+1 . ?", "+2 +2 ."], ["-5@1", ""]).updater(sgd()),
        // When pushes are applied: by clock.
        case("clock hides own gradients until their clock is applied", slack(1), SUM, ["+1 ? . ? ~ ~ ?", "~ +2 . ~ ~"], ["0@0 0@0 3@1", ""]),
        case("clock holds exactly the clocks below the frontier", slack(2), SUM, ["+1 . +10 . ~ ?", "+2 . ~ ~"], ["3@1", ""]),
        case("clock with slack 0 is bulk-synchronous", slack(0), SUM, ["+1 . ? +1 . ?", "~ +2 . ? ~ +2 . ?"], ["3@1 6@2", "3@1 6@2"]),
        case("clock applies once, to the sum", slack(0), SUM, ["+1 . ?", "+2 . ~"], ["3@1", ""]).updater(UpdaterSpec::Assign),
        case("mean divides by the workers, not the contributions", slack(0), MEAN, ["+4 . ?", "."], ["2@1", ""]),
        case("mean of several pushes of one worker", slack(0), MEAN, ["+4 +4 . ?", "+2 ."], ["5@1", ""]),
        case("mean does not count a worker that left before the clock ended", slack(0), MEAN, ["~ +4 . ?", ""], ["4@1", ""]),
        case("mean counts a worker that ended the clock and left", slack(0), MEAN, ["~ +4 . ?", "+2 ."], ["3@1", ""]),
        case("mean counts for each clock the workers that ended it", slack(1), MEAN, ["~ +4 . +4 . ?", "+2 ."], ["7@2", ""]),
        case("a read without a bound shows the clocks that were applied", Consistency::Unbounded, SUM, ["+1 . ? ~ ~ ?", "~ +2 . ~"], ["0@0 3@1", ""]),
        case("delay bounds no reads of a clock table either", delay(0), SUM, ["+1 . ? ~ ~ ?", "~ +2 . ~"], ["0@0 3@1", ""]),
        // Refusals.
        case("a refused part leaves its row, and the frontier passes", slack(0), EACH, ["nan . ?", "+2 . ?"], ["2@1", "2@1"]),
        case("a batch is not atomic, its parts are", slack(0), EACH, ["nan* . ?*", "+2 . ?*"], ["2,1@1", "2,1@1"]),
        case("a clock with NaN fails for all workers alike", slack(0), SUM, ["nan . ?", "+2 . ?"], ["0@1!0", "0@1!0"]),
        case("a failed clock is one shard's", slack(0), SUM, ["nan* . ?1 ?", "+2 . ~"], ["1@1 0@1!0", ""]),
        case("the clocks after a failed one go on", slack(0), SUM, ["nan . +1 . ?", "+2 . +2 . ?"], ["3@2", "3@2"]),
        // The frontier.
        case("a marker goes to every shard, pushed to or not", slack(0), EACH, ["+1 . ?1", "+2 ."], ["0@1", ""]),
        case("a worker that has left holds up no other", slack(0), EACH, ["+1 . . ~ ?", "+2"], ["3@2", ""]),
        case("the frontier does not fall for a worker that was behind and left", slack(0), EACH, [". . ~ ~ ? . ?", "+2 . ~"], ["2@2 2@3", ""]),
        // The cache.
        case("a cached row within the slack may be stale", slack(1), EACH, ["? ~ ~ ?", "~ +2 ~ ~"], ["0@0 0@0c", ""]).cached(),
        case("a cached row beyond the slack is read again", slack(1), EACH, ["? ~ . . ~ ?", "~ +2 . . ~ ~"], ["0@0 2@2", ""]).cached(),
        case("the cache adds own pushes where they add up", slack(1), EACH, ["? +1 ? . ?", "~ ~"], ["0@0 1@0c 1@0c", ""]).cached(),
        case("a row with own pushes that do not add up is read again", slack(1), EACH, ["? +1 ?", "~ ~"], ["0@0 -1@0", ""]).cached().updater(sgd()),
        case("the cache of a clock table hides own pushes too", slack(1), SUM, ["? +1 ? . ?", "~ ~"], ["0@0 0@0c 0@0c", ""]).cached(),
        case("own NaN reaches no cached row, and after a refusal the row is read again", slack(1), EACH, ["? nan ? ~ ?", "~ ~"], ["0@0 0@0c 0@0", ""]).cached(),
        // Eager.
        case("eager refreshes changed rows by itself", EAGER, EACH, ["? ~ ~ . . ~ ?", "~ +2 . . ~ ~ ~"], ["0@0 2@2c", ""]).cached(),
        case("eager makes unchanged rows fresh too", EAGER, EACH, ["? ~ . . ~ ?", "~ . . ~ ~"], ["0@0 0@2c", ""]).cached(),
        case("eager refreshes a clock's rows when it is applied", EAGER, SUM, ["? ~ . ~ . ~ ?", ". +2 . ~ ~ ~ ~"], ["0@0 2@2c", ""]).cached(),
    ];
    for case in cases {
        let mut spec = TableSpec::dense("t", 2, 1)
            .number(types::NumberType::F64)
            .consistency(case.consistency)
            .combine(case.combine)
            .updater(case.updater);
        if case.cached {
            spec = spec.cached(9);
        }
        assert_eq!(seen(spec, case.programs), case.seen, "{}: {:?}", case.what, case.programs);
    }
}

fn frame(from: Source, number: u64, clock: u64) -> Frame {
    let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
    head.source = from;
    head.number = number;
    head.clock = Clock(clock);
    Frame {
        head,
        message: Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: 0, since: Clock(0) }),
    }
}

#[test]
fn an_incarnation_that_the_plan_does_not_count_is_refused() {
    let plan = Plan::first(1, vec![Source(1)]);
    let mut server = Server::new(NodeId::Server(0), plan, update::Updaters::builtin(), wire::Pool::new());
    let mut out = Outbox::new();
    let add = Control::AddTable { table: TableId(0), spec: TableSpec::dense("t", 2, 1) };
    let head = Head::plain(NodeId::Coordinator, NodeId::Server(0));
    server.handle(types::Time(0), Frame { head, message: Message::Control(add) }, &mut out);
    // (the source of the marker, whether the server refuses it)
    for (source, expected) in [(Source(1), false), (Source(7), true)] {
        out.drain().for_each(drop);
        server.handle(types::Time(0), frame(source, 1, 0), &mut out);
        server.settle(&mut out);
        let refused = out.drain().any(|frame| match frame.message {
            Message::Acked(acked) => acked.refused.iter().any(|refused| refused.refusal == Refusal::Expelled),
            _ => false,
        });
        assert_eq!(refused, expected, "{source:?}");
    }
}
