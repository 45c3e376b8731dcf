//! The set of finished leases, in a compact form: the first place that is not done, and the runs of
//! done places beyond it. Checkpoints save it, and a resumed run starts from it.

use super::{LeaseOrder, OrderIndex};
use std::ops::Range;
use wire::{Field, Reader, WireError};

/// The leases that are done: all below a mark in the order of granting, and some beyond it. A
/// [resumed](super::LeaseAllocator::resume) run starts from it.
///
/// ```
/// use lease::{FinishedLeases, LeaseOrder, OrderIndex};
///
/// let none = FinishedLeases::none(LeaseOrder { ranges: 10, shuffle: None });
/// assert_eq!((none.count(), none.through(), none.contains(3)), (0, OrderIndex(0), false));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedLeases {
    order: LeaseOrder,
    through: u64,
    /// Runs of places in rising order, with gaps between them and before the first.
    beyond: Vec<Range<u64>>,
}

impl FinishedLeases {
    /// No finished leases.
    #[must_use]
    pub fn none(order: LeaseOrder) -> Self {
        Self { order, through: 0, beyond: Vec::new() }
    }

    /// All places below `end` except `open`, which is in rising order.
    pub(super) fn all_but(order: LeaseOrder, end: u64, open: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut done = Self::none(order);
        let mut from = 0;
        let end_of_all = end..end;
        for gap in open.into_iter().chain([end_of_all]) {
            match from {
                0 => done.through = gap.start,
                _ if from < gap.start => done.beyond.push(from..gap.start),
                _ => {}
            }
            from = gap.end;
        }
        done
    }

    /// The order of granting.
    #[must_use]
    pub fn order(&self) -> LeaseOrder {
        self.order
    }

    /// The first place whose lease is not done.
    #[must_use]
    pub fn through(&self) -> OrderIndex {
        OrderIndex(self.through)
    }

    /// Places beyond [`through`](Self::through) whose leases are done.
    #[must_use]
    pub fn beyond(&self) -> &[Range<u64>] {
        &self.beyond
    }

    /// Whether `lease` is done.
    #[must_use]
    pub fn contains(&self, lease: u64) -> bool {
        let OrderIndex(place) = self.order.place(lease);
        let at = self.beyond.partition_point(|run| run.end <= place);
        place < self.through || self.beyond.get(at).is_some_and(|run| run.contains(&place))
    }

    /// The number of finished leases.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.through + self.beyond.iter().map(|run| run.end - run.start).sum::<u64>()
    }

    /// The place after the last finished one.
    pub(super) fn end(&self) -> u64 {
        self.beyond.last().map_or(self.through, |run| run.end)
    }

    /// The places below the [end](Self::end) that are not done.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = std::iter::once(self.through).chain(self.beyond.iter().map(|run| run.end));
        starts.zip(&self.beyond).map(|(start, run)| start..run.start)
    }
}

impl Field for LeaseOrder {
    fn put(&self, out: &mut Vec<u8>) {
        self.ranges.put(out);
        self.shuffle.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ranges: Field::get(input)?, shuffle: Field::get(input)? })
    }
}

impl Field for FinishedLeases {
    fn put(&self, out: &mut Vec<u8>) {
        self.order.put(out);
        self.through.put(out);
        self.beyond.iter().map(|run| (run.start, run.end)).collect::<Vec<_>>().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (order, through): (LeaseOrder, u64) = Field::get(input)?;
        let runs: Vec<(u64, u64)> = Field::get(input)?;
        let mut from = through;
        for (start, end) in &runs {
            if *start <= from || end <= start {
                return Err(WireError::Malformed("finished leases out of order"));
            }
            from = *end;
        }
        let beyond = runs.into_iter().map(|(start, end)| start..end).collect();
        Ok(Self { order, through, beyond })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LeaseOrder = LeaseOrder { ranges: 100, shuffle: None };

    type Run = (u64, u64);

    fn done(order: LeaseOrder, end: u64, open: &[Run]) -> FinishedLeases {
        FinishedLeases::all_but(order, end, open.iter().map(|(start, end)| *start..*end))
    }

    #[test]
    fn finished_leases_are_all_but_the_open_ones() {
        // (end, open, through, beyond); a run is (first place, place after the last)
        let cases: [(u64, &[Run], u64, &[Run]); 6] = [
            (0, &[], 0, &[]),
            (9, &[], 9, &[]),
            (9, &[(0, 9)], 0, &[]),
            (9, &[(0, 2)], 0, &[(2, 9)]),
            (9, &[(7, 9)], 7, &[]),
            (9, &[(3, 4), (4, 5), (7, 8)], 3, &[(5, 7), (8, 9)]),
        ];
        for (end, open, through, beyond) in cases {
            let done = done(PLAIN, end, open);
            let runs: Vec<Run> = done.beyond.iter().map(|run| (run.start, run.end)).collect();
            assert_eq!((done.through, &runs[..]), (through, beyond), "{open:?} below {end}");
            for lease in 0..12 {
                let expected = lease < end && !open.iter().any(|(start, end)| (*start..*end).contains(&lease));
                assert_eq!(done.contains(lease), expected, "lease {lease}, {open:?} below {end}");
            }
            let open_places = open.iter().map(|(start, end)| end - start).sum::<u64>();
            assert_eq!(done.count(), end - open_places);
            let gaps: Vec<u64> = done.gaps().flatten().collect();
            assert_eq!(gaps, (0..done.end()).filter(|lease| !done.contains(*lease)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn finished_leases_follow_a_shuffled_order() {
        let order = LeaseOrder { ranges: 100, shuffle: Some(9) };
        let done = done(order, 60, &[(20, 30)]);
        let places = (0..100).map(|place| (place, order.lease(OrderIndex(place))));
        assert!(
            places
                .into_iter()
                .all(|(place, lease)| { done.contains(lease) == (place < 20 || (30..60).contains(&place)) })
        );
    }

    #[test]
    fn finished_leases_round_trip_and_damaged_bytes_are_refused() {
        let done = done(LeaseOrder { ranges: 100, shuffle: Some(9) }, 60, &[(20, 30), (40, 41)]);
        let mut bytes = Vec::new();
        done.put(&mut bytes);
        assert_eq!(FinishedLeases::get(&mut Reader(&bytes)), Ok(done));
        for length in 0..bytes.len() {
            assert!(FinishedLeases::get(&mut Reader(&bytes[..length])).is_err(), "{length} of {} bytes", bytes.len());
        }
        for runs in [vec![(5u64, 9u64)], vec![(7, 7)], vec![(9, 8)], vec![(8, 9), (9, 10)], vec![(8, 12), (10, 14)]] {
            let mut bytes = Vec::new();
            (PLAIN, 5u64).put(&mut bytes);
            runs.put(&mut bytes);
            assert!(FinishedLeases::get(&mut Reader(&bytes)).is_err(), "{runs:?} beyond 5");
        }
    }
}
