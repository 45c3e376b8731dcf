//! The pushing part of `bench chaos`: workers that push while faults are injected.
//!
//! Each worker adds one to rows that no other worker writes. It counts pushes sent and acknowledged
//! in a file of its own, which outlives it, so that every push can be accounted for in the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use launch::parse_same_host;
use slackwater::cluster::SameHost;
use slackwater::policy::NumberType;
use slackwater::{Connect, Consistency, Session, Table, TableSpec};

use super::cluster::{Cluster, HostedProcess, LIMIT, LOOK, SERVERS, SHARDS, WORKERS};
use super::counts::{Counting, Counts, row_in};
use super::faults::{Fault, Role};
use super::leased;
use super::network::Network;
use crate::learning::Scratch;
use types::SplitMix64;

/// The settings of the hidden worker process.
#[derive(clap::Args)]
pub struct ChaosWorker {
    /// The address of the coordinator.
    #[arg(long = "coordinator")]
    coordinator_address: String,
    /// The failure timeout, in seconds.
    #[arg(long)]
    failure_timeout: u64,
    /// How processes of one host talk.
    #[arg(long, default_value = "shared-memory", value_parser = |word: &str| parse_same_host(word).ok_or("not shared-memory or tcp"))]
    same_host: SameHost,
    /// The number of this worker, which says which rows it writes.
    #[arg(long)]
    index: u64,
    /// The folder for its counts; files `stop` and `leave` in it tell the worker to do so.
    #[arg(long)]
    folder: PathBuf,
    /// Push for this many data leases, instead of pushing until told to stop.
    #[arg(long)]
    leases: Option<u64>,
}

fn counts(session: &Session) -> anyhow::Result<Table<i64>> {
    let spec = TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::slack(4));
    Ok(session.table::<i64>(spec)?)
}

/// A worker's rows: one in each shard. So every push waits for the failover of any lost server.
fn rows_of(table: &Table<i64>, index: u64) -> Vec<u64> {
    (0..SHARDS).map(|shard| row_in(table, shard, index)).collect()
}

fn count_file(folder: &Path, index: u64) -> PathBuf {
    folder.join(format!("worker-{index}"))
}

/// What a worker process does: pushes until it is told to stop, then waits until it is told to
/// leave.
pub(crate) fn work(options: &ChaosWorker) -> anyhow::Result<()> {
    let ChaosWorker { coordinator_address, failure_timeout, same_host, index, folder, leases } = options;
    let mut counting = Counting::begin(&count_file(folder, *index))?;
    let failure_timeout = Duration::from_secs(*failure_timeout);
    let session = Session::connect(&Connect {
        failure_timeout,
        same_host: *same_host,
        join_limit: LIMIT,
        ..Connect::to(coordinator_address)
    })?;
    let table = counts(&session)?;
    match leases {
        Some(leases) => leased::learn(&session, &table, *leases, &mut counting)?,
        None => push_on(&session, &table, *index, folder, &mut counting)?,
    }
    counting.stopped()?;
    // Other nodes may still read, and a read waits for the clocks of all workers of the run.
    while !folder.join("leave").exists() {
        session.clock()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(session.close()?)
}

fn push_on(
    session: &Session,
    table: &Table<i64>,
    index: u64,
    folder: &Path,
    counting: &mut Counting,
) -> anyhow::Result<()> {
    let keys = table.keys(&rows_of(table, index));
    loop {
        let push = counting.sent(0..SHARDS)?;
        table.push(&keys, vec![1; SHARDS])?.wait()?;
        counting.acknowledged(0..SHARDS)?;
        session.clock()?;
        if push % 8 == 0 {
            let rows = table.pull(&keys)?.wait()?;
            ensure!(
                rows.values().iter().all(|count| *count == push as i64),
                "a read does not hold all {push} pushes of its own worker: {rows:?}"
            );
        }
        if push % 16 == 0 && folder.join("stop").exists() {
            return Ok(());
        }
    }
}

/// A worker that has been started.
struct Worker {
    index: u64,
    process: HostedProcess,
    /// Whether it was killed, or silenced for so long that the run went on without it.
    killed: bool,
}

/// A run whose workers push.
pub(crate) struct Pushing {
    cluster: Cluster,
    crew: Crew,
}

/// The workers of a run, including killed ones.
struct Crew {
    /// How many data leases there are to push for; none if workers push until told to stop.
    leases: Option<u64>,
    /// Holds the count files.
    scratch: Scratch,
    workers: Vec<Worker>,
}

impl Crew {
    fn start_worker(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let index = self.workers.len() as u64;
        let mut arguments = vec![format!("--index={index}")];
        arguments.extend(["--folder".to_owned(), self.scratch.path("").display().to_string()]);
        arguments.extend(self.leases.map(|leases| format!("--leases={leases}")));
        let process = cluster.start_pushing(&arguments)?;
        self.workers.push(Worker { index, process, killed: false });
        Ok(())
    }

    fn counted(&self, worker: &Worker) -> Counts {
        Counts::read(&count_file(&self.scratch.path(""), worker.index))
    }

    /// Waits until every living worker has sent `pushes` more pushes that were acknowledged, and
    /// until a new push was acknowledged in each of `shards`. Returns the seconds since `begin`.
    fn go_on(&mut self, cluster: &mut Cluster, begin: Instant, pushes: u64, shards: &[usize]) -> anyhow::Result<f64> {
        let living = self.workers.iter().filter(|worker| !worker.killed);
        let before: Vec<(u64, Counts)> = living.map(|worker| (worker.index, self.counted(worker))).collect();
        loop {
            let now: Vec<Counts> =
                before.iter().map(|(index, _)| self.counted(&self.workers[*index as usize])).collect();
            let both = || before.iter().map(|(_, before)| before).zip(&now);
            let every_worker = both().all(|(before, now)| now.acknowledged >= before.sent + pushes);
            let in_shard = |shard: usize| both().any(|(before, now)| now.shards[shard][1] > before.shards[shard][0]);
            if every_worker && shards.iter().all(|shard| in_shard(*shard)) {
                return Ok(begin.elapsed().as_secs_f64());
            }
            for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
                if let Some(status) = worker.process.try_wait()? {
                    bail!("worker process {} ended although the benchmark did not kill it: {status}", worker.index);
                }
            }
            cluster.check()?;
            ensure!(begin.elapsed() < LIMIT, "workers do not go on {} s after a fault", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts another worker and waits until it pushes.
    fn welcome(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.start_worker(cluster)?;
        self.go_on(cluster, Instant::now(), 1, &[]).map(drop)
    }

    /// More pushes than a worker can make while a silent worker is still a member of the run.
    ///
    /// Reads stop workers at four clocks ahead of the silent one. Without leases a clock is one
    /// push, and every eighth push reads; with leases a clock is eight pushes, and each reads.
    fn far(&self) -> u64 {
        if self.leases.is_some() { 48 } else { 24 }
    }
}

impl Pushing {
    /// Starts the run, and waits until every worker pushes.
    pub(crate) fn start(failure_timeout: u64, leases: Option<u64>, network: Option<Network>) -> anyhow::Result<Self> {
        let mut cluster = Cluster::start(failure_timeout, network)?;
        let mut crew = Crew { leases, scratch: Scratch::new()?, workers: Vec::new() };
        (0..WORKERS).try_for_each(|_| crew.start_worker(&cluster))?;
        crew.go_on(&mut cluster, Instant::now(), 20, &[])?;
        Ok(Self { cluster, crew })
    }

    /// Acknowledged pushes, over all workers.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.crew.workers.iter().map(|worker| self.crew.counted(worker).acknowledged).sum()
    }

    /// Injects a fault into a random server or worker. Returns how many seconds it takes until
    /// every worker goes on, in the shards that the fault hit.
    pub(crate) fn suffer(&mut self, fault: Fault, random: &mut SplitMix64) -> anyhow::Result<f64> {
        let Self { cluster, crew } = self;
        let (role, silence) = match fault {
            Fault::Kill(role) => (role, None),
            Fault::Silence(role, how) => (role, Some(how)),
        };
        if role == Role::Server {
            let server = random.below(SERVERS as u64) as usize;
            let shards = cluster.shards_of(server)?;
            let go_on = |cluster: &mut Cluster, begin| crew.go_on(cluster, begin, 1, &shards);
            return cluster.lose_server(server, silence, go_on, || Ok(false));
        }
        let living: Vec<usize> = (0..crew.workers.len()).filter(|at| !crew.workers[*at].killed).collect();
        let worker = living[random.below(living.len() as u64) as usize];
        let begin = Instant::now();
        crew.workers[worker].killed = true;
        let Some(how) = silence else {
            crew.workers[worker].process.kill();
            let seconds = crew.go_on(cluster, begin, 1, &[])?;
            crew.welcome(cluster)?;
            return Ok(seconds);
        };
        crew.workers[worker].process.fall_silent(how)?;
        let far = crew.far();
        let seconds = crew.go_on(cluster, begin, far, &[])?;
        std::thread::sleep(cluster.silence().saturating_sub(begin.elapsed()));
        crew.workers[worker].process.go_on_and_end(how)?;
        crew.welcome(cluster)?;
        Ok(seconds)
    }

    /// How long workers may take to stop. Workers with leases stop when all leases are committed.
    fn longest_to_stop(&self) -> Duration {
        LIMIT + Duration::from_millis(self.crew.leases.unwrap_or(0) * 50)
    }

    /// Stops the workers and reads every row. Returns how many pushes are missing, and how many are
    /// there more often than sent.
    pub(crate) fn account(&mut self) -> anyhow::Result<(u64, u64)> {
        let longest = self.longest_to_stop();
        let Self { cluster, crew } = self;
        File::create(crew.scratch.path("stop"))?;
        let begin = Instant::now();
        while !crew.workers.iter().all(|worker| worker.killed || crew.counted(worker).stopped) {
            ensure!(begin.elapsed() < longest, "workers do not stop within {} s", longest.as_secs());
            std::thread::sleep(LOOK);
        }
        let session = Session::connect(&cluster.connect())?;
        let table = counts(&session)?;
        let (mut lost, mut doubled) = crew.leases.map_or(Ok((0, 0)), |leases| leased::account(&table, leases))?;
        for worker in crew.workers.iter().filter(|_| crew.leases.is_none()) {
            let Counts { sent, acknowledged, .. } = crew.counted(worker);
            let most = if worker.killed { sent } else { acknowledged };
            for count in table.pull(&table.keys(&rows_of(&table, worker.index)))?.wait()?.values() {
                lost += acknowledged.saturating_sub(*count as u64);
                doubled += (*count as u64).saturating_sub(most);
            }
        }
        File::create(crew.scratch.path("leave"))?;
        session.close()?;
        Ok((lost, doubled))
    }
}
