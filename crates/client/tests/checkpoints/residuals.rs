//! Residuals of codecs are in a checkpoint, and arrive in a run that resumes from it, with any
//! number of workers.

use crate::support::{Folder, LIMIT, clock_of, run, settings};
use slackwater::policy::{Codecs, Combine, Reduce};
use slackwater::{Consistency, Error, Keys, RunSize, Serve, Session, Table, TableSpec, UpdaterSpec};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROWS: u64 = 40;
const SLACK: u64 = 3;

/// A table whose codec holds back every push: no row's residual ever reaches the threshold.
fn held_back(name: &str, combine: Combine) -> TableSpec {
    let rows = TableSpec::dense(name, ROWS, 2).updater(UpdaterSpec::Sum).combine(combine);
    rows.consistency(Consistency::slack(SLACK)).codecs(Codecs::up(["threshold=1000000"]))
}

struct Tables {
    by_clock: Table<f32>,
    each: Table<f32>,
}

impl Tables {
    fn of(session: &Session) -> Result<Self, Error> {
        let by_clock = session.table(held_back("by clock", Combine::Clock(Reduce::Sum)))?;
        Ok(Self { by_clock, each: session.table(held_back("each", Combine::Each))? })
    }
}

/// Copies a checkpoint's folder.
fn copy(checkpoint: &Path, to: &Folder) {
    let to = to.0.join(checkpoint.file_name().expect("a name"));
    std::fs::create_dir_all(&to).expect("a folder");
    for file in std::fs::read_dir(checkpoint).expect("readable") {
        let file = file.expect("readable");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

#[test]
fn residuals_arrive_in_a_resumed_run() {
    let folder = Folder::new();
    let before_they_left = Folder::new();
    let with_checkpoints = |serve: &mut Serve| serve.checkpoints = Some(settings(&folder));
    // The clock at which all workers stop: ahead of any clock that a worker may have reached by
    // then.
    let last = AtomicU64::new(u64::MAX);
    let arrived = run(RunSize { servers: 2, workers: 3 }, with_checkpoints, |session| {
        let tables = Tables::of(session)?;
        let begin = Instant::now();
        for clock in 0.. {
            if session.rank() == 0 && folder.published().len() >= 3 {
                last.fetch_min(clock + SLACK + 2, Ordering::Relaxed);
            }
            if clock >= last.load(Ordering::Relaxed) {
                break;
            }
            assert!(begin.elapsed() < LIMIT, "no checkpoint comes");
            drop(tables.by_clock.push(&Keys::run(0..ROWS), vec![1.0; 2 * ROWS as usize])?);
            drop(tables.each.push(&Keys::run(3..7), vec![1.0; 8])?);
            session.clock()?;
            std::thread::sleep(Duration::from_millis(1 + u64::from(session.rank())));
            tables.by_clock.pull(&Keys::run(0..1))?.wait()?;
        }
        // A worker that leaves sends its residuals, so no worker leaves before all have read.
        session.barrier()?;
        let arrived = tables.by_clock.pull(&Keys::run(0..ROWS))?.wait()?.values().iter().any(|value| *value != 0.0);
        if session.rank() == 0 {
            copy(&folder.published().pop().expect("one"), &before_they_left);
        }
        session.barrier()?;
        Ok(arrived)
    });
    assert_eq!(arrived.expect("a run"), [false; 3], "the codec holds back every push");
    let clock = clock_of(&before_they_left.published().pop().expect("one"));

    let resumed = |serve: &mut Serve| serve.resume = Some(before_they_left.resume());
    let found = run(RunSize { servers: 3, workers: 2 }, resumed, |session| {
        let tables = Tables::of(session)?;
        (0..=SLACK).try_for_each(|_| session.clock())?;
        session.barrier()?;
        let by_clock = tables.by_clock.pull(&Keys::run(0..ROWS))?.wait()?.values().to_vec();
        Ok((by_clock, tables.each.pull(&Keys::run(0..ROWS))?.wait()?.values().to_vec()))
    });
    let all = 3.0 * clock as f32;
    for (by_clock, each) in found.expect("a resumed run") {
        assert!(by_clock.iter().all(|value| *value == all), "{by_clock:?} is not {all} everywhere");
        let expected: Vec<f32> = (0..ROWS).flat_map(|row| [if (3..7).contains(&row) { all } else { 0.0 }; 2]).collect();
        assert_eq!(each, expected);
    }
}
