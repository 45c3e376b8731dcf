//! Tasks that wait for something, each filed under what it waits for: an event looks at the tasks it lets go, and at no
//! other.

use super::TicketId;
use super::tasks::Queued;
use std::collections::{BTreeMap, BTreeSet};
use types::TableId;

/// What a task waits for first. It may wait for something else next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// A ticket that it was to run after.
    Ticket(TicketId),
    /// Earlier pushes of this worker to the table, which a read must follow and which wait themselves.
    OwnPushes,
    /// Parts of them that wait for bandwidth: the last one made before it.
    Held(u64),
    /// Earlier tasks on a table with a delay: its own place among them.
    Delay(u64),
    /// A push to a table whose contributions meet by clock: its shards hold enough clocks apart.
    Room,
}

/// The tasks that wait.
#[derive(Default)]
pub(super) struct Queue {
    tasks: BTreeMap<TicketId, Queued>,
    bytes: usize,
    /// Those whose obstacle is gone, to be looked at again.
    ready: BTreeSet<TicketId>,
    by_ticket: BTreeMap<TicketId, Vec<TicketId>>,
    behind_own: BTreeSet<(TableId, TicketId)>,
    behind_held: BTreeSet<(TableId, u64, TicketId)>,
    by_place: BTreeMap<(TableId, u64), TicketId>,
    crowded: BTreeSet<(TableId, TicketId)>,
    /// Pushes among the tasks.
    pushes: BTreeSet<(TableId, TicketId)>,
    /// Tasks looked at again, to see that this grows with the tasks and not with their square.
    #[cfg(test)]
    pub looks: usize,
}

impl Queue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// What the waiting tasks hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a push to `table` that was asked for before `ticket` waits.
    pub fn has_push_before(&self, table: TableId, ticket: TicketId) -> bool {
        self.pushes.range((table, TicketId(0))..(table, ticket)).next().is_some()
    }

    /// A task waits.
    pub fn put(&mut self, queued: Queued, obstacle: Obstacle) {
        let (table, ticket) = (queued.table, queued.ticket);
        match obstacle {
            Obstacle::Ticket(after) => self.by_ticket.entry(after).or_default().push(ticket),
            Obstacle::OwnPushes => {
                self.behind_own.insert((table, ticket));
            }
            Obstacle::Held(last) => {
                self.behind_held.insert((table, last, ticket));
            }
            Obstacle::Delay(place) => {
                self.by_place.insert((table, place), ticket);
            }
            Obstacle::Room => {
                self.crowded.insert((table, ticket));
            }
        }
        self.bytes += queued.task.cost();
        if queued.task.is_push() {
            self.pushes.insert((table, ticket));
        }
        self.tasks.insert(ticket, queued);
    }

    /// The next task whose obstacle is gone. It is put back if there is another.
    pub fn take_ready(&mut self) -> Option<Queued> {
        let queued = self.tasks.remove(&self.ready.pop_first()?)?;
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.bytes -= queued.task.cost();
        Some(queued)
    }

    /// A task that was taken has started.
    pub fn started(&mut self, table: TableId, ticket: TicketId) {
        if !self.pushes.remove(&(table, ticket)) {
            return;
        }
        if self.has_push_before(table, ticket) {
            return;
        }
        let first = self.pushes.range((table, ticket)..=(table, TicketId(u64::MAX))).next();
        let until = first.map_or(TicketId(u64::MAX), |(_, first)| *first);
        let free: Vec<_> = self.behind_own.range((table, TicketId(0))..=(table, until)).copied().collect();
        for name in free {
            self.behind_own.remove(&name);
            self.ready.insert(name.1);
        }
    }

    /// Parts of pushes have gone: this is the first one of the table that still waits for bandwidth.
    pub fn gone(&mut self, table: TableId, first: Option<u64>) {
        let until = (table, first.unwrap_or(u64::MAX), TicketId(0));
        while let Some(&name) = self.behind_held.range((table, 0, TicketId(0))..until).next() {
            self.behind_held.remove(&name);
            self.ready.insert(name.2);
        }
    }

    /// Whether an obstacle has gone since tasks were last looked at.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A ticket is finished.
    pub fn finished(&mut self, ticket: TicketId) {
        self.ready.extend(self.by_ticket.remove(&ticket).into_iter().flatten());
    }

    /// The tasks of a table with a delay may start as far as this place.
    pub fn reached(&mut self, table: TableId, place: u64) {
        while let Some((&name, &ticket)) = self.by_place.range((table, 0)..=(table, place)).next() {
            self.by_place.remove(&name);
            self.ready.insert(ticket);
        }
    }

    /// Whether a push waits for room.
    pub fn is_crowded(&self) -> bool {
        !self.crowded.is_empty()
    }

    /// The shards of a table hold contributions of this clock.
    pub fn has_room(&mut self, table: TableId) {
        while let Some(&name) = self.crowded.range((table, TicketId(0))..=(table, TicketId(u64::MAX))).next() {
            self.crowded.remove(&name);
            self.ready.insert(name.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, PullTarget, Values, Worker, WorkerSettings};
    use super::*;
    use types::{Consistency, NodeId, NumberType, Plan, ShardId, Source, TableSpec, Time, WorkerId};
    use wire::Outbox;
    use wire::{Acked, Control, Frame, Head, Keys, Message, Payload};

    const TABLE: TableId = TableId(0);

    fn worker(consistency: Consistency) -> Worker {
        let plan = Plan::first(1, vec![Source(1)]);
        let mut worker = Worker::new(WorkerId(0), Source(1), plan, WorkerSettings::default());
        let mut out = Outbox::new();
        worker.make_table(TableSpec::dense("t", 1, 1).consistency(consistency), &mut out);
        let made = Control::TableMade { table: TABLE, name: "t".into() };
        let head = Head::plain(NodeId::Coordinator, NodeId::Worker(0));
        worker.handle(Time(0), Frame { head, message: Message::Control(made) }, &mut out);
        worker
    }

    fn push(worker: &mut Worker, after: &[TicketId], out: &mut Outbox) -> TicketId {
        let values = Values { number: NumberType::F32, bytes: Payload::new(vec![1.0f32]) };
        let batch = Batch { keys: Keys::run(0..1), values, examples: 1, lease: None };
        worker.push(Time(0), TABLE, batch, after, out).expect("fits")
    }

    fn pull(worker: &mut Worker, out: &mut Outbox) -> TicketId {
        worker.pull(Time(0), TABLE, Keys::run(0..1), PullTarget::F32(vec![0.0]), &[], out).expect("fits")
    }

    fn acknowledge(worker: &mut Worker, through: u64, out: &mut Outbox) {
        let acked = Acked { table: TABLE, shard: ShardId(0), through, refused: Vec::new() };
        let head = Head { source: Source(1), ..Head::plain(NodeId::Server(0), NodeId::Worker(0)) };
        worker.handle(Time(0), Frame { head, message: Message::Acked(acked) }, out);
    }

    fn sent(out: &mut Outbox) -> (usize, usize) {
        let frames: Vec<_> = out.drain().collect();
        let pulls = frames.iter().filter(|frame| matches!(frame.message, Message::Pull(_))).count();
        (frames.len() - pulls, pulls)
    }

    /// Many tasks that wait, let go one by one: each is looked at a few times, however many others there are.
    #[test]
    fn what_waits_is_looked_at_only_when_it_may_go() {
        const MANY: usize = 2_000;
        let bounded = Consistency::slack(0);
        // (how each task waits, the rule, whether it names the task before it or the first)
        for (what, rule, chained) in [
            ("each after the one before", bounded, true),
            ("all after the first", bounded, false),
            ("delay 0", Consistency::Delay { tau: 0 }, false),
        ] {
            let mut worker = worker(rule);
            let mut out = Outbox::new();
            let first = push(&mut worker, &[], &mut out);
            let mut before = first;
            for _ in 1..MANY {
                before = push(&mut worker, &[if chained { before } else { first }], &mut out);
            }
            assert_eq!(sent(&mut out), (1, 0), "{what}: the others wait");
            let mut pushes = 1;
            for through in 1..=MANY as u64 {
                acknowledge(&mut worker, through, &mut out);
                pushes += sent(&mut out).0;
            }
            assert_eq!(pushes, MANY, "{what}: all are sent");
            assert!(worker.is_idle() && worker.queue.bytes() == 0, "{what}");
            assert!(worker.queue.looks <= 2 * MANY, "{what}: {} looks at {MANY} tasks", worker.queue.looks);
        }
    }

    #[test]
    fn a_read_follows_own_pushes_that_wait_and_no_later_ones() {
        let mut worker = worker(Consistency::slack(0));
        let mut out = Outbox::new();
        let first = push(&mut worker, &[], &mut out);
        let second = push(&mut worker, &[first], &mut out);
        pull(&mut worker, &mut out);
        push(&mut worker, &[second], &mut out);
        pull(&mut worker, &mut out);
        assert_eq!(sent(&mut out), (1, 0));
        acknowledge(&mut worker, 1, &mut out);
        assert_eq!(sent(&mut out), (1, 1), "the second push, and the read behind it");
        acknowledge(&mut worker, 2, &mut out);
        assert_eq!(sent(&mut out), (1, 1));
        assert_eq!(worker.queue.looks, 4);
    }
}
