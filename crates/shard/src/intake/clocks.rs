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
use crate::view::Row;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, Combine, HELD_CLOCKS, WorkerId};
use update::Number;
use wire::{FailedClock, Refusal};

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

    /// Refuses a contribution whose clock is not the worker's present one, or is too far ahead.
    pub fn check(&self, worker: WorkerId, clock: Clock) -> Result<(), Refusal> {
        match self.combine {
            Combine::Each => Ok(()),
            Combine::Clock(_) if self.frontier.clock(worker) != Some(clock) => Err(Refusal::PastClock),
            Combine::Clock(_) if clock >= self.end_of_held() => Err(Refusal::FarAhead { most: HELD_CLOCKS }),
            Combine::Clock(_) => Ok(()),
        }
    }

    /// The first clock that is too far ahead to be held.
    fn end_of_held(&self) -> Clock {
        Clock(self.frontier.value().0.saturating_add(HELD_CLOCKS))
    }

    /// Whether a clock is open: its contributions are held.
    pub fn is_open(&self, clock: Clock) -> bool {
        matches!(self.combine, Combine::Clock(_)) && clock >= self.frontier.value()
    }

    /// Holds examples of a clock until it is applied. Examples of a clock that is too far ahead to
    /// be held count with the first such clock.
    pub fn hold_examples(&mut self, clock: Clock, examples: u64) {
        let held = self.examples.entry(clock.min(self.end_of_held())).or_default();
        *held = held.saturating_add(examples);
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
    pub fn name_changes(&mut self, positions: impl FnOnce() -> Vec<u64>) {
        if self.held.is_empty() {
            return;
        }
        let positions = positions();
        for (clock, held) in &self.held {
            if let HeldClock::Sum(sum) = held {
                let rows = sum.slots().iter().map(|slot| (positions[*slot as usize], *slot));
                self.changes.entry(*clock).or_default().extend(rows);
            }
        }
    }

    /// A contribution to a clock was refused: the clock fails for all workers.
    pub fn fail(&mut self, failed: FailedClock) {
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

    /// The rows, of `width` numbers, have moved: `moves` gives the new slot of each old one,
    /// `ABSENT` for a removed row, which is dropped.
    pub fn renumber(&mut self, width: usize, moves: &[u32]) {
        for held in self.held.values_mut() {
            if let HeldClock::Sum(sum) = held {
                sum.renumber(width, moves);
            }
        }
        self.changes.values_mut().for_each(|rows| rows.renumber(moves));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Resolved;
    use types::Reduce;
    use update::ABSENT;

    const WORKERS: [WorkerId; 2] = [WorkerId(0), WorkerId(1)];

    fn clocks(combine: Combine) -> Clocks<i64> {
        Clocks::new(combine, [true; 2].into_iter())
    }

    /// Adds `value` to row `slot` in a clock.
    fn add(clocks: &mut Clocks<i64>, clock: u64, slot: usize, value: i64) {
        let resolved = Resolved::Run { first: slot, count: 1 };
        if let Some(sum) = clocks.sum(Clock(clock), Vec::new) {
            sum.add(1, 8, &resolved, &[value]);
        }
        clocks.hold_examples(Clock(clock), 10);
        clocks.will_change(Clock(clock), [(slot as u64 + 100, slot as u32)].into_iter());
    }

    /// What an ended clock applies: clock, slots, values, changed positions, examples.
    type Applied = (u64, Option<(Vec<u32>, Vec<i64>)>, Vec<u64>, u64);

    fn pop(clocks: &mut Clocks<i64>, end: u64) -> Option<Applied> {
        let ended = clocks.pop_before(Clock(end))?;
        let outcome = match ended.outcome {
            ClockOutcome::Apply { slots, values } => Some((slots, values)),
            ClockOutcome::Failed => None,
        };
        Some((ended.clock.0, outcome, ended.changes.iter().map(|(position, _)| position).collect(), ended.examples))
    }

    #[test]
    fn clocks_hand_out_an_ended_clock_once_with_everything_held_for_it() {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        add(&mut clocks, 1, 3, 5);
        add(&mut clocks, 0, 2, 1);
        add(&mut clocks, 0, 2, 2);
        clocks.hold_examples(Clock(2), 7);
        assert_eq!(pop(&mut clocks, 1), Some((0, Some((vec![2], vec![3])), vec![102], 20)));
        assert_eq!(pop(&mut clocks, 1), None, "clock 1 is open");
        assert_eq!(pop(&mut clocks, 3), Some((1, Some((vec![3], vec![5])), vec![103], 10)));
        assert_eq!((clocks.take_other_examples(Clock(2)), clocks.take_other_examples(Clock(3))), (0, 7));
        assert!(clocks.pop_before(Clock(9)).is_none());
    }

    #[test]
    fn contributions_are_checked_against_the_workers_clock_and_the_bound() {
        let far = HELD_CLOCKS;
        // (clocks that worker 0 has ended, the clock of its contribution, the refusal)
        let cases = [
            (0, 0, None),
            (0, 1, Some(Refusal::PastClock)),
            (1, 0, Some(Refusal::PastClock)),
            (far - 1, far - 1, None),
            (far, far, Some(Refusal::FarAhead { most: HELD_CLOCKS })),
        ];
        for (ended, clock, refusal) in cases {
            let mut clocks = clocks(Combine::Clock(Reduce::Sum));
            (0..ended).for_each(|clock| {
                clocks.advance(WORKERS[0], Clock(clock), Clock(0));
            });
            assert_eq!(clocks.check(WORKERS[0], Clock(clock)).err(), refusal, "{ended} ended, clock {clock}");
        }
        assert_eq!(clocks(Combine::Each).check(WORKERS[0], Clock(99)), Ok(()), "an `each` table accepts any clock");
    }

    #[test]
    fn refused_contribution_fails_only_its_clock() {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        add(&mut clocks, 0, 2, 1);
        add(&mut clocks, 1, 2, 1);
        let failed = FailedClock { clock: Clock(0), worker: WORKERS[1], refusal: Refusal::Undecodable };
        clocks.fail(failed.clone());
        add(&mut clocks, 0, 3, 1);
        assert_eq!(pop(&mut clocks, 2), Some((0, None, vec![102, 103], 20)));
        assert_eq!(pop(&mut clocks, 2), Some((1, Some((vec![2], vec![1])), vec![102], 10)));
        assert_eq!(clocks.failed().collect::<Vec<_>>(), [&failed]);
    }

    #[test]
    fn clocks_keep_earlier_sums_of_held_clocks_when_metadata_is_loaded() {
        let mut head = clocks(Combine::Clock(Reduce::Sum));
        add(&mut head, 4, 1, 7);
        let failed = FailedClock { clock: Clock(6), worker: WORKERS[0], refusal: Refusal::Undecodable };
        head.fail(failed);
        let mut replica = clocks(Combine::Clock(Reduce::Sum));
        add(&mut replica, 3, 1, 9);
        add(&mut replica, 4, 1, 7);
        replica.load(head.save());
        let held: Vec<Clock> = replica.sums().map(|(clock, _)| clock).collect();
        assert_eq!((held, replica.sums_of(Clock(4), 1, &[1])), (vec![Clock(4)], Some(vec![7])));
        assert!(pop(&mut replica, 9).is_some_and(|(clock, outcome, ..)| clock == 4 && outcome.is_some()));
        assert!(pop(&mut replica, 9).is_some_and(|(clock, outcome, ..)| clock == 6 && outcome.is_none()));
    }

    #[test]
    fn clocks_keep_sums_and_changes_of_rows_that_move() {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        add(&mut clocks, 0, 1, 5);
        clocks.renumber(1, &[3, 2, 1, 0]);
        if let Some(sum) = clocks.sum(Clock(0), Vec::new) {
            sum.add(1, 8, &Resolved::Run { first: 2, count: 1 }, &[1]);
        }
        clocks.will_change(Clock(0), [(101, 2), (99, 0)].into_iter());
        let ended = clocks.pop_before(Clock(1)).expect("held");
        assert_eq!(ended.changes.iter().collect::<Vec<_>>(), [(101, 2), (99, 0)]);
        assert!(matches!(ended.outcome, ClockOutcome::Apply { slots, values } if slots == [2] && values == [6]));
    }

    #[test]
    fn clocks_hold_removals_until_their_clock_is_applied_or_fails() {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        clocks.hold_removal(Clock(0), [7, 3].into_iter());
        add(&mut clocks, 1, 1, 5);
        clocks.hold_removal(Clock(1), [9].into_iter());
        assert_eq!((clocks.removes(Clock(0), 7), clocks.removes(Clock(1), 7)), (true, false));
        let has_sum = |clock| clocks.held_sum(Clock(clock)).is_some_and(|sum| sum.contains(1));
        assert_eq!((has_sum(1), has_sum(0), has_sum(7)), (true, false, false));
        let mut replica = self::clocks(Combine::Clock(Reduce::Sum));
        replica.hold_removal(Clock(1), [9].into_iter());
        replica.hold_removal(Clock(5), [9].into_iter());
        replica.load(clocks.save());
        assert_eq!((replica.removals(Clock(1)).count(), replica.removals(Clock(5)).count()), (1, 0));
        clocks.fail(FailedClock { clock: Clock(1), worker: WORKERS[0], refusal: Refusal::Undecodable });
        clocks.hold_removal(Clock(1), [8].into_iter());
        let removals = |clocks: &mut Clocks<i64>| clocks.pop_before(Clock(9)).map(|ended| ended.removals);
        assert_eq!((removals(&mut clocks), removals(&mut clocks)), (Some(vec![3, 7]), Some(vec![])));
    }

    #[test]
    fn clocks_drop_removed_rows_and_report_held_rows() {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        [(0, 1, 5), (0, 3, 6), (2, 1, 7)]
            .into_iter()
            .for_each(|(clock, slot, value)| add(&mut clocks, clock, slot, value));
        clocks.fail(FailedClock { clock: Clock(1), worker: WORKERS[0], refusal: Refusal::Undecodable });
        clocks.will_change(Clock(1), [(101, 1)].into_iter());
        assert_eq!([0, 1, 2, 3].map(|slot| clocks.holds_any(slot)), [false, true, false, true]);
        assert_eq!(clocks.holding(1).collect::<Vec<_>>(), [Clock(0), Clock(2)]);
        clocks.remove_rows(1, &[(101, 1)]);
        assert!(!clocks.holds_any(1) && clocks.holds_any(3));
        clocks.renumber(1, &[ABSENT, ABSENT, ABSENT, 0]);
        assert!(clocks.holds_any(0));
        assert_eq!(pop(&mut clocks, 3), Some((0, Some((vec![0], vec![6])), vec![103], 20)));
        assert_eq!(pop(&mut clocks, 3), Some((1, None, vec![], 0)));
        assert_eq!(pop(&mut clocks, 3), Some((2, Some((vec![], vec![])), vec![], 10)));
    }

    #[test]
    fn settings_are_bounded_and_forgotten_with_their_clocks() {
        let mut clocks = clocks(Combine::Each);
        (0..SETTINGS as u64).for_each(|at| clocks.keep_setting(Clock(at)).expect("room"));
        let full = Err(Refusal::FarAhead { most: SETTINGS as u64 });
        assert_eq!((clocks.keep_setting(Clock(5)), clocks.keep_setting(Clock(1 << 20))), (Ok(()), full));
        for worker in WORKERS {
            clocks.advance(worker, Clock(9), Clock(0));
        }
        clocks.forget_settings();
        assert_eq!(clocks.keep_setting(Clock(1 << 20)), Ok(()));
    }
}
