//! Runs with data leases resume from a checkpoint: committed leases are not processed again, and
//! every part of the other leases counts once.

use crate::support::{Folder, LIMIT, run, settings};
use slackwater::cluster::Membership;
use slackwater::data_leases::LeasedInput;
use slackwater::policy::{Combine, NumberType, Reduce};
use slackwater::table::PushOptions;
use slackwater::{Consistency, Error, RunSize, Serve, Session, Table, TableSpec};
use std::time::{Duration, Instant};

const RANGES: u64 = 300;
const MINIBATCHES: u64 = 5;
const KEYS: u64 = RANGES * MINIBATCHES * 2;
const SLACK: u64 = 3;

/// A table that applies each push, one that combines by clock, and a bookkeeping table, which
/// checkpoints leave out.
struct Tables([Table<i64>; 3]);

impl Tables {
    fn of(session: &Session) -> Result<Self, Error> {
        let each = TableSpec::sparse("each", 1);
        let by_clock = TableSpec::dense("by clock", KEYS, 1).combine(Combine::Clock(Reduce::Sum));
        let seen = TableSpec::sparse(".seen", 1);
        let make = |spec: TableSpec| session.table(spec.number(NumberType::I64).consistency(Consistency::slack(SLACK)));
        Ok(Self([make(each)?, make(by_clock)?, make(seen)?]))
    }

    /// How often each example was counted, when all workers are done.
    fn counted(&self, session: &Session) -> Result<[Vec<i64>; 3], Error> {
        (0..=SLACK).try_for_each(|_| session.clock())?;
        session.barrier()?;
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut counted = [const { Vec::new() }; 3];
        for (counted, table) in counted.iter_mut().zip(&self.0) {
            *counted = table.pull(&table.keys(&keys))?.wait()?.values().to_vec();
        }
        Ok(counted)
    }
}

fn input(epochs: u32) -> LeasedInput {
    LeasedInput::new(RANGES).epochs(epochs).shuffled(5).per_clock(4).named("numbers", 1)
}

/// Learns until all leases are committed, or until `stops` returns true: in the middle of a lease,
/// with clocks open. Returns how many leases it committed.
fn learn(session: &Session, tables: &Tables, epochs: u32, stops: impl Fn() -> bool) -> Result<u64, Error> {
    let mut leases = session.leases("train", &input(epochs))?;
    let mut in_clock = 0;
    let mut done = 0;
    let begin = Instant::now();
    while let Some(lease) = leases.next_lease()? {
        assert!(begin.elapsed() < LIMIT, "it goes on for ever");
        for minibatch in 0..MINIBATCHES {
            if stops() {
                return Ok(done);
            }
            let first = (lease.range() * MINIBATCHES + minibatch) * 2;
            for table in &tables.0 {
                let keys = table.keys(&[first, first + 1]);
                if in_clock == 0 {
                    table.pull(&keys)?.wait()?;
                }
                drop(table.push_opts(
                    &keys,
                    vec![1; 2],
                    PushOptions { lease: Some(&lease), examples: 2, ..PushOptions::default() },
                )?);
            }
            in_clock += 1;
            if in_clock >= leases.share() && minibatch + 1 < MINIBATCHES {
                session.clock()?;
                in_clock = 0;
            }
        }
        leases.commit(lease)?;
        done += 1;
        if in_clock >= leases.share() {
            session.clock()?;
            in_clock = 0;
        }
    }
    Ok(done)
}

/// Learns until there are enough checkpoints, and then stops in the middle of its work.
fn learn_for(session: &Session, folder: &Folder, epochs: u32, enough: impl Fn() -> bool) -> Result<u64, Error> {
    let tables = Tables::of(session)?;
    let pause = Duration::from_millis(2 + u64::from(session.rank()));
    let done = learn(session, &tables, epochs, || {
        std::thread::sleep(pause);
        enough()
    })?;
    assert!(done < RANGES, "all was done before there were checkpoints in {}", folder.location());
    Ok(done)
}

/// The path of the newest checkpoint.
fn newest(folder: &Folder) -> String {
    folder.published().last().map_or_else(String::new, |newest| newest.to_string_lossy().into_owned())
}

fn goes_on(membership: Membership) {
    let folder = Folder::new();
    let first = |serve: &mut Serve| (serve.checkpoints, serve.membership) = (Some(settings(&folder)), membership);
    run(RunSize { servers: 2, workers: 3 }, first, |session| {
        learn_for(session, &folder, 2, || folder.published().len() >= 3)
    })
    .expect("a run");
    let manifest = std::fs::read_to_string(format!("{}/manifest.json", newest(&folder))).expect("a manifest");
    assert!(manifest.contains("by clock") && !manifest.contains(".seen"), "{manifest}");

    // The resumed run goes on for a while, makes checkpoints, and is stopped again.
    let before = newest(&folder);
    let second = |serve: &mut Serve| {
        first(serve);
        serve.resume = Some(folder.resume());
    };
    run(RunSize { servers: 3, workers: 2 }, second, |session| {
        learn_for(session, &folder, 2, || newest(&folder) != before)
    })
    .expect("a resumed run");

    // The third run resumes and goes on to the end, of more epochs than the first run asked for.
    let third = |serve: &mut Serve| (serve.resume, serve.membership) = (Some(folder.resume()), membership);
    let found =
        run(RunSize { servers: 1 + u32::from(membership != Membership::Static), workers: 4 }, third, |session| {
            let tables = Tables::of(session)?;
            let done = learn(session, &tables, 3, || false)?;
            Ok((done, tables.counted(session)?))
        })
        .expect("a run that ends");
    let done: u64 = found.iter().map(|(done, _)| done).sum();
    assert!(done < 3 * RANGES, "{done} leases: committed leases are not processed again");
    for (_, [each, by_clock, seen]) in found {
        let wrong =
            |counted: &[i64]| (0..).zip(counted).find(|(_, count)| **count != 3).map(|(row, count)| (row, *count));
        assert_eq!((wrong(&each), wrong(&by_clock)), (None::<(u64, i64)>, None), "each example once per epoch");
        assert!(seen.iter().sum::<i64>() < 3 * KEYS as i64, "bookkeeping begins anew");
    }
}

#[test]
fn every_example_counts_once_in_a_run_that_is_resumed_twice_with_other_sizes() {
    goes_on(Membership::Static);
}

#[test]
fn every_example_counts_once_in_a_resumed_run_with_replicas() {
    goes_on(Membership::Elastic { replicas: 2, shards_per_server: 2 });
}

#[test]
fn resumed_run_refuses_another_input() {
    let folder = Folder::new();
    let first = |serve: &mut Serve| serve.checkpoints = Some(settings(&folder));
    let one = RunSize { servers: 1, workers: 1 };
    run(one, first, |session| learn_for(session, &folder, 2, || folder.published().len() >= 2)).expect("a run");
    let resumed = |serve: &mut Serve| serve.resume = Some(folder.resume());
    let refusals = run(one, resumed, |session| {
        let cases = [input(2).named("letters", 2), LeasedInput::new(RANGES).epochs(2).named("numbers", 1)];
        let refused = |input: &LeasedInput| session.leases("train", input).err().map(|error| error.to_string());
        Ok(cases.each_ref().map(refused))
    });
    let [letters, unshuffled] = refusals.expect("the run itself goes on").remove(0);
    let letters = letters.expect("refused");
    let unshuffled = unshuffled.expect("refused");
    assert!(letters.contains("a run that read numbers, and this worker reads letters"), "{letters}");
    assert!(unshuffled.contains("shuffled by seed 5, and is now cut into 300 ranges in order"), "{unshuffled}");
}

/// A run that ends well leaves a checkpoint with all leases committed. A run that resumes from it
/// has nothing to do, unless it asks for more epochs.
#[test]
fn last_checkpoint_of_a_run_has_all_leases_committed() {
    for membership in [Membership::Static, Membership::Elastic { replicas: 2, shards_per_server: 1 }] {
        let folder = Folder::new();
        let checkpoints = || {
            let every = Duration::from_secs(3600);
            Some(slackwater::cluster::CheckpointSettings { every, last: true, ..settings(&folder) })
        };
        let run_to_the_end = |epochs, resume: bool| {
            let serve = |serve: &mut Serve| {
                (serve.checkpoints, serve.membership) = (checkpoints(), membership);
                serve.resume = resume.then(|| folder.resume());
            };
            let found = run(RunSize { servers: 2, workers: 2 }, serve, |session| {
                let tables = Tables::of(session)?;
                let done = learn(session, &tables, epochs, || false)?;
                Ok((done, tables.counted(session)?))
            });
            let found = found.expect("a run that ends well");
            let all = |counted: &[i64]| counted.iter().all(|count| *count == i64::from(epochs));
            assert!(found.iter().all(|(_, [each, by_clock, _])| all(each) && all(by_clock)), "each once per epoch");
            found.iter().map(|(done, _)| done).sum::<u64>()
        };
        assert_eq!(run_to_the_end(1, false), RANGES);
        assert_eq!(folder.published().len(), 1, "one, at the end");
        assert_eq!(run_to_the_end(1, true), 0, "all leases were committed");
        assert_eq!(run_to_the_end(2, true), RANGES, "the second epoch is left");
        assert_eq!(folder.published().len(), 3);
    }
}
