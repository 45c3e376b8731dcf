//! Limits of a node's connections, each with a hostile peer over a real socket: floods of
//! connections, half-open handshakes, frames that never end, answers that nobody reads. Time is the
//! test's own, so nothing waits for a deadline.

use identity::{Credentials, JobToken, Token};
use net::{Limits, SameHost, Security, SocketSettings, SocketTransport, SocketWaiter};
use net::{Transport, TransportEvent, Waiter, listen};
use rustls::pki_types::UnixTime;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use types::{NodeId, NumberType, PART_BYTES, RefusalReason, Role, ShardId, TableId, limits};
use wire::{Control, Frame, HEADER_BYTES, Head, KeyPart, Member, Message, Payload, Pool, Push, Writes, encode};

/// A test that waits longer for one event hangs.
const LIMIT: Duration = Duration::from_secs(30);
const SERVER: NodeId = NodeId::Server(0);
/// A name that the coordinator gives nobody.
const STRANGER: NodeId = NodeId::Worker(0x1000_0001);

/// Counts the bytes that are allocated now.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A node under attack. It handles events when the test says so, at the test's time.
struct Victim {
    transport: SocketTransport,
    waiter: SocketWaiter,
    address: SocketAddr,
    start: Instant,
    second: u32,
    frames: Vec<Frame>,
}

impl Victim {
    fn new(pauses: bool, security: Security, limits: Limits) -> Self {
        let settings = SocketSettings { pauses, pool: Pool::new(), same_host: SameHost::Tcp, security, limits };
        let (transport, waiter, address) = listen(([127, 0, 0, 1], 0).into(), settings).expect("a free port");
        Self { transport, waiter, address, start: Instant::now(), second: 0, frames: Vec::new() }
    }

    fn insecure(limits: Limits) -> Self {
        Self::new(true, Security::Insecure, limits)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a listener");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream
    }

    /// Handles what has arrived by now.
    fn turn(&mut self) {
        self.waiter.wait(Some(Duration::from_millis(1)));
        while let Some(event) = self.transport.next() {
            if let TransportEvent::Frame(frame) = event {
                self.frames.push(frame);
            }
        }
        self.transport.flush();
    }

    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < LIMIT, "{what} never came; {:?}", self.transport.traffic());
            self.turn();
        }
    }

    /// Lets seconds pass, one by one.
    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.second += 1;
            self.turn();
            self.transport.tick(self.start + Duration::from_secs(u64::from(self.second)));
        }
    }

    fn refused(&self, reason: RefusalReason) -> u64 {
        self.transport.traffic().refused.of(reason)
    }

    fn hears(&mut self, stream: &mut TcpStream, frame: &Frame) {
        let before = self.frames.len();
        stream.write_all(&bytes_of(frame)).expect("written");
        self.turn_until("a frame", |victim| victim.frames.len() > before);
        assert_eq!(self.frames.pop().as_ref(), Some(frame));
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).expect("sendable");
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

fn control(from: NodeId, control: Control) -> Frame {
    Frame { head: Head::plain(from, SERVER), message: Message::Control(control) }
}

fn heartbeat(worker: u32) -> Frame {
    control(NodeId::Worker(worker), Control::Heartbeat { heard: 0 })
}

fn push(from: NodeId, bytes: usize) -> Frame {
    let push = Push {
        table: TableId(0),
        shard: ShardId(0),
        settled: 0,
        number: NumberType::F32,
        writes: Writes::GRADIENTS,
        keys: KeyPart::Run { first: types::Position(0), count: 1 },
        values: Payload::new(vec![7u8; bytes]),
    };
    Frame { head: Head::plain(from, SERVER), message: Message::Push(push) }
}

/// Whether the other end has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 4096];
    let closed = loop {
        match stream.read(&mut bytes) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).expect("a socket");
    closed
}

#[test]
fn a_flood_of_connections_closes_strangers_only() {
    let mut victim = Victim::insecure(Limits { strangers: 8, ..Limits::default() });
    let mut member = victim.connect();
    victim.hears(&mut member, &heartbeat(1));
    let mut flood = Vec::new();
    for round in 0..50 {
        flood.extend((0..4).map(|_| victim.connect()));
        victim.turn();
        victim.hears(&mut member, &heartbeat(1));
        let mut newcomer = victim.connect();
        victim.hears(&mut newcomer, &heartbeat(100 + round));
        victim.hears(&mut newcomer, &heartbeat(100 + round));
        // It has a place: the flood does not close it.
        flood.push(newcomer);
    }
    victim.turn_until("the end of the flood", |victim| victim.refused(RefusalReason::TooManyConnections) >= 193);
    assert!(!is_closed(&mut member));
    assert_eq!(flood.iter_mut().map(is_closed).filter(|closed| *closed).count(), 193, "all but the newest seven");
    assert_eq!(victim.transport.traffic().refused.total(), 193);
}

#[test]
fn one_address_and_all_connections_are_bounded() {
    let limits = Limits { strangers_per_address: 3, ..Limits::default() };
    let mut victim = Victim::insecure(limits);
    let _flood: Vec<_> = (0..10).map(|_| victim.connect()).collect();
    victim.turn_until("refusals", |victim| victim.refused(RefusalReason::TooManyConnections) == 7);

    let mut victim = Victim::insecure(Limits { connections: 3, ..Limits::default() });
    let mut members: Vec<_> = (0..3).map(|_| victim.connect()).collect();
    (0..).zip(&mut members).for_each(|(worker, member)| victim.hears(member, &heartbeat(worker)));
    let mut late = victim.connect();
    victim.turn_until("a refusal", |victim| victim.refused(RefusalReason::TooManyConnections) == 1);
    assert!(is_closed(&mut late), "members keep their connections");
    (0..).zip(&mut members).for_each(|(worker, member)| victim.hears(member, &heartbeat(worker)));
}

#[test]
fn headers_of_large_frames_take_bounded_memory() {
    const PEERS: usize = 1_000;
    const BUDGET: usize = 8 << 20;
    let limits =
        Limits { strangers: 2 * PEERS, strangers_per_address: 2 * PEERS, promised_bytes: BUDGET, ..Limits::default() };
    let mut victim = Victim::insecure(limits);
    let mut member = victim.connect();
    victim.hears(&mut member, &heartbeat(1));
    let header = bytes_of(&push(NodeId::Worker(7), PART_BYTES))[..HEADER_BYTES].to_vec();
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = victim.connect();
        peer.write_all(&header).expect("written");
        peers.push(peer);
        if peers.len().is_multiple_of(50) {
            victim.turn();
        }
    }
    let expected = victim.transport.traffic().bytes_in.max((PEERS * HEADER_BYTES) as u64);
    victim.turn_until("all headers", |victim| victim.transport.traffic().bytes_in >= expected);
    let taken = ALLOCATED.load(Ordering::Relaxed).saturating_sub(before);
    // A connection has a staging buffer, the first buffer of its frame, and its state.
    let most = BUDGET + PEERS * (2 * limits::FIRST_BUFFER_BYTES + 4096);
    assert!(taken < most, "{taken} bytes for {PEERS} headers, and {most} are allowed");
    // Honest frames arrive whole, although the budget is used up.
    victim.hears(&mut member, &push(NodeId::Worker(1), PART_BYTES));
}

#[test]
fn half_open_handshakes_end_at_the_handshake_timeout() {
    let token = Token::Job(JobToken::create().expect("random bytes"));
    let credentials = Credentials::of_token(&token, Role::Server, "test", UnixTime::now()).expect("signed");
    let mut victim = Victim::new(true, Security::Tls(credentials), Limits::default());
    let mut silent = victim.connect();
    let mut half = victim.connect();
    // The header of a handshake record, and less than it announces.
    half.write_all(&[0x16, 3, 1, 1, 0, 1, 0, 0]).expect("written");
    victim.pass(10);
    assert!(!is_closed(&mut silent) && !is_closed(&mut half));
    victim.pass(2);
    assert!(is_closed(&mut silent) && is_closed(&mut half));
    assert_eq!(victim.refused(RefusalReason::HandshakeTimeout), 2);
}

#[test]
fn a_peer_that_drips_its_first_frame_is_refused_in_time() {
    let mut victim = Victim::insecure(Limits::default());
    let mut peer = victim.connect();
    for byte in &bytes_of(&heartbeat(1))[..10] {
        peer.write_all(&[*byte]).expect("written");
        victim.pass(1);
    }
    victim.pass(2);
    assert!(is_closed(&mut peer));
    assert_eq!(victim.refused(RefusalReason::HandshakeTimeout), 1);
}

#[test]
fn a_frame_that_arrives_too_slowly_closes_the_connection_of_any_node() {
    let mut victim = Victim::insecure(Limits::default());
    let mut slow = victim.connect();
    let mut honest = victim.connect();
    victim.hears(&mut slow, &heartbeat(1));
    victim.hears(&mut honest, &heartbeat(2));
    let bytes = bytes_of(&push(NodeId::Worker(1), PART_BYTES));
    slow.write_all(&bytes[..HEADER_BYTES]).expect("written");
    // 30 s, and 16 s at 64 KiB per second.
    for second in 0..46 {
        assert!(!is_closed(&mut slow), "second {second}");
        slow.write_all(&bytes[HEADER_BYTES + second..][..1]).expect("written");
        victim.pass(1);
        victim.hears(&mut honest, &heartbeat(2));
    }
    victim.pass(2);
    assert!(is_closed(&mut slow) && !is_closed(&mut honest));
    assert_eq!(victim.refused(RefusalReason::FrameTimeout), 1);
}

#[test]
fn idle_strangers_are_closed_and_silent_members_are_not() {
    let mut victim = Victim::insecure(Limits::default());
    let mut member = victim.connect();
    let mut stranger = victim.connect();
    victim.hears(&mut member, &heartbeat(1));
    victim.hears(&mut stranger, &control(STRANGER, Control::AskStatus));
    victim.pass(100);
    victim.hears(&mut stranger, &control(STRANGER, Control::AskStatus));
    victim.pass(119);
    assert!(!is_closed(&mut stranger));
    victim.pass(3);
    assert!(is_closed(&mut stranger) && !is_closed(&mut member));
    assert_eq!(victim.refused(RefusalReason::Idle), 1);
}

/// Answers each question for the status with so many bytes, as a coordinator does.
fn answer(victim: &mut Victim, bytes: usize) -> usize {
    let questions = std::mem::take(&mut victim.frames);
    for frame in &questions {
        let reason = "x".repeat(bytes);
        let head = Head::plain(NodeId::Coordinator, frame.head.from);
        victim.transport.send(Frame { head, message: Message::Control(Control::Fail { reason }) });
    }
    victim.transport.flush();
    questions.len()
}

#[test]
fn a_flood_of_unread_questions_takes_bounded_memory() {
    const ANSWER: usize = 20_000;
    // A worker does not pause its servers, and pauses strangers as all nodes do.
    for pauses in [true, false] {
        let mut victim = Victim::new(pauses, Security::Insecure, Limits::default());
        let mut asker = victim.connect();
        asker.set_nonblocking(true).expect("a socket");
        let question = bytes_of(&control(STRANGER, Control::AskStatus)).repeat(100);
        let mut asked = 0;
        let mut most = 0;
        for _ in 0..3_000 {
            // Whole questions, as long as the victim's system takes them.
            if asked == 0 || asker.peek(&mut [0]).is_ok() {
                asked += asker.write(&question).unwrap_or(0);
            }
            victim.waiter.wait(Some(Duration::ZERO));
            while let Some(event) = victim.transport.next() {
                let TransportEvent::Frame(frame) = event else { continue };
                victim.frames.push(frame);
                answer(&mut victim, ANSWER);
                most = most.max(victim.transport.backlog());
            }
        }
        assert!(asked > question.len(), "the flood was read: {asked}");
        let bound = limits::STRANGER_PAUSE_BYTES + 2 * ANSWER;
        assert!(most > limits::STRANGER_PAUSE_BYTES, "nothing waited: {most}");
        assert!(most < bound, "{most} bytes waited for one stranger, and {bound} may");
        victim.pass(123);
        assert_eq!(victim.refused(RefusalReason::Outbox), 1, "it reads nothing for ever");
        assert_eq!(victim.transport.backlog(), 0);
    }
}

#[test]
fn a_connection_for_which_too_much_waits_is_closed() {
    let limits = Limits { outbox_bytes: 4 * PART_BYTES, ..Limits::default() };
    // (whether the node is a server or coordinator, whether the connection closes)
    for (pauses, closes) in [(true, true), (false, false)] {
        let mut victim = Victim::new(pauses, Security::Insecure, limits);
        let mut peer = victim.connect();
        victim.hears(&mut peer, &control(NodeId::Server(1), Control::Heartbeat { heard: 0 }));
        for _ in 0..40 {
            let mut frame = push(SERVER, PART_BYTES);
            frame.head.to = NodeId::Server(1);
            victim.transport.send(frame);
        }
        let waiting = victim.transport.backlog();
        assert_eq!(victim.refused(RefusalReason::Outbox), u64::from(closes), "{waiting} bytes wait");
        assert_eq!(waiting < 6 * PART_BYTES, closes, "{waiting}");
    }
}

#[test]
fn connections_of_one_key_are_bounded() {
    let token = Token::Job(JobToken::create().expect("random bytes"));
    let own = |role| Credentials::of_token(&token, role, "test", UnixTime::now()).expect("signed");
    let limits = Limits { connections_per_key: 2, ..Limits::default() };
    let mut victim = Victim::new(true, Security::Tls(own(Role::Server)), limits);
    let credentials = own(Role::Worker);
    let mut callers = Vec::new();
    for _ in 0..4 {
        let mut caller = Victim::new(false, Security::Tls(credentials.clone()), Limits::default());
        caller.transport.know(&[Member { node: SERVER, address: victim.address.to_string(), binding: None }]);
        caller.transport.send(heartbeat(1));
        caller.transport.flush();
        callers.push(caller);
    }
    victim.turn_until("refusals", |victim| {
        callers.iter_mut().for_each(Victim::turn);
        victim.refused(RefusalReason::TooManyConnections) == 2
    });
}
