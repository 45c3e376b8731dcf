//! The clocks of one shard: its frontier, and what it holds for open clocks, which the frontier has
//! not passed.
//!
//! Every table has a frontier. A `clock` table also holds, for each open clock:
//! - the sum of its contributions,
//! - the examples they were computed from,
//! - the positions of the rows that the clock will change or remove.
//!
//! When the frontier passes a clock, [`Clocks::pop_before`] hands all of that out once.

use crate::changes::changed_rows::ChangedRows;
use crate::intake::combine::{Combination, HeldClock};
use crate::intake::frontier::Frontier;
use crate::rows::slot::{BySlot, Forwarding, Move, SlotCounts};
use crate::view::Row;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, Combine, HELD_CLOCKS, WorkerId};
use update::Number;
use wire::{FailedClock, Refusal, Writes};

/// For at most this many clocks from the frontier on, a shard keeps settings.
const SETTINGS: usize = 1024;
/// How many failed clocks a shard remembers for its readers.
const FAILED_CLOCKS: usize = 64;

/// The frontier, and what is held for the clocks from it on.
pub(crate) struct Clocks<T> {
    combine: Combine,
    frontier: Frontier,
    /// Sums of held clocks, or why the clock failed.
    held: BTreeMap<Clock, HeldClock<T>>,
    /// Examples of clocks that are not applied yet.
    examples: BTreeMap<Clock, u64>,
    /// Positions whose rows are removed once a held clock is applied.
    removals: BTreeMap<Clock, BTreeSet<u64>>,
    /// Positions and slots of the rows that each held clock will change, if followers need them.
    changes: BTreeMap<Clock, ChangedRows>,
    /// Clocks, from the frontier on, at which a setting changes.
    settings: BTreeSet<Clock>,
    /// The last clocks that failed.
    failed: VecDeque<FailedClock>,
}

/// What to do with a contribution.
pub(crate) enum Contribution<'a, T> {
    /// Apply it at once.
    Apply,
    /// Add it to this sum, which is held for its clock.
    Hold(&'a mut Combination<T>),
    /// Drop it: its clock has failed.
    Drop,
}

/// Everything that was held for a clock, when the frontier passes it.
pub(crate) struct EndedClock<T> {
    /// The clock.
    pub clock: Clock,
    /// The result of its contributions.
    pub outcome: ClockOutcome<T>,
    /// The rows that it changes, if followers need them.
    pub changes: ChangedRows,
    /// Positions, rising, whose rows are removed after its contributions are applied.
    pub removals: Vec<u64>,
    /// The examples that its contributions were computed from.
    pub examples: u64,
}

/// The result of a clock's contributions.
pub(crate) enum ClockOutcome<T> {
    /// Update each of these rows once, with the row of `values` at its index.
    Apply {
        /// The rows.
        slots: Vec<u32>,
        /// Their combined contributions, row after row.
        values: Vec<T>,
    },
    /// A contribution was refused, so nothing is applied.
    Failed,
}

/// The part of the shard metadata that [`Clocks`] fills: everything but the sums themselves.
pub(crate) struct SavedClocks {
    /// The frontier, with the clock of every worker.
    pub frontier: Frontier,
    /// Clocks of which sums are held.
    pub held: Vec<Clock>,
    /// Held clocks that have failed.
    pub failing: Vec<FailedClock>,
    /// Examples of held clocks.
    pub examples: Vec<(Clock, u64)>,
    /// Clocks at which a setting changes.
    pub settings: Vec<Clock>,
    /// The last clocks that failed.
    pub failed: Vec<FailedClock>,
}

impl<T: Number> Clocks<T> {
    /// Nothing held; all present workers at clock 0. `present`: by rank.
    pub fn new(combine: Combine, present: impl Iterator<Item = bool>) -> Self {
        Self {
            combine,
            frontier: Frontier::new(present),
            held: BTreeMap::new(),
            examples: BTreeMap::new(),
            removals: BTreeMap::new(),
            changes: BTreeMap::new(),
            settings: BTreeSet::new(),
            failed: VecDeque::new(),
        }
    }

    /// The frontier: every live worker's updates in the clocks below it are applied.
    pub fn frontier(&self) -> Clock {
        self.frontier.value()
    }

    /// The live workers that the frontier waits for, at most `most` of them.
    pub fn slowest(&self, most: usize) -> Vec<WorkerId> {
        self.frontier.slowest(most)
    }

    /// A worker, which took part from clock `since` on, has ended clock `ended`. Returns whether
    /// the frontier moved.
    pub fn advance(&mut self, worker: WorkerId, ended: Clock, since: Clock) -> bool {
        self.frontier.advance(worker, ended, since)
    }

    /// The frontier waits for a new incarnation of the worker.
    pub fn enter(&mut self, worker: WorkerId) {
        self.frontier.enter(worker);
    }

    /// The frontier waits no longer for the worker. Returns whether it moved.
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        self.frontier.leave(worker)
    }

    /// Refuses, in a `clock` table, what cannot be held: a write whose clock is not the worker's
    /// present one or is too far ahead, and rows that are set. Contributions are held apart, so
    /// there is no moment at which to set a row.
    pub fn check(&self, worker: WorkerId, clock: Clock, writes: Writes) -> Result<(), Refusal> {
        if !self.combine.holds_clocks() {
            return Ok(());
        }
        if self.frontier.clock(worker) != Some(clock) {
            return Err(Refusal::PastClock);
        }
        if clock >= self.end_of_held() {
            return Err(Refusal::FarAhead { most: HELD_CLOCKS });
        }
        match writes {
            Writes::Rows => Err(Refusal::SetByClock),
            Writes::Gradients { .. } | Writes::Nothing => Ok(()),
        }
    }

    /// The first clock that is too far ahead to be held.
    fn end_of_held(&self) -> Clock {
        Clock(self.frontier.value().0.saturating_add(HELD_CLOCKS))
    }

    /// Whether a clock is open: its contributions are held.
    pub fn is_open(&self, clock: Clock) -> bool {
        self.combine.holds_clocks() && clock >= self.frontier.value()
    }

    /// Takes the examples of a push or a marker. Returns those that count now: all in an `each`
    /// table, none in a `clock` table, which holds them until their clock is applied. Examples of a
    /// clock that is too far ahead to be held count with the first such clock.
    pub fn count_examples(&mut self, clock: Clock, examples: u64) -> u64 {
        if !self.combine.holds_clocks() {
            return examples;
        }
        let held = self.examples.entry(clock.min(self.end_of_held())).or_default();
        *held = held.saturating_add(examples);
        0
    }

    /// What to do with a contribution to a clock. If it is to be held and the clock has no sum yet,
    /// makes one in memory that `spare` gives.
    pub fn contribution(&mut self, clock: Clock, spare: impl FnOnce() -> Vec<T>) -> Contribution<'_, T> {
        if !self.combine.holds_clocks() {
            return Contribution::Apply;
        }
        self.sum(clock, spare).map_or(Contribution::Drop, Contribution::Hold)
    }

    /// The sum of a clock. Makes one in memory that `spare` gives, if there is none. `None` if the
    /// clock has failed.
    pub fn sum(&mut self, clock: Clock, spare: impl FnOnce() -> Vec<T>) -> Option<&mut Combination<T>> {
        match self.held.entry(clock).or_insert_with(|| HeldClock::Sum(Combination::new(spare()))) {
            HeldClock::Sum(sum) => Some(sum),
            HeldClock::Failed(_) => None,
        }
    }

    /// Holds the removal of the rows at these positions until the clock is applied. Does nothing if
    /// the clock has failed.
    pub fn hold_removal(&mut self, clock: Clock, positions: impl Iterator<Item = u64>) {
        // Making the sum makes the clock a held one, even if no worker contributes to it.
        if self.sum(clock, Vec::new).is_some() {
            self.removals.entry(clock).or_default().extend(positions);
        }
    }

    /// In a `clock` table, holds the removal of the rows at these positions and returns true. In an
    /// `each` table, returns false: the caller removes the rows at once.
    pub fn takes_removal(&mut self, clock: Clock, positions: &[u64]) -> bool {
        let holds = self.combine.holds_clocks();
        if holds {
            self.hold_removal(clock, positions.iter().copied());
        }
        holds
    }

    /// Whether the row at a position is removed once the clock is applied.
    pub fn removes(&self, clock: Clock, position: u64) -> bool {
        self.removals.get(&clock).is_some_and(|positions| positions.contains(&position))
    }

    /// Notes that a held clock will change these rows.
    pub fn will_change(&mut self, clock: Clock, rows: impl Iterator<Item = Row>) {
        self.changes.entry(clock).or_default().extend(rows);
    }

    /// Notes the rows of every held sum as rows that will change. `positions` gives the position of
    /// each slot.
    pub fn name_changes(&mut self, positions: impl FnOnce() -> BySlot<u64>) {
        if self.held.is_empty() {
            return;
        }
        let positions = positions();
        for (clock, held) in &self.held {
            if let HeldClock::Sum(sum) = held {
                let rows = sum.slots().iter().filter_map(|slot| Some((positions.get(*slot)?, *slot)));
                self.changes.entry(*clock).or_default().extend(rows);
            }
        }
    }

    /// A worker's write was refused. In a `clock` table, a refused contribution fails its clock for
    /// all workers. Some refusals do not: of parts whose clock is wrong or not held, of leases
    /// without room, and of writes that are no contribution.
    pub fn refused(&mut self, worker: WorkerId, clock: Clock, refusal: &Refusal) {
        let is_harmless = matches!(
            refusal,
            Refusal::PastClock
                | Refusal::FarAhead { .. }
                | Refusal::TooManyLeases { .. }
                | Refusal::SetByClock
                | Refusal::Dense
        );
        if self.combine.holds_clocks() && !is_harmless {
            self.fail(FailedClock { clock, worker, refusal: refusal.clone() });
        }
    }

    /// The clock fails for all workers.
    fn fail(&mut self, failed: FailedClock) {
        self.removals.remove(&failed.clock);
        self.held.insert(failed.clock, HeldClock::Failed(failed));
    }

    /// The last clocks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &FailedClock> {
        self.failed.iter()
    }

    /// The first clock before `end` that is still held, with everything held for it.
    pub fn pop_before(&mut self, end: Clock) -> Option<EndedClock<T>> {
        let entry = self.held.first_entry().filter(|entry| *entry.key() < end)?;
        let (clock, held) = entry.remove_entry();
        let examples = self.examples.remove(&clock).unwrap_or(0);
        let changes = self.changes.remove(&clock).unwrap_or_default();
        let removals = self.removals.remove(&clock).unwrap_or_default().into_iter().collect();
        let outcome = match (held, self.combine) {
            (HeldClock::Sum(sum), Combine::Clock(reduce)) => {
                // At the end of a run, a clock may have contributions though no worker ended it.
                let (slots, values) = sum.finish(reduce, self.frontier.ended(clock).max(1));
                ClockOutcome::Apply { slots, values }
            }
            // An `each` table holds no sums of its own: another server sent one in error.
            (HeldClock::Sum(_), Combine::Each) => ClockOutcome::Failed,
            (HeldClock::Failed(failed), _) => {
                self.failed.push_back(failed);
                if self.failed.len() > FAILED_CLOCKS {
                    self.failed.pop_front();
                }
                ClockOutcome::Failed
            }
        };
        Some(EndedClock { clock, outcome, changes, removals, examples })
    }

    /// Takes the examples that are left for clocks before `end`: no worker contributed to this
    /// shard in those clocks.
    pub fn take_other_examples(&mut self, end: Clock) -> u64 {
        let later = self.examples.split_off(&end);
        let earlier = std::mem::replace(&mut self.examples, later);
        earlier.into_values().fold(0, u64::saturating_add)
    }

    /// Notes that a setting changes at this clock. Refuses if settings of too many clocks are kept.
    pub fn keep_setting(&mut self, at: Clock) -> Result<(), Refusal> {
        if self.settings.len() >= SETTINGS && !self.settings.contains(&at) {
            return Err(Refusal::FarAhead { most: SETTINGS as u64 });
        }
        self.settings.insert(at);
        Ok(())
    }

    /// Forgets the settings of clocks that the frontier has passed.
    pub fn forget_settings(&mut self) {
        self.settings = self.settings.split_off(&self.frontier.value());
    }

    /// The clocks of which sums are held, each with the slots of its sum.
    pub fn sums(&self) -> impl Iterator<Item = (Clock, &[u32])> {
        self.held.iter().filter_map(|(clock, held)| match held {
            HeldClock::Sum(sum) => Some((*clock, sum.slots())),
            HeldClock::Failed(_) => None,
        })
    }

    /// The positions, rising, whose rows are removed once the clock is applied.
    pub fn removals(&self, clock: Clock) -> impl Iterator<Item = u64> + '_ {
        self.removals.get(&clock).into_iter().flatten().copied()
    }

    /// The sum that is held for a clock. `None` if there is none or the clock has failed.
    pub fn held_sum(&self, clock: Clock) -> Option<&Combination<T>> {
        match self.held.get(&clock)? {
            HeldClock::Sum(sum) => Some(sum),
            HeldClock::Failed(_) => None,
        }
    }

    /// The sums that a clock holds for the rows at these slots, row after row.
    pub fn sums_of(&self, clock: Clock, width: usize, slots: &[u32]) -> Option<Vec<T>> {
        let Some(HeldClock::Sum(sum)) = self.held.get(&clock) else { return None };
        Some(slots.iter().filter_map(|slot| sum.get(width, *slot)).flatten().copied().collect())
    }

    /// Forgets all held sums: a new backfill brings them from the beginning.
    pub fn forget_held(&mut self) {
        self.held.clear();
        self.removals.clear();
        self.changes.clear();
    }

    /// Starts over at `clock`, with these workers and nothing held. Keeps settings.
    pub fn start_at(&mut self, clock: Clock, present: impl Iterator<Item = bool>) {
        let settings = std::mem::take(&mut self.settings);
        *self = Self {
            frontier: Frontier::starting(clock, present),
            settings,
            ..Self::new(self.combine, std::iter::empty())
        };
    }

    /// Saves everything but the sums.
    pub fn save(&self) -> SavedClocks {
        let failing = self.held.values().filter_map(|held| match held {
            HeldClock::Failed(failed) => Some(failed.clone()),
            HeldClock::Sum(_) => None,
        });
        SavedClocks {
            frontier: self.frontier.clone(),
            held: self.sums().map(|(clock, _)| clock).collect(),
            failing: failing.collect(),
            examples: self.examples.iter().map(|(clock, examples)| (*clock, *examples)).collect(),
            settings: self.settings.iter().copied().collect(),
            failed: self.failed.iter().cloned().collect(),
        }
    }

    /// Loads what was saved. Keeps sums that arrived before, if their clocks are still held.
    pub fn load(&mut self, saved: SavedClocks) {
        self.frontier = saved.frontier;
        let sums: BTreeSet<Clock> = saved.held.into_iter().collect();
        self.held.retain(|clock, held| sums.contains(clock) && matches!(held, HeldClock::Sum(_)));
        for clock in sums {
            self.sum(clock, Vec::new);
        }
        self.held.extend(saved.failing.into_iter().map(|failed| (failed.clock, HeldClock::Failed(failed))));
        self.changes.retain(|clock, _| self.held.contains_key(clock));
        self.removals.retain(|clock, _| matches!(self.held.get(clock), Some(HeldClock::Sum(_))));
        self.examples = saved.examples.into_iter().collect();
        self.settings = saved.settings.into_iter().collect();
        self.failed = saved.failed.into();
    }

    /// The open clocks whose held sums name the row at `slot`. If the row is removed now, each of
    /// these clocks will make it anew.
    pub fn holding(&self, slot: u32) -> impl Iterator<Item = Clock> + '_ {
        self.held.iter().filter_map(move |(clock, held)| match held {
            HeldClock::Sum(sum) if sum.contains(slot) => Some(*clock),
            HeldClock::Sum(_) | HeldClock::Failed(_) => None,
        })
    }

    /// Whether the held sum of any open clock names the row at `slot`. Such a row must keep its
    /// slot. So it is not removed but reset ([`Rows::reset`](crate::rows::Rows::reset)): it counts
    /// as the row that the later contribution makes.
    pub fn holds_any(&self, slot: u32) -> bool {
        self.holding(slot).next().is_some()
    }

    /// Drops removed rows, of `width` numbers, from everything that is held. At the head of a
    /// chain, no held sum names them. A replica may still hold clocks that the head had applied
    /// before it removed the rows.
    pub fn remove_rows(&mut self, width: usize, rows: &[Row]) {
        for held in self.held.values_mut() {
            if let HeldClock::Sum(sum) = held {
                rows.iter().for_each(|(_, slot)| sum.remove(width, *slot));
            }
        }
        self.changes.values_mut().for_each(|changes| changes.forget(rows));
    }

    /// Rows have moved. The shard has `slot_counts` slots.
    pub fn rows_moved(&mut self, slot_counts: SlotCounts, moves: &[Move]) {
        for held in self.held.values_mut() {
            if let HeldClock::Sum(sum) = held {
                sum.rows_moved(slot_counts, moves);
            }
        }
        self.changes.values_mut().for_each(|rows| rows.rows_moved(moves));
    }

    /// All rows have moved: forgets slots that they have left, at most `most`. Returns how many it
    /// has looked at.
    pub fn forward(&mut self, forwarding: &Forwarding, most: usize) -> usize {
        self.changes.values_mut().fold(0, |seen, rows| seen + rows.forward(forwarding, most - seen))
    }
}

#[cfg(test)]
mod tests;
