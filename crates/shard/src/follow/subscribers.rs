//! Eager refresh: which worker reads which rows, and the numbered messages that bring it changed
//! rows. When the frontier moves, the shard sends each subscriber its rows that the change log says
//! have changed since the previous move.

use crate::changes::ChangeLog;
use crate::rows::slot::Move;
use crate::rows::slot_set::SlotSet;
use crate::view::{Row, ShardView};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, PART_BYTES, PlanNumber, WorkerId};
use update::{ABSENT, Number};
use wire::{ChangeChunk, Frame, Message, Outbox, Refresh};

/// Refreshes that may be under way to a subscriber. One that falls further behind loses its
/// subscription: it never blocks the shard.
const MAX_UNRECEIVED: usize = 8;

/// One worker's subscription.
#[derive(Debug)]
struct Subscription {
    /// Slots of the rows that the worker has read.
    rows: SlotSet,
    /// How many keys without a row it watches.
    absent: u64,
    /// Tells this subscription from an earlier one that was lost.
    sequence: u64,
    /// The batch of the change log up to which refreshes were sent.
    number: u64,
    /// For each refresh that the worker has not received whole: the last batch that it covers.
    unreceived: VecDeque<u64>,
    /// The frontier that the last refresh brought the cached rows to.
    frontier: Clock,
}

impl Subscription {
    /// The next message of a refresh. With the last one, the cached rows reach `frontier`.
    fn next_refresh<T: Number>(
        &mut self,
        rows: &[Row],
        changes: ChangeChunk,
        frontier: Clock,
        worker: WorkerId,
        view: &ShardView<'_, T>,
    ) -> Refresh {
        let from = self.frontier;
        if changes.ends {
            self.number = changes.to;
            self.frontier = frontier;
            self.unreceived.push_back(changes.to);
        }
        let (positions, slots): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
        Refresh {
            table: view.identity.table,
            shard: view.identity.shard(),
            sequence: self.sequence,
            changes,
            from,
            failed: view.clocks.failed().filter(|failed| failed.clock >= from).cloned().collect(),
            contains: view.streams.finished(worker),
            positions: view.pool.copy(&positions),
            values: view.values(&positions, &slots, frontier),
        }
    }
}

/// All subscriptions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    subscriptions: BTreeMap<WorkerId, Subscription>,
    /// Number of the last sequence that was started.
    sequences: u64,
    /// Positions without a row that workers have read, with these workers. They are told when a row
    /// is made there.
    absent: BTreeMap<u64, BTreeSet<WorkerId>>,
    /// The batch of the change log up to which all subscribers were sent refreshes.
    cursor: u64,
}

impl Subscribers {
    /// Drops all subscriptions. New sequences get numbers that no other server used for this shard.
    pub fn start_over(&mut self, plan: PlanNumber) {
        *self = Self { sequences: plan.0 << 32, ..Self::default() };
    }

    /// The batch after which subscribers need the change log.
    pub fn needs_after(&self) -> Option<u64> {
        (!self.subscriptions.is_empty()).then_some(self.cursor)
    }

    /// `worker` has read these rows, by position and slot, all of them fresh at `frontier`. `last`
    /// is the last closed batch of the change log.
    ///
    /// Returns the sequence that will keep them fresh and the batch it has reached; `None` if these
    /// are more than `most` rows. A subscription that would grow past `most` starts over with these
    /// rows.
    pub fn subscribe(
        &mut self,
        worker: WorkerId,
        frontier: Clock,
        rows: &[Row],
        most: u64,
        last: u64,
    ) -> Option<(u64, u64)> {
        if rows.len() as u64 > most {
            return None;
        }
        if self.subscriptions.is_empty() {
            self.cursor = last;
        }
        if let Some(known) = self.subscriptions.get(&worker) {
            let is_new = |(position, slot): &&Row| match *slot {
                ABSENT => !self.absent.get(position).is_some_and(|readers| readers.contains(&worker)),
                slot => !known.rows.contains(slot),
            };
            if known.rows.len() + known.absent + rows.iter().filter(is_new).count() as u64 > most {
                self.drop_worker(worker);
            }
        }
        let sequences = &mut self.sequences;
        let subscription = self.subscriptions.entry(worker).or_insert_with(|| {
            *sequences += 1;
            Subscription {
                rows: SlotSet::default(),
                absent: 0,
                sequence: *sequences,
                number: self.cursor,
                unreceived: VecDeque::new(),
                frontier,
            }
        });
        for (position, slot) in rows {
            if *slot == ABSENT {
                let is_new = self.absent.entry(*position).or_default().insert(worker);
                subscription.absent += u64::from(is_new);
            } else {
                subscription.rows.insert(*slot);
            }
        }
        Some((subscription.sequence, subscription.number))
    }

    /// Rows were removed: workers that have read them watch for a new row at the same key.
    pub fn removed(&mut self, rows: &[Row]) {
        for (worker, subscription) in &mut self.subscriptions {
            for (position, slot) in rows {
                if !subscription.rows.contains(*slot) {
                    continue;
                }
                subscription.rows.remove(*slot);
                let is_new = self.absent.entry(*position).or_default().insert(*worker);
                subscription.absent += u64::from(is_new);
            }
        }
    }

    /// A row was made: workers that have read its key watch the row from now on.
    fn made(&mut self, position: u64, slot: u32) {
        for worker in self.absent.remove(&position).into_iter().flatten() {
            if let Some(subscription) = self.subscriptions.get_mut(&worker) {
                subscription.absent -= 1;
                subscription.rows.insert(slot);
            }
        }
    }

    /// The worker has received refreshes up to batch `number`.
    pub fn received(&mut self, worker: WorkerId, sequence: u64, number: u64) {
        if let Some(subscription) = self.subscriptions.get_mut(&worker).filter(|known| known.sequence == sequence) {
            let received = subscription.unreceived.partition_point(|last| *last <= number);
            subscription.unreceived.drain(..received);
        }
    }

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        self.subscriptions.values_mut().for_each(|subscription| subscription.rows.rows_moved(moves));
    }

    /// Drops the subscription of a worker.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        if self.subscriptions.remove(&worker).is_some_and(|subscription| subscription.absent > 0) {
            self.absent.retain(|_, readers| {
                readers.remove(&worker);
                !readers.is_empty()
            });
        }
    }

    /// Rows changed, in rising order: returns which of them each subscriber reads. Drops
    /// subscribers that are too far behind.
    fn take_changes(&mut self, changed: &[Row]) -> Vec<(WorkerId, Vec<Row>)> {
        let behind = |(_, known): &(&WorkerId, &Subscription)| known.unreceived.len() >= MAX_UNRECEIVED;
        let behind: Vec<WorkerId> = self.subscriptions.iter().filter(behind).map(|(worker, _)| *worker).collect();
        behind.into_iter().for_each(|worker| self.drop_worker(worker));
        if !self.absent.is_empty() {
            let made = changed.iter().filter(|(_, slot)| *slot != ABSENT);
            made.for_each(|(position, slot)| self.made(*position, *slot));
        }
        let of = |worker: &WorkerId, subscription: &Subscription| {
            let is_its = |(position, slot): &Row| match *slot {
                ABSENT => self.absent.get(position).is_some_and(|readers| readers.contains(worker)),
                slot => subscription.rows.contains(slot),
            };
            changed.iter().copied().filter(is_its).collect()
        };
        self.subscriptions.iter().map(|(worker, subscription)| (*worker, of(worker, subscription))).collect()
    }

    /// The frontier has moved to `frontier`: sends every subscriber its changed rows, and tells it
    /// that its other rows are fresh. Returns the number of messages.
    pub fn refresh<T: Number>(
        &mut self,
        frontier: Clock,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> u64 {
        if self.subscriptions.is_empty() {
            return 0;
        }
        let last = log.close();
        let changes = log.since(self.cursor);
        let slots = view.slots(&changes.rows);
        let changed: Vec<Row> = changes.rows.iter().copied().zip(slots).collect();
        self.cursor = last;
        let rows_per_part = (PART_BYTES / (view.rows.width() * size_of::<T>() + 8)).max(1);
        let mut messages = 0;
        for (worker, rows) in self.take_changes(&changed) {
            let Some(subscription) = self.subscriptions.get_mut(&worker) else { continue };
            let pieces = rows.len().div_ceil(rows_per_part).max(1);
            for piece in 0..pieces {
                let rows = &rows[piece * rows_per_part..rows.len().min((piece + 1) * rows_per_part)];
                let ends = piece + 1 == pieces;
                let changes = ChangeChunk { from: subscription.number, to: last, chunk: piece as u32, ends };
                let refresh = subscription.next_refresh(rows, changes, frontier, worker, view);
                let head = view.head_to(worker, subscription.frontier);
                out.send(Frame { head, message: Message::Refresh(refresh) });
                messages += 1;
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriber_is_sent_only_its_own_rows() {
        let mut subscribers = Subscribers::default();
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 1), (20, 2)], 10, 0), Some((1, 0)));
        assert_eq!(subscribers.subscribe(WorkerId(1), Clock(0), &[(20, 2), (30, 3)], 10, 0), Some((2, 0)));
        let changes = subscribers.take_changes(&[(10, 1), (20, 2), (40, 4)]);
        assert_eq!(changes, [(WorkerId(0), vec![(10, 1), (20, 2)]), (WorkerId(1), vec![(20, 2)])]);
        assert!(subscribers.take_changes(&[]).iter().all(|(_, rows)| rows.is_empty()));
    }

    #[test]
    fn subscriber_that_falls_behind_is_dropped_and_starts_a_new_sequence() {
        let mut subscribers = Subscribers::default();
        subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 1)], 10, 0);
        for number in 1..=MAX_UNRECEIVED as u64 {
            assert_eq!(subscribers.take_changes(&[]).len(), 1);
            let subscription = subscribers.subscriptions.get_mut(&WorkerId(0)).expect("subscribed");
            subscription.unreceived.push_back(number);
        }
        assert!(subscribers.take_changes(&[]).is_empty());
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 1)], 10, 0), Some((2, 0)));
    }

    fn rows(slots: std::ops::Range<u32>) -> Vec<Row> {
        slots.map(|slot| (u64::from(slot), slot)).collect()
    }

    #[test]
    fn subscriber_watches_a_key_without_a_row_until_the_row_is_made() {
        let mut subscribers = Subscribers::default();
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 1), (20, ABSENT)], 2, 0), Some((1, 0)));
        assert_eq!(
            subscribers.subscribe(WorkerId(0), Clock(0), &[(20, ABSENT)], 2, 0),
            Some((1, 0)),
            "watched already"
        );
        assert_eq!(subscribers.take_changes(&[(15, 2), (20, 3)]), [(WorkerId(0), vec![(20, 3)])], "its row is made");
        assert_eq!(subscribers.take_changes(&[(20, 3)]), [(WorkerId(0), vec![(20, 3)])], "and changes");
        assert!(subscribers.absent.is_empty());
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &[(30, ABSENT)], 2, 0), Some((2, 0)), "one too many");
        subscribers.drop_worker(WorkerId(0));
        assert!(subscribers.absent.is_empty(), "a dropped worker watches no keys");
    }

    #[test]
    fn subscribers_follow_rows_that_move() {
        const NEW: u32 = 1 << 31;
        let mut subscribers = Subscribers::default();
        subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 0), (20, 1)], 10, 0);
        subscribers.rows_moved(&[Move { from: 1, to: NEW }, Move { from: 2, to: NEW + 1 }]);
        let changed = [(10, 0), (15, 1), (20, NEW), (30, NEW + 1)];
        assert_eq!(subscribers.take_changes(&changed), [(WorkerId(0), vec![(10, 0), (20, NEW)])]);
    }

    #[test]
    fn subscribers_are_told_of_rows_that_are_removed_and_made_again() {
        let mut subscribers = Subscribers::default();
        subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 0), (20, 1)], 2, 0);
        subscribers.subscribe(WorkerId(1), Clock(0), &[(20, 1)], 2, 0);
        subscribers.removed(&[(10, 0), (30, 2)]);
        let changes = subscribers.take_changes(&[(10, ABSENT), (30, ABSENT), (40, 0)]);
        assert_eq!(
            changes,
            [(WorkerId(0), vec![(10, ABSENT)]), (WorkerId(1), vec![])],
            "slot 0 belongs to another row now"
        );
        let changes = subscribers.take_changes(&[(10, 7)]);
        assert_eq!(changes, [(WorkerId(0), vec![(10, 7)]), (WorkerId(1), vec![])]);
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &[(10, 7)], 2, 0), Some((1, 0)), "within its bound");
    }

    #[test]
    fn subscription_past_its_bound_starts_over() {
        let mut subscribers = Subscribers::default();
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &rows(0..3), 3, 0), Some((1, 0)));
        assert_eq!(
            subscribers.subscribe(WorkerId(0), Clock(0), &rows(1..3), 3, 0),
            Some((1, 0)),
            "rows that it reads already do not count again"
        );
        assert_eq!(
            subscribers.subscribe(WorkerId(0), Clock(0), &rows(2..4), 3, 0),
            Some((2, 0)),
            "one row too many starts over"
        );
        assert_eq!(subscribers.subscribe(WorkerId(0), Clock(0), &rows(0..4), 3, 0), None, "too many at once");
    }
}
