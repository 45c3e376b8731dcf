//! Embedded runs for tests, with a thread for each worker.

use slackwater::{RunSize, Session};

/// Runs `program` as every worker of an embedded run, and closes the sessions. Returns the results
/// by rank.
pub fn run<R: Send>(servers: u32, workers: u32, program: impl Fn(&Session) -> R + Sync) -> Vec<R> {
    let sessions = Session::embedded(RunSize { servers, workers }).expect("a run");
    std::thread::scope(|scope| {
        let program = &program;
        let threads: Vec<_> = sessions
            .into_iter()
            .map(|session| {
                scope.spawn(move || {
                    let result = program(&session);
                    session.close().expect("left");
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
