//! Addresses of a run: name resolution of the coordinator's address, the addresses that the
//! coordinator and the nodes listen at, and the address that each node advertises to the others.

use crate::{Connect, Error};
use net::{Limits, SocketSettings, SocketTransport, SocketWaiter, listen};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use types::{NodeId, Role};
use wire::Pool;

/// The coordinator's address, or the addresses of several coordinators, looked up once.
pub(crate) struct CoordinatorAddress {
    /// As the user wrote it.
    text: String,
    /// The socket addresses that it resolves to on this host, at least one, in the order to try
    /// them.
    resolved: Vec<SocketAddr>,
    reach: Reach,
    /// The address of each coordinator if there are several; empty if there is one.
    each: Vec<CoordinatorAddress>,
}

/// Which hosts must be able to call the nodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// This host only: the coordinator's address is `localhost` or a loopback address.
    ThisHost,
    /// Every host that can reach the coordinator, even if its name resolves to a loopback address
    /// here. Debian and others resolve a host's own name to 127.0.1.1, which no other host can
    /// call.
    OtherHosts,
}

/// A node's listening transport, and the address that it advertises.
pub(crate) struct Endpoint {
    pub transport: SocketTransport,
    pub waiter: SocketWaiter,
    /// The address that other nodes call.
    pub address: String,
}

fn unusable(address: &str, reason: impl Into<String>) -> Error {
    Error::Address { address: address.to_owned(), reason: reason.into() }
}

/// Whether only this host can call `host`.
fn is_local(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Splits `host:port` into host and port. An IPv6 address stands in brackets.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some((host, port))
}

/// Formats `host:port`, with brackets around an IPv6 address.
fn joined(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(ip) => SocketAddr::from((ip, port)).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

impl CoordinatorAddress {
    /// Looks up the coordinator's address for a node that joins.
    pub fn resolve(connect: &Connect) -> Result<Self, Error> {
        let coordinator = Self::resolve_own(connect)?;
        if coordinator.resolved.iter().all(|at| at.ip().is_unspecified()) {
            let reason =
                "it means every address of the coordinator's own host; write the one by which this host reaches it";
            return Err(unusable(&connect.coordinator_address, reason));
        }
        Ok(coordinator)
    }

    /// Looks up the coordinator's address for the process that is the coordinator.
    pub fn resolve_own(connect: &Connect) -> Result<Self, Error> {
        let each: Vec<Self> = connect
            .coordinator_address
            .split(',')
            .map(|text| Self::resolve_one(text.trim()))
            .collect::<Result<_, _>>()?;
        let reach =
            if each.iter().all(|one| one.reach == Reach::ThisHost) { Reach::ThisHost } else { Reach::OtherHosts };
        let resolved = each.iter().flat_map(|one| one.resolved.clone()).collect();
        let each = if each.len() > 1 { each } else { Vec::new() };
        Ok(Self { text: connect.coordinator_address.clone(), resolved, reach, each })
    }

    /// Looks up one address, which is `host:port`.
    fn resolve_one(text: &str) -> Result<Self, Error> {
        let how = "write host:port, and an IPv6 address as [address]:port";
        let (host, port) = split(text).ok_or_else(|| unusable(text, how))?;
        let found = (host, port).to_socket_addrs().map_err(|error| unusable(text, format!("{error}; {how}")))?;
        let resolved: Vec<SocketAddr> = found.collect();
        if resolved.is_empty() {
            return Err(unusable(text, "the host name has no address; check its spelling and the name service"));
        }
        let reach = if is_local(host) { Reach::ThisHost } else { Reach::OtherHosts };
        Ok(Self { text: text.to_owned(), resolved, reach, each: Vec::new() })
    }

    /// The addresses that the coordinator listens at: its own, or every address of this host if its
    /// name resolves to a loopback address here and to another one on other hosts.
    fn coordinator_listens(&self) -> Vec<SocketAddr> {
        match self.resolved.iter().all(|at| at.ip().is_loopback()) && self.reach == Reach::OtherHosts {
            true => vec![SocketAddr::new(every_address(self.resolved[0].ip()), self.resolved[0].port())],
            false => self.resolved.clone(),
        }
    }

    /// Whether there is more than one coordinator.
    pub fn is_of_several(&self) -> bool {
        !self.each.is_empty()
    }

    /// Listens as the coordinator. With several coordinators, takes the first address that belongs
    /// to this host and is free. Returns the transport, its waiter and that address.
    pub fn listen_as_coordinator(&self, connect: &Connect) -> Result<(SocketTransport, SocketWaiter, String), Error> {
        let settings = SocketSettings {
            pauses: true,
            pool: Pool::new(),
            same_host: connect.same_host,
            security: connect.access.security(Role::Coordinator)?,
            limits: Limits::default(),
        };
        if !self.is_of_several() {
            return self.listen_here(&settings);
        }
        let mut reasons = Vec::new();
        for one in &self.each {
            match one.listen_here(&settings) {
                Ok(listening) => return Ok(listening),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(unusable(&self.text, format!("this host can listen at none of these addresses: {}", reasons.join("; "))))
    }

    fn listen_here(&self, settings: &SocketSettings) -> Result<(SocketTransport, SocketWaiter, String), Error> {
        let error = match listen_at_first(&self.coordinator_listens(), settings) {
            Ok((transport, waiter, address)) => {
                tracing::info!(coordinator_address = self.text, %address, "the coordinator listens");
                return Ok((transport, waiter, self.text.clone()));
            }
            Err(error) => error,
        };
        let reason = match error.kind() {
            ErrorKind::AddrInUse => format!("{error}; is another coordinator running there?"),
            ErrorKind::AddrNotAvailable => {
                let port = self.resolved[0].port();
                format!(
                    "this host has no such address; let the coordinator listen at 0.0.0.0:{port} and give the other nodes its host name"
                )
            }
            _ => error.to_string(),
        };
        Err(unusable(&self.text, reason))
    }

    /// The addresses to try for a node whose program names none.
    fn node_listens(&self) -> Vec<SocketAddr> {
        let listen_for = |ip: IpAddr| if self.reach == Reach::ThisHost { ip } else { every_address(ip) };
        self.resolved.iter().map(|at| SocketAddr::new(listen_for(at.ip()), 0)).collect()
    }

    /// The address that other nodes call, for the `index`-th node of a process, which listens at
    /// `address`. `own` finds the address by which this host reaches another.
    fn advertised(
        &self,
        advertise: Option<&str>,
        index: u32,
        address: SocketAddr,
        own: impl Fn(SocketAddr) -> Option<IpAddr>,
    ) -> Result<String, Error> {
        if let Some(advertise) = advertise {
            return advertise_at(advertise, index, address.port());
        }
        if !address.ip().is_unspecified() {
            return Ok(address.to_string());
        }
        // Take the route to the coordinator or, if the coordinator is on this host, the route to
        // other networks.
        let here = |at: &SocketAddr| at.ip().is_loopback() || at.ip().is_unspecified();
        let routes = match self.resolved.iter().all(here) {
            true => vec![outside(Ipv4Addr::UNSPECIFIED.into()), outside(Ipv6Addr::UNSPECIFIED.into())],
            false => self.resolved.iter().copied().filter(|at| !here(at)).collect(),
        };
        // A node that listens at every IPv6 address can be called by IPv4 too.
        let ip = routes.into_iter().filter(|route| route.is_ipv4() || address.is_ipv6()).find_map(own);
        Ok(SocketAddr::new(ip.unwrap_or_else(|| loopback(address.ip())), address.port()).to_string())
    }

    /// Listens as the `index`-th node of a process, and tells its transport where the coordinator
    /// is.
    pub fn listen_as_node(&self, connect: &Connect, index: u32, role: Role, pool: &Pool) -> Result<Endpoint, Error> {
        let ports = |mut at: SocketAddr| match (at.port(), u16::try_from(u32::from(at.port()) + index)) {
            (0, _) => Ok(at),
            (_, Ok(port)) => {
                at.set_port(port);
                Ok(at)
            }
            (_, Err(_)) => Err(unusable(&at.to_string(), "there are not enough ports after it")),
        };
        let listens = match connect.listen {
            Some(at) => vec![ports(at)?],
            None => self.node_listens(),
        };
        let settings = SocketSettings {
            pauses: role == Role::Server,
            pool: pool.clone(),
            same_host: connect.same_host,
            security: connect.access.security(role)?,
            limits: Limits::default(),
        };
        let (mut transport, waiter, bound) = listen_at_first(&listens, &settings)
            .map_err(|error| unusable(&listens[0].to_string(), error.to_string()))?;
        let address = self.advertised(connect.advertise.as_deref(), index, bound, own_ip)?;
        if self.reach == Reach::OtherHosts && split(&address).is_none_or(|(host, _)| is_local(host)) {
            tracing::warn!(
                coordinator_address = self.text,
                "this node advertises {address}, which only this host can call; name an address that other hosts can call \
                 (--advertise HOST, Connect::advertise), or give the coordinator's address as localhost if all nodes are here"
            );
        }
        transport.know_at(NodeId::Coordinator, self.callable());
        Ok(Endpoint { transport, waiter, address })
    }

    /// The addresses at which to call the coordinator.
    fn callable(&self) -> Vec<SocketAddr> {
        let callable = |ip: IpAddr| if ip.is_unspecified() { loopback(ip) } else { ip };
        self.resolved.iter().map(|at| SocketAddr::new(callable(at.ip()), at.port())).collect()
    }
}

/// Listens at the first of these addresses that works. If none works, returns the first one's
/// error.
fn listen_at_first(
    addresses: &[SocketAddr],
    settings: &SocketSettings,
) -> std::io::Result<(SocketTransport, SocketWaiter, SocketAddr)> {
    let mut problem = None;
    for address in addresses {
        match listen(*address, settings.clone()) {
            Ok(listening) => return Ok(listening),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    Err(problem.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into()))
}

/// The address to advertise if the program names one. A host without a port gets the port that the
/// node listens at.
fn advertise_at(advertise: &str, index: u32, port: u16) -> Result<String, Error> {
    if let Some((host, first)) = split(advertise) {
        let port = u16::try_from(u32::from(first) + index);
        return port
            .map(|port| joined(host, port))
            .map_err(|_| unusable(advertise, "there are not enough ports after it"));
    }
    let host = advertise.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(advertise);
    if host.is_empty() || (host.contains(':') && host.parse::<Ipv6Addr>().is_err()) {
        return Err(unusable(advertise, "write a host, or host:port"));
    }
    Ok(joined(host, port))
}

fn every_address(like: IpAddr) -> IpAddr {
    if like.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn loopback(like: IpAddr) -> IpAddr {
    if like.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// An address that is reserved for documentation (RFC 5737, RFC 3849). The route to it leads out of
/// this host.
fn outside(like: IpAddr) -> SocketAddr {
    let ip: IpAddr = if like.is_ipv6() {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(192, 0, 2, 1).into()
    };
    SocketAddr::new(ip, 9)
}

/// The address by which this host reaches `peer`. Sends no packet.
fn own_ip(peer: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((every_address(peer.ip()), 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::SameHost;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
    const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);

    fn coordinator(text: &str, resolved: &[&str]) -> CoordinatorAddress {
        let (host, _) = split(text).expect("host:port");
        let reach = if is_local(host) { Reach::ThisHost } else { Reach::OtherHosts };
        let resolved = resolved.iter().map(|at| at.parse().expect("an address")).collect();
        CoordinatorAddress { text: text.to_owned(), resolved, reach, each: Vec::new() }
    }

    fn texts(addresses: &[SocketAddr]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn coordinator_and_nodes_listen_at_reachable_addresses() {
        // (the coordinator's address, what it resolves to here; where the coordinator listens,
        // where it is called, where a node listens)
        let cases = [
            ("10.0.0.1:7", &["10.0.0.1:7"][..], &["10.0.0.1:7"][..], &["10.0.0.1:7"][..], &["0.0.0.0:0"][..]),
            ("head:7", &["10.0.0.1:7"], &["10.0.0.1:7"], &["10.0.0.1:7"], &["0.0.0.0:0"]),
            // A host whose own name resolves to a loopback address.
            ("head:7", &["127.0.1.1:7"], &["0.0.0.0:7"], &["127.0.1.1:7"], &["0.0.0.0:0"]),
            ("head:7", &["[::1]:7", "127.0.1.1:7"], &["[::]:7"], &["[::1]:7", "127.0.1.1:7"], &["[::]:0", "0.0.0.0:0"]),
            ("0.0.0.0:7", &["0.0.0.0:7"], &["0.0.0.0:7"], &["127.0.0.1:7"], &["0.0.0.0:0"]),
            ("[::]:7", &["[::]:7"], &["[::]:7"], &["[::1]:7"], &["[::]:0"]),
            ("[fd00::1]:7", &["[fd00::1]:7"], &["[fd00::1]:7"], &["[fd00::1]:7"], &["[::]:0"]),
            ("127.0.0.1:7", &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:0"]),
            ("[::1]:7", &["[::1]:7"], &["[::1]:7"], &["[::1]:7"], &["[::1]:0"]),
            ("localhost:7", &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:0"]),
        ];
        for (text, at, coordinator_listens, callable, node_listens) in cases {
            let coordinator = coordinator(text, at);
            assert_eq!(
                texts(&coordinator.coordinator_listens()),
                coordinator_listens,
                "the coordinator of {text} at {at:?}"
            );
            assert_eq!(texts(&coordinator.callable()), callable, "the caller of {text} at {at:?}");
            assert_eq!(texts(&coordinator.node_listens()), node_listens, "a node of {text} at {at:?}");
        }
    }

    #[test]
    fn coordinator_of_several_listens_at_the_first_free_address() {
        let free = net::free_address().expect("a free port");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let other = taken.local_addr().expect("bound");
        let over_tcp = Connect {
            same_host: SameHost::Tcp,
            access: crate::access::Access::Insecure,
            ..Connect::to(&format!("{other}, {free}"))
        };
        let coordinators = CoordinatorAddress::resolve(&over_tcp).expect("two addresses");
        assert_eq!((coordinators.is_of_several(), coordinators.callable()), (true, vec![other, free]));
        let (_transport, _waiter, address) = coordinators.listen_as_coordinator(&over_tcp).expect("one is free");
        assert_eq!(address, free.to_string());
        let error = coordinators.listen_as_coordinator(&over_tcp).err().expect("none is free").to_string();
        assert!(error.contains("is another coordinator running there?"), "{error}");
    }

    #[test]
    fn node_advertises_an_address_that_others_can_call() {
        // (the coordinator's address, what it resolves to here, --advertise, where the node
        // listens; what it advertises)
        let cases = [
            ("10.0.0.1:7", "10.0.0.1:7", None, "0.0.0.0:55", "10.0.0.5:55"),
            ("10.0.0.1:7", "10.0.0.1:7", None, "127.0.0.1:55", "127.0.0.1:55"),
            ("10.0.0.1:7", "10.0.0.1:7", None, "[::]:55", "10.0.0.5:55"),
            ("[fd00::1]:7", "[fd00::1]:7", None, "[::]:55", "[fd00::5]:55"),
            ("head:7", "127.0.1.1:7", None, "0.0.0.0:55", "10.0.0.5:55"),
            ("0.0.0.0:7", "0.0.0.0:7", None, "0.0.0.0:55", "10.0.0.5:55"),
            ("127.0.0.1:7", "127.0.0.1:7", None, "127.0.0.1:55", "127.0.0.1:55"),
            ("[::1]:7", "[::1]:7", None, "[::1]:55", "[::1]:55"),
            ("10.0.0.1:7", "10.0.0.1:7", Some("me"), "0.0.0.0:55", "me:55"),
            ("10.0.0.1:7", "10.0.0.1:7", Some("me:66"), "0.0.0.0:55", "me:66"),
            ("10.0.0.1:7", "10.0.0.1:7", Some("fd00::9"), "0.0.0.0:55", "[fd00::9]:55"),
            ("10.0.0.1:7", "10.0.0.1:7", Some("[fd00::9]"), "0.0.0.0:55", "[fd00::9]:55"),
            ("10.0.0.1:7", "10.0.0.1:7", Some("[fd00::9]:66"), "0.0.0.0:55", "[fd00::9]:66"),
        ];
        let own = |peer: SocketAddr| Some(if peer.is_ipv6() { OWN_V6.into() } else { OWN.into() });
        for (text, at, advertise, bound, told) in cases {
            let bound = bound.parse().expect("an address");
            let found = coordinator(text, &[at]).advertised(advertise, 0, bound, own).expect("an address");
            assert_eq!(found, told, "{text} at {at}, --advertise {advertise:?}, listening at {bound}");
        }
        let here = coordinator("head:7", &["127.0.1.1:7"]);
        let unconnected = here.advertised(None, 0, "0.0.0.0:55".parse().expect("an address"), |_| None);
        assert_eq!(unconnected.expect("an address"), "127.0.0.1:55");
        for (advertise, index, told) in [("me", 2, Ok("me:55")), ("me:66", 2, Ok("me:68")), ("me:65535", 1, Err(()))] {
            let found = here.advertised(Some(advertise), index, "0.0.0.0:55".parse().expect("an address"), own);
            assert_eq!(found.as_deref().map_err(|_| ()), told, "{advertise} for node {index}");
        }
        for nonsense in ["", "[]", "me:port", "a:b:c"] {
            assert!(here.advertised(Some(nonsense), 0, "0.0.0.0:55".parse().expect("an address"), own).is_err());
        }
    }

    #[test]
    fn malformed_address_is_refused_with_a_reason() {
        // (the coordinator's address, words of the refusal)
        let cases = [
            ("nowhere", "write host:port"),
            ("10.0.0.1", "write host:port"),
            (":7", "write host:port"),
            ("fd00::1:7", "[address]:port"),
            ("10.0.0.1:seven", "write host:port"),
            ("10.0.0.1:77777", "write host:port"),
            ("0.0.0.0:7", "write the one by which this host reaches it"),
            ("[::]:7", "write the one by which this host reaches it"),
            ("10.0.0.1:7,", "write host:port"),
            ("10.0.0.1:7,here", "write host:port"),
        ];
        for (text, words) in cases {
            let error = CoordinatorAddress::resolve(&Connect::to(text)).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{text}: {error:?}");
        }
        assert!(CoordinatorAddress::resolve_own(&Connect::to("0.0.0.0:7")).is_ok(), "the coordinator may");
    }
}
