//! The errors of a store: one variant for each thing that the caller can do about it.

use crate::CheckpointName;
use std::time::Duration;

/// Why an operation of a store failed. Every message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Checkpoints cannot be kept at this location. Name another.
    #[error("`{location}` is not a location for checkpoints: {problem}")]
    Location {
        /// As given.
        location: String,
        /// In words.
        problem: String,
    },
    /// This process may not use the location.
    #[error(
        "`{location}` may not be used for checkpoints: {problem} (allowed here: {allowed}); start this process with \
         --checkpoint-location {location} if it is right"
    )]
    NotAllowed {
        /// As another process named it.
        location: String,
        /// In words.
        problem: String,
        /// The locations that this process may use.
        allowed: String,
    },
    /// A plain file stands where a folder should.
    #[error("cannot {doing}: {path} is a file, not a folder: name another folder")]
    NotAFolder {
        /// The operation that failed.
        doing: String,
        /// The file.
        path: String,
    },
    /// The disk has no room left.
    #[error(
        "cannot {doing}: the disk is full ({problem}): free some space, keep fewer checkpoints, or name another folder"
    )]
    Full {
        /// The operation that failed.
        doing: String,
        /// The system's message.
        problem: String,
    },
    /// The file system is read-only.
    #[error("cannot {doing}: the file system is mounted read-only: mount it for writing, or name another folder")]
    ReadOnly {
        /// The operation that failed.
        doing: String,
    },
    /// The user has no permission for this.
    #[error("cannot {doing}: not permitted ({problem}): grant access to it, or name another location")]
    Denied {
        /// The operation that failed.
        doing: String,
        /// The system's or the server's message.
        problem: String,
    },
    /// The server has no bucket of that name.
    #[error("cannot {doing}: {endpoint} has no bucket `{bucket}`: create it, or correct the name")]
    NoBucket {
        /// The operation that failed.
        doing: String,
        /// The server's address.
        endpoint: String,
        /// The bucket's name.
        bucket: String,
    },
    /// There are no credentials to sign requests with.
    #[error(
        "cannot {doing}: there are no credentials for {endpoint} ({problem}): set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
    )]
    NoCredentials {
        /// The operation that failed.
        doing: String,
        /// The server's address.
        endpoint: String,
        /// Why the search for credentials failed.
        problem: String,
    },
    /// The server cannot be reached, closes connections, or keeps failing. Try again later.
    #[error(
        "cannot {doing}: {endpoint} does not serve the request ({problem}), after trying for {:.1} s: check that it \
         runs and that AWS_ENDPOINT_URL names it",
        tried.as_secs_f64()
    )]
    Unavailable {
        /// The operation that failed.
        doing: String,
        /// The server's address.
        endpoint: String,
        /// The last failure.
        problem: String,
        /// How long the request was retried.
        tried: Duration,
    },
    /// Anything else that went wrong.
    #[error("cannot {doing}: {problem}")]
    Failed {
        /// The operation that failed.
        doing: String,
        /// The system's or the server's message.
        problem: String,
    },
    /// The store holds no checkpoint yet.
    #[error("there is no checkpoint in {location}{}", unfinished(unfinished_ones))]
    Empty {
        /// The store's location.
        location: String,
        /// Checkpoints that were begun there and never published.
        unfinished_ones: Vec<CheckpointName>,
    },
    /// The store holds no checkpoint of that name.
    #[error("there is no {name} in {location}: it holds {}", list(there))]
    NoSuch {
        /// The name that the caller asked for.
        name: CheckpointName,
        /// The store's location.
        location: String,
        /// The checkpoints that the store holds.
        there: Vec<CheckpointName>,
    },
    /// A checkpoint is not whole, or cannot be used by this job or this release.
    #[error("{name} in {location} cannot be used: {problem}{}", offer(previous))]
    Damaged {
        /// The checkpoint.
        name: CheckpointName,
        /// The store's location.
        location: String,
        /// What is wrong with it.
        problem: Box<Problem>,
        /// The newest older checkpoint that has all its files.
        previous: Option<CheckpointName>,
    },
    /// The store holds checkpoints of another job. New ones would mix with them and in time replace
    /// them.
    #[error("{location} holds checkpoints of job `{found}` ({name}), and this is job `{job}`: name another location")]
    OtherJob {
        /// The store's location.
        location: String,
        /// The newest checkpoint there.
        name: CheckpointName,
        /// The job that it belongs to.
        found: String,
        /// The job that wants to write.
        job: String,
    },
    /// The data that the caller passed is inconsistent: a bug of the program.
    #[error("{name} cannot be written: {problem}")]
    Wrong {
        /// The checkpoint.
        name: CheckpointName,
        /// In words.
        problem: String,
    },
    /// A file that the manifest lists is missing or has another length, so the checkpoint was not
    /// published. Begin another one.
    #[error("{name} was not published: {problem}")]
    Incomplete {
        /// The checkpoint.
        name: CheckpointName,
        /// The first file that is missing or has another length.
        problem: Box<Problem>,
    },
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It was begun, but its manifest was never written.
    #[error("it was begun and never finished: it has no manifest.json")]
    Unfinished,
    /// Its manifest is truncated, changed, or not a manifest.
    #[error("its manifest.json is damaged: {problem}")]
    Manifest {
        /// In words.
        problem: String,
    },
    /// It was written in a version of the format that this release does not read.
    #[error(
        "it has version {found} of the format, and this release reads version {}: use the release that wrote it",
        crate::manifest::VERSION
    )]
    OtherVersion {
        /// The version in its manifest.
        found: u64,
    },
    /// It belongs to another job.
    #[error("it belongs to job `{found}`, and this is job `{wanted}`")]
    OtherJob {
        /// The job that it belongs to.
        found: String,
        /// The job that the caller asked for.
        wanted: String,
    },
    /// A file that its manifest lists is missing.
    #[error("{file}, with {holds}, is missing")]
    Missing {
        /// The file's name.
        file: String,
        /// What the file holds, in words.
        holds: String,
    },
    /// A file is shorter or longer than its manifest says.
    #[error("{file}, with {holds}, has {found} bytes instead of {wanted}")]
    Length {
        /// The file's name.
        file: String,
        /// What the file holds, in words.
        holds: String,
        /// Its length, in bytes.
        found: u64,
        /// Its length in the manifest, in bytes.
        wanted: u64,
    },
    /// A file was changed after it was written.
    #[error("{file}, with {holds}, was changed after it was written: its checksum differs from the manifest's")]
    Checksum {
        /// The file's name.
        file: String,
        /// What the file holds, in words.
        holds: String,
    },
    /// A file is as it was written, but holds something else than the manifest says.
    #[error("{file} does not hold {holds}: {problem}")]
    Contents {
        /// The file's name.
        file: String,
        /// What it should hold, in words.
        holds: String,
        /// In words.
        problem: String,
    },
}

fn offer(previous: &Option<CheckpointName>) -> String {
    match previous {
        Some(previous) => format!("; the newest whole one before it is {previous}"),
        None => "; there is no whole one before it".to_owned(),
    }
}

fn unfinished(names: &[CheckpointName]) -> String {
    match names {
        [] => String::new(),
        names => format!(", only some that were begun and never finished: {}", list(names)),
    }
}

fn list(names: &[CheckpointName]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
