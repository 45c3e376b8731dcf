//! Bounded delay for one table: operation i starts when the operations before i − τ are
//! acknowledged.

use std::collections::BTreeSet;

/// The operations of a table with a delay, by their places in the order in which they were
/// submitted. Places count from 1.
#[derive(Debug)]
pub(crate) struct DelayedOperations {
    tau: u64,
    /// The place of the last operation.
    last: u64,
    unfinished: BTreeSet<u64>,
}

impl DelayedOperations {
    /// No operations yet, with delay `tau`.
    pub fn new(tau: u64) -> Self {
        Self { tau, last: 0, unfinished: BTreeSet::new() }
    }

    /// Notes an operation that is submitted. Returns its place.
    pub fn submit(&mut self) -> u64 {
        self.last += 1;
        self.unfinished.insert(self.last);
        self.last
    }

    /// The operation at this place is finished.
    pub fn finished(&mut self, place: u64) {
        self.unfinished.remove(&place);
    }

    /// The last place whose operation may start.
    pub fn reached(&self) -> u64 {
        self.unfinished.first().map_or(u64::MAX, |oldest| oldest.saturating_add(self.tau))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_operations_start_within_the_delay_of_the_oldest_unfinished_one() {
        // (tau, which places finish, the last place that may start)
        for (tau, finished, reached) in [
            (0, &[][..], 1),
            (2, &[], 3),
            (2, &[2, 3], 3),
            (2, &[1], 4),
            (2, &[1, 3, 2], 6),
            (u64::MAX, &[1], u64::MAX),
            (0, &[1, 2, 3, 4], u64::MAX),
        ] {
            let mut operations = DelayedOperations::new(tau);
            assert_eq!([(); 4].map(|()| operations.submit()), [1, 2, 3, 4]);
            finished.iter().for_each(|place| operations.finished(*place));
            assert_eq!(operations.reached(), reached, "tau {tau}, {finished:?}");
        }
    }
}
