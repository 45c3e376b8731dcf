//! A small HTTP server from which Prometheus reads metrics. It answers one request on each
//! connection.
//!
//! - A thread for each connection, at most [`CONNECTIONS`]. When all are taken, the oldest
//!   connection that has not shown its bearer yet is closed for a new one, so a slow client does
//!   not keep others out.
//! - A connection ends at its deadline ([`ExporterSettings::deadline`]), whatever the client does.
//! - A request needs a `Host` that names this process by address, as `localhost` or by a name of
//!   the settings. So a web page whose host name leads here (DNS rebinding) reads nothing.
//! - In a secured run a request needs the bearer, on loopback too, or the client a certificate of
//!   the role reader.

mod connections;
mod request;

use crate::Metrics;
use connections::{Connections, Place};
use identity::HttpReaders;
use request::{Answer, REQUEST_BYTES, Request};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use request::CONTENT_TYPE;

/// Most connections at a time.
pub const CONNECTIONS: usize = 16;
/// How long a connection lasts, if nothing else is set: handshake, request and answer.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// The pause after the system could not accept a connection, for example without a free file
/// descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The first byte of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 22;

/// Who may read, and under which names.
///
/// ```
/// use observe::ExporterSettings;
///
/// let settings = ExporterSettings { hosts: vec!["node7.example.org".to_owned()], ..ExporterSettings::default() };
/// assert!(settings.readers.admit(None, None), "anyone may read by default");
/// ```
#[derive(Debug)]
pub struct ExporterSettings {
    /// What a reader must show.
    pub readers: HttpReaders,
    /// Host names, beside `localhost` and every IP address, by which readers call this process.
    pub hosts: Vec<String>,
    /// How long a connection lasts: handshake, request and answer.
    pub deadline: Duration,
}

impl Default for ExporterSettings {
    fn default() -> Self {
        Self { readers: HttpReaders::default(), hosts: Vec::new(), deadline: DEADLINE }
    }
}

/// Serves metrics until it is dropped.
pub struct Exporter {
    address: SocketAddr,
    tls: bool,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of connections share.
struct Pages {
    metrics: Metrics,
    settings: ExporterSettings,
    tls: bool,
    /// TLS settings with certificates that were signed here, by the address of this host that was
    /// called.
    configs: Mutex<Vec<(IpAddr, Arc<ServerConfig>)>>,
}

impl Exporter {
    /// Listens at an address and serves in separate threads. Fails if it cannot listen there, or
    /// cannot make the certificate that it needs there.
    pub fn start(address: impl ToSocketAddrs, metrics: Metrics, settings: ExporterSettings) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let tls = settings.readers.use_tls(address);
        let pages = Arc::new(Pages { metrics, settings, tls, configs: Mutex::default() });
        if tls {
            pages.config(address.ip())?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || accept_all(&listener, &pages, &stopped);
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve)?;
        Ok(Self { address, tls, stop, thread: Some(thread) })
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the metrics are.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(if own.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        // Wakes the thread. If that fails, the thread goes on until the process ends.
        let woken = TcpStream::connect_timeout(&own, DEADLINE).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            thread.join().ok();
        }
    }
}

fn accept_all(listener: &TcpListener, pages: &Arc<Pages>, stopped: &AtomicBool) {
    let connections = Connections::new(CONNECTIONS);
    loop {
        let accepted = listener.accept();
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a reader of metrics");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let pages = pages.clone();
        let answer = connections.enter(&stream).and_then(|place| {
            let thread = std::thread::Builder::new().name("metrics reader".to_owned());
            thread.spawn(move || {
                if let Err(error) = pages.answer(stream, &place) {
                    tracing::debug!(%error, "cannot answer a request for metrics");
                }
            })
        });
        if let Err(error) = answer {
            tracing::debug!(%error, "cannot serve a reader of metrics");
        }
    }
}

impl Pages {
    fn answer(&self, stream: TcpStream, place: &Place) -> io::Result<()> {
        let called = stream.local_addr()?.ip();
        let mut stream = UntilDeadline { stream, end: Instant::now() + self.settings.deadline };
        let speaks_tls = stream.first_byte()? == TLS_HANDSHAKE;
        match (self.tls, speaks_tls) {
            (true, true) => {
                let connection = ServerConnection::new(self.config(called)?).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, stream);
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                let certificate = stream.conn.peer_certificates().and_then(|chain| chain.first()).cloned();
                self.exchange(&mut stream, certificate.as_ref(), place)?;
                stream.conn.send_close_notify();
                stream.flush()
            }
            (false, false) => self.exchange(&mut stream, None, place),
            (true, false) => {
                read_request(&mut stream)?;
                Answer::NeedsTls.write(&mut stream, true)
            }
            (false, true) => Err(io::Error::new(ErrorKind::InvalidData, "a TLS handshake, and this port speaks HTTP")),
        }
    }

    fn exchange(
        &self,
        stream: &mut (impl Read + Write),
        certificate: Option<&CertificateDer<'_>>,
        place: &Place,
    ) -> io::Result<()> {
        let bytes = read_request(stream)?;
        let request = Request::parse(&bytes);
        let answer = match &request {
            Some(request) => request.judge(certificate, &self.settings, &self.metrics),
            None => Answer::Malformed,
        };
        if !answer.is_refusal() {
            place.admit();
        }
        answer.write(stream, request.is_none_or(|request| request.wants_body()))
    }

    /// The TLS settings for a called address of this host.
    fn config(&self, called: IpAddr) -> io::Result<Arc<ServerConfig>> {
        if self.settings.readers.ask_for_certificate() {
            // The certificate is of files that may change, and the same for every address.
            return self.settings.readers.tls(called, &self.settings.hosts).map_err(io::Error::other);
        }
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, config)) = configs.iter().find(|(address, _)| *address == called) {
            return Ok(config.clone());
        }
        let hosts = [&["localhost".to_owned()], &self.settings.hosts[..]].concat();
        let config = self.settings.readers.tls(called.to_canonical(), &hosts).map_err(io::Error::other)?;
        // A host has few addresses, but need not keep them.
        if configs.len() >= CONNECTIONS {
            configs.clear();
        }
        configs.push((called, config.clone()));
        Ok(config)
    }
}

/// Reads a request, up to the empty line that ends its head.
fn read_request(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&piece[..count]),
        }
        if request.len() > REQUEST_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "the request is longer than 8 KiB"));
        }
    }
    Ok(request)
}

/// A connection of which no call takes longer than until `end`.
struct UntilDeadline {
    stream: TcpStream,
    end: Instant,
}

impl UntilDeadline {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| ErrorKind::TimedOut.into())
    }

    fn first_byte(&self) -> io::Result<u8> {
        self.stream.set_read_timeout(self.left()?)?;
        let mut byte = [0];
        match self.stream.peek(&mut byte)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(byte[0]),
        }
    }
}

impl Read for UntilDeadline {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(room)
    }
}

impl Write for UntilDeadline {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
