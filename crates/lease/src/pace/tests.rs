//! Shares of workers of various speeds in lock-step: each clock ends when the slowest worker has
//! done its share.

use super::super::{GrantReply, GrantTerms, LeaseAllocator};
use super::*;
use proptest::prelude::*;
use types::{Source, Time};

/// Examples in a minibatch.
const BATCH: u64 = 100;
/// Minibatches that a worker of average speed puts into a clock.
const PER_CLOCK: u32 = 16;

/// A worker's speed in a clock, in minibatches a second.
type Speed = Box<dyn Fn(u64) -> f64>;

/// The course of a run.
struct Run {
    /// Shares, by clock and worker.
    shares: Vec<Vec<u32>>,
    /// The fraction of a clock that a worker waited for others, by clock and worker.
    waits: Vec<Vec<f64>>,
}

impl Run {
    /// The fraction of all workers' time in these clocks that was waiting.
    fn waiting(&self, clocks: std::ops::Range<usize>) -> f64 {
        let waits = self.waits[clocks].concat();
        waits.iter().sum::<f64>() / waits.len() as f64
    }

    fn last(&self) -> &[u32] {
        self.shares.last().expect("there are clocks")
    }
}

/// A run of `clocks` clocks in lock-step. Each clock costs a worker `fixed` seconds more. Unless
/// shares `follow` speed, all workers have the same share.
fn lock_step(per_clock: u32, speeds: &[Speed], clocks: u64, fixed: f64, follow: bool) -> Run {
    let mut allocator =
        LeaseAllocator::new(GrantTerms { ranges: u64::MAX / 8, epochs: 1, shuffle: None, per_clock }).expect("terms");
    let mut run = Run { shares: Vec::new(), waits: Vec::new() };
    for clock in 0..clocks {
        let mut busy = Vec::new();
        run.shares.push(Vec::new());
        for (source, speed) in (0..).map(Source).zip(speeds) {
            // Each lease is one minibatch.
            let share = if follow { allocator.share(source) } else { per_clock };
            let GrantReply::Leases { leases, .. } = allocator.grant(Time(0), source, share.into()) else {
                panic!("no lease")
            };
            let seconds = fixed + f64::from(share) / speed(clock);
            let work = WorkReport { examples: BATCH * leases.len() as u64, busy: Span((seconds * 1e9) as u64) };
            assert_eq!(allocator.commit(source, &leases, Clock(clock), work).fresh, u64::from(share));
            busy.push(seconds);
            run.shares[clock as usize].push(share);
        }
        let longest = busy.iter().copied().fold(0.0, f64::max);
        run.waits.push(busy.iter().map(|busy| 1.0 - busy / longest).collect());
    }
    run
}

fn steady(speed: f64) -> Speed {
    Box::new(move |_| speed)
}

/// A speed drawn anew in each clock, uniform within `spread` of `speed` on both sides.
fn noisy(speed: f64, spread: f64, seed: u64) -> Speed {
    Box::new(move |clock| {
        let mut x = (seed << 32 | clock).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        speed * (1.0 + spread * ((x >> 12) as f64 / (1u64 << 51) as f64 - 1.0))
    })
}

/// How often a worker's share changed direction.
fn turns(run: &Run, worker: usize, clocks: std::ops::Range<usize>) -> usize {
    let shares: Vec<u32> = run.shares[clocks].iter().map(|shares| shares[worker]).collect();
    let mut moves: Vec<bool> =
        shares.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| pair[0] < pair[1]).collect();
    moves.dedup();
    moves.len().saturating_sub(1)
}

#[test]
fn slow_worker_gets_a_smaller_share_and_others_do_not_wait() {
    let speeds = || vec![steady(300.0), steady(300.0), steady(300.0), steady(100.0)];
    let alike = lock_step(PER_CLOCK, &speeds(), 40, 0.0, false).waiting(8..40);
    let run = lock_step(PER_CLOCK, &speeds(), 40, 0.0, true);
    let first = run.waiting(0..8);
    let following = run.waiting(8..40);
    println!("4 workers, one 3 times slower, slack 0: waiting {:.1}% of their time", 100.0 * alike);
    println!("with shares by speed: {:.1}% in clocks 0-7, {:.1}% after", 100.0 * first, 100.0 * following);
    println!("minibatches a clock: {:?}", run.last());
    assert!(alike >= 0.4999 && following <= 0.10, "{alike} and {following}");
    assert!(run.last()[..3].iter().all(|share| (2.5..3.5).contains(&(f64::from(*share) / f64::from(run.last()[3])))));
    assert_eq!(run.shares[4], run.last(), "settled after four clocks, for good");
    assert!((0..4).all(|worker| turns(&run, worker, 0..40) == 0), "{:?}", run.shares);
}

#[test]
fn shares_follow_a_changing_speed_both_ways() {
    let changing: Speed = Box::new(|clock| if (20..40).contains(&clock) { 100.0 } else { 300.0 });
    let run = lock_step(PER_CLOCK, &[steady(300.0), steady(300.0), steady(300.0), changing], 60, 0.0, true);
    let waits = [0..20, 20..26, 26..40, 40..46, 46..60].map(|clocks| run.waiting(clocks));
    println!("a worker slows down threefold in clock 20 and recovers in clock 40: waiting {waits:.3?}");
    assert!(waits[0] < 0.01 && waits[2] < 0.10 && waits[4] < 0.10, "{waits:?}");
    // Down once, up once.
    assert!(turns(&run, 3, 0..60) <= 1, "{:?}", run.shares);
}

#[test]
fn shares_stay_near_the_best_under_noise() {
    let speeds = |spread| {
        vec![noisy(300.0, spread, 1), noisy(300.0, spread, 2), noisy(300.0, spread, 3), noisy(100.0, spread, 4)]
    };
    for spread in [0.05, 0.1, 0.2, 0.4] {
        let run = lock_step(PER_CLOCK, &speeds(spread), 400, 0.0, true);
        // The best shares without knowing the future: in proportion to the mean speeds.
        let best = 1.0 - {
            let busy = |clock: u64| {
                speeds(spread)
                    .iter()
                    .zip([19.2, 19.2, 19.2, 6.4])
                    .map(|(speed, share)| share / speed(clock))
                    .collect::<Vec<f64>>()
            };
            let parts = (20..400).map(|clock| {
                let busy = busy(clock);
                busy.iter().sum::<f64>() / 4.0 / busy.iter().copied().fold(0.0, f64::max)
            });
            parts.sum::<f64>() / 380.0
        };
        let waiting = run.waiting(20..400);
        let changes =
            (0..4).map(|w| run.shares[20..].windows(2).filter(|pair| pair[0][w] != pair[1][w]).count()).sum::<usize>();
        println!(
            "speeds {spread} to both sides: waiting {waiting:.3}, {best:.3} at best; {changes} changes of 4 shares in 380 clocks"
        );
        assert!(waiting < best + 0.06, "{waiting} and {best}");
        let slow: Vec<u32> = run.shares[20..].iter().map(|shares| shares[3]).collect();
        assert!(slow.iter().all(|share| (4..=9).contains(share)), "{slow:?}");
    }
}

#[test]
fn shares_stay_within_their_bounds() {
    let mut speeds = vec![steady(1e9)];
    speeds.extend((0..39).map(|_| steady(1.0)));
    let run = lock_step(PER_CLOCK, &speeds, 30, 0.0, true);
    assert_eq!(run.last()[0], PER_CLOCK * MOST_OF_AVERAGE);
    assert!(run.last()[1..].iter().all(|share| *share == 1));
    let mut allocator =
        LeaseAllocator::new(GrantTerms { ranges: 100, epochs: 1, shuffle: None, per_clock: u32::MAX }).expect("terms");
    for (source, work) in
        [(1, WorkReport { examples: u64::MAX, busy: Span(1) }), (2, WorkReport { examples: 1, busy: Span(u64::MAX) })]
    {
        allocator.grant(Time(0), Source(source), 1);
        allocator.commit(Source(source), &[], Clock(u64::MAX), work);
        allocator.grant(Time(0), Source(source), 1);
    }
    assert_eq!(allocator.share(Source(2)), 1);
}

#[test]
fn shares_ignore_empty_and_repeated_reports() {
    let mut allocator =
        LeaseAllocator::new(GrantTerms { ranges: 100, epochs: 1, shuffle: None, per_clock: 8 }).expect("terms");
    let mut say = |source, leases: &[u64], clock, examples, millis| {
        allocator.grant(Time(0), Source(source), 1);
        let work = WorkReport { examples, busy: Span::from_millis(millis) };
        allocator.commit(Source(source), leases, Clock(clock), work);
        allocator.share(Source(source))
    };
    assert_eq!(say(1, &[0], 0, 1000, 10), 8);
    assert_eq!(say(2, &[], 0, 0, 500), 8, "no examples");
    assert_eq!(say(2, &[], 0, 1000, 0), 8, "no time");
    assert_eq!(say(2, &[], 0, 1000, 30), 4, "a third of the other's speed, half of the average");
    assert_eq!(say(2, &[0], 0, 1000, 3000), 4, "said in that clock already, and the lease is done");
    assert!(say(2, &[], 1, 1000, 90) < 4);
}

proptest! {
    #[test]
    fn shares_settle_at_steady_speeds(
        speeds in prop::collection::vec(50.0f64..600.0, 2..9),
        fixed in 0.0f64..0.04,
    ) {
        let steady: Vec<Speed> = speeds.iter().map(|speed| steady(*speed)).collect();
        let run = lock_step(64, &steady, 60, fixed, true);
        prop_assert_eq!(&run.shares[40], run.last(), "settled");
        prop_assert!(run.waiting(12..60) <= 0.06, "{} of {:?} with {:?}", run.waiting(12..60), speeds, run.last());
        for worker in 0..speeds.len() {
            // The rounding of other shares, and the fixed time of a clock, may cause one step back.
            prop_assert!(turns(&run, worker, 3..60) <= 1, "{:?} of {:?}", run.shares, speeds);
        }
    }
}
