//! Top-k sparsification with error feedback. Of the sums x = g + e (new value plus residual), the
//! encoder sends the k of largest magnitude, unchanged. The others stay whole in the residual, so
//! sent + e′ is exactly x. Decoded by [`sparse`].
//!
//! A value that is not finite counts as largest. It is sent, and the receiver refuses it.

use crate::{
    places::{append_large, magnitude},
    sparse,
    twin::twin,
};

/// A share in percent, above 0 and at most 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentage {
    percent: f64,
}

impl Percentage {
    /// `None` unless above 0 and at most 100.
    #[must_use]
    pub fn from_percent(percent: f64) -> Option<Self> {
        (percent > 0.0 && percent <= 100.0).then_some(Self { percent })
    }

    /// The share in percent.
    #[must_use]
    pub fn percent(self) -> f64 {
        self.percent
    }

    /// This share of `count`, rounded up: at least one unless `count` is 0.
    #[must_use]
    pub fn of(self, count: usize) -> usize {
        // Rounding up starts slightly lower, so that 1% of 300 is 3 although 0.01 × 300 is inexact.
        let exact = self.percent * count as f64 / 100.0;
        ((exact * (1.0 - 1e-12)).ceil() as usize).clamp(count.min(1), count)
    }
}

/// Buckets of magnitudes: the exponent and three bits of the significand.
const BUCKETS: usize = 1 << 11;
const BUCKET_SHIFT: u32 = 20;

/// Values that are added and then counted together, while they are in the processor's cache.
const NEAR: usize = 1024;

/// Scratch memory of the encoder. The caller keeps it between batches to save allocations.
#[derive(Debug, Default)]
pub struct TopKScratch {
    places: Vec<u64>,
    contenders: Vec<u64>,
}

/// Replaces `out` with the largest sums of `values` and `residual`, and `residual` with what was
/// not sent. Sends exactly `share` of the values, or all that are not zero if they are fewer. Among
/// equal magnitudes, the first go.
///
/// # Panics
/// If `values` and `residual` differ in length or are more than 2³².
pub fn encode(values: &[f32], residual: &mut [f32], share: Percentage, scratch: &mut TopKScratch, out: &mut Vec<u8>) {
    assert_eq!(values.len(), residual.len(), "a residual for every value");
    assert!(u32::try_from(values.len()).is_ok(), "a batch of fewer than 2^32 values");
    let wanted = share.of(values.len());
    let mut counts = vec![[0; 2]; BUCKETS];
    add_and_count(values, residual, &mut counts);
    let (bucket, above) = bucket_of(&counts, wanted);
    let TopKScratch { places, contenders } = scratch;
    places.clear();
    // At least 1, so that zeros are never sent.
    append_large(residual, ((bucket as u32) << BUCKET_SHIFT).max(1), places);
    if places.len() > wanted {
        keep_largest(residual, bucket, wanted - above, places, contenders);
    }
    send(residual, places, out);
}

/// Encodes `sums` at `places` to `out`, and sets them to zero in `sums`.
pub(crate) fn send(sums: &mut [f32], places: &[u64], out: &mut Vec<u8>) {
    sparse::encode(sums, places, out);
    for &place in places {
        sums[place as usize] = 0.0;
    }
}

twin! {
/// Adds `values` to `residual` and counts the sums by bucket. Neighbours often share a bucket, and
/// a processor waits for its own last write; so two counters alternate.
fn add_and_count, add_and_count_plain(values: &[f32], residual: &mut [f32], counts: &mut [[u32; 2]]) {
    let Ok(counts) = <&mut [[u32; 2]; BUCKETS]>::try_from(counts) else { return };
    for (values, residual) in values.chunks(NEAR).zip(residual.chunks_mut(NEAR)) {
        for (value, residual) in values.iter().zip(residual.iter_mut()) {
            *residual += value;
        }
        let (pairs, rest) = residual.as_chunks::<2>();
        for pair in pairs {
            counts[(magnitude(pair[0]) >> BUCKET_SHIFT) as usize][0] += 1;
            counts[(magnitude(pair[1]) >> BUCKET_SHIFT) as usize][1] += 1;
        }
        for &value in rest {
            counts[(magnitude(value) >> BUCKET_SHIFT) as usize][0] += 1;
        }
    }
}
}

/// The bucket of the smallest of the `wanted` largest values, and the number of values above that
/// bucket.
fn bucket_of(counts: &[[u32; 2]], wanted: usize) -> (usize, usize) {
    let mut above = 0;
    for (bucket, count) in counts.iter().enumerate().rev() {
        let count = count[0] as usize + count[1] as usize;
        if above + count >= wanted {
            return (bucket, above);
        }
        above += count;
    }
    (0, above)
}

/// Reduces `places` to the values above `bucket` and the `wanted` largest within it.
fn keep_largest(sums: &[f32], bucket: usize, wanted: usize, places: &mut Vec<u64>, contenders: &mut Vec<u64>) {
    // Ranks by magnitude, then the earlier place first; no two ranks are equal.
    let rank = |place: u64| u64::from(magnitude(sums[place as usize])) << 32 | (u64::from(u32::MAX) - place);
    let beyond = ((bucket as u64 + 1) << BUCKET_SHIFT) << 32;
    contenders.clear();
    contenders.extend(places.iter().map(|&place| rank(place)).filter(|&rank| rank < beyond));
    let Some(last) = contenders.len().checked_sub(wanted).filter(|&last| last < contenders.len()) else {
        return places.retain(|&place| rank(place) >= beyond);
    };
    let (_, &mut least, _) = contenders.select_nth_unstable(last);
    places.retain(|&place| rank(place) >= least);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    fn sent(values: &[f32], residual: &mut [f32], percent: f64) -> Vec<f32> {
        let mut bytes = Vec::new();
        let mut out = vec![f32::NAN; values.len()];
        encode(values, residual, Percentage::from_percent(percent).unwrap(), &mut TopKScratch::default(), &mut bytes);
        sparse::decode(&bytes, &mut out).unwrap();
        out
    }

    #[test]
    fn top_k_sends_exactly_the_largest_and_keeps_the_others() {
        for length in [1, 2, 10, 300, 5000] {
            for percent in [0.1, 1.0, 1.5, 30.0, 99.0, 100.0] {
                let values = noise(length, 7);
                let kept = noise(length, 8);
                let sums: Vec<f32> = values.iter().zip(&kept).map(|(value, kept)| value + kept).collect();
                let mut residual = kept;
                let sent = sent(&values, &mut residual, percent);
                let count = Percentage::from_percent(percent).unwrap().of(length);
                let mut order: Vec<usize> = (0..length).collect();
                order.sort_by(|&a, &b| sums[b].abs().total_cmp(&sums[a].abs()).then(a.cmp(&b)));
                for (rank, &place) in order.iter().enumerate() {
                    let expected = if rank < count { (sums[place], 0.0) } else { (0.0, sums[place]) };
                    assert_eq!((sent[place], residual[place]), expected, "{length} values, {percent}%, rank {rank}");
                }
            }
        }
    }

    #[test]
    fn top_k_sends_the_first_among_equals_and_never_zeros() {
        let mut residual = [0.0; 8];
        assert_eq!(sent(&[1.0; 8], &mut residual, 25.0), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let mut residual = [0.0; 4];
        assert_eq!(sent(&[0.0, 1e-45, -0.0, 0.0], &mut residual, 100.0), [0.0, 1e-45, 0.0, 0.0]);
        let mut bytes = Vec::new();
        let share = Percentage::from_percent(50.0).unwrap();
        encode(&[0.0; 100], &mut [0.0; 100], share, &mut TopKScratch::default(), &mut bytes);
        assert_eq!(bytes.len(), 1);
    }

    #[test]
    fn top_k_sends_values_that_are_not_finite_first() {
        let mut values = noise(1000, 3);
        values[500] = f32::NAN;
        values[7] = f32::INFINITY;
        let mut residual = vec![0.0; 1000];
        let sent = sent(&values, &mut residual, 0.2);
        assert!(sent[500].is_nan() && sent[7].is_infinite());
        assert!(residual.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn percentages_round_up() {
        let of = |percent, count| Percentage::from_percent(percent).unwrap().of(count);
        assert_eq!((of(1.0, 300), of(1.0, 301), of(0.001, 5), of(1.5, 0), of(100.0, 7)), (3, 4, 1, 0, 7));
        assert_eq!(
            (1..=100).map(|percent| of(f64::from(percent), 100)).collect::<Vec<_>>(),
            (1..=100).collect::<Vec<_>>()
        );
        assert!([0.0, -1.0, 100.1, f64::NAN].iter().all(|&percent| Percentage::from_percent(percent).is_none()));
    }

    #[test]
    fn both_twins_agree() {
        for length in [0, 1, 1023, 1024, 5000] {
            for (values, kept) in [(noise(length, 1), noise(length, 3)), (awkward(length, 2), noise(length, 4))] {
                let mut wide = kept.clone();
                let mut plain = kept;
                let mut counts = vec![[0; 2]; BUCKETS];
                let mut counts_plain = vec![[0; 2]; BUCKETS];
                add_and_count(&values, &mut wide, &mut counts);
                add_and_count_plain(&values, &mut plain, &mut counts_plain);
                assert_eq!(counts, counts_plain);
                let bits = |values: &[f32]| {
                    values.iter().map(|value| value.is_nan() || value.is_sign_negative()).collect::<Vec<_>>()
                };
                assert_eq!(bits(&wide), bits(&plain));
                assert!(wide.iter().zip(&plain).all(|(a, b)| a == b || a.is_nan() && b.is_nan()));
            }
        }
    }
}
