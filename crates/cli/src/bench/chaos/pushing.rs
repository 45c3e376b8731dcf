//! Workers that push, and are killed and stopped on the way: each counts what it sends and what is acknowledged in a file of its own, which
//! outlives it, and adds one to rows that nobody else touches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use slackwater::{Connect, Consistency, NumberType, Session, Table, TableSpec};

use super::cluster::{Cluster, LIMIT, LOOK, Process, SERVERS, WORKERS, program};
use super::faults::Fault;
use super::leased;
use crate::bench::learning::Scratch;
use crate::demo::random::Random;

/// Rows of each worker, spread over all servers.
const ROWS: u64 = 16;

/// The settings of the hidden worker process.
#[derive(clap::Args)]
pub struct WorkerOptions {
    #[arg(long)]
    meet: String,
    #[arg(long)]
    patience: u64,
    /// Which rows are its own.
    #[arg(long)]
    index: u64,
    /// Where it counts, and where it looks whether it should stop.
    #[arg(long)]
    folder: PathBuf,
    /// How many leases there are to learn from, where it learns.
    #[arg(long)]
    leases: Option<u64>,
}

fn connect(meet: &str, patience: u64) -> Connect {
    Connect { patience: Duration::from_secs(patience), join_limit: LIMIT, ..Connect::to(meet) }
}

fn counts(session: &Session) -> anyhow::Result<Table<i64>> {
    let spec = TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::slack(4));
    Ok(session.table::<i64>(spec)?)
}

fn rows_of(index: u64) -> Vec<u64> {
    (index * ROWS..(index + 1) * ROWS).collect()
}

fn count_file(folder: &Path, index: u64) -> PathBuf {
    folder.join(format!("worker-{index}"))
}

/// What a worker process does: pushes until it is told to stop, and leaves when it is told to.
pub fn work(options: &WorkerOptions) -> anyhow::Result<()> {
    let WorkerOptions { meet, patience, index, folder, leases } = options;
    let file = File::create(count_file(folder, *index)).context("cannot count")?;
    let session = Session::connect(&connect(meet, *patience))?;
    let table = counts(&session)?;
    match leases {
        Some(leases) => leased::learn(&session, &table, *leases, &file)?,
        None => push_on(&session, &table, *index, folder, &file)?,
    }
    file.write_all_at(&1u64.to_le_bytes(), 16)?;
    // Others may still read, and a read waits for the clocks of everybody who is there.
    while !folder.join("leave").exists() {
        session.clock()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(session.close()?)
}

fn push_on(session: &Session, table: &Table<i64>, index: u64, folder: &Path, file: &File) -> anyhow::Result<()> {
    let keys = table.keys(&rows_of(index));
    for push in 1u64.. {
        if push % 16 == 0 && folder.join("stop").exists() {
            break;
        }
        file.write_all_at(&push.to_le_bytes(), 0)?;
        table.push(&keys, vec![1; ROWS as usize])?.wait()?;
        file.write_all_at(&push.to_le_bytes(), 8)?;
        session.clock()?;
        if push % 8 == 0 {
            let rows = table.pull(&keys)?.wait()?;
            ensure!(rows.values().iter().all(|count| *count == push as i64), "own pushes are missing: {rows:?}");
        }
    }
    Ok(())
}

struct Worker {
    index: u64,
    process: Process,
    /// Or stopped for so long that the run went on without it.
    killed: bool,
}

/// A run whose workers push.
pub struct Pushing {
    cluster: Cluster,
    crew: Crew,
}

/// Its workers, those that were killed among them.
struct Crew {
    leases: Option<u64>,
    scratch: Scratch,
    workers: Vec<Worker>,
}

impl Crew {
    fn start_worker(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let index = self.workers.len() as u64;
        let Cluster { meet, patience, .. } = cluster;
        let mut arguments: Vec<String> = ["bench-peer", "chaos"].map(str::to_owned).into();
        arguments.extend([format!("--meet={meet}"), format!("--patience={patience}"), format!("--index={index}")]);
        arguments.extend(["--folder".to_owned(), self.scratch.path("").display().to_string()]);
        arguments.extend(self.leases.map(|leases| format!("--leases={leases}")));
        let process = Process(program(&arguments)?.spawn()?);
        self.workers.push(Worker { index, process, killed: false });
        Ok(())
    }

    /// Pushes sent, pushes acknowledged, and whether the worker has stopped.
    fn counted(&self, worker: &Worker) -> [u64; 3] {
        let mut counted = [0; 3];
        if let Ok(file) = File::open(count_file(&self.scratch.path(""), worker.index)) {
            for (count, at) in counted.iter_mut().zip([0, 8, 16]) {
                let mut bytes = [0; 8];
                if file.read_exact_at(&mut bytes, at).is_ok() {
                    *count = u64::from_le_bytes(bytes);
                }
            }
        }
        counted
    }

    /// Waits until every worker that lives has seen so many more pushes acknowledged. Returns how long that took.
    fn go_on(&mut self, cluster: &mut Cluster, pushes: u64) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let before: Vec<u64> = self.workers.iter().map(|worker| self.counted(worker)[1]).collect();
        loop {
            let went_on =
                |(worker, before): (&Worker, &u64)| worker.killed || self.counted(worker)[1] >= before + pushes;
            if self.workers.iter().zip(&before).all(went_on) {
                return Ok(begin.elapsed().as_secs_f64());
            }
            for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
                if let Some(status) = worker.process.0.try_wait()? {
                    bail!("worker process {} ended, which nobody killed: {status}", worker.index);
                }
            }
            cluster.check()?;
            ensure!(begin.elapsed() < LIMIT, "nothing was acknowledged for {} s", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Pushing {
    /// Starts it, and waits until everybody pushes.
    pub fn start(patience: u64, leases: Option<u64>) -> anyhow::Result<Self> {
        let mut cluster = Cluster::start(patience)?;
        let mut crew = Crew { leases, scratch: Scratch::new()?, workers: Vec::new() };
        (0..WORKERS).try_for_each(|_| crew.start_worker(&cluster))?;
        crew.go_on(&mut cluster, 20)?;
        Ok(Self { cluster, crew })
    }

    /// Pushes that were acknowledged, to whomever.
    pub fn acknowledged(&self) -> u64 {
        self.crew.workers.iter().map(|worker| self.crew.counted(worker)[1]).sum()
    }

    /// Something goes wrong. Returns how long it takes until every worker goes on.
    pub fn suffer(&mut self, fault: Fault, random: &mut Random) -> anyhow::Result<f64> {
        let Self { cluster, crew } = self;
        let server = random.below(SERVERS as u64) as usize;
        let living: Vec<usize> = (0..crew.workers.len()).filter(|at| !crew.workers[*at].killed).collect();
        let worker = living[random.below(living.len() as u64) as usize];
        let never = || Ok(false);
        match fault {
            Fault::KillServer => cluster.kill_server(server, |cluster| crew.go_on(cluster, 1), never),
            Fault::StopServer => cluster.stop_server(server, |cluster| crew.go_on(cluster, 1), never),
            Fault::KillWorker => {
                let process = &mut crew.workers[worker].process.0;
                process.kill()?;
                process.wait()?;
                crew.workers[worker].killed = true;
                let seconds = crew.go_on(cluster, 1)?;
                crew.start_worker(cluster)?;
                crew.go_on(cluster, 1)?;
                Ok(seconds)
            }
            Fault::StopWorker => {
                let begin = Instant::now();
                crew.workers[worker].process.stop()?;
                crew.workers[worker].killed = true;
                // They do not go so far without it: every eighth push reads, no more than four clocks ahead of it.
                let seconds = crew.go_on(cluster, 24)?;
                std::thread::sleep(cluster.stop().saturating_sub(begin.elapsed()));
                crew.workers[worker].process.go_on_and_end()?;
                crew.start_worker(cluster)?;
                crew.go_on(cluster, 1)?;
                Ok(seconds)
            }
        }
    }

    /// Those who learn stop when there is nothing left to learn from.
    fn longest_to_stop(&self) -> Duration {
        LIMIT + Duration::from_millis(self.crew.leases.unwrap_or(0) * 50)
    }

    /// Reads every row: pushes that are missing, and pushes that are there more than once.
    pub fn account(&mut self) -> anyhow::Result<(u64, u64)> {
        let longest = self.longest_to_stop();
        let Self { cluster, crew } = self;
        File::create(crew.scratch.path("stop"))?;
        let begin = Instant::now();
        while !crew.workers.iter().all(|worker| worker.killed || crew.counted(worker)[2] == 1) {
            ensure!(begin.elapsed() < longest, "workers do not stop");
            std::thread::sleep(LOOK);
        }
        let session = Session::connect(&connect(&cluster.meet, cluster.patience))?;
        let table = counts(&session)?;
        let (mut lost, mut doubled) = crew.leases.map_or(Ok((0, 0)), |leases| leased::account(&table, leases))?;
        for worker in crew.workers.iter().filter(|_| crew.leases.is_none()) {
            let [sent, acknowledged, _] = crew.counted(worker);
            let most = if worker.killed { sent } else { acknowledged };
            for count in table.pull(&table.keys(&rows_of(worker.index)))?.wait()?.values() {
                lost += acknowledged.saturating_sub(*count as u64);
                doubled += (*count as u64).saturating_sub(most);
            }
        }
        File::create(crew.scratch.path("leave"))?;
        session.close()?;
        Ok((lost, doubled))
    }
}
