//! Passes over a group of values for grouped sign quantisation
//! ([`grouped_sign`](crate::grouped_sign)): signs, sums above and below zero, and the values beyond
//! their side's mean.
//!
//! The encoder quantises g + e: the new value g plus its residual e.

use crate::group::{EIGHT, each_eight, gathered, negative, select, total};

/// The number of values on each side of zero, and their sums. Index 0 is above zero, index 1 below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sides {
    pub(crate) counts: [u32; 2],
    pub(crate) sums: [f64; 2],
}

impl Sides {
    /// The mean of each side; 0 for an empty side. Not finite if a value is not.
    pub(crate) fn means(self) -> [f32; 2] {
        let mean = |side: usize| (self.sums[side] / f64::from(self.counts[side].max(1))) as f32;
        [mean(0), mean(1)]
    }

    /// These counts and sums less those of `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            counts: std::array::from_fn(|side| self.counts[side] - other.counts[side]),
            sums: std::array::from_fn(|side| self.sums[side] - other.sums[side]),
        }
    }
}

/// The two sides of g + e. Writes the sign bits to `signs`, eight to a byte.
#[inline]
pub(crate) fn sides(values: &[f32], residual: &[f32], signs: &mut [u8]) -> Sides {
    #[cfg(target_arch = "x86_64")]
    if crate::twin::has_avx2() {
        // SAFETY: the processor has every feature that the wide twin is compiled for; asked on the
        // line above.
        return unsafe { wide::sides(values, residual, signs) };
    }
    sides_plain(values, residual, signs)
}

/// The sides of g + e, counting only values further from zero than their side's mean. Writes a bit
/// for each such value to `far`.
#[inline]
pub(crate) fn beyond(values: &[f32], residual: &[f32], means: [f32; 2], far: &mut [u8]) -> Sides {
    #[cfg(target_arch = "x86_64")]
    if crate::twin::has_avx2() {
        // SAFETY: the processor has every feature that the wide twin is compiled for; asked on the
        // line above.
        return unsafe { wide::beyond(values, residual, means, far) };
    }
    beyond_plain(values, residual, means, far)
}

/// A mask of all ones if `sum` lies further from zero than the mean of its side, else zero.
#[inline(always)]
pub(crate) fn is_beyond(sum: f32, [above, below]: [f32; 2]) -> u32 {
    let mean = select(negative(sum), below, above);
    0u32.wrapping_sub(u32::from(sum.abs() > mean.abs()))
}

fn sides_plain(values: &[f32], residual: &[f32], signs: &mut [u8]) -> Sides {
    // Sums in f64, so that finite f32 values cannot overflow.
    let mut above = [0f64; EIGHT];
    let mut below = [0f64; EIGHT];
    let mut negatives = 0;
    each_eight(values, residual, |place, sums| {
        let masks = sums.map(negative);
        for lane in 0..EIGHT {
            above[lane] += f64::from(select(masks[lane], 0.0, sums[lane]));
            below[lane] += f64::from(select(masks[lane], sums[lane], 0.0));
        }
        signs[place] = gathered(masks);
        negatives += signs[place].count_ones();
    });
    Sides { counts: [values.len() as u32 - negatives, negatives], sums: [total(above), total(below)] }
}

fn beyond_plain(values: &[f32], residual: &[f32], means: [f32; 2], far: &mut [u8]) -> Sides {
    let mut above = [0f64; EIGHT];
    let mut below = [0f64; EIGHT];
    let mut counts = [0; 2];
    each_eight(values, residual, |place, sums| {
        let negatives = sums.map(negative);
        let masks = sums.map(|sum| is_beyond(sum, means));
        for lane in 0..EIGHT {
            above[lane] += f64::from(select(masks[lane] & !negatives[lane], sums[lane], 0.0));
            below[lane] += f64::from(select(masks[lane] & negatives[lane], sums[lane], 0.0));
        }
        far[place] = gathered(masks);
        counts[0] += (far[place] & !gathered(negatives)).count_ones();
        counts[1] += (far[place] & gathered(negatives)).count_ones();
    });
    Sides { counts, sums: [total(above), total(below)] }
}

/// The AVX2 twins, with eight values in one register.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256, __m256d, _CMP_GT_OQ, _mm256_add_pd, _mm256_and_ps, _mm256_andnot_ps, _mm256_blendv_ps,
        _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_pd,
        _mm256_extractf128_ps, _mm256_movemask_ps, _mm256_set1_ps, _mm256_setzero_pd, _mm256_srai_epi32,
    };

    use super::Sides;
    use crate::group::{EIGHT, each_eight, total};

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub fn sides(values: &[f32], residual: &[f32], signs: &mut [u8]) -> Sides {
        let mut lanes = Lanes::zero();
        let mut negatives = 0;
        each_eight(values, residual, |place, sums| {
            let sums: __m256 = bytemuck::must_cast(sums);
            lanes.add(sums, negative(sums));
            signs[place] = _mm256_movemask_ps(sums) as u8;
            negatives += signs[place].count_ones();
        });
        Sides { counts: [values.len() as u32 - negatives, negatives], sums: lanes.totals() }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub fn beyond(values: &[f32], residual: &[f32], means: [f32; 2], far: &mut [u8]) -> Sides {
        let [above, below] = means.map(|mean| _mm256_set1_ps(mean.abs()));
        let sign = _mm256_set1_ps(-0.0);
        let mut lanes = Lanes::zero();
        let mut counts = [0; 2];
        each_eight(values, residual, |place, sums| {
            let sums: __m256 = bytemuck::must_cast(sums);
            let mean = _mm256_blendv_ps(above, below, sums);
            let beyond = _mm256_cmp_ps::<_CMP_GT_OQ>(_mm256_andnot_ps(sign, sums), mean);
            lanes.add(_mm256_and_ps(sums, beyond), negative(sums));
            let signs = _mm256_movemask_ps(sums) as u8;
            far[place] = _mm256_movemask_ps(beyond) as u8;
            counts[0] += (far[place] & !signs).count_ones();
            counts[1] += (far[place] & signs).count_ones();
        });
        Sides { counts, sums: lanes.totals() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn negative(sums: __m256) -> __m256 {
        _mm256_castsi256_ps(_mm256_srai_epi32::<31>(_mm256_castps_si256(sums)))
    }

    /// Sums above and below zero in f64, each as lanes 0 to 3 and 4 to 7.
    struct Lanes([[__m256d; 2]; 2]);

    impl Lanes {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn zero() -> Self {
            Self([[_mm256_setzero_pd(); 2]; 2])
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        fn add(&mut self, sums: __m256, negative: __m256) {
            let sides = [_mm256_andnot_ps(negative, sums), _mm256_and_ps(negative, sums)];
            for (lanes, side) in self.0.iter_mut().zip(sides) {
                let low = _mm256_cvtps_pd(_mm256_castps256_ps128(side));
                let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(side));
                *lanes = [_mm256_add_pd(lanes[0], low), _mm256_add_pd(lanes[1], high)];
            }
        }

        fn totals(self) -> [f64; 2] {
            self.0.map(|lanes| total(bytemuck::must_cast::<_, [f64; EIGHT]>(lanes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn both_twins_agree() {
        // The bits of a NaN may differ between twins: the group is sent as NaNs either way.
        let bits = |sides: Sides| sides.sums.map(|sum| if sum.is_nan() { 0 } else { sum.to_bits() });
        for length in (0..40).chain([785, 1024]) {
            for (values, residual) in [(noise(length, 1), noise(length, 3)), (awkward(length, 2), noise(length, 4))] {
                let mut wide = vec![0; length.div_ceil(8)];
                let mut plain = vec![0; length.div_ceil(8)];
                let both = [sides(&values, &residual, &mut wide), sides_plain(&values, &residual, &mut plain)];
                assert_eq!((bits(both[0]), both[0].counts, &wide), (bits(both[1]), both[1].counts, &plain));
                let means = [0.3, -0.2];
                let far = beyond(&values, &residual, means, &mut wide);
                let far_plain = beyond_plain(&values, &residual, means, &mut plain);
                assert_eq!((bits(far), far.counts, &wide), (bits(far_plain), far_plain.counts, &plain));
            }
        }
    }
}
