//! What can go wrong with a store, by what whoever hears of it can do.

use crate::CheckpointName;
use std::time::Duration;

/// Why a store did not do what it was asked to. Every message says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The location is none that checkpoints can be kept at. Name another.
    #[error("`{location}` is no place for checkpoints: {problem}")]
    Location {
        /// As given.
        location: String,
        /// In words.
        problem: String,
    },
    /// A plain file stands where a folder should.
    #[error("cannot {doing}: {path} is a file, not a folder: name another folder")]
    NotAFolder {
        /// What was tried.
        doing: String,
        /// The file.
        path: String,
    },
    /// The disk has no room left.
    #[error(
        "cannot {doing}: the disk is full ({problem}): free some of it, keep fewer checkpoints, or name another folder"
    )]
    Full {
        /// What was tried.
        doing: String,
        /// What the system said.
        problem: String,
    },
    /// The file system takes no writes.
    #[error("cannot {doing}: the file system is mounted read-only: mount it for writing, or name another folder")]
    ReadOnly {
        /// What was tried.
        doing: String,
    },
    /// This user may not do that there.
    #[error("cannot {doing}: not permitted ({problem}): grant access to it, or name another place")]
    Denied {
        /// What was tried.
        doing: String,
        /// What the system or the server said.
        problem: String,
    },
    /// The server knows no bucket of that name.
    #[error("cannot {doing}: {endpoint} has no bucket `{bucket}`: make it, or mend the name")]
    NoBucket {
        /// What was tried.
        doing: String,
        /// Who was asked.
        endpoint: String,
        /// The name.
        bucket: String,
    },
    /// Nothing was found to sign requests with.
    #[error(
        "cannot {doing}: there are no credentials for {endpoint} ({problem}): set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a bucket that is open to all"
    )]
    NoCredentials {
        /// What was tried.
        doing: String,
        /// Who was to be asked.
        endpoint: String,
        /// What was found instead.
        problem: String,
    },
    /// The server cannot be reached, hangs up, or keeps failing. Try again later.
    #[error(
        "cannot {doing}: {endpoint} does not serve ({problem}), after trying for {:.1} s: see that it runs and that \
         AWS_ENDPOINT_URL names it",
        tried.as_secs_f64()
    )]
    Unavailable {
        /// What was tried.
        doing: String,
        /// Who was asked.
        endpoint: String,
        /// What came of it at last.
        problem: String,
        /// For how long.
        tried: Duration,
    },
    /// Anything else that went wrong.
    #[error("cannot {doing}: {problem}")]
    Failed {
        /// What was tried.
        doing: String,
        /// What the system or the server said.
        problem: String,
    },
    /// There is no checkpoint there yet.
    #[error("there is no checkpoint in {location}{}", unfinished(unfinished_ones))]
    Empty {
        /// Where was looked.
        location: String,
        /// What was begun there and never published.
        unfinished_ones: Vec<CheckpointName>,
    },
    /// There is no checkpoint of that name.
    #[error("there is no {name} in {location}: it has {}", one_of(there))]
    NoSuch {
        /// The name that was asked for.
        name: CheckpointName,
        /// Where was looked.
        location: String,
        /// Those that are there.
        there: Vec<CheckpointName>,
    },
    /// A checkpoint is not whole, or not one that can be used here.
    #[error("{name} in {location} cannot be used: {problem}{}", offer(previous))]
    Damaged {
        /// Which.
        name: CheckpointName,
        /// Where it lies.
        location: String,
        /// What is wrong with it.
        problem: Box<Problem>,
        /// The newest older one that has all its files.
        previous: Option<CheckpointName>,
    },
    /// The store holds checkpoints of another job, which a new one would mix with and in time
    /// remove.
    #[error(
        "{location} holds checkpoints of job `{found}` ({name}), and this is job `{job}`: name another place for them"
    )]
    OtherJob {
        /// Where.
        location: String,
        /// The newest one there.
        name: CheckpointName,
        /// Whose it is.
        found: String,
        /// Who wants to write.
        job: String,
    },
    /// What was to be written does not hang together: a mistake of the program.
    #[error("{name} cannot be written: {problem}")]
    Wrong {
        /// Which.
        name: CheckpointName,
        /// In words.
        problem: String,
    },
    /// Files that the manifest names are not there as it says, so it was not published. Begin
    /// another checkpoint.
    #[error("{name} was not published: {problem}")]
    Incomplete {
        /// Which.
        name: CheckpointName,
        /// The first that is missing or of another length.
        problem: Box<Problem>,
    },
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It was begun, and its manifest was never written.
    #[error("it was begun and never finished: it has no manifest.json")]
    Unfinished,
    /// Its manifest is cut off, changed, or of another kind.
    #[error("its manifest.json is damaged: {problem}")]
    Manifest {
        /// In words.
        problem: String,
    },
    /// It was written in a form that this release does not know.
    #[error(
        "it has version {found} of the format, and this release reads version {}: use the release that wrote it",
        crate::manifest::VERSION
    )]
    OtherVersion {
        /// The version that it says it has.
        found: u64,
    },
    /// It belongs to another job.
    #[error("it is of job `{found}`, and job `{wanted}` was asked for")]
    OtherJob {
        /// Whose it is.
        found: String,
        /// Whose was asked for.
        wanted: String,
    },
    /// A file that its manifest names is not there.
    #[error("{file}, with {holds}, is missing")]
    Missing {
        /// Its name.
        file: String,
        /// What it holds.
        holds: String,
    },
    /// A file is shorter or longer than its manifest says.
    #[error("{file}, with {holds}, has {found} bytes of {wanted}")]
    Length {
        /// Its name.
        file: String,
        /// What it holds.
        holds: String,
        /// How long it is.
        found: u64,
        /// How long it was.
        wanted: u64,
    },
    /// A file holds other bytes than were written.
    #[error("{file}, with {holds}, was changed after it was written: its checksum is not the manifest's")]
    Checksum {
        /// Its name.
        file: String,
        /// What it holds.
        holds: String,
    },
    /// A file is as it was written and holds something else than its manifest says.
    #[error("{file} does not hold {holds}: {problem}")]
    Contents {
        /// Its name.
        file: String,
        /// What it should hold.
        holds: String,
        /// In words.
        problem: String,
    },
}

fn offer(previous: &Option<CheckpointName>) -> String {
    match previous {
        Some(previous) => format!("; the one before it is there: {previous}"),
        None => "; there is none before it".to_owned(),
    }
}

fn unfinished(names: &[CheckpointName]) -> String {
    match names {
        [] => String::new(),
        names => format!(", only what was begun and never finished: {}", one_of(names)),
    }
}

fn one_of(names: &[CheckpointName]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
