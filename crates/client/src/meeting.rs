//! Where the nodes of a run meet: what that address means on this host, where to listen, and what others are told.

use crate::{Connect, Error};
use net::{SameHost, SocketSettings, SocketTransport, SocketWaiter, listen};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use types::NodeId;
use wire::Pool;

/// The meeting place, looked up once, before anything is driven.
pub(crate) struct Meeting {
    text: String,
    /// What it stands for on this host: one address at least, in the order to try them.
    at: Vec<SocketAddr>,
    reach: Reach,
    /// Of several coordinators, the places by themselves; none of one.
    places: Vec<Meeting>,
}

/// Who is to find the nodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The meeting place is `localhost` or a loopback address: processes of this host.
    ThisHost,
    /// Anybody who can reach the meeting place, whatever its name stands for on this host. Debian and others give a host's own
    /// name the address 127.0.1.1, which nobody else can call.
    OtherHosts,
}

/// A node's place in the network.
pub(crate) struct Place {
    pub transport: SocketTransport,
    pub waiter: SocketWaiter,
    /// What others are told to call.
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

/// The host and the port of `host:port`; a host that is an IPv6 address stands in brackets.
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

/// `host:port`, with brackets where the host needs them.
fn joined(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(ip) => SocketAddr::from((ip, port)).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

impl Meeting {
    /// The meeting place of somebody who comes to it.
    pub fn of(connect: &Connect) -> Result<Self, Error> {
        let meeting = Self::hosted(connect)?;
        if meeting.at.iter().all(|at| at.ip().is_unspecified()) {
            let reason =
                "that is every address of the coordinator's own host; write the one by which this host reaches it";
            return Err(unusable(&connect.meet, reason));
        }
        Ok(meeting)
    }

    /// The meeting place of a process that is the coordinator too.
    pub fn hosted(connect: &Connect) -> Result<Self, Error> {
        let places: Vec<Self> = connect.meet.split(',').map(|text| Self::at(text.trim())).collect::<Result<_, _>>()?;
        let reach =
            if places.iter().all(|place| place.reach == Reach::ThisHost) { Reach::ThisHost } else { Reach::OtherHosts };
        let at = places.iter().flat_map(|place| place.at.clone()).collect();
        let places = if places.len() > 1 { places } else { Vec::new() };
        Ok(Self { text: connect.meet.clone(), at, reach, places })
    }

    /// One place, which is `host:port`.
    fn at(text: &str) -> Result<Self, Error> {
        let how = "write host:port, and an IPv6 address as [address]:port";
        let (host, port) = split(text).ok_or_else(|| unusable(text, how))?;
        let found = (host, port).to_socket_addrs().map_err(|error| unusable(text, format!("{error}; {how}")))?;
        let at: Vec<SocketAddr> = found.collect();
        if at.is_empty() {
            return Err(unusable(text, "it names no host"));
        }
        let reach = if is_local(host) { Reach::ThisHost } else { Reach::OtherHosts };
        Ok(Self { text: text.to_owned(), at, reach, places: Vec::new() })
    }

    /// Where the coordinator listens: at the meeting place, or at every address of this host if the meeting place has a name
    /// that means a loopback address here and something else elsewhere.
    fn seats(&self) -> Vec<SocketAddr> {
        match self.at.iter().all(|at| at.ip().is_loopback()) && self.reach == Reach::OtherHosts {
            true => vec![SocketAddr::new(every_address(self.at[0].ip()), self.at[0].port())],
            false => self.at.clone(),
        }
    }

    /// Whether there is more than one coordinator to meet.
    pub fn is_of_several(&self) -> bool {
        !self.places.is_empty()
    }

    /// Listens as the coordinator: as the first of several whose place is on this host and free. Returns which place that is.
    pub fn host(&self, same_host: SameHost) -> Result<(SocketTransport, SocketWaiter, String), Error> {
        if !self.is_of_several() {
            return self.host_here(same_host);
        }
        let mut reasons = Vec::new();
        for place in &self.places {
            match place.host_here(same_host) {
                Ok(hosted) => return Ok(hosted),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(unusable(&self.text, format!("none of these places is this host's and free: {}", reasons.join("; "))))
    }

    fn host_here(&self, same_host: SameHost) -> Result<(SocketTransport, SocketWaiter, String), Error> {
        let settings = SocketSettings { pauses: true, pool: Pool::new(), same_host };
        let error = match listen_at_first(&self.seats(), &settings) {
            Ok((transport, waiter, address)) => {
                tracing::info!(meet = self.text, %address, "the coordinator listens");
                return Ok((transport, waiter, self.text.clone()));
            }
            Err(error) => error,
        };
        let reason = match error.kind() {
            ErrorKind::AddrInUse => format!("{error}; is another coordinator running there?"),
            ErrorKind::AddrNotAvailable => {
                let port = self.at[0].port();
                format!(
                    "this host has no such address; the coordinator may meet at 0.0.0.0:{port}, the others at its host"
                )
            }
            _ => error.to_string(),
        };
        Err(unusable(&self.text, reason))
    }

    /// Where a node may listen that was not told where.
    fn default_listens(&self) -> Vec<SocketAddr> {
        let listen_for = |ip: IpAddr| if self.reach == Reach::ThisHost { ip } else { every_address(ip) };
        self.at.iter().map(|at| SocketAddr::new(listen_for(at.ip()), 0)).collect()
    }

    /// What others are told to call, for the `index`-th node of a process, which listens at `address`. `own` finds the address
    /// by which this host reaches another.
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
        // By the way to the meeting place, or, if that is on this host, by the way out of it.
        let here = |at: &SocketAddr| at.ip().is_loopback() || at.ip().is_unspecified();
        let ways = match self.at.iter().all(here) {
            true => vec![outside(Ipv4Addr::UNSPECIFIED.into()), outside(Ipv6Addr::UNSPECIFIED.into())],
            false => self.at.iter().copied().filter(|at| !here(at)).collect(),
        };
        // Whoever listens at every IPv6 address can be called by IPv4 too.
        let ip = ways.into_iter().filter(|way| way.is_ipv4() || address.is_ipv6()).find_map(own);
        Ok(SocketAddr::new(ip.unwrap_or_else(|| loopback(address.ip())), address.port()).to_string())
    }

    /// Listens as the `index`-th node of a process, and knows where the coordinator is.
    pub fn open(&self, connect: &Connect, index: u32, pauses: bool, pool: &Pool) -> Result<Place, Error> {
        let ports = |mut at: SocketAddr| match (at.port(), u16::try_from(u32::from(at.port()) + index)) {
            (0, _) => Ok(at),
            (_, Ok(port)) => {
                at.set_port(port);
                Ok(at)
            }
            (_, Err(_)) => Err(unusable(&at.to_string(), "there are not enough ports after it")),
        };
        let seats = match connect.listen {
            Some(at) => vec![ports(at)?],
            None => self.default_listens(),
        };
        let settings = SocketSettings { pauses, pool: pool.clone(), same_host: connect.same_host };
        let (mut transport, waiter, bound) =
            listen_at_first(&seats, &settings).map_err(|error| unusable(&seats[0].to_string(), error.to_string()))?;
        let address = self.advertised(connect.advertise.as_deref(), index, bound, own_ip)?;
        if self.reach == Reach::OtherHosts && split(&address).is_none_or(|(host, _)| is_local(host)) {
            tracing::warn!(
                meet = self.text,
                "other hosts are told to call this node at {address}, which only this host can; say by which address they \
                 can (--advertise HOST, Connect::advertise), or meet at localhost if there are no others"
            );
        }
        transport.know_at(NodeId::Coordinator, self.calls());
        Ok(Place { transport, waiter, address })
    }

    /// Where the coordinator is called.
    fn calls(&self) -> Vec<SocketAddr> {
        let callable = |ip: IpAddr| if ip.is_unspecified() { loopback(ip) } else { ip };
        self.at.iter().map(|at| SocketAddr::new(callable(at.ip()), at.port())).collect()
    }
}

/// Listens at the first of these addresses that can be listened at. If none can, the error is the first one's.
fn listen_at_first(
    seats: &[SocketAddr],
    settings: &SocketSettings,
) -> std::io::Result<(SocketTransport, SocketWaiter, SocketAddr)> {
    let mut problem = None;
    for seat in seats {
        match listen(*seat, settings.clone()) {
            Ok(place) => return Ok(place),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    Err(problem.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into()))
}

/// What others are told where the program says so: a host alone gets the port that is listened at.
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

/// An address of no host (RFC 5737, RFC 3849): the way there is the way out of this one.
fn outside(like: IpAddr) -> SocketAddr {
    let ip: IpAddr = if like.is_ipv6() {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(192, 0, 2, 1).into()
    };
    SocketAddr::new(ip, 9)
}

/// The address by which this host reaches `peer`: no packet is sent to find out.
fn own_ip(peer: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((every_address(peer.ip()), 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
    const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);

    fn meeting(text: &str, at: &[&str]) -> Meeting {
        let (host, _) = split(text).expect("host:port");
        let reach = if is_local(host) { Reach::ThisHost } else { Reach::OtherHosts };
        let at = at.iter().map(|at| at.parse().expect("an address")).collect();
        Meeting { text: text.to_owned(), at, reach, places: Vec::new() }
    }

    fn texts(addresses: &[SocketAddr]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn where_the_coordinator_and_the_nodes_listen_and_are_called() {
        // (the meeting place, what it stands for here; the coordinator listens, is called; a node listens)
        let cases = [
            ("10.0.0.1:7", &["10.0.0.1:7"][..], &["10.0.0.1:7"][..], &["10.0.0.1:7"][..], &["0.0.0.0:0"][..]),
            ("head:7", &["10.0.0.1:7"], &["10.0.0.1:7"], &["10.0.0.1:7"], &["0.0.0.0:0"]),
            // A host whose own name is a loopback address.
            ("head:7", &["127.0.1.1:7"], &["0.0.0.0:7"], &["127.0.1.1:7"], &["0.0.0.0:0"]),
            ("head:7", &["[::1]:7", "127.0.1.1:7"], &["[::]:7"], &["[::1]:7", "127.0.1.1:7"], &["[::]:0", "0.0.0.0:0"]),
            ("0.0.0.0:7", &["0.0.0.0:7"], &["0.0.0.0:7"], &["127.0.0.1:7"], &["0.0.0.0:0"]),
            ("[::]:7", &["[::]:7"], &["[::]:7"], &["[::1]:7"], &["[::]:0"]),
            ("[fd00::1]:7", &["[fd00::1]:7"], &["[fd00::1]:7"], &["[fd00::1]:7"], &["[::]:0"]),
            ("127.0.0.1:7", &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:0"]),
            ("[::1]:7", &["[::1]:7"], &["[::1]:7"], &["[::1]:7"], &["[::1]:0"]),
            ("localhost:7", &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:7"], &["127.0.0.1:0"]),
        ];
        for (text, at, seats, calls, listens) in cases {
            let meeting = meeting(text, at);
            assert_eq!(texts(&meeting.seats()), seats, "the coordinator of {text} at {at:?}");
            assert_eq!(texts(&meeting.calls()), calls, "the caller of {text} at {at:?}");
            assert_eq!(texts(&meeting.default_listens()), listens, "a node of {text} at {at:?}");
        }
    }

    #[test]
    fn several_coordinators_meet_at_several_places_and_each_takes_its_own() {
        let free = net::free_address().expect("a free port");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let other = taken.local_addr().expect("bound");
        let meeting = Meeting::of(&Connect::to(&format!("{other}, {free}"))).expect("two places");
        assert_eq!((meeting.is_of_several(), meeting.calls()), (true, vec![other, free]));
        let (_transport, _waiter, place) = meeting.host(SameHost::Tcp).expect("one is free");
        assert_eq!(place, free.to_string());
        let error = meeting.host(SameHost::Tcp).err().expect("none is free").to_string();
        assert!(error.contains("is another coordinator running there?"), "{error}");
    }

    #[test]
    fn what_others_are_told() {
        // (the meeting place, what it stands for here, --advertise, listens at; others are told)
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
            let found = meeting(text, &[at]).advertised(advertise, 0, bound, own).expect("an address");
            assert_eq!(found, told, "{text} at {at}, --advertise {advertise:?}, listening at {bound}");
        }
        let here = meeting("head:7", &["127.0.1.1:7"]);
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
    fn an_address_that_is_none_is_refused_with_a_reason() {
        // (the meeting place, words of the refusal)
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
            let error = Meeting::of(&Connect::to(text)).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{text}: {error:?}");
        }
        assert!(Meeting::hosted(&Connect::to("0.0.0.0:7")).is_ok(), "the coordinator may");
    }
}
