//! `bench chaos`: real processes are killed and stopped at random while others push, and every push is accounted for.
//!
//! Each worker process counts what it sends and what is acknowledged in a file of its own, which outlives it, and adds one to rows that nobody
//! else touches. In the end those rows tell: of a worker that lived, exactly the acknowledged pushes; of one that was killed, no fewer
//! than were acknowledged and no more than were sent.

mod leased;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use slackwater::{Connect, Consistency, NumberType, Session, Table, TableSpec};

use super::learning::Scratch;
use super::measure::{Format, Report, median};
use crate::demo::random::Random;

/// Rows of each worker, spread over all servers.
const ROWS: u64 = 16;
/// Whatever is awaited here takes a tenth of this at most.
const LIMIT: Duration = Duration::from_secs(60);
const SERVERS: usize = 3;
const WORKERS: usize = 4;

/// The settings of `bench chaos`.
#[derive(clap::Args)]
pub struct Options {
    /// For how many seconds something goes wrong again and again.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// A process that is silent for this many seconds is done without.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    patience: u64,
    /// What happens when is drawn from this.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Workers learn from data leases instead, which others take over: every example must count exactly once.
    #[arg(long)]
    leases: bool,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

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

/// A process, ended by its id if it is still there.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Process {
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

struct Worker {
    index: u64,
    process: Process,
    killed: bool,
}

struct Cluster {
    meet: String,
    patience: u64,
    leases: Option<u64>,
    scratch: Scratch,
    coordinator: Process,
    /// How often the coordinator said that everything has its copies.
    whole: Arc<AtomicU64>,
    servers: Vec<Process>,
    workers: Vec<Worker>,
}

fn program(arguments: &[String]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

impl Cluster {
    fn start(patience: u64, leases: Option<u64>) -> anyhow::Result<Self> {
        let meet = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut arguments: Vec<String> =
            ["server", "--threads=0", "--coordinate", "--copies=2", "--slices=4"].map(str::to_owned).into();
        arguments.extend([format!("--servers={SERVERS}"), format!("--workers={WORKERS}")]);
        arguments.extend([format!("--meet={meet}"), format!("--patience={patience}")]);
        let mut child = program(&arguments)?.env("SLACKWATER_LOG", "warn").stderr(Stdio::piped()).spawn()?;
        let whole = Arc::new(AtomicU64::new(0));
        if let Some(said) = child.stderr.take() {
            let whole = whole.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(said).lines().map_while(Result::ok) {
                    whole.fetch_add(u64::from(line.contains("has its copies")), Ordering::Relaxed);
                }
            });
        }
        let (coordinator, scratch) = (Process(child), Scratch::new()?);
        let (servers, workers) = (Vec::new(), Vec::new());
        let mut cluster = Self { meet, patience, leases, scratch, coordinator, whole, servers, workers };
        (0..SERVERS).try_for_each(|_| cluster.start_server())?;
        (0..WORKERS).try_for_each(|_| cluster.start_worker())?;
        cluster.go_on(20)?;
        Ok(cluster)
    }

    fn start_server(&mut self) -> anyhow::Result<()> {
        let Self { meet, patience, .. } = self;
        let arguments = ["server".to_owned(), format!("--meet={meet}"), format!("--patience={patience}")];
        self.servers.push(Process(program(&arguments)?.spawn()?));
        Ok(())
    }

    fn start_worker(&mut self) -> anyhow::Result<()> {
        let index = self.workers.len() as u64;
        let Self { meet, patience, scratch, .. } = self;
        let mut arguments: Vec<String> = ["bench-peer", "chaos"].map(str::to_owned).into();
        arguments.extend([format!("--meet={meet}"), format!("--patience={patience}"), format!("--index={index}")]);
        arguments.extend(["--folder".to_owned(), scratch.path("").display().to_string()]);
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

    fn acknowledged(&self) -> u64 {
        self.workers.iter().map(|worker| self.counted(worker)[1]).sum()
    }

    /// Waits until every worker that lives has seen so many more pushes acknowledged. Returns how long that took.
    fn go_on(&mut self, pushes: u64) -> anyhow::Result<f64> {
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
            if let Some(status) = self.coordinator.0.try_wait()? {
                bail!("the coordinator ended: {status}");
            }
            ensure!(begin.elapsed() < LIMIT, "nothing was acknowledged for {} s", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the coordinator says once more that everything has its copies.
    fn wait_for_copies(&self, before: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.whole.load(Ordering::Relaxed) <= before {
            ensure!(begin.elapsed() < LIMIT, "copies are not whole after {} s", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A server dies. Returns how long it takes until every worker goes on.
    fn kill_server(&mut self, which: usize) -> anyhow::Result<f64> {
        let whole = self.whole.load(Ordering::Relaxed);
        drop(self.servers.swap_remove(which));
        let seconds = self.go_on(1)?;
        self.start_server()?;
        self.wait_for_copies(whole)?;
        Ok(seconds)
    }

    /// A server is stopped for longer than anybody has patience, and then goes on, to hear that it is not wanted any more.
    fn stop_server(&mut self, which: usize) -> anyhow::Result<f64> {
        let whole = self.whole.load(Ordering::Relaxed);
        let mut stopped = self.servers.swap_remove(which);
        let begin = Instant::now();
        stopped.signal(Signal::STOP)?;
        let seconds = self.go_on(1)?;
        std::thread::sleep(Duration::from_secs(2 * self.patience).saturating_sub(begin.elapsed()));
        stopped.signal(Signal::CONT)?;
        let continued = Instant::now();
        while stopped.0.try_wait()?.is_none() {
            ensure!(continued.elapsed() < LIMIT, "a server that was given up does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.start_server()?;
        self.wait_for_copies(whole)?;
        Ok(seconds)
    }

    /// A worker dies, and another comes.
    fn kill_worker(&mut self, which: usize) -> anyhow::Result<f64> {
        let worker = &mut self.workers[which];
        worker.process.0.kill()?;
        worker.process.0.wait()?;
        worker.killed = true;
        let seconds = self.go_on(1)?;
        self.start_worker()?;
        self.go_on(1)?;
        Ok(seconds)
    }

    /// Those who learn stop when there is nothing left to learn from.
    fn longest_to_stop(&self) -> Duration {
        LIMIT + Duration::from_millis(self.leases.unwrap_or(0) * 50)
    }

    /// Reads every row: pushes that are missing, and pushes that are there more than once.
    fn account(&mut self) -> anyhow::Result<(u64, u64)> {
        File::create(self.scratch.path("stop"))?;
        let begin = Instant::now();
        while !self.workers.iter().all(|worker| worker.killed || self.counted(worker)[2] == 1) {
            ensure!(begin.elapsed() < self.longest_to_stop(), "workers do not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        let session = Session::connect(&connect(&self.meet, self.patience))?;
        let table = counts(&session)?;
        let (mut lost, mut doubled) = self.leases.map_or(Ok((0, 0)), |leases| leased::account(&table, leases))?;
        for worker in self.workers.iter().filter(|_| self.leases.is_none()) {
            let [sent, acknowledged, _] = self.counted(worker);
            let most = if worker.killed { sent } else { acknowledged };
            for count in table.pull(&table.keys(&rows_of(worker.index)))?.wait()?.values() {
                lost += acknowledged.saturating_sub(*count as u64);
                doubled += (*count as u64).saturating_sub(most);
            }
        }
        File::create(self.scratch.path("leave"))?;
        session.close()?;
        Ok((lost, doubled))
    }
}

/// The command `bench chaos`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Longer than things go wrong, with what comes before.
    let leases = options.leases.then(|| leased::enough(options.seconds * 5 / 4 + 1, WORKERS));
    let mut cluster = Cluster::start(options.patience, leases)?;
    let mut random = Random::new(options.seed);
    let length = Duration::from_secs(options.seconds);
    // What it does when nothing goes wrong.
    let (begin, before) = (Instant::now(), cluster.acknowledged());
    std::thread::sleep((length / 4).clamp(Duration::from_secs(1), Duration::from_secs(15)));
    let undisturbed = (cluster.acknowledged() - before) as f64 / begin.elapsed().as_secs_f64();
    let (mut server_kills, mut stops, mut worker_kills) = (Vec::new(), Vec::new(), Vec::new());
    let (begin, before) = (Instant::now(), cluster.acknowledged());
    while begin.elapsed() < length {
        match random.below(5) {
            0 | 1 => server_kills.push(cluster.kill_server(random.below(SERVERS as u64) as usize)?),
            2 => stops.push(cluster.stop_server(random.below(SERVERS as u64) as usize)?),
            _ => {
                let living: Vec<usize> = (0..cluster.workers.len()).filter(|at| !cluster.workers[*at].killed).collect();
                worker_kills.push(cluster.kill_worker(living[random.below(living.len() as u64) as usize])?);
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(500)));
    }
    let disturbed = (cluster.acknowledged() - before) as f64 / begin.elapsed().as_secs_f64();
    let (lost, doubled) = cluster.account()?;
    let mut report = Report::default();
    report.number("servers", SERVERS as f64);
    report.number("copies", 2.0);
    report.number("workers", WORKERS as f64);
    report.number("patience_s", options.patience as f64);
    report.number("seconds", begin.elapsed().as_secs_f64());
    let worst = |seconds: &[f64]| seconds.iter().copied().fold(f64::NAN, f64::max);
    let middle = |seconds: &mut [f64]| if seconds.is_empty() { f64::NAN } else { median(seconds) };
    report.number("server_kills", server_kills.len() as f64);
    report.number("server_kill_to_next_ack_median_s", middle(&mut server_kills));
    report.number("server_kill_to_next_ack_worst_s", worst(&server_kills));
    report.number("server_stops", stops.len() as f64);
    report.number("server_stop_to_next_ack_worst_s", worst(&stops));
    report.number("worker_kills", worker_kills.len() as f64);
    report.number("worker_kill_to_next_ack_worst_s", worst(&worker_kills));
    report.number("pushes_acknowledged", cluster.acknowledged() as f64);
    report.number("rows_of_pushes_lost", lost as f64);
    report.number("rows_of_pushes_doubled", doubled as f64);
    report.number("goodput_under_faults_over_without", disturbed / undisturbed);
    report.print(if options.json { Format::Json } else { Format::Table })?;
    ensure!(lost == 0 && doubled == 0, "{lost} rows of pushes were lost and {doubled} counted twice");
    Ok(())
}
