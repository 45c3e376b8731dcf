//! The frame: a fixed header with the same fields for every message, the message's body, then its
//! payloads.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0–3 | magic `SLKW` |
//! | 4–5 | version |
//! | 6 | kind of message |
//! | 7 | stage of the route |
//! | 8–11 | bytes of the body |
//! | 12–15, 16–19 | bytes of the two payloads: positions, values |
//! | 20–23, 24–27 | sender, receiver |
//! | 28–31 | zero |
//! | 32–39 | plan |
//! | 40–47, 48–55 | identity: source, number |
//! | 56–63 | clock |
//! | 64–71 | number of examples |
//! | 72–79 | codec pipeline |
//! | 80–87 | check over the 80 bytes above and the body |
//!
//! Integers are little-endian. The body has at most [`MAX_BODY_BYTES`], and a payload at most the
//! size of a part.

use crate::{Message, Payload};
use std::fmt;
use types::{Clock, NodeId, PART_BYTES, PlanNumber, Source};
use xxhash_rust::xxh3::xxh3_64;

/// The version of this format. A node refuses peers of another version.
pub const VERSION: u16 = 7;
/// The size of the fixed header in bytes.
pub const HEADER_BYTES: usize = 88;
/// The largest accepted body in bytes: a plan with 100,000 members fits.
pub const MAX_BODY_BYTES: usize = 4 << 20;
const MAGIC: [u8; 4] = *b"SLKW";
/// The bytes of the header that the check covers.
const CHECKED: usize = 80;
const INVALID_NODE: WireError = WireError::Malformed("a node name that is not valid");

/// The numbers of the formats that a payload went through, in order, filled up with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecPipeline(pub [u8; 8]);

/// The stage of its route that a frame is in. 0 is between a worker and a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage(pub u8);

/// The fields that every frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The plan that the sender has adopted.
    pub plan: PlanNumber,
    /// The incarnation of the worker that sends it. From a coordinator, its term.
    pub source: Source,
    /// The sequence number in the source's stream to the shard; 0 outside a stream. In a heartbeat,
    /// the sender's own number, which the answer repeats.
    pub number: u64,
    /// From a worker, its clock. From a shard, its frontier.
    pub clock: Clock,
    /// The number of examples that the worker has not reported to the shard before.
    pub examples: u64,
    /// The formats of the encoded payloads.
    pub codecs: CodecPipeline,
    /// The stage of the route.
    pub stage: Stage,
}

impl Head {
    /// A head for a message outside any stream.
    #[must_use]
    pub fn plain(from: NodeId, to: NodeId) -> Self {
        Self {
            from,
            to,
            plan: PlanNumber(0),
            source: Source(0),
            number: 0,
            clock: Clock(0),
            examples: 0,
            codecs: CodecPipeline::default(),
            stage: Stage::default(),
        }
    }
}

/// A message with its head.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The fields that every frame has.
    pub head: Head,
    /// The message.
    pub message: Message,
}

/// Why bytes are not a frame. The receiver closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes do not start with the magic: another program uses this port.
    NotSlackwater,
    /// The bytes are a TLS record: the peer is secured and this process is not.
    Tls,
    /// The peer has another version of the protocol.
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// A length in the header exceeds its limit.
    TooLong {
        /// What the length is of.
        what: &'static str,
        /// The announced bytes.
        bytes: u64,
        /// The allowed bytes.
        most: u64,
    },
    /// The check does not match: the bytes were damaged on the way.
    Damaged,
    /// The connection ended in the middle of a frame.
    Truncated,
    /// The frame is intact, but its content is not a message. Says what is wrong.
    Malformed(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSlackwater => write!(f, "the peer does not speak Slackwater; is this the right port?"),
            Self::Tls => write!(
                f,
                "the peer speaks TLS, and this process is insecure: give it the token file of the run (--token-file)"
            ),
            Self::Version { theirs } => write!(
                f,
                "the peer speaks version {theirs} of the protocol and this is version {VERSION}; run the same release everywhere"
            ),
            Self::TooLong { what, bytes, most } => {
                write!(f, "{what} of {bytes} bytes exceeds the limit of {most} bytes")
            }
            Self::Truncated => write!(f, "the connection ended in the middle of a frame"),
            Self::Damaged => write!(f, "a frame was damaged on the way"),
            Self::Malformed(what) => write!(f, "a malformed message: {what}"),
        }
    }
}

impl std::error::Error for WireError {}

impl WireError {
    /// What bytes without the magic at their start are.
    #[must_use]
    pub fn of_foreign(bytes: &[u8]) -> Self {
        // A TLS record begins with its type, an alert or a part of a handshake, and version 3.x.
        if matches!(bytes, [0x15 | 0x16, 3, ..]) { Self::Tls } else { Self::NotSlackwater }
    }
}

/// Appends the header and body of `frame` to `out`. The transport sends the payloads after them.
/// Fails, and appends nothing, if [`decode`] would refuse the frame.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    encode_unchecked(frame, out);
    let body = out.len() - start - HEADER_BYTES;
    let acceptable = check_lengths(body, frame.message.payloads().map(Payload::len))
        .and_then(|()| frame.message.check_keys())
        .and_then(|()| [frame.head.from, frame.head.to].into_iter().try_for_each(check_node));
    if acceptable.is_err() {
        out.truncate(start);
    }
    acceptable
}

/// As [`encode`], also for frames that [`decode`] refuses: for hostile peers of tests.
#[doc(hidden)]
pub fn encode_unchecked(frame: &Frame, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    frame.message.put(out);
    let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
    let [positions, values] = frame.message.payloads();
    let head = &frame.head;
    let mut at = 0;
    let mut write = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    write(&MAGIC);
    write(&VERSION.to_le_bytes());
    write(&[frame.message.kind(), head.stage.0]);
    write(&(body.len() as u32).to_le_bytes());
    write(&(positions.len() as u32).to_le_bytes());
    write(&(values.len() as u32).to_le_bytes());
    write(&head.from.to_bits().to_le_bytes());
    write(&head.to.to_bits().to_le_bytes());
    write(&[0; 4]);
    write(&head.plan.0.to_le_bytes());
    write(&head.source.0.to_le_bytes());
    write(&head.number.to_le_bytes());
    write(&head.clock.0.to_le_bytes());
    write(&head.examples.to_le_bytes());
    write(&head.codecs.0);
    seal(&mut out[start..]);
}

/// Refuses lengths of a body and of payloads that a frame cannot have.
fn check_lengths(body: usize, [positions, values]: [usize; 2]) -> Result<(), WireError> {
    let limits =
        [("a body", body, MAX_BODY_BYTES), ("a key list", positions, PART_BYTES), ("a part", values, PART_BYTES)];
    match limits.into_iter().find(|(_, found, most)| found > most) {
        Some((what, found, most)) => Err(WireError::TooLong { what, bytes: found as u64, most: most as u64 }),
        None => Ok(()),
    }
}

/// Refuses a name whose number does not fit into its bits.
fn check_node(node: NodeId) -> Result<(), WireError> {
    if NodeId::from_bits(node.to_bits()) == Some(node) { Ok(()) } else { Err(INVALID_NODE) }
}

/// Writes a matching check into a header, for tests that damage frames and must get past the check.
#[doc(hidden)]
pub fn seal(bytes: &mut [u8]) {
    let Some((header, body)) = bytes.split_at_mut_checked(HEADER_BYTES) else { return };
    let check = check(&header[..CHECKED], body);
    header[CHECKED..].copy_from_slice(&check.to_le_bytes());
}

fn check(header: &[u8], body: &[u8]) -> u64 {
    xxh3_64(header) ^ xxh3_64(body).rotate_left(1)
}

/// A header of which the lengths have been read and checked.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; HEADER_BYTES],
    /// The bytes of the body.
    pub body: usize,
    /// The bytes of the two payloads.
    pub payloads: [usize; 2],
}

impl Header {
    /// Reads magic, version and lengths. Refuses excessive lengths before the receiver allocates
    /// memory.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[..4] != MAGIC {
            return Err(WireError::of_foreign(bytes));
        }
        let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
        if theirs != VERSION {
            return Err(WireError::Version { theirs });
        }
        let length = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        let header = Self { bytes: *bytes, body: length(8), payloads: [length(12), length(16)] };
        check_lengths(header.body, header.payloads)?;
        Ok(header)
    }

    /// The bytes that follow the header.
    #[must_use]
    pub fn following(&self) -> usize {
        self.body + self.payloads[0] + self.payloads[1]
    }

    /// The sender that the frame names; `None` if no node has this name.
    #[must_use]
    pub fn sender(&self) -> Option<NodeId> {
        NodeId::from_bits(self.word(20) as u32)
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// Decodes a frame from its header, body and payloads.
pub fn decode(header: &Header, body: &[u8], payloads: [Payload; 2]) -> Result<Frame, WireError> {
    if check(&header.bytes[..CHECKED], body) != header.word(CHECKED) {
        return Err(WireError::Damaged);
    }
    let node = |shifted: u64| NodeId::from_bits(shifted as u32).ok_or(INVALID_NODE);
    let parties = header.word(20);
    if header.bytes[28..32] != [0; 4] {
        return Err(WireError::Malformed("a reserved field that is not zero"));
    }
    let mut codecs = [0; 8];
    codecs.copy_from_slice(&header.bytes[72..80]);
    let head = Head {
        from: node(parties & 0xFFFF_FFFF)?,
        to: node(parties >> 32)?,
        plan: PlanNumber(header.word(32)),
        source: Source(header.word(40)),
        number: header.word(48),
        clock: Clock(header.word(56)),
        examples: header.word(64),
        codecs: CodecPipeline(codecs),
        stage: Stage(header.bytes[7]),
    };
    let message = Message::get(header.bytes[6], body, payloads)?;
    Ok(Frame { head, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Control, KeyPart, Keys, Pool, Push, Writes};
    use types::{NumberType, Placement, ShardId, TableId, TableSpec};

    fn push() -> Frame {
        let keys = Keys::distinct(Placement::Spread, &[1, 2, 3]).slice(0..3);
        let values = Pool::new().copy(&[1f32, 2.0, 3.0]);
        let mut head = Head::plain(NodeId::Worker(1), NodeId::Server(0));
        head.plan = PlanNumber(3);
        head.source = Source(77);
        head.number = 9;
        head.clock = Clock(4);
        head.examples = 100;
        let push = Push {
            table: TableId(5),
            shard: ShardId(1),
            settled: 2,
            number: NumberType::F32,
            writes: Writes::Gradients { lease: Some(crate::LeasedPart { set: 1, lease: 12, part: 3 }) },
            keys: keys.in_full(),
            values,
        };
        Frame { head, message: Message::Push(push) }
    }

    fn through_bytes(frame: &Frame) -> Result<Frame, WireError> {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes).expect("sendable");
        let header = Header::parse(bytes[..HEADER_BYTES].try_into().expect("a header"))?;
        let payloads = frame.message.payloads().map(Clone::clone);
        assert_eq!(header.payloads, [payloads[0].len(), payloads[1].len()]);
        decode(&header, &bytes[HEADER_BYTES..], payloads)
    }

    #[test]
    fn frames_round_trip_with_every_field() {
        let frame = push();
        assert_eq!(through_bytes(&frame), Ok(frame.clone()));
        let Message::Push(push) = frame.message else { panic!("a push") };
        let frame = Frame { message: Message::Push(Push { writes: Writes::Rows, ..push }), ..frame };
        assert_eq!(through_bytes(&frame), Ok(frame));
        let spec = TableSpec::dense("layer", 10, 3);
        let set = Err("other files".to_owned());
        let opened = Control::LeasesOpened { name: "train".into(), set };
        for control in [Control::MakeTable { spec }, opened] {
            let message = Message::Control(control);
            let frame = Frame { head: Head::plain(NodeId::Worker(0), NodeId::Coordinator), message };
            assert_eq!(through_bytes(&frame), Ok(frame));
        }
    }

    #[test]
    fn frames_with_any_damaged_byte_are_refused() {
        let frame = push();
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes).expect("sendable");
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            let result = Header::parse(damaged[..HEADER_BYTES].try_into().expect("a header")).and_then(|header| {
                let body = &damaged[HEADER_BYTES..];
                decode(&header, body, frame.message.payloads().map(Clone::clone))
            });
            assert!(result.is_err(), "byte {index}");
        }
    }

    #[test]
    fn headers_with_excessive_lengths_are_refused_before_allocation() {
        let mut bytes = Vec::new();
        encode(&push(), &mut bytes).expect("sendable");
        let mut header: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("a header");
        for at in [8, 12, 16] {
            let kept = header;
            header[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert!(matches!(Header::parse(&header), Err(WireError::TooLong { .. })));
            header = kept;
        }
    }

    #[test]
    fn headers_of_another_version_are_distinguished_from_garbage() {
        let mut bytes = Vec::new();
        encode(&push(), &mut bytes).expect("sendable");
        let mut header: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("a header");
        header[4] = 9;
        assert_eq!(Header::parse(&header).err(), Some(WireError::Version { theirs: 9 }));
        header[0] = b'G';
        assert_eq!(Header::parse(&header).err(), Some(WireError::NotSlackwater));
    }

    #[test]
    fn frames_have_one_encoding() {
        let head = Head::plain(NodeId::Worker(0), NodeId::Coordinator);
        let mut bytes = Vec::new();
        encode(&Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) }, &mut bytes)
            .expect("sendable");
        // (what, a byte of the header, payloads that come with it)
        let payload = |bytes: usize| Payload::new(vec![0u8; bytes]);
        let cases = [
            ("an undefined field", 28, [payload(0), payload(0)]),
            ("positions that no control has", 12, [payload(8), payload(0)]),
            ("values that no control has", 16, [payload(0), payload(8)]),
        ];
        for (what, at, payloads) in cases {
            let mut other = bytes.clone();
            other[at] = 8;
            seal(&mut other);
            let header = Header::parse(other[..HEADER_BYTES].try_into().expect("a header")).expect("a header");
            let result = decode(&header, &other[HEADER_BYTES..], payloads);
            assert!(matches!(result, Err(WireError::Malformed(_))), "{what}: {result:?}");
        }
    }

    #[test]
    fn known_key_lists_are_sent_without_keys() {
        let keys = Keys::distinct(Placement::Spread, &[1, 2, 3]).slice(1..3);
        assert!(matches!(keys.by_signature(), KeyPart::Known { start: 1, count: 2, .. }));
        let KeyPart::List { positions, start: 1, .. } = keys.in_full() else { panic!("in full") };
        assert_eq!(positions.len(), 16);
    }
}
