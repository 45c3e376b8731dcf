use super::*;
use crate::TicketId;
use crate::send::stream::ShardStream;
use crate::testing::TABLE;
use codec::Formats;
use types::{NodeId, NumberType, PositionRange, ShardId, Span};
use wire::Keys;

fn part(clock: u64, significance: f64, bytes: usize) -> PacedPart {
    let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
    head.clock = Clock(clock);
    let keys = Keys::run(0..1).slice(0..1);
    let values = Payload::new(vec![0u8; bytes]);
    let message = StreamMessage::Push {
        ticket: TicketId(0),
        keys,
        values,
        formats: Formats::default(),
        plain: None,
        writes: wire::Writes::GRADIENTS,
    };
    PacedPart { table: TABLE, shard: 0, head, message, significance, ordered: false }
}

fn order(pacer: &mut Pacer, clock: u64) -> Vec<f64> {
    std::iter::from_fn(|| pacer.next(Clock(clock)).map(|part| part.significance)).collect()
}

#[test]
fn pacer_sends_parts_of_ended_clocks_first_then_the_largest_changes() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    for (clock, significance) in [(1, 0.5), (1, 0.7), (2, 0.1), (2, 0.9), (2, 0.4)] {
        pacer.add(part(clock, significance, 10));
    }
    assert_eq!(order(&mut pacer, 2), [0.5, 0.7, 0.9, 0.4, 0.1]);
    assert!(pacer.is_empty());
}

#[test]
fn pacer_ends_a_clock_for_a_shard_after_its_parts() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let end = |pacer: &mut Pacer, clock| pacer.end_clock(TABLE, 0, part(clock, 0.0, 0).head);
    assert!(!pacer.has_waiting(TABLE, 0), "nothing waits");
    pacer.add(part(1, 1.0, 10));
    end(&mut pacer, 1);
    pacer.add(part(2, 2.0, 10));
    end(&mut pacer, 2);
    assert!(pacer.has_waiting(TABLE, 0) && !pacer.has_waiting(TABLE, 1), "another shard waits for nothing");
    let ended = |pacer: &mut Pacer| -> Vec<u64> {
        pacer.next(Clock(3));
        pacer.due_markers((TABLE, 0)).iter().map(|head| head.clock.0).collect()
    };
    assert_eq!((ended(&mut pacer), ended(&mut pacer)), (vec![1], vec![2]));
}

#[test]
fn pacer_keeps_the_order_of_ordered_parts_for_a_shard() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    for (shard, significance) in [(0, 0.1), (0, 0.9), (1, 0.5), (1, 0.3), (0, 0.2)] {
        pacer.add(PacedPart { shard, ordered: true, ..part(1, significance, 10) });
    }
    assert_eq!(order(&mut pacer, 1), [0.5, 0.3, 0.1, 0.9, 0.2]);
}

#[test]
fn pacer_sends_parts_that_a_read_waits_for_before_larger_later_ones() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let parts = [0.2, 0.1, 0.9].map(|significance| pacer.add(part(1, significance, 10)));
    pacer.expect(TABLE, parts[1]);
    assert_eq!(order(&mut pacer, 1), [0.2, 0.1, 0.9]);
}

#[test]
fn pacer_saves_tokens_up_to_the_size_of_the_bucket() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(10_000_000));
    pacer.refill(Time(0) + Span::from_millis(10));
    assert_eq!(pacer.tokens, 100_000.0);
    pacer.refill(Time(0) + Span::from_secs(9));
    assert_eq!(pacer.tokens, 500_000.0, "the tokens of a twentieth of a second");
}

#[test]
fn pacer_charges_new_frames_in_full_and_resent_ones_up_to_a_second_of_debt() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let values = Payload::new(vec![0u8; 5000]);
    let mut stream = ShardStream::new(
        types::Placed { shard: ShardId(0), owner: NodeId::Server(0), range: PositionRange::ALL },
        TABLE,
        NumberType::F32,
        types::Clock(0),
    );
    let push = StreamMessage::Push {
        ticket: TicketId(0),
        keys: Keys::distinct(types::Placement::Spread, &(0..100).collect::<Vec<u64>>()).slice(0..100),
        values,
        formats: Formats::default(),
        plain: None,
        writes: wire::Writes::GRADIENTS,
    };
    let frame = stream.append(part(0, 0.0, 0).head, push);
    pacer.charge_resent([&frame]);
    assert_eq!(pacer.tokens, -1000.0);
    pacer.spend(500);
    pacer.charge_resent([&frame]);
    assert_eq!(pacer.tokens, -1500.0, "resending does not reduce the debt");
    let bytes = frame_bytes(&frame);
    let mut whole = Vec::new();
    wire::encode(&frame, &mut whole).expect("sendable");
    let real = whole.len() + 800 + 5000;
    assert!((real..real + 64).contains(&bytes), "{bytes} bytes for {real}: keys must count, too");
}
