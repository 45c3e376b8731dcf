//! What the allocator answers to workers.

use std::fmt;
use types::{Source, Span};

/// What a worker that asked for leases is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantReply {
    /// These are its own now, in this order.
    Leases {
        /// At least one.
        leases: Vec<u64>,
        /// Minibatches to put into each clock from now on.
        share: u32,
    },
    /// It holds as many as it may. It commits some first.
    Full,
    /// Nothing is left to be granted, but what is held may come back. It asks again.
    Wait {
        /// Who has held a lease for longest: another worker, unless only its own are left.
        holder: Source,
        /// For how long.
        held_for: Span,
    },
    /// Every lease is committed.
    Over,
}

/// What became of a commit, lease by lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitReceipt {
    /// Leases that this made done.
    pub fresh: u64,
    /// Leases that were done before: said again, and acknowledged again.
    pub repeated: u64,
    /// Leases that are not the worker's to commit.
    pub refused: Vec<CommitRefusal>,
}

/// Why a lease was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitRefusal {
    /// Another worker holds it now.
    HeldByAnother {
        /// Its number.
        lease: u64,
        /// That worker.
        holder: Source,
    },
    /// Nobody holds it: it was taken back, or never granted.
    NotGranted {
        /// Its number.
        lease: u64,
    },
    /// The run has no such lease.
    Unknown {
        /// As said.
        lease: u64,
    },
}

impl fmt::Display for CommitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldByAnother { lease, holder } => {
                write!(
                    f,
                    "lease {lease} is held by source {} now; what this worker did of it does not count twice",
                    holder.0
                )
            }
            Self::NotGranted { lease } => {
                write!(f, "lease {lease} is nobody's: it was taken back, or never granted; it will be granted again")
            }
            Self::Unknown { lease } => write!(f, "there is no lease {lease} in this run"),
        }
    }
}
