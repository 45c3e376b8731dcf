//! The updater ftrl, FTRL-proximal: sparse weights computed from sums of gradients (McMahan 2011).

use crate::number::{Real, ratio, store};
use crate::{UpdateStep, Updater};

/// z += g − σ w and n += g², where σ = (√(n + g²) − √n) / α. A row is (z, n), from which the
/// weights are computed.
///
/// The weights minimise Σ g·w + t (λ₁ |w| + λ₂ w²/2) + Σ σₛ (w − wₛ)²/2 + (β/α) w²/2, where t
/// counts the examples seen. So many passes approach the optimum of mean loss + λ₁ |w| + λ₂ w²/2.
/// With a constant λ the penalty would fade as gradients add up.
///
/// - A gradient may be the *sum* over a minibatch of b examples: z is then still the sum over all
///   examples, and t grows by b. n grows by (Σ g)² instead of Σ g², so steps shrink sooner where
///   the examples agree and later where they cancel. The optimum stays the same; the best α depends
///   on b. Push sums: a *mean* would put one example's gradient against b examples' penalty, as if
///   λ₁ and λ₂ were b times as large.
/// - When a gradient is applied, t already includes its examples. The weights that the reader used
///   were older anyway, and the difference fades as 1/t.
/// - α multiplies the weights when they are computed. So a changed rate rescales all of them at
///   once, and a rate of zero reads as zeros without losing a gradient.
pub(crate) struct Ftrl {
    pub rate: f64,
    pub beta: f64,
    pub l1: f64,
    pub l2: f64,
}

/// The settings at one step.
struct Penalties {
    /// α
    rate: f64,
    /// t λ₁
    threshold: f64,
    /// β + α t λ₂
    base: f64,
}

impl Penalties {
    /// −w / α, so that neither w nor σ w divides by α, and a warm-up may start from a rate of zero:
    /// w = 0 if |z| ≤ t λ₁, else −(z − sign(z) t λ₁) / ((β + √n) / α + t λ₂)
    fn descent(&self, z: f64, root: f64) -> f64 {
        let beyond = z - z.clamp(-self.threshold, self.threshold);
        ratio(beyond, self.base + root)
    }
}

impl Ftrl {
    fn at(&self, step: &UpdateStep) -> Penalties {
        let rate = step.rate.unwrap_or(self.rate);
        let t = step.examples as f64;
        Penalties { rate, threshold: t * self.l1, base: self.beta + rate * t * self.l2 }
    }
}

impl<T: Real> Updater<T> for Ftrl {
    fn state(&self, width: usize) -> usize {
        width
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        let penalties = self.at(step);
        let (sums, squares) = row.split_at_mut(width);
        for ((sum, squares), gradient) in sums.iter_mut().zip(squares).zip(gradient) {
            let z = sum.to_f64();
            let g = gradient.to_f64();
            let root_before = squares.to_f64().sqrt();
            // n += g². Takes the root of n as stored, so that the differences below add up to √n.
            *squares = store(squares.to_f64() + g * g);
            let root_after = squares.to_f64().sqrt();
            // z += g − σ w with σ = (√(n + g²) − √n) / α, where w / α = −descent
            *sum = store(z + g + (root_after - root_before) * penalties.descent(z, root_before));
        }
    }

    fn read(&self, step: &UpdateStep, row: &[T], out: &mut [T]) {
        let penalties = self.at(step);
        let (sums, squares) = row.split_at(out.len());
        for ((out, sum), squares) in out.iter_mut().zip(sums).zip(squares) {
            *out = store(-penalties.rate * penalties.descent(sum.to_f64(), squares.to_f64().sqrt()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_near};

    fn step(examples: u64) -> UpdateStep {
        UpdateStep { rate: None, examples }
    }

    /// The weights after each gradient, by the updater. Each gradient is of one example.
    fn trace<T: Real>(ftrl: &Ftrl, gradients: &[f64]) -> Vec<T> {
        let mut row = [T::ZERO; 2];
        let mut out = [T::ZERO];
        let one = |(i, &g): (usize, &f64)| {
            ftrl.update(&step(i as u64 + 1), 1, &mut row, &[T::from_f64(g)]);
            ftrl.read(&step(i as u64 + 1), &row, &mut out);
            out[0]
        };
        gradients.iter().enumerate().map(one).collect()
    }

    /// The weights after each gradient, by the paper's formulas as printed.
    fn reference(ftrl: &Ftrl, gradients: &[f64]) -> Vec<f64> {
        let &Ftrl { rate: alpha, beta, l1, l2 } = ftrl;
        let weight = |z: f64, n: f64, t: f64| {
            if z.abs() <= t * l1 { 0.0 } else { -(z - z.signum() * t * l1) / ((beta + n.sqrt()) / alpha + t * l2) }
        };
        let mut z = 0.0;
        let mut n = 0.0f64;
        let mut t = 0.0;
        let one = |g: &f64| {
            t += 1.0;
            let sigma = ((n + g * g).sqrt() - n.sqrt()) / alpha;
            z += g - sigma * weight(z, n, t);
            n += g * g;
            weight(z, n, t)
        };
        gradients.iter().map(one).collect()
    }

    #[test]
    fn ftrl_matches_steps_computed_by_hand() {
        let ftrl = Ftrl { rate: 1.0, beta: 1.0, l1: 0.5, l2: 0.0 };
        // g = 2: z = 2, n = 4, w = −(2 − 0.5) / (1 + 2).
        // g = 1: w at t = 2 is −(2 − 1) / 3, σ = √5 − 2, z = 3 + (√5 − 2) / 3,
        //   w = −(z − 1) / (1 + √5).
        // g = −1: t λ₁ = 1.5, w = −(3.078689 − 1.5) / (1 + √5) = −0.487842, σ = √6 − √5,
        //   z = 2.182789, …
        // g = −2: |z| falls below t λ₁ = 2.
        let expected = [-0.5, -0.642_350, -0.197_943, 0.0];
        assert_near(&trace::<f64>(&ftrl, &[2.0, 1.0, -1.0, -2.0]), &expected, 1e-6);
    }

    #[test]
    fn ftrl_matches_the_formulas_as_printed() {
        let mut random = Random(1);
        let gradients: Vec<f64> = (0..200).map(|_| random.uniform() + 0.1).collect();
        for (l1, l2) in [(0.0, 0.0), (0.03, 0.0), (0.0, 0.02), (0.05, 0.01)] {
            let ftrl = Ftrl { rate: 0.3, beta: 1.0, l1, l2 };
            let expected = reference(&ftrl, &gradients);
            assert_near(&trace::<f64>(&ftrl, &gradients), &expected, 1e-12);
            assert_near(&trace::<f32>(&ftrl, &gradients), &expected, 1e-5);
        }
    }

    #[test]
    fn a_rate_of_zero_reads_as_zero_and_loses_no_gradient() {
        let ftrl = Ftrl { rate: 0.5, beta: 0.0, l1: 0.0, l2: 0.0 };
        let mut row = [0.0f32; 2];
        let mut out = [1.0f32];
        let halted = UpdateStep { rate: Some(0.0), examples: 1 };
        ftrl.read(&halted, &row, &mut out);
        assert_eq!(out, [0.0]);
        ftrl.update(&halted, 1, &mut row, &[2.0]);
        ftrl.update(&halted, 1, &mut row, &[0.0]);
        ftrl.read(&halted, &row, &mut out);
        assert_eq!((row, out), ([2.0, 4.0], [0.0]));
        ftrl.read(&step(1), &row, &mut out);
        assert_eq!(out, [-0.5]);
    }

    #[test]
    fn a_minibatch_sum_counts_as_much_as_its_examples() {
        // Under a large λ₁ w stays 0, so there is no proximal term: either way z is the plain sum,
        // and the threshold is the same.
        let ftrl = Ftrl { rate: 1.0, beta: 1.0, l1: 10.0, l2: 0.0 };
        let mut apart = [0.0f64; 2];
        let mut together = [0.0f64; 2];
        for (i, g) in [1.0, 2.0, -0.5].into_iter().enumerate() {
            ftrl.update(&step(i as u64 + 1), 1, &mut apart, &[g]);
        }
        ftrl.update(&step(3), 1, &mut together, &[2.5]);
        assert_eq!(apart[0], together[0]);
        assert_eq!((apart[1], together[1]), (5.25, 6.25));
    }

    const FEATURES: usize = 4;
    const L1: f64 = 0.05;

    /// Examples of a logistic model: two features matter, one hardly matters and one does not.
    fn examples() -> Vec<([f64; FEATURES], f64)> {
        let mut random = Random(7);
        let one = |_| {
            let x: [f64; FEATURES] = std::array::from_fn(|_| 2.0 * random.uniform());
            let score = 3.0 * x[0] - 2.0 * x[1] + 0.1 * x[2];
            (x, f64::from(random.uniform() + 0.5 < logistic(score)))
        };
        (0..200).map(one).collect()
    }

    fn logistic(score: f64) -> f64 {
        1.0 / (1.0 + (-score).exp())
    }

    /// The gradient of one example's logistic loss.
    fn gradient(w: &[f64; FEATURES], (x, y): &([f64; FEATURES], f64)) -> [f64; FEATURES] {
        let score: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
        x.map(|x| (logistic(score) - y) * x)
    }

    /// argmin of mean loss + λ₁ |w|, by proximal gradient descent.
    fn batch_optimum(examples: &[([f64; FEATURES], f64)]) -> [f64; FEATURES] {
        let mut w = [0.0; FEATURES];
        for _ in 0..5000 {
            let gradients = examples.iter().map(|example| gradient(&w, example));
            let sum = gradients.fold([0.0; FEATURES], |sum, g| std::array::from_fn(|i| sum[i] + g[i]));
            w = std::array::from_fn(|i| {
                let moved: f64 = w[i] - sum[i] / examples.len() as f64;
                moved.signum() * (moved.abs() - L1).max(0.0)
            });
        }
        w
    }

    /// The weights after many passes. `t` maps the number of examples seen to the number that the
    /// updater is given.
    fn online(examples: &[([f64; FEATURES], f64)], t: impl Fn(u64) -> u64) -> [f64; FEATURES] {
        let ftrl = Ftrl { rate: 0.5, beta: 1.0, l1: L1, l2: 0.0 };
        let mut row = [0.0; 2 * FEATURES];
        let mut w = [0.0; FEATURES];
        for (seen, example) in (0..300).flat_map(|_| examples).enumerate() {
            let now = step(t(seen as u64 + 1));
            ftrl.read(&now, &row, &mut w);
            ftrl.update(&now, FEATURES, &mut row, &gradient(&w, example));
        }
        ftrl.read(&step(t(300 * examples.len() as u64)), &row, &mut w);
        w
    }

    #[test]
    fn many_passes_approach_the_batch_optimum_because_the_penalty_grows() {
        let examples = examples();
        let optimum = batch_optimum(&examples);
        let distance = |w: [f64; FEATURES]| -> f64 {
            w.iter().zip(optimum).map(|(w, optimum)| (w - optimum).powi(2)).sum::<f64>().sqrt()
        };
        assert!(
            optimum[0] > 0.5 && optimum[1] < -0.2 && optimum[3] == 0.0,
            "the test problem is not as it should be: {optimum:?}"
        );
        let grown = online(&examples, |seen| seen);
        // A constant penalty as strong as after one whole pass: large, and still it fades.
        let constant = online(&examples, |_| examples.len() as u64);
        assert!(distance(grown) < 0.02, "{grown:?} is far from {optimum:?}");
        assert!(distance(constant) > 10.0 * distance(grown), "{constant:?} is as near to {optimum:?} as {grown:?}");
        assert_eq!(grown[3], 0.0, "a weight that is zero at the optimum is not zero");
    }
}
