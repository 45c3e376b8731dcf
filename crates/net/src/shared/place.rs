//! Who can be called through shared memory: whoever listens at an address of this host, in the same
//! network namespace.
//!
//! Beside its TCP port a node listens at an abstract Unix socket named by the same address. Such
//! names belong to a network namespace, and so do addresses: if this host has the address and
//! somebody listens under its name, both are on one host and mean the same node.

use super::SharedStream;
use mio::net::{UnixListener, UnixStream};
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

fn name(address: SocketAddr) -> Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("slackwater/{address}"))
}

/// Where nodes of the same host call.
pub type Door = UnixListener;

/// Listens beside the TCP port at `address`.
pub fn open(address: SocketAddr) -> Result<Door> {
    UnixListener::bind_addr(&name(address)?)
}

/// Calls whoever listens at `address`, if that is on this host and nobody else's process.
pub fn call(address: SocketAddr) -> Result<Option<SharedStream>> {
    if !is_own(address) {
        return Ok(None);
    }
    for listens_at in names(address) {
        match UnixStream::connect_addr(&name(listens_at)?) {
            Ok(socket) => return SharedStream::call(socket).map(Some),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What somebody listens at who can be called at `address`: that address, or every one.
fn names(address: SocketAddr) -> Vec<SocketAddr> {
    let (v4, v6) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    let every = if address.is_ipv4() { vec![v4, v6] } else { vec![v6] };
    std::iter::once(address).chain(every.into_iter().map(|ip| SocketAddr::new(ip, address.port()))).collect()
}

/// Whether `address` is one of this host's: the way to such an address begins at itself. No packet
/// is sent to find out.
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
    fn addresses_of_this_host_are_told_from_others() {
        for (address, own) in [
            ("127.0.0.1:9", true),
            ("127.9.9.9:9", true),
            ("[::1]:9", true),
            // RFC 5737 and RFC 3849: of no host.
            ("192.0.2.1:9", false),
            ("[2001:db8::1]:9", false),
        ] {
            assert_eq!(is_own(address.parse().expect("an address")), own, "{address}");
        }
    }

    #[test]
    fn whoever_listens_at_every_address_is_found_by_any_of_them_on_its_port_alone() {
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
            let stream = call(called.parse().expect("an address")).expect("a clear answer");
            assert_eq!(stream.is_some(), found, "{listens} called at {called}");
        }
    }
}
