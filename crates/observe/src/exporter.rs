//! A minimal HTTP server from which Prometheus reads metrics. It answers one request at a time, and
//! closes the connection after each answer.

use crate::Metrics;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The content type of the metrics: the OpenMetrics text format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest request, in bytes. A longer one gets no answer.
const REQUEST_BYTES: usize = 8 * 1024;
/// How long a client may take to send its request and to read the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves metrics until it is dropped.
pub struct Exporter {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens at an address and serves in a separate thread. Fails if it cannot listen there.
    pub fn start(address: impl ToSocketAddrs, metrics: Metrics) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || {
            while let Ok((stream, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = answer(stream, &metrics) {
                    tracing::debug!(%error, "cannot answer a request for metrics");
                }
            }
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
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
        let woken = TcpStream::connect_timeout(&own, REQUEST_TIMEOUT).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            thread.join().ok();
        }
    }
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let request = request(&mut stream)?;
    let (status, kind, body) = match first_words(&request) {
        Some(("GET" | "HEAD", "/metrics")) => ("200 OK", CONTENT_TYPE, metrics.text()),
        Some(("GET" | "HEAD", _)) => ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "text/plain", "only GET and HEAD are answered\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "this is not an HTTP/1 request\n".to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let body = if request.starts_with(b"HEAD ") { "" } else { &body };
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads a request, up to the empty line that ends its head.
fn request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let begin = Instant::now();
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = REQUEST_TIMEOUT.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
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

/// The method and the path without its query.
fn first_words(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let method = words.next()?;
    let path = words.next()?;
    let version = words.next()?;
    let path = path.split('?').next()?;
    (version.starts_with("HTTP/1.") && words.next().is_none()).then_some((method, path))
}
