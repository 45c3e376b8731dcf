//! The pushing part of `bench chaos`: workers that push while faults are injected.
//!
//! Each worker adds one to rows that no other worker writes. It counts pushes sent and acknowledged
//! in a file of its own, which outlives it, so that every push can be accounted for in the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use launch::parse_same_host;
use slackwater::cluster::SameHost;
use slackwater::policy::NumberType;
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Session, Table, TableSpec};

use super::cluster::{Cluster, ClusterOptions, HostedProcess, LIMIT, LOOK, SERVERS, SHARDS, WORKERS};
use super::counts::{Counting, Counts, row_in};
use super::faults::{Direction, Fault, LongWork, Role, Schedule, Silence, Tally};
use super::large_table::{self, LargeTable, make_file};
use super::leased;
use super::starvation::starve;
use crate::learning::Scratch;

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
    /// The token file of the run; an insecure run if there is none.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The number of this worker, which says which rows it writes.
    #[arg(long)]
    index: u64,
    /// The folder for its counts; files `stop` and `leave` in it tell the worker to do so.
    #[arg(long)]
    folder: PathBuf,
    /// Push for this many data leases, instead of pushing until told to stop.
    #[arg(long)]
    leases: Option<u64>,
    /// Make a table of this many mebibytes when there is a file `make` in the folder, and push to
    /// it, too.
    #[arg(long)]
    large_mib: Option<u64>,
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
    let ChaosWorker { coordinator_address, failure_timeout, same_host, index, folder, leases, large_mib, token_file } =
        options;
    let mut counting = Counting::begin(&count_file(folder, *index))?;
    let failure_timeout = Duration::from_secs(*failure_timeout);
    let session = Session::connect(&Connect {
        failure_timeout,
        same_host: *same_host,
        join_limit: LIMIT,
        access: token_file.as_ref().map_or(Access::Insecure, |path| Access::TokenFile(path.clone())),
        ..Connect::to(coordinator_address)
    })?;
    let table = counts(&session)?;
    let mut large = None;
    let push_large = |push: u64, counting: &mut Counting| match (&large, large_mib) {
        _ if !push.is_multiple_of(large_table::PUSH_EVERY) => Ok(()),
        (None, Some(mebibytes)) if make_file(folder).exists() => {
            large = Some(LargeTable::open(&session, *mebibytes, *index)?);
            Ok(())
        }
        (None, _) => Ok(()),
        (Some(large), _) => large.push(counting),
    };
    match leases {
        Some(leases) => leased::learn(&session, &table, *leases, &mut counting, push_large)?,
        None => push_on(&session, &table, *index, folder, &mut counting, push_large)?,
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
    mut beside: impl FnMut(u64, &mut Counting) -> anyhow::Result<()>,
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
        beside(push, counting)?;
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

/// The settings of a run whose workers push.
pub(crate) struct PushingOptions {
    /// The settings of the coordinator and the servers, without a folder for checkpoints.
    pub(crate) cluster: ClusterOptions,
    /// How many data leases there are to push for; none if workers push until told to stop.
    pub(crate) leases: Option<u64>,
    /// The size of the large table in mebibytes, if there is one. Then checkpoints are made, too.
    pub(crate) large_mib: Option<u64>,
}

/// A run whose workers push.
pub(crate) struct Pushing {
    cluster: Cluster,
    crew: Crew,
    tally: Tally,
}

/// The workers of a run, including killed ones.
struct Crew {
    leases: Option<u64>,
    large_mib: Option<u64>,
    /// Whether the fault under way may end processes that it does not kill.
    may_end: bool,
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
        arguments.extend(self.large_mib.map(|mebibytes| format!("--large-mib={mebibytes}")));
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
        let seconds = self.go_on_within(LIMIT, cluster, begin, pushes, shards)?;
        seconds.with_context(|| format!("workers do not go on {} s after a fault", LIMIT.as_secs()))
    }

    /// As [`Crew::go_on`]; none if that takes longer than `limit`.
    fn go_on_within(
        &mut self,
        limit: Duration,
        cluster: &mut Cluster,
        begin: Instant,
        pushes: u64,
        shards: &[usize],
    ) -> anyhow::Result<Option<f64>> {
        let entered = Instant::now();
        let counts = |crew: &Self| -> Vec<Counts> { crew.workers.iter().map(|worker| crew.counted(worker)).collect() };
        let before = counts(self);
        loop {
            let now = counts(self);
            // A worker that joined meanwhile is not waited for.
            let living: Vec<usize> = (0..before.len()).filter(|at| !self.workers[*at].killed).collect();
            let every_worker = living.iter().all(|at| now[*at].acknowledged >= before[*at].sent + pushes);
            let in_shard =
                |shard: usize| living.iter().any(|at| now[*at].shards[shard][1] > before[*at].shards[shard][0]);
            if every_worker && shards.iter().all(|shard| in_shard(*shard)) {
                return Ok(Some(begin.elapsed().as_secs_f64()));
            }
            if self.note_ended()? > 0 {
                ensure!(self.may_end, "a worker process ended although the benchmark did not kill it");
            }
            cluster.check()?;
            if entered.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Notes which workers have ended although they were not killed. Returns how many.
    fn note_ended(&mut self) -> anyhow::Result<usize> {
        let mut ended = 0;
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            if let Some(status) = worker.process.try_wait()? {
                ensure!(!status.success(), "worker process {} ended with success before the others", worker.index);
                worker.killed = true;
                ended += 1;
            }
        }
        Ok(ended)
    }

    fn living(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|at| !self.workers[*at].killed).collect()
    }

    /// Starts workers until there are as many as in the beginning.
    fn fill_up(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        (self.living().len()..WORKERS).try_for_each(|_| self.start_worker(cluster))
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
    pub(crate) fn start(options: PushingOptions) -> anyhow::Result<Self> {
        let PushingOptions { cluster, leases, large_mib } = options;
        let scratch = Scratch::new()?;
        let checkpoints = large_mib.map(|_| scratch.path("checkpoints"));
        let mut cluster = Cluster::start(ClusterOptions { checkpoints, ..cluster })?;
        let mut crew = Crew { leases, large_mib, may_end: false, scratch, workers: Vec::new() };
        crew.fill_up(&cluster)?;
        crew.go_on(&mut cluster, Instant::now(), 20, &[])?;
        Ok(Self { cluster, crew, tally: Tally::default() })
    }

    /// Acknowledged pushes, over all workers.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.crew.workers.iter().map(|worker| self.crew.counted(worker).acknowledged).sum()
    }

    /// Acknowledged pushes to the large table, over all workers.
    pub(crate) fn large_acknowledged(&self) -> u64 {
        self.crew.workers.iter().map(|worker| self.crew.counted(worker).large[1]).sum()
    }

    /// How many checkpoints have been published.
    pub(crate) fn published(&self) -> u64 {
        self.cluster.published()
    }

    /// The coordinator and the servers, to look at.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How many processes have ended. None may, because nobody has ended them.
    pub(crate) fn ended(&mut self) -> anyhow::Result<usize> {
        Ok(self.crew.note_ended()? + self.cluster.ended()?)
    }

    /// Waits until only the processes of this run are in it, and every shard has its replicas.
    pub(crate) fn wait_until_settled(&mut self) -> anyhow::Result<()> {
        self.cluster.wait_until_settled()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Injects a fault into random processes. Returns how many seconds it takes until every worker
    /// goes on, in the shards that the fault hit; none if the fault could not be injected in time.
    pub(crate) fn suffer(&mut self, fault: Fault, schedule: &mut Schedule) -> anyhow::Result<Option<f64>> {
        match fault {
            Fault::Kill(role) => self.lose(role, None, schedule).map(Some),
            Fault::Silence(role, how) => self.lose(role, Some(how), schedule).map(Some),
            Fault::Stall => self.stall().map(Some),
            Fault::Starve => self.starve().map(Some),
            Fault::OneWay(direction) => self.one_way(direction, schedule),
            Fault::KillAmid(LongWork::Making) => self.kill_amid_making(schedule),
            Fault::KillAmid(LongWork::Backfill) => self.kill_amid_backfill(schedule),
            Fault::KillAmid(LongWork::Checkpoint) => {
                self.cluster.wait_for_checkpoint()?;
                let role = if schedule.below(2) == 0 { Role::Server } else { Role::Worker };
                self.lose(role, None, schedule).map(Some)
            }
        }
    }

    /// Kills a random server or worker, or silences it for longer than the failure timeout.
    fn lose(&mut self, role: Role, silence: Option<Silence>, schedule: &mut Schedule) -> anyhow::Result<f64> {
        let Self { cluster, crew, .. } = self;
        if role == Role::Server {
            let server = schedule.below(SERVERS);
            let shards = cluster.shards_of(server)?;
            let go_on = |cluster: &mut Cluster, begin| crew.go_on(cluster, begin, 1, &shards);
            return cluster.lose_server(server, silence, go_on, || Ok(false));
        }
        let living = crew.living();
        let worker = living[schedule.below(living.len())];
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

    /// Stops the coordinator for longer than the failure timeout. No node may be lost by that.
    /// Returns the seconds from when it goes on until every worker does.
    fn stall(&mut self) -> anyhow::Result<f64> {
        self.settle()?;
        let before = self.cluster.lost_nodes()?;
        let begin = self.cluster.stall()?;
        let every_shard: Vec<usize> = (0..SHARDS).collect();
        let seconds = self.crew.go_on(&mut self.cluster, begin, 1, &every_shard)?;
        let lost: Vec<String> = self.cluster.lost_nodes()?.difference(&before).cloned().collect();
        ensure!(lost.is_empty(), "a coordinator that was stopped expelled {lost:?} for its own sleep");
        ensure!(self.settle()? == 0, "a process ended because the coordinator was stopped");
        Ok(seconds)
    }

    /// Starves all nodes. At the default failure timeout no node may be lost by that.
    fn starve(&mut self) -> anyhow::Result<f64> {
        self.settle()?;
        self.crew.may_end = true;
        let begin = Instant::now();
        let busy = starve()?;
        let far = self.crew.far();
        let seconds = self.crew.go_on(&mut self.cluster, begin, far, &[])?;
        std::thread::sleep(self.cluster.starvation().saturating_sub(begin.elapsed()));
        drop(busy);
        let expelled = self.settle()?;
        ensure!(
            expelled == 0 || self.cluster.has_short_timeout(),
            "{expelled} nodes were lost because busy processes kept them from running"
        );
        self.tally.expelled_by_starvation += expelled;
        self.crew.may_end = false;
        Ok(seconds)
    }

    /// Loses all frames of a link in one direction, for longer than the failure timeout. The run
    /// may expel one of the two nodes. Returns the seconds until every worker goes on that is left.
    fn one_way(&mut self, direction: Direction, schedule: &mut Schedule) -> anyhow::Result<Option<f64>> {
        self.settle()?;
        let Self { cluster, crew, tally } = self;
        let living = crew.living();
        let worker = living[schedule.below(living.len())];
        let begin = Instant::now();
        let link = cluster.drop_direction(direction, &crew.workers[worker].process, schedule.below(SERVERS))?;
        crew.may_end = true;
        let far = crew.far();
        let early = crew.go_on_within(cluster.silence(), cluster, begin, far, &[])?;
        std::thread::sleep(cluster.silence().saturating_sub(begin.elapsed()));
        let segments = link.end()?;
        let seconds = early.map_or_else(|| crew.go_on(cluster, begin, far, &[]), Ok)?;
        tally.segments_on_one_way_links += segments.unwrap_or(0);
        let expelled = self.settle()?;
        self.tally.expelled_by_one_way_links += expelled;
        self.crew.may_end = false;
        Ok((segments != Some(0)).then_some(seconds))
    }

    /// Lets the workers make the large table, and kills a server meanwhile.
    fn kill_amid_making(&mut self, schedule: &mut Schedule) -> anyhow::Result<Option<f64>> {
        File::create(make_file(&self.crew.scratch.path("")))?;
        let begin = Instant::now();
        while !self.cluster.status()?.tables.iter().any(|table| table.spec.name == large_table::NAME) {
            ensure!(begin.elapsed() < LIMIT, "workers do not make the large table");
            std::thread::sleep(LOOK);
        }
        let was_made = self.crew.workers.iter().any(|worker| self.crew.counted(worker).large[0] > 0);
        let seconds = self.lose(Role::Server, None, schedule)?;
        Ok((!was_made).then_some(seconds))
    }

    /// Kills a server, and a worker while the server's shards are backfilled.
    fn kill_amid_backfill(&mut self, schedule: &mut Schedule) -> anyhow::Result<Option<f64>> {
        let Self { cluster, crew, .. } = self;
        let living = crew.living();
        let worker = living[schedule.below(living.len())];
        let server = schedule.below(SERVERS);
        let shards = cluster.shards_of(server)?;
        let mut was_amid = false;
        let go_on = |cluster: &mut Cluster, begin: Instant| {
            while !was_amid && begin.elapsed() < cluster.silence() {
                was_amid = cluster.status()?.plan.chains.iter().any(|chain| !chain.backfilling.is_empty());
            }
            crew.workers[worker].killed = true;
            crew.workers[worker].process.kill();
            crew.go_on(cluster, begin, 1, &shards)
        };
        let seconds = cluster.lose_server(server, None, go_on, || Ok(false))?;
        crew.welcome(cluster)?;
        Ok(was_amid.then_some(seconds))
    }

    /// Starts other processes for those that have ended without being killed, until all are in the
    /// run and every shard has its replicas. Returns how many have ended.
    fn settle(&mut self) -> anyhow::Result<u64> {
        let Self { cluster, crew, .. } = self;
        let begin = Instant::now();
        let missing = |crew: &Crew| WORKERS - crew.living().len();
        let mut ended = missing(crew);
        crew.fill_up(cluster)?;
        loop {
            let more = cluster.replace_ended()? + crew.note_ended()?;
            crew.fill_up(cluster)?;
            ended += more;
            if more == 0 && cluster.is_settled()? {
                break;
            }
            cluster.check()?;
            ensure!(begin.elapsed() < LIMIT, "the run is not whole again within {} s", LIMIT.as_secs());
            std::thread::sleep(LOOK);
        }
        crew.go_on(cluster, begin, 1, &[])?;
        Ok(ended as u64)
    }

    /// How long workers may take to stop. Workers with leases stop when all leases are committed.
    fn longest_to_stop(&self) -> Duration {
        LIMIT + Duration::from_millis(self.crew.leases.unwrap_or(0) * 50)
    }

    /// Stops the workers and reads every row. Returns how many pushes are missing, and how many are
    /// there more often than sent.
    pub(crate) fn account(&mut self) -> anyhow::Result<(u64, u64)> {
        let longest = self.longest_to_stop();
        let Self { cluster, crew, .. } = self;
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
        let large_mib = crew.large_mib.filter(|_| make_file(&crew.scratch.path("")).exists());
        for (worker, mebibytes) in crew.workers.iter().filter_map(|worker| Some((worker, large_mib?))) {
            let large = LargeTable::open(&session, mebibytes, worker.index)?;
            let (large_lost, large_doubled) = large.account(&crew.counted(worker), worker.killed)?;
            lost += large_lost;
            doubled += large_doubled;
        }
        File::create(crew.scratch.path("leave"))?;
        session.close()?;
        Ok((lost, doubled))
    }
}
