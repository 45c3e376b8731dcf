//! Hostile peers: a peer that sends garbage, stays silent, reads slowly or corrupts shared memory
//! loses at most its own connection. The transport counts and logs that, and serves all other
//! nodes as before.

mod logged;
mod peer;

use logged::Log;
use net::{Limits, SameHost, Security, SocketSettings, Traffic, Transport, TransportEvent, Waiter, listen};
use peer::{DOWN, HEAD, MEMORY, RING, SEALS, SharedPeer, TAIL, UP};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::{NodeId, NumberType, PART_BYTES, Placement, ShardId, TableId};
use wire::{Control, Frame, HEADER_BYTES, Head, Keys, Member, Message, Payload, Pool, Push, Writes, encode, seal};

/// A test that waits longer for one event hangs.
const LIMIT: Duration = Duration::from_secs(30);
const SERVER: NodeId = NodeId::Server(0);

/// Peers of these tests are strangers, and there are many of them.
fn settings() -> SocketSettings {
    let limits = Limits { strangers: 2_000, strangers_per_address: 2_000, ..Limits::default() };
    SocketSettings {
        pauses: true,
        pool: Pool::new(),
        same_host: SameHost::default(),
        security: Security::Insecure,
        limits,
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// How a peer is connected.
#[derive(Clone, Copy, Debug)]
enum NodeAddress {
    Tcp,
    Shared,
}

const WAYS: [NodeAddress; 2] = [NodeAddress::Tcp, NodeAddress::Shared];

/// A peer that a test controls byte by byte.
enum Peer {
    Tcp(TcpStream),
    Shared(SharedPeer),
}

impl Peer {
    /// A second handle of the same connection, for another thread.
    fn again(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().expect("a second handle")),
            Self::Shared(peer) => Self::Shared(peer.again()),
        }
    }

    /// Its name in the log.
    fn name(&self) -> String {
        match self {
            Self::Tcp(stream) => stream.local_addr().expect("an address").to_string(),
            Self::Shared(_) => format!("process {}", std::process::id()),
        }
    }

    /// Closes its sending direction.
    fn finish(&self) {
        match self {
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write).expect("shut"),
            Self::Shared(peer) => peer.socket.shutdown(std::net::Shutdown::Write).expect("shut"),
        }
    }
}

impl Read for Peer {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Shared(peer) => peer.read(into),
        }
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Shared(peer) => peer.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server that sends every frame back to its sender.
struct Echo {
    address: SocketAddr,
    log: Log,
    stop: Arc<AtomicBool>,
    /// The largest number of bytes that ever waited to be written.
    backlog: Arc<AtomicUsize>,
    /// Bytes that wait to be written now.
    waiting: Arc<AtomicUsize>,
    traffic: Arc<Mutex<Traffic>>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Self {
        let (mut transport, mut waiter, address) = listen(any_port(), settings()).expect("a free port");
        let mut echo = Self {
            address,
            log: Log::default(),
            stop: Arc::default(),
            backlog: Arc::default(),
            waiting: Arc::default(),
            traffic: Arc::default(),
            thread: None,
        };
        let log = echo.log.clone();
        let stop = echo.stop.clone();
        let backlog = echo.backlog.clone();
        let waiting = echo.waiting.clone();
        let traffic = echo.traffic.clone();
        let serve = move || {
            let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log)).finish();
            tracing::subscriber::with_default(logger, || {
                while !stop.load(Ordering::Relaxed) {
                    waiter.wait(Some(Duration::from_millis(2)));
                    while let Some(event) = transport.next() {
                        if let TransportEvent::Frame(mut frame) = event {
                            std::mem::swap(&mut frame.head.from, &mut frame.head.to);
                            transport.send(frame);
                        }
                        backlog.fetch_max(transport.backlog(), Ordering::Relaxed);
                    }
                    transport.flush();
                    waiting.store(transport.backlog(), Ordering::Relaxed);
                    *traffic.lock().expect("not poisoned") = transport.traffic();
                }
            });
        };
        echo.thread = Some(std::thread::spawn(serve));
        echo
    }

    fn refused(&self) -> u64 {
        self.traffic.lock().expect("not poisoned").refused.total()
    }

    fn connect(&self, way: NodeAddress) -> Peer {
        match way {
            NodeAddress::Tcp => {
                let stream = TcpStream::connect(self.address).expect("a listener");
                stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
                Peer::Tcp(stream)
            }
            NodeAddress::Shared => Peer::Shared(SharedPeer::connect(self.address)),
        }
    }

    /// Checks that well-behaved nodes get their frames back.
    fn serves(&self, worker: u32) {
        for (way, worker) in WAYS.into_iter().zip([worker, worker + 1_000]) {
            let mut stream = self.connect(way);
            let bytes = bytes_of(&push(worker, 5, 20));
            stream.write_all(&bytes).expect("written");
            let mut echoed = vec![0; bytes.len()];
            stream.read_exact(&mut echoed).expect("served");
            assert_eq!(echoed[HEADER_BYTES..], bytes[HEADER_BYTES..]);
        }
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
        assert!(served || std::thread::panicking(), "the thread of the transport panicked");
    }
}

fn push(worker: u32, rows: u64, bytes: usize) -> Frame {
    let ids: Vec<u64> = (0..rows).collect();
    let keys = Keys::distinct(Placement::Spread, &ids).slice(0..rows as usize).in_full();
    let push = Push {
        table: TableId(0),
        shard: ShardId(0),
        settled: 0,
        number: NumberType::F32,
        writes: Writes::GRADIENTS,
        keys,
        values: Payload::new(vec![7u8; bytes]),
    };
    Frame { head: Head::plain(NodeId::Worker(worker), SERVER), message: Message::Push(push) }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).expect("sendable");
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

/// A small frame without payloads, with `change` applied and a valid checksum.
fn sealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let head = Head::plain(NodeId::Worker(9), SERVER);
    let mut bytes = bytes_of(&Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) });
    change(&mut bytes);
    seal(&mut bytes);
    bytes
}

#[test]
fn invalid_frames_close_the_connection_and_are_counted_and_logged() {
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
        ("an endless body", sealed(length(8)), "a body of 4294967295 bytes exceeds the limit"),
        ("an endless key list", sealed(length(12)), "a key list of 4294967295 bytes exceeds the limit"),
        ("an endless part", sealed(length(16)), "a part of 4294967295 bytes exceeds the limit"),
        ("another version", sealed(|bytes| bytes[4] = 9), "version 9"),
        ("an unknown kind", sealed(|bytes| bytes[6] = 200), "unknown kind of message"),
        ("an unknown control", sealed(|bytes| bytes[HEADER_BYTES] = 200), "unknown kind of Control"),
        ("a sender that is no node", sealed(|bytes| bytes[20..24].fill(0xFF)), "a node name that is not valid"),
        ("a receiver that is no node", sealed(|bytes| bytes[24..28].fill(0xFF)), "a node name that is not valid"),
        (
            "bytes left over",
            sealed(|bytes| {
                bytes[8] += 1;
                bytes.push(0);
            }),
            "after the end of a message",
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
    let cases = cases.iter().flat_map(|case| WAYS.map(|way| (way, case)));
    for (number, (way, (what, bytes, words))) in cases.enumerate() {
        let logged = echo.log.text().len();
        let mut stream = echo.connect(way);
        stream.write_all(bytes).expect("written");
        // Reads to the end of the stream, or to a reset if the server left bytes unread.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        echo.wait_until(what, |echo| echo.refused() == number as u64 + 1);
        let line = &echo.log.text()[logged..];
        assert!(line.contains(words) && line.contains("WARN"), "{what} by {way:?} says: {line}");
        assert!(line.contains(&stream.name()), "{what} by {way:?}: no address in {line}");
        echo.serves(1);
    }
}

#[test]
fn a_frame_truncated_at_any_byte_is_never_delivered() {
    let bytes = bytes_of(&push(3, 2, 8));
    let echo = Echo::start();
    for cut in 0..bytes.len() {
        for way in WAYS {
            let mut stream = echo.connect(way);
            stream.write_all(&bytes[..cut]).expect("written");
            stream.finish();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("closed");
            assert!(answer.is_empty(), "answered a frame of {cut} of its {} bytes by {way:?}", bytes.len());
        }
    }
    echo.serves(1);
    echo.wait_until("the count", |echo| echo.traffic.lock().expect("not poisoned").frames_in == 2);
    let cut_short = 2 * (bytes.len() as u64 - 1);
    assert_eq!(echo.refused(), cut_short, "closing between two frames is no error");
}

#[test]
fn a_thousand_silent_peers_do_not_disturb_others() {
    let echo = Echo::start();
    // Untouched shared memory takes no pages, but an open file each.
    let silent = [(NodeAddress::Tcp, 800), (NodeAddress::Shared, 200)];
    let mut silent: Vec<Peer> =
        silent.into_iter().flat_map(|(way, count)| (0..count).map(move |_| way)).map(|way| echo.connect(way)).collect();
    // Some of them send the beginning of a frame.
    for (index, stream) in silent.iter_mut().enumerate().step_by(10) {
        stream.write_all(&bytes_of(&push(4, 2, 8))[..index % 100]).expect("written");
    }
    (0..20).for_each(|worker| echo.serves(worker));
    assert_eq!(echo.refused(), 0);
    drop(silent);
    echo.serves(1);
}

#[test]
fn a_slow_reader_delays_only_itself() {
    const REQUESTS: usize = 24;
    for way in WAYS {
        let echo = Echo::start();
        let request = bytes_of(&push(2, 1, PART_BYTES));
        let mut slow = echo.connect(way);
        let mut writing = slow.again();
        let sent = request.clone();
        // When the server stops reading its requests, its own writes block.
        let writer = std::thread::spawn(move || (0..REQUESTS).for_each(|_| writing.write_all(&sent).expect("written")));
        echo.wait_until("a backlog", |echo| echo.backlog.load(Ordering::Relaxed) > 2 * PART_BYTES);
        (10..30).for_each(|worker| echo.serves(worker));
        let most = echo.backlog.load(Ordering::Relaxed);
        assert!(most < 8 * PART_BYTES, "{most} bytes waited for one peer by {way:?}");
        let mut answer = vec![0; request.len()];
        for _ in 0..REQUESTS {
            slow.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[HEADER_BYTES..], request[HEADER_BYTES..]);
        }
        writer.join().expect("all requests written");
    }
}

#[test]
fn answers_to_a_slow_reader_are_dropped_when_it_disconnects() {
    for way in WAYS {
        let echo = Echo::start();
        let request = bytes_of(&push(2, 1, PART_BYTES));
        let slow = echo.connect(way);
        let mut writing = slow.again();
        let writer = std::thread::spawn(move || while writing.write_all(&request).is_ok() {});
        echo.wait_until("a backlog", |echo| echo.waiting.load(Ordering::Relaxed) > 4 * PART_BYTES);
        match &slow {
            Peer::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both).expect("shut"),
            Peer::Shared(peer) => peer.socket.shutdown(std::net::Shutdown::Both).expect("shut"),
        }
        drop(slow);
        writer.join().expect("it ends");
        echo.wait_until("an empty send queue", |echo| echo.waiting.load(Ordering::Relaxed) == 0);
        echo.serves(1);
    }
}

#[test]
fn a_peer_that_corrupts_ring_positions_is_disconnected_and_named() {
    type Scribble = fn(&mut SharedPeer, u64);
    // (what, the corruption after frames of so many bytes went there and back, words of the log)
    let cases: [(&str, Scribble, &str); 8] = [
        ("a tail beyond all bounds", |peer, _| peer.say(UP + TAIL, u64::MAX), "it wrote 18446744073709551615 bytes"),
        ("a tail beyond the ring", |peer, n| peer.say(UP + TAIL, n + RING + 1), "invalid ring position"),
        ("a tail that falls", |peer, n| peer.say(UP + TAIL, n - 1), "invalid ring position"),
        ("a tail of nothing", |peer, _| peer.say(UP + TAIL, 0), "it wrote 0 bytes"),
        ("a whole ring of nothing", |peer, n| peer.say(UP + TAIL, n + RING), "does not speak Slackwater"),
        (
            "a head beyond what it was given",
            |peer, n| {
                peer.say(DOWN + HEAD, n + 1);
                peer.write_all(&bytes_of(&push(7, 1, 4))).expect("written");
            },
            "it read",
        ),
        (
            "a head that falls",
            |peer, n| {
                // The server knows by now that half of the bytes were read.
                peer.say(DOWN + HEAD, n / 2 - 1);
                peer.write_all(&bytes_of(&push(7, 1, 4))).expect("written");
            },
            "it read",
        ),
        (
            "a head beyond all bounds",
            |peer, _| {
                peer.say(DOWN + HEAD, u64::MAX);
                peer.write_all(&bytes_of(&push(7, 1, 4))).expect("written");
            },
            "it read 18446744073709551615 bytes",
        ),
    ];
    let echo = Echo::start();
    for (number, (what, scribble, words)) in cases.iter().enumerate() {
        let logged = echo.log.text().len();
        let mut peer = SharedPeer::connect(echo.address);
        let bytes = bytes_of(&push(7, 1, 4));
        let mut answer = vec![0; bytes.len()];
        for _ in 0..2 {
            peer.write_all(&bytes).expect("written");
            peer.read_exact(&mut answer).expect("an answer");
        }
        scribble(&mut peer, 2 * bytes.len() as u64);
        peer.ring();
        echo.wait_until(what, |echo| echo.refused() == number as u64 + 1);
        let line = &echo.log.text()[logged..];
        assert!(line.contains(words) && line.contains("WARN"), "{what} says: {line}");
        assert!(line.contains("worker 7") && line.contains(&std::process::id().to_string()), "{what}: who? {line}");
        echo.serves(1);
    }
}

#[test]
fn invalid_or_unsealed_shared_memory_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let sealed = || peer::memory(MEMORY, SEALS);
    let other_layout = [b"SLKWSHM\x02".as_slice(), &RING.to_le_bytes()].concat();
    // (what, the greeting, the memory, words of the log line)
    let cases = [
        ("a browser", b"GET / HTTP/1.1\r\n\r\n".to_vec(), None, "does not speak Slackwater"),
        ("half a greeting", peer::greeting()[..9].to_vec(), Some(sealed()), "does not speak Slackwater"),
        ("another layout", other_layout, Some(sealed()), "another shared-memory layout"),
        ("no memory", peer::greeting(), None, "passed no shared memory"),
        ("a file", peer::greeting(), Some(file), "not sealed"),
        (
            "memory that can be cut",
            peer::greeting(),
            Some(peer::memory(MEMORY, rustix::fs::SealFlags::GROW)),
            "not sealed",
        ),
        ("short memory", peer::greeting(), Some(peer::memory(MEMORY / 2, SEALS)), "and should be"),
        ("no memory at all", peer::greeting(), Some(peer::memory(0, SEALS)), "and should be"),
    ];
    let echo = Echo::start();
    for (number, (what, greeting, memory, words)) in cases.iter().enumerate() {
        let logged = echo.log.text().len();
        let _socket = peer::call(echo.address, greeting, memory.as_ref());
        echo.wait_until(what, |echo| echo.refused() == number as u64 + 1);
        let line = &echo.log.text()[logged..];
        assert!(line.contains(words) && line.contains("WARN"), "{what} says: {line}");
        echo.serves(1);
    }
}

#[test]
fn random_corruption_of_shared_memory_never_disturbs_others() {
    let echo = Echo::start();
    let mut seed = 1u64;
    let mut random = move || {
        // xorshift64
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let bytes = bytes_of(&push(5, 3, 500));
    for round in 0..200 {
        let mut peer = SharedPeer::connect(echo.address);
        let mut answer = vec![0; bytes.len()];
        peer.write_all(&bytes).expect("written");
        peer.read_exact(&mut answer).expect("an answer");
        for _ in 0..random() % 40 {
            match random() % 4 {
                0 => peer.say(random() % 8 * 128, random()),
                1 => peer.say(random() % 8 * 128, random() % (2 * RING)),
                2 => peer.say(random() % 8 * 128, peer.hear(random() % 8 * 128).wrapping_add(random() % 300)),
                _ => peer.scribble(random() % (MEMORY - 8), &random().to_le_bytes()),
            }
            peer.ring();
        }
        if round % 20 == 0 {
            echo.serves(1);
        }
    }
    echo.serves(1);
    assert!(echo.refused() > 50, "only {} of 200 were noticed", echo.refused());
}

/// The environment variable that tells the process to be killed which address to call.
const VICTIM: &str = "SLACKWATER_TEST_VICTIM_CALLS";

/// Not a test of its own: the next test starts it as a process, and kills that.
#[test]
fn a_process_that_stops_in_the_middle_of_a_frame() {
    let Some(address) = std::env::var(VICTIM).ok().and_then(|address| address.parse().ok()) else { return };
    let mut peer = SharedPeer::connect(address);
    let bytes = bytes_of(&push(6, 1, PART_BYTES));
    peer.write_all(&bytes_of(&push(6, 1, 4))).expect("written");
    peer.write_all(&bytes[..bytes.len() / 2]).expect("written");
    println!("half said");
    std::io::stdout().flush().expect("said");
    std::thread::sleep(LIMIT);
}

#[test]
fn a_process_killed_within_a_frame_loses_its_connection() {
    let echo = Echo::start();
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "a_process_that_stops_in_the_middle_of_a_frame", "--nocapture"])
        .env(VICTIM, echo.address.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a process");
    let said = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let half = std::io::BufRead::lines(said).any(|line| line.is_ok_and(|line| line.contains("half said")));
    assert!(half, "it ended before it was killed");
    echo.wait_until("its first frame", |echo| echo.traffic.lock().expect("not poisoned").frames_in == 1);
    child.kill().expect("there");
    child.wait().expect("gone");
    echo.wait_until("the loss", |echo| echo.refused() == 1);
    assert!(echo.log.text().contains("ended in the middle of a frame"), "{}", echo.log.text());
    assert!(echo.log.text().contains("worker 6"), "{}", echo.log.text());
    echo.serves(1);
}

#[test]
fn a_refused_peer_is_reported_as_disconnected_and_can_call_again() {
    let (mut transport, mut waiter, address) = listen(any_port(), settings()).expect("a free port");
    transport.know(&[Member { node: NodeId::Worker(3), address: address.to_string(), binding: None }]);
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
        assert!(
            matches!(&events[..], [TransportEvent::Frame(_), TransportEvent::Disconnected(NodeId::Worker(3))]),
            "{events:?}"
        );
    }
    assert_eq!(transport.traffic().refused.total(), 3);
}
