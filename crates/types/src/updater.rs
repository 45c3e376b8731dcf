//! The updater of a table, with its settings. The crate `update` has the arithmetic.

use std::fmt;

/// The rule by which a shard applies gradients to row state.
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
    /// Adam, with bias correction by the number of updates of the row.
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
    /// FTRL-proximal, with regularisation that grows with the number of examples.
    Ftrl {
        /// The learning rate α.
        rate: f64,
        /// Smooths the first steps.
        beta: f64,
        /// ℓ1 strength per example.
        l1: f64,
        /// ℓ2 strength per example.
        l2: f64,
    },
    /// The proximal step for ℓ1: w = argmin g (v − w) + u (v − w)² / (2 η) + λ₁ |v|. The first half
    /// of a row holds weights, the second zeros. The halves of a push are gradients g of the whole
    /// loss and curvatures u.
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
        /// The settings, in the order that the updater defines.
        settings: Vec<f64>,
    },
}

impl UpdaterSpec {
    /// Whether applying g₁ and then g₂ equals applying g₁ + g₂, and w changes by exactly that sum.
    /// Caches may then add a worker's own pushes, and logs may merge them. Workers call this, so it
    /// does not depend on updaters that only servers know.
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

/// A change of an updater's setting. It takes effect for updates of the clock in which it is sent,
/// and of later clocks.
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
