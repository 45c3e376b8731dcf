//! Finds a free loopback address, for the coordinator of a run whose nodes are all on this host.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port to try. The range lies above well-known services and below the ephemeral ports
/// of outgoing connections, which begin at 32768 on Linux and at 49152 elsewhere.
const FIRST: u16 = 20_000;
/// How many ports the range has.
const COUNT: u32 = 12_000;
/// Distance in ports between the first choices of two processes with consecutive process ids.
const APART: u32 = 101;

/// Returns a loopback address that no process listens at. The address is not reserved. But the
/// system gives its port to no outgoing connection, so only a process that asks for this very port
/// can take it first.
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
    // All ports of the range are taken: let the system choose one.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn free_addresses_are_distinct_and_exclude_ports_in_use() {
        let offered: Vec<SocketAddr> = (0..50).map(|_| free_address().expect("a port")).collect();
        assert_eq!(offered.iter().collect::<BTreeSet<_>>().len(), 50);
        let next = u32::from(offered[49].port() - FIRST) + 1;
        let taken = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + (next % COUNT) as u16));
        let _taken = TcpListener::bind(taken);
        assert_ne!(free_address().expect("a port"), taken);
    }
}
