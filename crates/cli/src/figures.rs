//! The figures that one worker measures in one run. Workers send them to the first worker as rows
//! of a table.

use std::time::Duration;

use slackwater::cluster::WorkerId;
use slackwater::monitor::{TimeBreakdown, Traffic};
use slackwater::policy::NumberType;
use slackwater::{Consistency, TableSpec};

/// How many counts of reads by staleness there are. The last one counts every larger staleness.
pub(crate) const STALENESS_COUNTS: usize = 16;

/// One worker's figures of one run. All are floating-point numbers, because they are sent as a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Seconds from the common start to the last acknowledged push.
    pub(crate) seconds: f64,
    /// Seconds that its reads waited for each worker, because of the staleness bound.
    pub(crate) waited_for: Vec<f64>,
    /// Seconds that it waited for the network alone.
    pub(crate) network_seconds: f64,
    /// Seconds that it waited at barriers.
    pub(crate) barrier_seconds: f64,
    /// How many reads had each staleness, in clocks.
    pub(crate) staleness: Vec<f64>,
    pub(crate) bytes_sent: f64,
    pub(crate) bytes_received: f64,
}

impl Figures {
    /// Zeros, for a run of this many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { waited_for: vec![0.0; workers], staleness: vec![0.0; STALENESS_COUNTS], ..Self::default() }
    }

    /// The spec of the table that collects the figures: a row for each worker of the first run,
    /// then for each worker of the next.
    pub(crate) fn table(runs: usize, workers: usize) -> TableSpec {
        TableSpec::dense(".figures", (runs * workers) as u64, Self::width(workers) as u32)
            .number(NumberType::F64)
            .consistency(Consistency::Unbounded)
    }

    /// How many numbers a row has.
    pub(crate) fn width(workers: usize) -> usize {
        Self::new(workers).fields().count()
    }

    pub(crate) fn to_row(&self) -> Vec<f64> {
        self.clone().fields().map(|field| *field).collect()
    }

    /// # Panics
    /// If the row is narrower than that of a run of no workers.
    pub(crate) fn from_row(row: &[f64]) -> Self {
        let mut figures = Self::new(row.len() - Self::width(0));
        figures.fields().zip(row).for_each(|(field, number)| *field = *number);
        figures
    }

    /// Every number, in the order of a row.
    fn fields(&mut self) -> impl Iterator<Item = &mut f64> {
        let Self { seconds, waited_for, network_seconds, barrier_seconds, staleness, bytes_sent, bytes_received } =
            self;
        [seconds, network_seconds, barrier_seconds, bytes_sent, bytes_received]
            .into_iter()
            .chain(waited_for)
            .chain(staleness)
    }

    /// Counts a read of this staleness, in clocks.
    pub(crate) fn count_read(&mut self, staleness: u64) {
        self.staleness[(staleness as usize).min(STALENESS_COUNTS - 1)] += 1.0;
    }

    /// Sets the figures of the time between two snapshots of a session's times and traffic.
    pub(crate) fn account(
        &mut self,
        time: Duration,
        times: (&TimeBreakdown, &TimeBreakdown),
        traffic: (Traffic, Traffic),
    ) {
        self.seconds = time.as_secs_f64();
        self.network_seconds = times.1.network.saturating_sub(times.0.network).as_secs_f64();
        self.barrier_seconds = times.1.barrier.saturating_sub(times.0.barrier).as_secs_f64();
        // An elastic run may have more workers than it began with.
        let known = times.1.bound.keys().last().map_or(0, |worker| worker.0 as usize + 1);
        self.waited_for.resize(known.max(self.waited_for.len()), 0.0);
        for (worker, waited) in (0..).zip(&mut self.waited_for) {
            let until = |times: &TimeBreakdown| times.bound.get(&WorkerId(worker)).copied().unwrap_or_default();
            *waited = until(times.1).saturating_sub(until(times.0)).as_secs_f64();
        }
        self.bytes_sent = (traffic.1.bytes_out - traffic.0.bytes_out) as f64;
        self.bytes_received = (traffic.1.bytes_in - traffic.0.bytes_in) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_carries_every_figure_there_and_back() {
        let mut figures = Figures::new(3);
        (1..).zip(figures.fields()).for_each(|(number, field)| *field = f64::from(number));
        assert_eq!(Figures::from_row(&figures.to_row()), figures);
        assert_eq!(figures.to_row().len(), Figures::width(3));
        assert_eq!(figures.waited_for.len(), 3);
    }

    #[test]
    fn account_counts_the_time_between_two_snapshots() {
        let times = |seconds: &[u64]| TimeBreakdown {
            bound: (0..).map(WorkerId).zip(seconds.iter().map(|s| Duration::from_secs(*s))).collect(),
            network: Duration::from_secs(seconds.iter().sum()),
            barrier: Duration::from_secs(3 * seconds.iter().sum::<u64>()),
            ..TimeBreakdown::default()
        };
        let traffic = |bytes_out| Traffic { bytes_out, bytes_in: 2 * bytes_out, ..Traffic::default() };
        let mut figures = Figures::new(3);
        figures.account(Duration::from_secs(9), (&times(&[1]), &times(&[3, 5])), (traffic(10), traffic(15)));
        assert_eq!(figures.waited_for, [2.0, 5.0, 0.0]);
        assert_eq!((figures.seconds, figures.network_seconds, figures.barrier_seconds), (9.0, 7.0, 21.0));
        assert_eq!((figures.bytes_sent, figures.bytes_received), (5.0, 10.0));
    }
}
