//! What `encode` takes, `decode` takes: no message of this release is refused at the other end
//! only.

use proptest::prelude::*;
use types::{NodeId, NumberType, PART_BYTES, Position, PositionRange, ShardId, TableId};
use wire::{
    Control, Frame, HEADER_BYTES, Head, Header, KeyPart, MAX_BODY_BYTES, Message, Payload, Push, Signature, WireError,
    Writes, decode, encode,
};

fn node() -> impl Strategy<Value = NodeId> {
    // Names have 30 bits.
    let index = prop_oneof![0..9u32, (1u32 << 30) - 2..(1u32 << 30) + 2, any::<u32>()];
    prop_oneof![Just(NodeId::Coordinator), index.clone().prop_map(NodeId::Server), index.prop_map(NodeId::Worker)]
}

/// Payloads of few bytes, and of about a part.
fn payload() -> impl Strategy<Value = Payload> {
    let bytes = prop_oneof![0..70usize, PART_BYTES - 9..PART_BYTES + 9];
    (bytes, 0..4u8).prop_map(|(bytes, byte)| Payload::new(vec![byte; bytes]))
}

fn keys() -> impl Strategy<Value = KeyPart> {
    let signature = Signature(7);
    prop_oneof![
        (0..9u64, 0..9u64).prop_map(|(first, count)| KeyPart::Run { first: Position(first), count }),
        payload().prop_map(move |positions| KeyPart::List { signature, start: 0, positions }),
        (0..70u32, payload()).prop_map(move |(count, packed)| KeyPart::Packed { signature, start: 0, count, packed }),
        (0..560u32, payload()).prop_map(move |(count, bits)| KeyPart::Chosen { signature, start: 0, count, bits }),
        Just(KeyPart::Known { signature, start: 1, count: 2 }),
        Just(KeyPart::Scan { range: PositionRange::ALL }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let push = |(keys, values)| Push {
        table: TableId(0),
        shard: ShardId(0),
        settled: 0,
        number: NumberType::F32,
        writes: Writes::Nothing,
        keys,
        values,
    };
    let text = prop_oneof![0..9usize, MAX_BODY_BYTES - 9..MAX_BODY_BYTES + 9].prop_map(|bytes| "x".repeat(bytes));
    let count = prop_oneof![0..9usize, MAX_BODY_BYTES / 8 - 9..MAX_BODY_BYTES / 8 + 9];
    prop_oneof![
        (keys(), payload()).prop_map(move |parts| Message::Push(push(parts))),
        text.prop_map(|reason| Message::Control(Control::Fail { reason })),
        count.prop_map(|count| {
            Message::Control(Control::Leased { set: 0, number: 0, leases: vec![1; count], share: 1 })
        }),
    ]
}

proptest! {
    #[test]
    fn every_frame_that_can_be_encoded_can_be_decoded(from in node(), to in node(), message in message()) {
        let frame = Frame { head: Head::plain(from, to), message };
        let mut bytes = vec![9; 3];
        match encode(&frame, &mut bytes) {
            Ok(()) => {
                let header = Header::parse(bytes[3..3 + HEADER_BYTES].try_into().expect("a header"));
                let header = header.expect("an encoded header can be parsed");
                let payloads = frame.message.payloads().map(Clone::clone);
                prop_assert_eq!(header.payloads, [payloads[0].len(), payloads[1].len()]);
                let decoded = decode(&header, &bytes[3 + HEADER_BYTES..], payloads);
                prop_assert!(decoded.is_ok_and(|decoded| decoded == frame));
            }
            Err(_) => prop_assert_eq!(&bytes, &[9; 3], "nothing is appended"),
        }
    }
}

#[test]
fn encode_refuses_what_decode_would() {
    let head = || Head::plain(NodeId::Worker(1), NodeId::Server(0));
    let fail = |bytes: usize| Message::Control(Control::Fail { reason: "x".repeat(bytes) });
    let push = |keys, values: usize| {
        let values = Payload::new(vec![0u8; values]);
        let number = NumberType::F32;
        let writes = Writes::GRADIENTS;
        Message::Push(Push { table: TableId(0), shard: ShardId(0), settled: 0, number, writes, keys, values })
    };
    let run = || KeyPart::Run { first: Position(0), count: 1 };
    let list =
        |bytes: usize| KeyPart::List { signature: Signature(1), start: 0, positions: Payload::new(vec![0u8; bytes]) };
    let chosen = |count, bytes: usize| {
        let bits = Payload::new(vec![0u8; bytes]);
        KeyPart::Chosen { signature: Signature(1), start: 0, count, bits }
    };
    let encoded = |message| encode(&Frame { head: head(), message }, &mut Vec::new());
    // A control has a byte for its kind and four for the length of its text.
    assert_eq!(encoded(fail(MAX_BODY_BYTES - 5)), Ok(()));
    assert!(matches!(encoded(fail(MAX_BODY_BYTES - 4)), Err(WireError::TooLong { what: "a body", .. })));
    assert_eq!(encoded(push(run(), PART_BYTES)), Ok(()));
    assert!(matches!(encoded(push(run(), PART_BYTES + 1)), Err(WireError::TooLong { what: "a part", .. })));
    assert_eq!(encoded(push(list(PART_BYTES), 0)), Ok(()));
    assert!(matches!(encoded(push(list(PART_BYTES + 8), 0)), Err(WireError::TooLong { what: "a key list", .. })));
    assert!(matches!(encoded(push(list(12), 0)), Err(WireError::Malformed(_))));
    assert_eq!(encoded(push(chosen(9, 2), 0)), Ok(()));
    assert!(matches!(encoded(push(chosen(9, 1), 0)), Err(WireError::Malformed(_))));
    let far = Frame { head: Head::plain(NodeId::Worker(1 << 30), NodeId::Server(0)), message: fail(0) };
    assert!(matches!(encode(&far, &mut Vec::new()), Err(WireError::Malformed(_))));
}
