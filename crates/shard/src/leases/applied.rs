//! What a shard holds of leases: the pieces that were pushed of each, whoever pushed them. A second run of a lease, after its first
//! worker was lost, is cut like the first, and what is held of it is not applied again.
//!
//! **A dead worker's clock.** In a table whose contributions meet by clock, a piece is held as soon as its contribution is held for its
//! clock. That contribution is applied with the clock even if its worker never ended it: the frontier goes on without whoever is
//! gone, and the sum stays. So a half-done clock counts for as much as came of it, and the second run, in clocks of its own, brings
//! the rest. A clock that fails, for somebody's contribution was refused, is lost for everybody alike, and with it the pieces in
//! it: leases do not bring it back, for those who hold the other contributions to it do not push them again either.

use std::collections::BTreeMap;
use wire::{Field, LeasedPiece, Reader, WireError};

/// Runs of pieces that a shard keeps. Leases are forgotten soon after they are committed, so a run has far fewer.
pub const RUNS: usize = 1 << 20;

/// Pieces from the first to before the second.
type Run = (u64, u64);

/// The pieces that a shard holds, of leases that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseWindow {
    /// By data set and lease: in rising order, with gaps between them.
    leases: BTreeMap<(u32, u64), Vec<Run>>,
    runs: usize,
}

impl LeaseWindow {
    /// Whether this piece was pushed before.
    pub fn holds(&self, LeasedPiece { set, lease, piece }: LeasedPiece) -> bool {
        let runs = self.leases.get(&(set, lease)).map_or(&[][..], Vec::as_slice);
        runs.get(runs.partition_point(|(_, end)| *end <= piece)).is_some_and(|(start, _)| *start <= piece)
    }

    /// Whether there is room for any piece.
    pub fn is_full(&self) -> bool {
        self.runs >= RUNS
    }

    /// This piece is held from now on.
    pub fn hold(&mut self, LeasedPiece { set, lease, piece }: LeasedPiece) {
        // So that another one follows it.
        let piece = piece.min(u64::MAX - 1);
        let runs = self.leases.entry((set, lease)).or_default();
        let at = runs.partition_point(|(_, end)| *end < piece);
        let before = runs.len();
        match runs.get_mut(at) {
            Some((start, end)) if *start <= piece && piece < *end => {}
            Some((_, end)) if *end == piece => {
                *end = piece + 1;
                if let Some((_, end)) = runs.get(at + 1).copied().filter(|(start, _)| *start == piece + 1) {
                    runs[at].1 = end;
                    runs.remove(at + 1);
                }
            }
            Some((start, _)) if *start == piece + 1 => *start = piece,
            _ => runs.insert(at, (piece, piece + 1)),
        }
        self.runs = self.runs + runs.len() - before;
    }

    /// Holds what another one holds, too.
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

    /// How many leases it knows of.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }
}

impl Field for LeaseWindow {
    fn put(&self, out: &mut Vec<u8>) {
        let leases = self.leases.iter().map(|((set, lease), runs)| ((*set, *lease), runs.clone()));
        leases.collect::<Vec<_>>().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let leases: BTreeMap<_, Vec<Run>> = Vec::get(input)?.into_iter().collect();
        for runs in leases.values() {
            let rising = runs.windows(2).all(|pair| pair[0].1 < pair[1].0);
            if !rising || runs.iter().any(|(start, end)| start >= end) {
                return Err(WireError::Malformed("pieces of a lease out of order"));
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

    fn piece(lease: u64, piece: u64) -> LeasedPiece {
        LeasedPiece { set: 0, lease, piece }
    }

    #[test]
    fn pieces_in_order_are_one_run() {
        let mut window = LeaseWindow::default();
        (0..1000).for_each(|number| window.hold(piece(7, number)));
        assert_eq!((window.runs, window.leases()), (1, 1));
        assert!(window.holds(piece(7, 999)) && !window.holds(piece(7, 1000)) && !window.holds(piece(8, 0)));
    }

    #[test]
    fn what_is_over_is_forgotten_and_nothing_else() {
        let mut window = LeaseWindow::default();
        (0..10).for_each(|lease| window.hold(piece(lease, 3)));
        window.hold(LeasedPiece { set: 1, lease: 2, piece: 0 });
        window.forget(0, |lease| lease < 6);
        assert_eq!((window.runs, window.leases()), (5, 5));
        assert!(!window.holds(piece(5, 3)) && window.holds(piece(6, 3)));
        assert!(window.holds(LeasedPiece { set: 1, lease: 2, piece: 0 }), "of another data set");
    }

    #[test]
    fn the_last_number_does_no_harm() {
        let mut window = LeaseWindow::default();
        [u64::MAX, u64::MAX - 1, 0].into_iter().for_each(|number| window.hold(piece(u64::MAX, number)));
        assert!(window.holds(piece(u64::MAX, u64::MAX - 1)));
    }

    proptest! {
        #[test]
        fn it_holds_what_was_pushed_in_any_order(pieces in prop::collection::vec((0u64..3, 0u64..40), 0..200)) {
            let mut window = LeaseWindow::default();
            let mut expected = BTreeSet::new();
            for (lease, number) in pieces {
                window.hold(piece(lease, number));
                expected.insert((lease, number));
                let mut bytes = Vec::new();
                window.put(&mut bytes);
                prop_assert_eq!(&LeaseWindow::get(&mut Reader(&bytes)).expect("as written"), &window);
            }
            let (mut joined, mut odd) = (LeaseWindow::default(), LeaseWindow::default());
            for (at, (lease, number)) in expected.iter().enumerate() {
                if at % 3 == 1 { &mut odd } else { &mut joined }.hold(piece(*lease, *number));
            }
            joined.join(&odd);
            joined.join(&odd);
            prop_assert_eq!(&joined, &window);
            for lease in 0..3 {
                for number in 0..40 {
                    prop_assert_eq!(window.holds(piece(lease, number)), expected.contains(&(lease, number)));
                }
                let starts = (0..40).filter(|number| {
                    expected.contains(&(lease, *number)) && (*number == 0 || !expected.contains(&(lease, number - 1)))
                });
                prop_assert_eq!(window.leases.get(&(0, lease)).map_or(0, Vec::len), starts.count());
            }
        }
    }
}
