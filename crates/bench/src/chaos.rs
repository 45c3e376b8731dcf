//! `bench chaos`: fault injection on real processes. It kills, stops and cuts off servers and
//! workers at random, stalls the coordinator, starves all processes, breaks links in one direction
//! and disturbs long work; first while workers push, then while they train.
//!
//! - **Pushes**: every push is accounted for. Each worker adds one to rows that no other worker
//!   writes. In the end, the rows of a worker that lived hold exactly its acknowledged pushes. The
//!   rows of a killed worker hold at least its acknowledged pushes and at most those it sent.
//! - **Training**: it must learn from every row and reach the same loss as a training without
//!   faults.

pub(crate) mod cluster;
mod counts;
mod faults;
mod large_table;
mod leased;
mod network;
pub(crate) mod pushing;
mod starvation;
mod training;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::measure::{Format, Report};
use cluster::{ClusterOptions, SERVERS, WORKERS};
use faults::{Fault, Faults, Means, Schedule};
use network::{Made, Network};
pub use pushing::ChaosWorker;
pub(crate) use pushing::work;
use pushing::{Pushing, PushingOptions};
pub(crate) use starvation::keep_busy;
use training::Training;

/// The settings of `bench chaos`.
#[derive(clap::Args)]
pub struct ChaosBench {
    /// For how many seconds faults are injected into the run that pushes.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The failure timeout: a process that is silent for this many seconds counts as lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    failure_timeout: u64,
    /// The seed from which faults and their times are drawn.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Inject this many faults into the run that pushes, however long they take.
    #[arg(long, value_name = "COUNT", conflicts_with = "leases", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    faults: Option<u64>,
    /// Inject faults of these kinds only, where the run can have them. Kinds are named as in the
    /// figures, such as server_kill or coordinator_stall.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = Fault::named)]
    only: Vec<Fault>,
    /// Workers push for data leases, which other workers take over: every example must count
    /// exactly once.
    #[arg(long)]
    leases: bool,
    /// The size of a table that is made, backfilled and checkpointed while faults are injected. 0
    /// for no such table and no checkpoints.
    #[arg(long, value_name = "MEBIBYTES", default_value_t = 256, value_parser = large_mib)]
    large_mib: u64,
    /// The folder that holds the data set `a9a`, for the training. Without this option, the
    /// variable SLACKWATER_DATA names it.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Give the run no token, so that no connection is encrypted. Without this option the run has a
    /// token of its own.
    #[arg(long)]
    insecure: bool,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
    /// The network that the benchmark runs in. Set by the process that made the network.
    #[arg(long, hide = true)]
    network: Option<String>,
}

/// Reads 0, or a size with rows enough for every worker.
fn large_mib(text: &str) -> Result<u64, String> {
    let mebibytes = text.parse().ok().filter(|mebibytes| *mebibytes == 0 || (16..=65_536).contains(mebibytes));
    mebibytes.ok_or_else(|| "0, or a whole number from 16 to 65536".to_owned())
}

/// The command `bench chaos`.
pub(crate) fn run(options: &ChaosBench) -> anyhow::Result<()> {
    if options.network.is_none() {
        match Made::make() {
            Ok(network) => return network.run_inside(),
            Err(error) => eprintln!(
                "no process is cut off and no link breaks: cannot make network namespaces ({:#}); that takes root, and `ip` of iproute2",
                anyhow::Error::from(error)
            ),
        }
    }
    disturb(options, options.network.as_deref().map(Network::of))
}

fn disturb(options: &ChaosBench, network: Option<Network>) -> anyhow::Result<()> {
    let mut report = Report::default();
    report.number("servers", SERVERS as f64);
    report.number("replicas", 2.0);
    report.number("workers", WORKERS as f64);
    report.number("failure_timeout_s", options.failure_timeout as f64);
    report.text("security", if options.insecure { "none" } else { "tls" });
    let (lost, doubled) = push(options, network.clone(), &mut report)?;
    let trained = train(options, network, &mut report);
    // The report is printed even if a check below fails.
    report.print(if options.json { Format::Json } else { Format::Table })?;
    ensure!(lost == 0 && doubled == 0, "{lost} rows of pushes were lost and {doubled} counted twice");
    trained
}

/// The settings of the processes of a run.
fn cluster(options: &ChaosBench, network: Option<Network>) -> ClusterOptions {
    let is_insecure = options.insecure;
    ClusterOptions { failure_timeout: options.failure_timeout, network, is_insecure, ..ClusterOptions::default() }
}

/// Injects faults while workers push, and reports it. Returns how many rows of pushes were lost,
/// and how many counted twice.
fn push(options: &ChaosBench, network: Option<Network>, report: &mut Report) -> anyhow::Result<(u64, u64)> {
    let large_mib = (options.large_mib > 0).then_some(options.large_mib);
    let means = Means { network: network.is_some(), large: large_mib.is_some() };
    // Leases last for the whole run: a quarter of it is measured without faults first.
    let leases = options.leases.then(|| leased::enough(options.seconds * 5 / 4 + 1, WORKERS));
    let mut pushing = Pushing::start(PushingOptions { cluster: cluster(options, network), leases, large_mib })?;
    let length = Duration::from_secs(options.seconds);
    // The reference: goodput without faults.
    let begin = Instant::now();
    let before = pushing.acknowledged();
    std::thread::sleep((length / 4).clamp(Duration::from_secs(1), Duration::from_secs(15)));
    let undisturbed = (pushing.acknowledged() - before) as f64 / begin.elapsed().as_secs_f64();
    let mut schedule = Schedule::first(means, options.seed).only(&options.only);
    let mut faults = Faults::new(means);
    let begin = Instant::now();
    let before = pushing.acknowledged();
    let mut injected = 0;
    while options.faults.map_or(begin.elapsed() < length, |faults| injected < faults) {
        injected += 1;
        let fault = schedule.next_fault();
        let seconds = pushing.suffer(fault, &mut schedule).with_context(|| format!("fault {}", fault.name()))?;
        seconds.into_iter().for_each(|seconds| faults.add(fault, seconds));
        std::thread::sleep(Duration::from_millis(schedule.below(500) as u64));
    }
    let disturbed = (pushing.acknowledged() - before) as f64 / begin.elapsed().as_secs_f64();
    let (lost, doubled) = pushing.account()?;
    report.number("seconds", begin.elapsed().as_secs_f64());
    faults.report(report);
    pushing.tally().report(report, "");
    if let Some(mebibytes) = large_mib {
        report.number("large_table_mib", mebibytes as f64);
        report.number("large_pushes_acknowledged", pushing.large_acknowledged() as f64);
        report.number("checkpoints_published", pushing.published() as f64);
    }
    report.number("pushes_acknowledged", pushing.acknowledged() as f64);
    report.number("rows_of_pushes_lost", lost as f64);
    report.number("rows_of_pushes_doubled", doubled as f64);
    report.number("goodput_under_faults_over_without", disturbed / undisturbed);
    Ok((lost, doubled))
}

/// Injects faults into a training, if there is data for it, and reports it. Fails if the result
/// differs from that of a training without faults.
fn train(options: &ChaosBench, network: Option<Network>, report: &mut Report) -> anyhow::Result<()> {
    let means = Means { network: network.is_some(), large: false };
    let data = options.data.clone().or_else(data::data_sets);
    let Some(data) = data.map(|data| data.join("a9a/a9a.gz")).filter(|file| file.is_file()) else {
        eprintln!(
            "SKIPPED: training: there is no a9a/a9a.gz; name the folder of data sets by --data FOLDER or SLACKWATER_DATA=FOLDER"
        );
        return Ok(());
    };
    let training = Training::new(&data, options.seconds, cluster(options, network))?;
    let without = training.run(None)?;
    // Not the seed of the pushes, so that other faults come first.
    let with = training.run(Some(Schedule::new(means, options.seed.wrapping_add(1)).only(&options.only)))?;
    report.number("training_log_loss", with.log_loss);
    report.number("training_log_loss_without_faults", without.log_loss);
    report.number("training_rows_missing", training.rows() as f64 - with.rows as f64);
    report.number("training_seconds", with.seconds);
    with.faults.report_counts(report, "training_");
    with.tally.report(report, "training_");
    report.number("training_goodput_under_faults_over_without", without.seconds / with.seconds);
    training.compare(&with, &without)
}
