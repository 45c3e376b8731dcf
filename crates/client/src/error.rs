//! What can go wrong, by what the program can do about it.

use node::NodeError;
use types::{Placement, RunSize, SpecError, WorkerId};
use wire::{KeyError, Refusal};
use worker::TableFailure;

/// Why a call failed. Every message says what, where and what to do; the variants are what a
/// program can decide on.
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
    /// The run is over for this node: it could not be joined, or a node was lost. Start again.
    #[error(transparent)]
    Run(#[from] NodeError),
    /// A run of this size could hold or do nothing. Change the size.
    #[error("a run needs a server and a worker at least, not {} servers and {} workers", .0.servers, .0.workers)]
    RunSize(RunSize),
    /// The table's spec does not hold together. Change the spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The table could not be made, for instance because another worker made it differently.
    #[error("{problem}")]
    Table {
        /// In words.
        problem: String,
    },
    /// The data set cannot be leased, for instance because another worker reads other files, or a
    /// lease could not be committed.
    #[error("{problem}")]
    Leases {
        /// In words.
        problem: String,
    },
    /// The keys are no key list. Change the keys.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The batch does not fit the table; nothing was sent.
    #[error(transparent)]
    Batch(#[from] TableFailure),
    /// A shard refused a part of the batch and left its rows as they were; other parts of it have
    /// been applied. What to do depends on the refusal: mend the values, raise `max_rows`, or join
    /// again.
    #[error("a push or pull of {worker} was refused: {}{}", refusal.describe(table, *placement), so_were(*others))]
    Refused {
        /// Whose push or pull it was: this worker's.
        worker: WorkerId,
        /// The table's name.
        table: String,
        /// The table's order, to name a refused row: its key is `placement.key(position)`.
        placement: Placement,
        /// What was wrong.
        refusal: Refusal,
        /// How many others were refused that nobody waits for: a clock, or the end of the session,
        /// tells the first of them.
        others: usize,
    },
    /// An address is none, or cannot be listened at.
    #[error("cannot use the address {address}: {reason}")]
    Address {
        /// As given.
        address: String,
        /// In words.
        reason: String,
    },
}

/// What a message says of those that it does not name.
fn so_were(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => "; so was one more".to_owned(),
        others => format!("; so were {others} more"),
    }
}

/// In words, as [`Display`](std::fmt::Display): this is what is shown where `main` returns it, or
/// an `expect` meets it.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
