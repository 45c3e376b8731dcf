//! Observing a run: metrics while it works, the HTTP server that Prometheus reads them from, and
//! charts of losses.
//!
//! ```
//! use observe::{Exporter, ExporterSettings, Metrics};
//!
//! let metrics = Metrics::new();
//! let worker = metrics.worker(0);
//! worker.learnt(500, 0.35, 2, 1);
//! assert!(metrics.text().contains("slackwater_rows_total{worker=\"0\"} 500"));
//! let exporter = Exporter::start("127.0.0.1:0", metrics, ExporterSettings::default())?;
//! println!("{}", exporter.url());
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod chart;
mod exporter;
mod metrics;
mod server;

pub use exporter::{CONNECTIONS, CONTENT_TYPE, DEADLINE, Exporter, ExporterSettings};
pub use metrics::{Metrics, TableCodecStats, WorkerMetrics, WorkerState};
pub use server::{CodecCost, CoordinatorState, ServerState};
