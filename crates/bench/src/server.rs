//! A server in a process of its own, and sessions with it, for `bench wire` and `bench scale`.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launch::{OutputTarget, Process, RunToken, Start};
use slackwater::cluster::{SameHost, WaitPolicy};
use slackwater::security::Access;
use slackwater::{Connect, RunSize, Serve, Session};

use crate::resident::resident_bytes;

/// The settings of the hidden server process.
#[derive(clap::Args)]
pub struct BenchServer {
    /// The address at which the process's coordinator listens.
    #[arg(long = "coordinator")]
    coordinator_address: SocketAddr,
    /// Server threads of the process.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Workers to wait for.
    #[arg(long, default_value_t = 1)]
    workers: u32,
    /// Spin instead of sleeping while waiting.
    #[arg(long)]
    spin: bool,
    /// The most bytes of key lists that each shard holds.
    #[arg(long)]
    list_bytes: Option<usize>,
    /// The core that the process is pinned to.
    #[arg(long)]
    core: Option<usize>,
    /// Talk through shared memory rather than over TCP.
    #[arg(long)]
    share: bool,
    /// The token file of the run; an insecure run if there is none.
    #[arg(long)]
    token_file: Option<PathBuf>,
}

fn connect(coordinator_address: SocketAddr, spin: bool, same_host: SameHost, token_file: Option<&Path>) -> Connect {
    Connect {
        same_host,
        access: token_file.map_or(Access::Insecure, |path| Access::TokenFile(path.to_owned())),
        wait: if spin { WaitPolicy::SPINNING } else { WaitPolicy::BLOCKING },
        failure_timeout: Duration::from_secs(60),
        ..Connect::to(&coordinator_address.to_string())
    }
}

/// Runs the coordinator and the servers until the workers have left.
pub(crate) fn serve(options: &BenchServer) -> anyhow::Result<()> {
    options.core.into_iter().for_each(super::core::stay_on);
    let same_host = if options.share { SameHost::SharedMemory } else { SameHost::Tcp };
    let mut serve =
        Serve::new(connect(options.coordinator_address, options.spin, same_host, options.token_file.as_deref()));
    serve.threads = options.threads;
    serve.coordinate = Some(RunSize { servers: options.threads, workers: options.workers });
    serve.list_bytes = options.list_bytes.unwrap_or(serve.list_bytes);
    serve.run()?;
    Ok(())
}

/// The settings of a server process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Server threads of the process.
    pub(crate) threads: u32,
    /// Workers that will connect.
    pub(crate) workers: u32,
    /// Both sides spin instead of sleeping while they wait.
    pub(crate) spin: bool,
    /// The most bytes of key lists that each shard holds; the default if none.
    pub(crate) list_bytes: Option<usize>,
    /// The core that the process is pinned to, if any.
    pub(crate) core: Option<usize>,
    /// How both sides talk.
    pub(crate) same_host: SameHost,
    /// Whether the run has a token.
    pub(crate) is_secured: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            threads: 1,
            workers: 1,
            spin: false,
            list_bytes: None,
            core: None,
            same_host: SameHost::Tcp,
            is_secured: false,
        }
    }
}

/// A server process. It ends when its workers have left.
pub(crate) struct ServerProcess {
    process: Process,
    coordinator_address: SocketAddr,
    kind: Kind,
    token: Option<RunToken>,
}

impl ServerProcess {
    /// Starts the process. Workers can connect at once.
    pub(crate) fn start(kind: Kind) -> anyhow::Result<Self> {
        // A port that was free a moment ago; the process listens at it.
        let coordinator_address = slackwater::cluster::free_address()?;
        let token = kind.is_secured.then(RunToken::create).transpose()?;
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
            .args(token.iter().flat_map(|token| [OsStr::new("--token-file"), token.path().as_os_str()]))
            .stdout(OutputTarget::Inherit)
            .stderr(OutputTarget::Inherit)
            .spawn()?;
        Ok(Self { process, coordinator_address, kind, token })
    }

    /// Connects a worker.
    pub(crate) fn session(&self) -> anyhow::Result<Session> {
        let token_file = self.token.as_ref().map(RunToken::path);
        Ok(Session::connect(&connect(self.coordinator_address, self.kind.spin, self.kind.same_host, token_file))?)
    }

    /// Resident memory of the process, in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        resident_bytes(&self.process.id().to_string())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process ends by itself once all sessions are closed. If some are not, it is killed.
        self.process.end_within(Duration::from_secs(2));
    }
}
