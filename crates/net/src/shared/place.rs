//! Finds out whether a node can be called through shared memory: it can if it listens on this host,
//! in the same network namespace.
//!
//! Beside its TCP port a node listens at an abstract Unix socket whose name holds the same address.
//! Both abstract names and addresses belong to a network namespace. So if this host has the address
//! and a process listens under the name, that process is the node with that address.

use super::SharedStream;
use identity::Credentials;
use mio::net::{UnixListener, UnixStream};
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

fn name(address: SocketAddr) -> Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("slackwater/{address}"))
}

/// The Unix socket at which a node accepts shared-memory connections.
pub type Door = UnixListener;

/// Listens for shared-memory connections beside the TCP port at `address`.
pub fn open(address: SocketAddr) -> Result<Door> {
    UnixListener::bind_addr(&name(address)?)
}

/// Calls the node that listens at `address`, if it is on this host. Fails if the process there
/// belongs to another user.
pub fn call(address: SocketAddr, credentials: Option<&Credentials>) -> Result<Option<SharedStream>> {
    if !is_own(address) {
        return Ok(None);
    }
    for listens_at in names(address) {
        match UnixStream::connect_addr(&name(listens_at)?) {
            Ok(socket) => return SharedStream::call(socket, credentials).map(Some),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The addresses under which a node may listen that can be called at `address`: `address` itself,
/// or a wildcard address (`0.0.0.0`, `[::]`).
fn names(address: SocketAddr) -> Vec<SocketAddr> {
    let v4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let v6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let every = if address.is_ipv4() { vec![v4, v6] } else { vec![v6] };
    std::iter::once(address).chain(every.into_iter().map(|ip| SocketAddr::new(ip, address.port()))).collect()
}

/// Whether `address` is one of this host's. If it is, the route to it starts at the same address.
/// Connecting a UDP socket shows the route and sends no packet.
fn is_own(address: SocketAddr) -> bool {
    let ip = address.ip();
    if ip.is_loopback() {
        return true;
    }
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let way = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    way.is_ok_and(|way| way.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_own_accepts_this_hosts_addresses_only() {
        for (address, own) in [
            ("127.0.0.1:9", true),
            ("127.9.9.9:9", true),
            ("[::1]:9", true),
            // Reserved for documentation by RFC 5737 and RFC 3849, so no host has them.
            ("192.0.2.1:9", false),
            ("[2001:db8::1]:9", false),
        ] {
            assert_eq!(is_own(address.parse().expect("an address")), own, "{address}");
        }
    }

    #[test]
    fn call_finds_a_wildcard_listener_at_any_own_address_and_only_on_its_port() {
        // (listens at, called at, found)
        let cases = [
            ("127.0.0.1:65001", "127.0.0.1:65001", true),
            ("127.0.0.1:65002", "127.0.0.1:65003", false),
            ("127.0.0.1:65004", "127.0.0.2:65004", false),
            ("0.0.0.0:65005", "127.0.0.1:65005", true),
            ("[::]:65006", "127.0.0.1:65006", true),
            ("[::]:65007", "[::1]:65007", true),
            ("0.0.0.0:65008", "[::1]:65008", false),
            ("0.0.0.0:65009", "192.0.2.1:65009", false),
        ];
        for (listens, called, found) in cases {
            let _door = open(listens.parse().expect("an address")).expect("a free name");
            let stream = call(called.parse().expect("an address"), None).expect("a clear answer");
            assert_eq!(stream.is_some(), found, "{listens} called at {called}");
        }
    }
}
