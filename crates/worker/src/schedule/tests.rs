use super::*;
use crate::send::pacing::PacedPart;
use crate::send::stream::tests::{head, push as message};
use crate::testing::ones;
use crate::{Op, PullTarget};
use types::{Bandwidth, Combine, NumberType, Reduce, Time};
use wire::{Keys, Refusal};

const TABLE: TableId = TableId(1);

/// A schedule, with the state that its decisions depend on.
struct Fixture {
    schedule: Schedule,
    tickets: Tickets,
    link: Link,
    spec: TableSpec,
    may_push: bool,
}

impl Fixture {
    fn new(consistency: Consistency, combine: Combine) -> Self {
        let spec = TableSpec::dense("t", 2, 1).consistency(consistency).combine(combine);
        Self { schedule: Schedule::default(), tickets: Tickets::default(), link: Link::default(), spec, may_push: true }
    }

    /// Submits an operation, to run after these tickets.
    fn submit(&mut self, op: Op, after: &[TicketId]) -> QueuedOperation {
        let access = op.access();
        let place = self.schedule.submit(TABLE, &self.spec, access);
        let purpose = TicketPurpose { table: TABLE, reads: access.reads(), place, lease: None };
        let ticket = self.tickets.open(purpose, 1);
        QueuedOperation {
            ticket,
            table: TABLE,
            op,
            target: PullTarget::empty(NumberType::F32),
            leased_parts: Vec::new(),
            own: false,
            after: after.to_vec(),
            follows: None,
        }
    }

    fn waits_for(&self, queued: &mut QueuedOperation) -> Option<WaitsFor> {
        self.schedule.waits_for(queued, &self.spec, &self.tickets, &self.link, || self.may_push)
    }

    /// Submits a push that waits for the ticket of another. Returns the other's ticket.
    fn waiting_push(&mut self) -> TicketId {
        let other = self.submit(push(), &[]).ticket;
        let mut queued = self.submit(push(), &[other]);
        let waits_for = self.waits_for(&mut queued).expect("the other is not finished");
        self.schedule.put(queued, waits_for);
        other
    }

    fn finish(&mut self, ticket: TicketId) {
        let closed = self.tickets.part_done(ticket, None::<Refusal>).expect("its only part");
        self.schedule.finished(ticket, &closed.purpose);
    }

    /// Has a part of a push wait for bandwidth. Returns its number.
    fn paced_part(&mut self) -> u64 {
        self.link.wait(PacedPart {
            table: TABLE,
            shard: 0,
            head: head(0),
            message: message(&[0]),
            significance: 1.0,
            ordered: false,
        })
    }
}

fn push() -> Op {
    Op::Push { batch: ones(Keys::run(0..2), 1, 1) }
}

fn pull() -> Op {
    Op::Pull { keys: Keys::run(0..2) }
}

#[test]
fn schedule_starts_an_operation_after_the_tickets_that_it_names() {
    let mut fixture = Fixture::new(Consistency::Unbounded, Combine::Each);
    let [first, second] = [(); 2].map(|()| fixture.submit(push(), &[]).ticket);
    let mut queued = fixture.submit(push(), &[first, second]);
    for ticket in [second, first] {
        assert_eq!(fixture.waits_for(&mut queued), Some(WaitsFor::Ticket(ticket)));
        fixture.finish(ticket);
    }
    assert_eq!(fixture.waits_for(&mut queued), None);
}

#[test]
fn schedule_keeps_a_read_behind_own_pushes_where_the_rule_promises_them() {
    let by_clock = Combine::Clock(Reduce::Sum);
    // (the rule, how the table combines, the operation, what it waits for)
    for (consistency, combine, op, expected) in [
        (Consistency::slack(3), Combine::Each, pull(), Some(WaitsFor::OwnPushes)),
        (Consistency::slack(3), Combine::Each, push(), None),
        (Consistency::slack(3), by_clock, pull(), None),
        (Consistency::Unbounded, Combine::Each, pull(), None),
    ] {
        let mut fixture = Fixture::new(consistency, combine);
        let other = fixture.waiting_push();
        let mut queued = fixture.submit(op, &[]);
        assert_eq!(fixture.waits_for(&mut queued), expected, "{consistency}, {combine:?}");
        let Some(waits_for) = expected else { continue };
        fixture.schedule.put(queued, waits_for);
        fixture.finish(other);
        let released = fixture.schedule.take_ready().expect("the push");
        fixture.schedule.started(TABLE, released.ticket);
        let mut queued = fixture.schedule.take_ready().expect("the read behind it");
        assert_eq!(fixture.waits_for(&mut queued), None);
    }
}

#[test]
fn schedule_keeps_a_read_behind_the_parts_that_wait_for_bandwidth_before_it() {
    // (the rule, whether the read is the second half of a push_pull, whether it waits)
    for (consistency, own, waits) in [
        (Consistency::slack(0), false, true),
        (Consistency::Unbounded, false, false),
        (Consistency::Unbounded, true, true),
    ] {
        let mut fixture = Fixture::new(consistency, Combine::Each);
        fixture.link.bound(Time(0), Bandwidth::from_bytes_per_second(1000));
        let last = fixture.paced_part();
        let mut queued = QueuedOperation { own, ..fixture.submit(pull(), &[]) };
        let expected = waits.then_some(WaitsFor::Bandwidth(last));
        assert_eq!(fixture.waits_for(&mut queued), expected, "{consistency}, own: {own}");
        // A part that is made later does not hold it back.
        fixture.paced_part();
        assert_eq!(fixture.waits_for(&mut queued), expected, "{consistency}, own: {own}");
    }
}

#[test]
fn schedule_delays_an_operation_until_the_operations_before_its_delay_are_finished() {
    let mut fixture = Fixture::new(Consistency::Delay { tau: 1 }, Combine::Each);
    let [first, second] = [(); 2].map(|()| fixture.submit(push(), &[]));
    let [mut third, mut fourth] = [pull(), push()].map(|op| fixture.submit(op, &[]));
    assert_eq!(fixture.waits_for(&mut third), Some(WaitsFor::Delay(3)));
    assert_eq!(fixture.waits_for(&mut fourth), Some(WaitsFor::Delay(4)));
    fixture.schedule.put(third, WaitsFor::Delay(3));
    fixture.schedule.put(fourth, WaitsFor::Delay(4));
    fixture.finish(second.ticket);
    assert!(!fixture.schedule.has_ready(), "the first is not finished");
    fixture.finish(first.ticket);
    let released: Vec<_> = std::iter::from_fn(|| fixture.schedule.take_ready()).collect();
    assert_eq!(released.len(), 2, "the third is the oldest now, and the fourth is one behind it");
    let setting = types::Setting::Rate(0.5);
    assert_eq!(fixture.schedule.submit(TABLE, &fixture.spec, Op::Tune { setting }.access()), None, "not delayed");
}

#[test]
fn schedule_holds_pushes_back_until_shards_take_them() {
    let mut fixture = Fixture::new(Consistency::slack(9), Combine::Clock(Reduce::Sum));
    fixture.may_push = false;
    let mut read = fixture.submit(pull(), &[]);
    assert_eq!(fixture.waits_for(&mut read), None, "a read does not wait for the frontier");
    let mut queued = fixture.submit(push(), &[]);
    assert_eq!(fixture.waits_for(&mut queued), Some(WaitsFor::Frontier));
    fixture.schedule.put(queued, WaitsFor::Frontier);
    // (the table whose shards told their frontier, whether they take pushes, whether it is
    // released)
    for (table, may_push, released) in [(TABLE, false, false), (TableId(2), true, false), (TABLE, true, true)] {
        fixture.schedule.frontier_moved(table, || may_push);
        assert_eq!(fixture.schedule.has_ready(), released, "{table:?}, {may_push}");
    }
    // (a worker's clock, the frontier that its push needs)
    for (clock, needed) in [(0, 0), (HELD_CLOCKS - 1, 0), (HELD_CLOCKS, 1), (HELD_CLOCKS + 8, 9)] {
        assert_eq!(frontier_for_push(Clock(clock)), Clock(needed), "at clock {clock}");
    }
}

#[test]
fn schedule_is_flushed_when_nothing_waits_and_no_push_is_being_handed_over() {
    let mut fixture = Fixture::new(Consistency::Unbounded, Combine::Each);
    assert!(fixture.schedule.is_flushed() && !fixture.schedule.end(TicketId(5)), "no such push");
    fixture.schedule.begin(TicketId(5), TABLE);
    assert!(fixture.schedule.is_idle() && !fixture.schedule.is_flushed());
    let begun = [(5, TABLE), (6, TABLE), (5, TableId(2))]
        .map(|(ticket, table)| fixture.schedule.has_begun(TicketId(ticket), table));
    assert_eq!(begun, [true, false, false]);
    assert!(fixture.schedule.end(TicketId(5)) && fixture.schedule.is_flushed());
    fixture.waiting_push();
    assert!(!fixture.schedule.is_idle() && !fixture.schedule.is_flushed() && fixture.schedule.bytes() > 0);
}
