//! Parses the location of an etcd registry: `etcd://host:2379,host2:2379/path/of/the/job`, or
//! `etcds://` for an etcd that speaks TLS.

use super::{EtcdAccess, EtcdAccessError, EtcdRegistry};
use crate::registry::Candidate;
use std::fmt;
use std::str::FromStr;

/// etcd's default port for clients.
const PORT: u16 = 2379;
/// Endpoints that a location may name, at most.
const ENDPOINTS: usize = 16;

/// The location of a registry: an etcd cluster, and a path in it that belongs to one job.
///
/// ```
/// use node::registry::EtcdLocation;
///
/// let location: EtcdLocation = "etcd://10.0.0.1,10.0.0.2:3379/slackwater/clicks-17".parse()?;
/// assert_eq!(location.to_string(), "etcd://10.0.0.1:2379,10.0.0.2:3379/slackwater/clicks-17");
/// assert!("etcd://10.0.0.1:2379".parse::<EtcdLocation>().is_err());
/// # Ok::<(), node::registry::EtcdLocationError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLocation {
    /// `host:port` of each member of the cluster to ask; at least one.
    pub(super) endpoints: Vec<String>,
    /// The job's path. It begins with a slash and does not end with one.
    pub(super) path: String,
    /// Whether the endpoints speak TLS.
    pub(super) tls: bool,
}

/// What is wrong with a location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{location}` does not say where etcd is: {reason}; write etcd://HOST:PORT,HOST:PORT/PATH")]
pub struct EtcdLocationError {
    /// The location as given.
    pub location: String,
    /// What is wrong, in words.
    pub reason: &'static str,
}

impl EtcdLocation {
    /// A registry for this candidate. Reads the files of `access`; sends no request yet.
    ///
    /// # Errors
    /// When a file cannot be used, or does not fit an etcd with or without TLS.
    pub fn stand(&self, candidate: Candidate, access: &EtcdAccess) -> Result<EtcdRegistry, EtcdAccessError> {
        Ok(EtcdRegistry::new(self, candidate, access.load(self.tls)?))
    }
}

impl FromStr for EtcdLocation {
    type Err = EtcdLocationError;

    fn from_str(text: &str) -> Result<Self, EtcdLocationError> {
        let wrong = |reason| EtcdLocationError { location: text.to_owned(), reason };
        let (tls, rest) = match text.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            Some(("http" | "https", _)) => {
                return Err(wrong("etcd:// takes the place of http://, etcds:// of https://"));
            }
            _ => return Err(wrong("it does not begin with etcd:// or etcds://")),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_matches('/');
        if path.is_empty() {
            return Err(wrong("it has no path, and each job needs one of its own"));
        }
        if path.chars().any(|letter| letter.is_control() || letter.is_whitespace()) {
            return Err(wrong("its path has blanks or control characters in it"));
        }
        let endpoints = hosts.split(',').map(|host| endpoint(host).map_err(wrong)).collect::<Result<Vec<_>, _>>()?;
        if endpoints.len() > ENDPOINTS {
            return Err(wrong("it names more than 16 hosts"));
        }
        Ok(Self { endpoints, path: format!("/{path}"), tls })
    }
}

impl fmt::Display for EtcdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.endpoints.join(","), self.path)
    }
}

/// `host:port` of one member.
fn endpoint(text: &str) -> Result<String, &'static str> {
    if text.contains('@') {
        return Err("a user does not belong there: give --etcd-user-file FILE");
    }
    // A colon within brackets belongs to an IPv6 address.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| "a port is not a number below 65536")?)
        }
        _ => (text, PORT),
    };
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    match name {
        Some(name) if name.parse::<std::net::Ipv6Addr>().is_ok() => Ok(format!("{host}:{port}")),
        None if !host.is_empty() && host.chars().all(is_name) => Ok(format!("{host}:{port}")),
        None if host.contains(':') => Err("an IPv6 address must stand in brackets"),
        _ => Err("a host has no name, or an invalid one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn locations_are_parsed_with_defaults() {
        let rows = [
            ("etcd://a/b", "etcd://a:2379/b"),
            ("etcds://a/b", "etcds://a:2379/b"),
            ("etcd://a:1,b-2.c:65535/jobs/x/", "etcd://a:1,b-2.c:65535/jobs/x"),
            ("etcd://[::1]/b", "etcd://[::1]:2379/b"),
            ("etcd://[fe80::1]:4000,10.0.0.1//b", "etcd://[fe80::1]:4000,10.0.0.1:2379/b"),
        ];
        for (text, read) in rows {
            let location: EtcdLocation = text.parse().expect(text);
            assert_eq!(location.to_string(), read);
            assert_eq!(read.parse(), Ok(location));
        }
    }

    #[test]
    fn invalid_locations_are_refused_with_the_reason() {
        let rows = [
            ("", "does not begin"),
            ("http://a/b", "takes the place of http://"),
            ("https://a/b", "etcds:// of https://"),
            ("redis://a/b", "does not begin"),
            ("etcd://a", "no path"),
            ("etcd://a/", "no path"),
            ("etcd:///b", "no name"),
            ("etcd://a,/b", "no name"),
            ("etcd://a b/b", "no name"),
            ("etcd://a/b c", "blanks"),
            ("etcd://a:port/b", "not a number"),
            ("etcd://a:70000/b", "not a number"),
            ("etcd://::1:2379/b", "in brackets"),
            ("etcd://[::x]/b", "no name"),
            ("etcd://me:secret@a/b", "--etcd-user-file"),
            ("etcd://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17/b", "more than 16"),
        ];
        for (text, words) in rows {
            let error = text.parse::<EtcdLocation>().expect_err(text).to_string();
            assert!(error.contains(words) && error.contains("etcd://HOST:PORT"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(etcds?://)?[a-z0-9:/@,.\\[\\]]{0,40}") {
            if let Ok(location) = text.parse::<EtcdLocation>() {
                prop_assert_eq!(location.to_string().parse(), Ok(location));
            }
        }
    }
}
