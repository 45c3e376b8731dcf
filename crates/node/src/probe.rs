//! Finds out whether a process whose connection broke has ended: if it has, its host refuses TCP
//! connections to the address at which it listened.

use crate::contact::heartbeat_interval;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use types::NodeId;

/// Pause before each attempt to connect, in milliseconds. Several attempts, because the socket of a
/// dying process may stay open for a moment.
const PAUSES_MS: [u64; 4] = [0, 20, 80, 300];

/// The probes under way. Each is a thread that ends by itself.
pub(crate) struct Probes {
    /// Time that an attempt may take. A host that does not answer says nothing about the process.
    limit: Duration,
    answer: Sender<NodeId>,
    answers: Receiver<NodeId>,
}

impl Probes {
    /// Probes whose attempts each end within one heartbeat interval.
    pub fn within(failure_timeout: Duration) -> Self {
        let (answer, answers) = channel();
        Self { limit: heartbeat_interval(failure_timeout), answer, answers }
    }

    /// Asks whether the process that listened at `address` has ended.
    pub fn ask(&self, node: NodeId, address: &str) {
        let answer = self.answer.clone();
        let address = address.to_owned();
        let limit = self.limit;
        let ask = move || {
            for pause in PAUSES_MS {
                std::thread::sleep(Duration::from_millis(pause));
                if has_ended(&address, limit) {
                    // Without a receiver the run is over.
                    answer.send(node).ok();
                    return;
                }
            }
        };
        // If no thread can be started, the failure timeout notices the node.
        std::thread::Builder::new().name(format!("probe of {node}")).spawn(ask).ok();
    }

    /// The nodes whose processes were found to have ended since the last call.
    pub fn ended(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.answers.try_iter()
    }
}

/// Whether every address of this `host:port` refuses connections.
fn has_ended(address: &str, limit: Duration) -> bool {
    let Ok(addresses) = address.to_socket_addrs() else { return false };
    let mut refused = false;
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused = true,
            _ => return false,
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_millis(500);

    #[test]
    fn a_process_has_ended_when_its_host_refuses_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        assert!(!has_ended(&address, LIMIT), "a process listens");
        drop(listener);
        assert!(has_ended(&address, LIMIT));
        assert!(!has_ended("no such place", LIMIT), "an unknown host says nothing");
    }
}
