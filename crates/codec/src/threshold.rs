//! Threshold sparsification with error feedback. Of the sums x = g + e (new value plus residual),
//! the encoder sends those of at least a given magnitude, unchanged. The others stay whole in the
//! residual, so sent + e′ is exactly x. Decoded by [`sparse`](crate::sparse).

use crate::{places::append_large, top_k::send, twin::twin};

/// The least magnitude that is sent; positive and finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least(f32);

impl Least {
    /// `None` unless positive and finite.
    #[must_use]
    pub fn new(least: f32) -> Option<Self> {
        (least > 0.0 && least.is_finite()).then_some(Self(least))
    }

    /// The magnitude as a number.
    #[must_use]
    pub fn get(self) -> f32 {
        self.0
    }
}

/// Replaces `out` with the sums of `values` and `residual` of at least magnitude `least`, and
/// `residual` with what was not sent. A sum that is not finite is sent, and the receiver refuses
/// it. `places` is scratch memory, which the caller keeps between batches to save allocations.
///
/// # Panics
/// If `values` and `residual` differ in length or are more than 2³².
pub fn encode(values: &[f32], residual: &mut [f32], least: Least, places: &mut Vec<u64>, out: &mut Vec<u8>) {
    assert_eq!(values.len(), residual.len(), "a residual for every value");
    assert!(u32::try_from(values.len()).is_ok(), "a batch of fewer than 2^32 values");
    add(values, residual);
    places.clear();
    append_large(residual, least.0.to_bits(), places);
    send(residual, places, out);
}

twin! {
fn add, add_plain(values: &[f32], residual: &mut [f32]) {
    for (value, residual) in values.iter().zip(residual) {
        *residual += value;
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sparse, testing::noise};

    #[test]
    fn threshold_sends_large_values_and_keeps_the_others() {
        let mut bytes = Vec::new();
        let mut sent = [0f32; 5];
        let mut residual = [0.25, 0.0, 0.0, -0.25, 0.0];
        let least = Least::new(0.5).unwrap();
        encode(&[0.25, 0.49, -0.5, -0.2, f32::NAN], &mut residual, least, &mut Vec::new(), &mut bytes);
        sparse::decode(&bytes, &mut sent).unwrap();
        assert_eq!(sent[..4], [0.5, 0.0, -0.5, 0.0]);
        assert!(sent[4].is_nan());
        assert_eq!(residual, [0.0, 0.49, 0.0, -0.45, 0.0]);
    }

    #[test]
    fn thresholds_are_positive_and_finite() {
        assert!([0.0, -1.0, f32::NAN, f32::INFINITY].iter().all(|&least| Least::new(least).is_none()));
        assert_eq!(Least::new(1e-45).map(Least::get), Some(1e-45));
    }

    #[test]
    fn both_twins_agree() {
        let values = noise(1000, 1);
        let mut wide = noise(1000, 2);
        let mut plain = noise(1000, 2);
        add(&values, &mut wide);
        add_plain(&values, &mut plain);
        assert_eq!(wide, plain);
    }
}
