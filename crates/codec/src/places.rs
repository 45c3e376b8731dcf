//! Finds the places of the values to send: those that are not zero, or those of a large magnitude.

use bytemuck::Pod;

use crate::twin::twin;

/// Values tested at once. A group without a wanted value is skipped.
const LOOK: usize = 32;

/// A number type for which zeros can be left out (zero elision).
pub trait ZeroElide: Pod {
    /// Appends the places of the values whose bits are not all zero. −0 counts as a value, so that
    /// it is decoded exactly.
    fn append_occupied(values: &[Self], places: &mut Vec<u64>);
}

impl ZeroElide for f32 {
    fn append_occupied(values: &[Self], places: &mut Vec<u64>) {
        occupied_short(bytemuck::must_cast_slice(values), places);
    }
}

impl ZeroElide for f64 {
    fn append_occupied(values: &[Self], places: &mut Vec<u64>) {
        occupied_long(bytemuck::must_cast_slice(values), places);
    }
}

impl ZeroElide for i64 {
    fn append_occupied(values: &[Self], places: &mut Vec<u64>) {
        occupied_long(bytemuck::must_cast_slice(values), places);
    }
}

twin! {
fn occupied_short, occupied_short_plain(values: &[u32], places: &mut Vec<u64>) {
    append(values, |bits| bits != 0, places);
}
}

twin! {
fn occupied_long, occupied_long_plain(values: &[u64], places: &mut Vec<u64>) {
    append(values, |bits| bits != 0, places);
}
}

twin! {
/// Appends the places of the values whose [`magnitude`] is at least `least`. Every NaN is among
/// them.
pub(crate) fn append_large, append_large_plain(values: &[f32], least: u32, places: &mut Vec<u64>) {
    append(values, |value| magnitude(value) >= least, places);
}
}

/// The bits of `value` without the sign. They sort as magnitudes do, with NaNs last.
#[inline(always)]
pub(crate) fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7FFF_FFFF
}

#[inline(always)]
fn append<T: Copy>(values: &[T], wanted: impl Fn(T) -> bool, places: &mut Vec<u64>) {
    for (look, values) in values.chunks(LOOK).enumerate() {
        let count: u32 = values.iter().map(|&value| u32::from(wanted(value))).sum();
        if count == 0 {
            continue;
        }
        // Every value writes its place, but only a wanted one advances; hence one spare slot.
        let mut next = places.len();
        places.resize(next + count as usize + 1, 0);
        for (place, &value) in (look * LOOK..).zip(values) {
            places[next] = place as u64;
            next += usize::from(wanted(value));
        }
        places.truncate(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn both_twins_find_the_places_that_a_plain_filter_finds() {
        for length in [0, 1, 31, 32, 33, 1000] {
            for mut values in [noise(length, 1), awkward(length, 2)] {
                values.iter_mut().step_by(3).for_each(|value| *value = 0.0);
                for least in [1, 0.5f32.to_bits(), 1.2f32.to_bits(), u32::MAX] {
                    let filter = |place: &usize| magnitude(values[*place]) >= least;
                    let expected: Vec<u64> = (0..length).filter(filter).map(|place| place as u64).collect();
                    let mut wide = Vec::new();
                    let mut plain = Vec::new();
                    append_large(&values, least, &mut wide);
                    append_large_plain(&values, least, &mut plain);
                    assert_eq!((&wide, &plain), (&expected, &expected));
                }
                let expected: Vec<u64> =
                    (0..length).filter(|&place| values[place].to_bits() != 0).map(|place| place as u64).collect();
                let mut wide = Vec::new();
                let mut plain = Vec::new();
                f32::append_occupied(&values, &mut wide);
                occupied_short_plain(bytemuck::must_cast_slice(&values), &mut plain);
                assert_eq!((&wide, &plain), (&expected, &expected));
                let mut wide = Vec::new();
                let mut plain = Vec::new();
                let long: Vec<u64> = values.iter().map(|value| u64::from(value.to_bits()) << 32).collect();
                occupied_long(&long, &mut wide);
                occupied_long_plain(&long, &mut plain);
                assert_eq!((&wide, &plain), (&expected, &expected));
            }
        }
    }
}
