//! Fake servers in place of etcd: a proxy that passes requests on, at once or later, and servers
//! that a test defines.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A TCP server that runs a function for each connection, on a thread of its own, until dropped.
pub struct Stand {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stand {
    /// Starts the server. `serve` must return soon after `over` is set, or when the caller hangs
    /// up.
    pub fn new(serve: impl Fn(TcpStream, &AtomicBool) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let serve = Arc::new(serve);
        let thread = std::thread::spawn(move || {
            let mut callers = Vec::new();
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let serve = serve.clone();
                let over = is_over.clone();
                stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
                callers.push(std::thread::spawn(move || serve(stream, &over)));
            }
            callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        });
        Self { address, over, thread: Some(thread) }
    }

    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// Reads until `is_enough` returns true, the caller hangs up or `over` is set.
pub fn read_until(stream: &mut TcpStream, over: &AtomicBool, is_enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut heard = Vec::new();
    let mut piece = [0; 65536];
    while !is_enough(&heard) && !over.load(Ordering::SeqCst) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => heard.extend_from_slice(&piece[..length]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    heard
}

/// Whether these bytes are an HTTP request with all of its body.
pub fn is_request(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
    length.is_some_and(|length: usize| bytes.len() >= end + 4 + length)
}

/// A proxy that passes requests on to etcd. It can hold transactions back for a while, or drop
/// etcd's answers to them.
pub struct Proxy {
    stand: Stand,
    state: Arc<State>,
}

struct State {
    etcd: String,
    keeps: AtomicBool,
    swallows: AtomicBool,
    kept: Mutex<Vec<Vec<u8>>>,
}

impl Proxy {
    pub fn new(etcd: String) -> Self {
        let state = Arc::new(State {
            etcd,
            keeps: AtomicBool::new(false),
            swallows: AtomicBool::new(false),
            kept: Mutex::default(),
        });
        let of_stand = state.clone();
        let stand = Stand::new(move |mut stream, over| {
            let request = read_until(&mut stream, over, is_request);
            let is_transaction = request.starts_with(b"POST /v3/kv/txn");
            if is_transaction && of_stand.keeps.load(Ordering::SeqCst) {
                of_stand.kept.lock().expect("no panic").push(request);
                // Wait until the caller gives up.
                read_until(&mut stream, over, |_| false);
            } else if is_request(&request) {
                let answer = of_stand.pass_on(&request);
                if is_transaction && of_stand.swallows.load(Ordering::SeqCst) {
                    read_until(&mut stream, over, |_| false);
                }
                stream.write_all(&answer).ok();
            }
        });
        Self { stand, state }
    }

    pub fn endpoint(&self) -> String {
        self.stand.endpoint()
    }

    /// From now on, holds transactions back and does not answer them.
    pub fn keep_transactions(&self) {
        self.state.keeps.store(true, Ordering::SeqCst);
    }

    /// From now on, passes transactions on and drops the answers.
    pub fn swallow_answers(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }

    /// Passes on the transactions that were held back, in order, and returns etcd's answers.
    pub fn release(&self) -> Vec<String> {
        self.state.keeps.store(false, Ordering::SeqCst);
        let kept = std::mem::take(&mut *self.state.kept.lock().expect("no panic"));
        kept.iter().map(|request| String::from_utf8_lossy(&self.state.pass_on(request)).into_owned()).collect()
    }
}

impl State {
    fn pass_on(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.etcd).expect("etcd is there");
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        stream.write_all(request).expect("etcd listens");
        let never = AtomicBool::new(false);
        // An answer either states its length or ends with an empty chunk.
        read_until(&mut stream, &never, |heard| is_request(heard) || heard.ends_with(b"\r\n0\r\n\r\n"))
    }
}
