//! The KKT filter for ℓ1 problems (Li et al., OSDI'14): which rows are active, because the next
//! steps could move them. Workers leave out the others.
//!
//! A weight w with gradient g satisfies the optimality (KKT) condition if g = −λ sign(w), or if
//! w = 0 and |g| ≤ λ. A weight that satisfies it with a margin θ,
//!
//!   w = 0 and |g| ≤ λ − θ,
//!
//! will very likely stay zero: it is inactive. g is the sum of all workers' gradients, which only a
//! shard knows. So when the shard applies a clock, it decides for the rows of that clock.
//!
//! θ is a share of the largest violation of the last pass: it shrinks as the weights come near the
//! optimum. A row that no worker pushes stays as it is, active or inactive. So now and then workers
//! push all rows.

use crate::rows::slot::Move;
use crate::rows::slot_set::SlotSet;
use types::{TableSpec, UpdaterSpec};
use update::{ABSENT, Number};

/// θ is the largest violation divided by this. The largest violation is that of the worst weight,
/// and most weights are nearer the optimum. As θ itself, it would leave no row out until the very
/// end.
const MARGIN_SHARE: f64 = 10.0;

/// Which rows of a proximal table are active.
#[derive(Debug)]
pub(crate) struct ActiveSet {
    /// λ
    l1: f64,
    inactive: SlotSet,
    /// θ. Infinite until a pass has ended.
    margin: f64,
    /// The rows of this pass so far. The pass ends when one of them is stepped again.
    pass: SlotSet,
    /// The largest violation in this pass so far.
    worst: f64,
}

/// How far a weight is from satisfying the optimality condition, given its gradient.
pub fn violation(weight: f64, gradient: f64, l1: f64) -> f64 {
    if weight > 0.0 {
        (gradient + l1).abs()
    } else if weight < 0.0 {
        (gradient - l1).abs()
    } else {
        (gradient.abs() - l1).max(0.0)
    }
}

/// Whether one of the next steps could move a weight.
pub fn is_active(weight: f64, gradient: f64, l1: f64, margin: f64) -> bool {
    weight != 0.0 || gradient.abs() > l1 - margin
}

impl ActiveSet {
    /// An active set of all rows. `None` if the table does not filter by KKT conditions.
    pub fn of(spec: &TableSpec) -> Option<Self> {
        let UpdaterSpec::Proximal { l1, .. } = spec.updater else { return None };
        spec.codecs.filters_by_kkt().then(|| Self {
            l1,
            inactive: SlotSet::default(),
            margin: f64::INFINITY,
            pass: SlotSet::default(),
            worst: 0.0,
        })
    }

    /// These gradients stepped the rows at `slots` from `before` to `after`: decides which of them
    /// are active. Only the first half of each row counts.
    pub fn stepped<T: Number>(&mut self, width: usize, slots: &[u32], before: &[T], gradients: &[T], after: &[T]) {
        if slots.iter().any(|slot| self.pass.contains(*slot)) {
            self.pass.clear();
            self.margin = std::mem::take(&mut self.worst) / MARGIN_SHARE;
        }
        let half = width / 2;
        let rows = before.chunks_exact(width).zip(gradients.chunks_exact(width)).zip(after.chunks_exact(width));
        for (slot, ((before, gradients), after)) in slots.iter().zip(rows) {
            self.pass.insert(*slot);
            let gradients = gradients[..half].iter().map(|gradient| gradient.to_f64());
            for (weight, gradient) in before[..half].iter().zip(gradients.clone()) {
                self.worst = self.worst.max(violation(weight.to_f64(), gradient, self.l1));
            }
            let mut coordinates = after[..half].iter().zip(gradients);
            if coordinates.any(|(weight, gradient)| is_active(weight.to_f64(), gradient, self.l1, self.margin)) {
                self.inactive.remove(*slot);
            } else {
                self.inactive.insert(*slot);
            }
        }
    }

    /// Whether a row is active. A missing row (`ABSENT`) is.
    pub fn contains(&self, slot: u32) -> bool {
        slot == ABSENT || !self.inactive.contains(slot)
    }

    /// Rows at these slots were removed or reset: a row that reuses a slot starts active.
    pub fn remove(&mut self, slots: &[u32]) {
        for slot in slots {
            self.inactive.remove(*slot);
            self.pass.remove(*slot);
        }
    }

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        self.inactive.rows_moved(moves);
        self.pass.rows_moved(moves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::slot::slot_at;
    use proptest::prelude::*;

    #[test]
    fn violation_and_activity_by_cases() {
        // (weight, gradient, violation and whether it is active with λ = 1 and θ = 0.25)
        let cases = [
            (0.0, 0.0, 0.0, false),
            (0.0, 0.75, 0.0, false),
            (0.0, -0.75, 0.0, false),
            (0.0, 0.8, 0.0, true),
            (0.0, -1.0, 0.0, true),
            (0.0, 1.5, 0.5, true),
            (0.0, -3.0, 2.0, true),
            (0.5, -1.0, 0.0, true),
            (0.5, -0.25, 0.75, true),
            (0.5, 1.0, 2.0, true),
            (-0.5, 1.0, 0.0, true),
            (-0.5, 0.0, 1.0, true),
        ];
        for (weight, gradient, violates, active) in cases {
            assert_eq!(violation(weight, gradient, 1.0), violates, "{weight}, {gradient}");
            assert_eq!(is_active(weight, gradient, 1.0, 0.25), active, "{weight}, {gradient}");
        }
    }

    fn set() -> ActiveSet {
        let updater = UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 };
        let spec = TableSpec::sparse("w", 2).updater(updater).codecs(types::Codecs::up(["kkt"]));
        ActiveSet::of(&spec).expect("asked for")
    }

    /// One clock over rows `first`, … with these weights, which stay, and gradients.
    fn clock(set: &mut ActiveSet, first: u32, rows: &[[f32; 2]]) -> Vec<bool> {
        let slots: Vec<u32> = (first..).take(rows.len()).collect();
        let gradients: Vec<f32> = rows.iter().flat_map(|[_, gradient]| [*gradient, 1.0]).collect();
        set.stepped(2, &slots, rows.as_flattened(), &gradients, rows.as_flattened());
        slots.iter().map(|slot| set.contains(*slot)).collect()
    }

    #[test]
    fn active_set_leaves_out_rows_with_a_margin_once_a_pass_has_ended() {
        let mut set = set();
        assert_eq!(clock(&mut set, 0, &[[0.0, 0.0], [0.0, 6.0]]), [true, true], "no pass has ended");
        assert_eq!(clock(&mut set, 2, &[[0.0, 0.1], [0.0, 0.6]]), [true, true], "the pass goes on");
        // Row 0 comes again: θ is a tenth of 5.
        assert_eq!(clock(&mut set, 0, &[[0.0, 0.5], [0.0, 2.0]]), [false, true]);
        assert_eq!(clock(&mut set, 2, &[[0.0, 0.1], [0.0, 0.6]]), [false, true]);
        // Only active rows are pushed. θ is 0.1 from here on, and inactive rows stay inactive.
        assert_eq!(clock(&mut set, 1, &[[0.0, 0.8]]), [false]);
        assert_eq!(clock(&mut set, 3, &[[0.3, -1.0]]), [true]);
        assert!(!set.contains(0) && !set.contains(2));
        // All rows are pushed: a row that violates the condition is active again.
        assert_eq!(clock(&mut set, 0, &[[0.0, 1.2], [0.0, 0.8], [0.0, 0.1]]), [true, false, false]);
    }

    #[test]
    fn active_set_keeps_a_wide_row_if_any_coordinate_is_active() {
        let mut set = set();
        for _ in 0..2 {
            let weights = [[0.0f32; 4], [0.0, 0.7, 0.0, 0.0], [0.0; 4]].concat();
            let gradients = [[0.2f32, 0.5, 1.0, 1.0], [0.2, 1.5, 1.0, 1.0], [0.5, -0.8, 1.0, 1.0]].concat();
            set.stepped(4, &[0, 1, 2], &weights, &gradients, &weights);
        }
        // θ is 0.25, a tenth of the violation of row 1's second weight.
        assert_eq!([0, 1, 2].map(|slot| set.contains(slot)), [false, true, true]);
    }

    #[test]
    fn active_set_follows_slots_that_move() {
        let mut set = set();
        for _ in 0..2 {
            clock(&mut set, 0, &[[0.0, 0.0], [0.0, 1.5], [0.0, 0.1]]);
        }
        assert_eq!([0, 1, 2, 3].map(|slot| set.contains(slot)), [false, true, false, true]);
        let new = |index| slot_at(1, index);
        set.rows_moved(&[Move { from: 0, to: new(0) }, Move { from: 1, to: new(1) }]);
        let all = [0, 1, 2, new(0), new(1), new(2)];
        assert_eq!(all.map(|slot| set.contains(slot)), [true, true, false, false, true, true]);
        assert!(set.contains(ABSENT));
        set.rows_moved(&[Move { from: 2, to: new(2) }]);
        assert_eq!(all.map(|slot| set.contains(slot)), [true, true, true, false, true, false]);
    }

    #[test]
    fn active_set_treats_a_reused_slot_as_a_new_row() {
        let mut set = set();
        for _ in 0..2 {
            clock(&mut set, 0, &[[0.0, 0.0], [0.0, 1.5]]);
        }
        assert!(!set.contains(0));
        set.remove(&[0, 1, 70]);
        assert!(set.contains(0));
        // The pass does not end: neither row has been in it.
        let margin = set.margin;
        clock(&mut set, 0, &[[0.0, 0.9], [0.0, 9.0]]);
        assert_eq!(set.margin, margin);
    }

    proptest! {
        #[test]
        fn active_set_never_leaves_out_a_violation_or_a_nonzero_weight(
            passes in prop::collection::vec(prop::collection::vec((-1i8..=1, -3.0f32..3.0), 1..20), 1..6),
        ) {
            let mut set = set();
            for rows in passes {
                let rows: Vec<[f32; 2]> = rows.into_iter().map(|(weight, gradient)| [weight.into(), gradient]).collect();
                for (active, [weight, gradient]) in clock(&mut set, 0, &rows).into_iter().zip(rows) {
                    prop_assert!(active || violation(weight.into(), gradient.into(), 1.0) == 0.0 && weight == 0.0);
                }
            }
        }
    }
}
