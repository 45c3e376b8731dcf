//! What is leased, and why it cannot be.

use super::LeaseOrder;
use std::fmt;
use wire::LeaseTerms;

/// What is leased, and how.
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
    /// Ranges that the input is cut into.
    pub ranges: u64,
    /// How often each is read.
    pub epochs: u32,
    /// The seed of the order in which an epoch's leases are granted, where that is not their own.
    pub shuffle: Option<u64>,
    /// Minibatches that a worker of average speed puts into a clock. Shares are whole numbers: at
    /// 8, they follow speed to a sixteenth; at 1, they cannot follow it at all.
    pub per_clock: u32,
}

/// Why there can be no such leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantTermsError {
    /// Their numbers do not fit. Cut the input into fewer ranges, or read it less often.
    TooMany {
        /// As asked for.
        ranges: u64,
        /// As asked for.
        epochs: u32,
    },
    /// A clock without work never ends the run.
    EmptyClocks,
}

impl fmt::Display for GrantTermsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { ranges, epochs } => {
                write!(f, "{ranges} ranges in {epochs} epochs are more leases than can be numbered; cut larger ranges")
            }
            Self::EmptyClocks => write!(f, "a clock of 0 minibatches never ends the run; say at least 1"),
        }
    }
}

impl std::error::Error for GrantTermsError {}

impl GrantTerms {
    /// As workers say them.
    #[must_use]
    pub fn of(terms: &LeaseTerms) -> Self {
        let LeaseTerms { ranges, epochs, shuffle, per_clock, .. } = *terms;
        Self { ranges, epochs, shuffle, per_clock }
    }

    /// How many leases the run has.
    pub fn leases(self) -> Result<u64, GrantTermsError> {
        let Self { ranges, epochs, per_clock, .. } = self;
        if per_clock == 0 {
            return Err(GrantTermsError::EmptyClocks);
        }
        // One number stays free, so that what follows the last can be named.
        let leases = ranges.checked_mul(u64::from(epochs)).filter(|leases| *leases < u64::MAX);
        leases.ok_or(GrantTermsError::TooMany { ranges, epochs })
    }

    /// Which lease stands where in the order of granting.
    #[must_use]
    pub fn order(self) -> LeaseOrder {
        LeaseOrder { ranges: self.ranges, shuffle: self.shuffle }
    }
}

/// Why a run cannot go on where another stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// There can be no such leases at all.
    GrantTerms(GrantTermsError),
    /// What is done was cut or ordered otherwise, so its numbers mean something else. Use the same
    /// files, range size and seed.
    OtherInput {
        /// As it was.
        was: LeaseOrder,
        /// As it is to be.
        is: LeaseOrder,
    },
    /// More is done than the run is to have. Ask for at least as many epochs as were begun.
    Beyond {
        /// Leases that were granted, from the first.
        begun: u64,
        /// As many as there are to be.
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
                write!(f, "the run was cut into {was}, and is now cut into {is}; give it the same files and settings")
            }
            Self::Beyond { begun, leases } => {
                write!(
                    f,
                    "the run has begun {begun} leases and is to have {leases}; ask for as many epochs as before, or more"
                )
            }
        }
    }
}

impl std::error::Error for ResumeError {}
