//! [`Error`]: why a call failed, one variant per decision that a program can make.

use identity::{CertificateFileError, TokenError};
use node::NodeError;
use types::{Placement, RunSize, SpecError, WorkerId};
use wire::{KeyError, Refusal};
use worker::TableFailure;

/// Why a call failed. The message says what failed, where, and what to do. A program decides by the
/// variant.
///
/// ```
/// # use slackwater::{Error, Keys, RunSize, Session, TableSpec};
/// # use slackwater::table::Refusal;
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// # let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
/// match table.push(&Keys::run(0..1), vec![f32::NAN])?.wait() {
///     Ok(()) => println!("applied"),
///     Err(Error::Refused { placement, refusal: Refusal::NotFinite { position }, .. }) => {
///         println!("skipping the batch: the gradient for {} is not finite", placement.key(position));
///     }
///     Err(error) => return Err(error),
/// }
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone, thiserror::Error)]
pub enum Error {
    /// The run is over for this node: the node could not join, or a node was lost. Start the run
    /// again.
    #[error(transparent)]
    Run(#[from] NodeError),
    /// A run needs at least one server and one worker. Change the size.
    #[error("a run needs at least one server and one worker, not {} servers and {} workers", .0.servers, .0.workers)]
    RunSize(RunSize),
    /// The table's spec contradicts itself. Change the spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The table could not be made, for instance because another worker made it with another spec.
    #[error("{problem}")]
    Table {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The data set cannot be leased, for instance because another worker reads other files, or a
    /// lease could not be committed.
    #[error("{problem}")]
    Leases {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The keys are not a valid key list: out of order, or repeated. Change the keys.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The batch does not fit the table. The worker sent nothing.
    #[error(transparent)]
    Batch(#[from] TableFailure),
    /// A shard refused a part of the batch and left the rows of that part as they were. Other parts
    /// of the batch are applied. What to do depends on the refusal: correct the values, raise
    /// `max_rows`, or join again.
    #[error("a push or pull of {worker} was refused: {}{}", refusal.describe(table, *placement), so_were(*others))]
    Refused {
        /// The worker that made the push or pull: this one.
        worker: WorkerId,
        /// The table's name.
        table: String,
        /// The table's order. The key of a refused row is `placement.key(position)`.
        placement: Placement,
        /// Why the shard refused the part.
        refusal: Refusal,
        /// How many other refused parts of dropped tickets there are. The end of a clock or session
        /// reports the first and counts the others.
        others: usize,
    },
    /// The process has no token and no certificate, or cannot use it. Give every process of the run
    /// the same token file.
    #[error("{problem}")]
    Access {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// An address is malformed, or the node cannot listen at it.
    #[error("cannot use the address {address}: {reason}")]
    Address {
        /// The address, as the program gave it.
        address: String,
        /// What is wrong, and what to do.
        reason: String,
    },
}

impl From<CertificateFileError> for Error {
    fn from(error: CertificateFileError) -> Self {
        Self::Access { problem: error.to_string() }
    }
}

impl From<TokenError> for Error {
    fn from(error: TokenError) -> Self {
        Self::Access { problem: error.to_string() }
    }
}

/// How a message counts the refusals that it does not name.
fn so_were(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => "; so was one more".to_owned(),
        others => format!("; so were {others} more"),
    }
}

/// The same text as [`Display`](std::fmt::Display), because `main` and `expect` show the `Debug`
/// form.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
