//! The processes of a run into which faults are injected: a coordinator, servers with two replicas
//! of each shard, and workers.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use launch::{OutputTarget, Process, ProcessError, RunPlan, RunToken, Signal, Start};
use slackwater::Connect;
use slackwater::cluster::SameHost;
use slackwater::monitor::{MemberState, Status, status};
use slackwater::security::Access;

use super::faults::{Direction, Role, Silence};
use super::network::{HUB_ADDRESS, Host, LinkEnd, Network, OneWayDrop};

/// How long the benchmark waits for anything before it fails: ten times what it should take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SERVERS: usize = 3;
pub(crate) const WORKERS: usize = 4;
/// How often the benchmark checks a condition that it waits for.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Seconds between the beginnings of two checkpoints, in a run that makes them.
const CHECKPOINT_EVERY: &str = "3";
/// Shards of each table, for each server that the run begins with.
const SHARDS_PER_SERVER: usize = 4;
pub(crate) const SHARDS: usize = SERVERS * SHARDS_PER_SERVER;

/// A process and, where there is a network, the host that it runs on.
pub(crate) struct HostedProcess {
    process: Process,
    host: Option<Host>,
}

impl HostedProcess {
    /// The exit status of the process; `None` while it runs. Frees the host of a process that has
    /// ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        let status = self.process.try_wait()?;
        if status.is_some() {
            self.host = None;
        }
        Ok(status)
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The process's place in the network. None without a network.
    fn link_end(&self) -> Option<(LinkEnd<'_>, String)> {
        let host = self.host.as_ref()?;
        Some((LinkEnd::Host(host), format!("/proc/{}/net/snmp", self.process.id())))
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
        self.host = None;
    }

    /// Makes the process silent: stops it, or cuts off its host.
    pub(crate) fn fall_silent(&mut self, how: Silence) -> anyhow::Result<()> {
        match (how, &mut self.host) {
            (Silence::Stop, _) => Ok(self.process.signal(Signal::STOP)?),
            (Silence::Cut, Some(host)) => host.cut(),
            (Silence::Cut, None) => bail!("cannot cut off a process: the benchmark has made no network"),
        }
    }

    /// Resumes a process that the run has expelled while it was silent, and waits for its end.
    /// Fails if the process does not end, or ends with success.
    pub(crate) fn go_on_and_end(&mut self, how: Silence) -> anyhow::Result<()> {
        match (how, &mut self.host) {
            (Silence::Cut, Some(host)) => host.join()?,
            _ => self.process.signal(Signal::CONT)?,
        }
        let status = self.process.wait_for(LIMIT)?.context("an expelled process does not end")?;
        ensure!(!status.success(), "an expelled process ended with success, so it has not learnt of its expulsion");
        self.host = None;
        Ok(())
    }
}

/// The settings of a [`Cluster`].
#[derive(Clone, Default)]
pub(crate) struct ClusterOptions {
    /// The failure timeout, in seconds.
    pub(crate) failure_timeout: u64,
    pub(crate) network: Option<Network>,
    /// The folder for checkpoints. Without one, none are made.
    pub(crate) checkpoints: Option<PathBuf>,
    /// Whether the run has no token.
    pub(crate) is_insecure: bool,
    /// Whether the coordinator and the servers serve metrics, at ports of their own.
    pub(crate) has_metrics: bool,
    /// How the processes talk. With a network, each stands for a host of its own, so only TCP is
    /// used.
    pub(crate) same_host: SameHost,
}

/// A coordinator or a server, for a benchmark that looks at it from outside.
pub(crate) struct Node {
    pub(crate) name: String,
    /// The id of its process.
    pub(crate) id: u32,
    /// Where it serves metrics, if the run has metrics.
    pub(crate) metrics: Option<SocketAddr>,
}

/// The coordinator and the servers.
pub(crate) struct Cluster {
    plan: RunPlan,
    checkpoints: Option<PathBuf>,
    /// How many checkpoints the coordinator has published.
    published: Arc<AtomicU64>,
    program: PathBuf,
    network: Option<Network>,
    coordinator: Process,
    /// How often the coordinator has logged that every shard has its replicas.
    whole: Arc<AtomicU64>,
    servers: Vec<Server>,
    /// The token of the run; `None` if it is insecure.
    token: Option<RunToken>,
    /// Where the coordinator serves metrics, if the run has metrics.
    metrics: Option<SocketAddr>,
}

struct Server {
    process: HostedProcess,
    /// Where it serves metrics, if the run has metrics.
    metrics: Option<SocketAddr>,
    /// The server's number, once the server has logged it.
    number: Arc<OnceLock<u32>>,
}

/// A link that loses all frames in one direction.
pub(crate) struct DroppedLink {
    drop: OneWayDrop,
    /// The file of network counters of the sender's host.
    counters: String,
    /// The segments that the host had retransmitted before.
    before: u64,
}

impl DroppedLink {
    /// Makes the link whole again. Returns how many segments the sender has retransmitted because
    /// no acknowledgement came. None if the sender has ended, and its counters with it.
    pub(crate) fn end(mut self) -> anyhow::Result<Option<u64>> {
        let now = retransmitted(&self.counters).ok();
        self.drop.end()?;
        Ok(now.map(|now| now.saturating_sub(self.before)))
    }
}

/// The TCP segments that a host has retransmitted, from a file such as `/proc/self/net/snmp`.
fn retransmitted(counters: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(counters).with_context(|| format!("cannot read {counters}"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:")).map(str::split_whitespace);
    let names = lines.next().context("no TCP counters")?;
    let values = lines.next().context("no TCP counters")?;
    let found = names.zip(values).find(|(name, _)| *name == "RetransSegs");
    Ok(found.context("the kernel does not count retransmitted segments")?.1.parse()?)
}

/// The letter by which the kernel shows the state of a process: T if it is stopped.
fn process_state(id: u32) -> anyhow::Result<char> {
    let path = format!("/proc/{id}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let after_name = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    after_name.with_context(|| format!("{path} shows no state"))
}

/// Calls a function with each line of the output.
fn lines(mut heard: impl FnMut(&str) + Send + 'static) -> OutputTarget {
    OutputTarget::Lines(Box::new(move |line| heard(&String::from_utf8_lossy(line))))
}

impl Cluster {
    /// Starts the coordinator and the servers. The run begins when the workers have joined, too.
    pub(crate) fn start(options: ClusterOptions) -> anyhow::Result<Self> {
        let ClusterOptions { failure_timeout, network, checkpoints, is_insecure, has_metrics, same_host } = options;
        let token = (!is_insecure).then(RunToken::create).transpose()?;
        let metrics = has_metrics.then(slackwater::cluster::free_address).transpose()?;
        let here = if network.is_some() { HUB_ADDRESS } else { "127.0.0.1" };
        let coordinator_address = TcpListener::bind((here, 0))?.local_addr()?.to_string();
        let mut coordinator = vec![format!("--shards-per-server={SHARDS_PER_SERVER}").into()];
        coordinator.extend(metrics.map(|address| format!("--metrics={address}").into()));
        if let Some(folder) = &checkpoints {
            let every = format!("--checkpoint-every={CHECKPOINT_EVERY}");
            coordinator
                .extend([format!("--checkpoint={}", folder.display()), every, "--keep=1".to_owned()].map(Into::into));
        }
        let mut common: Vec<OsString> = match &token {
            Some(token) => vec!["--token-file".into(), token.path().into()],
            None => vec!["--insecure".into()],
        };
        common.extend(checkpoints.iter().map(|folder| format!("--checkpoint-location={}", folder.display()).into()));
        let plan = RunPlan {
            replicas: Some(2),
            failure_timeout: Duration::from_secs(failure_timeout),
            same_host: if network.is_some() { SameHost::Tcp } else { same_host },
            common,
            coordinator,
            ..RunPlan::new(&coordinator_address, SERVERS as u32, WORKERS as u32)
        };
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let whole = Arc::new(AtomicU64::new(0));
        let published = Arc::new(AtomicU64::new(0));
        let counts = (whole.clone(), published.clone());
        let count = move |line: &str| {
            counts.0.fetch_add(u64::from(line.contains("has its replicas")), Ordering::Relaxed);
            counts.1.fetch_add(u64::from(line.contains("published ")), Ordering::Relaxed);
        };
        let coordinator = Start::program("the coordinator", &program)
            .args(plan.coordinator().arguments)
            .env("SLACKWATER_LOG", "info")
            .stderr(lines(count))
            .spawn()?;
        let servers = Vec::new();
        let mut cluster =
            Self { plan, checkpoints, published, program, network, coordinator, whole, servers, token, metrics };
        (0..SERVERS).try_for_each(|_| cluster.start_server())?;
        Ok(cluster)
    }

    /// Starts this program with `arguments`, on a host of its own if there is a network.
    fn spawn(
        &self,
        name: &str,
        arguments: Vec<OsString>,
        prepare: impl FnOnce(Start) -> Start,
    ) -> anyhow::Result<HostedProcess> {
        let host = self.network.as_ref().map(Network::host).transpose()?;
        let start = match &host {
            Some(host) => host.start(name, &self.program),
            None => Start::program(name, &self.program),
        };
        Ok(HostedProcess { process: prepare(start.args(arguments)).spawn()?, host })
    }

    fn start_server(&mut self) -> anyhow::Result<()> {
        let number = Arc::new(OnceLock::new());
        let known = number.clone();
        let note = move |line: &str| {
            let words = line.split_once("serving node=server ").map(|(_, number)| number);
            if let Some(number) = words.and_then(|words| words.split_whitespace().next()?.parse().ok()) {
                known.set(number).ok();
            }
        };
        let mut arguments = self.plan.server(None).arguments;
        let metrics = self.metrics.map(|_| slackwater::cluster::free_address()).transpose()?;
        arguments.extend(metrics.map(|address| format!("--metrics={address}").into()));
        let prepare = |start: Start| start.env("SLACKWATER_LOG", "info").stderr(lines(note));
        let process = self.spawn("a server", arguments, prepare)?;
        self.servers.push(Server { process, metrics, number });
        Ok(())
    }

    /// Starts a worker that runs a program; `prepare` sets where its output goes.
    pub(crate) fn start_worker(
        &self,
        program: Vec<OsString>,
        prepare: impl FnOnce(Start) -> Start,
    ) -> anyhow::Result<HostedProcess> {
        let plan = RunPlan { program, ..self.plan.clone() };
        self.spawn("a worker", plan.worker(None).arguments, prepare)
    }

    /// Starts a worker that pushes and counts: the hidden process of this benchmark, with
    /// `arguments`.
    pub(crate) fn start_pushing(&self, arguments: &[String]) -> anyhow::Result<HostedProcess> {
        let RunPlan { coordinator_address, failure_timeout, .. } = &self.plan;
        let mut words = ["bench-peer", "chaos"].map(str::to_owned).to_vec();
        words.extend([
            format!("--coordinator={coordinator_address}"),
            format!("--failure-timeout={}", failure_timeout.as_secs()),
        ]);
        words.extend((self.plan.same_host == SameHost::Tcp).then(|| "--same-host=tcp".to_owned()));
        words.extend(arguments.iter().cloned());
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        words.extend(self.token.iter().flat_map(|token| ["--token-file".into(), token.path().into()]));
        self.spawn("a worker", words, |start| start)
    }

    /// How the benchmark itself joins the run.
    pub(crate) fn connect(&self) -> Connect {
        let RunPlan { coordinator_address, failure_timeout, same_host, .. } = &self.plan;
        Connect {
            failure_timeout: *failure_timeout,
            same_host: *same_host,
            join_limit: LIMIT,
            access: self.token_file().map_or(Access::Insecure, |path| Access::TokenFile(path.to_owned())),
            ..Connect::to(coordinator_address)
        }
    }

    /// The token file of the run; `None` if the run is insecure.
    pub(crate) fn token_file(&self) -> Option<&Path> {
        self.token.as_ref().map(RunToken::path)
    }

    /// The coordinator and the servers.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let coordinator = Node { name: "coordinator".to_owned(), id: self.coordinator.id(), metrics: self.metrics };
        let servers = self.servers.iter().enumerate().map(|(at, server)| Node {
            name: format!("server_{at}"),
            id: server.process.id(),
            metrics: server.metrics,
        });
        std::iter::once(coordinator).chain(servers).collect()
    }

    /// The shards of a server: when it is lost, pushes to them wait for a failover. If the server
    /// holds no shard, returns all shards.
    pub(crate) fn shards_of(&self, which: usize) -> anyhow::Result<Vec<usize>> {
        let begin = Instant::now();
        let number = loop {
            match self.servers[which].number.get() {
                Some(number) => break *number,
                None => ensure!(begin.elapsed() < LIMIT, "a server has not logged its number: it has not joined"),
            }
            std::thread::sleep(LOOK);
        };
        let plan = self.status()?.plan;
        ensure!(plan.chains.len() == SHARDS, "the plan has {} shards instead of {SHARDS}", plan.chains.len());
        let its: Vec<usize> = (0..SHARDS).filter(|shard| plan.chains[*shard].replicas.contains(&number)).collect();
        Ok(if its.is_empty() { (0..SHARDS).collect() } else { its })
    }

    /// The state of the run.
    pub(crate) fn status(&self) -> anyhow::Result<Status> {
        status(&self.connect()).context("cannot read the status of the run")
    }

    /// How many checkpoints have been published.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// The nodes that the run has lost.
    pub(crate) fn lost_nodes(&self) -> anyhow::Result<BTreeSet<String>> {
        let members = self.status()?.members.into_iter();
        let lost = members.filter(|member| matches!(member.state, MemberState::Lost { .. }));
        Ok(lost.map(|member| member.node.to_string()).collect())
    }

    /// Whether all servers and workers are in the run, every shard has two replicas, every server
    /// goes by the plan, and no node is about to be given up: a link needs some time to recover.
    pub(crate) fn is_settled(&self) -> anyhow::Result<bool> {
        let status = self.status()?;
        let present = status.members.iter().filter(|member| member.state == MemberState::Present).count();
        let is_whole = status.plan.chains.iter().all(|chain| chain.replicas.len() == 2 && chain.backfilling.is_empty());
        Ok(present == SERVERS + WORKERS && is_whole && status.adopting.is_empty() && status.troubles.is_empty())
    }

    /// How many of the coordinator and the servers have ended.
    pub(crate) fn ended(&mut self) -> anyhow::Result<usize> {
        let mut ended = usize::from(self.coordinator.try_wait()?.is_some());
        for server in &mut self.servers {
            ended += usize::from(server.process.try_wait()?.is_some());
        }
        Ok(ended)
    }

    /// Waits until [`Cluster::is_settled`].
    pub(crate) fn wait_until_settled(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !self.is_settled()? {
            ensure!(begin.elapsed() < LIMIT, "the run is not whole again within {} s", LIMIT.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Starts another server for each that has ended, because it was expelled or could not go on.
    /// Returns how many have ended.
    pub(crate) fn replace_ended(&mut self) -> anyhow::Result<usize> {
        let mut running = Vec::new();
        for mut server in std::mem::take(&mut self.servers) {
            match server.process.try_wait()? {
                None => running.push(server),
                Some(status) => ensure!(!status.success(), "a server ended with success although nobody told it to"),
            }
        }
        let ended = SERVERS - running.len();
        self.servers = running;
        (0..ended).try_for_each(|_| self.start_server())?;
        Ok(ended)
    }

    /// Stops the coordinator for longer than the failure timeout. Returns when it goes on.
    pub(crate) fn stall(&mut self) -> anyhow::Result<Instant> {
        self.coordinator.signal(Signal::STOP)?;
        let begin = Instant::now();
        while process_state(self.coordinator.id())? != 'T' {
            ensure!(begin.elapsed() < LIMIT, "the coordinator does not stop");
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(self.silence());
        self.coordinator.signal(Signal::CONT)?;
        Ok(Instant::now())
    }

    /// Begins to lose what a node sends to another: between this worker, this server or the
    /// coordinator.
    pub(crate) fn drop_direction(
        &self,
        direction: Direction,
        worker: &HostedProcess,
        server: usize,
    ) -> anyhow::Result<DroppedLink> {
        let worker = Some(worker);
        let server = Some(&self.servers[server].process);
        match direction {
            Direction::ToCoordinator(Role::Server) => self.drop_one_way(server, None),
            Direction::ToCoordinator(Role::Worker) => self.drop_one_way(worker, None),
            Direction::FromCoordinator(Role::Server) => self.drop_one_way(None, server),
            Direction::FromCoordinator(Role::Worker) => self.drop_one_way(None, worker),
            Direction::ServerToWorker => self.drop_one_way(server, worker),
            Direction::WorkerToServer => self.drop_one_way(worker, server),
            Direction::ServerToServer => {
                let [from, to] = self.chained_servers()?.map(|at| &self.servers[at].process);
                self.drop_one_way(Some(from), Some(to))
            }
        }
    }

    /// As [`Cluster::drop_direction`]. Without a process, the node is the coordinator.
    fn drop_one_way(&self, from: Option<&HostedProcess>, to: Option<&HostedProcess>) -> anyhow::Result<DroppedLink> {
        let network = self.network.as_ref().context("cannot break a link: the benchmark has made no network")?;
        let [from, to] = [from, to].map(|process| match process {
            Some(process) => process.link_end().context("a process has no host"),
            None => Ok((LinkEnd::Hub, "/proc/self/net/snmp".to_owned())),
        });
        let (from, counters) = from?;
        let (to, _) = to?;
        let before = retransmitted(&counters)?;
        Ok(DroppedLink { drop: OneWayDrop::begin(network, from, to)?, counters, before })
    }

    /// Two servers of which one replicates a shard to the other.
    fn chained_servers(&self) -> anyhow::Result<[usize; 2]> {
        let plan = self.status()?.plan;
        let index_of = |number: &u32| self.servers.iter().position(|server| server.number.get() == Some(number));
        let pairs = plan.chains.iter().map(|chain| chain.replicas.iter().filter_map(index_of).collect::<Vec<_>>());
        let mut pairs = pairs.filter_map(|pair| <[usize; 2]>::try_from(pair).ok());
        pairs.next().context("no shard has two replicas on servers that the benchmark has started")
    }

    /// Waits until a checkpoint is being made that has not yet begun.
    pub(crate) fn wait_for_checkpoint(&mut self) -> anyhow::Result<()> {
        let folder = self.checkpoints.clone().context("the run makes no checkpoints")?;
        let listed = || -> BTreeSet<PathBuf> {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        let before = listed();
        let begin = Instant::now();
        loop {
            let now = listed();
            if now.difference(&before).any(|checkpoint| !checkpoint.join("manifest.json").exists()) {
                return Ok(());
            }
            self.check()?;
            ensure!(begin.elapsed() < LIMIT, "no checkpoint begins for {} s", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Fails if the coordinator has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.coordinator.try_wait()? {
            Some(status) => bail!("the coordinator ended: {status}"),
            None => Ok(()),
        }
    }

    /// How long a silent process stays silent: longer than the failure timeout.
    pub(crate) fn silence(&self) -> Duration {
        2 * self.plan.failure_timeout
    }

    /// For how long busy processes starve the run.
    pub(crate) fn starvation(&self) -> Duration {
        self.silence().max(Duration::from_secs(4))
    }

    /// Whether the failure timeout is shorter than by default.
    pub(crate) fn has_short_timeout(&self) -> bool {
        self.plan.failure_timeout < Connect::to("").failure_timeout
    }

    /// Kills a server, or silences it for longer than the failure timeout, and starts another.
    ///
    /// `go_on` gets the time of the fault, waits until the run goes on, and returns how many
    /// seconds that took. Returns these seconds when every shard has its replicas again, or when
    /// `is_over`.
    pub(crate) fn lose_server(
        &mut self,
        which: usize,
        silence: Option<Silence>,
        go_on: impl FnOnce(&mut Self, Instant) -> anyhow::Result<f64>,
        mut is_over: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<f64> {
        let whole = self.whole.load(Ordering::Relaxed);
        let mut lost = self.servers.swap_remove(which).process;
        let begin = Instant::now();
        match silence {
            Some(how) => lost.fall_silent(how)?,
            None => lost.kill(),
        }
        let seconds = go_on(self, begin)?;
        if let Some(how) = silence {
            std::thread::sleep(self.silence().saturating_sub(begin.elapsed()));
            if is_over()? {
                return Ok(seconds);
            }
            lost.go_on_and_end(how)?;
        }
        self.start_server()?;
        self.wait_for_replicas(whole, is_over)?;
        Ok(seconds)
    }

    /// Waits until the coordinator logs once more that every shard has its replicas.
    fn wait_for_replicas(&self, before: u64, mut is_over: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.whole.load(Ordering::Relaxed) <= before && !is_over()? {
            ensure!(begin.elapsed() < LIMIT, "shards lack replicas {} s after a server was lost", LIMIT.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
