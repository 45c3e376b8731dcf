//! Tests of [`Clocks`]: what is held for a clock, and what the frontier hands out.

use super::*;
use crate::rows::Resolved;
use types::Reduce;

const SLOTS: SlotCounts = SlotCounts([8, 8]);
const NEW: u32 = 1 << 31;
const WORKERS: [WorkerId; 2] = [WorkerId(0), WorkerId(1)];

fn clocks(combine: Combine) -> Clocks<i64> {
    Clocks::new(combine, [true; 2].into_iter())
}

/// Adds `value` to row `slot` in a clock.
fn add(clocks: &mut Clocks<i64>, clock: u64, slot: usize, value: i64) {
    let resolved = Resolved::Run { first: slot, count: 1 };
    if let Some(sum) = clocks.sum(Clock(clock), Vec::new) {
        sum.add(1, SLOTS, &resolved, &[value]);
    }
    clocks.count_examples(Clock(clock), 10);
    clocks.will_change(Clock(clock), [(slot as u64 + 100, slot as u32)].into_iter());
}

/// What an ended clock applies: clock, slots, values, changed positions, examples.
type Applied = (u64, Option<(Vec<u32>, Vec<i64>)>, Vec<u64>, u64);

fn pop(clocks: &mut Clocks<i64>, end: u64) -> Option<Applied> {
    let ended = clocks.pop_before(Clock(end))?;
    let outcome = match ended.outcome {
        ClockOutcome::Apply { slots, values } => Some((slots, values)),
        ClockOutcome::Failed => None,
    };
    Some((ended.clock.0, outcome, ended.changes.iter().map(|(position, _)| position).collect(), ended.examples))
}

#[test]
fn clocks_hand_out_an_ended_clock_once_with_everything_held_for_it() {
    let mut clocks = clocks(Combine::Clock(Reduce::Sum));
    add(&mut clocks, 1, 3, 5);
    add(&mut clocks, 0, 2, 1);
    add(&mut clocks, 0, 2, 2);
    clocks.count_examples(Clock(2), 7);
    assert_eq!(pop(&mut clocks, 1), Some((0, Some((vec![2], vec![3])), vec![102], 20)));
    assert_eq!(pop(&mut clocks, 1), None, "clock 1 is open");
    assert_eq!(pop(&mut clocks, 3), Some((1, Some((vec![3], vec![5])), vec![103], 10)));
    assert_eq!((clocks.take_other_examples(Clock(2)), clocks.take_other_examples(Clock(3))), (0, 7));
    assert!(clocks.pop_before(Clock(9)).is_none());
}

#[test]
fn contributions_are_checked_against_the_workers_clock_and_the_bound() {
    let far = HELD_CLOCKS;
    // (clocks that worker 0 has ended, the clock of its contribution, the refusal)
    let cases = [
        (0, 0, None),
        (0, 1, Some(Refusal::PastClock)),
        (1, 0, Some(Refusal::PastClock)),
        (far - 1, far - 1, None),
        (far, far, Some(Refusal::FarAhead { most: HELD_CLOCKS })),
    ];
    for (ended, clock, refusal) in cases {
        let mut clocks = clocks(Combine::Clock(Reduce::Sum));
        (0..ended).for_each(|clock| {
            clocks.advance(WORKERS[0], Clock(clock), Clock(0));
        });
        assert_eq!(
            clocks.check(WORKERS[0], Clock(clock), Writes::GRADIENTS).err(),
            refusal,
            "{ended} ended, clock {clock}"
        );
    }
    let each = clocks(Combine::Each);
    assert_eq!(each.check(WORKERS[0], Clock(99), Writes::GRADIENTS), Ok(()), "an `each` table accepts any clock");
}

#[test]
fn refused_contribution_fails_only_its_clock() {
    let mut clocks = clocks(Combine::Clock(Reduce::Sum));
    add(&mut clocks, 0, 2, 1);
    add(&mut clocks, 1, 2, 1);
    let failed = FailedClock { clock: Clock(0), worker: WORKERS[1], refusal: Refusal::Undecodable };
    clocks.fail(failed.clone());
    add(&mut clocks, 0, 3, 1);
    assert_eq!(pop(&mut clocks, 2), Some((0, None, vec![102, 103], 20)));
    assert_eq!(pop(&mut clocks, 2), Some((1, Some((vec![2], vec![1])), vec![102], 10)));
    assert_eq!(clocks.failed().collect::<Vec<_>>(), [&failed]);
}

#[test]
fn clocks_keep_earlier_sums_of_held_clocks_when_metadata_is_loaded() {
    let mut head = clocks(Combine::Clock(Reduce::Sum));
    add(&mut head, 4, 1, 7);
    let failed = FailedClock { clock: Clock(6), worker: WORKERS[0], refusal: Refusal::Undecodable };
    head.fail(failed);
    let mut replica = clocks(Combine::Clock(Reduce::Sum));
    add(&mut replica, 3, 1, 9);
    add(&mut replica, 4, 1, 7);
    replica.load(head.save());
    let held: Vec<Clock> = replica.sums().map(|(clock, _)| clock).collect();
    assert_eq!((held, replica.sums_of(Clock(4), 1, &[1])), (vec![Clock(4)], Some(vec![7])));
    assert!(pop(&mut replica, 9).is_some_and(|(clock, outcome, ..)| clock == 4 && outcome.is_some()));
    assert!(pop(&mut replica, 9).is_some_and(|(clock, outcome, ..)| clock == 6 && outcome.is_none()));
}

#[test]
fn clocks_keep_sums_and_changes_of_rows_that_move() {
    let mut clocks = clocks(Combine::Clock(Reduce::Sum));
    add(&mut clocks, 0, 1, 5);
    let moved = Move { from: 1, to: NEW + 2 };
    clocks.rows_moved(SLOTS, &[Move { from: 0, to: NEW }, moved]);
    if let Some(sum) = clocks.sum(Clock(0), Vec::new) {
        sum.add(1, SLOTS, &Resolved::List(vec![NEW + 2]), &[1]);
    }
    clocks.will_change(Clock(0), [(101, NEW + 2), (99, NEW)].into_iter());
    let mut forwarding = Forwarding::new(1, 0, 8);
    forwarding.insert(moved);
    assert_eq!([0; 2].map(|_| clocks.forward(&forwarding, 9)), [1, 0]);
    let ended = clocks.pop_before(Clock(1)).expect("held");
    assert_eq!(ended.changes.iter().collect::<Vec<_>>(), [(101, NEW + 2), (99, NEW)]);
    assert!(matches!(ended.outcome, ClockOutcome::Apply { slots, values } if slots == [NEW + 2] && values == [6]));
}

#[test]
fn clocks_hold_removals_until_their_clock_is_applied_or_fails() {
    let mut clocks = clocks(Combine::Clock(Reduce::Sum));
    clocks.hold_removal(Clock(0), [7, 3].into_iter());
    add(&mut clocks, 1, 1, 5);
    clocks.hold_removal(Clock(1), [9].into_iter());
    assert_eq!((clocks.removes(Clock(0), 7), clocks.removes(Clock(1), 7)), (true, false));
    let has_sum = |clock| clocks.held_sum(Clock(clock)).is_some_and(|sum| sum.contains(1));
    assert_eq!((has_sum(1), has_sum(0), has_sum(7)), (true, false, false));
    let mut replica = self::clocks(Combine::Clock(Reduce::Sum));
    replica.hold_removal(Clock(1), [9].into_iter());
    replica.hold_removal(Clock(5), [9].into_iter());
    replica.load(clocks.save());
    assert_eq!((replica.removals(Clock(1)).count(), replica.removals(Clock(5)).count()), (1, 0));
    clocks.fail(FailedClock { clock: Clock(1), worker: WORKERS[0], refusal: Refusal::Undecodable });
    clocks.hold_removal(Clock(1), [8].into_iter());
    let removals = |clocks: &mut Clocks<i64>| clocks.pop_before(Clock(9)).map(|ended| ended.removals);
    assert_eq!((removals(&mut clocks), removals(&mut clocks)), (Some(vec![3, 7]), Some(vec![])));
}

#[test]
fn clocks_drop_removed_rows_and_report_held_rows() {
    let mut clocks = clocks(Combine::Clock(Reduce::Sum));
    [(0, 1, 5), (0, 3, 6), (2, 1, 7)].into_iter().for_each(|(clock, slot, value)| add(&mut clocks, clock, slot, value));
    clocks.fail(FailedClock { clock: Clock(1), worker: WORKERS[0], refusal: Refusal::Undecodable });
    clocks.will_change(Clock(1), [(101, 1)].into_iter());
    assert_eq!([0, 1, 2, 3].map(|slot| clocks.holds_any(slot)), [false, true, false, true]);
    assert_eq!(clocks.holding(1).collect::<Vec<_>>(), [Clock(0), Clock(2)]);
    clocks.remove_rows(1, &[(101, 1)]);
    assert!(!clocks.holds_any(1) && clocks.holds_any(3));
    clocks.rows_moved(SLOTS, &[Move { from: 3, to: NEW }]);
    assert!(clocks.holds_any(NEW) && !clocks.holds_any(3));
    assert_eq!(pop(&mut clocks, 3), Some((0, Some((vec![NEW], vec![6])), vec![103], 20)));
    assert_eq!(pop(&mut clocks, 3), Some((1, None, vec![], 0)));
    assert_eq!(pop(&mut clocks, 3), Some((2, Some((vec![], vec![])), vec![], 10)));
}

#[test]
fn settings_are_bounded_and_forgotten_with_their_clocks() {
    let mut clocks = clocks(Combine::Each);
    (0..SETTINGS as u64).for_each(|at| clocks.keep_setting(Clock(at)).expect("room"));
    let full = Err(Refusal::FarAhead { most: SETTINGS as u64 });
    assert_eq!((clocks.keep_setting(Clock(5)), clocks.keep_setting(Clock(1 << 20))), (Ok(()), full));
    for worker in WORKERS {
        clocks.advance(worker, Clock(9), Clock(0));
    }
    clocks.forget_settings();
    assert_eq!(clocks.keep_setting(Clock(1 << 20)), Ok(()));
}

/// What is to be done with a contribution to clock 0.
fn asked(clocks: &mut Clocks<i64>) -> &'static str {
    match clocks.contribution(Clock(0), Vec::new) {
        Contribution::Apply => "apply",
        Contribution::Hold(_) => "hold",
        Contribution::Drop => "drop",
    }
}

#[test]
fn clocks_hold_what_is_written_to_a_clock_table_only() {
    // (combine, contribution, refusal of set rows, examples that count now, whether removals are
    // held, contribution after a refused one)
    for (combine, first, set, now, holds, last) in [
        (Combine::Each, "apply", Ok(()), 5, false, "apply"),
        (Combine::Clock(Reduce::Sum), "hold", Err(Refusal::SetByClock), 0, true, "drop"),
    ] {
        let mut clocks = clocks(combine);
        assert_eq!(asked(&mut clocks), first, "{combine:?}");
        assert_eq!(clocks.check(WORKERS[0], Clock(0), Writes::Nothing), Ok(()), "{combine:?}");
        assert_eq!(clocks.check(WORKERS[0], Clock(0), Writes::Rows), set, "{combine:?}");
        assert_eq!(clocks.count_examples(Clock(0), 5), now, "{combine:?}");
        assert_eq!(clocks.takes_removal(Clock(0), &[3]), holds, "{combine:?}");
        for harmless in [Refusal::PastClock, Refusal::SetByClock, Refusal::Dense, Refusal::FarAhead { most: 1 }] {
            clocks.refused(WORKERS[0], Clock(0), &harmless);
        }
        assert_eq!(asked(&mut clocks), first, "{combine:?}: these refusals fail no clock");
        clocks.refused(WORKERS[0], Clock(0), &Refusal::Undecodable);
        assert_eq!(asked(&mut clocks), last, "{combine:?}");
    }
}
