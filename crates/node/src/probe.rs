//! Finds out whether a process lives that is silent or whose connection broke. If it has ended, its
//! host refuses TCP connections to the address at which it listened. If it is only stopped, the
//! kernel of its host accepts them.

use crate::contact::heartbeat_interval;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use types::NodeId;

/// Pause before each attempt to connect, in milliseconds. Several attempts, because the socket of a
/// dying process may stay open for a moment.
const PAUSES_MS: [u64; 4] = [0, 20, 80, 300];

/// What a probe asks a host for: where a process listened.
type FindAddresses = Box<dyn Fn() -> std::io::Result<Vec<SocketAddr>> + Send>;

/// One question to a host: whether the process that listened there has ended.
pub(crate) struct Probe(Receiver<bool>);

impl Probe {
    /// Asks for the process that listened at these addresses. An attempt to connect takes at most
    /// `limit`.
    pub fn at(addresses: Vec<SocketAddr>, limit: Duration) -> Self {
        Self::start(Box::new(move || Ok(addresses.clone())), limit)
    }

    fn start(find: FindAddresses, limit: Duration) -> Self {
        let (answer, answered) = channel();
        let ask = move || {
            let ended = PAUSES_MS.into_iter().any(|pause| {
                std::thread::sleep(Duration::from_millis(pause));
                find().is_ok_and(|addresses| has_ended(&addresses, limit))
            });
            // Without a receiver the run is over.
            answer.send(ended).ok();
        };
        // If no thread can be started, the failure timeout notices the node.
        std::thread::Builder::new().name("probe".to_owned()).spawn(ask).ok();
        Self(answered)
    }

    /// Whether the process has ended; `None` while the host is being asked. A host that does not
    /// answer says nothing about the process, which then counts as running.
    pub fn answer(&self) -> Option<bool> {
        match self.0.try_recv() {
            Ok(ended) => Some(ended),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(false),
        }
    }
}

/// The probes of a coordinator. Each is a thread that ends by itself.
pub(crate) struct Probes {
    /// Time that an attempt may take.
    limit: Duration,
    under_way: Vec<(NodeId, Probe)>,
}

impl Probes {
    /// Probes whose attempts each end within one heartbeat interval.
    pub fn within(failure_timeout: Duration) -> Self {
        Self { limit: heartbeat_interval(failure_timeout), under_way: Vec::new() }
    }

    /// Asks whether the process that listened at `address` has ended.
    pub fn ask(&mut self, node: NodeId, address: &str) {
        let address = address.to_owned();
        let find = move || address.to_socket_addrs().map(Iterator::collect);
        self.under_way.push((node, Probe::start(Box::new(find), self.limit)));
    }

    /// Whether the host of `node` has yet to answer.
    pub fn asks_for(&self, node: NodeId) -> bool {
        self.under_way.iter().any(|(asked, _)| *asked == node)
    }

    /// Takes the nodes whose processes were found to have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<NodeId> {
        let mut ended = Vec::new();
        self.under_way.retain(|(node, probe)| {
            let answer = probe.answer();
            ended.extend((answer == Some(true)).then_some(*node));
            answer.is_none()
        });
        ended
    }
}

/// How a host answers a call to the address at which a process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAnswer {
    /// It accepts the connection: the process lives, even if it does not run.
    Accepted,
    /// It refuses the connection: the process has ended.
    Refused,
    /// It does not answer in time, or there is no way to it.
    Nothing,
}

/// Calls a process at its addresses, in turn. It lives if one of them accepts, and has ended if all
/// of them refuse.
fn call(addresses: &[SocketAddr], limit: Duration) -> HostAnswer {
    let mut refused = 0;
    for address in addresses {
        match TcpStream::connect_timeout(address, limit) {
            Ok(_) => return HostAnswer::Accepted,
            Err(error) => refused += usize::from(error.kind() == ErrorKind::ConnectionRefused),
        }
    }
    if refused > 0 && refused == addresses.len() { HostAnswer::Refused } else { HostAnswer::Nothing }
}

/// Whether every one of these addresses refuses connections.
fn has_ended(addresses: &[SocketAddr], limit: Duration) -> bool {
    call(addresses, limit) == HostAnswer::Refused
}

/// Calls a process once, in a thread that ends by itself. The receiver gets one answer, and is
/// disconnected if no thread can be started.
pub(crate) fn ask_host(addresses: Vec<SocketAddr>, limit: Duration) -> Receiver<HostAnswer> {
    let (sender, answer) = channel();
    // Without a receiver, the caller no longer needs the answer.
    let ask = move || {
        sender.send(call(&addresses, limit)).ok();
    };
    std::thread::Builder::new().name("probe of a silent node".to_owned()).spawn(ask).ok();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_millis(500);

    /// Waits until a probe of this address is answered.
    fn answer(address: SocketAddr) -> bool {
        let probe = Probe::at(vec![address], LIMIT);
        loop {
            if let Some(ended) = probe.answer() {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_has_ended_when_its_host_refuses_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let other = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
        let address = listener.local_addr().expect("bound");
        assert!(!answer(address), "a process listens");
        assert!(!has_ended(&[other, address], LIMIT), "a process listens at one of its addresses");
        drop(listener);
        assert!(answer(address));
        assert!(has_ended(&[other, address], LIMIT));
        assert!(!has_ended(&[], LIMIT), "an unknown host says nothing");
    }

    #[test]
    fn probes_name_the_nodes_whose_processes_have_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let here = listener.local_addr().expect("bound").to_string();
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").to_string();
        let mut probes = Probes::within(4 * LIMIT);
        for (node, address) in [(1, &*here), (2, &*nobody), (3, "no such place")] {
            probes.ask(NodeId::Worker(node), address);
        }
        let mut ended = Vec::new();
        while !probes.under_way.is_empty() {
            ended.extend(probes.take_ended());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ended, [NodeId::Worker(2)]);
    }

    #[test]
    fn ask_host_tells_a_process_that_does_not_run_from_one_that_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        // As with a stopped process, no thread accepts the connection: the kernel does.
        assert_eq!(ask_host(vec![address], LIMIT).recv(), Ok(HostAnswer::Accepted));
        drop(listener);
        assert_eq!(ask_host(vec![address], LIMIT).recv(), Ok(HostAnswer::Refused));
    }
}
