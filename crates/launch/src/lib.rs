//! Starts, supervises and ends processes on this host.
//!
//! [`Start`] starts one child as a [`Process`]. [`RunPlan`] lists the processes of a whole run, and
//! a [`Supervisor`] starts them, forwards their output, replaces lost ones and ends them together.
//! A [`Namespace`] is a network namespace to start processes in: to the network, it is another
//! host.
//!
//! Invariants:
//! - A process that was started here ends when its [`Process`] is dropped. It is killed by process
//!   id.
//! - On Linux it also ends when the launcher ends, even if the launcher is killed.
//! - A signal goes only to a process that has not been waited for. So it never hits another process
//!   that got the same process id later.

mod cause;
mod namespace;
mod output;
mod plan;
mod process;
mod run_token;
mod signals;
mod start;
mod supervisor;

pub use namespace::{Namespace, NamespaceError};
pub use net::{SameHost, free_address};
pub use output::{LineHandler, OutputTarget};
pub use plan::{PlannedProcess, ProcessKind, RunPlan, SAME_HOST_WORDS, parse_same_host};
pub use process::{Process, ProcessError, signal_process};
pub use run_token::{RunToken, RunTokenError};
pub use rustix::process::Signal;
pub use signals::SignalFlag;
pub use start::Start;
pub use supervisor::{EXPELLED_STATUS, EndPolicy, LaunchFailure, Replacements, Supervisor};
