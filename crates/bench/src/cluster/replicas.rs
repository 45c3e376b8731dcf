//! What it costs that everything is held twice, over TCP.
//!
//! Two servers hold a dense table, each half of it once, or all of it with the other's half as a
//! replica. Workers push all of its rows again and again, the same rows if there are several, with
//! two pushes under way each. Servers and workers are threads of this process and talk over TCP.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use slackwater::cluster::{Membership, SameHost};
use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec};

use super::ClusterBench;
use super::measure::{Columns, Report};

const SERVERS: u32 = 2;

/// What one measurement found.
struct Found {
    /// Bytes of values acknowledged a second, over all workers.
    goodput: f64,
    /// Bytes that servers sent, to each other and as answers, for each byte that was pushed.
    sent_over_pushed: f64,
}

fn measure(options: &ClusterBench, replicas: u32, workers: u32) -> anyhow::Result<Found> {
    let coordinator_address = slackwater::cluster::free_address()?.to_string();
    let connect = Connect {
        same_host: SameHost::Tcp,
        failure_timeout: Duration::from_secs(30),
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
    let (began, over) = (AtomicBool::new(false), AtomicBool::new(false));
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
        let (begin, before) = (Instant::now(), pushed.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(options.millis));
        let goodput = (pushed.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a worker fell over"))??;
        }
        anyhow::Ok(goodput)
    })?;
    let reports = servers.join().map_err(|_| anyhow::anyhow!("a server fell over"))?.context("the servers")?;
    let total = |count: fn(&slackwater::cluster::ServerReport) -> u64| reports.iter().map(count).sum::<u64>() as f64;
    let sent = total(|report| report.traffic.bytes_out);
    // What came to servers and was not sent by one of them.
    let pushed = total(|report| report.traffic.bytes_in) - if replicas > 1 { sent } else { 0.0 };
    Ok(Found { goodput, sent_over_pushed: sent / pushed })
}

/// Rows go down the chain once for each replication batch they changed in, so never more often than
/// they are pushed; a little metadata goes with them.
const MOST_CHAIN_BYTES: f64 = 1.05;
/// Rows that four workers push to go down the chain once in most replication batches.
const MOST_CHAIN_BYTES_OF_FOUR: f64 = 0.8;

pub(crate) fn run(options: &ClusterBench, report: &mut Report) -> anyhow::Result<()> {
    let mut columns = Columns::default();
    for _ in 0..options.rounds {
        for (workers, names) in [
            (1, ["one_worker_once_gbs", "one_worker_twice_gbs", "one_worker_ratio", "one_worker_chain_bytes"]),
            (4, ["four_workers_once_gbs", "four_workers_twice_gbs", "four_workers_ratio", "four_workers_chain_bytes"]),
        ] {
            let (once, twice) = (measure(options, 1, workers)?, measure(options, 2, workers)?);
            let chain = twice.sent_over_pushed;
            let most = if workers == 4 { MOST_CHAIN_BYTES_OF_FOUR } else { MOST_CHAIN_BYTES };
            ensure!(chain <= most, "servers sent each other {chain:.2} bytes for each byte that was pushed");
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
