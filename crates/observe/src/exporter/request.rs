//! Requests for metrics: what is read of them, who may have an answer, and the answers.

use super::ExporterSettings;
use crate::Metrics;
use rustls::pki_types::CertificateDer;
use std::io::{self, Write};
use std::net::IpAddr;

/// The content type of the metrics: the OpenMetrics text format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest request, in bytes. A longer one gets no answer.
pub(super) const REQUEST_BYTES: usize = 8 * 1024;

/// The parts of a request that decide about its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    method: &'a str,
    /// Without its query.
    path: &'a str,
    host: &'a str,
    authorization: Option<&'a str>,
}

/// The answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Metrics(String),
    Malformed,
    NeedsTls,
    NoBearer,
    WrongBearer,
    NoReader,
    NoSuchPage,
    OtherMethod,
    OtherHost,
}

impl<'a> Request<'a> {
    /// Reads the head of an HTTP/1 request. `None` if it is not one, or has no `Host` or two.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let mut lines = std::str::from_utf8(&bytes[..head]).ok()?.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let method = words.next()?;
        let path = words.next()?;
        let version = words.next()?;
        let is_line = version.starts_with("HTTP/1.") && words.next().is_none();
        let path = path.split('?').next().filter(|_| is_line)?;
        let mut host = None;
        let mut authorization = None;
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim_matches([' ', '\t']);
            let known = if name.eq_ignore_ascii_case("host") {
                &mut host
            } else if name.eq_ignore_ascii_case("authorization") {
                &mut authorization
            } else {
                continue;
            };
            if known.replace(value).is_some() {
                return None;
            }
        }
        Some(Self { method, path, host: host?, authorization })
    }

    /// Decides about the answer to a client with this certificate. A request that may not read
    /// learns nothing else.
    pub fn judge(
        &self,
        certificate: Option<&CertificateDer<'_>>,
        settings: &ExporterSettings,
        metrics: &Metrics,
    ) -> Answer {
        let bearer = self.authorization.and_then(|value| value.split_once(' '));
        let bearer =
            bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, bearer)| bearer.trim());
        if !is_known_host(self.host, &settings.hosts) {
            Answer::OtherHost
        } else if !settings.readers.admit(bearer, certificate) {
            match bearer {
                _ if settings.readers.ask_for_certificate() => Answer::NoReader,
                Some(_) => Answer::WrongBearer,
                None => Answer::NoBearer,
            }
        } else {
            match (self.method, self.path) {
                ("GET" | "HEAD", "/metrics") => Answer::Metrics(metrics.text()),
                ("GET" | "HEAD", _) => Answer::NoSuchPage,
                _ => Answer::OtherMethod,
            }
        }
    }

    pub fn wants_body(&self) -> bool {
        self.method != "HEAD"
    }
}

/// Whether a `Host` header is an IP address, `localhost` or one of these names. Only a name can be
/// made to lead here by a stranger's name server.
fn is_known_host(host: &str, hosts: &[String]) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.split_once(']').unwrap_or((rest, "?"));
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return is_port && address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let is_name = |known: &str| known.eq_ignore_ascii_case(name.strip_suffix('.').unwrap_or(name));
    is_port(port)
        && (name.parse::<IpAddr>().is_ok() || is_name("localhost") || hosts.iter().any(|known| is_name(known)))
}

impl Answer {
    /// Whether the request came from a client that may not read, or was none.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Malformed
            | Self::NeedsTls
            | Self::NoBearer
            | Self::WrongBearer
            | Self::NoReader
            | Self::OtherHost => true,
            Self::Metrics(_) | Self::NoSuchPage | Self::OtherMethod => false,
        }
    }

    /// Its status, and its body in words.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Metrics(text) => ("200 OK", text),
            Self::Malformed => ("400 Bad Request", "this is not an HTTP/1 request with one Host header\n"),
            Self::NeedsTls => (
                "400 Bad Request",
                "this port speaks HTTPS: call https://, and trust the authority of the run. With a token, \
                 `slackwater token ca --token-file FILE` prints its certificate\n",
            ),
            Self::NoBearer => (
                "401 Unauthorized",
                "metrics of a secured run need the header `Authorization: Bearer BEARER`: `slackwater token \
                 http-bearer --token-file FILE` prints the bearer, from the job token or a reader's token\n",
            ),
            Self::WrongBearer => (
                "403 Forbidden",
                "this bearer is not of this job: print the bearer again, with `slackwater token http-bearer \
                 --token-file FILE`, from the token of this run\n",
            ),
            Self::NoReader => (
                "403 Forbidden",
                "metrics of this run need a client certificate of a reader, with the SAN \
                 slackwater://JOB/reader/NAME\n",
            ),
            Self::NoSuchPage => ("404 Not Found", "the metrics are at /metrics\n"),
            Self::OtherMethod => ("405 Method Not Allowed", "only GET and HEAD are answered\n"),
            Self::OtherHost => (
                "421 Misdirected Request",
                "this process does not know itself by that Host: call it by its IP address or as localhost, or start \
                 it with --metrics-host NAME\n",
            ),
        }
    }

    /// Writes the answer.
    pub fn write(&self, stream: &mut impl Write, with_body: bool) -> io::Result<()> {
        let (status, body) = self.words();
        let kind = if matches!(self, Self::Metrics(_)) { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
        let ask = if *self == Self::NoBearer { "WWW-Authenticate: Bearer realm=\"slackwater\"\r\n" } else { "" };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{ask}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        let body = if with_body { body } else { "" };
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_localhost_or_known_names() {
        let known = vec!["Node7.example.org".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:9100",
            "10.1.2.3:9100",
            "[::1]",
            "[::1]:9100",
            "localhost",
            "LOCALHOST:1",
            "localhost.:1",
            "node7.example.org:9100",
        ] {
            assert!(is_known_host(host, &known), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9100",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "node7",
            "[::1].evil.example",
            "[evil]",
            "[::1",
            "::1",
            "127.0.0.1:80:90",
            "localhost@evil.example",
        ] {
            assert!(!is_known_host(host, &known), "{host}");
        }
    }

    #[test]
    fn requests_are_read_or_refused() {
        let read = |text: &'static str| Request::parse(text.as_bytes());
        let request = read("GET /metrics?a=b HTTP/1.1\r\nhost:  a \r\nAUTHORIZATION: Bearer x\r\n\r\n").expect("valid");
        assert_eq!((request.method, request.path, request.host), ("GET", "/metrics", "a"));
        assert_eq!(request.authorization, Some("Bearer x"));
        for text in [
            "",
            "GET /metrics HTTP/1.1\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
            "GET /metrics HTTP/2\r\nHost: a\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /metrics HTTP/1.1 x\r\nHost: a\r\n\r\n",
            "\u{16}\u{3}\u{1}\r\n\r\n",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
