//! The simulated network: it encodes every frame to bytes, applies the faults of [`Faults`], and
//! decodes the frame when it arrives. It can also cut nodes off, cut or slow links, break
//! connections and bound bandwidth.

use crate::faults::{FaultCounts, Faults};
use crate::random::Xoshiro256;
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, Span, Time};
use wire::{
    Frame, HEADER_BYTES, Header, KeyPart, Message, Payload, Pool, Refusal, ResendReason, Signature, decode, encode,
};

/// A reordered frame is delayed by up to this much more, and so is a duplicate.
const OVERTAKEN_BY: Span = Span::from_millis(10);
/// This bit is flipped in the signature of a key list that the shard shall not know.
const FORGOTTEN: u128 = 1 << 127;

/// A frame as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    front: Vec<u8>,
    payloads: [Vec<u8>; 2],
}

impl Packed {
    /// The bytes of a frame.
    #[must_use]
    pub fn new(frame: &Frame) -> Self {
        let mut front = Vec::new();
        encode(frame, &mut front).expect("machines make frames that can be sent");
        Self { front, payloads: frame.message.payloads().map(|payload| payload.bytes().to_vec()) }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.front.len() + self.payloads.iter().map(Vec::len).sum::<usize>()
    }

    /// The frame that the bytes encode. Frames of machines can always be decoded.
    #[must_use]
    pub fn frame(&self) -> Frame {
        let (header, body) = self.front.split_at(HEADER_BYTES);
        let header: &[u8; HEADER_BYTES] = header.try_into().expect("split after the header");
        let header = Header::parse(header).expect("an encoded header can be parsed");
        let lengths = [self.payloads[0].len(), self.payloads[1].len()];
        assert_eq!((header.body, header.payloads), (body.len(), lengths), "the header says how much follows it");
        let pool = Pool::new();
        let payloads: [Payload; 2] = std::array::from_fn(|which| pool.copy(&self.payloads[which]));
        decode(&header, body, payloads).expect("an encoded frame can be decoded")
    }
}

/// From which nodes a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The network loses all frames from and to the node.
    Everybody,
    /// The network loses the frames between the node and the coordinator.
    Coordinator,
}

/// A fault of the link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// The network loses all frames between the two.
    Cut,
    /// The network delays all frames between the two by this much more.
    Slow(Span),
}

/// A frame on its way.
#[derive(Debug)]
pub struct Parcel {
    pub from: NodeId,
    pub to: NodeId,
    packed: Packed,
    /// The number of the connection that carries it.
    connection: u64,
    /// Its number among the frames sent in this direction.
    place: u64,
}

/// One direction between two nodes.
#[derive(Default)]
struct Way {
    /// How many frames were sent.
    sent: u64,
    /// The highest number of a frame that has arrived.
    furthest: u64,
    /// When the last frame in order arrives.
    last_arrival: Time,
}

/// The connection between two nodes.
#[derive(Default)]
struct Connection {
    /// How often it was made anew.
    number: u64,
    broken: bool,
}

/// A fault that lasts for a while. It counts as happened once a frame has met it.
struct Wrong<T> {
    what: T,
    met: bool,
}

impl<T> Wrong<T> {
    fn new(what: T) -> Self {
        Self { what, met: false }
    }

    /// Notes that a frame has met the fault, and counts it the first time.
    fn meet(&mut self, count: &mut u64) {
        *count += u64::from(!std::mem::replace(&mut self.met, true));
    }
}

/// The network between all nodes.
pub struct Network {
    pub faults: Faults,
    pub counts: FaultCounts,
    random: Xoshiro256,
    ways: BTreeMap<(NodeId, NodeId), Way>,
    connections: BTreeMap<(NodeId, NodeId), Connection>,
    /// The changed signatures of key lists that a shard was made to forget.
    forgotten: BTreeSet<u128>,
    /// The nodes that are cut off.
    isolated: BTreeMap<NodeId, Wrong<Isolation>>,
    /// The links with a fault.
    links: BTreeMap<(NodeId, NodeId), Wrong<LinkFault>>,
    /// Links that are down from the first node to the second.
    one_way: BTreeMap<(NodeId, NodeId), Wrong<()>>,
    /// Until when each node is busy sending, if bandwidth is bounded.
    busy: BTreeMap<NodeId, Time>,
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

impl Network {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            faults,
            counts: FaultCounts::default(),
            random: Xoshiro256::new(seed),
            ways: BTreeMap::new(),
            connections: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            isolated: BTreeMap::new(),
            links: BTreeMap::new(),
            one_way: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Cuts a node off, or connects it again.
    pub fn isolate(&mut self, node: NodeId, from: Option<Isolation>) {
        match from {
            Some(isolation) => self.isolated.insert(node, Wrong::new(isolation)),
            None => self.isolated.remove(&node),
        };
    }

    /// Gives a link a fault, or takes it away.
    pub fn fault_link(&mut self, one: NodeId, other: NodeId, fault: Option<LinkFault>) {
        match fault {
            Some(fault) => self.links.insert(pair(one, other), Wrong::new(fault)),
            None => self.links.remove(&pair(one, other)),
        };
    }

    /// Cuts the link from one node to another, for good. Frames the other way still pass.
    pub fn cut_one_way(&mut self, from: NodeId, to: NodeId) {
        self.one_way.insert((from, to), Wrong::new(()));
    }

    /// Whether a link of a node is cut in one direction for good.
    pub fn has_one_way_link(&self, node: NodeId) -> bool {
        self.one_way.keys().any(|(from, to)| *from == node || *to == node)
    }

    /// Whether a fault keeps a frame of `one` from `other`. Counts every such fault.
    fn stops(&mut self, one: NodeId, other: NodeId) -> bool {
        let mut stopped = false;
        if let Some(fault) = self.one_way.get_mut(&(one, other)) {
            fault.meet(&mut self.counts.one_way);
            stopped = true;
        }
        if let Some(fault) = self.links.get_mut(&pair(one, other)).filter(|fault| fault.what == LinkFault::Cut) {
            fault.meet(&mut self.counts.cut);
            stopped = true;
        }
        for (node, from) in [(one, other), (other, one)] {
            let Some(isolation) = self.isolated.get_mut(&node) else { continue };
            if isolation.what == Isolation::Everybody || from == NodeId::Coordinator {
                isolation.meet(&mut self.counts.isolated);
                stopped = true;
            }
        }
        stopped
    }

    /// The further delay, in nanoseconds, of a slow link.
    fn slowness(&mut self, from: NodeId, to: NodeId) -> u64 {
        let Some(fault) = self.links.get_mut(&pair(from, to)) else { return 0 };
        let LinkFault::Slow(longer) = fault.what else { return 0 };
        fault.meet(&mut self.counts.slowed);
        longer.0
    }

    /// Sends a frame. Returns its arrivals: none if it is lost, two if it is duplicated.
    pub fn send(&mut self, now: Time, mut frame: Frame) -> Vec<(Time, Parcel)> {
        let from = frame.head.from;
        let to = frame.head.to;
        if self.stops(from, to) {
            return Vec::new();
        }
        self.forget_lists(&mut frame);
        let connection = self.connections.entry(pair(from, to)).or_default();
        if connection.broken {
            return Vec::new();
        }
        let number = connection.number;
        let faults = self.faults;
        if self.random.chance(faults.loss) {
            self.counts.lost += 1;
            return Vec::new();
        }
        let spread = faults.most_delay.0.saturating_sub(faults.least_delay.0);
        let delay =
            self.slowness(from, to) + faults.least_delay.0 + if spread > 0 { self.random.below(spread + 1) } else { 0 };
        self.counts.delayed += u64::from(delay > faults.least_delay.0);
        let packed = Packed::new(&frame);
        let now = self.departure(now, from, packed.bytes());
        let way = self.ways.entry((from, to)).or_default();
        way.sent += 1;
        let place = way.sent;
        let arrival = if self.random.chance(faults.reordering) {
            now + Span(delay + self.random.below(OVERTAKEN_BY.0))
        } else {
            way.last_arrival = way.last_arrival.max(now + Span(delay));
            way.last_arrival
        };
        let parcel = |packed| Parcel { from, to, packed, connection: number, place };
        let mut arrivals = Vec::new();
        if self.random.chance(faults.duplication) {
            self.counts.duplicated += 1;
            arrivals.push((arrival + Span(self.random.below(OVERTAKEN_BY.0)), parcel(packed.clone())));
        }
        arrivals.push((arrival, parcel(packed)));
        arrivals
    }

    /// When the last of these bytes has left its sender.
    fn departure(&mut self, now: Time, from: NodeId, bytes: usize) -> Time {
        let Some(rate) = self.faults.bytes_per_second else { return now };
        let busy = self.busy.entry(from).or_default();
        *busy = now.max(*busy) + Span(bytes as u64 * 1_000_000_000 / rate.max(1));
        *busy
    }

    /// The frame of a parcel that arrives. None if a fault stops it or its connection has broken.
    pub fn arrive(&mut self, parcel: &Parcel) -> Option<Frame> {
        if self.stops(parcel.from, parcel.to) {
            return None;
        }
        let connection = self.connections.entry(pair(parcel.from, parcel.to)).or_default();
        if connection.broken || connection.number != parcel.connection {
            return None;
        }
        let way = self.ways.entry((parcel.from, parcel.to)).or_default();
        self.counts.reordered += u64::from(parcel.place < way.furthest);
        way.furthest = way.furthest.max(parcel.place);
        Some(parcel.packed.frame())
    }

    /// Breaks a random connection with the probability of [`Faults::disconnection`]. Returns which
    /// one, and for how long.
    pub fn break_one(&mut self) -> Option<((NodeId, NodeId), Span)> {
        if !self.random.chance(self.faults.disconnection) || self.connections.is_empty() {
            return None;
        }
        let which = self.random.below(self.connections.len() as u64) as usize;
        let (pair, connection) = self.connections.iter_mut().nth(which)?;
        if connection.broken {
            return None;
        }
        connection.broken = true;
        self.counts.disconnected += 1;
        Some((*pair, Span(1 + self.random.below(10_000_000))))
    }

    /// Connects two nodes again, by a new connection.
    pub fn mend(&mut self, (one, other): (NodeId, NodeId)) {
        let connection = self.connections.entry(pair(one, other)).or_default();
        *connection = Connection { number: connection.number + 1, broken: false };
        for way in [(one, other), (other, one)] {
            let way = self.ways.entry(way).or_default();
            way.furthest = way.sent;
            way.last_arrival = Time(0);
        }
    }

    /// Changes the signature of a key list on its way to a shard into one that the shard does not
    /// know, and restores it when the shard reports that.
    fn forget_lists(&mut self, frame: &mut Frame) {
        if self.faults.forgetting == 0.0 {
            return;
        }
        match &mut frame.message {
            Message::Push(wire::Push {
                keys: KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. },
                ..
            })
            | Message::Pull(wire::Pull {
                keys: KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. },
                ..
            }) if self.random.chance(self.faults.forgetting) => {
                *signature = Signature(signature.0 ^ FORGOTTEN);
                self.forgotten.insert(signature.0);
                self.counts.forgotten += 1;
            }
            Message::Resend(wire::Resend { reason: ResendReason::UnknownKeys { signature }, .. })
            | Message::PullRefused(wire::PullRefused { refusal: Refusal::UnknownKeys { signature }, .. })
                if self.forgotten.contains(signature) =>
            {
                *signature ^= FORGOTTEN;
            }
            _ => {}
        }
    }
}
