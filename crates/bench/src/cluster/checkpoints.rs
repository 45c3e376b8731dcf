//! What a checkpoint of many bytes every few seconds costs those who push meanwhile.
//!
//! One worker pushes all rows of a dense table again and again, range by range, a clock each, over
//! TCP to two servers; every other time the servers also keep checkpoints, in a folder of their
//! own. It is measured from when one is there until three more are due, so that three of them lie
//! in between, whole or in two parts.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use slackwater::cluster::{CheckpointSettings, SameHost};
use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec, UpdaterSpec};

use super::ClusterBench;
use super::measure::{Columns, Report};
use crate::learning::Scratch;

const COLUMNS: u64 = 1024;
/// Rows of one push: 4 MB of values.
const ROWS: u64 = 1024;

/// How many checkpoints are due while it is measured.
const PERIODS: u32 = 3;

/// What one measurement found.
struct Found {
    /// Bytes of values acknowledged a second.
    goodput: f64,
    /// The longest time without an acknowledgement.
    longest_pause: f64,
    /// Those that were published meanwhile.
    checkpoints: usize,
    /// What the last checkpoint takes.
    bytes: u64,
}

fn measure(options: &ClusterBench, keeps: bool) -> anyhow::Result<Found> {
    let coordinator_address = slackwater::cluster::free_address()?.to_string();
    let connect = Connect {
        same_host: SameHost::Tcp,
        failure_timeout: Duration::from_secs(30),
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
    // Half of what is kept is the updater's.
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
        ensure!(warm.elapsed() < every * 20, "no checkpoint comes");
        table.push(&Keys::run(range), &values)?.wait()?;
        session.clock()?;
    }
    let made = if keeps { kept(&folder)?.0 } else { 0 };
    let (begin, mut last, mut longest, mut pushes) = (Instant::now(), Instant::now(), Duration::ZERO, 0u64);
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
    servers.join().map_err(|_| anyhow::anyhow!("a server fell over"))?.context("the servers")?;
    let bytes = if keeps { kept(&folder)?.1 } else { 0 };
    Ok(Found { goodput, longest_pause: longest.as_secs_f64(), checkpoints: made, bytes })
}

/// How many checkpoints there are in a folder, and what the largest takes.
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

pub(crate) fn run(options: &ClusterBench, report: &mut Report) -> anyhow::Result<()> {
    let mut columns = Columns::default();
    for _ in 0..options.rounds.min(3) {
        let (without, with) = (measure(options, false)?, measure(options, true)?);
        let periods = PERIODS as usize;
        // The last is due at the very end.
        ensure!(with.checkpoints + 1 >= periods, "{} checkpoints were made, and {periods} were due", with.checkpoints);
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
