//! Monitors one worker's training, minibatch by minibatch: for the display, the metrics and the
//! report.

use super::curve::{Curve, WIDTH};
use super::interrupt::Interrupt;
use super::progress::{Now, Progress};
use crate::figures::Figures;
use apps::train::{Go, Learnt};
use observe::WorkerState;
use slackwater::monitor::{TimeBreakdown, Traffic};
use slackwater::policy::NumberType;
use slackwater::{Consistency, Session, TableSpec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the display and the metrics are updated.
const LOOK: Duration = Duration::from_millis(100);
/// How many numbers precede the curve in a row of an account.
const COUNTS: usize = 3;

/// The monitor of one worker's training.
pub(crate) struct TrainingMonitor<'a> {
    session: &'a Session,
    interrupt: &'a Interrupt,
    /// How many rows all workers of this process have learnt from.
    learnt_here: &'a AtomicU64,
    metrics: Option<observe::WorkerMetrics>,
    display: Option<Display>,
    begun: Instant,
    times: TimeBreakdown,
    traffic: Traffic,
    figures: Figures,
    curve: Curve,
    rows: u64,
    minibatches: u64,
    /// How much of the data was read.
    progress: data::ReadProgress,
    told: bool,
    since: Since,
    refreshed: Instant,
}

/// The first worker's display, and what it needs to compute the share that is done.
pub(crate) struct Display {
    pub(crate) progress: Progress,
    pub(crate) epochs: u32,
    /// How many rows the first epoch had, once it is over.
    epoch_rows: Option<u64>,
    epoch_began_at_row: u64,
    epoch: u32,
}

/// Sums since the last update of the display.
struct Since {
    time: Instant,
    rows: u64,
    rows_here: u64,
    loss: f64,
    /// The total importance of the examples that the loss is a sum over.
    weight: f64,
    staleness: u64,
    minibatches: u64,
}

/// What a worker has counted. Workers send it to the first worker as a row of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Account {
    pub(crate) rows: f64,
    pub(crate) minibatches: f64,
    pub(crate) bad_rows: f64,
}

impl Account {
    /// The spec of the table that collects accounts and curves, a row for each worker.
    pub(crate) fn table(workers: u32) -> TableSpec {
        TableSpec::dense(".accounts", workers.into(), (COUNTS + WIDTH) as u32)
            .number(NumberType::F64)
            .consistency(Consistency::Unbounded)
    }

    pub(crate) fn to_row(&self, curve: &Curve) -> Vec<f64> {
        [&[self.rows, self.minibatches, self.bad_rows][..], &curve.to_row()].concat()
    }

    /// The sum of the accounts of all rows, and their merged curve.
    pub(crate) fn together(rows: &[f64]) -> (Self, Vec<(f64, f64)>) {
        let rows = || rows.chunks_exact(COUNTS + WIDTH);
        let sum = |place: usize| rows().map(|row| row[place]).sum();
        (
            Self { rows: sum(0), minibatches: sum(1), bad_rows: sum(2) },
            Curve::together(rows().map(|row| &row[COUNTS..])),
        )
    }
}

impl Display {
    pub(crate) fn start(program: &str, epochs: u32) -> Self {
        Self { progress: Progress::start(program), epochs, epoch_rows: None, epoch_began_at_row: 0, epoch: 0 }
    }

    /// The share of the training that is done, for a worker that has learnt from `rows` rows. In
    /// the first epoch it is estimated from the bytes that were read, from then on by rows.
    fn share(&mut self, learnt: &Learnt, rows: u64) -> f64 {
        if let Some(share) = learnt.share {
            return share;
        }
        if learnt.epoch != self.epoch {
            self.epoch = learnt.epoch;
            self.epoch_began_at_row = rows - learnt.examples;
            self.epoch_rows.get_or_insert(self.epoch_began_at_row);
        }
        let in_epoch = match self.epoch_rows {
            Some(all) => (rows - self.epoch_began_at_row) as f64 / all.max(1) as f64,
            None => {
                let all = learnt.progress.bytes_total as f64 / f64::from(self.epochs);
                let read = (learnt.progress.bytes as f64 / all.max(1.0)).min(1.0);
                read * rows as f64 / learnt.progress.rows_read.max(1) as f64
            }
        };
        (f64::from(learnt.epoch) + in_epoch.min(1.0)) / f64::from(self.epochs)
    }
}

impl<'a> TrainingMonitor<'a> {
    pub(crate) fn new(
        session: &'a Session,
        interrupt: &'a Interrupt,
        learnt_here: &'a AtomicU64,
        metrics: Option<observe::WorkerMetrics>,
        display: Option<Display>,
    ) -> Self {
        let begun = Instant::now();
        let times = session.time_breakdown();
        let traffic = session.traffic();
        let figures = Figures::new(if session.is_elastic() { 0 } else { session.size().workers as usize });
        let since = Since { time: begun, rows: 0, rows_here: 0, loss: 0.0, weight: 0.0, staleness: 0, minibatches: 0 };
        Self {
            session,
            interrupt,
            learnt_here,
            metrics,
            display,
            begun,
            times,
            traffic,
            figures,
            curve: Curve::default(),
            rows: 0,
            minibatches: 0,
            progress: data::ReadProgress::default(),
            told: false,
            since,
            refreshed: begun,
        }
    }

    /// Notes a minibatch that was learnt, and says whether to go on.
    pub(crate) fn see(&mut self, learnt: Learnt) -> Go {
        self.rows += learnt.examples;
        self.minibatches += 1;
        self.progress = learnt.progress;
        self.learnt_here.fetch_add(learnt.examples, Ordering::Relaxed);
        self.figures.count_read(learnt.staleness);
        self.curve.add(self.begun.elapsed().as_secs_f64(), learnt.weight, learnt.loss);
        self.since.rows += learnt.examples;
        self.since.loss += learnt.loss;
        self.since.weight += learnt.weight;
        self.since.staleness += learnt.staleness;
        self.since.minibatches += 1;
        if let Some(metrics) = &self.metrics {
            metrics.learnt(learnt.examples, learnt.loss / learnt.weight, learnt.staleness, learnt.parked);
        }
        if self.since.time.elapsed() >= LOOK {
            self.look(&learnt);
        }
        self.go()
    }

    /// Whether to go on. Training asks this after every clock.
    pub(crate) fn go(&mut self) -> Go {
        if self.refreshed.elapsed() >= LOOK {
            self.refresh();
        }
        if self.interrupt.is_told() {
            self.heed();
            return Go::Stop;
        }
        Go::On
    }

    /// Updates the metrics from the session.
    pub(crate) fn refresh(&mut self) {
        self.refreshed = Instant::now();
        if let Some(metrics) = &self.metrics {
            let waiting = self.progress.rows_read.saturating_sub(self.rows);
            metrics.state(&state(self.session, waiting, self.progress.bad_rows));
            codecs(self.session).iter().for_each(|codec| metrics.codec(codec));
        }
    }

    /// Updates the display and the speed.
    fn look(&mut self, learnt: &Learnt) {
        let here = self.learnt_here.load(Ordering::Relaxed);
        let Since { time, rows, rows_here, loss, weight, staleness, minibatches } = &self.since;
        let seconds = time.elapsed().as_secs_f64();
        if let Some(metrics) = &self.metrics {
            metrics.speed(*rows as f64 / seconds);
        }
        if let Some(display) = &mut self.display {
            let now = Now {
                share: display.share(learnt, self.rows),
                time: self.begun.elapsed(),
                loss: loss / weight,
                rows_per_second: (here - rows_here) as f64 / seconds,
                staleness: *staleness as f64 / *minibatches as f64,
            };
            display.progress.show(&now);
        }
        self.since = Since {
            time: Instant::now(),
            rows: 0,
            rows_here: here,
            loss: 0.0,
            weight: 0.0,
            staleness: 0,
            minibatches: 0,
        };
    }

    /// Prints once that the training was interrupted.
    fn heed(&mut self) {
        if !std::mem::replace(&mut self.told, true)
            && let Some(display) = &self.display
        {
            display.progress.say("interrupted: this clock is the last; interrupt again to end at once");
        }
    }

    /// Ends the monitoring, and returns the worker's figures, counts and loss curve.
    pub(crate) fn finish(mut self, progress: data::ReadProgress) -> (Figures, Account, Curve) {
        self.figures.account(
            self.begun.elapsed(),
            (&self.times, &self.session.time_breakdown()),
            (self.traffic, self.session.traffic()),
        );
        if let Some(metrics) = &self.metrics {
            metrics.state(&state(self.session, 0, progress.bad_rows));
            codecs(self.session).iter().for_each(|codec| metrics.codec(codec));
            metrics.speed(0.0);
        }
        if let Some(display) = &self.display {
            display.progress.finish();
        }
        let account = Account {
            rows: self.rows as f64,
            minibatches: self.minibatches as f64,
            bad_rows: progress.bad_rows as f64,
        };
        (self.figures, account, self.curve)
    }
}

/// The statistics of the codecs of the session's tables, in both directions.
fn codecs(session: &Session) -> Vec<observe::TableCodecStats> {
    let seconds = |nanoseconds: Option<f64>| nanoseconds.map(|nanoseconds| nanoseconds / 1e9);
    let used = session.codecs().into_iter().flat_map(|used| {
        let up = used.upward;
        let down = used.downward;
        [("up", up, up.encode_ns_per_megabyte()), ("down", down, down.decode_ns_per_megabyte())].map(
            |(direction, meter, time)| observe::TableCodecStats {
                table: used.table.clone(),
                direction,
                ratio: meter.ratio(),
                relative_error: meter.relative_error(),
                seconds_per_megabyte: seconds(time),
            },
        )
    });
    used.collect()
}

fn state(session: &Session, rows_waiting: u64, bad_rows: u64) -> WorkerState {
    let traffic = session.traffic();
    let times = session.time_breakdown();
    WorkerState {
        bytes_sent: traffic.bytes_out,
        bytes_received: traffic.bytes_in,
        refused_connections: traffic.refused,
        refused_parts: session.counts().refused,
        bad_rows,
        waited_seconds: [times.waited_for_others(), times.network, times.barrier].map(|time| time.as_secs_f64()),
        rows_waiting,
        unacknowledged_bytes: session.unacknowledged_bytes() as u64,
        clock: session.now().0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_done_follows_the_rows_learnt_from() {
        let mut display = Display::start("logistic", 2);
        let mut rows = 0;
        // Two epochs of 300 rows in 900 bytes. The first 200 rows are read at once.
        for (epoch, bytes, rows_read, expected) in [
            (0, 600, 200, 1.0 / 6.0),
            (0, 600, 200, 2.0 / 6.0),
            (0, 900, 300, 3.0 / 6.0),
            (1, 1500, 500, 4.0 / 6.0),
            (1, 1500, 500, 5.0 / 6.0),
            (1, 1800, 600, 1.0),
        ] {
            rows += 100;
            let progress = data::ReadProgress { bytes, bytes_total: 1800, rows_read, rows, bad_rows: 0 };
            let learnt = Learnt {
                epoch,
                examples: 100,
                weight: 100.0,
                loss: 1.0,
                staleness: 0,
                parked: 0,
                progress,
                share: None,
            };
            let share = display.share(&learnt, rows);
            assert!((share - expected).abs() < 1e-9, "{share} after {rows} rows");
        }
    }
}
