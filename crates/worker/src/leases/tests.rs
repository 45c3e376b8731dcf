use super::*;
use crate::{Values, WorkerSettings};
use types::{Bandwidth, NodeId, NumberType, Plan, ShardId, Source, Span, TableSpec, WorkerId};
use wire::{Acked, Frame, Head, Message, Push, Refusal, Refused};

const TABLE: TableId = TableId(0);
const WORK: Work = Work { examples: 1, busy: Span(1) };

fn lease(number: u64) -> LeaseId {
    LeaseId { set: 0, number }
}

struct Bench {
    worker: Worker,
    out: Outbox,
}

impl Bench {
    /// A worker with a table of two shards that was granted leases 3 and 4.
    fn new() -> Self {
        let plan = Plan::first(2, vec![Source(1)]);
        let worker = Worker::new(WorkerId(0), Source(1), plan, WorkerSettings::default());
        let mut bench = Self { worker, out: Outbox::new() };
        bench.worker.make_table(TableSpec::dense("t", 100_000, 1), &mut bench.out);
        bench.hear(Control::TableMade { table: TABLE, name: "t".into() });
        let (epochs, shuffle, per_clock, fingerprint) = (1, None, 1, 0);
        let terms = LeaseTerms { ranges: 9, epochs, shuffle, per_clock, fingerprint, input: String::new() };
        bench.worker.open_leases("train", terms, &mut bench.out);
        bench.hear(Control::LeasesOpened { name: "train".into(), set: Ok(0) });
        bench.worker.ask_leases(0, 2, &mut bench.out);
        bench.hear(Control::Leased { set: 0, number: 1, leases: vec![3, 4], share: 1 });
        assert_eq!(bench.worker.take_leases(0), Some(Grant { leases: vec![3, 4], share: 1 }));
        bench.said();
        bench
    }

    fn hear(&mut self, control: Control) {
        let head = Head::plain(NodeId::Coordinator, NodeId::Worker(0));
        self.worker.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut self.out);
    }

    /// Both leases are done, and that is known.
    fn commit_all(&mut self) {
        for number in [3, 4] {
            self.worker.commit_lease(Time(0), lease(number), WORK, &mut self.out).expect("held");
            self.hear(Control::LeaseCommitted { set: 0, lease: number, problem: None });
        }
    }

    fn acknowledge(&mut self, shard: u32, through: u64) {
        self.acknowledge_all_but(shard, through, Vec::new());
    }

    fn acknowledge_all_but(&mut self, shard: u32, through: u64, refused: Vec<Refused>) {
        let head = Head { source: Source(1), ..Head::plain(NodeId::Server(shard), NodeId::Worker(0)) };
        let acked = Acked { table: TABLE, shard: ShardId(shard), through, refused };
        self.worker.handle(Time(0), Frame { head, message: Message::Acked(acked) }, &mut self.out);
    }

    fn push(&mut self, lease: LeaseId, rows: Range<u64>, examples: u64, after: &[TicketId]) -> TicketId {
        let values = Payload::new(vec![1.0f32; (rows.end - rows.start) as usize]);
        let values = Values { number: NumberType::F32, bytes: values };
        let batch = Batch { keys: Keys::run(rows), values, examples, lease: Some(lease) };
        self.worker.push(Time(0), TABLE, batch, after, &mut self.out).expect("fits")
    }

    fn said(&mut self) -> Vec<Message> {
        self.out.drain().map(|frame| frame.message).collect()
    }

    /// Of each push that is sent: shard, lease, piece and examples.
    fn pieces(&mut self) -> Vec<(u32, u64, u64, u64)> {
        let name = |frame: Frame| match frame.message {
            Message::Push(Push { shard, writes, .. }) => {
                let LeasedPart { lease, part: piece, .. } = writes.lease()?;
                Some((shard.0, lease, piece, frame.head.examples))
            }
            _ => None,
        };
        self.out.drain().filter_map(name).collect()
    }
}

fn commits(said: &[Message]) -> Vec<u64> {
    let lease = |message: &Message| match message {
        Message::Control(Control::CommitLease { lease, .. }) => Some(*lease),
        _ => None,
    };
    said.iter().filter_map(lease).collect()
}

#[test]
fn a_lease_is_committed_when_everything_pushed_of_it_is_acknowledged() {
    let mut bench = Bench::new();
    bench.push(lease(3), 49_999..50_001, 1, &[]);
    bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out).expect("held");
    assert_eq!(commits(&bench.said()), []);
    bench.acknowledge(0, 1);
    assert_eq!(commits(&bench.said()), [], "one part is not");
    bench.acknowledge(1, 1);
    assert_eq!(commits(&bench.said()), [3]);
    assert!(!bench.worker.is_idle(), "nobody has said that it is committed");
    bench.worker.reconnected(Time(0), NodeId::Coordinator, &mut bench.out);
    assert_eq!(commits(&bench.said()), [3], "so it is said again");
    bench.hear(Control::LeaseCommitted { set: 0, lease: 3, problem: None });
    assert!(bench.worker.is_idle());
    let late = bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out);
    assert_eq!(late, Err(TableFailure::NotLeased { lease: 3 }));
}

/// Whoever pushed it first was further on: the lease is done when its last piece counts, not when this worker is through.
#[test]
fn a_lease_whose_pieces_are_held_already_is_done_in_the_clock_in_which_they_count() {
    let mut bench = Bench::new();
    bench.push(lease(3), 0..1, 1, &[]);
    bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out).expect("held");
    bench.acknowledge(1, 1);
    let held = Refused { number: 1, refusal: Refusal::AlreadyHeld { clock: Clock(7) } };
    bench.acknowledge_all_but(0, 1, vec![held]);
    let clock = |message: Message| match message {
        Message::Control(Control::CommitLease { clock, .. }) => Some(clock),
        _ => None,
    };
    assert_eq!(bench.said().into_iter().filter_map(clock).collect::<Vec<_>>(), [Clock(7)]);
}

#[test]
fn pieces_are_numbered_as_they_are_asked_for_and_take_the_examples_of_those_without_along() {
    let mut bench = Bench::new();
    let first = bench.push(lease(3), 0..2, 10, &[]);
    let second = bench.push(lease(3), 0..1, 7, &[first]);
    bench.push(lease(3), 60_000..60_001, 5, &[]);
    assert_eq!(bench.pieces(), [(0, 3, 0, 10), (1, 3, 0, 22)], "the second waits, and has its number");
    bench.push(lease(4), 0..1, 1, &[]);
    assert_eq!(bench.pieces(), [(0, 4, 0, 1)], "another lease counts from 0");
    bench.acknowledge(0, 1);
    assert_eq!(bench.pieces(), [(0, 3, 1, 7)]);
    assert!(bench.worker.is_finished(first) && !bench.worker.is_finished(second));
    bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out).expect("held");
    assert_eq!(bench.pieces(), [(0, 3, 2, 5)], "no part of the last was for shard 0");
    bench.worker.commit_lease(Time(0), lease(4), WORK, &mut bench.out).expect("held");
    assert_eq!(bench.pieces(), [(1, 4, 0, 1)]);
}

#[test]
fn how_a_push_is_cut_does_not_depend_on_how_much_may_be_sent() {
    let mut bench = Bench::new();
    bench.push(lease(3), 0..40_000, 1, &[]);
    let free = bench.pieces();
    bench.worker.limit(Time(0), Some(Bandwidth::from_bytes_per_second(1 << 40)), &mut bench.out);
    bench.push(lease(4), 0..40_000, 1, &[]);
    bench.worker.tick(Time(1_000_000_000), &mut bench.out);
    assert_eq!(free.len(), bench.pieces().len());
}

#[test]
fn an_answer_that_names_what_is_known_brings_what_is_not() {
    let mut bench = Bench::new();
    bench.worker.ask_leases(0, 2, &mut bench.out);
    bench.hear(Control::Leased { set: 0, number: 1, leases: vec![3, 4], share: 1 });
    bench.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4], share: 1 });
    assert_eq!(bench.worker.take_leases(0), None, "nothing of that is new");
    bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out).expect("held");
    bench.hear(Control::LeaseCommitted { set: 0, lease: 3, problem: None });
    // Said before the commit arrived.
    bench.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4, 8], share: 6 });
    assert_eq!(bench.worker.take_leases(0), Some(Grant { leases: vec![8], share: 6 }));
}

#[test]
fn a_program_that_is_late_to_end_its_last_clock_ends_no_other_in_its_place() {
    let mut bench = Bench::new();
    bench.worker.ask_leases(0, 2, &mut bench.out);
    bench.commit_all();
    // Everybody else goes to clock 1, and stays there.
    bench.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(1) });
    bench.worker.end_clock(Time(0), &mut bench.out);
    assert_eq!(bench.worker.clock(), Clock(1));
    assert!(bench.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn a_program_that_ends_no_clock_is_brought_to_where_everybody_is_when_it_looks_for_more() {
    let mut bench = Bench::new();
    bench.worker.ask_leases(0, 2, &mut bench.out);
    bench.commit_all();
    bench.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(1) });
    assert_eq!(bench.worker.take_leases(0), None);
    bench.worker.tick(Time(1), &mut bench.out);
    assert!(bench.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn who_waits_for_leases_ends_clocks_as_the_others_do_and_nobody_else() {
    let mut bench = Bench::new();
    bench.worker.ask_leases(0, 2, &mut bench.out);
    let awaited = |clock| Control::LeasesAwaited { set: 0, number: 2, clock: Clock(clock), on: Vec::new() };
    bench.hear(awaited(5));
    assert_eq!(bench.worker.clock(), Clock(0), "it has leases to learn from");
    bench.commit_all();
    bench.hear(awaited(5));
    assert_eq!(bench.worker.clock(), Clock(0), "the clock that it was done in is the program's to end");
    bench.worker.end_clock(Time(0), &mut bench.out);
    assert_eq!(bench.worker.clock(), Clock(5));
    bench.hear(awaited(7));
    assert_eq!(bench.worker.clock(), Clock(7));
    bench.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(9) });
    assert_eq!(bench.worker.clock(), Clock(9));
    assert!(bench.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn whoever_ends_a_data_set_takes_no_more_and_hears_when_all_have() {
    let mut bench = Bench::new();
    assert!(!bench.worker.leases_ended(0));
    // Asked for ahead of time, and answered when it has had enough.
    bench.worker.ask_leases(0, 1, &mut bench.out);
    bench.worker.end_leases(0, &mut bench.out);
    assert!(bench.worker.leases_ended(0));
    assert!(bench.said().contains(&Message::Control(Control::EndLeases { set: 0 })));
    bench.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4, 5], share: 1 });
    assert_eq!(bench.worker.take_leases(0), None);
    bench.worker.ask_leases_again(&mut bench.out);
    assert!(bench.said().contains(&Message::Control(Control::EndLeases { set: 0 })), "should that have been missed");
    bench.hear(Control::LeasesEnded { set: 0, number: 2, clock: Clock(7) });
    assert!(bench.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
    assert_eq!(bench.worker.clock(), Clock(7), "where everybody is");
}

#[test]
fn whoever_hears_that_another_has_ended_it_may_finish_what_it_holds() {
    let mut bench = Bench::new();
    bench.hear(Control::EndLeases { set: 0 });
    assert!(bench.worker.leases_ended(0));
    bench.worker.commit_lease(Time(0), lease(3), WORK, &mut bench.out).expect("it is held");
    assert_eq!(commits(&bench.said()), [3]);
}
