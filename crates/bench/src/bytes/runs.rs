//! Runs workers on real data within this process, and counts the bytes that they send and receive.

use anyhow::Context;
use data::DataReader;
use slackwater::{RunSize, Session};

/// How many workers a run has. It has one server.
pub(crate) const WORKERS: u32 = 2;

/// Bytes that workers send (up) and receive (down).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bytes {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Bytes {
    /// The bytes of a worker so far.
    pub(crate) fn of(session: &Session) -> Self {
        let traffic = session.traffic();
        Self { up: traffic.bytes_out, down: traffic.bytes_in }
    }

    /// Both ways.
    pub(crate) fn both(self) -> f64 {
        (self.up + self.down) as f64
    }

    /// The bytes since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { up: self.up - before.up, down: self.down - before.down }
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { up: self.up + other.up, down: self.down + other.down }
    }
}

/// Runs `work` on each worker with its share of the data, and returns the results by worker.
pub(crate) fn on_workers<R: Send>(
    reader: &DataReader,
    work: impl Fn(&Session, &DataReader) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let sessions = Session::embedded(RunSize { servers: 1, workers: WORKERS })?;
    let run = |session: Session| {
        let share = reader.for_worker(session.rank(), WORKERS)?;
        let result = work(&session, &share)?;
        session.barrier()?;
        session.close()?;
        Ok(result)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| run(session))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("a worker failed")
        };
        threads.into_iter().map(join).collect()
    })
}
