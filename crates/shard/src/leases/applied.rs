//! The set of parts of data leases that a shard has applied. After a worker is lost, another worker
//! runs its lease again and cuts it into the same parts. The shard skips the parts that it holds.
//!
//! **A lost worker's clock.** In a `clock` table, a part is held as soon as its contribution is in
//! its clock's sum. That sum is applied even if its worker never ended the clock, because the
//! frontier goes on without a lost worker. So a half-done clock counts for the parts that came, and
//! the second run pushes the others in clocks of its own.
//!
//! **A failed clock.** A clock fails if a contribution to it was refused. It is lost for all
//! workers, with all parts in it. Leases do not bring these parts back, because other workers do
//! not push their contributions again either.

use std::collections::BTreeMap;
use wire::{Field, LeasedPart, Reader, WireError};

/// At most this many runs of part numbers are kept. Leases are forgotten soon after they are
/// committed, so there are far fewer in practice.
pub const RUNS: usize = 1 << 20;

/// Consecutive part numbers: the first, and the one after the last.
type Run = (u64, u64);

/// The parts that a shard holds, of leases that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedParts {
    /// Runs of parts by data set and lease, in rising order, with gaps between them.
    leases: BTreeMap<(u32, u64), Vec<Run>>,
    /// How many runs there are in all.
    runs: usize,
}

impl AppliedParts {
    /// Whether it holds this part.
    pub fn holds(&self, LeasedPart { set, lease, part }: LeasedPart) -> bool {
        let runs = self.leases.get(&(set, lease)).map_or(&[][..], Vec::as_slice);
        runs.get(runs.partition_point(|(_, end)| *end <= part)).is_some_and(|(start, _)| *start <= part)
    }

    /// Whether there is no room for another part.
    pub fn is_full(&self) -> bool {
        self.runs >= RUNS
    }

    /// Adds a part.
    pub fn hold(&mut self, LeasedPart { set, lease, part }: LeasedPart) {
        // So that `part + 1` does not overflow.
        let part = part.min(u64::MAX - 1);
        let runs = self.leases.entry((set, lease)).or_default();
        let at = runs.partition_point(|(_, end)| *end < part);
        let before = runs.len();
        match runs.get_mut(at) {
            Some((start, end)) if *start <= part && part < *end => {}
            Some((_, end)) if *end == part => {
                *end = part + 1;
                if let Some((_, end)) = runs.get(at + 1).copied().filter(|(start, _)| *start == part + 1) {
                    runs[at].1 = end;
                    runs.remove(at + 1);
                }
            }
            Some((start, _)) if *start == part + 1 => *start = part,
            _ => runs.insert(at, (part, part + 1)),
        }
        self.runs = self.runs + runs.len() - before;
    }

    /// Adds all parts that `other` holds.
    pub fn join(&mut self, other: &Self) {
        for (name, theirs) in &other.leases {
            let runs = self.leases.entry(*name).or_default();
            let before = runs.len();
            for (start, end) in theirs {
                let from = runs.partition_point(|(_, ended)| ended < start);
                let to = runs.partition_point(|(started, _)| started <= end);
                let touched = &runs[from..to];
                let first = touched.first().map_or(*start, |(started, _)| *started.min(start));
                let last = touched.last().map_or(*end, |(_, ended)| *ended.max(end));
                runs.splice(from..to, [(first, last)]);
            }
            self.runs = self.runs + runs.len() - before;
        }
    }

    /// Forgets leases of a data set that are over.
    pub fn forget(&mut self, of: u32, is_over: impl Fn(u64) -> bool) {
        self.leases.retain(|(set, lease), runs| {
            let keeps = *set != of || !is_over(*lease);
            self.runs -= if keeps { 0 } else { runs.len() };
            keeps
        });
    }

    /// How many leases it has parts of.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }
}

impl Field for AppliedParts {
    fn put(&self, out: &mut Vec<u8>) {
        let leases = self.leases.iter().map(|((set, lease), runs)| ((*set, *lease), runs.clone()));
        leases.collect::<Vec<_>>().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let leases: BTreeMap<_, Vec<Run>> = Vec::get(input)?.into_iter().collect();
        for runs in leases.values() {
            let rising = runs.windows(2).all(|pair| pair[0].1 < pair[1].0);
            if !rising || runs.iter().any(|(start, end)| start >= end) {
                return Err(WireError::Malformed("applied parts of a lease that do not rise"));
            }
        }
        let runs = leases.values().map(Vec::len).sum();
        Ok(Self { leases, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn part(lease: u64, part: u64) -> LeasedPart {
        LeasedPart { set: 0, lease, part }
    }

    #[test]
    fn applied_parts_keep_consecutive_parts_as_one_run() {
        let mut applied = AppliedParts::default();
        (0..1000).for_each(|number| applied.hold(part(7, number)));
        assert_eq!((applied.runs, applied.leases()), (1, 1));
        assert!(applied.holds(part(7, 999)) && !applied.holds(part(7, 1000)) && !applied.holds(part(8, 0)));
    }

    #[test]
    fn applied_parts_forget_only_leases_that_are_over() {
        let mut applied = AppliedParts::default();
        (0..10).for_each(|lease| applied.hold(part(lease, 3)));
        applied.hold(LeasedPart { set: 1, lease: 2, part: 0 });
        applied.forget(0, |lease| lease < 6);
        assert_eq!((applied.runs, applied.leases()), (5, 5));
        assert!(!applied.holds(part(5, 3)) && applied.holds(part(6, 3)));
        assert!(applied.holds(LeasedPart { set: 1, lease: 2, part: 0 }), "of another data set");
    }

    #[test]
    fn applied_parts_take_the_largest_part_number() {
        let mut applied = AppliedParts::default();
        [u64::MAX, u64::MAX - 1, 0].into_iter().for_each(|number| applied.hold(part(u64::MAX, number)));
        assert!(applied.holds(part(u64::MAX, u64::MAX - 1)));
    }

    proptest! {
        #[test]
        fn applied_parts_hold_what_was_pushed_in_any_order(parts in prop::collection::vec((0u64..3, 0u64..40), 0..200)) {
            let mut applied = AppliedParts::default();
            let mut expected = BTreeSet::new();
            for (lease, number) in parts {
                applied.hold(part(lease, number));
                expected.insert((lease, number));
                let mut bytes = Vec::new();
                applied.put(&mut bytes);
                prop_assert_eq!(&AppliedParts::get(&mut Reader(&bytes)).expect("as written"), &applied);
            }
            let mut joined = AppliedParts::default();
            let mut odd = AppliedParts::default();
            for (at, (lease, number)) in expected.iter().enumerate() {
                if at % 3 == 1 { &mut odd } else { &mut joined }.hold(part(*lease, *number));
            }
            joined.join(&odd);
            joined.join(&odd);
            prop_assert_eq!(&joined, &applied);
            for lease in 0..3 {
                for number in 0..40 {
                    prop_assert_eq!(applied.holds(part(lease, number)), expected.contains(&(lease, number)));
                }
                let starts = (0..40).filter(|number| {
                    expected.contains(&(lease, *number)) && (*number == 0 || !expected.contains(&(lease, number - 1)))
                });
                prop_assert_eq!(applied.leases.get(&(0, lease)).map_or(0, Vec::len), starts.count());
            }
        }
    }
}
