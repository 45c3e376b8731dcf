//! Whether a process whose connection broke has ended: then its host refuses whoever calls where it
//! listened.

use crate::contact::heartbeat_interval;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use types::NodeId;

/// How long after the last call the next one is made: a process that dies may leave its door open
/// for a moment.
const PAUSES_MS: [u64; 4] = [0, 20, 80, 300];

/// Questions under way, each a thread that ends by itself.
pub(crate) struct Probes {
    /// A host that does not answer for this long says nothing about the process.
    limit: Duration,
    answer: Sender<NodeId>,
    answers: Receiver<NodeId>,
}

impl Probes {
    /// Each of which ends within a part of the failure timeout.
    pub fn within(failure_timeout: Duration) -> Self {
        let (answer, answers) = channel();
        Self { limit: heartbeat_interval(failure_timeout), answer, answers }
    }

    /// Asks whether the process that listened at `address` has ended.
    pub fn ask(&self, node: NodeId, address: &str) {
        let (answer, address, limit) = (self.answer.clone(), address.to_owned(), self.limit);
        let ask = move || {
            for pause in PAUSES_MS {
                std::thread::sleep(Duration::from_millis(pause));
                if has_ended(&address, limit) {
                    // Nobody listens any more where the run is over.
                    answer.send(node).ok();
                    return;
                }
            }
        };
        // Without a thread the node is noticed by its silence.
        std::thread::Builder::new().name(format!("probe of {node}")).spawn(ask).ok();
    }

    /// Those that have ended, since this was last asked.
    pub fn ended(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.answers.try_iter()
    }
}

/// Whether every address that the text stands for refuses a call.
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
        assert!(!has_ended(&address, LIMIT), "somebody listens");
        drop(listener);
        assert!(has_ended(&address, LIMIT));
        assert!(!has_ended("no such place", LIMIT), "that says nothing");
    }
}
