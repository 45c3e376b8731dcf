//! Training on leased data, in elastic runs within this process: every example of every epoch
//! counts once, in the weights and in the tally, while workers come and go. All workers end in the
//! same way.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::gather::Examples;
use apps::leased::Leased;
use apps::mlp::{self, Mlp};
use apps::once::once;
use apps::program::{Program, Task, Weights};
use apps::scaling::Scaling;
use apps::tally::Counted;
use apps::train::{Go, Learnt, Rate, Rule, TrainError, Trained, Training, train};
use common::{Scratch, open};
use data::{DataReader, Format, Labels, ReaderSettings, Shuffle};
use slackwater::cluster::Membership;
use slackwater::policy::{Codecs, Initial};
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Error, RunSize, Serve, Session, Table};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

const ROWS: u64 = 8_000;
const FEATURES: u64 = 37;
const EPOCHS: u32 = 3;
/// A power of two, so that weights count exactly.
const MINIBATCH: usize = 64;

/// A program that counts: each example moves the weight of each of its features by the same amount,
/// an example's share of a minibatch.
struct Counter;

impl Program for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn task(&self) -> Task {
        Task::Regression
    }

    fn tables(&self) -> Vec<Weights> {
        vec![Weights { name: "weights", width: 1, initial: Initial::Zero, l2: 0.0 }]
    }

    fn learn(&self, examples: &Examples<'_>, _: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64 {
        for example in examples.iter() {
            example.terms().for_each(|(place, _)| gradients[0][place] -= 1.0);
        }
        examples.len() as f64
    }

    fn predict(&self, _: &Examples<'_>, _: &[&[f32]], _: &mut Vec<f32>) {}
}

fn rows(scratch: &Scratch) -> DataReader {
    let path = scratch.path("rows.libsvm");
    let row = |row: u64| format!("{} {}:1 {}:{}\n", row % 2, row % FEATURES, 100 + row % 2, row % 5);
    std::fs::write(&path, (0..ROWS).map(row).collect::<String>()).unwrap();
    let shuffle = Some(Shuffle { minibatches: 8 });
    let settings =
        ReaderSettings { epochs: EPOCHS, minibatch_rows: MINIBATCH, shuffle, ..common::lib_svm(Labels::Binary) };
    open(&path, settings)
}

fn training(rate: Rate, consistency: Consistency) -> Training {
    Training { rule: Rule::Sgd { rate }, l1: 0.0, consistency, bias: false, codecs: Codecs::default() }
}

/// Starts an elastic run of two servers. Returns how to join it, and the servers' thread.
fn cluster(workers: u32) -> (Connect, std::thread::JoinHandle<()>) {
    let coordinator_address = slackwater::cluster::free_address().unwrap().to_string();
    let connect =
        Connect { join_limit: Duration::from_secs(50), access: Access::Insecure, ..Connect::to(&coordinator_address) };
    let serve = Serve {
        threads: 2,
        coordinate: Some(RunSize { servers: 2, workers }),
        membership: Membership::Elastic { replicas: 2, shards_per_server: 4 },
        ..Serve::new(connect.clone())
    };
    (connect, std::thread::spawn(move || drop(serve.run().unwrap())))
}

/// Runs a test, and fails if it takes longer than two minutes.
fn within_two_minutes(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).ok();
    });
    assert_ne!(wait.recv_timeout(Duration::from_secs(120)), Err(RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// How often each feature was learnt from, computed from its weight.
fn counts(table: &Table<f32>) -> Vec<f32> {
    let features: Vec<u64> = (0..FEATURES).collect();
    let keys = table.keys(&features);
    let pulled = table.pull(&keys).and_then(slackwater::Ticket::wait).unwrap();
    let mut counts: Vec<(u64, f32)> =
        keys.ids().zip(pulled.values()).map(|(key, weight)| (key, weight * MINIBATCH as f32)).collect();
    counts.sort_by_key(|(key, _)| *key);
    counts.into_iter().map(|(_, count)| count).collect()
}

/// The sum of all points of the tally.
fn all_counted(trained: &Trained) -> Counted {
    let points = trained.tally.as_ref().unwrap().read().unwrap();
    points.into_iter().fold(Counted::default(), Counted::and)
}

/// Runs a worker: it trains, and one of the workers checks what all have learnt. Returns the clock
/// and whether training was stopped, or none if this worker left.
fn learn(
    connect: &Connect,
    leased: &Leased,
    consistency: Consistency,
    watch: impl FnMut(Learnt) -> Go,
) -> Option<(u64, bool)> {
    let session = Session::connect(connect).unwrap();
    assert!(session.is_elastic());
    let trained = train(&session, &Counter, &training(Rate::Constant(1.0), consistency), None, leased, watch);
    let seen = match trained {
        Ok(trained) => {
            let clock = session.now().0;
            let looked = once(&session, || Ok::<_, Error>((all_counted(&trained), counts(&trained.tables[0]))));
            if let Some((counted, counts)) = looked.unwrap() {
                let all = f64::from(EPOCHS) * ROWS as f64;
                assert!(trained.stopped || counted.examples == all, "{counted:?}");
                assert_eq!(counted.examples, counted.loss, "every loss is counted as its example is");
                let learnt: f32 = counts.iter().sum();
                let more = f64::from(learnt) - counted.examples;
                // A worker that leaves does not count its unfinished lease, because another worker
                // learns it again. If the training is stopped before that, the weights have up to
                // two minibatches more than the tally.
                let of_leavers = if trained.stopped { (2 * MINIBATCH) as f64 } else { 0.0 };
                assert!((0.0..=of_leavers).contains(&more), "the weights have {learnt}, and {counted:?} is counted");
                for (feature, count) in counts.iter().enumerate().filter(|_| !trained.stopped) {
                    let in_file = (0..ROWS).filter(|row| row % FEATURES == feature as u64).count();
                    assert_eq!(*count, (in_file * EPOCHS as usize) as f32, "feature {feature}");
                }
            }
            Some((clock, trained.stopped))
        }
        Err(TrainError::Left) => None,
        Err(error) => panic!("{error}"),
    };
    session.close().unwrap();
    seen
}

#[test]
fn every_example_counts_once_while_workers_come_and_go() {
    for consistency in [Consistency::LOCK_STEP, Consistency::slack(3), Consistency::Unbounded] {
        within_two_minutes(move || {
            let scratch = Scratch::new("leased");
            let leased = Leased::of(&rows(&scratch), 7).unwrap();
            let (connect, servers) = cluster(3);
            let (come, coming) = channel();
            let late_has_learnt = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let connect = &connect;
                let leased = &leased;
                let late_has_learnt = &late_has_learnt;
                let stays = |come: Option<std::sync::mpsc::Sender<()>>| {
                    let mut seen = 0;
                    move || {
                        let watch = |_| {
                            seen += 1;
                            // This is somewhere in the first epoch.
                            if seen == 20 {
                                come.iter().for_each(|come| come.send(()).unwrap());
                            }
                            // The pause leaves some data for the late worker, even on a busy
                            // machine.
                            let pause = if late_has_learnt.load(Ordering::Relaxed) { 0 } else { 10 };
                            std::thread::sleep(Duration::from_millis(pause));
                            Go::On
                        };
                        learn(connect, leased, consistency, watch)
                    }
                };
                let first = scope.spawn(stays(Some(come)));
                let second = scope.spawn(stays(None));
                let goes = scope.spawn(move || {
                    let mut seen = 0;
                    // This is in the middle of a lease, because every range has more minibatches.
                    let watch = |_| {
                        seen += 1;
                        if seen < 10 { Go::On } else { Go::Leave }
                    };
                    learn(connect, leased, consistency, watch)
                });
                coming.recv_timeout(Duration::from_secs(60)).unwrap();
                let mut late_learnt = 0;
                let comes = learn(connect, leased, consistency, |learnt| {
                    late_learnt += learnt.examples;
                    late_has_learnt.store(true, Ordering::Relaxed);
                    Go::On
                });
                assert!(late_learnt > 0, "nothing was left for the worker that joined late");
                assert_eq!(goes.join().unwrap(), None);
                let ended = [first.join().unwrap(), second.join().unwrap(), comes];
                assert!(ended.iter().all(|end| *end == ended[0] && end.is_some()), "{ended:?}");
                assert_eq!(ended[0].map(|(_, stopped)| stopped), Some(false));
            });
            servers.join().unwrap();
        });
    }
}

#[test]
fn a_worker_told_to_stop_ends_training_for_all_at_one_clock() {
    for consistency in [Consistency::LOCK_STEP, Consistency::slack(3), Consistency::Unbounded] {
        within_two_minutes(move || {
            let scratch = Scratch::new("leased-stop");
            let leased = Leased::of(&rows(&scratch), 7).unwrap();
            let (connect, servers) = cluster(3);
            let ended: Vec<_> = std::thread::scope(|scope| {
                let connect = &connect;
                let leased = &leased;
                let work = |worker: u32| {
                    scope.spawn(move || {
                        let mut seen = 0;
                        let watch = |_| {
                            seen += 1;
                            if worker == 1 && seen == 25 { Go::Stop } else { Go::On }
                        };
                        learn(connect, leased, consistency, watch)
                    })
                };
                let workers: Vec<_> = (0..3).map(work).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).collect()
            });
            assert!(ended.iter().all(|end| *end == ended[0]), "{consistency}: {ended:?}");
            assert_eq!(ended[0].map(|(_, stopped)| stopped), Some(true));
            servers.join().unwrap();
        });
    }
}

#[test]
fn at_least_one_worker_stays_when_all_are_told_to_leave_at_once() {
    within_two_minutes(|| {
        let scratch = Scratch::new("leased-all-leave");
        let leased = Leased::of(&rows(&scratch), 7).unwrap();
        let (connect, servers) = cluster(3);
        let ended: Vec<_> = std::thread::scope(|scope| {
            let work = || scope.spawn(|| learn(&connect, &leased, Consistency::slack(3), |_| Go::Leave));
            let workers: Vec<_> = (0..3).map(|_| work()).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let stayed: Vec<bool> = ended.iter().flatten().map(|(_, stopped)| *stopped).collect();
        assert!(!stayed.is_empty() && stayed.iter().all(|stopped| *stopped), "{ended:?}");
        servers.join().unwrap();
    });
}

#[test]
fn once_is_done_by_another_worker_if_the_first_is_lost_midway() {
    within_two_minutes(|| {
        let sessions = Session::embedded(RunSize { servers: 1, workers: 3 }).unwrap();
        let done: Vec<Option<Option<u32>>> = std::thread::scope(|scope| {
            let work = |session: Session| {
                scope.spawn(move || {
                    let rank = session.rank();
                    let lost = || Error::Leases { problem: "it leaves in the middle".to_owned() };
                    let done = once(&session, || if rank == 0 { Err(lost()) } else { Ok(rank) });
                    session.close().unwrap();
                    done.ok()
                })
            };
            let workers: Vec<_> = sessions.into_iter().map(work).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(done[0], None);
        let others = [done[1].unwrap(), done[2].unwrap()];
        assert!(others == [Some(1), None] || others == [None, Some(2)], "{others:?}");
    });
}

#[test]
fn a_worker_with_other_settings_is_refused() {
    let scratch = Scratch::new("leased-other");
    let reader = rows(&scratch);
    let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 }).unwrap();
    let other = sessions.remove(1);
    let one = sessions.remove(0);
    let told = |told| Leased::of(&reader, told).unwrap();
    let training = training(Rate::Constant(1.0), Consistency::slack(3));
    let (begun, begins) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let watch = |_| {
                begun.send(()).ok();
                Go::On
            };
            train(&one, &Counter, &training, None, &told(1), watch).map(drop)
        });
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        let problem = train(&other, &Counter, &training, None, &told(2), |_| Go::On).err().unwrap().to_string();
        assert!(problem.contains("with settings 0000000000000001"), "{problem}");
        other.abandon("it does not belong here");
        first.join().unwrap().unwrap_err();
    });
}

#[test]
fn rates_fall_with_the_epochs_of_leases() {
    within_two_minutes(|| {
        let scratch = Scratch::new("leased-rates");
        let path = scratch.path("one.libsvm");
        std::fs::write(&path, "1 7:1\n").unwrap();
        let settings = ReaderSettings { epochs: 4, ..ReaderSettings::new(Format::LibSvm, Labels::Real) };
        let leased = Leased::of(&open(&path, settings), 0).unwrap();
        let session = Session::embedded(RunSize { servers: 2, workers: 1 }).unwrap().remove(0);
        let training = training(Rate::Falling(1.0), Consistency::LOCK_STEP);
        let trained = train(&session, &Counter, &training, None, &leased, |_| Go::On).unwrap();
        let weight = trained.tables[0].pull(&trained.tables[0].keys(&[7])).unwrap().wait().unwrap();
        assert_eq!(weight.values(), [1.0 + 0.75 + 0.5 + 0.25]);
        session.close().unwrap();
    });
}

#[test]
fn moments_of_leased_data_are_those_of_shares() {
    within_two_minutes(|| {
        let scratch = Scratch::new("leased-moments");
        let reader = rows(&scratch);
        let leased = Leased::of(&reader, 0).unwrap();
        let of_shares = common::on_workers(&reader, 2, |session, share| {
            Scaling::measure(session, Task::Regression, share).unwrap()
        });
        let of_leases =
            common::on_workers(&reader, 3, |session, _| Scaling::measure(session, Task::Regression, &leased).unwrap());
        // All values are whole numbers, so the order of adding up does not matter.
        assert!(of_leases.iter().chain(&of_shares).all(|scaling| *scaling == of_shares[0]));
    });
}

#[test]
fn a_perceptron_learns_from_leases_too() {
    within_two_minutes(|| {
        let scratch = Scratch::new("leased-mlp");
        let reader = rows(&scratch);
        let leased = Leased::of(&reader, 0).unwrap();
        let mlp = Mlp { inputs: 102, hidden: vec![8], classes: 2, seed: 1, l2: 0.0 };
        let adam = Rule::Adam { rate: Rate::Falling(0.02) };
        let training = Training { rule: adam, ..training(Rate::Constant(1.0), Consistency::slack(2)) };
        let losses = common::on_workers(&reader, 3, |session, _| {
            let trained = mlp::train(session, &mlp, &training, &leased, |_| Go::On).unwrap();
            assert_eq!(all_counted(&trained).examples, f64::from(EPOCHS) * ROWS as f64);
            let points = trained.tally.unwrap().read().unwrap();
            let mean = |point: &Counted| point.loss / point.weight;
            (points.first().map(mean).unwrap(), points.last().map(mean).unwrap())
        });
        // Whether a row has key 100 or key 101 decides its label, but the key's value is sometimes
        // zero.
        assert!(losses.iter().all(|(first, last)| *last < 0.4 && last < first), "{losses:?}");
    });
}
