//! Stops all workers after the same clock, when any of them is told to stop. A step to which only
//! some workers have contributed would be wrong.
//!
//! - Each worker counts the clocks that it begins, in a table that all can read.
//! - A worker that is told to stop, or learns that another was, goes no further than the furthest
//!   worker has begun.
//! - When all workers have learnt of it and none is behind, they halt.
//!
//! This cannot deadlock under any consistency. If a worker waits for those behind it, it has begun
//! its clock, so those behind it go on.

use crate::train::Go;
use slackwater::policy::NumberType;
use slackwater::{Consistency, Error, Keys, Rows, Session, Table, TableSpec, Ticket};
use std::time::Duration;

/// While a worker waits for the others to stop, it checks this often.
const WAIT: Duration = Duration::from_millis(1);

/// A table with a row for each worker: how many clocks it has begun, and whether it knows that all
/// are to stop.
pub struct Halt {
    table: Table<i64>,
    workers: u64,
    /// This worker's rank.
    own: u64,
    /// How many clocks this worker has begun.
    begun: i64,
    /// Whether this worker knows that all are to stop.
    heard: bool,
    /// A read of all rows, which was started when the clock began.
    asked: Option<Ticket<Rows<i64>>>,
}

impl Halt {
    pub fn new(session: &Session) -> Result<Self, Error> {
        let workers = u64::from(session.size().workers);
        let own = u64::from(session.rank());
        let spec = TableSpec::dense(&format!(".proximal halt {}", session.unique_number()), workers, 2)
            .number(NumberType::I64);
        let table = session.table(spec.consistency(Consistency::Unbounded))?;
        Ok(Self { table, workers, own, begun: 0, heard: false, asked: None })
    }

    /// Begins a clock. Call it before anything in the clock that could wait for other workers.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.begun += 1;
        drop(self.table.push(&Keys::run(self.own..self.own + 1), vec![1, 0])?);
        self.asked = Some(self.ask()?);
        Ok(())
    }

    /// Tells all workers to stop.
    pub fn tell(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.heard, true) {
            self.table.push(&Keys::run(self.own..self.own + 1), vec![0, 1])?.wait()?;
        }
        Ok(())
    }

    /// Whether any worker was told to stop. All workers get the same answer if none can be told
    /// meanwhile.
    pub fn is_told(&self) -> Result<bool, Error> {
        Ok(is_told(&self.ask()?.wait()?))
    }

    /// Decides how this worker goes on after a clock, if its own wish is `go`. All workers get
    /// [`Go::Stop`] after the same clock.
    pub fn after(&mut self, go: Go) -> Result<Go, Error> {
        let told = self.asked.take().map_or(Ok(false), |asked| asked.wait().map(|rows| is_told(&rows)))?;
        if go != Go::On || told {
            self.tell()?;
        }
        if !self.heard {
            return Ok(Go::On);
        }
        loop {
            let rows = self.ask()?.wait()?;
            let mut rows = rows.values().chunks_exact(2);
            if rows.clone().any(|row| row[0] > self.begun) {
                return Ok(Go::On);
            }
            if rows.all(|row| row[0] == self.begun && row[1] > 0) {
                return Ok(Go::Stop);
            }
            // Some workers do not know yet, or have not come to this clock.
            std::thread::sleep(WAIT);
        }
    }

    fn ask(&self) -> Result<Ticket<Rows<i64>>, Error> {
        self.table.pull(&Keys::run(0..self.workers))
    }
}

fn is_told(rows: &Rows<i64>) -> bool {
    rows.values().chunks_exact(2).any(|row| row[1] > 0)
}
