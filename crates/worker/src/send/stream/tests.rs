use super::*;
use crate::TicketId;
use types::{Placement, Setting, Source};
use wire::{Keys, Payload, Writes, encode};

const FULL: usize = READS_AT_ONCE;

/// A stream to shard 3, of server 0.
pub(crate) fn stream() -> ShardStream {
    let placed = Placed { shard: ShardId(3), owner: NodeId::Server(0), range: PositionRange::ALL };
    ShardStream::new(placed, TableId(7), NumberType::F32, Clock(0))
}

pub(crate) fn head(clock: u64) -> Head {
    let mut head = Head::plain(NodeId::Worker(0), NodeId::Coordinator);
    head.clock = Clock(clock);
    head.source = Source(1);
    head
}

/// A push of one to each of these keys.
pub(crate) fn push(ids: &[u64]) -> StreamMessage {
    let keys = Keys::distinct(Placement::Ordered, ids).slice(0..ids.len());
    let values = Payload::new(vec![1f32; ids.len()]);
    StreamMessage::Push {
        ticket: TicketId(1),
        keys,
        values,
        formats: Formats::default(),
        plain: None,
        writes: Writes::GRADIENTS,
    }
}

fn reading(ids: &[u64]) -> Reading {
    let keys = Keys::distinct(Placement::Ordered, ids).slice(0..ids.len());
    let keys = ReadKeys::Straight { keys, row: 0 };
    Reading {
        ticket: TicketId(1),
        clock: Clock(0),
        after: 0,
        subscribe: false,
        deltas: None,
        wants: Wants::Values,
        keys,
    }
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).expect("sendable");
    frame.message.payloads().iter().for_each(|payload| bytes.extend(payload.bytes()));
    bytes
}

fn keys_of(frame: &Frame) -> &KeyPart {
    match &frame.message {
        Message::Push(push) => &push.keys,
        Message::Pull(pull) => &pull.keys,
        other => panic!("{other:?}"),
    }
}

fn in_full(frame: &Frame) -> bool {
    matches!(keys_of(frame), KeyPart::List { .. })
}

#[test]
fn stream_resends_missing_messages_as_first_sent() {
    let mut stream = stream();
    stream.add_examples(5);
    let tune = StreamMessage::Tune { ticket: TicketId(2), at: Clock(1), setting: Setting::Rate(0.5) };
    let first: Vec<Frame> =
        [push(&[]), StreamMessage::Marker, tune].into_iter().map(|message| stream.append(head(1), message)).collect();
    assert_eq!(first.iter().map(|frame| frame.head.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(first.iter().map(|frame| frame.head.examples).collect::<Vec<_>>(), [5, 0, 0], "told once");
    assert!(first.iter().all(|frame| frame.head.to == NodeId::Server(0)));
    // (the next number that the shard expects, the messages that are resent)
    for (next, again) in [(0, 0..3), (2, 1..3), (4, 0..0)] {
        let resent: Vec<_> = stream.resend(head(9), next).iter().map(bytes).collect();
        assert_eq!(resent, first[again].iter().map(bytes).collect::<Vec<_>>(), "from {next}");
    }
    assert_eq!(stream.finish(2).len(), 2);
    assert_eq!(stream.finish(1).len(), 0, "a late receipt");
    assert_eq!((stream.unacknowledged(), stream.is_acknowledged(), stream.resend(head(9), 0).len()), (1, false, 1));
    assert_eq!(stream.finish(99).len(), 1);
    assert!(stream.is_idle() && !stream.awaits_answer());
    assert_eq!(stream.append(head(1), push(&[])).head.number, 4);
}

#[test]
fn stream_keeps_unseen_messages_until_they_are_acknowledged() {
    let mut stream = stream();
    for ids in [&[1][..], &[2], &[3]] {
        stream.append(head(0), push(ids));
    }
    stream.finish(1);
    // (the last message that an answer reflects, how many messages it lacks)
    for (contains, expected) in [(0, None), (1, Some(2)), (2, Some(1)), (3, Some(0))] {
        assert_eq!(stream.unseen(contains).map(Iterator::count), expected, "holds {contains}");
    }
}

#[test]
fn stream_sends_a_list_in_full_until_the_server_knows_it() {
    let mut stream = stream();
    assert!(in_full(&stream.append(head(0), push(&[1, 5, 9]))));
    let again = stream.append(head(0), push(&[1, 5, 9]));
    let KeyPart::Known { signature, .. } = keys_of(&again) else { panic!("{again:?}") };
    stream.forget(*signature);
    assert!(in_full(&stream.append(head(0), push(&[1, 5, 9]))), "the shard has forgotten it");
    assert!(!in_full(&stream.append(head(0), push(&[1, 5, 9]))));
    stream.move_to(NodeId::Server(1));
    assert_eq!(stream.owner(), NodeId::Server(1));
    assert!(in_full(&stream.append(head(0), push(&[1, 5, 9]))), "another server knows none");
    stream.set_key_form(KeyForm::Spelt);
    assert!(in_full(&stream.append(head(0), push(&[1, 5, 9]))), "every time");
}

#[test]
fn stream_bounds_reads_under_way_and_sends_the_next_when_one_is_answered() {
    let mut stream = stream();
    let mut out = Outbox::new();
    for request in 1..=FULL as u64 + 2 {
        stream.read(head(0), request, reading(&[request]), &mut out);
    }
    assert_eq!(out.drain().count(), FULL);
    assert!(!stream.next_read(head(0), &mut out) && stream.first_unsent().is_none(), "enough are under way");
    assert!(stream.take_read(1).is_some() && stream.take_read(1).is_none());
    assert!(stream.next_read(head(0), &mut out) && !stream.next_read(head(0), &mut out));
    assert_eq!((out.drain().count(), stream.resend_reads(head(0)).len()), (1, FULL));
}

#[test]
fn stream_holds_reads_while_bandwidth_is_bounded() {
    let mut stream = stream();
    let mut out = Outbox::new();
    stream.set_paced(true);
    stream.read(head(0), 1, reading(&[1]), &mut out);
    assert!(!stream.next_read(head(0), &mut out) && !stream.awaits_answer() && !stream.is_idle());
    assert_eq!((out.drain().count(), stream.first_unsent()), (0, Some(1)));
    assert!(stream.send_unsent(head(0)).is_some() && stream.awaits_answer());
}

#[test]
fn stream_asks_for_a_frontier_once_and_keeps_the_highest() {
    let mut stream = stream();
    // (request, the frontier that is needed, whether it is asked for)
    for (request, needed, asks) in [(1, 4, true), (2, 4, false), (3, 3, false), (4, 5, true)] {
        let asked = stream.request_frontier(head(9), request, Clock(needed));
        assert_eq!(asked.is_some(), asks, "request {request} of clock {needed}");
    }
    assert!(!stream.take_frontier_answer(1) && stream.take_frontier_answer(4) && !stream.take_frontier_answer(4));
    for (told, highest) in [(3, 3), (7, 7), (5, 7)] {
        stream.reaches(Clock(told));
        assert_eq!(stream.frontier(), Clock(highest));
    }
}

#[test]
fn stream_is_overdue_only_while_an_answer_is_missing() {
    let mut stream = stream();
    let after = Span::from_secs(1);
    stream.touch(Time(0));
    assert!(!stream.is_overdue(Time(0) + after, after), "nothing was sent");
    stream.append(head(0), StreamMessage::Marker);
    assert!(stream.is_overdue(Time(0) + after, after) && !stream.is_overdue(Time(1), after));
    stream.touch(Time(1));
    assert!(!stream.is_overdue(Time(0) + after, after), "something was heard since");
}
