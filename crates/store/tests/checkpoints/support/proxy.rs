//! A proxy between a store and its server that injects faults. Each connection carries one request
//! and has a thread of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How a request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection closes when half of the request's body has arrived. The server does not get
    /// the request.
    CutRequest,
    /// The server does what it is asked; the connection closes without an answer.
    LoseAnswer,
    /// The server does what it is asked; the connection closes in the middle of its answer.
    CutAnswer,
    /// The request succeeds, but the connection closes without notice. The client keeps it for its
    /// next request.
    CloseUnannounced,
    /// The proxy answers with this status. The server does not get the request.
    Answer(u16),
    /// There is no answer for longer than the client waits.
    Silence,
}

/// The fields of a request's first line that rules look at.
pub struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
}

/// Whether a rule applies to a request.
pub type Matches = fn(&Request) -> bool;

struct Rule {
    matches: Matches,
    fault: Fault,
    left: usize,
    fired: Arc<AtomicUsize>,
}

#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    server: SocketAddr,
    rules: Arc<Mutex<Vec<Rule>>>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Self { address, server, rules: Arc::default(), stopped: Arc::default() };
        let serving = proxy.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if serving.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let serving = serving.clone();
                thread::spawn(move || serving.serve(stream));
            }
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Injects a fault into the next `times` requests that match. The returned count says how many
    /// there were.
    pub fn inject(&self, matches: Matches, fault: Fault, times: usize) -> Arc<AtomicUsize> {
        let fired = Arc::new(AtomicUsize::new(0));
        self.rules.lock().unwrap().push(Rule { matches, fault, left: times, fired: fired.clone() });
        fired
    }

    /// Injects no more faults.
    pub fn behave(&self) {
        self.rules.lock().unwrap().clear();
    }

    /// Stops listening.
    pub fn stop(&self) {
        if !self.stopped.swap(true, Ordering::SeqCst) {
            TcpStream::connect(self.address).ok();
        }
    }

    fn fault(&self, request: &Request) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| rule.left > 0 && (rule.matches)(request))?;
        rule.left -= 1;
        rule.fired.fetch_add(1, Ordering::SeqCst);
        Some(rule.fault)
    }

    fn serve(&self, mut client: TcpStream) -> Option<()> {
        client.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let mut words = head.split(' ');
        let method = words.next()?;
        let target = words.next()?;
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let fault = self.fault(&Request { method, target });
        let length: usize = length.unwrap_or(0);
        let mut body = vec![0; if fault == Some(Fault::CutRequest) { length / 2 } else { length }];
        reader.read_exact(&mut body).ok()?;
        let answer = match fault {
            Some(Fault::CutRequest) => Vec::new(),
            Some(Fault::Answer(status)) => {
                let text = "<Error><Code>Injected</Code><Message>By the proxy.</Message></Error>";
                let length = text.len();
                format!("HTTP/1.1 {status} Injected\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}")
                    .into()
            }
            Some(Fault::Silence) => {
                thread::sleep(Duration::from_secs(5));
                Vec::new()
            }
            Some(Fault::CloseUnannounced) => keep_alive(&self.forward(&head, &body)?)?,
            _ => self.forward(&head, &body)?,
        };
        let whole = match fault {
            Some(Fault::LoseAnswer) => 0,
            Some(Fault::CutAnswer) => cut(&answer),
            _ => answer.len(),
        };
        client.write_all(&answer[..whole]).ok()?;
        client.shutdown(Shutdown::Both).ok()
    }

    /// Sends the request to the server, and returns its whole answer.
    fn forward(&self, head: &str, body: &[u8]) -> Option<Vec<u8>> {
        let mut server = TcpStream::connect(self.server).ok()?;
        let (first, rest) = head.split_once("\r\n")?;
        server.write_all(format!("{first}\r\nConnection: close\r\n{rest}").as_bytes()).ok()?;
        server.write_all(body).ok()?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).ok()?;
        Some(answer)
    }
}

/// The answer without its `Connection` header.
fn keep_alive(answer: &[u8]) -> Option<Vec<u8>> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let lines: Vec<&str> =
        head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:")).collect();
    Some([lines.join("\r\n").as_bytes(), &answer[end..]].concat())
}

/// Where to cut an answer: in the middle of the body, or of the head where there is no body.
fn cut(answer: &[u8]) -> usize {
    match answer.windows(4).position(|window| window == b"\r\n\r\n") {
        Some(head) if head + 4 < answer.len() => (head + 4 + answer.len()) / 2,
        _ => answer.len() / 2,
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The serving thread holds one clone, the test the other.
        if Arc::strong_count(&self.stopped) <= 2 {
            self.stop();
        }
    }
}
