//! The allocator's answers to requests for leases and to commits.

use std::fmt;
use types::{Source, Span};

/// The answer to a worker that asks for leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantReply {
    /// The worker holds these leases now, and works on them in this order.
    Leases {
        /// The numbers of the leases; at least one.
        leases: Vec<u64>,
        /// The number of minibatches to put into each clock from now on.
        share: u32,
    },
    /// The worker holds as many leases as it may, and must commit some first.
    Full,
    /// No lease is left to grant, but held ones may be given back. The worker asks again later.
    Wait {
        /// The worker whose lease was granted the longest ago. The asking worker itself counts only
        /// if no other worker holds a lease.
        holder: Source,
        /// How long it has held that lease.
        held_for: Span,
    },
    /// Every lease is committed.
    Over,
}

/// The outcome of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The number of leases that this commit made done.
    pub fresh: u64,
    /// The number of leases that were done before.
    pub repeated: u64,
    /// The leases that the worker may not commit.
    pub refused: Vec<CommitRefusal>,
}

/// Why a lease was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitRefusal {
    /// Another worker holds it now.
    HeldByAnother {
        /// The number of the lease.
        lease: u64,
        /// The worker that holds it.
        holder: Source,
    },
    /// No worker holds it: it was taken back, or was not granted yet.
    NotGranted {
        /// The number of the lease.
        lease: u64,
    },
    /// The run has no such lease.
    Unknown {
        /// The number as received.
        lease: u64,
    },
}

impl fmt::Display for CommitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldByAnother { lease, holder } => {
                write!(
                    f,
                    "lease {lease} is held by source {} now, so the commit of another worker is refused",
                    holder.0
                )
            }
            Self::NotGranted { lease } => {
                write!(
                    f,
                    "lease {lease} is held by no worker: it was taken back or not granted yet; a worker will be granted it later"
                )
            }
            Self::Unknown { lease } => write!(f, "this run has no lease {lease}"),
        }
    }
}
