//! A real server in a process of its own, and a session with it: what `bench wire` measures.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use launch::{OutputTarget, Process, Start};
use slackwater::cluster::{SameHost, WaitPolicy};
use slackwater::{Connect, RunSize, Serve, Session};

/// The settings of the hidden server process.
#[derive(clap::Args)]
pub struct BenchServer {
    /// Where its coordinator listens.
    #[arg(long = "coordinator")]
    coordinator_address: SocketAddr,
    /// Servers in the process.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Workers to wait for.
    #[arg(long, default_value_t = 1)]
    workers: u32,
    /// Never sleep.
    #[arg(long)]
    spin: bool,
    /// What each shard remembers of key lists.
    #[arg(long)]
    list_bytes: Option<usize>,
    /// The core to stay on.
    #[arg(long)]
    core: Option<usize>,
    /// Talk through shared memory rather than over TCP.
    #[arg(long)]
    share: bool,
}

fn connect(coordinator_address: SocketAddr, spin: bool, same_host: SameHost) -> Connect {
    Connect {
        same_host,
        wait: if spin { WaitPolicy::SPINNING } else { WaitPolicy::BLOCKING },
        failure_timeout: Duration::from_secs(60),
        ..Connect::to(&coordinator_address.to_string())
    }
}

/// What the hidden process does.
pub(crate) fn serve(options: &BenchServer) -> anyhow::Result<()> {
    options.core.into_iter().for_each(super::core::stay_on);
    let same_host = if options.share { SameHost::SharedMemory } else { SameHost::Tcp };
    let mut serve = Serve::new(connect(options.coordinator_address, options.spin, same_host));
    serve.threads = options.threads;
    serve.coordinate = Some(RunSize { servers: options.threads, workers: options.workers });
    serve.list_bytes = options.list_bytes.unwrap_or(serve.list_bytes);
    serve.run()?;
    Ok(())
}

/// How the server process is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Servers in the process.
    pub(crate) threads: u32,
    /// Workers that will connect.
    pub(crate) workers: u32,
    /// Neither side ever sleeps.
    pub(crate) spin: bool,
    /// What each shard remembers of key lists, if not the usual.
    pub(crate) list_bytes: Option<usize>,
    /// The core it stays on, if any.
    pub(crate) core: Option<usize>,
    /// How both sides talk.
    pub(crate) same_host: SameHost,
}

impl Default for Kind {
    fn default() -> Self {
        Self { threads: 1, workers: 1, spin: false, list_bytes: None, core: None, same_host: SameHost::Tcp }
    }
}

/// A server process. It ends when its workers have left.
pub(crate) struct ServerProcess {
    process: Process,
    coordinator_address: SocketAddr,
    kind: Kind,
}

impl ServerProcess {
    /// Starts it; workers can connect at once.
    pub(crate) fn start(kind: Kind) -> anyhow::Result<Self> {
        // A free port, given up just before the child takes it.
        let coordinator_address = slackwater::cluster::free_address()?;
        let process = Start::this_program("the server")?
            .args(["bench-peer", "server"])
            .args([
                format!("--coordinator={coordinator_address}"),
                format!("--threads={}", kind.threads),
                format!("--workers={}", kind.workers),
            ])
            .args(kind.spin.then_some("--spin"))
            .args((kind.same_host == SameHost::SharedMemory).then_some("--share"))
            .args(kind.list_bytes.map(|bytes| format!("--list-bytes={bytes}")))
            .args(kind.core.map(|core| format!("--core={core}")))
            .stdout(OutputTarget::Inherit)
            .stderr(OutputTarget::Inherit)
            .spawn()?;
        Ok(Self { process, coordinator_address, kind })
    }

    /// One worker's session.
    pub(crate) fn session(&self) -> anyhow::Result<Session> {
        Ok(Session::connect(&connect(self.coordinator_address, self.kind.spin, self.kind.same_host))?)
    }

    /// Bytes of its memory that are in use.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/statm", self.process.id());
        let statm = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let pages: u64 = statm.split(' ').nth(1).context("statm has no second number")?.parse()?;
        Ok(pages * 4096)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It ends by itself once the sessions are closed; if they were not, it is ended here.
        self.process.end_within(Duration::from_secs(2));
    }
}
