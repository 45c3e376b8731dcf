//! Which updater a table uses, with its settings. The arithmetic lives in the crate `update`.

use std::fmt;

/// What a shard does with an incoming gradient.
///
/// ```
/// use types::{TableSpec, UpdaterSpec};
///
/// let ftrl = UpdaterSpec::Ftrl { rate: 0.1, beta: 1.0, l1: 1e-4, l2: 0.0 };
/// assert!(TableSpec::sparse("weights", 1).updater(ftrl).check().is_ok());
/// let wrong = TableSpec::sparse("weights", 1).updater(UpdaterSpec::Sgd { rate: f64::NAN });
/// assert!(wrong.check().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum UpdaterSpec {
    /// w += g.
    Sum,
    /// w = g.
    Assign,
    /// w −= η g.
    Sgd {
        /// The learning rate η.
        rate: f64,
    },
    /// v = μ v + g, w −= η v.
    Momentum {
        /// The learning rate η.
        rate: f64,
        /// The share μ of the old velocity that is kept.
        momentum: f64,
    },
    /// n += g², w −= η g / (√n + ε).
    Adagrad {
        /// The learning rate η.
        rate: f64,
        /// Keeps the first steps finite.
        epsilon: f64,
    },
    /// Adam with bias correction by the updates a row has seen.
    Adam {
        /// The learning rate η.
        rate: f64,
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Keeps the division finite.
        epsilon: f64,
    },
    /// FTRL-proximal whose regularisation grows with the examples seen.
    Ftrl {
        /// The learning rate α.
        rate: f64,
        /// Smooths the first steps.
        beta: f64,
        /// ℓ1 strength an example.
        l1: f64,
        /// ℓ2 strength an example.
        l2: f64,
    },
    /// The proximal step for ℓ1. Rows are halves: weights and zeros; pushes are gradients of the
    /// whole loss and their curvatures. w = argmin g (v − w) + u (v − w)² / (2 η) + λ₁ |v|.
    Proximal {
        /// The share η of the step that the curvature suggests.
        rate: f64,
        /// ℓ1 strength, against the loss of all examples together.
        l1: f64,
    },
    /// An updater that the servers' program registered under this name.
    Custom {
        /// The name it was registered under.
        name: String,
        /// Settings handed to it, in its own order.
        settings: Vec<f64>,
    },
}

impl UpdaterSpec {
    /// Whether applying g₁ and then g₂ equals applying g₁ + g₂, and w changes by exactly that sum:
    /// caches may then add a worker's own pushes, and logs may merge them. Workers ask this, so it
    /// cannot depend on what only servers know.
    ///
    /// ```
    /// use types::UpdaterSpec;
    ///
    /// assert!(UpdaterSpec::Sum.is_additive() && !UpdaterSpec::Sgd { rate: 1.0 }.is_additive());
    /// ```
    #[must_use]
    pub fn is_additive(&self) -> bool {
        matches!(self, Self::Sum)
    }
}

impl fmt::Display for UpdaterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum => write!(f, "sum"),
            Self::Assign => write!(f, "assign"),
            Self::Sgd { rate } => write!(f, "sgd(rate {rate})"),
            Self::Momentum { rate, momentum } => write!(f, "momentum(rate {rate}, momentum {momentum})"),
            Self::Adagrad { rate, .. } => write!(f, "adagrad(rate {rate})"),
            Self::Adam { rate, .. } => write!(f, "adam(rate {rate})"),
            Self::Ftrl { rate, l1, l2, .. } => write!(f, "ftrl(rate {rate}, l1 {l1}, l2 {l2})"),
            Self::Proximal { rate, l1 } => write!(f, "proximal(rate {rate}, l1 {l1})"),
            Self::Custom { name, .. } => write!(f, "{name}"),
        }
    }
}

/// A change to an updater's settings, which takes effect for updates made in a clock and those
/// after it.
///
/// ```
/// use types::Setting;
///
/// let Setting::Rate(rate) = Setting::Rate(0.05);
/// assert_eq!(rate, 0.05);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// The learning rate η (for ftrl, α).
    Rate(f64),
}
