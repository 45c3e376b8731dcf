//! `bench scale`: how cost grows with rows, connections, shards and the size of parts; how training
//! speed varies with workers, minibatches and features; and memory when rows are deleted.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;
use slackwater::cluster::NodeId;
use slackwater::{Consistency, Keys, Session, Table, TableSpec};

use super::deleted;
use super::learning::{Scratch, embedded, open};
use super::measure::{Format, Report, gbs, median, timed};
use super::server::{Kind, ServerProcess};
use types::SplitMix64;

/// The settings of `bench scale`.
#[derive(clap::Args)]
pub struct ScaleBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many idle connections the server has besides the busy ones.
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
    /// Measure only these parts of the benchmark.
    #[arg(long, value_delimiter = ',', value_parser = ["rows", "connections", "shards", "parts", "deleted", "training"])]
    only: Vec<String>,
}

/// Keys of the lists that are pushed and pulled at every number of rows.
const LIST: usize = 10_000;
/// Rows of each training.
const TRAINING_ROWS: usize = 200_000;
/// How long each number of connections is kept busy.
const BUSY: Duration = Duration::from_millis(700);

/// The command `bench scale`.
pub(crate) fn run(options: &ScaleBench) -> anyhow::Result<()> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut report = Report::default();
    if wanted("rows") {
        rows(options.rounds, &mut report)?;
    }
    if wanted("connections") {
        for active in [1, 4, 16, 64] {
            connections(active, options.idle, &mut report)?;
        }
    }
    if wanted("shards") {
        for shards in [1, 2, 4, 8, 16] {
            self::shards(shards, options.rounds, &mut report)?;
        }
    }
    if wanted("parts") {
        parts(options.rounds, &mut report)?;
    }
    if wanted("deleted") {
        for rows in [100_000, 1_000_000, 10_000_000] {
            deleted::memory(rows, &mut report)?;
        }
    }
    if wanted("training") {
        training(options.rounds, &mut report)?;
    }
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

/// Rows per second of logistic regression, with more workers, larger minibatches or more features,
/// one of them at a time.
fn training(rounds: u32, report: &mut Report) -> anyhow::Result<()> {
    const MINIBATCH: usize = 1000;
    const FEATURES: u64 = 100_000;
    let scratch = Scratch::new()?;
    let text = |features: u64| {
        let path = scratch.path(&format!("{features}.libsvm"));
        write_rows(&path, features).map(|distinct| (path, distinct))
    };
    let mut measure = |name: &str, path: &Path, workers: u32, minibatch: usize| {
        let reader = open(path, minibatch)?;
        let mut speeds = Vec::new();
        for _ in 0..rounds {
            speeds.push(TRAINING_ROWS as f64 / timed(|| embedded(&reader, workers))?.0);
        }
        report.number(name, median(&mut speeds));
        anyhow::Ok(())
    };
    let (usual, _) = text(FEATURES)?;
    for workers in [1, 2, 4, 8] {
        measure(&format!("training_{workers}_workers_rows_per_s"), &usual, workers, MINIBATCH)?;
    }
    for minibatch in [10, 100, 1000, 10_000] {
        measure(&format!("training_minibatch_{minibatch}_rows_per_s"), &usual, 1, minibatch)?;
    }
    let mut distinct = Vec::new();
    for features in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
        let (path, met) = text(features)?;
        measure(&format!("training_{features}_features_rows_per_s"), &path, 1, MINIBATCH)?;
        distinct.push((features, met));
    }
    for (features, met) in distinct {
        report.number(&format!("training_{features}_features_met"), met as f64);
    }
    Ok(())
}

/// Writes rows of 20 features each; the frequency of the k-th feature is proportional to 1 / k.
/// Returns how many distinct features occur.
fn write_rows(path: &Path, features: u64) -> anyhow::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut random = SplitMix64::new(3);
    let mut seen = vec![false; features as usize + 1];
    for _ in 0..TRAINING_ROWS {
        write!(out, "{}", random.below(2))?;
        for _ in 0..20 {
            let key = (random.unit() * (features as f64).ln()).exp() as u64;
            seen[key as usize] = true;
            write!(out, " {key}")?;
        }
        writeln!(out)?;
    }
    out.flush()?;
    Ok(seen.iter().filter(|seen| **seen).count() as u64)
}

/// Batches of one size on ever larger tables.
fn rows(rounds: u32, report: &mut Report) -> anyhow::Result<()> {
    let server = ServerProcess::start(Kind::default())?;
    let session = server.session()?;
    let spec = TableSpec::sparse("rows", 1).consistency(Consistency::Unbounded);
    let table = session.table::<f32>(spec)?;
    let mut random = SplitMix64::new(1);
    let mut ids: Vec<u64> = Vec::new();
    for rows in [10_000, 100_000, 1_000_000, 10_000_000] {
        while ids.len() < rows {
            let new: Vec<u64> = (0..(rows - ids.len()).min(500_000)).map(|_| random.draw()).collect();
            let keys = table.keys(&new);
            table.push(&keys, vec![1.0; keys.len()])?.wait()?;
            ids.extend(new);
        }
        let pick = |random: &mut SplitMix64| {
            let picked: Vec<u64> = (0..LIST).map(|_| ids[random.below(rows as u64) as usize]).collect();
            table.keys(&picked)
        };
        let repeated = pick(&mut random);
        let mut known = Vec::new();
        let mut new = Vec::new();
        for _ in 0..rounds * 8 {
            known.push(nanoseconds_a_key(&table, &repeated)?);
            new.push(nanoseconds_a_key(&table, &pick(&mut random))?);
        }
        report.number(&format!("rows_{rows}_repeated_list_ns_per_key"), median(&mut known));
        report.number(&format!("rows_{rows}_new_list_ns_per_key"), median(&mut new));
    }
    session.close()?;
    Ok(())
}

/// Nanoseconds per key of a push and a pull of a list.
fn nanoseconds_a_key(table: &Table<f32>, keys: &Keys) -> anyhow::Result<f64> {
    let values = vec![1.0; keys.len()];
    let (seconds, _) = timed(|| Ok(table.push_pull(keys, values)?.wait()?))?;
    Ok(seconds / keys.len() as f64 * 1e9)
}

/// Many workers, each with one push under way, while other connections are idle.
fn connections(active: u32, idle: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = ServerProcess::start(Kind { workers: active, ..Kind::default() })?;
    let sessions: Vec<Session> = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..active).map(|_| scope.spawn(|| server.session())).collect();
        joining.into_iter().map(|thread| thread.join().expect("joining does not panic")).collect::<anyhow::Result<_>>()
    })?;
    let address = sessions[0]
        .members()
        .find(|(node, _)| matches!(node, NodeId::Server(_)))
        .map(|(_, address)| address.to_owned())
        .context("the run has no server")?;
    let silent: Vec<TcpStream> = (0..idle).map(|_| TcpStream::connect(&address)).collect::<Result<_, _>>()?;
    let start = Arc::new(Barrier::new(active as usize));
    let mut trips: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            sessions.iter().map(|session| scope.spawn(|| keep_busy(session, &start.clone()))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<anyhow::Result<Vec<Vec<f64>>>>()
            .map(|trips| trips.concat())
    })?;
    trips.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| trips[((trips.len() - 1) as f64 * share) as usize] * 1e6;
    report.number(&format!("connections_{active}_pushes_per_s"), trips.len() as f64 / BUSY.as_secs_f64());
    report.number(&format!("connections_{active}_p50_us"), at(0.5));
    report.number(&format!("connections_{active}_p99_us"), at(0.99));
    drop(silent);
    for session in sessions {
        session.close()?;
    }
    Ok(())
}

/// Pushes small batches for [`BUSY`]. Returns the seconds of each push.
fn keep_busy(session: &Session, start: &Barrier) -> anyhow::Result<Vec<f64>> {
    let table = session.table::<f32>(TableSpec::dense("small", 1024, 1))?;
    let keys = Keys::run(0..64);
    let values: Arc<[f32]> = vec![1.0; 64].into();
    start.wait();
    let begin = Instant::now();
    let mut trips = Vec::new();
    while begin.elapsed() < BUSY {
        trips.push(timed(|| Ok(table.push(&keys, values.clone())?.wait()?))?.0);
    }
    Ok(trips)
}

/// One batch on ever more server threads of one process.
fn shards(shards: u32, rounds: u32, report: &mut Report) -> anyhow::Result<()> {
    const NUMBERS: usize = 4 << 20;
    let server = ServerProcess::start(Kind { threads: shards, ..Kind::default() })?;
    let session = server.session()?;
    let table = session.table::<f32>(TableSpec::dense("dense", NUMBERS as u64, 1))?;
    let keys = Keys::run(0..NUMBERS as u64);
    let values: Arc<[f32]> = vec![0.5; NUMBERS].into();
    let few: Arc<[f32]> = vec![0.5; 64].into();
    table.push(&keys, values.clone())?.wait()?;
    let mut large = Vec::new();
    let mut clocks = Vec::new();
    for _ in 0..rounds {
        large.push(gbs(NUMBERS * 4, timed(|| Ok(table.push(&keys, values.clone())?.wait()?))?.0));
        // A clock marker goes to every shard, even without a push to it.
        let (seconds, ()) = timed(|| {
            for _ in 0..20 {
                table.push(&Keys::run(0..64), few.clone())?.wait()?;
                session.clock()?;
                table.pull(&Keys::run(0..1))?.wait()?;
            }
            Ok(())
        })?;
        clocks.push(seconds / 20.0 * 1e6);
    }
    report.number(&format!("shards_{shards}_dense_push_16_mib_gbs"), median(&mut large));
    report.number(&format!("shards_{shards}_small_clock_us"), median(&mut clocks));
    session.close()?;
    Ok(())
}

/// Batches of one part each, of ever more bytes.
fn parts(rounds: u32, report: &mut Report) -> anyhow::Result<()> {
    const TOTAL: usize = 16 << 20;
    let server = ServerProcess::start(Kind::default())?;
    let session = server.session()?;
    let table = session.table::<f32>(TableSpec::dense("dense", TOTAL as u64 / 4, 1))?;
    for bytes in [256, 4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        let numbers = bytes / 4;
        let values: Arc<[f32]> = vec![0.5; numbers].into();
        let batches = (TOTAL / bytes).min(4096);
        let mut speeds = Vec::new();
        for _ in 0..rounds {
            let (seconds, ()) = timed(|| {
                let tickets = (0..batches).map(|batch| {
                    let first = (batch * numbers) as u64;
                    table.push(&Keys::run(first..first + numbers as u64), values.clone())
                });
                // All pushes are started before the first is waited for.
                let tickets: Vec<_> = tickets.collect::<Result<_, _>>()?;
                tickets.into_iter().try_for_each(slackwater::Ticket::wait)?;
                Ok(())
            })?;
            speeds.push(gbs(batches * bytes, seconds));
        }
        report.number(&format!("parts_of_{bytes}_bytes_gbs"), median(&mut speeds));
    }
    session.close()?;
    Ok(())
}
