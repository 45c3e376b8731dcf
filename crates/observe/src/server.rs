//! The metrics of a server. Metrics that workers have, too, share one name; a label tells server
//! and worker apart.

use crate::metrics::{Labels, Levels, Metrics, Numbers, set, set_refusals, set_total};
use prometheus_client::registry::{Registry, Unit};
use types::Refusals;

/// The measurements of a server at one time. They are totals since its start, except `rows_held`,
/// `unsent_bytes` and `codecs`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerState {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Parts of pushes that the server refused.
    pub refused_parts: u64,
    /// Connections that the server refused, or closed for what the peer did.
    pub refused_connections: Refusals,
    /// Frames that the server handled although their sender had shown no certificate.
    pub unauthenticated_frames: u64,
    /// Reads that were parked.
    pub parked_reads: u64,
    /// Rows that the server holds.
    pub rows_held: u64,
    /// Bytes that wait to be sent.
    pub unsent_bytes: u64,
    /// The cost of decoding pushes (up), and of encoding rows that are read (down).
    pub codecs: [CodecCost; 2],
}

/// The measurements of a coordinator at one time. They are totals since its start, except
/// `unsent_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoordinatorState {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Connections that the coordinator refused, or closed for what the peer did.
    pub refused_connections: Refusals,
    /// Frames that the coordinator handled although their sender had shown no certificate.
    pub unauthenticated_frames: u64,
    /// Bytes that wait to be sent.
    pub unsent_bytes: u64,
}

/// What codecs save, lose and cost in one direction, over all tables. `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodecCost {
    /// Bytes before encoding over bytes after it.
    pub ratio: Option<f64>,
    /// ‖x − decoded‖ / ‖x‖.
    pub relative_error: Option<f64>,
    /// Processor seconds for a megabyte of values.
    pub seconds_per_megabyte: Option<f64>,
}

/// The metrics that only servers have.
#[derive(Default)]
pub(crate) struct ServerLevels {
    rows_held: Levels,
    unsent: Levels,
}

impl ServerLevels {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("rows_held", "Rows that the server holds", self.rows_held.clone());
        registry.register_with_unit(
            "unsent",
            "Waits to be sent by the server or coordinator",
            Unit::Bytes,
            self.unsent.clone(),
        );
    }
}

impl Metrics {
    /// Sets the metrics of the coordinator in this process.
    ///
    /// ```
    /// use observe::{CoordinatorState, Metrics};
    ///
    /// let metrics = Metrics::new();
    /// metrics.coordinator(&CoordinatorState { bytes_sent: 2, ..CoordinatorState::default() });
    /// assert!(metrics.text().contains("slackwater_sent_bytes_total{node=\"coordinator\"} 2"));
    /// ```
    pub fn coordinator(&self, state: &CoordinatorState) {
        let inner = &self.0;
        let of: Labels = vec![("node", "coordinator".to_owned())];
        for (counts, total) in [
            (&inner.sent, state.bytes_sent),
            (&inner.received, state.bytes_received),
            (&inner.unauthenticated_frames, state.unauthenticated_frames),
        ] {
            set_total(&counts.get_or_create_owned(&of), total);
        }
        set_refusals(&inner.refused_connections, &of, &state.refused_connections);
        set(&inner.servers.unsent.get_or_create_owned(&of), state.unsent_bytes);
    }

    /// Sets the metrics of server `number`.
    ///
    /// ```
    /// use observe::{Metrics, ServerState};
    ///
    /// let metrics = Metrics::new();
    /// metrics.server(1, &ServerState { rows_held: 500, ..ServerState::default() });
    /// assert!(metrics.text().contains("slackwater_rows_held{server=\"1\"} 500"));
    /// ```
    pub fn server(&self, number: u32, state: &ServerState) {
        let inner = &self.0;
        let of: Labels = vec![("server", number.to_string())];
        for (counts, total) in [
            (&inner.sent, state.bytes_sent),
            (&inner.received, state.bytes_received),
            (&inner.refused_parts, state.refused_parts),
            (&inner.unauthenticated_frames, state.unauthenticated_frames),
            (&inner.parked_reads, state.parked_reads),
        ] {
            set_total(&counts.get_or_create_owned(&of), total);
        }
        set_refusals(&inner.refused_connections, &of, &state.refused_connections);
        set(&inner.servers.rows_held.get_or_create_owned(&of), state.rows_held);
        set(&inner.servers.unsent.get_or_create_owned(&of), state.unsent_bytes);
        for (direction, cost) in ["up", "down"].into_iter().zip(state.codecs) {
            let labels: Labels = [&of[..], &[("direction", direction.to_owned())]].concat();
            let note = |numbers: &Numbers, now: Option<f64>| {
                if let Some(now) = now {
                    numbers.get_or_create_owned(&labels).set(now);
                }
            };
            note(&inner.codecs.ratio, cost.ratio);
            note(&inner.codecs.relative_error, cost.relative_error);
            note(&inner.codecs.seconds_per_megabyte, cost.seconds_per_megabyte);
        }
    }
}
