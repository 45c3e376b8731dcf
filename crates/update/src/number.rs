//! The numbers that a table can hold (f32, f64, i64), and how the results of f64 formulas are
//! stored in them.

use crate::updaters::{Makers, exact_builtin, real_builtin};
use crate::{Updater, Updaters};
use std::fmt::Debug;
use types::{NumberType, UpdaterSpec};

/// A table's number: f32, f64 or i64.
///
/// ```
/// use update::Number;
///
/// fn total<T: Number>(values: &[T]) -> T {
///     values.iter().fold(T::ZERO, |sum, value| sum.plus(*value))
/// }
/// assert_eq!(total(&[1.5f32, 2.5]), 4.0);
/// assert_eq!(total(&[i64::MAX, 1]), i64::MIN);           // integers wrap
/// ```
pub trait Number: bytemuck::Pod + Send + Sync + PartialEq + PartialOrd + Default + Debug + Sealed {
    /// Its name in a table's spec.
    const TYPE: NumberType;
    /// What an absent row reads as.
    const ZERO: Self;
    /// The largest finite number.
    const LARGEST: Self;
    /// The nearest number of this type; past its range, what Rust's `as` gives.
    fn from_f64(x: f64) -> Self;
    /// The nearest f64.
    fn to_f64(self) -> f64;
    /// Whether it is neither infinite nor NaN. True for every integer.
    fn is_finite(self) -> bool;
    /// The sum. Integers wrap, so that sums stay independent of their order.
    fn plus(self, other: Self) -> Self;
}

/// What this crate needs of a number. Other crates cannot name it, so f32, f64 and i64 are the only
/// numbers.
pub trait Sealed: Sized {
    /// Whether any number of the block is not finite.
    fn any_not_finite(block: &[Self]) -> bool;
    /// The registered updaters for this number.
    fn makers(updaters: &Updaters) -> &Makers<Self>;
    /// The registered updaters for this number, to add one.
    fn makers_mut(updaters: &mut Updaters) -> &mut Makers<Self>;
    /// The built-in updater of this spec, if there is one for this number.
    fn builtin(spec: &UpdaterSpec) -> Option<Box<dyn Updater<Self>>>
    where
        Self: Number;
}

/// A number for formulas with roots and quotients: f32 or f64.
pub(crate) trait Real: Number {}
impl Real for f32 {}
impl Real for f64 {}

/// Rounds to the table's number, and clamps to the largest one. Without the clamp, one huge but
/// finite gradient would ruin its row: an infinite sum of squares makes the next difference of
/// roots NaN.
pub(crate) fn store<T: Real>(x: f64) -> T {
    let largest = T::LARGEST.to_f64();
    T::from_f64(x.clamp(-largest, largest))
}

/// a / b, or zero where b is zero. So a weight whose gradients have all been zero stays as it is,
/// even without an ε.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

macro_rules! real_number {
    ($real:ident, $bits:ident, $variant:ident, $makers:ident) => {
        impl Number for $real {
            const TYPE: NumberType = NumberType::$variant;
            const ZERO: Self = 0.0;
            const LARGEST: Self = $real::MAX;
            fn from_f64(x: f64) -> Self {
                x as $real
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn is_finite(self) -> bool {
                $real::is_finite(self)
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
        }

        impl Sealed for $real {
            fn any_not_finite(block: &[Self]) -> bool {
                // Infinities and NaNs have all exponent bits set. Only then does adding one to the
                // exponent carry into the sign bit. The fold only ors integers, which may happen in
                // any order, so the loop vectorises.
                const EXPONENT_ONE: $bits = 1 << ($real::MANTISSA_DIGITS - 1);
                const MAGNITUDE: $bits = $bits::MAX >> 1;
                let carried = block.iter().fold(0, |seen, x| seen | ((x.to_bits() & MAGNITUDE) + EXPONENT_ONE));
                carried > MAGNITUDE
            }
            fn makers(updaters: &Updaters) -> &Makers<Self> {
                &updaters.$makers
            }
            fn makers_mut(updaters: &mut Updaters) -> &mut Makers<Self> {
                &mut updaters.$makers
            }
            fn builtin(spec: &UpdaterSpec) -> Option<Box<dyn Updater<Self>>> {
                real_builtin(spec)
            }
        }
    };
}

real_number!(f32, u32, F32, f32);
real_number!(f64, u64, F64, f64);

impl Number for i64 {
    const TYPE: NumberType = NumberType::I64;
    const ZERO: Self = 0;
    const LARGEST: Self = i64::MAX;
    fn from_f64(x: f64) -> Self {
        // `as` alone would drop the fraction.
        x.round() as i64
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn is_finite(self) -> bool {
        true
    }
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

impl Sealed for i64 {
    fn any_not_finite(_: &[Self]) -> bool {
        false
    }
    fn makers(updaters: &Updaters) -> &Makers<Self> {
        &updaters.i64
    }
    fn makers_mut(updaters: &mut Updaters) -> &mut Makers<Self> {
        &mut updaters.i64
    }
    fn builtin(spec: &UpdaterSpec) -> Option<Box<dyn Updater<Self>>> {
        exact_builtin(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_give_the_nearest_number_and_stored_results_stay_finite() {
        assert_eq!(f32::from_f64(0.1), 0.1f32);
        assert_eq!(f64::from_f64(0.1), 0.1);
        assert_eq!([i64::from_f64(2.6), i64::from_f64(-2.6), i64::from_f64(1e300)], [3, -3, i64::MAX]);
        assert_eq!(f32::from_f64(1e300), f32::INFINITY);
        assert_eq!([store::<f32>(1e300), store(-1e300), store(0.5)], [f32::MAX, -f32::MAX, 0.5]);
        assert_eq!(store::<f64>(f64::INFINITY), f64::MAX);
    }

    #[test]
    fn integer_sums_wrap() {
        assert_eq!(i64::MAX.plus(1), i64::MIN);
        assert_eq!(1.5f32.plus(0.25), 1.75);
    }
}
