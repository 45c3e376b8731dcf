//! The frontier moves: clocks that it has passed are applied, and followers and readers are told.

use crate::intake::clocks::ClockOutcome;
use crate::shard::{AnyShard, Shard};
use types::{Clock, WorkerId};
use update::Number;
use wire::Outbox;

impl<T: Number> Shard<T> {
    /// The announced frontier: the one that the tail holds, which workers are told. The rows here
    /// may hold later clocks.
    pub(super) fn announced(&self) -> Clock {
        self.followers.replicas.announced(self.clocks.frontier())
    }

    /// Whether the rows may be shown at the announced frontier. In a `clock` table, rows must hold
    /// no later clock; in an `each` table, they always may.
    pub(super) fn is_exact(&self) -> bool {
        !self.spec.combine.holds_clocks() || self.announced() == self.clocks.frontier()
    }

    /// A worker has moved the frontier.
    pub(super) fn frontier_moved(&mut self, by: WorkerId, out: &mut Outbox) {
        let frontier = self.clocks.frontier();
        if let Some(clock) = self.checkpoint.copies_at(frontier) {
            // The frontier may have passed several clocks at once: later ones are applied after the
            // copy.
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

    /// Applies every held clock before `end`.
    pub(super) fn apply_before(&mut self, end: Clock) {
        self.leases.apply_before(end);
        while let Some(ended) = self.clocks.pop_before(end) {
            match ended.outcome {
                ClockOutcome::Apply { slots, values } => {
                    self.rows.end_clock(ended.clock, true);
                    self.rows.count_examples(ended.examples);
                    self.rows.apply_clock(ended.clock, &slots, values);
                    // They may have slots that rows have left since.
                    let forwarding = self.rows.forwarding();
                    let now = |slot| forwarding.and_then(|forwarding| forwarding.of(slot)).unwrap_or(slot);
                    self.followers.changed(ended.changes.iter().map(|(position, slot)| (position, now(slot))));
                    self.remove(&ended.removals);
                }
                ClockOutcome::Failed => {
                    self.rows.end_clock(ended.clock, false);
                    self.counts.failed_clocks += 1;
                }
            }
        }
        // Examples of clocks without contributions to this shard count too.
        let others = self.clocks.take_other_examples(end);
        self.rows.count_examples(others);
    }

    /// Tells workers the announced frontier, if it is news.
    pub(super) fn announce(&mut self, out: &mut Outbox) {
        if !AnyShard::is_head(self) || !self.serving.may_answer() {
            return;
        }
        let announced = self.announced();
        let exact = self.is_exact();
        if self.serving.is_news(announced, exact) {
            self.serving.told(announced, exact);
            self.tell(self.followers.replicas.moved_by(), out);
        }
    }

    /// Publishes the announced frontier to followers, and answers the parked reads that it admits.
    /// `by`: the worker that moved it.
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
