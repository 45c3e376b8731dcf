//! One server's metrics. Those that workers have, too, go by the same names; the label says whose
//! they are.

use crate::metrics::{Labels, Levels, Metrics, Numbers, set, set_total};
use prometheus_client::registry::{Registry, Unit};

/// What a server knows of itself at some time. All are totals, but the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerState {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Parts of pushes that it refused.
    pub refused_parts: u64,
    /// Connections closed because of what came over them.
    pub refused_connections: u64,
    /// Reads that it held back.
    pub parked_reads: u64,
    /// Rows it holds.
    pub rows_held: u64,
    /// Bytes that wait to be sent.
    pub unsent_bytes: u64,
    /// What decoding what is pushed costs, and encoding what is read.
    pub codecs: [CodecCost; 2],
}

/// What codecs do in one direction, over all tables, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodecCost {
    /// How many times fewer bytes.
    pub ratio: Option<f64>,
    /// ‖x − decoded‖ / ‖x‖.
    pub relative_error: Option<f64>,
    /// Seconds of a processor for a megabyte.
    pub seconds_per_megabyte: Option<f64>,
}

/// What only servers have.
#[derive(Default)]
pub(crate) struct ServerLevels {
    rows_held: Levels,
    unsent: Levels,
}

impl ServerLevels {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("rows_held", "Rows that the server holds", self.rows_held.clone());
        registry.register_with_unit("unsent", "Waits to be sent by the server", Unit::Bytes, self.unsent.clone());
    }
}

impl Metrics {
    /// What a server knows now.
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
            (&inner.refused_connections, state.refused_connections),
            (&inner.parked_reads, state.parked_reads),
        ] {
            set_total(&counts.get_or_create_owned(&of), total);
        }
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
