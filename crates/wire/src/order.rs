//! Bucket sort of positions: linear time for evenly spread positions, O(n log n) otherwise.

/// A position and its index in the input.
type Entry = (u64, u32);

/// A bucket of more entries is not sorted by insertion: its positions are not evenly spread,
/// perhaps by a hostile choice of keys.
const CROWDED: usize = 32;

/// Returns the distinct positions, sorted. Fills `places` with the index of each given position in
/// the result.
pub fn distinct(positions: &[u64], places: &mut Vec<u32>) -> Vec<u64> {
    places.clear();
    places.resize(positions.len(), 0);
    let mut distinct: Vec<u64> = Vec::with_capacity(positions.len());
    for (position, index) in sorted(positions) {
        if distinct.last() != Some(&position) {
            distinct.push(position);
        }
        places[index as usize] = (distinct.len() - 1) as u32;
    }
    distinct
}

/// Distributes the positions to buckets by their highest bits, then sorts each bucket.
fn sorted(positions: &[u64]) -> Vec<Entry> {
    let entries = positions.iter().copied().zip(0..);
    // About one entry a bucket for evenly spread positions.
    let Some(bits) = positions.len().checked_ilog2().filter(|bits| *bits > 0) else {
        let mut entries: Vec<Entry> = entries.collect();
        entries.sort_unstable();
        return entries;
    };
    let bucket = |position: u64| (position >> (64 - bits)) as usize;
    // The index of each bucket's next entry; after the loop, the end of the bucket.
    let mut ends = vec![0u32; 1 << bits];
    positions.iter().for_each(|position| ends[bucket(*position)] += 1);
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut dealt: Vec<Entry> = vec![(0, 0); positions.len()];
    for entry in entries {
        let end = &mut ends[bucket(entry.0)];
        dealt[*end as usize] = entry;
        *end += 1;
    }
    let mut start = 0;
    for end in ends {
        let entries = &mut dealt[start..end as usize];
        start = end as usize;
        if entries.len() > CROWDED { entries.sort_unstable() } else { insertion_sort(entries) }
    }
    dealt
}

fn insertion_sort(entries: &mut [Entry]) {
    for end in 1..entries.len() {
        let entry = entries[end];
        let mut at = end;
        while at > 0 && entries[at - 1].0 > entry.0 {
            entries[at] = entries[at - 1];
            at -= 1;
        }
        entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(positions: &[u64]) {
        let mut places = vec![7; 3];
        let found = distinct(positions, &mut places);
        let mut expected = positions.to_vec();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(found, expected);
        let back: Vec<u64> = places.iter().map(|place| found[*place as usize]).collect();
        assert_eq!(back, positions);
    }

    proptest! {
        #[test]
        fn distinct_sorts_spread_and_crowded_positions(
            spread in prop::collection::vec(any::<u64>(), 0..300),
            crowded in prop::collection::vec(0..200u64, 0..300),
            same in 0..100usize,
        ) {
            check(&spread);
            check(&crowded);
            check(&[&spread[..], &crowded, &vec![u64::MAX; same]].concat());
        }
    }
}
