//! What all workers of a run measured together, and the table of who waited for whom: for every program's report.

use std::fmt;

use crate::figures::Figures;

/// The figures of all workers of a run together.
pub struct Totals {
    /// Until the last worker had finished.
    pub seconds: f64,
    /// Time that workers neither waited for each other nor for the network, added up.
    pub own_seconds: f64,
    /// Shares of all workers' time.
    pub waiting: f64,
    pub network: f64,
    /// Reads by how many clocks behind they were.
    pub staleness: Vec<f64>,
    pub bytes_sent: f64,
    pub bytes_received: f64,
}

impl Totals {
    /// Adds up what each worker measured.
    pub fn of(workers: &[Figures]) -> Self {
        let sum = |figure: &dyn Fn(&Figures) -> f64| workers.iter().map(figure).sum::<f64>();
        let seconds = workers.iter().map(|worker| worker.seconds).fold(0.0, f64::max);
        let all = seconds * workers.len() as f64;
        let counts = workers.first().map_or(0, |worker| worker.staleness.len());
        let waited = sum(&|worker| worker.waited_for.iter().sum());
        let network = sum(&|worker| worker.network_seconds);
        Self {
            seconds,
            own_seconds: sum(&|worker| worker.seconds) - waited - network,
            waiting: waited / all,
            network: network / all,
            staleness: (0..counts).map(|clocks| sum(&|worker| worker.staleness[clocks])).collect(),
            bytes_sent: sum(&|worker| worker.bytes_sent),
            bytes_received: sum(&|worker| worker.bytes_received),
        }
    }

    /// How many clocks behind a read was.
    pub fn staleness_mean(&self) -> f64 {
        let clocks = (0u32..).zip(&self.staleness).map(|(clocks, reads)| f64::from(clocks) * reads).sum::<f64>();
        clocks / self.staleness.iter().sum::<f64>()
    }

    /// The share of reads at each staleness that occurred, as whole per cents.
    pub fn staleness_shares(&self) -> String {
        let all: f64 = self.staleness.iter().sum();
        let seen = self.staleness.iter().rposition(|reads| *reads > 0.0).map_or(0, |last| last + 1);
        let shares = self.staleness[..seen].iter().map(|reads| format!("{:.0}", 100.0 * reads / all));
        shares.collect::<Vec<_>>().join("/")
    }
}

/// A whole number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        (0..digits.len()).rev().step_by(3).map(|end| &digits[end.saturating_sub(2)..=end]).collect();
    groups.into_iter().rev().collect::<Vec<_>>().join(",")
}

/// A table of seconds: a line for each worker that waited, a column for each that was waited for.
pub struct Waiting<'a> {
    pub heading: &'a str,
    pub workers: &'a [Figures],
}

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", self.heading)?;
        (0..self.workers.len()).try_for_each(|worker| write!(f, "{:>14}", format!("for worker {worker}")))?;
        writeln!(f)?;
        for (worker, figures) in self.workers.iter().enumerate() {
            write!(f, "{:<28}", format!("  by worker {worker}"))?;
            figures.waited_for.iter().try_for_each(|seconds| write!(f, "{seconds:>14.2}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
