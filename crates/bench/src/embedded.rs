//! `bench embedded`: Slackwater in one process, beside copying memory in the same run.

use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use slackwater::policy::NumberType;
use slackwater::table::PullOptions;
use slackwater::{Consistency, Keys, RunSize, Session, TableSpec};

use super::cold::ColdCopy;
use super::lists::{MILLION, create, random_ids, sparse};
use super::measure::{Columns, Format, Report, gbs, timed};
use super::peer::BULK_BYTES;

/// The settings of `bench embedded`.
#[derive(clap::Args)]
pub struct EmbeddedBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
    /// Measure only these parts of the benchmark.
    #[arg(long, value_delimiter = ',', value_parser = ["dense", "sparse", "large", "rtt", "logs"])]
    only: Vec<String>,
}

/// Pushes whose mean time is one measurement of the round trip.
const SMALL_PUSHES: u32 = 2_000;

/// The command `bench embedded`.
pub(crate) fn run(options: &EmbeddedBench) -> anyhow::Result<()> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut columns = Columns::default();
    let mut report = Report::default();
    let rounds = options.rounds;
    let progress = ProgressBar::new(u64::from(rounds) * 3);
    if wanted("dense") {
        on_session(|session| dense(rounds, session, &mut columns))?;
        let memcpy = columns.median("memcpy");
        report.number("memcpy_gbs", memcpy);
        for (name, figure) in [
            ("push", "embedded_dense_push"),
            ("owned", "embedded_dense_push_owned"),
            ("pull", "embedded_dense_pull"),
            ("w16", "embedded_sparse_w16_push"),
        ] {
            report.number(&format!("{figure}_gbs"), columns.median(name));
            report.number(&format!("{figure}_over_memcpy"), columns.median(name) / memcpy);
        }
    }
    let lists = |rows: usize, suffix: &str, report: &mut Report| -> anyhow::Result<()> {
        let mut columns = Columns::default();
        let names = ["push", "pull", "new_push", "new_pull"];
        on_session(|session| sparse(session, rounds, rows, &mut columns, &progress, names))?;
        for name in names {
            report.number(&format!("embedded_sparse_{name}_mkeys{suffix}"), columns.median(name));
        }
        Ok(())
    };
    if wanted("sparse") {
        lists(MILLION, "", &mut report)?;
        on_session(|session| create(session, rounds, &mut columns, &progress))?;
        report.number("embedded_sparse_create_mkeys", columns.median("create"));
    }
    if wanted("large") {
        lists(10 * MILLION, "_10m", &mut report)?;
    }
    if wanted("rtt") {
        on_session(|session| round_trips(rounds, session, &mut columns))?;
        report.number("embedded_round_trip_us", columns.median("trip") * 1e6);
    }
    if wanted("logs") {
        on_session(|session| logs(rounds, session, &mut columns))?;
        for threads in [1, 2, 4] {
            let updates = columns.median(&format!("log{threads}"));
            report.number(&format!("hot_row_updates_{threads}_threads_m_per_s"), updates);
        }
    }
    progress.finish_and_clear();
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

/// Measures in a new run in this process.
fn on_session(measure: impl FnOnce(&Session) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    measure(&session)?;
    session.close()?;
    Ok(())
}

fn dense(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    let numbers = BULK_BYTES / 4;
    let table = session.table::<f32>(TableSpec::dense("dense", numbers as u64 / 16, 16))?;
    let keys = Keys::run(0..numbers as u64 / 16);
    let mut copy = ColdCopy::new(BULK_BYTES);
    // Four buffers of each kind, used in turn: a buffer has left the caches when its turn comes
    // again.
    let kept: Vec<Vec<f32>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers]).collect();
    let owned: Vec<Arc<[f32]>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers].into()).collect();
    let mut targets: Vec<Option<Vec<f32>>> = (0..4).map(|_| Some(vec![1.0; numbers])).collect();
    table.push(&keys, &kept[3])?.wait()?;
    let wide = session.table::<f32>(TableSpec::sparse("wide", 16))?;
    let wide_keys = wide.keys(&random_ids(numbers / 16, 3));
    wide.push(&wide_keys, owned[3].clone())?.wait()?;
    for round in 0..=rounds as usize {
        // The first round is a warm-up and does not count.
        let mut put = |name, value| {
            if round > 0 {
                columns.put(name, value)
            }
        };
        put("memcpy", copy.gb_per_s());
        let (seconds, ()) = timed(|| Ok(table.push(&keys, &kept[round % 4])?.wait()?))?;
        put("push", gbs(BULK_BYTES, seconds));
        let (seconds, ()) = timed(|| Ok(table.push(&keys, owned[round % 4].clone())?.wait()?))?;
        put("owned", gbs(BULK_BYTES, seconds));
        let target = targets[round % 4].take().unwrap_or_default();
        let (seconds, rows) = timed(|| {
            Ok(table.pull_opts(&keys, PullOptions { into: Some(target.into()), ..PullOptions::default() })?.wait()?)
        })?;
        put("pull", gbs(BULK_BYTES, seconds));
        targets[round % 4] = Some(rows.into_values());
        let (seconds, ()) = timed(|| Ok(wide.push(&wide_keys, owned[(round + 1) % 4].clone())?.wait()?))?;
        put("w16", gbs(BULK_BYTES, seconds));
    }
    Ok(())
}

/// The time of the smallest push and its acknowledgement.
fn round_trips(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    let table = session.table::<f32>(TableSpec::sparse("small", 1).consistency(Consistency::Unbounded))?;
    let single = table.keys(&[1]);
    let one: Arc<[f32]> = vec![1.0].into();
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..SMALL_PUSHES {
            table.push(&single, one.clone())?.wait()?;
        }
        columns.put("trip", start.elapsed().as_secs_f64() / f64::from(SMALL_PUSHES));
    }
    Ok(())
}

/// Updates of one hot row by several threads, each through an update log of its own.
fn logs(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    const UPDATES: usize = 200_000;
    let table = session.table::<i64>(TableSpec::dense("hot", 1, 1).number(NumberType::I64))?;
    let keys = Keys::run(0..1);
    for _ in 0..rounds {
        for (name, threads) in [("log1", 1), ("log2", 2), ("log4", 4)] {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    let mut log = table.log();
                    let keys = keys.clone();
                    scope.spawn(move || (0..UPDATES).try_for_each(|_| log.add(&keys, &[1], 1)));
                }
            });
            session.clock()?;
            columns.put(name, (threads * UPDATES) as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    Ok(())
}
