//! The frame: a fixed header that every message carries alike, the message's body, then its
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
//! Integers are little-endian. The body is at most [`MAX_BODY_BYTES`] long, a payload at most one
//! part.

use crate::{Message, Payload};
use std::fmt;
use types::{Clock, NodeId, PART_BYTES, PlanNumber, Source};
use xxhash_rust::xxh3::xxh3_64;

/// The version of this format. Peers of another version are refused.
pub const VERSION: u16 = 5;
/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 88;
/// The longest body that is accepted: a plan with 100,000 members fits.
pub const MAX_BODY_BYTES: usize = 4 << 20;
const MAGIC: [u8; 4] = *b"SLKW";
const CHECKED: usize = 80;

/// The codecs a payload went through, in order; zero means none follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecPipeline(pub [u8; 8]);

/// Which stage of its route a frame is in: 0 is the way from a worker to a shard and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage(pub u8);

/// What every frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Who sends it.
    pub from: NodeId,
    /// Whom it is for.
    pub to: NodeId,
    /// The plan the sender goes by.
    pub plan: PlanNumber,
    /// Whose update it is part of.
    pub source: Source,
    /// Its number among that source's messages to the shard; 0 where it is not part of a stream.
    pub number: u64,
    /// From a worker: its clock. From a shard: its frontier.
    pub clock: Clock,
    /// How many examples the shard has not yet been told of.
    pub examples: u64,
    /// What the payloads went through.
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

/// One message on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// What every frame carries.
    pub head: Head,
    /// What this one says.
    pub message: Message,
}

/// Why bytes are not a frame. The connection they came on is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// They do not start like one: something else is talking to this port.
    NotSlackwater,
    /// The peer speaks another version.
    Version {
        /// Theirs.
        theirs: u16,
    },
    /// A length is beyond what any message needs.
    TooLong {
        /// What is too long.
        what: &'static str,
        /// How long it says it is.
        bytes: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// The check does not match: the bytes were damaged.
    Damaged,
    /// The connection ended in the middle of a frame.
    Truncated,
    /// Well framed, but no message.
    Malformed(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSlackwater => write!(f, "the peer does not speak Slackwater; is this the right port?"),
            Self::Version { theirs } => write!(
                f,
                "the peer speaks version {theirs} of the protocol and this is version {VERSION}; run the same release everywhere"
            ),
            Self::TooLong { what, bytes, most } => write!(f, "{what} of {bytes} bytes is beyond the {most} allowed"),
            Self::Truncated => write!(f, "the connection ended in the middle of a frame"),
            Self::Damaged => write!(f, "a frame was damaged on the way"),
            Self::Malformed(what) => write!(f, "a malformed message: {what}"),
        }
    }
}

impl std::error::Error for WireError {}

/// Appends the header and body of `frame` to `out`. The payloads follow on the wire as they are.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
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

/// Puts the right check into the bytes of a header and a body, whatever else they say. For tests of
/// what stands behind it.
#[doc(hidden)]
pub fn seal(bytes: &mut [u8]) {
    let Some((header, body)) = bytes.split_at_mut_checked(HEADER_BYTES) else { return };
    let check = check(&header[..CHECKED], body);
    header[CHECKED..].copy_from_slice(&check.to_le_bytes());
}

fn check(header: &[u8], body: &[u8]) -> u64 {
    xxh3_64(header) ^ xxh3_64(body).rotate_left(1)
}

/// A header that has been looked at far enough to know how many bytes follow it.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; HEADER_BYTES],
    /// Bytes of the body.
    pub body: usize,
    /// Bytes of the payloads.
    pub payloads: [usize; 2],
}

impl Header {
    /// Reads the fixed part. Refuses before anything of the announced size is allocated.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[..4] != MAGIC {
            return Err(WireError::NotSlackwater);
        }
        let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
        if theirs != VERSION {
            return Err(WireError::Version { theirs });
        }
        let length = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        let header = Self { bytes: *bytes, body: length(8), payloads: [length(12), length(16)] };
        let limits = [
            ("a body", header.body, MAX_BODY_BYTES),
            ("a key list", header.payloads[0], PART_BYTES),
            ("a part", header.payloads[1], PART_BYTES),
        ];
        for (what, found, most) in limits {
            if found > most {
                return Err(WireError::TooLong { what, bytes: found as u64, most: most as u64 });
            }
        }
        Ok(header)
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// The frame that a header, a body and payloads make together.
pub fn decode(header: &Header, body: &[u8], payloads: [Payload; 2]) -> Result<Frame, WireError> {
    if check(&header.bytes[..CHECKED], body) != header.word(CHECKED) {
        return Err(WireError::Damaged);
    }
    let node = |shifted: u64| NodeId::from_bits(shifted as u32).ok_or(WireError::Malformed("a name that is no node's"));
    let parties = header.word(20);
    if header.bytes[28..32] != [0; 4] {
        return Err(WireError::Malformed("something where nothing is defined"));
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
        encode(frame, &mut bytes);
        let header = Header::parse(bytes[..HEADER_BYTES].try_into().expect("a header"))?;
        let payloads = frame.message.payloads().map(Clone::clone);
        assert_eq!(header.payloads, [payloads[0].len(), payloads[1].len()]);
        decode(&header, &bytes[HEADER_BYTES..], payloads)
    }

    #[test]
    fn a_frame_survives_the_wire_with_every_field() {
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
    fn any_damaged_byte_of_header_or_body_is_noticed() {
        let frame = push();
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
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
    fn lengths_beyond_reason_are_refused_before_memory_is_taken() {
        let mut bytes = Vec::new();
        encode(&push(), &mut bytes);
        let mut header: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("a header");
        for at in [8, 12, 16] {
            let kept = header;
            header[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert!(matches!(Header::parse(&header), Err(WireError::TooLong { .. })));
            header = kept;
        }
    }

    #[test]
    fn a_peer_of_another_version_is_told_apart_from_garbage() {
        let mut bytes = Vec::new();
        encode(&push(), &mut bytes);
        let mut header: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("a header");
        header[4] = 9;
        assert_eq!(Header::parse(&header).err(), Some(WireError::Version { theirs: 9 }));
        header[0] = b'G';
        assert_eq!(Header::parse(&header).err(), Some(WireError::NotSlackwater));
    }

    #[test]
    fn a_frame_has_one_spelling() {
        let head = Head::plain(NodeId::Worker(0), NodeId::Coordinator);
        let mut bytes = Vec::new();
        encode(&Frame { head, message: Message::Control(Control::Heartbeat) }, &mut bytes);
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
    fn a_known_list_travels_without_its_keys() {
        let keys = Keys::distinct(Placement::Spread, &[1, 2, 3]).slice(1..3);
        assert!(matches!(keys.by_signature(), KeyPart::Known { start: 1, count: 2, .. }));
        let KeyPart::List { positions, start: 1, .. } = keys.in_full() else { panic!("spelt out") };
        assert_eq!(positions.len(), 16);
    }
}
