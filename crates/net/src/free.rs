//! A free address for the coordinator of a run on this machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below where systems take the ports of outgoing connections from (32768 on Linux, 49152
/// elsewhere), and above well-known services.
const FIRST: u16 = 20_000;
const COUNT: u32 = 12_000;
/// Processes that are started one after the other begin this far apart.
const APART: u32 = 101;

/// An address of this machine alone that nobody listens at. It is not held: but the system gives it
/// to no connection, so that only somebody who asks for the very same port could take it first.
///
/// ```
/// let coordinator = net::free_address().expect("a free port");
/// assert!(std::net::TcpListener::bind(coordinator).is_ok());
/// ```
pub fn free_address() -> io::Result<SocketAddr> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(APART);
    for _ in 0..COUNT {
        let place = begin.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + place as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    // A machine on which all of these are taken has others to give.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_address_is_another_and_one_that_is_taken_is_not_offered() {
        let offered: Vec<SocketAddr> = (0..50).map(|_| free_address().expect("a port")).collect();
        assert_eq!(offered.iter().collect::<BTreeSet<_>>().len(), 50);
        let next = u32::from(offered[49].port() - FIRST) + 1;
        let taken = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + (next % COUNT) as u16));
        let _taken = TcpListener::bind(taken);
        assert_ne!(free_address().expect("a port"), taken);
    }
}
