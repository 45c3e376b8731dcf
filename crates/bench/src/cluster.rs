//! `bench cluster`: what fault tolerance costs (replicas, checkpoints), and how long a run needs
//! when a server joins or is lost.

mod changes;
mod checkpoints;
mod replicas;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::measure::{self, Format, Report};

/// The settings of `bench cluster`.
#[derive(clap::Args)]
pub struct ClusterBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, value_name = "ROUNDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only these parts of the benchmark.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = ["replicas", "checkpoints", "rows", "servers"])]
    only: Vec<String>,
    /// replicas: size of the table in MiB.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    megabytes: u32,
    /// replicas: how many milliseconds each measurement takes.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    millis: u64,
    /// checkpoints: size of rows and updater state in MB.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    checkpoint_megabytes: u32,
    /// checkpoints: seconds from the start of one checkpoint to the start of the next. Each round
    /// measures three such periods with checkpoints and three without.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    checkpoint_every: f64,
    /// servers: rows of the table. rows: the table has from a tenth of this to a hundred times as
    /// many rows.
    #[arg(long, value_name = "ROWS", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    table_rows: u64,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The command `bench cluster`.
pub(crate) fn run(options: &ClusterBench) -> anyhow::Result<()> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut report = Report::default();
    let progress = ProgressBar::no_length().with_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
    progress.enable_steady_tick(Duration::from_millis(200));
    if wanted("replicas") {
        progress.set_message("one replica and two");
        replicas::run(options, &mut report)?;
    }
    if wanted("checkpoints") {
        progress.set_message("with and without checkpoints");
        checkpoints::run(options, &mut report)?;
    }
    if wanted("rows") {
        for rows in [options.table_rows / 10, options.table_rows, options.table_rows * 10, options.table_rows * 100] {
            progress.set_message(format!("a server joins and one is lost, {rows} rows"));
            changes::run(4, rows, &format!("{rows}_rows"), &mut report)?;
        }
    }
    if wanted("servers") {
        for servers in [2, 4, 8, 16] {
            progress.set_message(format!("a server joins and one is lost, {servers} servers"));
            changes::run(servers, options.table_rows, &format!("{servers}_servers"), &mut report)?;
        }
    }
    progress.finish_and_clear();
    Ok(report.print(if options.json { Format::Json } else { Format::Table })?)
}
