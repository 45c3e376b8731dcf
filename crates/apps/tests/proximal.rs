//! Asynchronous proximal steps: workers run ahead of one that is held up, and still reach the
//! optimum.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::proximal::{Gap, Proximal};
use apps::train::Go;
use common::{Scratch, lib_svm, on_workers, open};
use data::{DataReader, Labels};
use slackwater::Consistency;
use slackwater::policy::Codecs;
use std::fmt::Write;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Rows whose label depends on some of their features. All rows share one feature.
fn rows(scratch: &Scratch) -> DataReader {
    let mut text = String::new();
    for row in 0..3_000u64 {
        let a = row * 37 % 11;
        let b = row * 53 % 13;
        let label = u64::from(a + row % 5 > b);
        writeln!(text, "{label} 1:1 {}:1 {}:0.5 {}:2", 2 + a, 20 + b, 40 + row % 17).expect("a string grows");
    }
    let path = scratch.path("rows.libsvm");
    std::fs::write(&path, text).expect("a file can be written");
    open(&path, lib_svm(Labels::Binary))
}

/// Three workers make asynchronous steps in eight blocks. `watch` gets a worker's rank and clock.
fn steps(name: &str, passes: u32, watch: impl Fn(u32, u64) + Sync) -> Vec<Gap> {
    let scratch = Scratch::new(name);
    let consistency = Consistency::Unbounded;
    let codecs = Codecs::default();
    let proximal = Proximal { l1: 1e-3, blocks: 8, consistency, passes, tolerance: 1e-3, codecs };
    on_workers(&rows(&scratch), 3, |session, share| {
        let mut clock = 0;
        let solved = apps::proximal::train(session, &proximal, share, |_| {
            clock += 1;
            watch(session.rank(), clock);
            Go::On
        });
        solved.expect("it trains").gap
    })
}

#[test]
fn asynchronous_workers_do_not_wait_for_one_that_is_held_up() {
    const AHEAD: u64 = 60;
    let furthest = (Mutex::new(0), Condvar::new());
    steps("held-up", 10, |rank, clock| {
        let mut seen = furthest.0.lock().expect("no worker panics");
        if rank == 0 {
            *seen = clock;
            furthest.1.notify_all();
        } else if rank == 1 && clock == 1 {
            let is_near = |seen: &mut u64| *seen < AHEAD;
            let limit = Duration::from_secs(60);
            let (_seen, waited) = furthest.1.wait_timeout_while(seen, limit, is_near).expect("no worker panics");
            assert!(!waited.timed_out(), "worker 0 waits for the worker that is held up");
        }
    });
}

#[test]
fn asynchronous_steps_reach_the_optimum_with_a_slow_worker() {
    let gaps = steps("behind", 2_000, |rank, clock| {
        if rank == 1 && clock % 5 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(gaps.iter().all(|gap| gap.relative() <= 1e-3), "{gaps:?}");
}
