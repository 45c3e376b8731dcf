//! Helpers for the tests of updaters, and tests that every updater must pass.

use crate::{ABSENT, Number, SLOT_INDEX, Slots, UpdateStep, Updater, Updaters};
use proptest::prelude::*;
use types::UpdaterSpec;

/// The weight that a reader sees after each gradient, in a row of one number that begins as
/// `start`.
pub(crate) fn trace<T: Number>(spec: &UpdaterSpec, step: UpdateStep, start: T, gradients: &[T]) -> Vec<T> {
    let updater = Updaters::builtin().make::<T>(spec).unwrap();
    let mut row = vec![T::ZERO; 1 + updater.state(1)];
    row[0] = start;
    let mut out = [T::ZERO];
    let one = |&gradient: &T| {
        updater.update(&step, 1, &mut row, &[gradient]);
        updater.read(&step, &row, &mut out);
        out[0]
    };
    gradients.iter().map(one).collect()
}

pub(crate) fn assert_near<T: Number>(found: &[T], expected: &[f64], tolerance: f64) {
    let near = found.iter().zip(expected).all(|(x, y)| (x.to_f64() - y).abs() <= tolerance * y.abs().max(1.0));
    assert!(near && found.len() == expected.len(), "{found:?} is not {expected:?}");
}

/// A small seeded generator (the constants are Knuth's).
pub(crate) struct Random(pub u64);

impl Random {
    /// Uniform in ±½.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    }
}

fn real_specs() -> [UpdaterSpec; 7] {
    [
        UpdaterSpec::Sum,
        UpdaterSpec::Assign,
        UpdaterSpec::Sgd { rate: 0.1 },
        UpdaterSpec::Momentum { rate: 0.1, momentum: 0.9 },
        UpdaterSpec::Adagrad { rate: 0.1, epsilon: 0.0 },
        UpdaterSpec::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 0.0 },
        UpdaterSpec::Ftrl { rate: 0.1, beta: 0.0, l1: 0.01, l2: 0.01 },
    ]
}

/// Compares batch calls with a loop over single rows, bit for bit: for a run of rows, and for a
/// list of every other row backwards.
fn batches_equal_single_rows<T: Number>(updater: &dyn Updater<T>, width: usize, rows: usize, seed: u64) {
    let step = UpdateStep { rate: None, examples: 5 };
    let stride = width + updater.state(width);
    let mut random = Random(seed);
    let mut numbers = |count: usize| -> Vec<T> { (0..count).map(|_| T::from_f64(100.0 * random.uniform())).collect() };
    // Sums of squares and counts are never negative.
    let mut slab: Vec<T> = numbers(rows * stride).into_iter().map(|x| T::from_f64(x.to_f64().abs())).collect();

    let backwards: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
    let first = rows / 3;
    let run: Vec<u32> = (first as u32..rows as u32).collect();
    // The highest bit of a slot is ignored.
    let marked: Vec<u32> =
        backwards.iter().map(|slot| if slot % 3 == 0 { slot | !SLOT_INDEX } else { *slot }).collect();
    let batches = [
        (Slots::Run { first, count: rows - first }, &run),
        (Slots::List(&backwards), &backwards),
        (Slots::List(&marked), &backwards),
    ];
    for (slots, list) in batches {
        let gradients = numbers(list.len() * width);
        let mut expected = slab.clone();
        for (&slot, gradient) in list.iter().zip(gradients.chunks(width)) {
            updater.update(&step, width, &mut expected[slot as usize * stride..][..stride], gradient);
        }
        updater.update_rows(&step, width, &mut slab, slots, &gradients);
        assert_eq!(slab, expected);

        let mut found = numbers(list.len() * width);
        let mut expected = vec![T::ZERO; found.len()];
        for (&slot, out) in list.iter().zip(expected.chunks_mut(width)) {
            updater.read(&step, &slab[slot as usize * stride..][..stride], out);
        }
        updater.read_rows(&step, width, &slab, slots, &mut found);
        assert_eq!(found, expected);

        // The same rows, with an absent row before each.
        let named: Vec<u32> = match slots {
            Slots::Run { .. } => run.clone(),
            Slots::List(list) => list.to_vec(),
        };
        let gaps: Vec<u32> = named.into_iter().flat_map(|slot| [ABSENT, slot]).collect();
        let mut found = numbers(2 * list.len() * width);
        updater.read_rows(&step, width, &slab, Slots::List(&gaps), &mut found);
        for (pair, expected) in found.chunks(2 * width).zip(expected.chunks(width)) {
            assert!(pair[..width].iter().all(|&x| x == T::ZERO));
            assert_eq!(&pair[width..], expected);
        }
    }
}

proptest! {
    #[test]
    fn every_updater_applies_a_batch_like_its_rows_one_by_one(width in 1usize..9, rows in 0usize..200, seed: u64) {
        let updaters = Updaters::builtin();
        for spec in real_specs() {
            batches_equal_single_rows(updaters.make::<f32>(&spec).unwrap().as_ref(), width, rows, seed);
            batches_equal_single_rows(updaters.make::<f64>(&spec).unwrap().as_ref(), width, rows, seed);
        }
        for spec in [UpdaterSpec::Sum, UpdaterSpec::Assign] {
            batches_equal_single_rows(updaters.make::<i64>(&spec).unwrap().as_ref(), width, rows, seed);
        }
    }

    #[test]
    fn sum_changes_a_row_by_exactly_the_sum_of_the_pushes(pushed in prop::collection::vec(any::<i64>(), 1..20)) {
        let step = UpdateStep::default();
        let total = pushed.iter().fold(0i64, |total, &x| total.wrapping_add(x));
        assert_eq!(trace(&UpdaterSpec::Sum, step, 0, &pushed).last(), Some(&total));
        assert_eq!(trace(&UpdaterSpec::Sum, step, 0, &[total]), [total]);
    }
}

fn huge_and_zero_gradients_leave_rows_finite<T: Number>() {
    let largest = T::LARGEST;
    let zero = T::ZERO;
    let opposite = T::from_f64(-largest.to_f64());
    // The square of `tiny` is zero in f32.
    let tiny = T::from_f64(1e-30);
    let gradients = [zero, tiny, largest, largest, zero, opposite, opposite, opposite, tiny, zero];
    for spec in &real_specs()[2..] {
        for rate in [None, Some(0.0), Some(10.0)] {
            let seen = trace(spec, UpdateStep { rate, examples: 3 }, zero, &gradients);
            assert_eq!(crate::first_not_finite(&seen), None, "{spec} with rate {rate:?} gave {seen:?}");
        }
    }
}

#[test]
fn huge_and_zero_gradients_leave_every_formula_finite() {
    huge_and_zero_gradients_leave_rows_finite::<f32>();
    huge_and_zero_gradients_leave_rows_finite::<f64>();
}

#[test]
#[should_panic(expected = "one row of 2 numbers for each slot")]
fn a_batch_that_does_not_fit_its_slots_panics_before_it_is_applied() {
    let sum = Updaters::builtin().make::<f32>(&UpdaterSpec::Sum).unwrap();
    sum.update_rows(&UpdateStep::default(), 2, &mut [0.0; 8], Slots::List(&[0, 1]), &[1.0; 3]);
}
