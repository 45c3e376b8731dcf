//! The updaters without state: sum, assign and sgd (plain gradient descent).

use crate::number::{Real, store};
use crate::rows::{change_rows, copy_rows};
use crate::{Number, Slots, UpdateStep, Updater, add_into};

/// w += g, in the table's own numbers.
pub(crate) struct Sum;

impl<T: Number> Updater<T> for Sum {
    fn state(&self, _: usize) -> usize {
        0
    }

    fn update(&self, _: &UpdateStep, _: usize, row: &mut [T], gradient: &[T]) {
        add_into(row, gradient);
    }

    fn update_rows(&self, _: &UpdateStep, width: usize, slab: &mut [T], slots: Slots<'_>, gradients: &[T]) {
        change_rows(width, slab, slots, gradients, T::plus);
    }

    fn read_rows(&self, _: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        copy_rows(width, width, slab, slots, out);
    }
}

/// w = g.
pub(crate) struct Assign;

impl<T: Number> Updater<T> for Assign {
    fn state(&self, _: usize) -> usize {
        0
    }

    fn update(&self, _: &UpdateStep, _: usize, row: &mut [T], gradient: &[T]) {
        row.copy_from_slice(gradient);
    }

    fn update_rows(&self, _: &UpdateStep, width: usize, slab: &mut [T], slots: Slots<'_>, gradients: &[T]) {
        change_rows(width, slab, slots, gradients, |_, gradient| gradient);
    }

    fn read_rows(&self, _: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        copy_rows(width, width, slab, slots, out);
    }
}

/// w −= η g. Not additive: because of rounding, two steps may differ from one step by the sum.
pub(crate) struct Sgd {
    pub rate: f64,
}

impl Sgd {
    /// w − η g
    fn change<T: Real>(&self, step: &UpdateStep) -> impl Fn(T, T) -> T {
        let rate = step.rate.unwrap_or(self.rate);
        move |weight, gradient| store(weight.to_f64() - rate * gradient.to_f64())
    }
}

impl<T: Real> Updater<T> for Sgd {
    fn state(&self, _: usize) -> usize {
        0
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        self.update_rows(step, width, row, Slots::Run { first: 0, count: 1 }, gradient);
    }

    fn update_rows(&self, step: &UpdateStep, width: usize, slab: &mut [T], slots: Slots<'_>, gradients: &[T]) {
        change_rows(width, slab, slots, gradients, self.change(step));
    }

    fn read_rows(&self, _: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        copy_rows(width, width, slab, slots, out);
    }
}

#[cfg(test)]
mod tests {
    use crate::UpdateStep;
    use crate::testing::{assert_near, trace};
    use types::UpdaterSpec;

    const STEP: UpdateStep = UpdateStep { rate: None, examples: 1 };

    #[test]
    fn sum_adds_and_assign_replaces() {
        assert_eq!(trace(&UpdaterSpec::Sum, STEP, 1.0f32, &[2.0, -0.5]), [3.0, 2.5]);
        assert_eq!(trace(&UpdaterSpec::Sum, STEP, i64::MAX, &[1, -1]), [i64::MIN, i64::MAX]);
        assert_eq!(trace(&UpdaterSpec::Assign, STEP, 1.0f64, &[2.0, -0.5]), [2.0, -0.5]);
        assert_eq!(trace(&UpdaterSpec::Assign, STEP, 1i64, &[7, -9]), [7, -9]);
    }

    #[test]
    fn sgd_steps_against_the_gradient_at_the_current_rate() {
        let spec = UpdaterSpec::Sgd { rate: 0.1 };
        assert_near(&trace(&spec, STEP, 1.0f64, &[2.0, -4.0]), &[0.8, 1.2], 1e-15);
        assert_near(&trace(&spec, STEP, 1.0f32, &[2.0, -4.0]), &[0.8, 1.2], 1e-7);
        let halted = UpdateStep { rate: Some(0.0), ..STEP };
        assert_eq!(trace(&spec, halted, 1.0f32, &[2.0, -4.0]), [1.0, 1.0]);
        let raised = UpdateStep { rate: Some(1.0), ..STEP };
        assert_eq!(trace(&spec, raised, 1.0f32, &[2.0, -4.0]), [-1.0, 3.0]);
    }
}
