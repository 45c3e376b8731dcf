//! Run-length map from places to values: stores runs of places with equal values, so memory follows
//! the number of runs, not of places.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint runs of places, each with a value. Adjacent places with equal values are one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T: Copy + Eq> Spans<T> {
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.0.len()
    }

    /// The number of places that have a value.
    pub fn places(&self) -> u64 {
        self.0.iter().map(|(start, (end, _))| end - start).sum()
    }

    /// The first place that has a value.
    pub fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// The runs, by rising place.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, T)> + '_ {
        self.0.iter().map(|(start, (end, value))| (*start..*end, *value))
    }

    pub fn get(&self, place: u64) -> Option<T> {
        let (_, (end, value)) = self.0.range(..=place).next_back()?;
        (place < *end).then_some(*value)
    }

    /// Sets the value of `places`, none of which may have a value.
    pub fn insert(&mut self, places: Range<u64>, value: T) {
        if places.is_empty() {
            return;
        }
        let Range { mut start, mut end } = places;
        if let Some((&before, &(before_end, before_value))) = self.0.range(..start).next_back() {
            debug_assert!(before_end <= start, "place {start} has a value");
            if before_end == start && before_value == value {
                start = before;
            }
        }
        if let Some((&after, &(after_end, after_value))) = self.0.range(places.start..).next() {
            debug_assert!(end <= after, "place {after} has a value");
            if after == end && after_value == value {
                self.0.remove(&after);
                end = after_end;
            }
        }
        self.0.insert(start, (end, value));
    }

    /// Removes and returns the value of one place.
    pub fn take(&mut self, place: u64) -> Option<T> {
        let (&start, &(end, value)) = self.0.range(..=place).next_back().filter(|(_, (end, _))| place < *end)?;
        self.0.remove(&start);
        if start < place {
            self.0.insert(start, (place, value));
        }
        if place + 1 < end {
            self.0.insert(place + 1, (end, value));
        }
        Some(value)
    }

    /// Removes and returns the first places, at most `most` and all of one run.
    pub fn take_first(&mut self, most: u64) -> Option<(Range<u64>, T)> {
        let (start, (end, value)) = self.0.pop_first()?;
        let taken_end = end.min(start.saturating_add(most));
        if taken_end < end {
            self.0.insert(taken_end, (end, value));
        }
        Some((start..taken_end, value))
    }

    /// Removes the values for which `keep` is false. Returns their places.
    pub fn drain_unless(&mut self, keep: impl Fn(&T) -> bool) -> Vec<Range<u64>> {
        let gone: Vec<Range<u64>> = self.iter().filter(|(_, value)| !keep(value)).map(|(places, _)| places).collect();
        for places in &gone {
            self.0.remove(&places.start);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least number of runs that can store `places`.
    fn fewest_runs(places: &BTreeMap<u64, u8>) -> usize {
        places.iter().filter(|(place, value)| place.checked_sub(1).and_then(|p| places.get(&p)) != Some(value)).count()
    }

    proptest! {
        #[test]
        fn spans_agree_with_a_map_of_single_places(steps in prop::collection::vec((0u8..4, 0u64..40, 1u64..6, 0u8..3), 0..60)) {
            let mut spans = Spans::new();
            let mut places = BTreeMap::new();
            for (kind, start, length, value) in steps {
                match kind {
                    0 if (start..start + length).all(|place| !places.contains_key(&place)) => {
                        spans.insert(start..start + length, value);
                        places.extend((start..start + length).map(|place| (place, value)));
                    }
                    0 | 1 => prop_assert_eq!(spans.take(start), places.remove(&start)),
                    2 => {
                        let taken = spans.take_first(length);
                        prop_assert_eq!(taken.as_ref().map(|(run, _)| run.start), places.keys().next().copied());
                        if let Some((run, value)) = taken {
                            prop_assert!(!run.is_empty() && run.end - run.start <= length);
                            run.for_each(|place| assert_eq!(places.remove(&place), Some(value)));
                        }
                    }
                    _ => {
                        let gone: Vec<u64> = spans.drain_unless(|kept| *kept != value).into_iter().flatten().collect();
                        let expected: Vec<u64> = places.iter().filter(|(_, v)| **v == value).map(|(p, _)| *p).collect();
                        prop_assert_eq!(gone, expected);
                        places.retain(|_, v| *v != value);
                    }
                }
                let told: Vec<(u64, u8)> = spans.iter().flat_map(|(run, value)| run.map(move |p| (p, value))).collect();
                prop_assert_eq!(&told, &places.iter().map(|(p, v)| (*p, *v)).collect::<Vec<_>>());
                prop_assert_eq!(spans.runs(), fewest_runs(&places));
                prop_assert_eq!((spans.places(), spans.first()), (places.len() as u64, places.keys().next().copied()));
                prop_assert!((0..50).all(|place| spans.get(place) == places.get(&place).copied()));
            }
        }
    }
}
