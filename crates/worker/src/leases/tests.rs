use super::*;
use types::Span;

const TABLE: TableId = TableId(1);
const WORK: WorkReport = WorkReport { examples: 1, busy: Span(1) };

fn lease(number: u64) -> LeaseId {
    LeaseId { set: 0, number }
}

fn terms() -> LeaseTerms {
    LeaseTerms { ranges: 9, epochs: 1, shuffle: None, per_clock: 1, fingerprint: 0, input: String::new() }
}

/// Data set 0 is open, and the worker holds its leases 3 and 4.
fn leases() -> DataLeases {
    let mut leases = DataLeases::default();
    leases.open("train", terms());
    leases.answer_open("train".into(), Ok(0));
    leases.ask(0, 2);
    leases.granted(0, 1, vec![3, 4], 6);
    leases.take(0, Clock(0));
    leases
}

fn commit(number: u64, clock: u64) -> Control {
    Control::CommitLease { set: 0, lease: number, clock: Clock(clock), examples: 1, busy: Span(1) }
}

/// Pushes this many parts to each of two shards. Returns the number and the examples of each part.
fn push(leases: &mut DataLeases, number: u64, shards: [usize; 2], examples: u64) -> Vec<(u64, u64)> {
    let by_shard = shards.map(|parts| vec![0..1; parts]).to_vec();
    let parts = leases.number_parts(lease(number), TABLE, by_shard, examples);
    parts.into_iter().map(|part| (part.id.part, part.examples)).collect()
}

#[test]
fn data_leases_are_requested_once_until_the_request_is_answered() {
    let mut leases = leases();
    assert_eq!(leases.ask(7, 1), None, "no such data set");
    let asked = Control::AskLeases { set: 0, number: 2, wanted: 5 };
    assert_eq!([leases.ask(0, 5), leases.ask(0, 5)], [Some(asked.clone()), None]);
    assert!(leases.unanswered().contains(&asked));
    // (the number of the request that is answered, the granted leases, what the program gets)
    let grant = |leases: &[u64]| Some(LeaseGrant { leases: leases.to_vec(), share: 8 });
    for (number, granted, brings) in
        [(1, vec![8], None), (2, vec![3, 4], None), (2, vec![3, 8], grant(&[8])), (2, vec![9], None)]
    {
        leases.granted(0, number, granted, 8);
        assert_eq!(leases.has_answer(0, Clock(0)), brings.is_some());
        assert_eq!(leases.take(0, Clock(0)), brings);
    }
    assert_eq!((leases.take(0, Clock(0)), leases.unanswered()), (None, vec![Control::Learning { set: 0 }]));
}

#[test]
fn data_leases_number_parts_by_the_lease_alone_and_add_examples_to_them() {
    let mut leases = leases();
    // (lease, parts for each shard, examples, the part and the examples of each)
    for (number, shards, examples, expected) in [
        (3, [1, 2], 10, vec![(0, 10), (0, 10), (1, 0)]),
        (3, [1, 0], 5, vec![(1, 5)]),
        (4, [1, 1], 7, vec![(0, 7), (0, 7)]),
        (3, [0, 1], 1, vec![(2, 6)]),
    ] {
        assert_eq!(push(&mut leases, number, shards, examples), expected, "lease {number}");
    }
    let id = LeasedPart { set: 0, lease: 3, part: 2 };
    let last = LastPart { table: TABLE, shard: 0, id, examples: 1 };
    assert_eq!(leases.done(lease(3), Clock(2), WORK), [last], "an example that shard 0 was not told of");
    assert_eq!(leases.done(lease(4), Clock(2), WORK), []);
}

#[test]
fn data_leases_are_committed_when_all_their_pushes_are_finished() {
    let mut leases = leases();
    push(&mut leases, 3, [1, 1], 1);
    push(&mut leases, 4, [1, 1], 1);
    assert_eq!(leases.check(lease(5)), Err(TableFailure::NotLeased { lease: 5 }), "not held");
    for number in [3, 4] {
        assert_eq!(leases.check(lease(number)), Ok(()));
        leases.done(lease(number), Clock(2), WORK);
        assert_eq!(leases.check(lease(number)), Err(TableFailure::NotLeased { lease: number }), "it is done");
    }
    assert_eq!((leases.take_commits(), leases.uncommitted(0), leases.uncommitted(1)), (vec![], 2, 0));
    // Another worker, which was ahead, pushed a part before.
    leases.held_already(lease(4), Clock(7));
    for (number, clock) in [(3, 2), (4, 7)] {
        leases.committed(lease(number), None);
        assert!(!leases.is_idle(), "an answer to a commit that was not sent is ignored");
        leases.finished(lease(number));
        assert_eq!([leases.take_commits(), leases.take_commits()], [vec![commit(number, clock)], vec![]]);
        assert!(leases.unanswered().contains(&commit(number, clock)), "sent again until it is answered");
        leases.committed(lease(number), Some("late".into()));
    }
    assert_eq!((leases.is_idle(), leases.take_problems(), leases.unanswered()), (true, vec!["late".into(); 2], vec![]));
}

#[test]
fn data_leases_follow_other_workers_only_while_none_is_held() {
    let mut leases = leases();
    leases.ask(0, 1);
    let on = vec![WorkerId(5)];
    assert_eq!(leases.awaited(0, 2, Clock(4), on.clone()), Some(Notice::Leases { on }));
    assert_eq!(leases.awaited(0, 1, Clock(9), Vec::new()), None, "an old answer");
    assert_eq!(leases.follows(), None, "it holds leases");
    for number in [3, 4] {
        leases.done(lease(number), Clock(0), WORK);
        leases.take_commits();
        leases.committed(lease(number), None);
    }
    assert_eq!(leases.follows(), None, "the program ends the clock of its last lease");
    leases.clock_ended();
    assert_eq!(leases.follows(), Some(Clock(4)));
    leases.over(0, 2, Clock(6));
    assert_eq!(leases.follows(), Some(Clock(6)));
    // (the worker's clock, whether it learns that the data set is over)
    for (clock, hears) in [(5, false), (6, true)] {
        assert_eq!(leases.has_answer(0, Clock(clock)), hears);
        assert_eq!(leases.take(0, Clock(clock)).map(|grant| grant.is_over()), hears.then_some(true));
    }
}

#[test]
fn data_leases_that_are_ended_are_given_back_and_not_granted_again() {
    let mut leases = leases();
    assert_eq!(leases.end(7), None, "no such data set");
    leases.ask(0, 1);
    assert!(leases.end(0) == Some(Control::EndLeases { set: 0 }) && leases.is_ended(0));
    leases.granted(0, 2, vec![5], 6);
    assert_eq!((leases.take(0, Clock(0)), leases.learning().count()), (None, 0));
    let again = [Control::EndLeases { set: 0 }, Control::AskLeases { set: 0, number: 2, wanted: 1 }];
    assert_eq!(leases.unanswered(), again, "the end goes before the request");
    leases.ended_by_all(0, 2, Clock(3));
    assert_eq!(leases.take(0, Clock(3)).map(|grant| grant.is_over()), Some(true));
}

#[test]
fn data_leases_that_another_worker_ended_stay_held() {
    let mut leases = leases();
    assert!(!leases.is_ended(0));
    leases.ended_by_another(0);
    assert!(leases.is_ended(0) && leases.check(lease(3)).is_ok());
}

#[test]
fn data_leases_open_only_a_data_set_that_was_asked_for() {
    let mut leases = DataLeases::default();
    leases.answer_open("train".into(), Ok(0));
    assert_eq!(leases.opened("train"), None, "the program has not asked for it");
    let asked = leases.open("train", terms());
    assert_eq!(leases.unanswered(), [asked]);
    leases.answer_open("train".into(), Err("other terms".into()));
    assert_eq!((leases.opened("train"), leases.unanswered()), (Some(&Err("other terms".into())), vec![]));
    leases.open("train", terms());
    assert_eq!(leases.opened("train"), None, "asked anew");
}
