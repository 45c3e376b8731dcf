//! Data leases through the client: every example counts once although workers leave in the middle,
//! and a worker with another input is refused.

mod deadline;
mod embedded;

use deadline::ends;
use embedded::run;
use slackwater::data_leases::LeasedInput;
use slackwater::policy::{Combine, NumberType, Reduce};
use slackwater::table::PushOptions;
use slackwater::{Consistency, Error, RunSize, Session, Table, TableSpec};

const RANGES: u64 = 40;
const MINIBATCHES: u64 = 5;
const EPOCHS: u32 = 2;

fn input() -> LeasedInput {
    LeasedInput::new(RANGES).epochs(EPOCHS).shuffled(3).per_clock(4).named("numbers", 1)
}

fn spec() -> TableSpec {
    TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::slack(1))
}

/// The rows of one minibatch. Minibatches of an epoch share no rows.
fn rows(range: u64, minibatch: u64) -> Vec<u64> {
    let first = (range * MINIBATCHES + minibatch) * 3;
    (first..first + 3).collect()
}

/// Learns until all leases are committed, or until `most` minibatches are done, in the middle of a
/// lease.
fn learn(session: &Session, counts: &Table<i64>, mut most: u64) -> Result<(), Error> {
    let mut leases = session.leases("train", &input())?;
    let mut in_clock = 0;
    while let Some(lease) = leases.next_lease()? {
        for minibatch in 0..MINIBATCHES {
            if most == 0 {
                return Ok(());
            }
            most -= 1;
            let keys = counts.keys(&rows(lease.range(), minibatch));
            counts.pull(&keys)?.wait()?;
            drop(counts.push_opts(
                &keys,
                vec![1; 3],
                PushOptions { lease: Some(&lease), examples: 3, ..PushOptions::default() },
            )?);
            in_clock += 1;
            if in_clock >= leases.share() && minibatch + 1 < MINIBATCHES {
                session.clock()?;
                in_clock = 0;
            }
        }
        leases.commit(lease)?;
        if in_clock >= leases.share() {
            session.clock()?;
            in_clock = 0;
        }
    }
    Ok(())
}

/// Four workers learn, of which the first `leavers` leave in the middle. Every example must count
/// once.
fn learn_together(spec: &TableSpec, leavers: u64) {
    run(2, 4, |session| {
        let counts = session.table::<i64>(spec.clone()).expect("a table");
        let leaves = u64::from(session.rank()) < leavers;
        learn(session, &counts, if leaves { 7 + u64::from(session.rank()) } else { u64::MAX }).expect("learnt");
        if !leaves {
            // The workers that stay are at the same clock, and all committed leases are applied.
            (0..2).for_each(|_| session.clock().expect("ends"));
            session.barrier().expect("passes");
            let all: Vec<u64> = (0..RANGES * MINIBATCHES * 3).collect();
            let counted = counts.pull(&counts.keys(&all)).expect("asked").wait().expect("read");
            assert!(counted.values().iter().all(|count| *count == i64::from(EPOCHS)), "{:?}", counted.values());
        }
    });
}

#[test]
fn every_example_counts_once() {
    ends("a run that learns", || learn_together(&spec(), 0));
}

#[test]
fn leases_of_workers_that_leave_go_to_others_and_count_once() {
    ends("a run that learns", || learn_together(&spec(), 2));
}

#[test]
fn leases_of_workers_that_leave_count_once_in_a_clock_table() {
    ends("a run that learns", || learn_together(&spec().combine(Combine::Clock(Reduce::Sum)), 2));
}

#[test]
fn leases_refuse_a_worker_with_another_input() {
    let sessions = Session::embedded(RunSize { servers: 1, workers: 2 }).expect("an embedded run");
    sessions[0].leases("train", &input()).expect("the first");
    let cases = [
        (input().named("letters", 2), "others read numbers, and this worker reads letters"),
        (input().epochs(9), "epochs: 2"),
        (input().shuffled(9), "shuffle: Some(3)"),
    ];
    for (other, expected) in cases {
        let error = sessions[1].leases("train", &other).err().expect("refused").to_string();
        assert!(error.contains(expected) && error.contains("give every worker the same files"), "{error}");
    }
    let error = sessions[1].leases("none", &LeasedInput::new(1).per_clock(0)).err().expect("refused").to_string();
    assert!(error.contains("clocks of 0 minibatches"), "{error}");
    for session in sessions {
        session.close().expect("leaves");
    }
}

#[test]
fn two_data_sets_are_leased_side_by_side() {
    let session = Session::embedded(RunSize { servers: 1, workers: 1 }).expect("an embedded run").remove(0);
    let counts = session.table::<i64>(spec()).expect("a table");
    let keys = counts.keys(&[1]);
    let mut one = session.leases("one", &LeasedInput::new(1)).expect("leases");
    let mut other = session.leases("other", &LeasedInput::new(1)).expect("leases");
    let lease = one.next_lease().expect("granted").expect("a lease");
    one.commit(lease).expect("committed");
    assert!(one.next_lease().expect("over").is_none());
    let lease = other.next_lease().expect("granted").expect("a lease");
    counts
        .push_opts(&keys, vec![1], PushOptions { lease: Some(&lease), ..PushOptions::default() })
        .expect("fits")
        .wait()
        .expect("applied");
    other.commit(lease).expect("committed");
    assert!(other.next_lease().expect("over").is_none());
    session.close().expect("leaves");
}

#[test]
fn data_set_ended_by_one_worker_ends_for_all_at_one_clock() {
    ends("a run whose data set is ended early", || {
        let clocks = run(2, 3, |session| {
            let counts = session.table::<i64>(spec()).expect("a table");
            let mut leases = session.leases("train", &LeasedInput::new(1_000_000)).expect("leases");
            let mut learnt = 0;
            // Worker 1 ends the data set early. Another worker then holds uncommitted leases, or
            // waits for a read.
            while session.rank() != 1 || learnt < 20 {
                let Some(lease) = leases.next_lease().expect("granted") else { break };
                let keys = counts.keys(&[lease.range() % 50]);
                counts.pull(&keys).expect("asked").wait().expect("read");
                drop(
                    counts
                        .push_opts(&keys, vec![1], PushOptions { lease: Some(&lease), ..PushOptions::default() })
                        .expect("fits"),
                );
                // Worker 1 leaves its last lease uncommitted.
                if session.rank() != 1 || learnt < 19 {
                    leases.commit(lease).expect("committed");
                }
                learnt += 1;
                session.clock().expect("ends");
            }
            leases.end().expect("ended");
            assert!(leases.is_ended() && leases.next_lease().expect("over").is_none());
            // A read does not wait, because all workers are at the same clock.
            counts.pull(&counts.keys(&[0])).expect("asked").wait().expect("read");
            let clock = session.now().0;
            session.barrier().expect("passes");
            clock
        });
        assert!(clocks.iter().all(|clock| *clock == clocks[0]), "{clocks:?}");
    });
}
