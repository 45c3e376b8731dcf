//! How long a run needs when a server joins or is lost, and how many replicas move.
//!
//! Servers are real processes with two replicas of each shard. One worker, in this process, pushes
//! to rows of every server all the time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use launch::{PlannedProcess, Process, RunPlan, Start};
use slackwater::monitor::{Status, status};
use slackwater::security::Access;
use slackwater::{Connect, Session, TableSpec};

use super::measure::Report;

/// How long the benchmark waits for anything before it fails: ten times what it should take.
const LIMIT: Duration = Duration::from_secs(120);
const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows of one push when the table is filled.
const FILL: u64 = 100_000;
/// Rows that the worker pushes to all the time, spread over all shards.
const PROBES: u64 = 1000;

fn start(planned: &PlannedProcess) -> anyhow::Result<Process> {
    Ok(Start::this_program(&planned.name)?.args(&planned.arguments).spawn()?)
}

/// Every replica, as (shard, server).
fn held(status: &Status) -> BTreeSet<(usize, u32)> {
    let chains = status.plan.chains.iter().enumerate();
    chains.flat_map(|(shard, chain)| chain.replicas.iter().map(move |server| (shard, *server))).collect()
}

/// Waits for a plan that all servers have adopted, with two whole replicas of each shard, for which
/// `is_there` holds.
fn wait_until(connect: &Connect, is_there: impl Fn(&Status) -> bool) -> anyhow::Result<Status> {
    let begin = Instant::now();
    loop {
        let now = status(connect)?;
        let is_whole = now.plan.chains.iter().all(|chain| chain.backfilling.is_empty() && chain.replicas.len() == 2);
        if is_whole && now.adopting.is_empty() && is_there(&now) {
            return Ok(now);
        }
        ensure!(begin.elapsed() < LIMIT, "shards lack replicas after {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Measures a run of `servers` servers, with a table of `rows` rows. Reports figures whose names
/// begin with `name`.
pub(crate) fn run(servers: u32, rows: u64, name: &str, report: &mut Report) -> anyhow::Result<()> {
    let coordinator_address = slackwater::cluster::free_address()?.to_string();
    let plan = RunPlan {
        replicas: Some(2),
        failure_timeout: FAILURE_TIMEOUT,
        common: vec!["--insecure".into()],
        ..RunPlan::new(&coordinator_address, servers, 1)
    };
    let _coordinator = start(&plan.coordinator())?;
    let server = || start(&plan.server(None));
    let mut processes = (0..servers).map(|_| server()).collect::<anyhow::Result<Vec<_>>>()?;
    let connect = Connect {
        failure_timeout: FAILURE_TIMEOUT,
        join_limit: LIMIT,
        access: Access::Insecure,
        ..Connect::to(&coordinator_address)
    };
    let session = Session::connect(&connect)?;
    let table = session.table::<f32>(TableSpec::sparse("rows", 4))?;
    for first in (0..rows).step_by(FILL as usize) {
        let keys: Vec<u64> = (first..rows.min(first + FILL)).collect();
        table.push(&table.keys(&keys), vec![1.0; keys.len() * 4])?.wait()?;
    }
    let probes: Vec<u64> = (0..rows).step_by((rows / PROBES).max(1) as usize).collect();
    let values = vec![1.0; probes.len() * 4];
    let probes = table.keys(&probes);
    let acknowledged = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let push_on = || -> anyhow::Result<()> {
        while !over.load(Ordering::Relaxed) {
            table.push(&probes, &values)?.wait()?;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let mut change = || -> anyhow::Result<()> {
        let before = wait_until(&connect, |_| true)?;
        let begin = Instant::now();
        processes.push(server()?);
        let after = wait_until(&connect, |now| now.plan.servers().len() > before.plan.servers().len())?;
        report.number(&format!("{name}_join_s"), begin.elapsed().as_secs_f64());
        let moved = held(&after).difference(&held(&before)).count();
        let fair = held(&after).len() as f64 / f64::from(servers + 1);
        report.number(&format!("{name}_join_moved_over_fair_share"), moved as f64 / fair);
        let begin = Instant::now();
        drop(processes.swap_remove(0));
        let died = acknowledged.load(Ordering::Relaxed);
        // The next acknowledgement may be of a push that the lost server had already handled.
        while acknowledged.load(Ordering::Relaxed) < died + 2 {
            ensure!(
                begin.elapsed() < LIMIT,
                "no push was acknowledged within {} s after a server was lost",
                LIMIT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        report.number(&format!("{name}_failover_s"), begin.elapsed().as_secs_f64());
        wait_until(&connect, |now| now.plan.servers().len() == before.plan.servers().len())?;
        report.number(&format!("{name}_replicas_again_s"), begin.elapsed().as_secs_f64());
        Ok(())
    };
    std::thread::scope(|scope| {
        let pushes = scope.spawn(push_on);
        let changed = change();
        over.store(true, Ordering::Relaxed);
        pushes.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?.and(changed)
    })?;
    Ok(session.close()?)
}
