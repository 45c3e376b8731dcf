//! The figures of the workers of an elastic run. Each worker that is there at the end adds its
//! figures to shared tables, and the worker that writes the report reads them all.

use crate::figures::Figures;
use crate::totals::Ranks;
use slackwater::policy::NumberType;
use slackwater::{Consistency, Error, Session, Table, TableSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Waiting times of at most this many seconds are left out of the report.
const SECONDS: f64 = 0.005;

/// The tables that collect the figures, with a row for each worker.
pub(crate) struct Crew {
    /// By rank: when the worker began, in seconds since 1970, and its figures.
    figures: Table<f64>,
    /// By two ranks: how many seconds the first worker waited for the second.
    waited: Table<f64>,
}

/// The figures of all workers.
#[derive(Debug, PartialEq)]
pub(crate) struct Muster {
    pub(crate) workers: Vec<Figures>,
    pub(crate) ranks: Ranks,
    /// When the first worker began, in seconds since 1970.
    pub(crate) begun: f64,
}

impl Crew {
    pub(crate) fn open(session: &Session) -> Result<Self, Error> {
        let table = |name: &str, width: usize| {
            let spec = TableSpec::sparse(name, width as u32).number(NumberType::F64);
            session.table::<f64>(spec.consistency(Consistency::Unbounded))
        };
        Ok(Self { figures: table(".crew", 1 + Figures::width(0))?, waited: table(".waited", 1)? })
    }

    /// Adds a worker's figures.
    pub(crate) fn add(&self, rank: u32, begun: f64, mut figures: Figures) -> Result<(), Error> {
        let waited: BTreeMap<u64, f64> = (0..).zip(std::mem::take(&mut figures.waited_for)).collect();
        let of = |other: u64| u64::from(rank) << 32 | other;
        let ids: Vec<u64> =
            waited.iter().filter(|(_, seconds)| **seconds > SECONDS).map(|(other, _)| of(*other)).collect();
        let keys = self.waited.keys(&ids);
        let seconds: Vec<f64> = keys.ids().map(|key| waited[&(key & u64::from(u32::MAX))]).collect();
        self.waited.push(&keys, seconds)?.wait()?;
        let row = [vec![begun], figures.to_row()].concat();
        self.figures.push(&self.figures.keys(&[rank.into()]), row)?.wait()
    }

    /// The figures of all workers.
    pub(crate) fn muster(&self) -> Result<Muster, Error> {
        let rows = self.figures.scan(..)?.wait()?;
        let waited = self.waited.scan(..)?.wait()?;
        let rows = rows.ids().iter().map(|rank| *rank as u32).zip(rows.values().chunks_exact(1 + Figures::width(0)));
        let waited =
            waited.ids().iter().map(|key| ((*key >> 32) as u32, *key as u32)).zip(waited.values().iter().copied());
        Ok(muster(rows.collect(), &waited.collect()))
    }
}

fn muster(rows: BTreeMap<u32, &[f64]>, waited: &BTreeMap<(u32, u32), f64>) -> Muster {
    let workers: Vec<u32> = rows.keys().copied().collect();
    let others = waited.keys().map(|(_, other)| *other);
    let waited_for: Vec<u32> = others.chain(workers.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect();
    let figures = |(rank, row): (&u32, &&[f64])| {
        let seconds = |other: &u32| waited.get(&(*rank, *other)).copied().unwrap_or(0.0);
        Figures { waited_for: waited_for.iter().map(seconds).collect(), ..Figures::from_row(&row[1..]) }
    };
    let begun = rows.values().map(|row| row[0]).fold(f64::INFINITY, f64::min);
    Muster { workers: rows.iter().map(figures).collect(), ranks: Ranks { workers, waited_for }, begun }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::RunSize;

    #[test]
    fn muster_reads_every_worker_and_whom_it_waited_for() {
        let session = Session::embedded(RunSize { servers: 2, workers: 1 }).expect("a run").remove(0);
        let crew = Crew::open(&session).expect("tables");
        let figures =
            |seconds, waited_for: &[f64]| Figures { seconds, waited_for: waited_for.to_vec(), ..Figures::new(0) };
        crew.add(5, 1e9 + 7.0, figures(2.0, &[0.0, 0.5])).expect("added");
        crew.add(0, 1e9 + 3.0, figures(6.0, &[0.0, 1.5, 0.0, 0.001, 0.0, 0.25])).expect("added");
        let Muster { workers, ranks, begun } = crew.muster().expect("read");
        assert_eq!(ranks, Ranks { workers: vec![0, 5], waited_for: vec![0, 1, 5] });
        assert_eq!(workers, [figures(6.0, &[0.0, 1.5, 0.25]), figures(2.0, &[0.0, 0.5, 0.0])]);
        assert_eq!(begun, 1e9 + 3.0);
        session.close().expect("leaves");
    }
}
