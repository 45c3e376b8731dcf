//! Terms of data leases, why terms are refused, and why a run cannot resume another run's leases.

use super::LeaseOrder;
use std::fmt;
use wire::LeaseTerms;

/// The number of leases of a data set, their order, and the share of an average worker.
///
/// ```
/// use lease::GrantTerms;
///
/// let terms = GrantTerms { ranges: 100, epochs: 3, shuffle: Some(7), per_clock: 8 };
/// assert_eq!(terms.leases(), Ok(300));
/// assert!(GrantTerms { ranges: u64::MAX, ..terms }.leases().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantTerms {
    /// The number of ranges of the input.
    pub ranges: u64,
    /// The number of passes over the input.
    pub epochs: u32,
    /// The seed that shuffles the leases of each epoch; `None` grants them in order of their
    /// numbers.
    pub shuffle: Option<u64>,
    /// The number of minibatches that a worker of average speed puts into a clock. Shares are whole
    /// numbers: with 8 they follow speed to a sixteenth, with 1 they cannot follow it.
    pub per_clock: u32,
}

/// Why terms are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantTermsError {
    /// The number of leases does not fit u64. Cut the input into fewer ranges, or use fewer epochs.
    TooMany {
        /// The number of ranges asked for.
        ranges: u64,
        /// The number of epochs asked for.
        epochs: u32,
    },
    /// `per_clock` is 0, so the run would never end.
    EmptyClocks,
}

impl fmt::Display for GrantTermsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { ranges, epochs } => {
                write!(f, "{ranges} ranges in {epochs} epochs are more leases than fit 64 bits; cut larger ranges")
            }
            Self::EmptyClocks => write!(f, "clocks of 0 minibatches never end the run; use at least 1"),
        }
    }
}

impl std::error::Error for GrantTermsError {}

impl GrantTerms {
    /// The part of a worker's terms that the allocator needs.
    #[must_use]
    pub fn of(terms: &LeaseTerms) -> Self {
        let LeaseTerms { ranges, epochs, shuffle, per_clock, .. } = *terms;
        Self { ranges, epochs, shuffle, per_clock }
    }

    /// The number of leases in the run.
    pub fn leases(self) -> Result<u64, GrantTermsError> {
        let Self { ranges, epochs, per_clock, .. } = self;
        if per_clock == 0 {
            return Err(GrantTermsError::EmptyClocks);
        }
        // Leaves u64::MAX free as the number after the last lease.
        let leases = ranges.checked_mul(u64::from(epochs)).filter(|leases| *leases < u64::MAX);
        leases.ok_or(GrantTermsError::TooMany { ranges, epochs })
    }

    /// The order of granting.
    #[must_use]
    pub fn order(self) -> LeaseOrder {
        LeaseOrder { ranges: self.ranges, shuffle: self.shuffle }
    }
}

/// Why a run cannot resume another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// The terms are not valid.
    GrantTerms(GrantTermsError),
    /// The finished leases belong to input that was cut or ordered differently, so their numbers
    /// mean other ranges. Use the same files, range size and seed.
    OtherInput {
        /// The order in the run that is resumed.
        was: LeaseOrder,
        /// The order in this run.
        is: LeaseOrder,
    },
    /// The resumed run has granted more leases than this run has. Use at least as many epochs.
    Beyond {
        /// The number of leases that were granted.
        begun: u64,
        /// The number of leases of this run.
        leases: u64,
    },
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = |order: &LeaseOrder| match order.shuffle {
            Some(seed) => format!("{} ranges shuffled by seed {seed}", order.ranges),
            None => format!("{} ranges in order", order.ranges),
        };
        match self {
            Self::GrantTerms(error) => error.fmt(f),
            Self::OtherInput { was, is } => {
                let was = order(was);
                let is = order(is);
                write!(f, "the input was cut into {was}, and is now cut into {is}; use the same files and settings")
            }
            Self::Beyond { begun, leases } => {
                write!(
                    f,
                    "the resumed run has begun {begun} leases, but this run has only {leases}; ask for at least as many epochs as before"
                )
            }
        }
    }
}

impl std::error::Error for ResumeError {}
