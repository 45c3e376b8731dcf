//! How workers come to a halt after the same clock, whoever is told to: a step that only some of
//! them have contributed to would be a wrong one.
//!
//! Each counts the clocks that it begins, where all can read it. Whoever is told to stop, or hears
//! that another was, goes no further than the furthest has begun; when all have heard and none is
//! behind, they halt. Nobody stands still for one that waits for it, whatever the consistency: one
//! that waits has begun its clock, so those behind it go on.

use crate::train::Go;
use slackwater::policy::NumberType;
use slackwater::{Consistency, Error, Keys, Rows, Session, Table, TableSpec, Ticket};
use std::time::Duration;

/// How often one that has stopped looks whether all have.
const WAIT: Duration = Duration::from_millis(1);

/// A row for each worker: how many clocks it has begun, and whether it has heard that all are to
/// stop.
pub struct Halt {
    table: Table<i64>,
    workers: u64,
    own: u64,
    begun: i64,
    heard: bool,
    /// What all rows were when the clock began: asked then, and answered while it lasts.
    asked: Option<Ticket<Rows<i64>>>,
}

impl Halt {
    pub fn new(session: &Session) -> Result<Self, Error> {
        let (workers, own) = (u64::from(session.size().workers), u64::from(session.rank()));
        let spec = TableSpec::dense(&format!(".proximal halt {}", session.unique_number()), workers, 2)
            .number(NumberType::I64);
        let table = session.table(spec.consistency(Consistency::Unbounded))?;
        Ok(Self { table, workers, own, begun: 0, heard: false, asked: None })
    }

    /// Before whatever in a clock could wait for others.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.begun += 1;
        drop(self.table.push(&Keys::run(self.own..self.own + 1), vec![1, 0])?);
        self.asked = Some(self.ask()?);
        Ok(())
    }

    /// All are to stop.
    pub fn tell(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.heard, true) {
            self.table.push(&Keys::run(self.own..self.own + 1), vec![0, 1])?.wait()?;
        }
        Ok(())
    }

    /// Whether somebody was told to stop. The same for all where nobody can be told meanwhile.
    pub fn is_told(&self) -> Result<bool, Error> {
        Ok(is_told(&self.ask()?.wait()?))
    }

    /// What is to be done after a clock, if this worker itself would do as `go` says. Stops all
    /// after the same clock.
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
            // Some have not heard yet, or are on their way to this clock.
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
