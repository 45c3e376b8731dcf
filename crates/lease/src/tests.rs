//! Tests of the allocator: grants, commits, resumed runs, and its serialised form.

mod random;

use super::*;
use wire::Reader;

const WORK: WorkReport = WorkReport { examples: 100, busy: types::Span(1_000_000) };

fn terms(ranges: u64, epochs: u32, shuffle: Option<u64>) -> GrantTerms {
    GrantTerms { ranges, epochs, shuffle, per_clock: 8 }
}

fn granted(allocator: &mut LeaseAllocator, source: u64, wanted: u64) -> Vec<u64> {
    match allocator.grant(Time(0), Source(source), wanted) {
        GrantReply::Leases { leases, .. } => leases,
        other => panic!("{other:?}"),
    }
}

fn saved(allocator: &LeaseAllocator) -> Vec<u8> {
    let mut bytes = Vec::new();
    allocator.put(&mut bytes);
    bytes
}

fn restored(bytes: &[u8]) -> Result<LeaseAllocator, wire::WireError> {
    LeaseAllocator::get(&mut Reader(bytes), Time(0))
}

#[test]
fn commits_count_once_and_only_from_the_holder() {
    let mut allocator = LeaseAllocator::new(terms(10, 1, None)).unwrap();
    assert_eq!(granted(&mut allocator, 1, 3), [0, 1, 2]);
    assert_eq!(granted(&mut allocator, 2, 2), [3, 4]);
    type Case<'a> = (u64, &'a [u64], u64, u64, &'a [CommitRefusal]);
    // (source, leases, fresh, repeated, refused)
    let cases: [Case<'_>; 6] = [
        (1, &[0, 2], 2, 0, &[]),
        (1, &[0, 1, 2], 1, 2, &[]),
        (2, &[0, 3], 1, 1, &[]),
        (1, &[4], 0, 0, &[CommitRefusal::HeldByAnother { lease: 4, holder: Source(2) }]),
        (
            1,
            &[5, 10, 4],
            0,
            0,
            &[
                CommitRefusal::NotGranted { lease: 5 },
                CommitRefusal::Unknown { lease: 10 },
                CommitRefusal::HeldByAnother { lease: 4, holder: Source(2) },
            ],
        ),
        (9, &[4, 3], 0, 1, &[CommitRefusal::HeldByAnother { lease: 4, holder: Source(2) }]),
    ];
    for (source, leases, fresh, repeated, refused) in cases {
        let receipt = allocator.commit(Source(source), leases, Clock(1), WORK);
        assert_eq!(receipt, CommitReceipt { fresh, repeated, refused: refused.to_vec() }, "{leases:?} by {source}");
    }
    assert_eq!((allocator.through(), allocator.committed().count()), (OrderIndex(4), 4));
    allocator.expel(Source(2));
    let late = allocator.commit(Source(2), &[4], Clock(1), WORK);
    assert_eq!(late.refused, [CommitRefusal::NotGranted { lease: 4 }], "the lease was taken back");
    assert!(allocator.holders().eq([(Source(1), 0)]), "a late commit does not add the expelled worker again");
}

#[test]
fn grants_start_with_leases_that_were_given_back() {
    for shuffle in [None, Some(3)] {
        let mut allocator = LeaseAllocator::new(terms(20, 1, shuffle)).unwrap();
        let first = granted(&mut allocator, 1, 5);
        let second = granted(&mut allocator, 2, 5);
        allocator.commit(Source(1), &first[1..3], Clock(0), WORK);
        assert_eq!(allocator.expel(Source(1)), 3);
        let expected =
            [&[first[0], first[3], first[4]][..], &[allocator.terms().order().lease(OrderIndex(10))]].concat();
        assert_eq!(granted(&mut allocator, 3, 4), expected);
        assert!(second.iter().all(|lease| !expected.contains(lease)));
    }
}

#[test]
fn epochs_start_when_the_last_is_granted_and_the_run_ends_when_all_is_committed() {
    let mut allocator = LeaseAllocator::new(terms(4, 2, None)).unwrap();
    let slow = granted(&mut allocator, 1, 1);
    for expected in [[1, 2], [3, 4], [5, 6]] {
        assert_eq!(granted(&mut allocator, 2, 2), expected, "an epoch does not wait for the slow one");
        allocator.commit(Source(2), &expected, Clock(0), WORK);
    }
    assert_eq!(granted(&mut allocator, 2, 9), [7]);
    let ask = |allocator: &mut LeaseAllocator, source| allocator.grant(Time(5), Source(source), 1);
    let waiting_for = |holder| GrantReply::Wait { holder: Source(holder), held_for: types::Span(5) };
    assert_eq!(ask(&mut allocator, 2), waiting_for(1), "another worker is named before the one that asks");
    assert_eq!(ask(&mut allocator, 1), waiting_for(2));
    allocator.commit(Source(2), &[7], Clock(1), WORK);
    assert_eq!(ask(&mut allocator, 1), waiting_for(1), "nothing but its own is left");
    assert!(!allocator.is_over());
    allocator.expel(Source(1));
    assert_eq!(granted(&mut allocator, 2, 1), slow, "what is waited for may come back");
    allocator.commit(Source(2), &slow, Clock(2), WORK);
    assert_eq!(
        (ask(&mut allocator, 2), allocator.is_over(), allocator.through()),
        (GrantReply::Over, true, OrderIndex(8))
    );
}

#[test]
fn grants_stay_within_the_bound_and_the_share_of_what_is_left() {
    let mut allocator = LeaseAllocator::new(terms(10_000, 1, None)).unwrap();
    assert_eq!(granted(&mut allocator, 1, u64::MAX).len() as u64, HELD_LEASES);
    assert_eq!(allocator.grant(Time(0), Source(1), 1), GrantReply::Full);
    assert_eq!(granted(&mut allocator, 1 + 1, 0), [HELD_LEASES], "at least one");
    let mut allocator = LeaseAllocator::new(terms(100, 1, None)).unwrap();
    (1..=4).for_each(|source| assert_eq!(granted(&mut allocator, source, 1).len(), 1));
    assert_eq!(granted(&mut allocator, 1, 100).len(), 24, "a quarter of 96");
    assert_eq!(granted(&mut allocator, 2, 100).len(), 18, "a quarter of 72");
}

#[test]
fn terms_that_are_not_valid_are_refused() {
    let words = |terms: GrantTerms| LeaseAllocator::new(terms).unwrap_err().to_string();
    let too_many = words(terms(u64::MAX, 2, None));
    assert_eq!(too_many, "18446744073709551615 ranges in 2 epochs are more leases than fit 64 bits; cut larger ranges");
    assert!(words(GrantTerms { per_clock: 0, ..terms(1, 1, None) }).contains("at least 1"));
    for (ranges, epochs) in [(0, 3), (3, 0)] {
        let mut empty = LeaseAllocator::new(terms(ranges, epochs, Some(1))).unwrap();
        assert!(empty.is_over());
        assert_eq!(empty.grant(Time(0), Source(1), 1), GrantReply::Over);
    }
}

#[test]
fn resume_needs_the_same_input_and_at_least_as_many_epochs() {
    let mut allocator = LeaseAllocator::new(terms(10, 2, Some(4))).unwrap();
    let first = granted(&mut allocator, 1, 14);
    allocator.commit(Source(1), &first[..13], Clock(3), WORK);
    let done = allocator.committed();
    let resume = |terms: GrantTerms| LeaseAllocator::resume(terms, &done).map_err(|error| error.to_string());
    for epochs in [2, 5] {
        let resumed = resume(terms(10, epochs, Some(4))).unwrap();
        assert_eq!((resumed.committed(), resumed.left()), (done.clone(), 10 * u64::from(epochs) - 13));
    }
    let was = "the input was cut into 10 ranges shuffled by seed 4";
    let rest = "use the same files and settings";
    let cut = |is: &str| Err(format!("{was}, and is now cut into {is}; {rest}"));
    assert_eq!(resume(terms(10, 2, None)), cut("10 ranges in order"));
    assert_eq!(resume(terms(11, 2, Some(4))), cut("11 ranges shuffled by seed 4"));
    assert!(
        resume(terms(10, 1, Some(4)))
            .unwrap_err()
            .starts_with("the resumed run has begun 13 leases, but this run has only 10;")
    );
    assert!(resume(GrantTerms { per_clock: 0, ..allocator.terms() }).unwrap_err().contains("at least 1"));
}

#[test]
fn committed_before_counts_commits_of_earlier_clocks() {
    let mut allocator = LeaseAllocator::new(terms(10, 1, None)).unwrap();
    granted(&mut allocator, 1, 6);
    for (lease, clock) in [(0, 3), (1, 5), (2, 4), (4, 3)] {
        allocator.commit(Source(1), &[lease], Clock(clock), WORK);
    }
    let at = |allocator: &LeaseAllocator, clock| {
        let done = allocator.committed_before(Clock(clock))?;
        Some((
            (0..10).filter(|lease| done.contains(*lease)).collect::<Vec<u64>>(),
            allocator.through_before(Clock(clock))?.0,
        ))
    };
    assert_eq!(at(&allocator, 3), Some((vec![], 0)));
    assert_eq!(at(&allocator, 4), Some((vec![0, 4], 1)));
    assert_eq!(at(&allocator, 5), Some((vec![0, 2, 4], 1)), "a shard keeps what it has of lease 2, behind lease 1");
    assert_eq!(at(&allocator, 6), Some((vec![0, 1, 2, 4], 3)));
    allocator.settle(Clock(5));
    assert_eq!((at(&allocator, 4), at(&allocator, 5)), (None, Some((vec![0, 2, 4], 1))), "earlier clocks are settled");
    allocator.commit(Source(1), &[3], Clock(2), WORK);
    assert_eq!(at(&allocator, 5), Some((vec![0, 2, 3, 4], 1)), "a late commit of an early clock");
    assert_eq!((allocator.through(), allocator.committed().count()), (OrderIndex(5), 5));
}

#[test]
fn allocator_bytes_that_are_inconsistent_are_refused() {
    let mut sound = LeaseAllocator::new(terms(5000, 1, None)).unwrap();
    granted(&mut sound, 1, 6);
    granted(&mut sound, 2, 6);
    sound.commit(Source(1), &[0, 1], Clock(4), WORK);
    sound.settle(Clock(3));
    sound.expel(Source(2));
    assert_eq!(restored(&saved(&sound)).as_ref(), Ok(&sound));
    let holding = |source| Holding { source: Source(source), since: Time(0) };
    let pace = |allocator: &mut LeaseAllocator, change: fn(&mut Pace)| {
        allocator.workers.values_mut().for_each(|w| change(&mut w.pace))
    };
    // (text of the refusal, the damage)
    type Case<'a> = (&'a str, &'a dyn Fn(&mut LeaseAllocator));
    let cases: [Case<'_>; 14] = [
        ("terms", &|allocator| allocator.terms.per_clock = 0),
        ("terms", &|allocator| allocator.terms = terms(u64::MAX, 9, None)),
        ("more granted leases than the run has", &|allocator| allocator.next = 5001),
        ("not granted yet", &|allocator| allocator.next = 9),
        ("listed twice", &|allocator| allocator.returned.insert(5..6, ())),
        ("listed twice", &|allocator| allocator.recent.insert(4..5, Clock(9))),
        ("listed twice", &|allocator| allocator.held.insert(0..1, holding(1))),
        ("not in the run", &|allocator| allocator.workers.clear()),
        ("more leases than it may hold", &|allocator| {
            allocator.next = 5000;
            allocator.held.insert(20..20 + HELD_LEASES, holding(1));
        }),
        ("settled or too large", &|allocator| allocator.settled = Clock(5)),
        ("more runs of leases than", &|allocator| {
            allocator.leases = 1 << 20;
            allocator.terms.ranges = allocator.leases;
            allocator.next = allocator.leases;
            (100..101 + CLOCK_RUNS as u64).for_each(|place| allocator.recent.insert(place..place + 1, Clock(place)));
        }),
        ("share out of bounds", &|allocator| pace(allocator, |pace| pace.share = 8 * MOST_OF_AVERAGE + 1)),
        ("trend out of bounds", &|allocator| pace(allocator, |pace| pace.trend = -4)),
        ("not a finite number", &|allocator| pace(allocator, |pace| pace.seconds = f64::NAN)),
    ];
    for (words, wrong) in cases {
        let mut allocator = sound.clone();
        wrong(&mut allocator);
        let problem = restored(&saved(&allocator)).unwrap_err().to_string();
        assert!(problem.contains(words), "{problem} lacks '{words}'");
    }
    let mut other_release = saved(&sound);
    other_release[0] += 1;
    assert!(restored(&other_release).unwrap_err().to_string().contains("another release"));
}

/// Ten million leases, committed with gaps by workers some of which are lost.
#[test]
fn allocator_memory_follows_open_leases() {
    const LEASES: u64 = 10_000_000;
    let mut allocator = LeaseAllocator::new(terms(LEASES / 2, 2, Some(1))).unwrap();
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut committed = 0;
    let mut most_bytes = [0; 2];
    let mut clock = 0;
    let mut hands: Vec<(u64, Vec<u64>)> = (0..8).map(|source| (source, Vec::new())).collect();
    while !allocator.is_over() {
        clock += 1;
        for (source, hand) in &mut hands {
            if let GrantReply::Leases { leases, .. } = allocator.grant(Time(clock), Source(*source), 700) {
                hand.extend(leases);
            }
            if random(500) == 0 {
                allocator.expel(Source(*source));
                (*source, *hand) = (*source + 8, Vec::new());
                continue;
            }
            // One in a hundred is committed in a later clock.
            let done: Vec<u64> = hand.extract_if(.., |_| random(100) > 0).collect();
            committed += allocator.commit(Source(*source), &done, Clock(clock), WORK).fresh;
        }
        let half = usize::from(committed > LEASES / 2);
        if half == 1 {
            allocator.settle(Clock(clock.saturating_sub(3)));
        }
        if clock.is_multiple_of(16) {
            most_bytes[half] = saved(&allocator).len().max(most_bytes[half]);
        }
    }
    assert_eq!((committed, allocator.committed().count(), allocator.through()), (LEASES, LEASES, OrderIndex(LEASES)));
    let bound = 64 * (CLOCK_RUNS + 8 * HELD_LEASES as usize);
    println!(
        "{LEASES} leases in {clock} clocks: at most {} bytes, {} with settled clocks; {} at the end",
        most_bytes[0],
        most_bytes[1],
        saved(&allocator).len()
    );
    assert!(most_bytes[0] < bound && most_bytes[1] < bound / 10, "{most_bytes:?}");
}
