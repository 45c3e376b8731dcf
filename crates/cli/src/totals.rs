//! The figures of all workers of a run added up, and the table of which worker waited for which.
//! Reports of `train` and `demo` use them.

use std::fmt;

use crate::figures::Figures;

/// The figures of all workers of a run together.
pub(crate) struct Totals {
    /// Seconds until the last worker finished.
    pub(crate) seconds: f64,
    /// Seconds that all workers together did not wait: neither for each other, nor at barriers, nor
    /// for the network.
    pub(crate) own_seconds: f64,
    /// The share of all workers' time that they waited for each other.
    pub(crate) waiting: f64,
    /// The share of all workers' time that they waited for the network.
    pub(crate) network: f64,
    /// The share of all workers' time that they waited at barriers.
    pub(crate) barrier: f64,
    /// How many reads had each staleness, in clocks.
    pub(crate) staleness: Vec<f64>,
    pub(crate) bytes_sent: f64,
    pub(crate) bytes_received: f64,
}

impl Totals {
    /// Adds up the figures of all workers.
    pub(crate) fn of(workers: &[Figures]) -> Self {
        let sum = |figure: &dyn Fn(&Figures) -> f64| workers.iter().map(figure).sum::<f64>();
        let seconds = workers.iter().map(|worker| worker.seconds).fold(0.0, f64::max);
        let all = seconds * workers.len() as f64;
        let counts = workers.first().map_or(0, |worker| worker.staleness.len());
        let waited = sum(&|worker| worker.waited_for.iter().sum());
        let network = sum(&|worker| worker.network_seconds);
        let barrier = sum(&|worker| worker.barrier_seconds);
        Self {
            seconds,
            own_seconds: sum(&|worker| worker.seconds) - waited - network - barrier,
            waiting: waited / all,
            network: network / all,
            barrier: barrier / all,
            staleness: (0..counts).map(|clocks| sum(&|worker| worker.staleness[clocks])).collect(),
            bytes_sent: sum(&|worker| worker.bytes_sent),
            bytes_received: sum(&|worker| worker.bytes_received),
        }
    }

    /// The mean staleness of a read, in clocks.
    pub(crate) fn staleness_mean(&self) -> f64 {
        let clocks = (0u32..).zip(&self.staleness).map(|(clocks, reads)| f64::from(clocks) * reads).sum::<f64>();
        clocks / self.staleness.iter().sum::<f64>()
    }

    /// The share of reads at each staleness, as whole per cents with slashes between them.
    pub(crate) fn staleness_shares(&self) -> String {
        let all: f64 = self.staleness.iter().sum();
        let seen = self.staleness.iter().rposition(|reads| *reads > 0.0).map_or(0, |last| last + 1);
        let shares = self.staleness[..seen].iter().map(|reads| format!("{:.0}", 100.0 * reads / all));
        shares.collect::<Vec<_>>().join("/")
    }
}

/// A number of bytes for people, in bytes, kB, MB or GB.
pub(crate) fn bytes_in_words(bytes: f64) -> String {
    match bytes {
        ..1e4 => format!("{bytes:.0} bytes"),
        ..1e6 => format!("{:.1} kB", bytes / 1e3),
        ..1e10 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}

/// A whole number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        (0..digits.len()).rev().step_by(3).map(|end| &digits[end.saturating_sub(2)..=end]).collect();
    groups.into_iter().rev().collect::<Vec<_>>().join(",")
}

/// A table of seconds: a line for each worker that waited, a column for each that was waited for.
pub(crate) struct Waiting<'a> {
    pub(crate) heading: &'a str,
    pub(crate) workers: &'a [Figures],
    pub(crate) ranks: &'a Ranks,
}

/// The ranks of the workers with figures, and of the workers that they waited for, in the order of
/// the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranks {
    pub(crate) workers: Vec<u32>,
    pub(crate) waited_for: Vec<u32>,
}

impl Ranks {
    /// The ranks of a static run.
    pub(crate) fn first(workers: u32) -> Self {
        Self { workers: (0..workers).collect(), waited_for: (0..workers).collect() }
    }
}

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", self.heading)?;
        let Ranks { workers, waited_for } = self.ranks;
        waited_for.iter().try_for_each(|worker| write!(f, "{:>14}", format!("for worker {worker}")))?;
        writeln!(f)?;
        for (worker, figures) in workers.iter().zip(self.workers) {
            write!(f, "{:<28}", format!("  by worker {worker}"))?;
            figures.waited_for.iter().try_for_each(|seconds| write!(f, "{seconds:>14.2}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_words_keeps_a_few_digits() {
        let cases =
            [(0.0, "0 bytes"), (812.0, "812 bytes"), (41_234.0, "41.2 kB"), (3.21e8, "321.0 MB"), (2.5e10, "25.0 GB")];
        for (bytes, words) in cases {
            assert_eq!(bytes_in_words(bytes), words);
        }
    }

    #[test]
    fn own_seconds_leave_out_waiting_at_barriers() {
        let worker = Figures { seconds: 10.0, network_seconds: 1.0, barrier_seconds: 4.0, ..Figures::new(2) };
        let totals = Totals::of(&[worker.clone(), Figures { waited_for: vec![2.0, 0.0], ..worker }]);
        assert_eq!((totals.own_seconds, totals.waiting, totals.network, totals.barrier), (8.0, 0.1, 0.1, 0.4));
    }
}
