//! A real server in a process of its own, and a session with it: what `bench wire` measures.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Context;
use slackwater::{Connect, SameHost, Serve, Session, Shape, Wait};

/// The settings of the hidden server process.
#[derive(clap::Args)]
pub struct BenchServer {
    /// Where its coordinator listens.
    #[arg(long)]
    meet: SocketAddr,
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

fn connect(meet: SocketAddr, spin: bool, same_host: SameHost) -> Connect {
    Connect {
        same_host,
        wait: if spin { Wait::SPINNING } else { Wait::BLOCKING },
        patience: Duration::from_secs(60),
        ..Connect::to(&meet.to_string())
    }
}

/// What the hidden process does.
pub(crate) fn serve(options: &BenchServer) -> anyhow::Result<()> {
    options.core.into_iter().for_each(super::core::stay_on);
    let same_host = if options.share { SameHost::SharedMemory } else { SameHost::Tcp };
    let mut serve = Serve::new(connect(options.meet, options.spin, same_host));
    serve.threads = options.threads;
    serve.coordinate = Some(Shape { servers: options.threads, workers: options.workers });
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
    child: Child,
    meet: SocketAddr,
    kind: Kind,
}

impl ServerProcess {
    /// Starts it; workers can connect at once.
    pub(crate) fn start(kind: Kind) -> anyhow::Result<Self> {
        // A free port, given up just before the child takes it.
        let meet = slackwater::free_address()?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(&program);
        command.args(["bench-peer", "server", "--meet", &meet.to_string()]);
        command.args(["--threads", &kind.threads.to_string(), "--workers", &kind.workers.to_string()]);
        if kind.spin {
            command.arg("--spin");
        }
        if kind.same_host == SameHost::SharedMemory {
            command.arg("--share");
        }
        if let Some(bytes) = kind.list_bytes {
            command.args(["--list-bytes", &bytes.to_string()]);
        }
        command.args(kind.core.map(|core| format!("--core={core}")));
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, meet, kind })
    }

    /// One worker's session.
    pub(crate) fn session(&self) -> anyhow::Result<Session> {
        Ok(Session::connect(&connect(self.meet, self.kind.spin, self.kind.same_host))?)
    }

    /// Bytes of its memory that are in use.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/statm", self.child.id());
        let statm = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let pages: u64 = statm.split(' ').nth(1).context("statm has no second number")?.parse()?;
        Ok(pages * 4096)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It ends by itself once the sessions are closed; if they were not, it is ended here.
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
