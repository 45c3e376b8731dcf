//! TCP under attack: whatever a peer sends, or does not send, costs that peer its connection at most. It is counted,
//! it is in the log, and everybody else is served as before.

mod logged;

use logged::Log;
use net::{Event, SameHost, SocketSettings, Traffic, Transport, Waiter, listen};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::{NodeId, NumberType, PART_BYTES, Placement, ShardId, TableId};
use wire::{Control, Frame, HEADER_BYTES, Head, Keys, Member, Message, Payload, Pool, Push, encode, seal};

/// Tells done from hung.
const LIMIT: Duration = Duration::from_secs(30);
const SERVER: NodeId = NodeId::Server(0);

fn settings() -> SocketSettings {
    SocketSettings { pauses: true, pool: Pool::new(), same_host: SameHost::default() }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server that sends every frame back to whoever sent it.
struct Echo {
    address: SocketAddr,
    log: Log,
    stop: Arc<AtomicBool>,
    /// The most bytes that ever waited to be written.
    backlog: Arc<AtomicUsize>,
    traffic: Arc<Mutex<Traffic>>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Self {
        let (mut transport, mut waiter, address) = listen(any_port(), settings()).expect("a free port");
        let (log, stop, backlog, traffic) =
            (Log::default(), Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let mut echo = Self { address, log, stop, backlog, traffic, thread: None };
        let (log, stop) = (echo.log.clone(), echo.stop.clone());
        let (backlog, traffic) = (echo.backlog.clone(), echo.traffic.clone());
        let serve = move || {
            let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log)).finish();
            tracing::subscriber::with_default(logger, || {
                while !stop.load(Ordering::Relaxed) {
                    waiter.wait(Some(Duration::from_millis(2)));
                    while let Some(event) = transport.next() {
                        if let Event::Frame(mut frame) = event {
                            std::mem::swap(&mut frame.head.from, &mut frame.head.to);
                            transport.send(frame);
                        }
                        backlog.fetch_max(transport.backlog(), Ordering::Relaxed);
                    }
                    transport.flush();
                    *traffic.lock().expect("not poisoned") = transport.traffic();
                }
            });
        };
        echo.thread = Some(std::thread::spawn(serve));
        echo
    }

    fn refused(&self) -> u64 {
        self.traffic.lock().expect("not poisoned").refused
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a listener");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream
    }

    /// A well-behaved node gets its frame back.
    fn serves(&self, worker: u32) {
        let mut stream = self.connect();
        let bytes = bytes_of(&push(worker, 5, 20));
        stream.write_all(&bytes).expect("written");
        let mut echoed = vec![0; bytes.len()];
        stream.read_exact(&mut echoed).expect("served");
        assert_eq!(echoed[HEADER_BYTES..], bytes[HEADER_BYTES..]);
    }

    fn wait_until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < LIMIT, "{what} never came; log:\n{}", self.log.text());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let served = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        assert!(served || std::thread::panicking(), "the transport fell over");
    }
}

fn push(worker: u32, rows: u64, bytes: usize) -> Frame {
    let ids: Vec<u64> = (0..rows).collect();
    let keys = Keys::distinct(Placement::Spread, &ids).slice(0..rows as usize).in_full();
    let (table, shard, values) = (TableId(0), ShardId(0), Payload::new(vec![7u8; bytes]));
    let push = Push { table, shard, settled: 0, number: NumberType::F32, keys, values };
    Frame { head: Head::plain(NodeId::Worker(worker), SERVER), message: Message::Push(push) }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

/// A small frame without payloads, changed and given the right check again.
fn sealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let head = Head::plain(NodeId::Worker(9), SERVER);
    let mut bytes = bytes_of(&Frame { head, message: Message::Control(Control::Beat) });
    change(&mut bytes);
    seal(&mut bytes);
    bytes
}

#[test]
fn what_is_no_frame_closes_its_connection_is_counted_and_logged() {
    let length = |at: usize| {
        move |bytes: &mut Vec<u8>| {
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            bytes.extend_from_slice(&[0; 64]);
        }
    };
    // (what, the bytes, words of the log line)
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a browser", [b"GET / HTTP/1.1\r\n".as_slice(), &[b'x'; 200]].concat(), "does not speak Slackwater"),
        ("zeros", vec![0; 4096], "does not speak Slackwater"),
        ("an endless body", sealed(length(8)), "a body of 4294967295 bytes is beyond"),
        ("an endless key list", sealed(length(12)), "a key list of 4294967295 bytes is beyond"),
        ("an endless part", sealed(length(16)), "a part of 4294967295 bytes is beyond"),
        ("another version", sealed(|bytes| bytes[4] = 9), "version 9"),
        ("an unknown kind", sealed(|bytes| bytes[6] = 200), "unknown kind of message"),
        ("an unknown control", sealed(|bytes| bytes[HEADER_BYTES] = 200), "unknown kind of Control"),
        ("a sender that is no node", sealed(|bytes| bytes[20..24].fill(0xFF)), "no node"),
        ("a receiver that is no node", sealed(|bytes| bytes[24..28].fill(0xFF)), "no node"),
        ("a codec nobody has", sealed(|bytes| bytes[72] = 1), "codec"),
        (
            "bytes left over",
            sealed(|bytes| {
                bytes[8] += 1;
                bytes.push(0);
            }),
            "left over",
        ),
        (
            "a damaged check",
            {
                let mut bytes = sealed(|_| {});
                bytes[80] ^= 1;
                bytes
            },
            "damaged",
        ),
        (
            "a good frame, then garbage",
            [bytes_of(&push(9, 3, 12)), vec![b'?'; 100]].concat(),
            "does not speak Slackwater",
        ),
    ];
    let echo = Echo::start();
    for (number, (what, bytes, words)) in cases.iter().enumerate() {
        let logged = echo.log.text().len();
        let mut stream = echo.connect();
        stream.write_all(bytes).expect("written");
        // The end of the stream, or a reset where bytes were left unread.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        echo.wait_until(what, |echo| echo.refused() == number as u64 + 1);
        let line = &echo.log.text()[logged..];
        assert!(line.contains(words) && line.contains("WARN"), "{what} says: {line}");
        assert!(line.contains(&stream.local_addr().expect("an address").to_string()), "{what}: no address in {line}");
        echo.serves(1);
    }
}

#[test]
fn a_frame_cut_at_any_byte_is_never_handed_on() {
    let bytes = bytes_of(&push(3, 2, 8));
    let echo = Echo::start();
    for cut in 0..bytes.len() {
        let mut stream = echo.connect();
        stream.write_all(&bytes[..cut]).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("closed");
        assert!(answer.is_empty(), "answered a frame of {cut} of its {} bytes", bytes.len());
    }
    echo.serves(1);
    echo.wait_until("the count", |echo| echo.traffic.lock().expect("not poisoned").frames_in == 1);
    let cut_short = bytes.len() as u64 - 1;
    assert_eq!(echo.refused(), cut_short, "one that goes away between frames has done nothing wrong");
}

#[test]
fn a_thousand_silent_peers_cost_nobody_else_anything() {
    let echo = Echo::start();
    let silent: Vec<TcpStream> = (0..1_000).map(|_| echo.connect()).collect();
    // Some of them begin to speak, and stop in the middle of a word.
    for (index, mut stream) in silent.iter().enumerate().step_by(10) {
        stream.write_all(&bytes_of(&push(4, 2, 8))[..index % 100]).expect("written");
    }
    (0..20).for_each(|worker| echo.serves(worker));
    assert_eq!(echo.refused(), 0);
    drop(silent);
    echo.serves(1);
}

#[test]
fn a_slow_reader_waits_for_itself_alone() {
    const REQUESTS: usize = 24;
    let echo = Echo::start();
    let request = bytes_of(&push(2, 1, PART_BYTES));
    let slow = echo.connect();
    let mut writing = slow.try_clone().expect("a second handle");
    let sent = request.clone();
    // Its own requests fill the way to the server once the server stops reading them.
    let writer = std::thread::spawn(move || (0..REQUESTS).for_each(|_| writing.write_all(&sent).expect("written")));
    echo.wait_until("a backlog", |echo| echo.backlog.load(Ordering::Relaxed) > 2 * PART_BYTES);
    (10..30).for_each(|worker| echo.serves(worker));
    let most = echo.backlog.load(Ordering::Relaxed);
    assert!(most < 8 * PART_BYTES, "{most} bytes waited for one peer");
    let mut reading = &slow;
    let mut answer = vec![0; request.len()];
    for _ in 0..REQUESTS {
        reading.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer[HEADER_BYTES..], request[HEADER_BYTES..]);
    }
    writer.join().expect("all requests written");
}

#[test]
fn a_peer_that_is_refused_is_a_connection_lost_and_can_call_again() {
    let (mut transport, mut waiter, address) = listen(any_port(), settings()).expect("a free port");
    transport.know(&[Member { node: NodeId::Worker(3), address: address.to_string() }]);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).expect("a listener");
        stream.write_all(&[bytes_of(&push(3, 1, 4)), vec![0; 100]].concat()).expect("written");
        let begin = Instant::now();
        let mut events = Vec::new();
        while events.len() < 2 {
            assert!(begin.elapsed() < LIMIT, "only {events:?}");
            waiter.wait(Some(Duration::from_millis(5)));
            events.extend(std::iter::from_fn(|| transport.next()));
        }
        assert!(matches!(&events[..], [Event::Frame(_), Event::Disconnected(NodeId::Worker(3))]), "{events:?}");
    }
    assert_eq!(transport.traffic().refused, 3);
}
