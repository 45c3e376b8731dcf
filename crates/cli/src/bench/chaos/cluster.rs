//! The processes of a run that is disturbed: a coordinator, servers whose rows are held by two of them each, and whatever works there.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Whatever is awaited here takes a tenth of this at most.
pub const LIMIT: Duration = Duration::from_secs(60);
pub const SERVERS: usize = 3;
pub const WORKERS: usize = 4;
/// How often something that is awaited is looked at.
pub const LOOK: Duration = Duration::from_millis(5);

/// A process, ended by its id if it is still there.
pub struct Process(pub Child);

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

    pub fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Goes on after it was stopped, to hear that it is not wanted any more.
    pub fn go_on_and_end(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)?;
        let continued = Instant::now();
        while self.0.try_wait()?.is_none() {
            ensure!(continued.elapsed() < LIMIT, "a process that was given up does not end");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// This program, to be started with these arguments; what it says is not heard.
pub fn program(arguments: &[String]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// The coordinator and the servers.
pub struct Cluster {
    pub meet: String,
    pub patience: u64,
    coordinator: Process,
    /// How often the coordinator said that everything has its copies.
    whole: Arc<AtomicU64>,
    servers: Vec<Process>,
}

impl Cluster {
    /// Starts them. The run begins when the workers are there, too.
    pub fn start(patience: u64) -> anyhow::Result<Self> {
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
        let mut cluster = Self { meet, patience, coordinator: Process(child), whole, servers: Vec::new() };
        (0..SERVERS).try_for_each(|_| cluster.start_server())?;
        Ok(cluster)
    }

    fn start_server(&mut self) -> anyhow::Result<()> {
        let Self { meet, patience, .. } = self;
        let arguments = ["server".to_owned(), format!("--meet={meet}"), format!("--patience={patience}")];
        self.servers.push(Process(program(&arguments)?.spawn()?));
        Ok(())
    }

    /// Fails if the coordinator has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.coordinator.0.try_wait()? {
            Some(status) => bail!("the coordinator ended: {status}"),
            None => Ok(()),
        }
    }

    /// How long somebody is stopped: longer than anybody has patience.
    pub fn stop(&self) -> Duration {
        Duration::from_secs(2 * self.patience)
    }

    /// A server dies, and another comes when `go_on` has returned. That has to wait until things go on, and returns how long it took. Returns when
    /// everything has its copies again, or `is_over`.
    pub fn kill_server(
        &mut self,
        which: usize,
        go_on: impl FnOnce(&mut Self) -> anyhow::Result<f64>,
        is_over: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<f64> {
        let whole = self.whole.load(Ordering::Relaxed);
        drop(self.servers.swap_remove(which));
        let seconds = go_on(self)?;
        self.start_server()?;
        self.wait_for_copies(whole, is_over)?;
        Ok(seconds)
    }

    /// As [`Cluster::kill_server`], for one that is stopped and goes on later.
    pub fn stop_server(
        &mut self,
        which: usize,
        go_on: impl FnOnce(&mut Self) -> anyhow::Result<f64>,
        mut is_over: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<f64> {
        let whole = self.whole.load(Ordering::Relaxed);
        let mut stopped = self.servers.swap_remove(which);
        let begin = Instant::now();
        stopped.stop()?;
        let seconds = go_on(self)?;
        std::thread::sleep(self.stop().saturating_sub(begin.elapsed()));
        if is_over()? {
            return Ok(seconds);
        }
        stopped.go_on_and_end()?;
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
