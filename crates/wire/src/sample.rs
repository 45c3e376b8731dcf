//! Random values of every message, for a hostile peer in `bench siege` and in fuzz targets.
//!
//! The macros that list the fields of a message for the wire format make its samples, too. So a new
//! kind of message is among them by itself. Numbers are mostly small, so that they often name a
//! node, a table or a shard that exists, or else near an end of their range.

use crate::keys::{KeyPart, Signature};
use crate::{Control, Frame, Head, Message, Payload, Pool};
use types::{
    Binding, CertificateName, Clock, Combine, KeyFingerprint, NodeId, PlanNumber, Position, PositionRange, Reduce,
    Role, Setting, ShardId, Source, Span, SplitMix64, TableId, Time, WorkerId,
};

/// Small numbers are below this.
const SMALL: u64 = 12;
/// Most items of a list, and most bytes of a payload of random length.
const ITEMS: u64 = 4;
const PAYLOAD_BYTES: u64 = 200;
/// The length of a long text: longer than any address or name should be.
const LONG_TEXT: usize = 1_000;

/// A type with random values.
pub trait Sample: Sized {
    /// A random value.
    fn sample(random: &mut SplitMix64) -> Self;
}

/// An enum with random values of each variant.
pub(crate) trait SampleEach: Sized + 'static {
    /// A function for each variant, which makes a random value of it.
    const MAKERS: &'static [fn(&mut SplitMix64) -> Self];

    /// A random value of each variant.
    fn sample_of_each(random: &mut SplitMix64) -> Vec<Self> {
        Self::MAKERS.iter().map(|make| make(random)).collect()
    }
}

/// One message of every kind that the wire format has, with random content.
///
/// ```
/// use types::SplitMix64;
///
/// let messages = wire::sample_of_each_kind(&mut SplitMix64::new(1));
/// assert!(messages.iter().any(|message| message.kind_name() == "ReplicaChunk"));
/// assert!(messages.iter().any(|message| message.kind_name() == "AskStatus"));
/// ```
#[must_use]
pub fn sample_of_each_kind(random: &mut SplitMix64) -> Vec<Message> {
    let mut messages = Message::sample_of_each_apart_from_control(random);
    messages.extend(Control::sample_of_each(random).into_iter().map(Message::Control));
    messages
}

/// A frame with this message and random fields beside it.
#[must_use]
pub fn sample_frame(message: Message, from: NodeId, to: NodeId, random: &mut SplitMix64) -> Frame {
    let mut head = Head::plain(from, to);
    head.plan = Sample::sample(random);
    head.source = Sample::sample(random);
    head.number = Sample::sample(random);
    head.clock = Sample::sample(random);
    head.examples = Sample::sample(random);
    if random.below(4) == 0 {
        head.codecs.0[0] = random.draw() as u8;
        head.codecs.0[1] = random.below(SMALL) as u8;
    }
    head.stage.0 = if random.below(8) == 0 { random.draw() as u8 } else { 0 };
    Frame { head, message }
}

impl Sample for u64 {
    fn sample(random: &mut SplitMix64) -> Self {
        match random.below(10) {
            0..=6 => random.below(SMALL),
            7 => Self::MAX - random.below(3),
            8 => Self::MAX / 2 + random.below(3),
            _ => random.draw(),
        }
    }
}

impl Sample for u32 {
    fn sample(random: &mut SplitMix64) -> Self {
        u64::sample(random) as Self
    }
}

impl Sample for u8 {
    fn sample(random: &mut SplitMix64) -> Self {
        u64::sample(random) as Self
    }
}

impl Sample for u128 {
    fn sample(random: &mut SplitMix64) -> Self {
        Self::from(u64::sample(random))
    }
}

impl Sample for f64 {
    fn sample(random: &mut SplitMix64) -> Self {
        [0.0, 0.5, 1.0, -1.0, Self::NAN, Self::INFINITY, Self::MAX, Self::MIN_POSITIVE][random.below(8) as usize]
    }
}

impl Sample for bool {
    fn sample(random: &mut SplitMix64) -> Self {
        random.below(2) == 0
    }
}

impl Sample for KeyFingerprint {
    fn sample(random: &mut SplitMix64) -> Self {
        Self([random.draw() as u8; 32])
    }
}

impl Sample for CertificateName {
    fn sample(random: &mut SplitMix64) -> Self {
        loop {
            let role = Role::ALL[random.below(Role::ALL.len() as u64) as usize];
            if let Ok(name) = Self::new("job", role, &format!("host-{}", random.below(SMALL))) {
                return name;
            }
        }
    }
}

impl Sample for Binding {
    fn sample(random: &mut SplitMix64) -> Self {
        match random.below(2) {
            0 => Self::Key(Sample::sample(random)),
            _ => Self::Certificate(Sample::sample(random)),
        }
    }
}

impl Sample for NodeId {
    fn sample(random: &mut SplitMix64) -> Self {
        let index = u32::sample(random) >> 2;
        [Self::Coordinator, Self::Server(index), Self::Worker(index)][random.below(3) as usize]
    }
}

impl Sample for String {
    fn sample(random: &mut SplitMix64) -> Self {
        match random.below(8) {
            0 => Self::new(),
            1 => "\u{202e}\u{1b}[2Jé\0".to_owned(),
            2 => "x".repeat(LONG_TEXT),
            3 => "127.0.0.1:1".to_owned(),
            4 => "/tmp/../etc".to_owned(),
            _ => format!("name {}", random.below(SMALL)),
        }
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(random: &mut SplitMix64) -> Self {
        (0..random.below(ITEMS)).map(|_| T::sample(random)).collect()
    }
}

impl<T: Sample> Sample for Box<T> {
    fn sample(random: &mut SplitMix64) -> Self {
        Self::new(T::sample(random))
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(random: &mut SplitMix64) -> Self {
        bool::sample(random).then(|| T::sample(random))
    }
}

impl<T: Sample, E: Sample> Sample for Result<T, E> {
    fn sample(random: &mut SplitMix64) -> Self {
        if bool::sample(random) { Ok(T::sample(random)) } else { Err(E::sample(random)) }
    }
}

impl<A: Sample, B: Sample> Sample for (A, B) {
    fn sample(random: &mut SplitMix64) -> Self {
        (A::sample(random), B::sample(random))
    }
}

macro_rules! wrappers {
    ($($kind:ident),*) => {$(
        impl Sample for $kind {
            fn sample(random: &mut SplitMix64) -> Self { $kind(Sample::sample(random)) }
        }
    )*};
}
wrappers!(Clock, Position, ShardId, Source, Span, TableId, Time, WorkerId, PlanNumber, Signature);

impl Sample for Combine {
    fn sample(random: &mut SplitMix64) -> Self {
        Option::<Reduce>::sample(random).map_or(Self::Each, Self::Clock)
    }
}

impl Sample for Setting {
    fn sample(random: &mut SplitMix64) -> Self {
        Self::Rate(f64::sample(random))
    }
}

impl Sample for Payload {
    fn sample(random: &mut SplitMix64) -> Self {
        let bytes: Vec<u8> = match random.below(4) {
            0 => Vec::new(),
            1 => (0..random.below(PAYLOAD_BYTES)).map(|_| random.draw() as u8).collect(),
            // Numbers in order: valid positions, and values of any width.
            _ => (0..random.below(SMALL)).flat_map(u64::to_le_bytes).collect(),
        };
        Pool::new().copy(&bytes)
    }
}

impl Sample for KeyPart {
    fn sample(random: &mut SplitMix64) -> Self {
        let signature = Signature::sample(random);
        let start = u64::sample(random);
        let count = u32::sample(random);
        let positions: Vec<u64> = (0..random.below(SMALL)).map(|_| u64::sample(random)).collect();
        let first = Position::sample(random);
        match random.below(6) {
            0 => Self::Run { first, count: Sample::sample(random) },
            1 => Self::List { signature, start, positions: Pool::new().copy(&positions) },
            2 => Self::Known { signature, start, count },
            3 => Self::Packed { signature, start, count, packed: Sample::sample(random) },
            4 => Self::Scan { range: PositionRange { first, last: Sample::sample(random) } },
            // A bit for each of eight keys.
            _ => Self::Chosen { signature, start, count: 8, bits: Pool::new().copy(&[random.draw() as u8]) },
        }
    }
}

/// A key list as it is in a body, with its payload.
pub(crate) fn keys_in_body(random: &mut SplitMix64) -> (Vec<u8>, Option<Payload>) {
    let keys = KeyPart::sample(random);
    let mut body = Vec::new();
    keys.put(&mut body);
    (body, keys.payload().cloned())
}

/// Implements [`Sample`] for a struct: a sample of each field.
macro_rules! sample_fields {
    ($kind:ident { $($field:ident),* }) => {
        impl crate::sample::Sample for $kind {
            fn sample(random: &mut types::SplitMix64) -> Self {
                Self { $($field: crate::sample::Sample::sample(random)),* }
            }
        }
    };
}
pub(crate) use sample_fields;

/// Implements [`Sample`] for a struct with payloads. Takes what `fields_and_payloads` takes.
macro_rules! sample_with_payloads {
    ($kind:ident { $($field:ident),* }, |$input:ident, $payloads:pat_param| { $($rest:tt)* }) => {
        impl crate::sample::Sample for $kind {
            fn sample(random: &mut types::SplitMix64) -> Self {
                loop {
                    let (body, positions) = crate::sample::keys_in_body(random);
                    let positions = positions.unwrap_or_else(|| crate::sample::Sample::sample(random));
                    let $payloads = [positions, crate::sample::Sample::sample(random)];
                    let mut input = crate::field::Reader(&body);
                    let complete = |$input: &mut crate::field::Reader<'_>| -> Result<Self, crate::frame::WireError> {
                        let _: &crate::field::Reader<'_> = $input;
                        Ok(Self { $($field: crate::sample::Sample::sample(random),)* $($rest)* })
                    };
                    if let Ok(sample) = complete(&mut input) {
                        return sample;
                    }
                }
            }
        }
    };
}
pub(crate) use sample_with_payloads;

/// Implements [`Sample`] and [`SampleEach`] for an enum.
macro_rules! sample_variants {
    ($kind:ident { $($variant:ident $({ $($field:ident),* })?),* }) => {
        impl crate::sample::SampleEach for $kind {
            const MAKERS: &'static [fn(&mut types::SplitMix64) -> Self] = &[$(
                |_random| Self::$variant $({ $($field: crate::sample::Sample::sample(_random)),* })?
            ),*];
        }

        impl crate::sample::Sample for $kind {
            fn sample(random: &mut types::SplitMix64) -> Self {
                let makers = <Self as crate::sample::SampleEach>::MAKERS;
                makers[random.below(makers.len() as u64) as usize](random)
            }
        }
    };
}
pub(crate) use sample_variants;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Field, Reader};
    use crate::{HEADER_BYTES, Header, decode, encode};
    use std::collections::BTreeSet;

    fn through_bytes(frame: &Frame) -> Frame {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes).expect("sendable");
        let header = Header::parse(bytes[..HEADER_BYTES].try_into().expect("a header")).expect("a valid header");
        decode(&header, &bytes[HEADER_BYTES..], frame.message.payloads().map(Clone::clone)).expect("a valid frame")
    }

    #[test]
    fn samples_are_well_formed_and_of_every_kind() {
        let mut random = SplitMix64::new(1);
        let mut kinds = BTreeSet::new();
        for _ in 0..200 {
            for message in sample_of_each_kind(&mut random) {
                let from = NodeId::sample(&mut random);
                let frame = sample_frame(message, from, NodeId::Server(0), &mut random);
                kinds.insert(frame.message.kind());
                // Not equal as values: some numbers are NaN.
                let mut bytes = [Vec::new(), Vec::new()];
                encode(&frame, &mut bytes[0]).expect("sendable");
                encode(&through_bytes(&frame), &mut bytes[1]).expect("sendable");
                assert!(bytes[0] == bytes[1], "{frame:?}");
            }
        }
        // A kind that no message has is refused in these words.
        let none = [Payload::EMPTY, Payload::EMPTY];
        let exists = |kind: &u8| {
            let refused = Message::get(*kind, &[], none.clone());
            !matches!(refused, Err(crate::WireError::Malformed("an unknown kind of message")))
        };
        assert_eq!(kinds, (0..=u8::MAX).filter(exists).collect());
    }

    #[test]
    fn sample_has_every_control_message_once() {
        let controls = Control::sample_of_each(&mut SplitMix64::new(2));
        let tag = |control: &Control| {
            let mut bytes = Vec::new();
            control.put(&mut bytes);
            bytes[0]
        };
        let tags: BTreeSet<u8> = controls.iter().map(tag).collect();
        assert_eq!(tags.len(), controls.len());
        let exists = |tag: &u8| {
            let refused = Control::get(&mut Reader(&[*tag]));
            !matches!(refused, Err(crate::WireError::Malformed("an unknown kind of Control")))
        };
        assert_eq!(tags, (0..=u8::MAX).filter(exists).collect());
    }
}
