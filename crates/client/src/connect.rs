//! How to reach a run of several processes.

use net::SameHost;
use node::{LeaveSignal, WaitPolicy};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How to reach a run of several processes. Those of one host talk through shared memory, others
/// over TCP.
///
/// ```
/// use slackwater::Connect;
/// use slackwater::cluster::{SameHost, WaitPolicy};
/// use std::time::Duration;
///
/// let connect = Connect {
///     place: Some(0),                                    // be worker 0, which prints the result
///     advertise: Some("10.0.0.7".to_owned()),            // as the others know this host
///     failure_timeout: Duration::from_secs(30),
///     ..Connect::to("head:7000")
/// };
/// assert_eq!((connect.same_host, connect.wait), (SameHost::SharedMemory, WaitPolicy::BLOCKING));
/// ```
#[derive(Clone, Debug)]
pub struct Connect {
    /// The coordinator's `host:port`, the same for every process of the run. Where
    /// there are several coordinators, the places of all of them, with commas between; whichever
    /// leads is found, and waited for as long as `join_limit`. Where the coordinator itself runs,
    /// it may also be `0.0.0.0:port` or `[::]:port`: it then listens at every address of its host.
    pub coordinator_address: String,
    /// Where this node listens, where that matters; port 0 takes any free one. Without it, at any
    /// free port: of the loopback address if the coordinator place is one, else of every address. A
    /// process of several servers takes the port given and those after it.
    pub listen: Option<SocketAddr>,
    /// How others can call this node, if not by the address by which it reaches the coordinator:
    /// `host`, or `host:port` where the port differs from the one it listens at, too.
    pub advertise: Option<String>,
    /// Which worker or server to be, where that matters (the first of several, for a process of
    /// several servers); otherwise the first that is free. Name the place of every process of a
    /// role, or of none.
    pub place: Option<u32>,
    /// The job that this node is started for, where that is to be checked: a coordinator of another
    /// job turns it away. Empty if not.
    pub job: String,
    /// How long to wait for everybody to join.
    pub join_limit: Duration,
    /// A node that is silent for this long is lost.
    pub failure_timeout: Duration,
    /// How threads wait.
    pub wait: WaitPolicy,
    /// How this node talks to those of its own host.
    pub same_host: SameHost,
    /// Where everything that this node is told and says is recorded, in a file named after it;
    /// nowhere without.
    pub record: Option<PathBuf>,
    /// Tells this node to leave in good order.
    pub leave: LeaveSignal,
}

impl Connect {
    /// Join at `address`, listen wherever that lets others call, wait five minutes for everybody,
    /// and take a node that is silent for two seconds for lost.
    ///
    /// ```
    /// use slackwater::{Connect, Session};
    /// use std::time::Duration;
    ///
    /// let connect = Connect { join_limit: Duration::from_millis(100), ..Connect::to("127.0.0.1:1") };
    /// let error = Session::connect(&connect).err().expect("nobody is there");
    /// assert!(error.to_string().contains("no answer from the coordinator"));
    /// ```
    #[must_use]
    pub fn to(address: &str) -> Self {
        Self {
            coordinator_address: address.to_owned(),
            listen: None,
            advertise: None,
            place: None,
            job: String::new(),
            join_limit: Duration::from_secs(300),
            failure_timeout: Duration::from_secs(2),
            wait: WaitPolicy::BLOCKING,
            same_host: SameHost::SharedMemory,
            record: None,
            leave: LeaveSignal::default(),
        }
    }
}
