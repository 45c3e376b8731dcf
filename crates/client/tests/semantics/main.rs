//! The semantics of tables, tested through the public client with real threads.

macro_rules! read {
    ($ticket:expr) => {
        $ticket.expect("asked").wait().expect("read")
    };
}

mod clocks;
#[path = "../embedded/mod.rs"]
mod embedded;
mod freshness;
#[path = "../../../net/tests/logged/mod.rs"]
mod logged;
mod memory;
mod rows;
mod tasks;

use embedded::run;
use logged::Log;
use slackwater::policy::NumberType;
use slackwater::{Keys, RunSize, Session, Table, TableSpec, Ticket};
use std::sync::Mutex;
use std::time::Duration;

fn alone<R: Send>(program: impl Fn(&Session) -> R + Sync) -> R {
    run(2, 1, program).remove(0)
}

fn done(ticket: Result<Ticket<()>, slackwater::Error>) {
    ticket.expect("sent").wait().expect("done");
}

fn counts(name: &str, rows: u64) -> TableSpec {
    TableSpec::dense(name, rows, 1).number(NumberType::I64)
}

/// Sleeps for an uneven time, which depends on rank and clock only.
fn dawdle(rank: u32, clock: u64) {
    let mix = (u64::from(rank) * 31 + clock * 17 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
    std::thread::sleep(Duration::from_micros(mix * 150));
}

#[test]
fn long_waits_name_the_slow_worker_in_the_log() {
    let log = Log::default();
    let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log.clone())).finish();
    // Global, because the shell logs from its own threads. No other test of this program sets a
    // logger.
    tracing::subscriber::set_global_default(logger).expect("the only one");
    run(1, 3, |session| {
        let table: Table<i64> = session.table(counts("shared", 1)).expect("made");
        if session.rank() == 2 {
            std::thread::sleep(Duration::from_millis(3_600));
        }
        session.clock().expect("ended");
        read!(table.pull(&Keys::run(0..1)));
        let times = session.time_breakdown();
        if session.rank() == 0 {
            assert_eq!(times.slowest().map(|(worker, _)| worker.0), Some(2), "{times:?}");
            assert!(times.waited_for_others() > Duration::from_secs(2), "{times:?}");
        }
        if session.rank() == 1 {
            std::thread::sleep(Duration::from_millis(3_600));
        }
        session.barrier().expect("passed");
    });
    let text = log.text();
    let says = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(says(&["WARN", "waiting for worker 2 (3 s): a read of table shared"]), "{text}");
    assert!(says(&["WARN", "waiting for worker 1: it has not reached the barrier"]), "{text}");
}

#[test]
fn push_after_close_says_that_the_session_has_left() {
    let session = Session::embedded(RunSize { servers: 1, workers: 1 }).expect("started").remove(0);
    let table = session.table::<f32>(TableSpec::dense("t", 1, 1)).expect("made");
    session.close().expect("closed");
    let error = table.push(&Keys::run(0..1), vec![1.0]).err().expect("refused");
    assert!(error.to_string().contains("left the run"), "{error}");
}
