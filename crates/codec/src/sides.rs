//! The pass over a group that finds its signs and the means of its two sides.

use crate::group::{EIGHT, each_eight, gathered, mean, negative, select};

/// The means of g + e on either side of zero, with the sign bits, eight to a byte. Not finite where a sum is not.
#[inline]
pub(crate) fn side_means(values: &[f32], residual: &[f32], signs: &mut [u8]) -> [f32; 2] {
    #[cfg(target_arch = "x86_64")]
    if crate::twin::has_avx2() {
        // SAFETY: the processor has every feature that the wide twin is compiled for; asked on the line above.
        return unsafe { wide::side_means(values, residual, signs) };
    }
    side_means_plain(values, residual, signs)
}

fn side_means_plain(values: &[f32], residual: &[f32], signs: &mut [u8]) -> [f32; 2] {
    // In f64, so that no sum of finite numbers overflows.
    let (mut above, mut below) = ([0f64; EIGHT], [0f64; EIGHT]);
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
    [mean(above, values.len() as u32 - negatives), mean(below, negatives)]
}

/// The same, eight sums in one register.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256, __m256d, _mm256_add_pd, _mm256_and_ps, _mm256_andnot_ps, _mm256_castps_si256, _mm256_castps256_ps128,
        _mm256_castsi256_ps, _mm256_cvtps_pd, _mm256_extractf128_ps, _mm256_movemask_ps, _mm256_setzero_pd,
        _mm256_srai_epi32,
    };

    use crate::group::{EIGHT, each_eight, mean};

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub fn side_means(values: &[f32], residual: &[f32], signs: &mut [u8]) -> [f32; 2] {
        let (mut above, mut below) = ([_mm256_setzero_pd(); 2], [_mm256_setzero_pd(); 2]);
        let mut negatives = 0;
        each_eight(values, residual, |place, sums| {
            let sums: __m256 = bytemuck::must_cast(sums);
            let negative = _mm256_castsi256_ps(_mm256_srai_epi32::<31>(_mm256_castps_si256(sums)));
            above = add(above, _mm256_andnot_ps(negative, sums));
            below = add(below, _mm256_and_ps(negative, sums));
            signs[place] = _mm256_movemask_ps(sums) as u8;
            negatives += signs[place].count_ones();
        });
        let lanes = |halves: [__m256d; 2]| bytemuck::must_cast::<_, [f64; EIGHT]>(halves);
        [mean(lanes(above), values.len() as u32 - negatives), mean(lanes(below), negatives)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(halves: [__m256d; 2], sums: __m256) -> [__m256d; 2] {
        let low = _mm256_cvtps_pd(_mm256_castps256_ps128(sums));
        let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(sums));
        [_mm256_add_pd(halves[0], low), _mm256_add_pd(halves[1], high)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn both_twins_agree() {
        for length in (0..40).chain([785, 1024]) {
            for (values, residual) in [(noise(length, 1), noise(length, 3)), (awkward(length, 2), noise(length, 4))] {
                let (mut signs, mut signs_plain) = (vec![0; length.div_ceil(8)], vec![0; length.div_ceil(8)]);
                let means = side_means(&values, &residual, &mut signs);
                let means_plain = side_means_plain(&values, &residual, &mut signs_plain);
                assert_eq!(signs, signs_plain);
                // A NaN's own bits may differ: the group is sent as NaNs whatever they are.
                let bits = |means: [f32; 2]| means.map(|mean| if mean.is_nan() { 0 } else { mean.to_bits() });
                assert_eq!(bits(means), bits(means_plain));
            }
        }
    }
}
