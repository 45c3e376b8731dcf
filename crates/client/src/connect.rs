//! Options of a node that joins a run of several processes: addresses, place, limits of time.

use crate::access::Access;
use net::SameHost;
use node::{LeaveSignal, WaitPolicy};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How a process joins a run of several processes. Nodes of one host talk through shared memory,
/// nodes of different hosts over TCP.
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
    /// The coordinator's `host:port`, the same for every process of the run. With several
    /// coordinators, the addresses of all, separated by commas: the node waits up to `join_limit`
    /// for the one that leads. The process that runs the coordinator may also say `0.0.0.0:port` or
    /// `[::]:port`: it then listens at every address of its host.
    pub coordinator_address: String,
    /// The address that this node listens at; port 0 takes any free port. `None` takes any free
    /// port: of the loopback address if the coordinator's address is one, else of every address. A
    /// process of several servers takes this port and those after it.
    pub listen: Option<SocketAddr>,
    /// The address that other nodes call, if it is not the one by which this node reaches the
    /// coordinator: `host`, or `host:port` if the port differs too.
    pub advertise: Option<String>,
    /// Which worker or server to be, by number: for a process of several servers, the first of
    /// them. `None` takes the first free number. Set it for every process of a role, or for none.
    pub place: Option<u32>,
    /// The job that this node belongs to: a coordinator of another job turns it away. Empty turns
    /// the check off.
    pub job: String,
    /// How long to wait until all nodes have joined.
    pub join_limit: Duration,
    /// A node that is silent for this long counts as lost.
    pub failure_timeout: Duration,
    /// How threads wait.
    pub wait: WaitPolicy,
    /// How this node talks to nodes of its own host.
    pub same_host: SameHost,
    /// How this node proves who it is.
    pub access: Access,
    /// The folder to record this node's inputs and frames in, in a file named after the node.
    /// `None` records nothing.
    pub record: Option<PathBuf>,
    /// Where this node may read and write checkpoints: these locations, those beneath them, and
    /// those of the environment variable `SLACKWATER_CHECKPOINT_LOCATIONS`. With a token it uses no
    /// others, so a server refuses a run whose coordinator names another. Without a token and
    /// without such locations it uses any.
    pub checkpoint_locations: Vec<String>,
    /// Signal by which the program tells this node to leave in good order.
    pub leave: LeaveSignal,
}

impl Connect {
    /// The defaults for the coordinator at `address`: listen where other nodes can call, wait at
    /// most five minutes for all nodes to join, and count a node as lost after ten silent seconds.
    ///
    /// ```
    /// use slackwater::security::Access;
    /// use slackwater::{Connect, Session};
    /// use std::time::Duration;
    ///
    /// let join_limit = Duration::from_millis(100);
    /// let connect = Connect { join_limit, access: Access::Insecure, ..Connect::to("127.0.0.1:1") };
    /// let error = Session::connect(&connect).err().expect("no coordinator listens there");
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
            failure_timeout: Duration::from_secs(10),
            wait: WaitPolicy::BLOCKING,
            same_host: SameHost::SharedMemory,
            access: Access::default(),
            record: None,
            checkpoint_locations: Vec::new(),
            leave: LeaveSignal::default(),
        }
    }
}
