//! Training that ends before its data does: because a worker is told to stop or to leave, or cannot
//! read its share. In each case no other worker is left waiting.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use apps::leased::Leased;
use apps::logistic::Logistic;
use apps::proximal::Proximal;
use apps::train::{Go, Rule, TrainError, Trained, Training, train};
use data::{DataReader, Format, Labels, ReaderSettings};
use slackwater::cluster::{LeaveSignal, Membership};
use slackwater::security::Access;
use slackwater::{Connect, Consistency, RunSize, Serve, Session};
use std::sync::mpsc::channel;
use std::time::Duration;

const MODES: [Consistency; 3] = [Consistency::LOCK_STEP, Consistency::slack(3), Consistency::Unbounded];

/// Writes a file with so many rows that each of three workers has many blocks. `last` is the text
/// after the last row.
fn rows(name: &str, last: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("slackwater-ending-{name}-{}.libsvm", std::process::id()));
    let row = |row: u64| format!("{} {}:1 {}:0.5\n", row % 2, row % 97, 100 + row % 89);
    std::fs::write(&path, (0..40_000).map(row).collect::<String>() + last).unwrap();
    path
}

/// Three workers train on the file. Returns each worker's result, and how many minibatches it has
/// seen.
fn run(
    path: &std::path::Path,
    epochs: u32,
    consistency: Consistency,
    watch: impl Fn(u32, u64) -> Go + Sync,
) -> Vec<(Result<Trained, TrainError>, u64)> {
    let settings =
        ReaderSettings { epochs, minibatch_rows: 100, ..ReaderSettings::new(Format::LibSvm, Labels::Binary) };
    let reader = DataReader::open(&[path.to_str().unwrap()], settings).unwrap();
    let training = Training::new(Rule::Ftrl { rate: 0.1, beta: 1.0 }, consistency);
    let sessions = Session::embedded(RunSize { servers: 2, workers: 3 }).unwrap();
    std::thread::scope(|scope| {
        let work = |session: Session| {
            let reader = &reader;
            let training = &training;
            let watch = &watch;
            scope.spawn(move || {
                let share = reader.for_worker(session.rank(), 3).unwrap();
                let program = Logistic { l2: 0.0 };
                let mut seen = 0;
                let trained = train(&session, &program, training, None, &share, |_| {
                    seen += 1;
                    watch(session.rank(), seen)
                });
                session.close().unwrap();
                (trained, seen)
            })
        };
        let workers: Vec<_> = sessions.into_iter().map(work).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn all_workers_stop_when_one_is_told_to() {
    let path = rows("told", "");
    for consistency in MODES {
        // If no worker were told to stop, this would take days.
        let ended =
            run(&path, 1_000_000, consistency, |rank, seen| if (rank, seen) == (1, 5) { Go::Stop } else { Go::On });
        for (trained, _) in &ended {
            assert!(trained.as_ref().is_ok_and(|trained| trained.stopped), "{consistency:?}");
        }
        assert_eq!(ended[1].1, 5);
    }
    let ended = run(&path, 1, Consistency::LOCK_STEP, |_, _| Go::On);
    assert!(ended.iter().all(|(trained, _)| trained.as_ref().is_ok_and(|trained| !trained.stopped)));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn all_workers_fail_when_one_cannot_read_its_share() {
    let path = rows("bad", "1 5:1 nonsense\n");
    for consistency in MODES {
        let mut malformed = 0;
        for (trained, _) in run(&path, 1, consistency, |_, _| Go::On) {
            match trained.err() {
                Some(TrainError::Data(error)) => {
                    malformed += 1;
                    assert!(error.to_string().contains(":40001:7: expected `index:value`"), "{error}");
                }
                Some(TrainError::Other) => {}
                other => panic!("{consistency:?}: {other:?}"),
            }
        }
        assert_eq!(malformed, 1, "{consistency:?}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_session_can_train_again_from_the_weights_it_has_learnt() {
    let path = rows("again", "");
    let settings = ReaderSettings { minibatch_rows: 1000, ..ReaderSettings::new(Format::LibSvm, Labels::Binary) };
    let reader = DataReader::open(&[path.to_str().unwrap()], settings).unwrap();
    for consistency in MODES {
        let training = Training::new(Rule::Ftrl { rate: 0.1, beta: 1.0 }, consistency);
        let sessions = Session::embedded(RunSize { servers: 1, workers: 2 }).unwrap();
        let losses: Vec<f64> = std::thread::scope(|scope| {
            let work = |session: Session| {
                let reader = &reader;
                let training = &training;
                scope.spawn(move || {
                    let share = reader.for_worker(session.rank(), 2).unwrap();
                    let [_, second] = [0, 1].map(|_| {
                        let mut first_loss = None;
                        let trained = train(&session, &Logistic { l2: 0.0 }, training, None, &share, |learnt| {
                            first_loss.get_or_insert(learnt.loss / learnt.weight);
                            Go::On
                        });
                        assert!(!trained.unwrap().stopped);
                        first_loss.unwrap()
                    });
                    session.close().unwrap();
                    second
                })
            };
            let workers: Vec<_> = sessions.into_iter().map(work).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        for loss in losses {
            assert!((loss - 2f64.ln()).abs() > 1e-8, "{consistency:?}: the second begins with weights, not {loss}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Three workers make proximal steps in eight blocks, with no limit of their own. Returns, for each
/// worker, whether it was stopped and after how many clocks.
fn proximal_steps(name: &str, consistency: Consistency, watch: impl Fn(u32, u64) -> Go + Sync) -> Vec<(bool, u64)> {
    let path = rows(name, "");
    let reader =
        DataReader::open(&[path.to_str().unwrap()], ReaderSettings::new(Format::LibSvm, Labels::Binary)).unwrap();
    // No gap is negative, so this tolerance is never reached.
    let proximal = Proximal {
        l1: 1e-4,
        blocks: 8,
        consistency,
        passes: u32::MAX,
        tolerance: -1.0,
        codecs: slackwater::policy::Codecs::default(),
    };
    let sessions = Session::embedded(RunSize { servers: 2, workers: 3 }).unwrap();
    let ended = std::thread::scope(|scope| {
        let work = |session: Session| {
            let reader = &reader;
            let proximal = &proximal;
            let watch = &watch;
            scope.spawn(move || {
                let share = reader.for_worker(session.rank(), 3).unwrap();
                let mut clocks = 0;
                let solved = apps::proximal::train(&session, proximal, &share, |state| {
                    clocks += u64::from(state.is_none());
                    watch(session.rank(), clocks)
                });
                session.close().unwrap();
                (solved.unwrap().stopped, clocks)
            })
        };
        let workers: Vec<_> = sessions.into_iter().map(work).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    std::fs::remove_file(&path).unwrap();
    ended
}

#[test]
fn proximal_steps_end_after_the_same_clock_when_one_worker_is_told_to_stop() {
    for (consistency, most) in [(Consistency::LOCK_STEP, 6), (Consistency::slack(3), 9), (Consistency::Unbounded, 79)] {
        // Worker 1 is told in the middle of the first pass.
        let stop = |rank, clocks| if (rank, clocks) == (1, 3) { Go::Stop } else { Go::On };
        let ended = proximal_steps("proximal", consistency, stop);
        assert!(ended.iter().all(|(stopped, clocks)| *stopped && *clocks == ended[0].1), "{consistency}: {ended:?}");
        // A worker is ahead by at most slack + 2 clocks, and learns of the stop in that clock or in
        // the next. The first check comes with clock 80.
        assert!((3..=most).contains(&ended[0].1), "{consistency}: {ended:?}");
    }
}

/// There is only one range. So one of the two workers has all the data, and the other waits for a
/// lease.
#[test]
fn a_worker_that_waits_for_leases_leaves_when_it_is_told_to() {
    let path = rows("waits", "");
    let settings = ReaderSettings { minibatch_rows: 30_000, ..ReaderSettings::new(Format::LibSvm, Labels::Binary) };
    let leased = Leased::of(&DataReader::open(&[path.to_str().unwrap()], settings).unwrap(), 0).unwrap();
    assert_eq!(leased.ranges(), 1);
    let coordinator_address = slackwater::cluster::free_address().unwrap().to_string();
    let connect = || Connect {
        join_limit: Duration::from_secs(50),
        leave: LeaveSignal::default(),
        access: Access::Insecure,
        ..Connect::to(&coordinator_address)
    };
    let coordinate = Some(RunSize { servers: 1, workers: 2 });
    let membership = Membership::Elastic { replicas: 1, shards_per_server: 2 };
    let serve = Serve { threads: 1, coordinate, membership, ..Serve::new(connect()) };
    let rule = Rule::Ftrl { rate: 0.1, beta: 1.0 };
    let codecs = slackwater::policy::Codecs::default();
    let training = &Training { rule, l1: 0.0, consistency: Consistency::LOCK_STEP, bias: true, codecs };
    let (holds, told_who_holds) = channel::<usize>();
    let (ended, told_who_ended) = channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve.run().unwrap());
        let leaves = [(0, connect()), (1, connect())].map(|(number, connect)| {
            let leased = &leased;
            let leave = connect.leave.clone();
            let holds = holds.clone();
            let ended = ended.clone();
            let (go_on, wait) = channel::<()>();
            scope.spawn(move || {
                let session = Session::connect(&connect).unwrap();
                let trained = train(&session, &Logistic { l2: 0.0 }, training, None, leased, |_| {
                    holds.send(number).unwrap();
                    wait.recv_timeout(Duration::from_secs(60)).unwrap();
                    Go::On
                });
                session.close().unwrap();
                ended.send((number, trained.map(|trained| trained.stopped))).unwrap();
            });
            (leave, go_on)
        });
        let holder = told_who_holds.recv_timeout(Duration::from_secs(60)).unwrap();
        leaves[1 - holder].0.ask();
        let (left, why) = told_who_ended.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(left == 1 - holder && matches!(why, Err(TrainError::Left)), "{left}: {why:?}");
        (0..2).for_each(|_minibatch| leaves[holder].1.send(()).unwrap());
        let (_, trained) = told_who_ended.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(trained, Ok(false)), "{trained:?}");
        server.join().unwrap();
    });
    std::fs::remove_file(path).unwrap();
}
