//! Memory of pushed values: the caller may change borrowed memory as soon as the push returns, for
//! a push of any size.

use crate::{alone, done};
use slackwater::cluster::WaitPolicy;
use slackwater::policy::{Combine, Reduce};
use slackwater::table::PushOptions;
use slackwater::updaters::{Number, UpdateStep, Updater, Updaters};
use slackwater::{Consistency, Keys, RunSize, Session, TableSpec, UpdaterSpec};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Pushes above and below the sizes from which memory is lent, and of less than a part.
const ROWS: [u64; 3] = [3_000_000, 1_500_000, 10];

#[test]
fn borrowed_memory_may_change_as_soon_as_the_push_returns() {
    alone(|session| {
        let rules = [Consistency::slack(0), Consistency::Unbounded, Consistency::Delay { tau: 2 }];
        for (rows, consistency) in ROWS.into_iter().flat_map(|rows| rules.map(|rule| (rows, rule))) {
            let name = format!("{rows} rows, {consistency}");
            let table = session.table::<f32>(TableSpec::dense(&name, rows, 1).consistency(consistency)).expect("made");
            let mut values = vec![1.0f32; rows as usize];
            let mut pushes = Vec::new();
            for _ in 0..3 {
                pushes.push(table.push(&Keys::run(0..rows), &values).expect("sent"));
                values.fill(f32::NAN);
                values.fill(1.0);
            }
            pushes.into_iter().for_each(|push| push.wait().expect("every number was finite"));
            let sums = table.pull(&Keys::run(0..rows)).expect("asked").wait().expect("read");
            assert!(sums.values().iter().all(|sum| *sum == 3.0), "{name}");
        }
    });
}

#[test]
fn time_breakdown_counts_pushes_that_block_their_caller() {
    alone(|session| {
        let table = session.table::<f32>(TableSpec::dense("large", ROWS[0], 1)).expect("made");
        let before = session.time_breakdown().network;
        drop(table.push(&Keys::run(0..ROWS[0]), vec![1.0f32; ROWS[0] as usize].as_slice()).expect("sent"));
        assert!(session.time_breakdown().network > before);
    });
}

#[test]
fn ticket_reports_the_refusal_of_borrowed_memory() {
    alone(|session| {
        let spec = TableSpec::dense("sums", ROWS[0], 1).combine(Combine::Clock(Reduce::Sum));
        let table = session.table::<f32>(spec).expect("made");
        let mut values = vec![1.0f32; ROWS[0] as usize];
        values[2_000_000] = f32::INFINITY;
        let ticket = table.push(&Keys::run(0..ROWS[0]), &values).expect("sent");
        assert!(ticket.is_done());
        let error = ticket.wait().expect_err("one is not finite");
        assert!(error.to_string().contains("key 2000000"), "{error}");
        let keys = Keys::run(0..ROWS[0]);
        let short = &values[1..];
        assert!(table.push(&keys, short).is_err(), "a number too few");
        session.clock().expect("ended");
        values[2_000_000] = 1.0;
        done(table.push_opts(&keys, &values, PushOptions { examples: 5, ..PushOptions::default() }));
    });
}

/// A gate that opens once, and tells when it was reached.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<[bool; 2]>, Condvar)>);

impl Gate {
    const REACHED: usize = 0;
    const OPEN: usize = 1;

    fn set(&self, which: usize) {
        self.0.0.lock().expect("no panic")[which] = true;
        self.0.1.notify_all();
    }

    fn wait(&self, which: usize) {
        let state = self.0.0.lock().expect("no panic");
        drop(self.0.1.wait_while(state, |state| !state[which]).expect("no panic"));
    }
}

/// A sum that waits at a gate.
struct Gated(Gate);

impl<T: Number> Updater<T> for Gated {
    fn state(&self, _width: usize) -> usize {
        0
    }
    fn update(&self, _: &UpdateStep, _width: usize, row: &mut [T], gradient: &[T]) {
        self.0.set(Gate::REACHED);
        self.0.wait(Gate::OPEN);
        row.iter_mut().zip(gradient).for_each(|(sum, value)| *sum = sum.plus(*value));
    }
}

#[test]
fn borrowed_memory_is_released_when_the_run_is_lost_in_the_middle_of_a_push() {
    let gate = Gate::default();
    let mut registry = Updaters::builtin();
    let gated = gate.clone();
    registry.register::<f32>("gated", move |_| Box::new(Gated(gated.clone())));
    let size = RunSize { servers: 1, workers: 2 };
    let mut sessions = Session::embedded_with(size, registry, WaitPolicy::BLOCKING).expect("a run");
    let other = sessions.remove(1);
    let session = sessions.remove(0);
    let updater = UpdaterSpec::Custom { name: "gated".into(), settings: vec![] };
    let table = session.table::<f32>(TableSpec::dense("t", ROWS[1], 1).updater(updater)).expect("made");
    let pushing = std::thread::spawn(move || {
        let mut values = vec![1.0f32; ROWS[1] as usize];
        let error = table.push(&Keys::run(0..ROWS[1]), &values).err().expect("the run is lost");
        values.fill(2.0);
        let again = table.push(&Keys::run(0..ROWS[1]), &values).err().expect("the run is still lost");
        drop(session);
        (error.to_string(), again.to_string())
    });
    gate.wait(Gate::REACHED);
    other.abandon("enough");
    // The server still reads the caller's memory, so the push must not return yet.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!pushing.is_finished());
    gate.set(Gate::OPEN);
    let begin = Instant::now();
    while !pushing.is_finished() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the memory never came back");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (error, again) = pushing.join().expect("no panic");
    assert!(error.contains("lost worker 1: it could not go on: enough"), "{error}");
    assert!(again.contains("left the run"), "{again}");
}
