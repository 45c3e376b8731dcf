//! The processes of a run into which faults are injected: a coordinator, servers with two replicas
//! of each shard, and workers.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use launch::{OutputTarget, Process, ProcessError, RunPlan, Signal, Start};
use slackwater::Connect;
use slackwater::cluster::SameHost;

use super::faults::Silence;
use super::network::{HUB_ADDRESS, Host, Network};

/// How long the benchmark waits for anything before it fails: ten times what it should take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SERVERS: usize = 3;
pub(crate) const WORKERS: usize = 4;
/// How often the benchmark checks a condition that it waits for.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Shards of each table, for each server that the run begins with.
const SHARDS_PER_SERVER: usize = 4;
pub(crate) const SHARDS: usize = SERVERS * SHARDS_PER_SERVER;

/// A process and, where there is a network, the host that it runs on.
pub(crate) struct HostedProcess {
    process: Process,
    host: Option<Host>,
}

impl HostedProcess {
    /// The exit status of the process; `None` while it runs.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.process.try_wait()
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

/// The coordinator and the servers.
pub(crate) struct Cluster {
    plan: RunPlan,
    program: PathBuf,
    network: Option<Network>,
    coordinator: Process,
    /// How often the coordinator has logged that every shard has its replicas.
    whole: Arc<AtomicU64>,
    servers: Vec<Server>,
}

struct Server {
    process: HostedProcess,
    /// The server's number, once the server has logged it.
    number: Arc<OnceLock<u32>>,
}

/// Calls a function with each line of the output.
fn lines(mut heard: impl FnMut(&str) + Send + 'static) -> OutputTarget {
    OutputTarget::Lines(Box::new(move |line| heard(&String::from_utf8_lossy(line))))
}

impl Cluster {
    /// Starts the coordinator and the servers. The run begins when the workers have joined, too.
    pub(crate) fn start(failure_timeout: u64, network: Option<Network>) -> anyhow::Result<Self> {
        let here = if network.is_some() { HUB_ADDRESS } else { "127.0.0.1" };
        let coordinator_address = TcpListener::bind((here, 0))?.local_addr()?.to_string();
        let plan = RunPlan {
            replicas: Some(2),
            failure_timeout: Duration::from_secs(failure_timeout),
            // With a network, each process stands for a host of its own, so only TCP is allowed.
            same_host: if network.is_some() { SameHost::Tcp } else { SameHost::SharedMemory },
            coordinator: vec![format!("--shards-per-server={SHARDS_PER_SERVER}").into()],
            ..RunPlan::new(&coordinator_address, SERVERS as u32, WORKERS as u32)
        };
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let whole = Arc::new(AtomicU64::new(0));
        let counted = whole.clone();
        let count = move |line: &str| {
            counted.fetch_add(u64::from(line.contains("has its replicas")), Ordering::Relaxed);
        };
        let coordinator = Start::program("the coordinator", &program)
            .args(plan.coordinator().arguments)
            .env("SLACKWATER_LOG", "warn")
            .stderr(lines(count))
            .spawn()?;
        let mut cluster = Self { plan, program, network, coordinator, whole, servers: Vec::new() };
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
        let arguments = self.plan.server(None).arguments;
        let prepare = |start: Start| start.env("SLACKWATER_LOG", "info").stderr(lines(note));
        let process = self.spawn("a server", arguments, prepare)?;
        self.servers.push(Server { process, number });
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
        self.spawn("a worker", words.into_iter().map(OsString::from).collect(), |start| start)
    }

    /// Whether hosts can be cut off.
    pub(crate) fn can_cut(&self) -> bool {
        self.network.is_some()
    }

    /// How the benchmark itself joins the run.
    pub(crate) fn connect(&self) -> Connect {
        let RunPlan { coordinator_address, failure_timeout, same_host, .. } = &self.plan;
        Connect {
            failure_timeout: *failure_timeout,
            same_host: *same_host,
            join_limit: LIMIT,
            ..Connect::to(coordinator_address)
        }
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
        let plan = slackwater::monitor::status(&self.connect()).context("cannot read the status of the run")?.plan;
        ensure!(plan.chains.len() == SHARDS, "the plan has {} shards instead of {SHARDS}", plan.chains.len());
        let its: Vec<usize> = (0..SHARDS).filter(|shard| plan.chains[*shard].replicas.contains(&number)).collect();
        Ok(if its.is_empty() { (0..SHARDS).collect() } else { its })
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
