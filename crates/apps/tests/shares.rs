//! Load balancing by data leases, with one worker that is permanently slow.
//!
//! With several minibatches a clock, the slow worker gets less work, and the others seldom wait for
//! it. With one minibatch a clock, all workers get the same work, and the others mostly wait.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::gather::Examples;
use apps::leased::Leased;
use apps::program::{Program, Task, Weights};
use apps::train::{Go, Rate, Rule, Training, train};
use common::{Scratch, open};
use data::{DataReader, Labels, ReaderSettings};
use slackwater::policy::{Codecs, Initial};
use slackwater::{Consistency, RunSize, Session};
use std::time::Duration;

const ROWS: u64 = 4_800;
const MINIBATCH: usize = 8;
const FAST: Duration = Duration::from_millis(1);
const SLOW: Duration = Duration::from_millis(10);

/// A program that learns nothing, and sleeps for a time in each minibatch.
struct Idle(Duration);

impl Program for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn task(&self) -> Task {
        Task::Regression
    }

    fn tables(&self) -> Vec<Weights> {
        vec![Weights { name: "weights", width: 1, initial: Initial::Zero, l2: 0.0 }]
    }

    fn learn(&self, _: &Examples<'_>, _: &[&[f32]], _: &mut [Vec<f32>]) -> f64 {
        std::thread::sleep(self.0);
        0.0
    }

    fn predict(&self, _: &Examples<'_>, _: &[&[f32]], _: &mut Vec<f32>) {}
}

/// Writes rows of about 128 bytes, so that a lease has few minibatches.
fn rows(scratch: &Scratch) -> DataReader {
    let path = scratch.path("rows.libsvm");
    let features: String = (100..120).map(|key| format!(" {key}:1")).collect();
    std::fs::write(&path, format!("1{features}\n").repeat(ROWS as usize)).unwrap();
    open(&path, ReaderSettings { minibatch_rows: MINIBATCH, ..common::lib_svm(Labels::Binary) })
}

/// A worker's counts: rows that it learnt from, reads of weights, and how many of these reads
/// waited for another worker.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    rows: u64,
    reads: u64,
    parked: u64,
}

/// Trains with two fast workers and a slow one, and returns their counts in that order.
fn learn(per_clock: u32) -> [Part; 3] {
    let scratch = Scratch::new(&format!("shares-{per_clock}"));
    let leased = Leased::of(&rows(&scratch), 0).unwrap().per_clock(per_clock);
    let rule = Rule::Sgd { rate: Rate::Constant(1.0) };
    let consistency = Consistency::slack(1);
    let training = Training { rule, l1: 0.0, consistency, bias: false, codecs: Codecs::default() };
    let sessions = Session::embedded(RunSize { servers: 1, workers: 3 }).unwrap();
    let parts: Vec<Part> = std::thread::scope(|scope| {
        let work = |session: Session| {
            let leased = &leased;
            let training = &training;
            scope.spawn(move || {
                let mut part = Part::default();
                let watch = |learnt: apps::train::Learnt| {
                    part.rows += learnt.examples;
                    part.reads += 1;
                    part.parked += learnt.parked;
                    Go::On
                };
                let idle = Idle(if session.rank() == 2 { SLOW } else { FAST });
                train(&session, &idle, training, None, leased, watch).unwrap();
                session.close().unwrap();
                part
            })
        };
        let workers: Vec<_> = sessions.into_iter().map(work).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    parts.try_into().unwrap()
}

#[test]
fn a_slow_worker_gets_less_work_only_if_a_clock_has_several_minibatches() {
    for (per_clock, shares_follow_speed) in [(1, false), (8, true)] {
        let [one, two, slow] = learn(per_clock);
        println!("{per_clock} minibatches a clock: {one:?}, {two:?}; the slow one {slow:?}");
        assert_eq!(one.rows + two.rows + slow.rows, ROWS);
        let reads = one.reads + two.reads;
        let parked = one.parked + two.parked;
        if shares_follow_speed {
            assert!(slow.rows < ROWS / 5, "the slow worker should get less than a fifth of the rows: {slow:?}");
            assert!(4 * parked < reads, "fewer than a quarter of the others' reads should wait: {one:?}, {two:?}");
        } else {
            assert!(slow.rows > ROWS / 4, "the slow worker should get more than a quarter of the rows: {slow:?}");
            assert!(2 * parked > reads, "more than half of the others' reads should wait: {one:?}, {two:?}");
        }
    }
}
