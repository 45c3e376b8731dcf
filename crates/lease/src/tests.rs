mod random;

use super::*;
use wire::Reader;

const WORK: Work = Work { examples: 100, busy: types::Span(1_000_000) };

fn terms(ranges: u64, epochs: u32, shuffle: Option<u64>) -> Terms {
    Terms { ranges, epochs, shuffle, per_clock: 8 }
}

fn granted(ledger: &mut Ledger, source: u64, wanted: u64) -> Vec<u64> {
    match ledger.grant(Time(0), Source(source), wanted) {
        Granted::Leases { leases, .. } => leases,
        other => panic!("{other:?}"),
    }
}

fn saved(ledger: &Ledger) -> Vec<u8> {
    let mut bytes = Vec::new();
    ledger.put(&mut bytes);
    bytes
}

fn restored(bytes: &[u8]) -> Result<Ledger, wire::WireError> {
    Ledger::get(&mut Reader(bytes), Time(0))
}

#[test]
fn a_commit_is_taken_once_and_only_from_who_holds_the_lease() {
    let mut ledger = Ledger::new(terms(10, 1, None)).unwrap();
    assert_eq!(granted(&mut ledger, 1, 3), [0, 1, 2]);
    assert_eq!(granted(&mut ledger, 2, 2), [3, 4]);
    type Case<'a> = (u64, &'a [u64], u64, u64, &'a [Refusal]);
    // (who, what, fresh, repeated, refused)
    let cases: [Case<'_>; 6] = [
        (1, &[0, 2], 2, 0, &[]),
        (1, &[0, 1, 2], 1, 2, &[]),
        (2, &[0, 3], 1, 1, &[]),
        (1, &[4], 0, 0, &[Refusal::HeldByAnother { lease: 4, holder: Source(2) }]),
        (
            1,
            &[5, 10, 4],
            0,
            0,
            &[
                Refusal::NotGranted { lease: 5 },
                Refusal::Unknown { lease: 10 },
                Refusal::HeldByAnother { lease: 4, holder: Source(2) },
            ],
        ),
        (9, &[4, 3], 0, 1, &[Refusal::HeldByAnother { lease: 4, holder: Source(2) }]),
    ];
    for (source, leases, fresh, repeated, refused) in cases {
        let receipt = ledger.commit(Source(source), leases, Clock(1), WORK);
        assert_eq!(receipt, Receipt { fresh, repeated, refused: refused.to_vec() }, "{leases:?} by {source}");
    }
    assert_eq!((ledger.through(), ledger.committed().count()), (Place(4), 4));
    ledger.expel(Source(2));
    let late = ledger.commit(Source(2), &[4], Clock(1), WORK);
    assert_eq!(late.refused, [Refusal::NotGranted { lease: 4 }], "it was taken back");
    assert!(ledger.holders().eq([(Source(1), 0)]), "and who was expelled is not known for it");
}

#[test]
fn what_comes_back_is_granted_first_and_under_its_old_numbers() {
    for shuffle in [None, Some(3)] {
        let mut ledger = Ledger::new(terms(20, 1, shuffle)).unwrap();
        let first = granted(&mut ledger, 1, 5);
        let second = granted(&mut ledger, 2, 5);
        ledger.commit(Source(1), &first[1..3], Clock(0), WORK);
        assert_eq!(ledger.expel(Source(1)), 3);
        let expected = [&[first[0], first[3], first[4]][..], &[ledger.terms().order().lease(Place(10))]].concat();
        assert_eq!(granted(&mut ledger, 3, 4), expected);
        assert!(second.iter().all(|lease| !expected.contains(lease)));
    }
}

#[test]
fn an_epoch_begins_when_the_one_before_is_granted_and_the_run_ends_when_all_is_committed() {
    let mut ledger = Ledger::new(terms(4, 2, None)).unwrap();
    let slow = granted(&mut ledger, 1, 1);
    for expected in [[1, 2], [3, 4], [5, 6]] {
        assert_eq!(granted(&mut ledger, 2, 2), expected, "an epoch does not wait for the slow one");
        ledger.commit(Source(2), &expected, Clock(0), WORK);
    }
    assert_eq!(granted(&mut ledger, 2, 9), [7]);
    let ask = |ledger: &mut Ledger, source| ledger.grant(Time(5), Source(source), 1);
    let waiting_for = |holder| Granted::Wait { holder: Source(holder), held_for: types::Span(5) };
    assert_eq!(ask(&mut ledger, 2), waiting_for(1), "another worker is named before the one that asks");
    assert_eq!(ask(&mut ledger, 1), waiting_for(2));
    ledger.commit(Source(2), &[7], Clock(1), WORK);
    assert_eq!(ask(&mut ledger, 1), waiting_for(1), "nothing but its own is left");
    assert!(!ledger.is_over());
    ledger.expel(Source(1));
    assert_eq!(granted(&mut ledger, 2, 1), slow, "what is waited for may come back");
    ledger.commit(Source(2), &slow, Clock(2), WORK);
    assert_eq!((ask(&mut ledger, 2), ledger.is_over(), ledger.through()), (Granted::Over, true, Place(8)));
}

#[test]
fn nobody_holds_more_than_the_bound_nor_more_than_its_part_of_the_end() {
    let mut ledger = Ledger::new(terms(10_000, 1, None)).unwrap();
    assert_eq!(granted(&mut ledger, 1, u64::MAX).len() as u64, HELD_LEASES);
    assert_eq!(ledger.grant(Time(0), Source(1), 1), Granted::Full);
    assert_eq!(granted(&mut ledger, 1 + 1, 0), [HELD_LEASES], "at least one");
    let mut ledger = Ledger::new(terms(100, 1, None)).unwrap();
    (1..=4).for_each(|source| assert_eq!(granted(&mut ledger, source, 1).len(), 1));
    assert_eq!(granted(&mut ledger, 1, 100).len(), 24, "a quarter of 96");
    assert_eq!(granted(&mut ledger, 2, 100).len(), 18, "a quarter of 72");
}

#[test]
fn terms_that_cannot_be_are_refused_in_words() {
    let words = |terms: Terms| Ledger::new(terms).unwrap_err().to_string();
    let too_many = words(terms(u64::MAX, 2, None));
    assert_eq!(
        too_many,
        "18446744073709551615 ranges in 2 epochs are more leases than can be numbered; cut larger ranges"
    );
    assert!(words(Terms { per_clock: 0, ..terms(1, 1, None) }).contains("at least 1"));
    for (ranges, epochs) in [(0, 3), (3, 0)] {
        let mut empty = Ledger::new(terms(ranges, epochs, Some(1))).unwrap();
        assert!(empty.is_over());
        assert_eq!(empty.grant(Time(0), Source(1), 1), Granted::Over);
    }
}

#[test]
fn a_run_is_resumed_with_the_same_input_and_as_many_epochs_or_more() {
    let mut ledger = Ledger::new(terms(10, 2, Some(4))).unwrap();
    let first = granted(&mut ledger, 1, 14);
    ledger.commit(Source(1), &first[..13], Clock(3), WORK);
    let done = ledger.committed();
    let resume = |terms: Terms| Ledger::resume(terms, &done).map_err(|error| error.to_string());
    for epochs in [2, 5] {
        let resumed = resume(terms(10, epochs, Some(4))).unwrap();
        assert_eq!((resumed.committed(), resumed.left()), (done.clone(), 10 * u64::from(epochs) - 13));
    }
    let (was, rest) = ("the run was cut into 10 ranges shuffled by seed 4", "give it the same files and settings");
    let cut = |is: &str| Err(format!("{was}, and is now cut into {is}; {rest}"));
    assert_eq!(resume(terms(10, 2, None)), cut("10 ranges in order"));
    assert_eq!(resume(terms(11, 2, Some(4))), cut("11 ranges shuffled by seed 4"));
    assert!(resume(terms(10, 1, Some(4))).unwrap_err().starts_with("the run has begun 13 leases and is to have 10;"));
    assert!(resume(Terms { per_clock: 0, ..ledger.terms() }).unwrap_err().contains("at least 1"));
}

#[test]
fn a_checkpoint_counts_what_was_committed_before_its_clock() {
    let mut ledger = Ledger::new(terms(10, 1, None)).unwrap();
    granted(&mut ledger, 1, 6);
    for (lease, clock) in [(0, 3), (1, 5), (2, 4), (4, 3)] {
        ledger.commit(Source(1), &[lease], Clock(clock), WORK);
    }
    let at = |ledger: &Ledger, clock| {
        let done = ledger.committed_before(Clock(clock))?;
        Some((
            (0..10).filter(|lease| done.contains(*lease)).collect::<Vec<u64>>(),
            ledger.through_before(Clock(clock))?.0,
        ))
    };
    assert_eq!(at(&ledger, 3), Some((vec![], 0)));
    assert_eq!(at(&ledger, 4), Some((vec![0, 4], 1)));
    assert_eq!(at(&ledger, 5), Some((vec![0, 2, 4], 1)), "a shard keeps what it has of lease 2, behind lease 1");
    assert_eq!(at(&ledger, 6), Some((vec![0, 1, 2, 4], 3)));
    ledger.settle(Clock(5));
    assert_eq!((at(&ledger, 4), at(&ledger, 5)), (None, Some((vec![0, 2, 4], 1))), "earlier clocks are one");
    ledger.commit(Source(1), &[3], Clock(2), WORK);
    assert_eq!(at(&ledger, 5), Some((vec![0, 2, 3, 4], 1)), "a late word of an early clock");
    assert_eq!((ledger.through(), ledger.committed().count()), (Place(5), 5));
}

#[test]
fn bytes_of_a_ledger_that_cannot_be_are_refused() {
    let mut sound = Ledger::new(terms(5000, 1, None)).unwrap();
    granted(&mut sound, 1, 6);
    granted(&mut sound, 2, 6);
    sound.commit(Source(1), &[0, 1], Clock(4), WORK);
    sound.settle(Clock(3));
    sound.expel(Source(2));
    assert_eq!(restored(&saved(&sound)).as_ref(), Ok(&sound));
    let holding = |source| Holding { source: Source(source), since: Time(0) };
    let pace =
        |ledger: &mut Ledger, change: fn(&mut Pace)| ledger.workers.values_mut().for_each(|w| change(&mut w.pace));
    // A word of the refusal, and what is wrong.
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Ledger));
    let cases: [Case<'_>; 14] = [
        ("terms", &|ledger| ledger.terms.per_clock = 0),
        ("terms", &|ledger| ledger.terms = terms(u64::MAX, 9, None)),
        ("more leases granted than there are", &|ledger| ledger.next = 5001),
        ("two places at once", &|ledger| ledger.next = 9),
        ("two places at once", &|ledger| ledger.returned.insert(5..6, ())),
        ("two places at once", &|ledger| ledger.recent.insert(4..5, Clock(9))),
        ("two places at once", &|ledger| ledger.held.insert(0..1, holding(1))),
        ("nobody in the run", &|ledger| ledger.workers.clear()),
        ("in one hand", &|ledger| {
            ledger.next = 5000;
            ledger.held.insert(20..20 + HELD_LEASES, holding(1));
        }),
        ("not told apart", &|ledger| ledger.told_apart_from = Clock(5)),
        ("more clocks told apart", &|ledger| {
            ledger.leases = 1 << 20;
            ledger.terms.ranges = ledger.leases;
            ledger.next = ledger.leases;
            (100..101 + CLOCK_RUNS as u64).for_each(|place| ledger.recent.insert(place..place + 1, Clock(place)));
        }),
        ("beyond its bounds", &|ledger| pace(ledger, |pace| pace.share = 8 * MOST_OF_AVERAGE + 1)),
        ("leans too far", &|ledger| pace(ledger, |pace| pace.lean = -4)),
        ("no number", &|ledger| pace(ledger, |pace| pace.seconds = f64::NAN)),
    ];
    for (words, wrong) in cases {
        let mut ledger = sound.clone();
        wrong(&mut ledger);
        let problem = restored(&saved(&ledger)).unwrap_err().to_string();
        assert!(problem.contains(words), "{problem}, and not: {words}");
    }
    let mut other_release = saved(&sound);
    other_release[0] += 1;
    assert!(restored(&other_release).unwrap_err().to_string().contains("another release"));
}

/// Ten million leases by workers that leave gaps, some of them gone in the middle.
#[test]
fn memory_follows_what_is_open_and_not_what_is_done() {
    const LEASES: u64 = 10_000_000;
    let mut ledger = Ledger::new(terms(LEASES / 2, 2, Some(1))).unwrap();
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut committed, mut most_bytes, mut clock) = (0, [0; 2], 0);
    let mut hands: Vec<(u64, Vec<u64>)> = (0..8).map(|source| (source, Vec::new())).collect();
    while !ledger.is_over() {
        clock += 1;
        for (source, hand) in &mut hands {
            if let Granted::Leases { leases, .. } = ledger.grant(Time(clock), Source(*source), 700) {
                hand.extend(leases);
            }
            if random(500) == 0 {
                ledger.expel(Source(*source));
                (*source, *hand) = (*source + 8, Vec::new());
                continue;
            }
            // One in a hundred is left for later clocks.
            let done: Vec<u64> = hand.extract_if(.., |_| random(100) > 0).collect();
            committed += ledger.commit(Source(*source), &done, Clock(clock), WORK).fresh;
        }
        let half = usize::from(committed > LEASES / 2);
        if half == 1 {
            ledger.settle(Clock(clock.saturating_sub(3)));
        }
        if clock.is_multiple_of(16) {
            most_bytes[half] = saved(&ledger).len().max(most_bytes[half]);
        }
    }
    assert_eq!((committed, ledger.committed().count(), ledger.through()), (LEASES, LEASES, Place(LEASES)));
    let bound = 64 * (CLOCK_RUNS + 8 * HELD_LEASES as usize);
    println!(
        "{LEASES} leases in {clock} clocks: at most {} bytes, and {} where clocks are settled; {} at the end",
        most_bytes[0],
        most_bytes[1],
        saved(&ledger).len()
    );
    assert!(most_bytes[0] < bound && most_bytes[1] < bound / 10, "{most_bytes:?}");
}
