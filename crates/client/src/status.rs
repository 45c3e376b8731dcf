//! The status of a run, for a process that is no member of it.

use crate::observer::Observer;
use crate::{Connect, Error};
use wire::Status;

/// Asks the coordinator for the status of the run, and waits at most `connect.join_limit` for the
/// answer. Fails if the address is malformed ([`Error::Address`]) or no coordinator answers there
/// ([`Error::Run`]).
///
/// ```
/// use slackwater::{Connect, RunSize, Serve, Session};
/// use slackwater::monitor::status;
/// use slackwater::security::{Access, JobToken};
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let access = Access::Job(JobToken::create()?);    // every process of a run has the same token
/// let connect = Connect { access, ..Connect::to(&coordinator.to_string()) };
/// let serve = Serve { coordinate: Some(RunSize { servers: 1, workers: 1 }), ..Serve::new(connect.clone()) };
/// let server = std::thread::spawn(move || serve.run());
/// let session = Session::connect(&connect)?;
/// let status = status(&connect)?;
/// assert_eq!((status.members.len(), status.plan.live_workers().count()), (2, 1));
/// session.close()?;
/// # server.join().expect("no panic")?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub fn status(connect: &Connect) -> Result<Status, Error> {
    Observer::new(connect)?.status()
}
