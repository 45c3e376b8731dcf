//! The conformance suite of transports: each rule is a function over a [`Fixture`], and each
//! transport runs them all.

use identity::{Credentials, JobToken, Token};
use net::{Exchange, Limits, SameHost, Security, SocketSettings, Traffic, Transport, TransportEvent, Waiter, listen};
use rustls::pki_types::UnixTime;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use types::{Clock, NodeId, NumberType, PART_BYTES, Placement, Role, ShardId, TableId};
use wire::{
    ChangeChunk, ChunkContents, Control, Frame, Head, Keys, Member, Message, Payload, Pool, Pulled, Push, ReplicaChunk,
    Writes, encode,
};

/// A test that takes longer hangs. Every rule takes less than a tenth of it.
const LIMIT: Duration = Duration::from_secs(30);

/// A node with its transport and its waiter.
struct Node {
    name: NodeId,
    transport: Box<dyn Transport>,
    waiter: Box<dyn Waiter>,
}

/// A transport under test.
trait Fixture {
    /// Disconnects that a node sees when a peer ends: 0 for a transport without connections.
    const DISCONNECTS: usize;
    /// Whether workers may push to workers: nothing checks who may say what.
    const WORKERS_PUSH: bool = true;
    /// Nodes of these names, each of which knows the addresses of the others.
    fn nodes(names: &[NodeId]) -> Vec<Node>;
}

/// Threads of one process.
struct Local;

impl Fixture for Local {
    const DISCONNECTS: usize = 0;
    fn nodes(names: &[NodeId]) -> Vec<Node> {
        let exchange = Exchange::new();
        let node = |name: &NodeId| {
            let (transport, waiter) = exchange.join(*name);
            Node { name: *name, transport: Box::new(transport), waiter: Box::new(waiter) }
        };
        names.iter().map(node).collect()
    }
}

/// Nodes of this host that use the socket transport.
fn socket_nodes(names: &[NodeId], same_host: SameHost, token: Option<&Token>) -> Vec<Node> {
    let mut members = Vec::new();
    let mut nodes = Vec::new();
    for name in names {
        let pauses = !matches!(name, NodeId::Worker(_));
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let role = match name {
            NodeId::Coordinator => Role::Coordinator,
            NodeId::Server(_) => Role::Server,
            NodeId::Worker(_) => Role::Worker,
        };
        let credentials =
            token.map(|token| Credentials::of_token(token, role, "test", UnixTime::now()).expect("signed"));
        let binding = credentials.as_ref().map(|credentials| credentials.binding_of(&credentials.own()));
        let security = credentials.map_or(Security::Insecure, Security::Tls);
        let settings = SocketSettings { pauses, pool: Pool::new(), same_host, security, limits: Limits::default() };
        let (transport, waiter, address) = listen(any_port, settings).expect("a free port");
        members.push(Member { node: *name, address: address.to_string(), binding });
        nodes.push(Node { name: *name, transport: Box::new(transport), waiter: Box::new(waiter) });
    }
    nodes.iter_mut().for_each(|node| node.transport.know(&members));
    nodes
}

/// Has all nodes do the handshakes of all their connections. A handshake needs both ends, and most
/// rules drive one at a time.
fn shaken(mut nodes: Vec<Node>) -> Vec<Node> {
    let names: Vec<NodeId> = nodes.iter().map(|node| node.name).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        names[index + 1..].iter().for_each(|to| node.transport.send(heartbeat(node.name, *to, 0)));
    }
    let begin = Instant::now();
    let mut missing = names.len() * (names.len() - 1) / 2;
    while missing > 0 {
        assert!(begin.elapsed() < LIMIT, "{missing} handshakes hang");
        for node in &mut nodes {
            node.transport.flush();
            node.waiter.wait(Some(Duration::ZERO));
            while node.transport.next().is_some() {
                missing -= 1;
            }
        }
    }
    nodes
}

/// TCP.
struct Tcp;

impl Fixture for Tcp {
    const DISCONNECTS: usize = 1;
    fn nodes(names: &[NodeId]) -> Vec<Node> {
        socket_nodes(names, SameHost::Tcp, None)
    }
}

/// TLS over TCP.
struct Tls;

impl Fixture for Tls {
    const DISCONNECTS: usize = 1;
    const WORKERS_PUSH: bool = false;
    fn nodes(names: &[NodeId]) -> Vec<Node> {
        let token = Token::Job(JobToken::create().expect("random bytes"));
        shaken(socket_nodes(names, SameHost::Tcp, Some(&token)))
    }
}

/// Shared memory, after a TLS handshake.
struct TlsShared;

impl Fixture for TlsShared {
    const DISCONNECTS: usize = 1;
    const WORKERS_PUSH: bool = false;
    fn nodes(names: &[NodeId]) -> Vec<Node> {
        let token = Token::Job(JobToken::create().expect("random bytes"));
        shaken(socket_nodes(names, SameHost::SharedMemory, Some(&token)))
    }
}

/// Shared memory.
struct Shared;

impl Fixture for Shared {
    const DISCONNECTS: usize = 1;
    fn nodes(names: &[NodeId]) -> Vec<Node> {
        socket_nodes(names, SameHost::SharedMemory, None)
    }
}

const SERVER: NodeId = NodeId::Server(0);
const ONE: NodeId = NodeId::Worker(0);
const TWO: NodeId = NodeId::Worker(1);

impl Node {
    fn send(&mut self, frame: Frame) {
        self.transport.send(frame);
    }

    /// Collects events until `enough` returns true.
    fn events_until(&mut self, mut enough: impl FnMut(&[TransportEvent]) -> bool) -> Vec<TransportEvent> {
        let begin = Instant::now();
        let mut events = Vec::new();
        while !enough(&events) {
            assert!(begin.elapsed() < LIMIT, "{} hangs with {} events", self.name, events.len());
            self.transport.flush();
            while let Some(event) = self.transport.next() {
                events.push(event);
            }
            if !enough(&events) {
                self.waiter.wait(Some(Duration::from_millis(10)));
            }
        }
        events
    }

    fn frames(&mut self, count: usize) -> Vec<Frame> {
        let frames = |event: TransportEvent| match event {
            TransportEvent::Frame(frame) => Some(frame),
            TransportEvent::Disconnected(_) => None,
        };
        self.events_until(|events| events.len() >= count).into_iter().filter_map(frames).collect()
    }
}

fn heartbeat(from: NodeId, to: NodeId, number: u64) -> Frame {
    let mut head = Head::plain(from, to);
    head.number = number;
    Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) }
}

/// A push of `rows` keys and `bytes` bytes of values, which differ for each `number`. From a
/// server, the answer to a read, or a chunk of a replication batch.
fn push(from: NodeId, to: NodeId, number: u64, rows: u64, bytes: usize) -> Frame {
    let ids: Vec<u64> = (0..rows).map(|id| id ^ number << 32).collect();
    let keys = Keys::distinct(Placement::Spread, &ids);
    let values: Vec<u8> = (0..bytes).map(|index| (index as u64 ^ index as u64 >> 8 ^ number) as u8).collect();
    let mut head = Head::plain(from, to);
    head.number = number;
    head.clock = Clock(number);
    if let (NodeId::Server(_), NodeId::Server(_)) = (from, to) {
        let chunk = ReplicaChunk {
            table: TableId(0),
            shard: ShardId(0),
            changes: ChangeChunk::default(),
            backfill: None,
            contents: ChunkContents::Rows,
            positions: Payload::EMPTY,
            values: Payload::new(values),
        };
        return Frame { head, message: Message::ReplicaChunk(chunk) };
    }
    if matches!(from, NodeId::Server(_)) {
        let empty = Pulled::empty(TableId(0), ShardId(0), number);
        let pulled = Pulled { values: Payload::new(values), ..empty };
        return Frame { head, message: Message::Pulled(pulled) };
    }
    let push = Push {
        table: TableId(0),
        shard: ShardId(0),
        settled: 0,
        number: NumberType::F32,
        writes: Writes::GRADIENTS,
        keys: keys.slice(0..keys.len()).in_full(),
        values: Payload::new(values),
    };
    Frame { head, message: Message::Push(push) }
}

fn pair<F: Fixture>() -> (Node, Node) {
    let mut nodes = F::nodes(&[SERVER, ONE]).into_iter();
    (nodes.next().expect("a server"), nodes.next().expect("a worker"))
}

fn frames_arrive_whole_and_in_order<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    let sent: Vec<Frame> = (0..40).map(|n| push(ONE, SERVER, n, n % 7, (n * n * 31) as usize % 9_000 * 4)).collect();
    sent.iter().cloned().for_each(|frame| worker.send(frame));
    worker.transport.flush();
    let received = std::thread::scope(|scope| {
        let receiving = scope.spawn(move || server.frames(40));
        // The rest goes out as the socket takes it.
        let begin = Instant::now();
        while worker.transport.backlog() > 0 && begin.elapsed() < LIMIT {
            worker.waiter.wait(Some(Duration::from_millis(1)));
            assert!(worker.transport.next().is_none());
        }
        receiving.join().expect("received")
    });
    assert_eq!(received, sent);
}

fn the_largest_part_arrives_intact<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    let sent = push(ONE, SERVER, 1, (PART_BYTES / 8) as u64, PART_BYTES);
    assert_eq!(sent.message.payloads().map(Payload::len), [PART_BYTES, PART_BYTES]);
    worker.send(sent.clone());
    let received = std::thread::scope(|scope| {
        let receiving = scope.spawn(move || server.frames(1));
        worker.events_until(|_| receiving.is_finished());
        receiving.join().expect("received")
    });
    assert_eq!(received, [sent]);
}

fn many_small_frames_arrive_in_order<F: Fixture>() {
    const COUNT: u64 = 20_000;
    let (mut server, mut worker) = pair::<F>();
    let received = std::thread::scope(|scope| {
        let receiving = scope.spawn(move || server.frames(COUNT as usize));
        for number in 0..COUNT {
            worker.send(heartbeat(ONE, SERVER, number));
            if number % 7 == 0 {
                worker.transport.flush();
            }
        }
        worker.events_until(|_| receiving.is_finished());
        receiving.join().expect("received")
    });
    assert!(received.iter().map(|frame| frame.head.number).eq(0..COUNT));
}

fn both_directions_at_once_do_not_block_each_other<F: Fixture>() {
    const COUNT: u64 = 48;
    let exchange = |mut node: Node, to: NodeId| {
        let sent: Vec<Frame> = (0..COUNT).map(|number| push(node.name, to, number, 100, PART_BYTES)).collect();
        sent.iter().cloned().for_each(|frame| node.send(frame));
        let received = node.frames(COUNT as usize);
        for (number, frame) in (0..COUNT).zip(&received) {
            assert_eq!(frame.head.number, number);
            assert_eq!(frame.message.payloads()[1].bytes(), sent[number as usize].message.payloads()[1].bytes());
        }
        // Drive the transport until all frames of this node are written.
        node.events_until(|_| true);
        let begin = Instant::now();
        while node.transport.backlog() > 0 {
            assert!(begin.elapsed() < LIMIT, "{} keeps {} bytes", node.name, node.transport.backlog());
            node.waiter.wait(Some(Duration::from_millis(1)));
            node.transport.next();
        }
        node
    };
    // A server pauses workers that do not read. Two workers do not pause each other, nor do two
    // servers, which may backfill each other's replicas.
    let pairs = [(SERVER, ONE), (ONE, TWO), (SERVER, NodeId::Server(1))];
    for (one, two) in pairs.into_iter().filter(|(one, _)| F::WORKERS_PUSH || *one != ONE) {
        let mut nodes = F::nodes(&[one, two]).into_iter();
        let (mut first, mut second) = (nodes.next().expect("one"), nodes.next().expect("two"));
        // Make sure that they share one connection.
        first.send(heartbeat(one, two, 0));
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| second.frames(1));
            first.events_until(|_| heard.is_finished());
        });
        std::thread::scope(|scope| {
            let other = scope.spawn(move || exchange(second, one));
            let first = exchange(first, two);
            (first, other.join().expect("the other way"))
        });
    }
}

fn every_node_can_send_to_every_other_node<F: Fixture>() {
    let names = [NodeId::Coordinator, SERVER, NodeId::Server(1), ONE, TWO];
    let mut nodes = F::nodes(&names);
    for node in &mut nodes {
        for to in names {
            if to != node.name {
                node.transport.send(heartbeat(node.name, to, 7));
            }
        }
        node.transport.flush();
    }
    // Each node drives its transport on a thread of its own, as in a run.
    std::thread::scope(|scope| {
        for mut node in nodes {
            scope.spawn(move || {
                let mut from: Vec<NodeId> = node.frames(4).iter().map(|frame| frame.head.from).collect();
                from.sort_unstable();
                let expected: Vec<NodeId> = names.into_iter().filter(|name| *name != node.name).collect();
                assert_eq!(from, expected, "what {} heard", node.name);
            });
        }
    });
}

fn frames_to_an_unknown_node_are_dropped<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    let before = worker.transport.traffic().frames_out;
    worker.send(heartbeat(ONE, NodeId::Server(77), 1));
    worker.send(heartbeat(ONE, SERVER, 2));
    worker.transport.flush();
    assert_eq!(server.frames(1)[0].head.number, 2);
    assert!(worker.transport.next().is_none());
    assert_eq!(worker.transport.backlog(), 0);
    assert_eq!(worker.transport.traffic().frames_out - before, 1, "a dropped frame does not count as sent");
}

fn wait_returns_on_a_wake_an_arrival_or_its_timeout<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    server.waiter.wait(Some(Duration::ZERO));
    server.waiter.wait(Some(Duration::from_millis(1)));
    let waker = server.waiter.waker();
    waker.wake();
    let begin = Instant::now();
    server.waiter.wait(Some(LIMIT));
    assert!(begin.elapsed() < LIMIT, "woken before it began");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        let begin = Instant::now();
        server.waiter.wait(Some(LIMIT));
        assert!(begin.elapsed() < LIMIT, "woken while it waits");
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            worker.send(heartbeat(ONE, SERVER, 1));
            worker.transport.flush();
        });
        let begin = Instant::now();
        let arrived = server.events_until(|events| !events.is_empty());
        assert!(matches!(&arrived[..], [TransportEvent::Frame(_)]) && begin.elapsed() < LIMIT);
    });
}

fn an_ended_node_is_reported_once<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    worker.send(heartbeat(ONE, SERVER, 1));
    worker.transport.flush();
    assert_eq!(server.frames(1).len(), 1);
    server.send(heartbeat(SERVER, ONE, 2));
    server.transport.flush();
    assert_eq!(worker.frames(1).len(), 1);
    drop(server);
    let gone = worker.events_until(|events| events.len() >= F::DISCONNECTS);
    assert!(gone.iter().all(|event| matches!(event, TransportEvent::Disconnected(node) if *node == SERVER)));
    for _ in 0..5 {
        worker.waiter.wait(Some(Duration::from_millis(2)));
        assert!(worker.transport.next().is_none(), "reported again");
    }
    // Frames to it are lost. A transport with connections reports that again, and does not block.
    worker.send(heartbeat(ONE, SERVER, 3));
    worker.transport.flush();
    let again = worker.events_until(|events| events.len() >= F::DISCONNECTS);
    assert_eq!(again.len(), F::DISCONNECTS);
}

fn traffic_counts_agree_at_both_ends<F: Fixture>() {
    let (mut server, mut worker) = pair::<F>();
    let [before, theirs_before] = [&worker, &server].map(|node| node.transport.traffic());
    let to_server: Vec<Frame> = (0..20).map(|n| push(ONE, SERVER, n, n, 4 * n as usize)).collect();
    let to_worker: Vec<Frame> = (0..7).map(|n| heartbeat(SERVER, ONE, n)).collect();
    to_server.iter().cloned().for_each(|frame| worker.send(frame));
    worker.transport.flush();
    server.frames(to_server.len());
    to_worker.iter().cloned().for_each(|frame| server.send(frame));
    server.transport.flush();
    worker.frames(to_worker.len());
    let ours = worker.transport.traffic();
    let theirs = server.transport.traffic();
    let frames = |after: Traffic, before: Traffic| {
        (after.frames_out - before.frames_out, after.frames_in - before.frames_in, after.refused.total())
    };
    assert_eq!(frames(ours, before), (20, 7, 0));
    assert_eq!(frames(theirs, theirs_before), (7, 20, 0));
    assert_eq!((ours.bytes_out, ours.bytes_in), (theirs.bytes_in, theirs.bytes_out));
    let payload_bytes: usize = to_server.iter().flat_map(|frame| frame.message.payloads()).map(Payload::len).sum();
    assert!(ours.bytes_out > payload_bytes as u64, "headers count too");
}

/// Socket transports count exactly the encoded bytes, and which of them went through shared memory.
#[test]
fn socket_traffic_counts_the_encoded_bytes() {
    assert_eq!(bytes_counted::<Tcp>(), 0, "all bytes go over TCP if the settings say so");
    assert!(bytes_counted::<Shared>() > 0, "bytes go through shared memory by default");
    assert_eq!(bytes_counted::<Tls>(), 0);
    assert!(bytes_counted::<TlsShared>() > 0, "bytes go through shared memory in a secured run, too");
}

/// Sends a few frames to a server and checks the counts. Returns the bytes that went through shared
/// memory: all or none.
fn bytes_counted<F: Fixture>() -> u64 {
    let (mut server, mut worker) = pair::<F>();
    let [out_before, into_before] = [&worker, &server].map(|node| node.transport.traffic());
    let frames: Vec<Frame> = (0..20).map(|n| push(ONE, SERVER, n, n, 4 * n as usize)).collect();
    let bytes = |frame: &Frame| {
        let mut small = Vec::new();
        encode(frame, &mut small).expect("sendable");
        small.len() + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>()
    };
    frames.iter().cloned().for_each(|frame| worker.send(frame));
    worker.transport.flush();
    server.frames(frames.len());
    let all = frames.iter().map(bytes).sum::<usize>() as u64;
    let out = worker.transport.traffic();
    let into = server.transport.traffic();
    assert_eq!((out.bytes_out - out_before.bytes_out, into.bytes_in - into_before.bytes_in), (all, all));
    assert_eq!(out.bytes_shared, into.bytes_shared);
    let shared = out.bytes_shared - out_before.bytes_shared;
    assert!([0, all].contains(&shared), "{shared} of {all}");
    shared
}

/// Both ends may call each other at once. Frames on the connection that breaks may be lost even if
/// the other one is already in use: a machine that does not learn of it would wait for ever.
#[test]
fn a_broken_connection_is_reported_although_a_newer_one_exists() {
    let (mut worker, address, older) = one_that_called();
    let mut newer = call(address, &heartbeat(SERVER, ONE, 2));
    assert_eq!(worker.frames(1)[0].head.number, 2);
    drop(older);
    let events = worker.events_until(|events| !events.is_empty());
    assert!(matches!(&events[..], [TransportEvent::Disconnected(SERVER)]), "{events:?}");
    // The newer connection still works.
    worker.send(heartbeat(ONE, SERVER, 3));
    worker.transport.flush();
    hears(&mut newer, &heartbeat(ONE, SERVER, 3));
}

/// Connects to `address` and sends `frame`.
fn call(address: SocketAddr, frame: &Frame) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(address).expect("a listener");
    say(&mut stream, frame);
    stream
}

fn say(stream: &mut std::net::TcpStream, frame: &Frame) {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).expect("sendable");
    std::io::Write::write_all(stream, &bytes).expect("written");
}

fn hears(stream: &mut std::net::TcpStream, frame: &Frame) {
    let mut expected = Vec::new();
    encode(frame, &mut expected).expect("sendable");
    let mut heard = vec![0; expected.len()];
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    std::io::Read::read_exact(stream, &mut heard).expect("said on this connection");
    assert_eq!(heard, expected);
}

/// Waits until the other end of `stream` has been closed. Returns whether it was.
fn is_over(stream: &mut std::net::TcpStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    let mut rest = Vec::new();
    match std::io::Read::read_to_end(stream, &mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A TCP node whose peers are plain sockets, and the address at which it listens.
fn lone(name: NodeId) -> (Node, SocketAddr) {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = SocketSettings {
        pauses: false,
        pool: Pool::new(),
        same_host: SameHost::Tcp,
        security: Security::Insecure,
        limits: Limits::default(),
    };
    let (transport, waiter, address) = listen(any_port, settings).expect("a free port");
    (Node { name, transport: Box::new(transport), waiter: Box::new(waiter) }, address)
}

/// A worker that has called a server, the worker's address, and the server's end of the connection.
fn one_that_called() -> (Node, SocketAddr, std::net::TcpStream) {
    let server = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let (mut worker, address) = lone(ONE);
    let at = server.local_addr().expect("an address").to_string();
    worker.transport.know(&[Member { node: SERVER, address: at, binding: None }]);
    worker.send(heartbeat(ONE, SERVER, 1));
    worker.transport.flush();
    let (called, _) = server.accept().expect("called");
    (worker, address, called)
}

/// A node calls only when it has no connection left. If the accepting end never learned that the
/// older connection broke, that connection would look alive for ever.
#[test]
fn a_node_that_calls_anew_replaces_its_older_connection_at_once() {
    let (mut server, address) = lone(SERVER);
    let mut older = call(address, &heartbeat(ONE, SERVER, 1));
    assert_eq!(server.frames(1)[0].head.number, 1);
    let mut other = call(address, &heartbeat(TWO, SERVER, 2));
    assert_eq!(server.frames(1)[0].head.number, 2);
    let mut newer = call(address, &heartbeat(ONE, SERVER, 3));
    let events = server.events_until(|events| events.len() >= 2);
    assert!(
        events.iter().any(|event| matches!(event, TransportEvent::Frame(frame) if frame.head.number == 3)),
        "{events:?}"
    );
    assert!(events.iter().any(|event| matches!(event, TransportEvent::Disconnected(ONE))), "{events:?}");
    assert!(is_over(&mut older), "the older connection is still there");
    // The newer connection works, and so does the other worker's.
    for (to, stream) in [(ONE, &mut newer), (TWO, &mut other)] {
        let answer = heartbeat(SERVER, to, 4);
        server.send(answer.clone());
        server.transport.flush();
        hears(stream, &answer);
    }
}

#[test]
fn a_called_node_that_answered_and_then_calls_replaces_the_first_connection() {
    let (mut worker, address, mut older) = one_that_called();
    say(&mut older, &heartbeat(SERVER, ONE, 2));
    assert_eq!(worker.frames(1)[0].head.number, 2);
    let _newer = call(address, &heartbeat(SERVER, ONE, 3));
    let events = worker.events_until(|events| events.len() >= 2);
    assert!(events.iter().any(|event| matches!(event, TransportEvent::Disconnected(SERVER))), "{events:?}");
    assert!(is_over(&mut older), "the older connection is still there");
}

macro_rules! conform {
    ($transport:ident, $fixture:ident: $($rule:ident),* $(,)?) => {
        mod $transport {
            $(#[test]
            fn $rule() {
                super::$rule::<super::$fixture>();
            })*
        }
    };
    ($($transport:ident: $fixture:ident),*) => {$(
        conform!($transport, $fixture:
            frames_arrive_whole_and_in_order,
            the_largest_part_arrives_intact,
            many_small_frames_arrive_in_order,
            both_directions_at_once_do_not_block_each_other,
            every_node_can_send_to_every_other_node,
            frames_to_an_unknown_node_are_dropped,
            wait_returns_on_a_wake_an_arrival_or_its_timeout,
            an_ended_node_is_reported_once,
            traffic_counts_agree_at_both_ends,
        );
    )*};
}
conform!(local: Local, tcp: Tcp, tls: Tls, shared: Shared, tls_shared: TlsShared);
