//! The processes of a run that is disturbed: a coordinator, servers whose rows are held by two of them each, and whatever works there.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use slackwater::{Connect, SameHost};

use super::faults::Silence;
use super::network::{HUB_ADDRESS, Host, Network};

/// Whatever is awaited here takes a tenth of this at most.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SERVERS: usize = 3;
pub(crate) const WORKERS: usize = 4;
/// How often something that is awaited is looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Into how many slices tables are cut: so many for each server of the beginning.
const SLICES_OF_SERVER: usize = 4;
pub(crate) const SLICES: usize = SERVERS * SLICES_OF_SERVER;

/// A process, ended by its id if it is still there.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Where it runs, where there is a network.
    host: Option<Host>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        self.host = None;
    }

    /// Nothing is heard of it any more.
    pub(crate) fn fall_silent(&mut self, how: Silence) -> anyhow::Result<()> {
        match (how, &mut self.host) {
            (Silence::Stop, _) => self.signal(Signal::STOP),
            (Silence::Cut, Some(host)) => host.cut(),
            (Silence::Cut, None) => bail!("there is no network to cut it off from"),
        }
    }

    /// Goes on after it was silent, to hear that it is not wanted any more, and ends. It must not take that for a good end.
    pub(crate) fn go_on_and_end(&mut self, how: Silence) -> anyhow::Result<()> {
        match (how, &mut self.host) {
            (Silence::Cut, Some(host)) => host.join()?,
            _ => self.signal(Signal::CONT)?,
        }
        let continued = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(continued.elapsed() < LIMIT, "a process that was given up does not end");
            std::thread::sleep(LOOK);
        };
        ensure!(!status.success(), "a process that was given up has not heard so");
        self.host = None;
        Ok(())
    }
}

/// The coordinator and the servers.
pub(crate) struct Cluster {
    pub(crate) meet: String,
    pub(crate) patience: u64,
    network: Option<Network>,
    coordinator: Process,
    /// How often the coordinator said that everything has its copies.
    whole: Arc<AtomicU64>,
    servers: Vec<Server>,
}

struct Server {
    process: Process,
    /// Which server it is, once it has said so.
    number: Arc<OnceLock<u32>>,
}

/// Hands what a process says to somebody, line by line.
fn listen(child: &mut Child, mut heard: impl FnMut(&str) + Send + 'static) {
    if let Some(said) = child.stderr.take() {
        std::thread::spawn(move || BufReader::new(said).lines().map_while(Result::ok).for_each(|line| heard(&line)));
    }
}

impl Cluster {
    /// Starts them. The run begins when the workers are there, too.
    pub(crate) fn start(patience: u64, network: Option<Network>) -> anyhow::Result<Self> {
        let here = if network.is_some() { HUB_ADDRESS } else { "127.0.0.1" };
        let meet = TcpListener::bind((here, 0))?.local_addr()?.to_string();
        let mut arguments: Vec<String> =
            ["server", "--threads=0", "--coordinate", "--copies=2"].map(str::to_owned).into();
        arguments.extend([format!("--servers={SERVERS}"), format!("--workers={WORKERS}")]);
        arguments.extend([format!("--slices={SLICES_OF_SERVER}"), format!("--meet={meet}")]);
        arguments.push(format!("--patience={patience}"));
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(arguments).env("SLACKWATER_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let whole = Arc::new(AtomicU64::new(0));
        let counted = whole.clone();
        listen(&mut child, move |line| {
            counted.fetch_add(u64::from(line.contains("has its copies")), Ordering::Relaxed);
        });
        let coordinator = Process { child, host: None };
        let mut cluster = Self { meet, patience, network, coordinator, whole, servers: Vec::new() };
        (0..SERVERS).try_for_each(|_| cluster.start_server())?;
        Ok(cluster)
    }

    /// This program, to be started by `start` in a place of its own, as what `kind` says, with where and how to meet and then these arguments. What
    /// it says is not heard.
    pub(crate) fn spawn(
        &self,
        kind: &[&str],
        arguments: &[String],
        start: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let host = self.network.as_ref().map(Network::host).transpose()?;
        let mut command = match &host {
            Some(host) => {
                let mut command = host.command();
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        let Self { meet, patience, .. } = self;
        command.args(kind).args([format!("--meet={meet}"), format!("--patience={patience}")]);
        // Those of different hosts could not do otherwise; these, on one machine, could.
        command.args(host.iter().map(|_| "--same-host=tcp")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Process { child: start(&mut command)?, host })
    }

    fn start_server(&mut self) -> anyhow::Result<()> {
        let start = |command: &mut Command| command.env("SLACKWATER_LOG", "info").stderr(Stdio::piped()).spawn();
        let mut process = self.spawn(&["server"], &[], start)?;
        let number = Arc::new(OnceLock::new());
        let known = number.clone();
        listen(&mut process.child, move |line| {
            let words = line.split_once("serving node=server ").map(|(_, number)| number);
            if let Some(number) = words.and_then(|words| words.split_whitespace().next()?.parse().ok()) {
                known.set(number).ok();
            }
        });
        self.servers.push(Server { process, number });
        Ok(())
    }

    /// Whether hosts can be cut off.
    pub(crate) fn can_cut(&self) -> bool {
        self.network.is_some()
    }

    /// How to join it from here.
    pub(crate) fn connect(&self) -> Connect {
        let patience = Duration::from_secs(self.patience);
        let same_host = if self.network.is_some() { SameHost::Tcp } else { SameHost::SharedMemory };
        Connect { patience, same_host, join_limit: LIMIT, ..Connect::to(&self.meet) }
    }

    /// The slices that nobody can push to when this server is gone, until others have taken over. All of them where it has none.
    pub(crate) fn slices_of(&self, which: usize) -> anyhow::Result<Vec<usize>> {
        let begin = Instant::now();
        let number = loop {
            match self.servers[which].number.get() {
                Some(number) => break *number,
                None => ensure!(begin.elapsed() < LIMIT, "a server does not say which it is"),
            }
            std::thread::sleep(LOOK);
        };
        let plan = slackwater::status(&self.connect()).context("how does the run stand?")?.plan;
        ensure!(plan.chains.len() == SLICES, "{} slices, and {SLICES} were meant", plan.chains.len());
        let its: Vec<usize> = (0..SLICES).filter(|slice| plan.chains[*slice].whole.contains(&number)).collect();
        Ok(if its.is_empty() { (0..SLICES).collect() } else { its })
    }

    /// Fails if the coordinator has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.coordinator.child.try_wait()? {
            Some(status) => bail!("the coordinator ended: {status}"),
            None => Ok(()),
        }
    }

    /// How long somebody is silent: longer than anybody has patience.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_secs(2 * self.patience)
    }

    /// A server dies, or falls silent and is there again later; and another comes. `go_on` is told since when; it has to wait until things go
    /// on, and returns how long that took. Returns when everything has its copies again, or `is_over`.
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
        self.wait_for_copies(whole, is_over)?;
        Ok(seconds)
    }

    /// Waits until the coordinator says once more that everything has its copies.
    fn wait_for_copies(&self, before: u64, mut is_over: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.whole.load(Ordering::Relaxed) <= before && !is_over()? {
            ensure!(begin.elapsed() < LIMIT, "copies are not whole after {} s", LIMIT.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
