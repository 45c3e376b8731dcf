//! Loops over the numbers of a push: find the first that is not finite, and add them (or apply
//! another operation), number by number, to other numbers.

use crate::Number;

/// Numbers that are tested together before the loop looks for the one that is not finite: enough to
/// vectorise, few enough to stay in the cache.
const BLOCK: usize = 1024;

/// Index of the first number that is not finite, if any.
///
/// ```
/// assert_eq!(update::first_not_finite(&[1.0f32, f32::NAN, f32::INFINITY]), Some(1));
/// assert_eq!(update::first_not_finite(&[1i64, 2, 3]), None);
/// ```
pub fn first_not_finite<T: Number>(values: &[T]) -> Option<usize> {
    let block = values.chunks(BLOCK).position(T::any_not_finite)?;
    let start = block * BLOCK;
    let within = values[start..].iter().position(|x| !x.is_finite())?;
    Some(start + within)
}

/// into\[i\] += from\[i\].
///
/// # Panics
/// If the two differ in length.
pub fn add_into<T: Number>(into: &mut [T], from: &[T]) {
    change_numbers(into, from, T::plus);
}

/// into\[i\] = change(into\[i\], from\[i\]).
pub(crate) fn change_numbers<T: Number>(into: &mut [T], from: &[T], change: impl Fn(T, T) -> T) {
    assert_eq!(into.len(), from.len(), "both sides need the same length");
    for (into, &from) in into.iter_mut().zip(from) {
        *into = change(*into, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_found_at_every_position<T: Number>(bad: [T; 3]) {
        // Two whole blocks and a part of one, among small and large neighbours.
        for good in [T::ZERO, T::LARGEST] {
            let mut values = vec![good; 2 * BLOCK + 7];
            assert_eq!(first_not_finite(&values), None);
            for position in 0..values.len() {
                values[position] = bad[position % 3];
                assert_eq!(first_not_finite(&values), Some(position));
                values[position] = good;
            }
            // Later ones do not hide the first.
            values[5] = bad[0];
            values[6] = bad[1];
            values[BLOCK] = bad[2];
            assert_eq!(first_not_finite(&values), Some(5));
        }
        for alone in bad {
            assert_eq!(first_not_finite(&[alone]), Some(0));
        }
    }

    #[test]
    fn every_infinity_and_nan_is_found_at_every_position() {
        assert_found_at_every_position([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        assert_found_at_every_position([f32::from_bits(0x7f80_0001), f32::from_bits(u32::MAX), f32::NAN]);
        assert_found_at_every_position([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        assert_found_at_every_position([f64::from_bits(0x7ff0_0000_0000_0001), f64::from_bits(u64::MAX), f64::NAN]);
    }

    #[test]
    fn every_finite_number_passes() {
        let reals = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), -1.0];
        assert_eq!(first_not_finite(&reals), None);
        assert_eq!(first_not_finite(&reals.map(f64::from)), None);
        assert_eq!(first_not_finite(&[f64::MAX, f64::MIN, f64::from_bits(1)]), None);
        assert_eq!(first_not_finite(&[i64::MIN, i64::MAX, -1]), None);
        assert_eq!(first_not_finite::<f32>(&[]), None);
    }

    #[test]
    fn add_into_adds_number_by_number() {
        for length in [0, 1, 7, 8, 1025] {
            let mut into: Vec<f32> = (0..length).map(|i| i as f32).collect();
            add_into(&mut into, &vec![0.5; length]);
            assert!(into.iter().enumerate().all(|(i, &x)| x == i as f32 + 0.5));
        }
    }

    #[test]
    #[should_panic(expected = "same length")]
    fn add_into_panics_on_different_lengths() {
        add_into(&mut [0.0f32; 3], &[0.0; 2]);
    }
}
