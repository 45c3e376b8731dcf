//! The shell: the threads and timers that drive the machines over a transport.
//!
//! - **Server.** One thread owns the machine and the sockets, and runs each request to its end.
//! - **Worker.** The program's threads share the machine. A thread that waits also drives the
//!   network, so an answer reaches its caller without passing through another thread. A background
//!   thread drives the network while the program computes.
//! - **Coordinator.** One thread leads while its leader lease is valid; a registry decides which
//!   coordinator leads and stores its memory.

#![deny(clippy::wildcard_enum_match_arm)]

mod broken;
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
mod reminder;
mod server;
mod shell_control;
mod stopwatch;
mod wait;
mod worker_handle;

pub use checkpoints::{CheckpointSettings, describe_checkpoint, open_resume};
pub use coordinator::{
    CoordinatorReport, CoordinatorReportCallback, CoordinatorSettings, run_candidate, run_coordinator,
};
pub use driver::{Driver, DriverSettings, RunFailure};
pub use join::{JoinRequest, JoinedRun, join};
pub use leave_signal::LeaveSignal;
pub use record::{RECORDING_BYTES, Recorder, Recording, RecordingError, Replayed, replay, replay_file, replay_from};
pub use server::{ReportCallback, ServerReport, ServerSettings, run_server};
pub use store::{AllowedLocations, FileModes};
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
        /// Why, in words.
        reason: String,
    },
    /// This node cannot talk to the process at the coordinator's address: it speaks another
    /// protocol, or its certificate is refused.
    #[error("cannot talk to the coordinator {reason}")]
    Incompatible {
        /// Where and why, in words.
        reason: String,
    },
    /// The coordinator did not answer in time, or not all nodes joined in time.
    #[error("the run did not begin within {seconds} s: {reason}")]
    NotBegun {
        /// How long this node waited.
        seconds: u64,
        /// Why, in words.
        reason: String,
    },
    /// The system refuses another thread.
    #[error(
        "cannot start a thread for {name}: {reason}; start fewer servers and workers in one process, or raise its \
         limit of threads"
    )]
    NoThread {
        /// What the thread is for.
        name: String,
        /// The system's error.
        reason: String,
    },
    /// The recording of this node cannot be written.
    #[error("cannot record to {path}: {reason}; give a folder that can be written and holds no recordings")]
    NotRecorded {
        /// The file or the folder.
        path: String,
        /// The system's error.
        reason: String,
    },
    /// The registry fails, or holds a memory that cannot be used.
    #[error("cannot use the registry: {reason}")]
    Registry {
        /// Why, in words, with what to do.
        reason: String,
    },
    /// The run cannot write checkpoints to the given location, or cannot resume from a checkpoint.
    #[error("{reason}")]
    Checkpoint {
        /// The store's error.
        reason: String,
    },
    /// This node was told to leave before the run had begun.
    #[error("this node was told to leave before the run had begun")]
    LeftEarly,
    /// This node was told to leave a static run, which ends when a node leaves.
    #[error(
        "this node was told to leave, and the run ends with it: in a static run no other node can take its place. \
         To let nodes come and go, start an elastic run (--replicas, Membership::Elastic)"
    )]
    ToldToLeave,
    /// This worker was told to leave and has waited for other workers long enough. Close the
    /// session: everything pushed so far counts.
    #[error("this worker was told to leave and stopped waiting for other workers; close its session")]
    Leaving,
    /// The program interrupted a wait. The operation is still under way, and the run goes on.
    #[error("interrupted while waiting; the run goes on")]
    Interrupted,
    /// This worker has left the run.
    #[error("the session is closed; nothing more can be pushed or pulled through it")]
    Closed,
    /// The coordinator counts this node as lost. The run may go on without it.
    #[error("the run counts {node}, which is this node, as lost: {reason}")]
    GivenUp {
        /// This node's name.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A node is lost, and the run ends with it.
    #[error("lost {node}: {reason}; the run cannot go on without it: start the run again")]
    Lost {
        /// The lost node.
        node: NodeId,
        /// How the loss was noticed.
        reason: String,
    },
}

impl NodeError {
    /// The error with which node `own` fails when it learns that `node` is lost.
    fn lost(own: NodeId, node: NodeId, reason: String) -> Self {
        if own == node { Self::GivenUp { node, reason } } else { Self::Lost { node, reason } }
    }
}
