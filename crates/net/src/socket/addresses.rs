//! The address book: the addresses at which each node listens. A thread of its own looks up host
//! names, so that the thread that drives the network never waits for the resolver.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use types::NodeId;

/// Time until a host name is looked up again, if the lookup failed or no address answered.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(1);

/// Resolves a `host:port`.
type LookUp = fn(&str) -> std::io::Result<Vec<SocketAddr>>;

/// How to reach a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// At this address.
    At(SocketAddr),
    /// Its host name is being looked up, or the lookup failed and will be repeated.
    NotYet,
    /// This node was never told where that node listens.
    Unknown,
}

/// Where nodes listen.
pub struct Addresses {
    known: BTreeMap<NodeId, Known>,
    look_up: LookUp,
    /// The lookup thread, once a host name needed one.
    names: Option<Names>,
}

/// What is known of one node.
struct Known {
    /// Its `host:port`, as it was told.
    text: String,
    /// The addresses of `text` that are known, to be tried in turn.
    at: Vec<SocketAddr>,
    /// Index in `at` of the address to call.
    turn: usize,
    lookup: Lookup,
}

/// Whether a host name needs a lookup.
enum Lookup {
    /// Never: it is an address.
    Needless,
    /// At this instant.
    Due(Instant),
    UnderWay,
    /// Only after no address of it has answered.
    Done,
}

/// The thread that looks up host names. It ends with its node. At most one lookup for a node is
/// under way.
struct Names {
    asked: Sender<(NodeId, String)>,
    found: Receiver<(NodeId, String, std::io::Result<Vec<SocketAddr>>)>,
}

impl Addresses {
    pub fn new() -> Self {
        Self::looking_up(|text| text.to_socket_addrs().map(Iterator::collect))
    }

    fn looking_up(look_up: LookUp) -> Self {
        Self { known: BTreeMap::new(), look_up, names: None }
    }

    /// Learns that `node` listens at `text`, a `host:port`. Starts to look up a host name. Ignores
    /// an empty text: that node does not listen.
    pub fn know(&mut self, node: NodeId, text: &str) {
        if text.is_empty() || self.known.get(&node).is_some_and(|known| known.text == text) {
            return;
        }
        let literal: Option<SocketAddr> = text.parse().ok();
        let lookup = if literal.is_some() { Lookup::Needless } else { Lookup::Due(Instant::now()) };
        let known = Known { text: text.to_owned(), at: literal.into_iter().collect(), turn: 0, lookup };
        self.known.insert(node, known);
        self.ask_for(node);
    }

    /// Learns that `node` listens at these addresses.
    pub fn know_at(&mut self, node: NodeId, at: Vec<SocketAddr>) {
        self.known.insert(node, Known { text: String::new(), at, turn: 0, lookup: Lookup::Needless });
    }

    /// The address to call `node` at. Never blocks.
    pub fn way(&mut self, node: NodeId) -> NodeAddress {
        self.take_found();
        self.ask_for(node);
        let Some(known) = self.known.get(&node) else { return NodeAddress::Unknown };
        match known.at.get(known.turn) {
            Some(address) => NodeAddress::At(*address),
            None => NodeAddress::NotYet,
        }
    }

    /// The addresses of `node` that are known.
    pub fn of(&self, node: NodeId) -> Vec<SocketAddr> {
        self.known.get(&node).map(|known| known.at.clone()).unwrap_or_default()
    }

    /// Learns that no node answered at the address last given for `node`. The next call goes to its
    /// next address. After the last one, a host name is looked up again.
    pub fn failed(&mut self, node: NodeId) {
        let Some(known) = self.known.get_mut(&node) else { return };
        known.turn += 1;
        if known.turn >= known.at.len() {
            known.turn = 0;
            if matches!(known.lookup, Lookup::Done) {
                known.lookup = Lookup::Due(Instant::now() + LOOK_UP_AGAIN);
            }
        }
    }

    /// The index of another address of `node`: `text` if that is one of its addresses, otherwise
    /// the next one. None if that is the address already in use.
    pub fn elsewhere(&self, node: NodeId, text: &str) -> Option<usize> {
        let known = self.known.get(&node)?;
        let named = text.parse().ok().and_then(|wanted: SocketAddr| known.at.iter().position(|at| *at == wanted));
        let turn = named.unwrap_or((known.turn + 1) % known.at.len().max(1));
        (turn != known.turn).then_some(turn)
    }

    /// Calls `node` at the address with this index from now on.
    pub fn turn_to(&mut self, node: NodeId, turn: usize) {
        if let Some(known) = self.known.get_mut(&node).filter(|known| turn < known.at.len()) {
            known.turn = turn;
        }
    }

    fn ask_for(&mut self, node: NodeId) {
        let Some(known) = self.known.get_mut(&node) else { return };
        if !matches!(known.lookup, Lookup::Due(at) if at <= Instant::now()) {
            return;
        }
        if self.names.is_none() {
            self.names = Names::start(self.look_up);
        }
        let sent = self.names.as_ref().is_some_and(|names| names.asked.send((node, known.text.clone())).is_ok());
        // If no thread could be started, a later attempt may succeed.
        known.lookup = if sent { Lookup::UnderWay } else { Lookup::Due(Instant::now() + LOOK_UP_AGAIN) };
    }

    fn take_found(&mut self) {
        let Some(names) = &self.names else { return };
        for (node, text, found) in names.found.try_iter() {
            let Some(known) = self.known.get_mut(&node).filter(|known| known.text == text) else { continue };
            let found = found.and_then(|at| if at.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(at) });
            match found {
                Ok(at) => {
                    tracing::debug!(%node, name = text, ?at, "looked up the host name of a node");
                    known.at = at;
                    known.turn = 0;
                    known.lookup = Lookup::Done;
                }
                Err(error) => {
                    tracing::warn!(
                        %node, name = text, %error,
                        "cannot look up the host name of a node; trying again: check the name and the DNS of this host"
                    );
                    known.lookup = Lookup::Due(Instant::now() + LOOK_UP_AGAIN);
                }
            }
        }
    }
}

impl Names {
    fn start(look_up: LookUp) -> Option<Self> {
        let (asked, questions) = channel::<(NodeId, String)>();
        let (answers, found) = channel();
        let answer = move || {
            for (node, text) in questions {
                let result = look_up(&text);
                if answers.send((node, text, result)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("names".to_owned()).spawn(answer);
        thread.is_ok().then_some(Self { asked, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, Mutex};

    const NODE: NodeId = NodeId::Server(3);

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 1, 1, 1], port))
    }

    /// Asks for the way until an address is known.
    fn found(addresses: &mut Addresses) -> SocketAddr {
        let begin = Instant::now();
        loop {
            match addresses.way(NODE) {
                NodeAddress::At(address) => return address,
                other => assert!(begin.elapsed() < 30 * LOOK_UP_AGAIN, "it remains {other:?}"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn addresses_need_no_lookup() {
        let mut addresses = Addresses::looking_up(|text| panic!("looked up {text}"));
        assert_eq!(addresses.way(NODE), NodeAddress::Unknown);
        for text in ["10.1.1.1:7", "[::1]:7"] {
            addresses.know(NODE, text);
            assert_eq!(addresses.way(NODE), NodeAddress::At(text.parse().expect("an address")));
            addresses.failed(NODE);
            assert_eq!(addresses.way(NODE), NodeAddress::At(text.parse().expect("an address")));
        }
        assert!(addresses.names.is_none(), "no thread was started");
    }

    #[test]
    fn elsewhere_gives_the_named_address_or_the_next() {
        let mut addresses = Addresses::new();
        assert_eq!(addresses.elsewhere(NODE, ""), None);
        addresses.know_at(NODE, vec![address(1)]);
        assert_eq!(addresses.elsewhere(NODE, ""), None, "there is nowhere else");
        addresses.know_at(NODE, vec![address(1), address(2), address(3)]);
        for (named, expected) in [("", 2), ("10.1.1.1:1", 1), ("10.1.1.1:3", 3), ("nowhere:3", 1)] {
            let turn = addresses.elsewhere(NODE, named).expect("somewhere else");
            addresses.turn_to(NODE, turn);
            assert_eq!(addresses.way(NODE), NodeAddress::At(address(expected)), "{named}");
        }
        assert_eq!(addresses.elsewhere(NODE, "10.1.1.1:1"), None, "that address is already in use");
    }

    #[test]
    fn way_does_not_block_during_a_lookup() {
        static HELD_UP: Barrier = Barrier::new(2);
        let mut addresses = Addresses::looking_up(|_| {
            HELD_UP.wait();
            Ok(vec![address(1)])
        });
        addresses.know(NODE, "far:1");
        for _ in 0..100 {
            assert_eq!(addresses.way(NODE), NodeAddress::NotYet);
        }
        HELD_UP.wait();
        assert_eq!(found(&mut addresses), address(1));
    }

    #[test]
    fn host_names_are_looked_up_again_after_each_address_has_failed() {
        static LOOKUPS: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let mut addresses = Addresses::looking_up(|text| {
            let mut lookups = LOOKUPS.lock().expect("not poisoned");
            lookups.push(text.to_owned());
            Ok((0..2).map(|index| address(10 * lookups.len() as u16 + index)).collect())
        });
        addresses.know(NODE, "far:1");
        for expected in [10, 11, 10] {
            assert_eq!(found(&mut addresses), address(expected));
            addresses.failed(NODE);
        }
        let begin = Instant::now();
        while found(&mut addresses) != address(20) {
            assert!(begin.elapsed() < 30 * LOOK_UP_AGAIN, "never looked up again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(*LOOKUPS.lock().expect("not poisoned"), ["far:1", "far:1"]);
    }

    #[test]
    fn host_names_that_were_not_found_are_looked_up_again() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let mut addresses = Addresses::looking_up(|_| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => Err(ErrorKind::NotFound.into()),
            1 => Ok(Vec::new()),
            _ => Ok(vec![address(1)]),
        });
        addresses.know(NODE, "far:1");
        assert_eq!(found(&mut addresses), address(1));
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 3);
    }
}
