//! What large, frequent checkpoints cost a worker that pushes meanwhile.
//!
//! One worker pushes all rows of a dense table over TCP to two servers again and again, range by
//! range, a clock each. Measurements without and with checkpoints take turns. A measurement begins
//! when a checkpoint has been published and lasts three periods. So it spans the time of three
//! checkpoints; one of them may lie partly at the begin and partly at the end.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use slackwater::cluster::{CheckpointSettings, SameHost};
use slackwater::security::Access;
use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec, UpdaterSpec};

use super::ClusterBench;
use super::measure::{Columns, Report};
use crate::learning::Scratch;

/// Numbers of a row.
const COLUMNS: u64 = 1024;
/// Rows of one push: 4 MiB of values.
const ROWS: u64 = 1024;

/// How many checkpoints are due during one measurement.
const PERIODS: u32 = 3;

/// What one measurement found.
struct Found {
    /// Bytes of values acknowledged per second.
    goodput: f64,
    /// The longest time between acknowledgements, in seconds.
    longest_pause: f64,
    /// Checkpoints published during the measurement.
    checkpoints: usize,
    /// Bytes of the largest checkpoint.
    bytes: u64,
}

fn measure(options: &ClusterBench, keeps: bool) -> anyhow::Result<Found> {
    let coordinator_address = slackwater::cluster::free_address()?.to_string();
    let connect = Connect {
        same_host: SameHost::Tcp,
        failure_timeout: Duration::from_secs(30),
        access: Access::Insecure,
        ..Connect::to(&coordinator_address)
    };
    let scratch = Scratch::new()?;
    let folder = scratch.path("checkpoints");
    let every = Duration::from_secs_f64(options.checkpoint_every);
    let location = folder.to_str().context("the folder's name is not text")?;
    let keep = NonZeroUsize::MIN.saturating_add(1000);
    let settings = CheckpointSettings { every, keep, ..CheckpointSettings::new(location, "bench") };
    let serve = Serve {
        threads: 2,
        coordinate: Some(RunSize { servers: 2, workers: 1 }),
        checkpoints: keeps.then_some(settings),
        ..Serve::new(connect.clone())
    };
    let servers = std::thread::spawn(move || serve.run());
    // Half of the row state is the updater's.
    let rows = (u64::from(options.checkpoint_megabytes) * 1_000_000 / 2 / 4 / COLUMNS).div_ceil(ROWS) * ROWS;
    let session = Session::connect(&connect)?;
    let table = session.table::<f32>(
        TableSpec::dense("rows", rows, COLUMNS as u32).updater(UpdaterSpec::Adagrad { rate: 1e-3, epsilon: 1e-8 }),
    )?;
    let values = vec![1e-3f32; (ROWS * COLUMNS) as usize];
    let ranges = || (0..rows / ROWS).map(|range| range * ROWS..(range + 1) * ROWS);
    for range in ranges() {
        table.push(&Keys::run(range), &values)?.wait()?;
    }
    let warm = Instant::now();
    for range in ranges().cycle() {
        let is_warm = if keeps { kept(&folder)?.0 > 0 } else { warm.elapsed() > every };
        if is_warm {
            break;
        }
        ensure!(warm.elapsed() < every * 20, "no checkpoint is published within 20 periods");
        table.push(&Keys::run(range), &values)?.wait()?;
        session.clock()?;
    }
    let made = if keeps { kept(&folder)?.0 } else { 0 };
    let begin = Instant::now();
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    let mut pushes = 0u64;
    let mut before = None;
    for range in ranges().cycle() {
        let next = table.push(&Keys::run(range), &values)?;
        session.clock()?;
        if let Some(ticket) = before.replace(next) {
            ticket.wait()?;
            pushes += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        if begin.elapsed() > every * PERIODS {
            break;
        }
    }
    if let Some(last) = before {
        last.wait()?;
    }
    let made = if keeps { kept(&folder)?.0 - made } else { 0 };
    let goodput = (pushes * ROWS * COLUMNS * 4) as f64 / begin.elapsed().as_secs_f64();
    session.close()?;
    servers.join().map_err(|_| anyhow::anyhow!("a server panicked"))?.context("the servers failed")?;
    let bytes = if keeps { kept(&folder)?.1 } else { 0 };
    Ok(Found { goodput, longest_pause: longest.as_secs_f64(), checkpoints: made, bytes })
}

/// How many checkpoints are published in a folder, and the bytes of the largest.
fn kept(folder: &std::path::Path) -> anyhow::Result<(usize, u64)> {
    let mut all = Vec::new();
    if !folder.exists() {
        return Ok((0, 0));
    }
    for checkpoint in std::fs::read_dir(folder)? {
        let checkpoint = checkpoint?.path();
        if checkpoint.join("manifest.json").exists() {
            let sizes = std::fs::read_dir(checkpoint)?.map(|file| Ok(file?.metadata()?.len()));
            all.push(sizes.sum::<anyhow::Result<u64>>()?);
        }
    }
    Ok((all.len(), all.into_iter().max().unwrap_or(0)))
}

/// Measures and reports what checkpoints cost.
pub(crate) fn run(options: &ClusterBench, report: &mut Report) -> anyhow::Result<()> {
    let mut columns = Columns::default();
    for _ in 0..options.rounds.min(3) {
        let without = measure(options, false)?;
        let with = measure(options, true)?;
        let periods = PERIODS as usize;
        // The last checkpoint is due at the very end of the measurement, so it may be missing.
        ensure!(with.checkpoints + 1 >= periods, "{} checkpoints were made where {periods} were due", with.checkpoints);
        columns.put("checkpoints_made", with.checkpoints as f64);
        columns.put("checkpoint_megabytes", with.bytes as f64 / 1e6);
        columns.put("goodput_with_checkpoints_over_without", with.goodput / without.goodput);
        columns.put("longest_pause_without_checkpoints_s", without.longest_pause);
        columns.put("longest_pause_with_checkpoints_s", with.longest_pause);
    }
    for name in [
        "checkpoints_made",
        "checkpoint_megabytes",
        "goodput_with_checkpoints_over_without",
        "longest_pause_without_checkpoints_s",
        "longest_pause_with_checkpoints_s",
    ] {
        report.number(name, columns.median(name));
    }
    Ok(())
}
