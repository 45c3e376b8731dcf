//! `bench embedded`: Slackwater in one process, beside the machine's own copying of memory.

use std::sync::Arc;
use std::time::Instant;

use slackwater::{Consistency, Keys, NumberType, Session, Shape, TableSpec, Tickets};

use super::cold::ColdCopy;
use super::measure::{Columns, Format, Report, gbs, timed};
use super::peer::BULK_BYTES;
use crate::demo::random::Random;

/// The settings of `bench embedded`.
#[derive(clap::Args)]
pub struct Options {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

const MILLION: usize = 1_000_000;
const SMALL_PUSHES: u32 = 2_000;

/// The command `bench embedded`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut columns = Columns::default();
    let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    dense(options.rounds, &session, &mut columns)?;
    sparse(options.rounds, &session, &mut columns)?;
    logs(options.rounds, &session, &mut columns)?;
    session.close()?;
    let mut report = Report::default();
    let memcpy = columns.median("memcpy");
    report.number("memcpy_gbs", memcpy);
    for (name, figure) in
        [("push", "embedded_dense_push"), ("owned", "embedded_dense_push_owned"), ("pull", "embedded_dense_pull")]
    {
        report.number(&format!("{figure}_gbs"), columns.median(name));
        report.number(&format!("{figure}_over_memcpy"), columns.median(name) / memcpy);
    }
    report.number("embedded_sparse_push_mkeys", columns.median("sparse_push"));
    report.number("embedded_sparse_pull_mkeys", columns.median("sparse_pull"));
    report.number("embedded_round_trip_us", columns.median("trip") * 1e6);
    for threads in [1, 2, 4] {
        report.number(&format!("hot_row_updates_{threads}_threads_m_per_s"), columns.median(&format!("log{threads}")));
    }
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

fn dense(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    let numbers = BULK_BYTES / 4;
    let table = session.table::<f32>(TableSpec::dense("dense", numbers as u64 / 16, 16))?;
    let keys = Keys::run(0..numbers as u64 / 16);
    let mut copy = ColdCopy::new(BULK_BYTES);
    // Four of each, used in turn: whatever comes round again has left the caches.
    let kept: Vec<Vec<f32>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers]).collect();
    let owned: Vec<Arc<[f32]>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers].into()).collect();
    let mut targets: Vec<Option<Vec<f32>>> = (0..4).map(|_| Some(vec![1.0; numbers])).collect();
    table.push(&keys, &kept[3])?.wait()?;
    for round in 0..=rounds as usize {
        // The first round warms everything up and does not count.
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
        let (seconds, rows) = timed(|| Ok(table.pull_into(&keys, target, &Tickets::none())?.wait()?))?;
        put("pull", gbs(BULK_BYTES, seconds));
        targets[round % 4] = Some(rows.into_values());
    }
    Ok(())
}

fn sparse(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    let table = session.table::<f32>(TableSpec::sparse("sparse", 1).consistency(Consistency::Unbounded))?;
    let mut random = Random::new(1);
    let ids: Vec<u64> = (0..MILLION).map(|_| random.bits()).collect();
    for chunk in ids.chunks(MILLION / 4) {
        let keys = table.keys(chunk);
        table.push(&keys, vec![1.0; keys.len()])?.wait()?;
    }
    let keys = table.keys(&ids);
    let values: Arc<[f32]> = vec![0.25; keys.len()].into();
    let one: Arc<[f32]> = vec![1.0].into();
    let single = table.keys(&ids[..1]);
    let mut target = vec![0.0; keys.len()];
    for round in 0..rounds + 2 {
        let mut put = |name, value| {
            if round > 1 {
                columns.put(name, value)
            }
        };
        let (seconds, ()) = timed(|| Ok(table.push(&keys, values.clone())?.wait()?))?;
        put("sparse_push", keys.len() as f64 / seconds / 1e6);
        let (seconds, rows) =
            timed(|| Ok(table.pull_into(&keys, std::mem::take(&mut target), &Tickets::none())?.wait()?))?;
        put("sparse_pull", keys.len() as f64 / seconds / 1e6);
        target = rows.into_values();
        let start = Instant::now();
        for _ in 0..SMALL_PUSHES {
            table.push(&single, one.clone())?.wait()?;
        }
        put("trip", start.elapsed().as_secs_f64() / f64::from(SMALL_PUSHES));
    }
    Ok(())
}

/// Updates of one hot row from several threads, each into its own log.
fn logs(rounds: u32, session: &Session, columns: &mut Columns) -> anyhow::Result<()> {
    const UPDATES: usize = 200_000;
    let table = session.table::<i64>(TableSpec::dense("hot", 1, 1).number(NumberType::I64))?;
    let keys = Keys::run(0..1);
    for _ in 0..rounds {
        for (name, threads) in [("log1", 1), ("log2", 2), ("log4", 4)] {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    let (mut log, keys) = (table.log(), keys.clone());
                    scope.spawn(move || (0..UPDATES).try_for_each(|_| log.add(&keys, &[1], 1)));
                }
            });
            session.clock()?;
            columns.put(name, (threads * UPDATES) as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    Ok(())
}
