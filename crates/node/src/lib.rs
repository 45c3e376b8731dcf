//! The shell: threads and timers that drive the machines over a transport.
//!
//! A server thread owns its machine and its sockets and runs each request to its end. A worker's
//! machine is shared by the program's threads: whoever waits also drives the network, so that an
//! answer reaches the caller without passing through another thread, and a background thread keeps
//! things moving while the program computes.

#![deny(clippy::wildcard_enum_match_arm)]

mod checkpoints;
mod contact;
mod coordinator;
mod driver;
mod join;
mod leading;
mod leave_signal;
mod probe;
mod record;
pub mod registry;
mod server;
mod shell_control;
mod stopwatch;
mod wait;
mod worker_handle;

pub use checkpoints::{CheckpointSettings, describe_checkpoint, open_resume};
pub use coordinator::{CoordinatorSettings, run_candidate, run_coordinator};
pub use driver::{Driver, DriverSettings, RunFailure};
pub use join::{JoinRequest, JoinedRun, join};
pub use leave_signal::LeaveSignal;
pub use record::{RECORDING_BYTES, Recorder, Recording, RecordingError, Replayed, replay, replay_file, replay_from};
pub use server::{ReportCallback, ServerReport, ServerSettings, run_server};
pub use wait::WaitPolicy;
pub use worker_handle::WorkerHandle;

use types::NodeId;

/// Why a node cannot go on.
///
/// ```
/// use node::NodeError;
/// use types::NodeId;
///
/// let reason = "nothing heard from it for 5.0 s".to_owned();
/// let error = NodeError::Lost { node: NodeId::Worker(3), reason };
/// assert!(error.to_string().starts_with("lost worker 3: nothing heard from it"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The coordinator has no place for this node.
    #[error("the coordinator turned this node away: {reason}")]
    JoinRefused {
        /// In words.
        reason: String,
    },
    /// The coordinator could not be reached, or the others did not come, in time.
    #[error("the run did not begin within {seconds} s: {reason}")]
    NotBegun {
        /// How long was waited.
        seconds: u64,
        /// In words.
        reason: String,
    },
    /// The system has no thread to give. Start fewer servers and workers in one process, or raise
    /// the limit.
    #[error("cannot start a thread for {name}: {reason}")]
    NoThread {
        /// What it was for.
        name: String,
        /// As the system says.
        reason: String,
    },
    /// What it is told and says was to be recorded, and cannot be.
    #[error("cannot record to {path}: {reason}; give a folder that can be written and holds no recordings")]
    NotRecorded {
        /// The file or the folder.
        path: String,
        /// As the system says.
        reason: String,
    },
    /// Which coordinator leads, and what it remembers, cannot be known.
    #[error("the registry is of no help: {reason}")]
    Registry {
        /// In words, with what to do.
        reason: String,
    },
    /// Checkpoints cannot be kept there, or a run cannot go on from one.
    #[error("{reason}")]
    Checkpoint {
        /// As the store says.
        reason: String,
    },
    /// This node was told to leave before the run had begun.
    #[error("this node was told to leave before the run had begun")]
    LeftEarly,
    /// This node was told to leave a run that ends with any of its nodes.
    #[error(
        "this node was told to leave, and the run ends with it: nobody can take its place. To let nodes come and go, start runs with \
         replicas (--replicas, Membership::Elastic)"
    )]
    ToldToLeave,
    /// This worker was told to leave, and has waited for others long enough. Close the session:
    /// what was pushed is kept.
    #[error("this worker was told to leave, and waits for others no longer")]
    Leaving,
    /// Whoever waited was told to stop waiting. What was under way still is, and the run goes on.
    #[error("interrupted while waiting; the run goes on")]
    Interrupted,
    /// This worker has left the run.
    #[error("the session is closed; nothing more can be pushed or pulled through it")]
    Closed,
    /// The run has given this node up, and may be going on without it.
    #[error("{node}, which is this one, was given up: {reason}")]
    GivenUp {
        /// Its name.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A node is lost, and the run with it.
    #[error("lost {node}: {reason}; the run cannot go on without it, start it again")]
    Lost {
        /// Which.
        node: NodeId,
        /// How that was noticed.
        reason: String,
    },
}

impl NodeError {
    /// What a node fails with that hears of a loss.
    fn lost(own: NodeId, node: NodeId, reason: String) -> Self {
        if own == node { Self::GivenUp { node, reason } } else { Self::Lost { node, reason } }
    }
}
