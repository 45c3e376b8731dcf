//! The metrics of the workers and servers of one process, named by the conventions of Prometheus:
//! units in names, `_total` for counters.

use crate::server::ServerLevels;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::Refusals;

pub(crate) type Labels = Vec<(&'static str, String)>;
pub(crate) type Counts = Family<Labels, Counter>;
type Seconds = Family<Labels, Counter<f64, AtomicU64>>;
pub(crate) type Levels = Family<Labels, Gauge>;
pub(crate) type Numbers = Family<Labels, Gauge<f64, AtomicU64>>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Upper bounds of the buckets of the staleness histogram, in clocks.
const STALENESS: [f64; 9] = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0];
/// What a worker waits for: other workers (bound), the network, barriers.
const REASONS: [&str; 3] = ["bound", "network", "barrier"];

/// The metrics of a process. Clones share them.
#[derive(Clone)]
pub struct Metrics(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    registry: Registry,
    pub sent: Counts,
    pub received: Counts,
    minibatches: Counts,
    rows: Counts,
    bad_rows: Counts,
    pub refused_parts: Counts,
    pub refused_connections: Counts,
    pub unauthenticated_frames: Counts,
    pub parked_reads: Counts,
    waited: Seconds,
    staleness: Histograms,
    rows_waiting: Levels,
    unacknowledged: Levels,
    clock: Levels,
    rows_per_second: Numbers,
    loss: Numbers,
    pub codecs: CodecNumbers,
    pub servers: ServerLevels,
}

/// The codec metrics: of workers for each table and direction, of servers for each direction.
#[derive(Clone, Default)]
pub(crate) struct CodecNumbers {
    pub ratio: Numbers,
    pub relative_error: Numbers,
    pub seconds_per_megabyte: Numbers,
}

/// What a table's codecs save, lose and cost in one direction. `None` is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableCodecStats {
    /// The table's name.
    pub table: String,
    /// `up` or `down`.
    pub direction: &'static str,
    /// Bytes before encoding over bytes after it.
    pub ratio: Option<f64>,
    /// ‖x − decoded‖ / ‖x‖.
    pub relative_error: Option<f64>,
    /// Processor seconds for a megabyte of values.
    pub seconds_per_megabyte: Option<f64>,
}

/// The measurements of a worker's session at one time. They are totals since its start, except the
/// last three.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerState {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Parts of the worker's pushes that a server refused.
    pub refused_parts: u64,
    /// Connections that the worker refused, or closed for what the peer did.
    pub refused_connections: Refusals,
    /// Malformed lines that were skipped.
    pub bad_rows: u64,
    /// Seconds waited: for other workers, for the network, at barriers.
    pub waited_seconds: [f64; 3],
    /// Rows read from files that the worker has not learnt from yet.
    pub rows_waiting: u64,
    /// Bytes of pushes that no server has acknowledged yet.
    pub unacknowledged_bytes: u64,
    /// The worker's clock.
    pub clock: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics without a worker or server yet.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("slackwater");
        let histogram: fn() -> Histogram = || Histogram::new(STALENESS);
        let mut inner = Inner {
            registry: Registry::default(),
            sent: Counts::default(),
            received: Counts::default(),
            minibatches: Counts::default(),
            rows: Counts::default(),
            bad_rows: Counts::default(),
            refused_parts: Counts::default(),
            refused_connections: Counts::default(),
            unauthenticated_frames: Counts::default(),
            parked_reads: Counts::default(),
            waited: Seconds::default(),
            staleness: Histograms::new_with_constructor(histogram),
            rows_waiting: Levels::default(),
            unacknowledged: Levels::default(),
            clock: Levels::default(),
            rows_per_second: Numbers::default(),
            loss: Numbers::default(),
            codecs: CodecNumbers::default(),
            servers: ServerLevels::default(),
        };
        inner.servers.register(&mut registry);
        registry.register_with_unit(
            "sent",
            "Sent by the worker, server or coordinator",
            Unit::Bytes,
            inner.sent.clone(),
        );
        registry.register_with_unit(
            "received",
            "Received by the worker, server or coordinator",
            Unit::Bytes,
            inner.received.clone(),
        );
        for (name, help, counts) in [
            ("minibatches", "Minibatches learnt from", &inner.minibatches),
            ("rows", "Rows learnt from", &inner.rows),
            ("bad_rows", "Malformed lines of input that were skipped", &inner.bad_rows),
            ("refused_parts", "Parts of pushes that a server refused", &inner.refused_parts),
            ("refused_connections", "Connections refused, or closed for what the peer did", &inner.refused_connections),
            (
                "unauthenticated_frames",
                "Frames handled whose sender had shown no certificate",
                &inner.unauthenticated_frames,
            ),
            ("parked_reads", "Reads held back until another worker had ended its clock", &inner.parked_reads),
        ] {
            registry.register(name, help, counts.clone());
        }
        registry.register_with_unit(
            "waited",
            "Time waited: for other workers (bound), for the network, at barriers",
            Unit::Seconds,
            inner.waited.clone(),
        );
        registry.register_with_unit(
            "staleness",
            "How many clocks the worker was ahead of what it read",
            Unit::Other("clocks".to_owned()),
            inner.staleness.clone(),
        );
        registry.register("rows_waiting", "Rows read from files and not learnt from yet", inner.rows_waiting.clone());
        registry.register_with_unit(
            "unacknowledged",
            "Pushed and not acknowledged yet",
            Unit::Bytes,
            inner.unacknowledged.clone(),
        );
        registry.register("clock", "The worker's clock", inner.clock.clone());
        let help = "Rows learnt from in a second, lately";
        registry.register("rows_per_second", help, inner.rows_per_second.clone());
        registry.register("loss", "Mean loss of rows before they were learnt from, lately", inner.loss.clone());
        for (name, help, numbers) in [
            ("codec_ratio", "How many times fewer bytes codecs make of values", &inner.codecs.ratio),
            ("codec_relative_error", "How far decoded values lie from what was encoded", &inner.codecs.relative_error),
            (
                "codec_seconds_per_megabyte",
                "Seconds of a processor that codecs take for a megabyte of values",
                &inner.codecs.seconds_per_megabyte,
            ),
        ] {
            registry.register(name, help, numbers.clone());
        }
        inner.registry = registry;
        Self(Arc::new(inner))
    }

    /// The metrics of worker `rank`. They are shown from now on, and begin at zero.
    #[must_use]
    pub fn worker(&self, rank: u32) -> WorkerMetrics {
        let of = || vec![("worker", rank.to_string())];
        let inner = &self.0;
        set_refusals(&inner.refused_connections, &of(), &Refusals::default());
        let waiting = |reason: &str| vec![("worker", rank.to_string()), ("reason", reason.to_owned())];
        WorkerMetrics {
            sent: inner.sent.get_or_create_owned(&of()),
            received: inner.received.get_or_create_owned(&of()),
            minibatches: inner.minibatches.get_or_create_owned(&of()),
            rows: inner.rows.get_or_create_owned(&of()),
            bad_rows: inner.bad_rows.get_or_create_owned(&of()),
            refused_parts: inner.refused_parts.get_or_create_owned(&of()),
            refused_connections: inner.refused_connections.clone(),
            parked_reads: inner.parked_reads.get_or_create_owned(&of()),
            waited: REASONS.map(|reason| inner.waited.get_or_create_owned(&waiting(reason))),
            staleness: inner.staleness.get_or_create_owned(&of()),
            rows_waiting: inner.rows_waiting.get_or_create_owned(&of()),
            unacknowledged: inner.unacknowledged.get_or_create_owned(&of()),
            clock: inner.clock.get_or_create_owned(&of()),
            rows_per_second: inner.rows_per_second.get_or_create_owned(&of()),
            loss: inner.loss.get_or_create_owned(&of()),
            codecs: inner.codecs.clone(),
            rank: rank.to_string(),
        }
    }

    /// All metrics in the OpenMetrics text format, which Prometheus reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        encode(&mut text, &self.0.registry).ok();
        text
    }
}

/// One worker's metrics.
pub struct WorkerMetrics {
    sent: Counter,
    received: Counter,
    minibatches: Counter,
    rows: Counter,
    bad_rows: Counter,
    refused_parts: Counter,
    refused_connections: Counts,
    parked_reads: Counter,
    waited: [Counter<f64, AtomicU64>; 3],
    staleness: Histogram,
    rows_waiting: Gauge,
    unacknowledged: Gauge,
    clock: Gauge,
    rows_per_second: Gauge<f64, AtomicU64>,
    loss: Gauge<f64, AtomicU64>,
    codecs: CodecNumbers,
    rank: String,
}

impl WorkerMetrics {
    /// Sets what the codecs of a table save, lose and cost.
    pub fn codec(&self, codec: &TableCodecStats) {
        let labels = vec![
            ("worker", self.rank.clone()),
            ("table", codec.table.clone()),
            ("direction", codec.direction.to_owned()),
        ];
        for (numbers, now) in [
            (&self.codecs.ratio, codec.ratio),
            (&self.codecs.relative_error, codec.relative_error),
            (&self.codecs.seconds_per_megabyte, codec.seconds_per_megabyte),
        ] {
            if let Some(now) = now {
                numbers.get_or_create_owned(&labels).set(now);
            }
        }
    }

    /// Counts a minibatch that the worker has learnt from.
    pub fn learnt(&self, rows: u64, mean_loss: f64, staleness: u64, parked_reads: u64) {
        self.minibatches.inc();
        self.rows.inc_by(rows);
        self.staleness.observe(staleness as f64);
        self.parked_reads.inc_by(parked_reads);
        self.loss.set(mean_loss);
    }

    /// Sets how fast the worker has learnt lately.
    pub fn speed(&self, rows_per_second: f64) {
        self.rows_per_second.set(rows_per_second);
    }

    /// Sets the measurements of the worker's session.
    pub fn state(&self, state: &WorkerState) {
        set_total(&self.sent, state.bytes_sent);
        set_total(&self.received, state.bytes_received);
        set_total(&self.refused_parts, state.refused_parts);
        set_refusals(&self.refused_connections, &[("worker", self.rank.clone())], &state.refused_connections);
        set_total(&self.bad_rows, state.bad_rows);
        for (counter, seconds) in self.waited.iter().zip(state.waited_seconds) {
            counter.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        set(&self.rows_waiting, state.rows_waiting);
        set(&self.unacknowledged, state.unacknowledged_bytes);
        set(&self.clock, state.clock);
    }
}

pub(crate) fn set_total(counter: &Counter, total: u64) {
    counter.inner().store(total, Ordering::Relaxed);
}

/// Sets the refused connections of a node, by reason.
pub(crate) fn set_refusals(counts: &Counts, of: &[(&'static str, String)], refusals: &Refusals) {
    for (reason, total) in refusals.by_name() {
        let labels: Labels = [of, &[("reason", reason.to_owned())]].concat();
        set_total(&counts.get_or_create_owned(&labels), total);
    }
}

pub(crate) fn set(gauge: &Gauge, now: u64) {
    gauge.set(now.try_into().unwrap_or(i64::MAX));
}
