//! What becomes of a part: checked whole, then applied or held for its clock; and of a clock that
//! everybody has ended.

use crate::follow::deltas::DeltaLog;
use crate::intake::combine::{Combination, HeldClock, as_slots};
use crate::leases::applied::RUNS;
use crate::rows::Resolved;
use crate::rows::resolve::{NotApplied, rows_of};
use crate::shard::Shard;
use types::{Clock, Combine, HELD_CLOCKS, Setting, WorkerId};
use update::{Number, first_not_finite};
use wire::{Head, KeyPart, Outbox, Payload, Push, Refusal, Tune};

/// Clocks ahead of the frontier for which a shard keeps settings.
const SETTINGS: usize = 1024;
/// Failed clocks that a shard remembers for its readers.
const FAILED_CLOCKS: usize = 64;

impl<T: Number> Shard<T> {
    /// Whether contributions of this clock are held. First of all, for any other refusal fails the
    /// clock that the part says it belongs to.
    pub(crate) fn check_clock(&self, worker: WorkerId, clock: Clock) -> Result<(), NotApplied> {
        if matches!(self.spec.combine, Combine::Clock(_)) {
            if self.frontier.clock(worker) != Some(clock) {
                return Err(Refusal::PastClock.into());
            }
            if clock >= self.end_of_held() {
                return Err(Refusal::FarAhead { most: HELD_CLOCKS }.into());
            }
        }
        Ok(())
    }

    /// Whether there is room to remember one more part of a lease.
    pub(crate) fn check_lease(&self, leased: bool) -> Result<(), NotApplied> {
        if leased && self.leases.is_full() {
            return Err(Refusal::TooManyLeases { most: RUNS as u64 }.into());
        }
        Ok(())
    }

    /// Checks a part whole, then applies it or holds it for its clock.
    pub(crate) fn contribute(&mut self, head: &Head, push: &Push) -> Result<(), NotApplied> {
        let clock = head.clock;
        let values = self.checked(push, self.rows.width())?;
        if values.is_empty() {
            // It says how many examples were seen, and no more.
            match self.spec.combine {
                Combine::Each => self.rows.count_examples(head.examples),
                Combine::Clock(_) => self.hold_examples(clock, head.examples),
            }
            return Ok(());
        }
        let unseen = self.unseen(&push.keys)?;
        let (resolved, positions) = self.resolve(&push.keys, true)?;
        match self.spec.combine {
            Combine::Each => {
                self.rows.count_examples(head.examples);
                self.rows.apply(clock, resolved.slots(), values);
                self.changed_at_once(&push.keys, positions.as_ref(), &resolved);
            }
            Combine::Clock(_) => {
                self.hold_examples(clock, head.examples);
                self.pending_rows.add(clock, &unseen);
                let held =
                    self.held.entry(clock).or_insert_with(|| HeldClock::Sum(Combination::new(self.rows.take_spare())));
                if let HeldClock::Sum(sum) = held {
                    sum.add(self.rows.width(), self.rows.len(), &resolved, values);
                    let followed = self.delta_log.as_ref().is_some_and(DeltaLog::is_followed);
                    if self.spec.consistency.is_eager() || followed || self.peers.is_some() {
                        // They change when the clock is applied, which may be several moves of the
                        // frontier away.
                        let changes = self.held_changes.entry(clock).or_default();
                        changes.extend(rows_of(&push.keys, positions.as_ref(), &resolved));
                    }
                    if self.peers.is_some() {
                        self.note_sums(clock, rows_of(&push.keys, positions.as_ref(), &resolved));
                    }
                }
            }
        }
        Ok(())
    }

    /// The values of a part of rows of so many numbers, if they are those: of the right type, as
    /// many as its keys ask for, and finite.
    pub(crate) fn checked<'p>(&mut self, push: &'p Push, width: usize) -> Result<&'p [T], NotApplied> {
        if push.number != T::TYPE {
            return Err(Refusal::WrongNumber { expected: T::TYPE, found: push.number }.into());
        }
        let count = push.keys.count().ok_or(Refusal::NotOrdered)?;
        let expected = count.saturating_mul((width * size_of::<T>()) as u64);
        let wrong_length = Refusal::WrongLength { expected, found: push.values.len() as u64 };
        if push.values.len() as u64 != expected {
            return Err(wrong_length.into());
        }
        let values = push.values.numbers::<T>().ok_or_else(|| wrong_length.clone())?;
        let Some(index) = first_not_finite(values) else { return Ok(values) };
        let position = self.position_of(&push.keys, index / width);
        match (position, &push.keys) {
            (Some(position), _) => Err(Refusal::NotFinite { position }.into()),
            // Its keys are not kept; spelt out again, they tell which row it is.
            (None, KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. }) => {
                Err(NotApplied::UnknownKeys(signature.0))
            }
            (None, _) => Err(self.resolve(&push.keys, false).err().unwrap_or(NotApplied::Refuse(wrong_length))),
        }
    }

    /// Notes rows that a push has changed at once, not with a clock, for subscribers and replicas.
    pub(crate) fn changed_at_once(&mut self, keys: &KeyPart, positions: Option<&Payload>, resolved: &Resolved) {
        if self.spec.consistency.is_eager() {
            self.subscribers.changed(rows_of(keys, positions, resolved));
        }
        if self.peers.is_some() {
            let rows: Vec<(u64, u32)> = rows_of(keys, positions, resolved).collect();
            self.note_rows(rows.iter().copied());
        }
    }

    /// Changes a setting, unless it makes no sense or is one of too many.
    pub(crate) fn set(&mut self, tune: &Tune) -> Result<(), Refusal> {
        let Setting::Rate(rate) = tune.setting;
        if !rate.is_finite() || rate < 0.0 {
            return Err(Refusal::BadSetting);
        }
        if self.settings.len() >= SETTINGS && !self.settings.contains(&tune.at) {
            return Err(Refusal::FarAhead { most: SETTINGS as u64 });
        }
        self.settings.insert(tune.at);
        self.rows.tune(tune.at, tune.setting);
        Ok(())
    }

    /// The first clock whose contributions are not held.
    fn end_of_held(&self) -> Clock {
        Clock(self.frontier.value().0.saturating_add(HELD_CLOCKS))
    }

    /// Examples of a clock count when it is applied; those of clocks that are not held, with the
    /// first of them.
    pub(crate) fn hold_examples(&mut self, clock: Clock, examples: u64) {
        let held = self.held_examples.entry(clock.min(self.end_of_held())).or_default();
        *held = held.saturating_add(examples);
    }

    pub(crate) fn frontier_moved(&mut self, by: WorkerId, out: &mut Outbox) {
        let frontier = self.frontier.value();
        if let Some(clock) = self.copies_at(frontier) {
            // Nothing of later clocks: the frontier may have come by several at once.
            self.apply_before(clock);
            self.copy();
        }
        self.apply_before(frontier);
        self.settings = self.settings.split_off(&frontier);
        self.rows.forget_settings(frontier);
        self.note_progress();
        match self.peers.as_mut().filter(|peers| !peers.is_solitary()) {
            // Workers hear of it when the tail has it.
            Some(peers) => peers.moved_by = by,
            None => {
                self.told = frontier;
                self.tell(Some(by), out);
            }
        }
    }

    /// Applies every clock before this one that is held.
    pub(crate) fn apply_before(&mut self, end: Clock) {
        self.leases.apply_before(end);
        while let Some(entry) = self.held.first_entry().filter(|entry| *entry.key() < end) {
            let (clock, held) = entry.remove_entry();
            let examples = self.held_examples.remove(&clock).unwrap_or(0);
            self.apply_held(clock, held, examples);
        }
        self.held_examples.retain(|clock, examples| {
            // A clock in which nobody touched this shard still saw its examples.
            if *clock < end {
                self.rows.count_examples(*examples);
            }
            *clock >= end
        });
    }

    /// Tells whoever waits for the frontier that workers may know of.
    pub(crate) fn tell(&mut self, by: Option<WorkerId>, out: &mut Outbox) {
        if !self.may_answer {
            return;
        }
        if self.is_exact() {
            if self.spec.consistency.is_eager() {
                self.refresh(out);
            }
            self.publish();
        }
        for read in self.parked.take_admitted(self.announced()) {
            self.try_read(read, by, out);
        }
    }

    fn apply_held(&mut self, clock: Clock, held: HeldClock<T>, examples: u64) {
        let changes = self.held_changes.remove(&clock).unwrap_or_default();
        self.pending_rows.finish(clock, matches!(held, HeldClock::Sum(_)));
        match (held, self.spec.combine) {
            (HeldClock::Sum(sum), Combine::Clock(reduce)) => {
                self.rows.count_examples(examples);
                // In a clock that nobody has ended, as at the end of a run, whoever pushed counts
                // for one.
                let (slots, sums) = sum.finish(reduce, self.frontier.ended(clock).max(1));
                self.step(clock, &slots, &sums);
                self.rows.keep_applied(as_slots(&slots), sums);
                if self.peers.is_some() {
                    self.note_rows(changes.iter().map(|(position, slot)| (*position, *slot)));
                }
                if let Some(delta_log) = &mut self.delta_log {
                    delta_log.changed(clock, changes.keys().copied());
                }
                self.subscribers.changed(changes.into_iter());
            }
            (HeldClock::Failed(failed), _) => {
                self.counts.failed_clocks += 1;
                self.failed.push_back(failed);
                if self.failed.len() > FAILED_CLOCKS {
                    self.failed.pop_front();
                }
            }
            (HeldClock::Sum(_), Combine::Each) => {}
        }
    }
}
