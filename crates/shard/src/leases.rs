//! Which parts of data leases a shard holds, and whether their values are in its rows yet.
//!
//! In an `each` table, a part is in the rows as soon as it is held. In a `clock` table, it is first
//! in its clock's sum, and in the rows once the frontier has passed that clock. A checkpoint keeps
//! rows but no sums of open clocks. A run that resumes from it forgets the parts of those clocks,
//! and workers push them again for the uncommitted leases.

pub(crate) mod applied;

use crate::leases::applied::AppliedParts;
use std::collections::BTreeMap;
use types::Clock;
use wire::{Field, LeasedPart, Reader, WireError};

/// The parts that a shard holds, of leases that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeasedParts {
    /// Parts that are in the rows.
    applied: AppliedParts,
    /// Parts that are in the sums of open clocks.
    open: BTreeMap<Clock, AppliedParts>,
}

impl LeasedParts {
    /// The open clock whose sum holds this part, or clock 0 if it is in the rows. `None` if the
    /// shard does not hold it.
    pub fn held_in(&self, part: LeasedPart) -> Option<Clock> {
        let open = || self.open.iter().find(|(_, applied)| applied.holds(part)).map(|(clock, _)| *clock);
        if self.applied.holds(part) { Some(Clock(0)) } else { open() }
    }

    /// Whether there is no room for another part.
    pub fn is_full(&self) -> bool {
        self.applied.is_full() || self.open.values().any(AppliedParts::is_full)
    }

    /// Holds this part from now on: in the sum of clock `open`, or in the rows if that is `None`.
    pub fn hold(&mut self, part: LeasedPart, open: Option<Clock>) {
        match open {
            None => self.applied.hold(part),
            Some(clock) => self.open.entry(clock).or_default().hold(part),
        }
    }

    /// Clocks before `end` were applied: moves their parts to those in the rows.
    pub fn apply_before(&mut self, end: Clock) {
        while let Some(entry) = self.open.first_entry().filter(|entry| *entry.key() < end) {
            self.applied.join(&entry.remove());
        }
    }

    /// Forgets the parts in open clocks, because the sums of those clocks are lost.
    pub fn lose_open(&mut self) {
        self.open.clear();
    }

    /// Forgets leases of a data set that are over.
    pub fn forget(&mut self, of: u32, is_over: impl Fn(u64) -> bool) {
        self.applied.forget(of, &is_over);
        self.open.values_mut().for_each(|applied| applied.forget(of, &is_over));
    }

    /// How many leases it has parts of. A lease with parts in several clocks counts in each.
    pub fn leases(&self) -> usize {
        self.applied.leases() + self.open.values().map(AppliedParts::leases).sum::<usize>()
    }
}

impl Field for LeasedParts {
    fn put(&self, out: &mut Vec<u8>) {
        self.applied.put(out);
        (self.open.len() as u32).put(out);
        for (clock, applied) in &self.open {
            clock.put(out);
            applied.put(out);
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let applied = Field::get(input)?;
        let mut open = BTreeMap::new();
        for _ in 0..u32::get(input)? {
            let clock = Clock::get(input)?;
            if open.last_key_value().is_some_and(|(last, _)| *last >= clock) {
                return Err(WireError::Malformed("applied parts of clocks that do not rise"));
            }
            open.insert(clock, AppliedParts::get(input)?);
        }
        Ok(Self { applied, open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: u64) -> LeasedPart {
        LeasedPart { set: 0, lease: 3, part }
    }

    #[test]
    fn leased_parts_lose_only_the_parts_of_open_clocks() {
        let mut parts = LeasedParts::default();
        parts.hold(part(0), None);
        for number in 1..6 {
            parts.hold(part(number), Some(Clock(number)));
        }
        assert!((0..6).all(|number| parts.held_in(part(number)).is_some()) && parts.held_in(part(6)).is_none());
        let mut bytes = Vec::new();
        parts.put(&mut bytes);
        assert_eq!(LeasedParts::get(&mut Reader(&bytes)).as_ref(), Ok(&parts));
        for length in 0..bytes.len() {
            assert!(LeasedParts::get(&mut Reader(&bytes[..length])).is_err(), "{length} of {} bytes", bytes.len());
        }
        parts.apply_before(Clock(4));
        assert!((0..6).all(|number| parts.held_in(part(number)).is_some()));
        parts.lose_open();
        let held: Vec<u64> = (0..7).filter(|number| parts.held_in(part(*number)).is_some()).collect();
        assert_eq!(held, [0, 1, 2, 3]);
        parts.forget(0, |lease| lease == 3);
        assert_eq!(parts.leases(), 0);
    }
}
