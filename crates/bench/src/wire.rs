//! `bench wire`: Slackwater between two processes: over loopback TCP, beside raw TCP in the same
//! run, and through shared memory, beside copying memory.
//!
//! Every round measures the machine and Slackwater in turn, so that both run under the same load.
//! Each figure is the median of the rounds; a ratio divides two medians.

use std::sync::Arc;

use indicatif::ProgressBar;
use slackwater::cluster::SameHost;
use slackwater::table::PullOptions;
use slackwater::{Keys, Session, Table, TableSpec};

use super::cold::ColdCopy;
use super::core;
use super::lists::{MILLION, create, fill, pull, random_ids, sparse};
use super::measure::{Columns, Format, Report, gbs, median, timed};
use super::peer::BULK_BYTES;
use super::raw::{CHUNK_BYTES, RawPeer};
use super::server::{Kind, ServerProcess};
use types::SplitMix64;

mod secured;

/// The settings of `bench wire`.
#[derive(clap::Args)]
pub struct WireBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
    /// Measure only these parts of the benchmark.
    #[arg(long, value_delimiter = ',', value_parser = ["dense", "sparse", "large", "rtt", "memory", "shm", "tls"])]
    only: Vec<String>,
}

/// Round trips of one measurement; four times as many where both sides spin.
const ROUND_TRIPS: u32 = 2_000;

/// The command `bench wire`.
pub(crate) fn run(options: &WireBench) -> anyhow::Result<()> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut columns = Columns::default();
    let mut report = Report::default();
    let progress = ProgressBar::new(u64::from(options.rounds) * 5);
    let mut raw = RawPeer::start()?;
    if wanted("dense") {
        dense(options.rounds, &mut raw, &mut columns, &progress)?;
        let best = |names: [&str; 3]| names.iter().map(|name| columns.median(name)).fold(f64::NAN, f64::max);
        let up = best(["up0", "up1", "up2"]);
        let down = best(["down0", "down1", "down2"]);
        report.number("raw_tcp_gbs", up);
        report.number("raw_tcp_down_gbs", down);
        report.number("dense_push_gbs", columns.median("push"));
        report.number("dense_pull_gbs", columns.median("pull"));
        report.number("dense_push_over_raw", columns.median("push") / up);
        report.number("dense_pull_over_raw", columns.median("pull") / down);
        report.number("sparse_w16_push_over_raw", columns.median("w16") / up);
    }
    if wanted("sparse") {
        let names = ["p1", "l1", "np1", "nl1"];
        on_server(|session| sparse(session, options.rounds, MILLION, &mut columns, &progress, names))?;
        on_server(|session| create(session, options.rounds, &mut columns, &progress))?;
        report.number("sparse_push_mkeys", columns.median("p1"));
        report.number("sparse_pull_mkeys", columns.median("l1"));
        report.number("sparse_new_push_mkeys", columns.median("np1"));
        report.number("sparse_new_pull_mkeys", columns.median("nl1"));
        report.number("sparse_create_mkeys", columns.median("create"));
    }
    if wanted("large") {
        let names = ["p10", "l10", "np10", "nl10"];
        on_server(|session| sparse(session, options.rounds, 10 * MILLION, &mut columns, &progress, names))?;
        report.number("sparse_push_mkeys_10m", columns.median("p10"));
        report.number("sparse_pull_mkeys_10m", columns.median("l10"));
        report.number("sparse_new_push_mkeys_10m", columns.median("np10"));
        report.number("sparse_new_pull_mkeys_10m", columns.median("nl10"));
    }
    if wanted("rtt") {
        let mut columns = Columns::default();
        on_own_core(|| round_trips(options.rounds, SameHost::Tcp, &mut columns, &progress))?;
        for kind in ["blocking", "spinning"] {
            let ours = columns.median(&format!("rtt_{kind}"));
            let theirs = columns.median(&format!("raw_{kind}"));
            report.number(&format!("rtt_{kind}_us"), ours * 1e6);
            report.number(&format!("raw_rtt_{kind}_us"), theirs * 1e6);
            report.number(&format!("rtt_over_raw_{kind}"), ours / theirs);
        }
    }
    if wanted("shm") {
        let mut columns = Columns::default();
        on_own_core(|| shared_memory(options.rounds, &mut columns, &progress))?;
        let memcpy = columns.median("memcpy");
        report.number("memcpy_gbs", memcpy);
        report.number("shm_push_gbs", columns.median("push"));
        report.number("shm_pull_gbs", columns.median("pull"));
        report.number("shm_push_over_memcpy", columns.median("push") / memcpy);
        report.number("shm_pull_over_memcpy", columns.median("pull") / memcpy);
        on_own_core(|| round_trips(options.rounds, SameHost::SharedMemory, &mut columns, &progress))?;
        for kind in ["blocking", "spinning"] {
            let ours = columns.median(&format!("rtt_{kind}"));
            let theirs = columns.median(&format!("raw_{kind}"));
            report.number(&format!("shm_rtt_{kind}_us"), ours * 1e6);
            report.number(&format!("shm_raw_rtt_{kind}_us"), theirs * 1e6);
            // The figure without a suffix compares with blocking raw TCP, as most programs use it.
            let name = if kind == "blocking" { "shm_rtt_over_raw" } else { "shm_rtt_over_raw_spinning" };
            report.number(name, ours / theirs);
        }
    }
    if wanted("tls") {
        on_own_core(|| secured::secured(options.rounds, &mut report, &progress))?;
    }
    if wanted("memory") {
        let (mean, worst) = memory()?;
        report.number("bytes_per_sparse_row_mean", mean);
        report.number("bytes_per_sparse_row_worst", worst);
    }
    progress.finish_and_clear();
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

/// Dense pushes and pulls over TCP, and sparse pushes of wide rows, in turn with raw TCP.
fn dense(rounds: u32, raw: &mut RawPeer, columns: &mut Columns, progress: &ProgressBar) -> anyhow::Result<()> {
    let server = ServerProcess::start(Kind::default())?;
    let session = server.session()?;
    let numbers = BULK_BYTES / 4;
    let table = session.table::<f32>(TableSpec::dense("dense", numbers as u64 / 16, 16))?;
    let wide = session.table::<f32>(TableSpec::sparse("wide", 16))?;
    let keys = Keys::run(0..numbers as u64 / 16);
    let wide_keys = wide.keys(&random_ids(numbers / 16, 3));
    // Four buffers of each kind, used in turn: a buffer has left the caches when its turn comes
    // again.
    let sources: Vec<Arc<[f32]>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers].into()).collect();
    let mut targets: Vec<Option<Vec<f32>>> = (0..4).map(|_| Some(vec![1.0; numbers])).collect();
    table.push(&keys, sources[3].clone())?.wait()?;
    wide.push(&wide_keys, sources[3].clone())?.wait()?;
    for round in 0..rounds as usize + 1 {
        // The first round is a warm-up and does not count.
        let mut put = |name, value| {
            if round > 0 {
                columns.put(name, value)
            }
        };
        for (name, chunk) in ["up0", "up1", "up2"].into_iter().zip(CHUNK_BYTES) {
            put(name, raw.throughput(chunk)?);
        }
        let (seconds, ()) = timed(|| Ok(table.push(&keys, sources[round % 4].clone())?.wait()?))?;
        put("push", gbs(BULK_BYTES, seconds));
        for (name, chunk) in ["down0", "down1", "down2"].into_iter().zip(CHUNK_BYTES) {
            put(name, raw.throughput_down(chunk)?);
        }
        let target = targets[round % 4].take().unwrap_or_default();
        let (seconds, rows) = timed(|| {
            Ok(table.pull_opts(&keys, PullOptions { into: Some(target.into()), ..PullOptions::default() })?.wait()?)
        })?;
        put("pull", gbs(BULK_BYTES, seconds));
        targets[round % 4] = Some(rows.into_values());
        let (seconds, ()) = timed(|| Ok(wide.push(&wide_keys, sources[(round + 1) % 4].clone())?.wait()?))?;
        put("w16", gbs(BULK_BYTES, seconds));
        progress.inc(1);
    }
    session.close()?;
    Ok(())
}

/// Measures over a session with a new server process.
fn on_server(measure: impl FnOnce(&Session) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let server = ServerProcess::start(Kind::default())?;
    let session = server.session()?;
    measure(&session)?;
    session.close()?;
    Ok(())
}

/// Dense pushes and pulls through shared memory, in turn with copying as much within one process.
fn shared_memory(rounds: u32, columns: &mut Columns, progress: &ProgressBar) -> anyhow::Result<()> {
    let kind = Kind { same_host: SameHost::SharedMemory, core: Some(core::PEERS), ..Kind::default() };
    let server = ServerProcess::start(kind)?;
    let session = server.session()?;
    let numbers = BULK_BYTES / 4;
    let table = session.table::<f32>(TableSpec::dense("dense", numbers as u64 / 16, 16))?;
    let keys = Keys::run(0..numbers as u64 / 16);
    let mut copy = ColdCopy::new(BULK_BYTES);
    // Four buffers of each kind, used in turn: a buffer has left the caches when its turn comes
    // again.
    let sources: Vec<Arc<[f32]>> = (0..4).map(|n| vec![n as f32 + 0.5; numbers].into()).collect();
    let mut targets: Vec<Option<Vec<f32>>> = (0..4).map(|_| Some(vec![1.0; numbers])).collect();
    table.push(&keys, sources[3].clone())?.wait()?;
    for round in 0..rounds as usize + 1 {
        // The first round is a warm-up and does not count.
        let mut put = |name, value| {
            if round > 0 {
                columns.put(name, value)
            }
        };
        put("memcpy", copy.gb_per_s());
        let (seconds, ()) = timed(|| Ok(table.push(&keys, sources[round % 4].clone())?.wait()?))?;
        put("push", gbs(BULK_BYTES, seconds));
        put("memcpy", copy.gb_per_s());
        let target = targets[round % 4].take().unwrap_or_default();
        let (seconds, rows) = timed(|| pull(&table, &keys, target))?;
        put("pull", gbs(BULK_BYTES, seconds));
        targets[round % 4] = Some(rows.into_values());
        progress.inc(1);
    }
    let traffic = session.traffic();
    anyhow::ensure!(
        traffic.bytes_shared == traffic.bytes_in + traffic.bytes_out,
        "not all bytes went through shared memory"
    );
    session.close()?;
    Ok(())
}

/// Measures on a new thread, which is pinned to one core.
fn on_own_core(measure: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            core::stay_on(core::OURS);
            measure()
        });
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The time of the smallest push and its acknowledgement, in turn with raw TCP.
fn round_trips(rounds: u32, same_host: SameHost, columns: &mut Columns, progress: &ProgressBar) -> anyhow::Result<()> {
    let mut raw = RawPeer::start_on(Some(core::PEERS))?;
    for (spin, ours, theirs) in [(false, "rtt_blocking", "raw_blocking"), (true, "rtt_spinning", "raw_spinning")] {
        let server = ServerProcess::start(Kind { spin, core: Some(core::PEERS), same_host, ..Kind::default() })?;
        let session = server.session()?;
        let table = session.table::<f32>(TableSpec::dense("small", 16, 1))?;
        let keys = Keys::run(3..4);
        let (up, back) = smallest_push(&session, &table, &keys)?;
        let trips = if spin { ROUND_TRIPS * 4 } else { ROUND_TRIPS };
        for _ in 0..rounds {
            let theirs_now = if spin {
                raw.round_trip_spinning(trips, up, back)?
            } else {
                raw.round_trip_blocking(trips, up, back)?
            };
            columns.put(theirs, theirs_now);
            columns.put(ours, smallest_pushes(&table, &keys, trips)?);
            progress.inc(1);
        }
        session.close()?;
    }
    Ok(())
}

/// Bytes of the smallest push's frame and of its acknowledgement, for the raw round trip. It takes
/// the least of ten pushes, because heartbeats also count as traffic.
fn smallest_push(session: &Session, table: &Table<f32>, keys: &Keys) -> anyhow::Result<(usize, usize)> {
    let mut least = (usize::MAX, usize::MAX);
    for _ in 0..10 {
        let before = session.traffic();
        table.push(keys, vec![1.0])?.wait()?;
        let after = session.traffic();
        let moved = (after.bytes_out - before.bytes_out, after.bytes_in - before.bytes_in);
        least = (least.0.min(moved.0 as usize), least.1.min(moved.1 as usize));
    }
    Ok(least)
}

/// The median seconds of the smallest push and its acknowledgement.
fn smallest_pushes(table: &Table<f32>, keys: &Keys, trips: u32) -> anyhow::Result<f64> {
    let one: Arc<[f32]> = vec![1.0].into();
    let mut seconds = (0..trips)
        .map(|_| timed(|| Ok(table.push(keys, one.clone())?.wait()?)).map(|(seconds, ())| seconds))
        .collect::<anyhow::Result<Vec<f64>>>()?;
    Ok(median(&mut seconds))
}

/// Resident memory of a server per row: mean and worst, over ten sizes between two doublings. The
/// server holds no key lists: a setting bounds their memory.
fn memory() -> anyhow::Result<(f64, f64)> {
    let server = ServerProcess::start(Kind { list_bytes: Some(0), ..Kind::default() })?;
    let session = server.session()?;
    let warm_up = session.table::<f32>(TableSpec::sparse("warm-up", 1))?;
    fill(&warm_up, &random_ids(MILLION / 4, 5))?;
    let before = server.resident_bytes()?;
    let table = session.table::<f32>(TableSpec::sparse("rows", 1))?;
    let start = 2 * MILLION;
    let mut random = SplitMix64::new(6);
    let mut rows = 0;
    let mut sizes = Vec::new();
    for step in 0..=10 {
        let size = start + start * step / 10;
        let ids: Vec<u64> = (rows..size).map(|_| random.draw()).collect();
        fill(&table, &ids)?;
        rows = size;
        sizes.push((server.resident_bytes()? - before) as f64 / rows as f64);
    }
    session.close()?;
    // The last size is a doubling of the first, and so belongs to the next ten.
    let ten = &sizes[..10];
    Ok((ten.iter().sum::<f64>() / 10.0, ten.iter().copied().fold(0.0, f64::max)))
}
