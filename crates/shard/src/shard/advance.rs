//! The frontier moves: clocks that it has passed are applied, and followers and readers are told.

use crate::intake::clocks::ClockOutcome;
use crate::shard::{AnyShard, Shard};
use types::{Clock, Combine, WorkerId};
use update::Number;
use wire::Outbox;

impl<T: Number> Shard<T> {
    /// The frontier that workers are told of: what the tail holds. Rows may hold more.
    pub(super) fn announced(&self) -> Clock {
        self.followers.replicas.announced(self.clocks.frontier())
    }

    /// Whether rows are those of the announced frontier and of no later one, where the table
    /// promises that.
    pub(super) fn is_exact(&self) -> bool {
        self.spec.combine == Combine::Each || self.announced() == self.clocks.frontier()
    }

    /// A worker has moved the frontier.
    pub(super) fn frontier_moved(&mut self, by: WorkerId, out: &mut Outbox) {
        let frontier = self.clocks.frontier();
        if let Some(clock) = self.checkpoint.copies_at(frontier) {
            // Nothing of later clocks: the frontier may have come by several at once.
            self.apply_before(clock);
            self.copy();
        }
        self.apply_before(frontier);
        self.clocks.forget_settings();
        self.rows.forget_settings(frontier);
        self.followers.replicas.note_progress(self.now);
        if !self.followers.replicas.frontier_moved(by) {
            self.serving.told_frontier(frontier);
            self.tell(Some(by), out);
        }
    }

    /// Applies every clock before this one that is held.
    pub(super) fn apply_before(&mut self, end: Clock) {
        self.leases.apply_before(end);
        while let Some(ended) = self.clocks.pop_before(end) {
            match ended.outcome {
                ClockOutcome::Apply { slots, values } => {
                    self.rows.end_clock(ended.clock, true);
                    self.rows.count_examples(ended.examples);
                    self.rows.apply_clock(ended.clock, &slots, values);
                    self.followers.changed(ended.changes.iter());
                    self.remove(&ended.removals);
                }
                ClockOutcome::Failed => {
                    self.rows.end_clock(ended.clock, false);
                    self.counts.failed_clocks += 1;
                }
            }
        }
        // A clock in which nobody touched this shard still saw its examples.
        let others = self.clocks.take_other_examples(end);
        self.rows.count_examples(others);
    }

    /// Workers are told of the frontier that the tail holds, if it is a new one.
    pub(super) fn announce(&mut self, out: &mut Outbox) {
        if !AnyShard::is_head(self) || !self.serving.may_answer() {
            return;
        }
        let (announced, exact) = (self.announced(), self.is_exact());
        if self.serving.is_news(announced, exact) {
            self.serving.told(announced, exact);
            self.tell(self.followers.replicas.moved_by(), out);
        }
    }

    /// Tells followers and parked reads of the frontier that workers may know of.
    pub(super) fn tell(&mut self, by: Option<WorkerId>, out: &mut Outbox) {
        if !self.serving.may_answer() {
            return;
        }
        let announced = self.announced();
        if self.is_exact() {
            let (view, followers) = self.view_and_followers();
            let refreshes = followers.publish(announced, &view, out);
            self.counts.refreshes += refreshes;
        }
        for read in self.reads.take_admitted(announced) {
            self.try_read(read, by, out);
        }
    }
}
