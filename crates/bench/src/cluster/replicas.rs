//! What a second replica costs, over TCP.
//!
//! Two servers hold a dense table. With one replica, each holds half of the shards; with two, each
//! holds all of them. Every worker pushes all rows again and again, with two pushes under way.
//! Servers and workers are threads of this process and talk over TCP.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use slackwater::cluster::{Membership, SameHost};
use slackwater::security::Access;
use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec};

use super::ClusterBench;
use super::measure::{Columns, Report};

const SERVERS: u32 = 2;

/// What one measurement found.
struct Found {
    /// Bytes of values acknowledged per second, over all workers.
    goodput: f64,
    /// Bytes that servers sent, to each other and to workers, for each byte that workers pushed.
    sent_over_pushed: f64,
}

fn measure(options: &ClusterBench, replicas: u32, workers: u32) -> anyhow::Result<Found> {
    let coordinator_address = slackwater::cluster::free_address()?.to_string();
    let connect = Connect {
        same_host: SameHost::Tcp,
        failure_timeout: Duration::from_secs(30),
        access: Access::Insecure,
        ..Connect::to(&coordinator_address)
    };
    let serve = Serve {
        threads: SERVERS,
        coordinate: Some(RunSize { servers: SERVERS, workers }),
        membership: Membership::Elastic { replicas, shards_per_server: 1 },
        ..Serve::new(connect.clone())
    };
    let servers = std::thread::spawn(move || serve.run());
    let columns = 1024;
    let rows = u64::from(options.megabytes) * (1 << 20) / 4 / columns;
    let pushed = AtomicU64::new(0);
    let began = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let work = || -> anyhow::Result<()> {
        let session = Session::connect(&connect)?;
        let table = session.table::<f32>(TableSpec::dense("rows", rows, columns as u32))?;
        let values = vec![1e-3f32; (rows * columns) as usize];
        table.push(&Keys::run(0..rows), &values)?.wait()?;
        session.barrier()?;
        began.store(true, Ordering::Relaxed);
        let mut under_way = Vec::new();
        while !over.load(Ordering::Relaxed) {
            under_way.push(table.push(&Keys::run(0..rows), &values)?);
            if under_way.len() == 2 {
                under_way.remove(0).wait()?;
                pushed.fetch_add(rows * columns * 4, Ordering::Relaxed);
            }
        }
        for ticket in under_way {
            ticket.wait()?;
        }
        Ok(session.close()?)
    };
    let goodput = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        while !began.load(Ordering::Relaxed) && !threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        let before = pushed.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(options.millis));
        let goodput = (pushed.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        }
        anyhow::Ok(goodput)
    })?;
    let reports = servers.join().map_err(|_| anyhow::anyhow!("a server panicked"))?.context("the servers failed")?;
    let total = |count: fn(&slackwater::cluster::ServerReport) -> u64| reports.iter().map(count).sum::<u64>() as f64;
    let sent = total(|report| report.traffic.bytes_out);
    // What servers received from workers: all they received, less what they sent each other.
    let pushed = total(|report| report.traffic.bytes_in) - if replicas > 1 { sent } else { 0.0 };
    Ok(Found { goodput, sent_over_pushed: sent / pushed })
}

/// The most chain bytes per pushed byte, with one worker. A replication batch has each changed row
/// once, so rows go down the chain at most as often as they are pushed, with a little metadata.
const MOST_CHAIN_BYTES: f64 = 1.05;
/// The same with four workers that push the same rows: a replication batch mostly combines several
/// pushes.
const MOST_CHAIN_BYTES_OF_FOUR: f64 = 0.8;

/// Measures and reports what a second replica costs.
pub(crate) fn run(options: &ClusterBench, report: &mut Report) -> anyhow::Result<()> {
    let mut columns = Columns::default();
    for _ in 0..options.rounds {
        for (workers, names) in [
            (1, ["one_worker_once_gbs", "one_worker_twice_gbs", "one_worker_ratio", "one_worker_chain_bytes"]),
            (4, ["four_workers_once_gbs", "four_workers_twice_gbs", "four_workers_ratio", "four_workers_chain_bytes"]),
        ] {
            let once = measure(options, 1, workers)?;
            let twice = measure(options, 2, workers)?;
            let chain = twice.sent_over_pushed;
            let most = if workers == 4 { MOST_CHAIN_BYTES_OF_FOUR } else { MOST_CHAIN_BYTES };
            ensure!(chain <= most, "servers sent each other {chain:.2} bytes for each pushed byte; the most is {most}");
            columns.put(names[0], once.goodput / 1e9);
            columns.put(names[1], twice.goodput / 1e9);
            columns.put(names[2], twice.goodput / once.goodput);
            columns.put(names[3], chain);
        }
    }
    for (name, column) in [
        ("one_worker_1_copy_gbs", "one_worker_once_gbs"),
        ("one_worker_2_replicas_gbs", "one_worker_twice_gbs"),
        ("goodput_2_replicas_over_1_one_worker", "one_worker_ratio"),
        ("chain_bytes_over_pushed_one_worker", "one_worker_chain_bytes"),
        ("four_workers_1_copy_gbs", "four_workers_once_gbs"),
        ("four_workers_2_replicas_gbs", "four_workers_twice_gbs"),
        ("goodput_2_replicas_over_1_four_workers", "four_workers_ratio"),
        ("chain_bytes_over_pushed_four_workers", "four_workers_chain_bytes"),
    ] {
        report.number(name, columns.median(column));
    }
    Ok(())
}
