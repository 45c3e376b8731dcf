use super::*;
use crate::Op;
use crate::testing::{self, TABLE, ones, worker_with_table};
use std::ops::Range;
use types::{Bandwidth, NodeId, Span, TableSpec};
use wire::{Control, Frame, LeasedPart, Message, Push, Refusal, Refused};

const WORK: WorkReport = WorkReport { examples: 1, busy: Span(1) };

fn lease(number: u64) -> LeaseId {
    LeaseId { set: 0, number }
}

struct Fixture {
    worker: Worker,
    out: Outbox,
}

impl Fixture {
    /// A worker with a table of two shards that was granted leases 3 and 4.
    fn new() -> Self {
        let worker = worker_with_table(TableSpec::dense("t", 100_000, 1), 2);
        let mut fixture = Self { worker, out: Outbox::new() };
        let terms =
            LeaseTerms { ranges: 9, epochs: 1, shuffle: None, per_clock: 1, fingerprint: 0, input: String::new() };
        fixture.worker.open_leases("train", terms, &mut fixture.out);
        fixture.hear(Control::LeasesOpened { name: "train".into(), set: Ok(0) });
        fixture.worker.ask_leases(0, 2, &mut fixture.out);
        fixture.hear(Control::Leased { set: 0, number: 1, leases: vec![3, 4], share: 1 });
        assert_eq!(fixture.worker.take_leases(0), Some(LeaseGrant { leases: vec![3, 4], share: 1 }));
        fixture.said();
        fixture
    }

    fn hear(&mut self, control: Control) {
        testing::hear(&mut self.worker, control, &mut self.out);
    }

    /// Commits both leases, and has the coordinator confirm it.
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
        testing::acknowledge(&mut self.worker, Time(0), shard, through, refused, &mut self.out);
    }

    fn push(&mut self, lease: LeaseId, rows: Range<u64>, examples: u64, after: &[TicketId]) -> TicketId {
        let batch = Batch { lease: Some(lease), ..ones(Keys::run(rows), 1, examples) };
        self.worker.submit(Time(0), TABLE, Op::Push { batch }, None, after, &mut self.out).expect("fits")
    }

    fn said(&mut self) -> Vec<Message> {
        self.out.drain().map(|frame| frame.message).collect()
    }

    /// The shard, lease, part and examples of each push that the worker sends.
    fn leased_parts(&mut self) -> Vec<(u32, u64, u64, u64)> {
        let name = |frame: Frame| match frame.message {
            Message::Push(Push { shard, writes, .. }) => {
                let LeasedPart { lease, part, .. } = writes.lease()?;
                Some((shard.0, lease, part, frame.head.examples))
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
fn lease_is_committed_when_all_its_pushes_are_acknowledged() {
    let mut fixture = Fixture::new();
    fixture.push(lease(3), 49_999..50_001, 1, &[]);
    fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out).expect("held");
    assert_eq!(commits(&fixture.said()), []);
    fixture.acknowledge(0, 1);
    assert_eq!(commits(&fixture.said()), [], "shard 1 has not acknowledged its part");
    fixture.acknowledge(1, 1);
    assert_eq!(commits(&fixture.said()), [3]);
    assert!(!fixture.worker.is_idle(), "the coordinator has not confirmed the commit");
    fixture.worker.reconnected(Time(0), NodeId::Coordinator, &mut fixture.out);
    assert_eq!(commits(&fixture.said()), [3], "so the worker sends it again");
    fixture.hear(Control::LeaseCommitted { set: 0, lease: 3, problem: None });
    assert!(fixture.worker.is_idle());
    let late = fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out);
    assert_eq!(late, Err(TableFailure::NotLeased { lease: 3 }));
}

/// The worker that pushed the part first was ahead: the lease is done in the clock in which its
/// last part counts, not in this worker's clock.
#[test]
fn lease_whose_parts_are_held_already_is_committed_for_the_clock_in_which_they_count() {
    let mut fixture = Fixture::new();
    fixture.push(lease(3), 0..1, 1, &[]);
    fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out).expect("held");
    fixture.acknowledge(1, 1);
    let held = Refused { number: 1, refusal: Refusal::AlreadyHeld { clock: Clock(7) } };
    fixture.acknowledge_all_but(0, 1, vec![held]);
    let clock = |message: Message| match message {
        Message::Control(Control::CommitLease { clock, .. }) => Some(clock),
        _ => None,
    };
    assert_eq!(fixture.said().into_iter().filter_map(clock).collect::<Vec<_>>(), [Clock(7)]);
}

#[test]
fn leased_parts_are_numbered_in_order_of_submission_and_carry_examples() {
    let mut fixture = Fixture::new();
    let first = fixture.push(lease(3), 0..2, 10, &[]);
    let second = fixture.push(lease(3), 0..1, 7, &[first]);
    fixture.push(lease(3), 60_000..60_001, 5, &[]);
    assert_eq!(fixture.leased_parts(), [(0, 3, 0, 10), (1, 3, 0, 22)], "the second waits, and has its number");
    fixture.push(lease(4), 0..1, 1, &[]);
    assert_eq!(fixture.leased_parts(), [(0, 4, 0, 1)], "another lease counts from 0");
    fixture.acknowledge(0, 1);
    assert_eq!(fixture.leased_parts(), [(0, 3, 1, 7)]);
    assert!(fixture.worker.is_finished(first) && !fixture.worker.is_finished(second));
    fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out).expect("held");
    assert_eq!(fixture.leased_parts(), [(0, 3, 2, 5)], "no part of the last was for shard 0");
    fixture.worker.commit_lease(Time(0), lease(4), WORK, &mut fixture.out).expect("held");
    assert_eq!(fixture.leased_parts(), [(1, 4, 0, 1)]);
}

#[test]
fn leased_push_is_cut_the_same_with_and_without_a_bandwidth_bound() {
    let mut fixture = Fixture::new();
    fixture.push(lease(3), 0..40_000, 1, &[]);
    let free = fixture.leased_parts();
    fixture.worker.limit(Time(0), Some(Bandwidth::from_bytes_per_second(1 << 40)), &mut fixture.out);
    fixture.push(lease(4), 0..40_000, 1, &[]);
    fixture.worker.tick(Time(1_000_000_000), &mut fixture.out);
    assert_eq!(free.len(), fixture.leased_parts().len());
}

#[test]
fn lease_grant_leaves_out_leases_that_the_worker_knew_when_it_asked() {
    let mut fixture = Fixture::new();
    fixture.worker.ask_leases(0, 2, &mut fixture.out);
    fixture.hear(Control::Leased { set: 0, number: 1, leases: vec![3, 4], share: 1 });
    fixture.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4], share: 1 });
    assert_eq!(fixture.worker.take_leases(0), None, "none of these leases is new");
    fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out).expect("held");
    fixture.hear(Control::LeaseCommitted { set: 0, lease: 3, problem: None });
    // The coordinator sent this before the commit arrived.
    fixture.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4, 8], share: 6 });
    assert_eq!(fixture.worker.take_leases(0), Some(LeaseGrant { leases: vec![8], share: 6 }));
}

#[test]
fn worker_ends_no_clock_itself_until_the_program_ends_its_last_one() {
    let mut fixture = Fixture::new();
    fixture.worker.ask_leases(0, 2, &mut fixture.out);
    fixture.commit_all();
    // All other workers go to clock 1, and stay there.
    fixture.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(1) });
    fixture.worker.end_clock(Time(0), &mut fixture.out);
    assert_eq!(fixture.worker.clock(), Clock(1));
    assert!(fixture.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn worker_catches_up_with_the_others_when_the_program_takes_leases_without_ending_its_clock() {
    let mut fixture = Fixture::new();
    fixture.worker.ask_leases(0, 2, &mut fixture.out);
    fixture.commit_all();
    fixture.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(1) });
    assert_eq!(fixture.worker.take_leases(0), None);
    fixture.worker.tick(Time(1), &mut fixture.out);
    assert!(fixture.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn worker_ends_clocks_by_itself_only_while_it_waits_for_leases() {
    let mut fixture = Fixture::new();
    fixture.worker.ask_leases(0, 2, &mut fixture.out);
    let awaited = |clock| Control::LeasesAwaited { set: 0, number: 2, clock: Clock(clock), on: Vec::new() };
    fixture.hear(awaited(5));
    assert_eq!(fixture.worker.clock(), Clock(0), "the worker has leases to learn from");
    fixture.commit_all();
    fixture.hear(awaited(5));
    assert_eq!(fixture.worker.clock(), Clock(0), "the program ends the clock of its last lease");
    fixture.worker.end_clock(Time(0), &mut fixture.out);
    assert_eq!(fixture.worker.clock(), Clock(5));
    fixture.hear(awaited(7));
    assert_eq!(fixture.worker.clock(), Clock(7));
    fixture.hear(Control::LeasesOver { set: 0, number: 2, clock: Clock(9) });
    assert_eq!(fixture.worker.clock(), Clock(9));
    assert!(fixture.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
}

#[test]
fn worker_that_ends_a_data_set_takes_no_more_leases_and_learns_when_all_workers_have_ended() {
    let mut fixture = Fixture::new();
    assert!(!fixture.worker.leases_ended(0));
    // The worker asks ahead of time, and has ended the data set when the answer arrives.
    fixture.worker.ask_leases(0, 1, &mut fixture.out);
    fixture.worker.end_leases(0, &mut fixture.out);
    assert!(fixture.worker.leases_ended(0));
    assert!(fixture.said().contains(&Message::Control(Control::EndLeases { set: 0 })));
    fixture.hear(Control::Leased { set: 0, number: 2, leases: vec![3, 4, 5], share: 1 });
    assert_eq!(fixture.worker.take_leases(0), None);
    fixture.worker.reconnected(Time(0), NodeId::Coordinator, &mut fixture.out);
    assert!(
        fixture.said().contains(&Message::Control(Control::EndLeases { set: 0 })),
        "in case the coordinator missed it"
    );
    fixture.hear(Control::LeasesEnded { set: 0, number: 2, clock: Clock(7) });
    assert!(fixture.worker.take_leases(0).is_some_and(|grant| grant.is_over()));
    assert_eq!(fixture.worker.clock(), Clock(7), "the clock of the furthest worker");
}

#[test]
fn worker_may_finish_its_leases_after_another_worker_ends_the_data_set() {
    let mut fixture = Fixture::new();
    fixture.hear(Control::EndLeases { set: 0 });
    assert!(fixture.worker.leases_ended(0));
    fixture.worker.commit_lease(Time(0), lease(3), WORK, &mut fixture.out).expect("it is held");
    assert_eq!(commits(&fixture.said()), [3]);
}
