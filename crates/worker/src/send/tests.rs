use super::stream::tests::{head, push, stream};
use super::*;
use types::Span;

const TABLE: TableId = TableId(7);

/// A part of shard 3 that waits.
fn part(clock: u64, significance: f64) -> PacedPart {
    PacedPart { table: TABLE, shard: 3, head: head(clock), message: push(&[clock]), significance, ordered: false }
}

fn bounded(bytes_per_second: u64) -> Link {
    let mut link = Link::default();
    link.bound(Time(0), Bandwidth::from_bytes_per_second(bytes_per_second));
    link
}

/// The clocks and numbers of the frames that were sent.
fn sent(out: &mut Outbox) -> Vec<(u64, u64)> {
    out.drain().map(|frame| (frame.head.clock.0, frame.head.number)).collect()
}

#[test]
fn link_rate_is_the_lower_of_the_measured_rate_and_the_bound() {
    let ms = |milliseconds| Time(0) + Span::from_millis(milliseconds);
    let mut link = Link::default();
    assert_eq!(link.bytes_per_second(), None);
    let mut stream = stream();
    let mut out = Outbox::new();
    let big = || push(&(0..100_000).collect::<Vec<u64>>());
    for sample in 0..3 {
        link.send_part(ms(1000 * sample), &mut stream, head(0), big(), &mut out);
        assert_eq!(link.arrived(ms(1000 * sample + 100), 1), sample == 2, "enough samples");
    }
    let measured = link.bytes_per_second().expect("three samples");
    assert!((1e6..20e6).contains(&measured), "{measured}");
    for (bound, expected) in [(1000, 1000.0), (1 << 40, measured)] {
        link.bound(ms(5000), Bandwidth::from_bytes_per_second(bound));
        assert_eq!(link.bytes_per_second(), Some(expected));
    }
}

#[test]
fn link_counts_bytes_of_messages_until_they_are_released() {
    let mut link = Link::default();
    let small = push(&[1]);
    let large = push(&[1, 2, 3]);
    [&small, &large].into_iter().for_each(|message| link.hold(message));
    assert_eq!(link.unacknowledged_bytes(), 16 + 2 * PART_COST);
    link.release(&large);
    assert_eq!(link.unacknowledged_bytes(), 4 + PART_COST);
}

#[test]
fn link_ends_a_clock_behind_the_parts_of_that_clock_that_wait() {
    for waits in [false, true] {
        let mut link = bounded(1 << 20);
        let mut stream = stream();
        let mut out = Outbox::new();
        if waits {
            let number = link.wait(part(4, 1.0));
            assert!(link.has_waiting_part(number) && link.first_waiting(TABLE) == Some(number));
        }
        stream.add_examples(9);
        link.end_clock(Time(0), TABLE, &mut stream, head(4), &mut out);
        assert_eq!((sent(&mut out), link.is_idle()), (if waits { vec![] } else { vec![(4, 1)] }, !waits));
        let table = link.send_waiting_part(Time(0), Clock(5), |_, _| Some(&mut stream), &mut out);
        assert_eq!(table, waits.then_some(TABLE));
        assert_eq!(sent(&mut out), if waits { vec![(4, 1), (4, 2)] } else { vec![] }, "a part, then its clock's end");
        assert!(link.is_idle() && stream.take_examples() == 0);
    }
}

#[test]
fn link_takes_turns_between_reads_and_parts_while_there_are_tokens() {
    let mut link = bounded(1000);
    let mut stream = stream();
    let mut out = Outbox::new();
    assert_eq!(link.turn(Time(0)), None, "no time has passed");
    let frame = stream.append(head(0), StreamMessage::Marker);
    // A token for each byte of it, and one more, which the next frame may overdraw.
    let now = Time(0) + Span::from_millis(frame_bytes(&frame) as u64 + 1);
    link.refill(now);
    link.wait(part(0, 1.0));
    assert_eq!(link.turn(now), Some(Turn::Read));
    link.send_waiting_read(frame, &mut out);
    assert_eq!(link.turn(now), Some(Turn::Push));
    link.send_waiting_part(now, Clock(0), |_, _| Some(&mut stream), &mut out);
    assert_eq!(link.turn(now), None, "all tokens are spent");
    link.refill(now + Span::from_secs(9));
    assert_eq!(link.turn(now), Some(Turn::Read));
    link.lift_bound();
    assert!(!link.is_bounded() && link.last_part().is_none() && link.part_bytes().is_none());
}

#[test]
fn link_lists_the_messages_that_an_answer_lacks_in_the_order_of_the_stream() {
    let mut link = bounded(1 << 20);
    let mut stream = stream();
    let mut out = Outbox::new();
    for row in [11, 12] {
        link.send_part(Time(0), &mut stream, head(0), push(&[row]), &mut out);
    }
    link.wait(PacedPart { message: push(&[13]), ..part(0, 1.0) });
    link.wait(PacedPart { message: push(&[14]), shard: 4, ..part(0, 1.0) });
    let rows = |link: &Link, stream: &ShardStream, contains| {
        let row = |message: &StreamMessage| match message {
            StreamMessage::Push { keys, .. } => keys.position(0).0,
            StreamMessage::Marker | StreamMessage::Tune { .. } => panic!("pushes only"),
        };
        link.unseen(TABLE, stream, contains).map(|unseen| unseen.map(row).collect::<Vec<_>>())
    };
    assert_eq!(rows(&link, &stream, 0), Some(vec![11, 12, 13]), "those of another shard are not lacking");
    assert_eq!(rows(&link, &stream, 1), Some(vec![12, 13]));
    stream.finish(1);
    assert_eq!(rows(&link, &stream, 0), None, "the worker has freed the first");
}
