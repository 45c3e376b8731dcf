//! `coordinator`: a process that only coordinates a run, alone or as one of several of which one
//! leads.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::value_parser;
use slackwater::cluster::{ElectionSettings, EtcdAccess, Membership, SameHost};
use slackwater::{Connect, RunSize, Serve};

use crate::checkpoints;
use crate::leaving;
use crate::process::{ClockTimeout, Limits, same_host_parser};
use crate::security::SecurityOptions;

/// The settings of `coordinator`.
#[derive(clap::Args)]
pub(crate) struct CoordinatorOptions {
    /// The address where this coordinator listens. Give the other processes the same as
    /// --coordinator. If there are several coordinators, list all of their addresses: each
    /// coordinator listens at the first free one that belongs to its host.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT]")]
    listen: String,
    /// How many servers the run begins with.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..))]
    servers: u32,
    /// How many workers the run begins with.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..))]
    workers: u32,
    /// Make the run elastic, with this many replicas of each shard. Nodes may join and leave the
    /// run. With 2 or more, the run survives the loss of a server: other servers are backfilled
    /// with its shards.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// How many shards each table has per initial server. Shards are what moves between servers.
    #[arg(long, value_name = "COUNT", requires = "replicas", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1024))]
    shards_per_server: u32,
    /// The registry that elects the leader and keeps its state for a successor: etcd 3.4 or later,
    /// and a path that only this run uses.
    /// Write etcds:// for an etcd with TLS.
    #[arg(long, value_name = "etcd://HOST:PORT[,HOST:PORT]/PATH")]
    registry: Option<String>,
    #[command(flatten)]
    etcd: EtcdOptions,
    /// How this process talks to processes of its own host: through shared memory where both
    /// support it, or over TCP.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    #[command(flatten)]
    security: SecurityOptions,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    clock: ClockTimeout,
    #[command(flatten)]
    checkpoints: checkpoints::CheckpointOptions,
}

/// The settings of access to etcd.
#[derive(clap::Args)]
#[command(next_help_heading = "etcd")]
#[group(skip)]
pub(crate) struct EtcdOptions {
    /// Certificates (PEM) of the authorities that sign etcd's certificate, for etcds://.
    #[arg(long, value_name = "FILE", requires = "registry")]
    etcd_cacert: Option<PathBuf>,
    /// This process's certificate (PEM), for an etcd that asks for one.
    #[arg(long, value_name = "FILE", requires_all = ["registry", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// The key (PEM) of --etcd-cert.
    #[arg(long, value_name = "FILE", requires_all = ["registry", "etcd_cert"])]
    etcd_key: Option<PathBuf>,
    /// A file with the line NAME:PASSWORD, the user to log in to etcd as. Without it,
    /// SLACKWATER_ETCD_USER may hold the same.
    #[arg(long, value_name = "FILE", requires = "registry")]
    etcd_user_file: Option<PathBuf>,
}

impl EtcdOptions {
    fn access(&self) -> EtcdAccess {
        let Self { etcd_cacert, etcd_cert, etcd_key, etcd_user_file } = self;
        EtcdAccess {
            ca_file: etcd_cacert.clone(),
            certificate_file: etcd_cert.clone(),
            key_file: etcd_key.clone(),
            user_file: etcd_user_file.clone(),
        }
    }
}

/// The command `coordinator`: coordinates a run until it ends.
pub(crate) fn run(options: &CoordinatorOptions) -> anyhow::Result<()> {
    let CoordinatorOptions {
        listen,
        servers,
        workers,
        replicas,
        shards_per_server,
        registry,
        etcd,
        same_host,
        security,
        limits,
        clock,
        checkpoints,
    } = options;
    let connect = Connect {
        join_limit: Duration::from_secs(limits.join_limit),
        failure_timeout: Duration::from_secs(limits.failure_timeout),
        same_host: *same_host,
        access: security.access(),
        job: checkpoints.job().unwrap_or_default().to_owned(),
        leave: leaving::listen()?,
        ..Connect::to(listen)
    };
    let election = registry.as_ref().map(|registry| {
        let last = registry.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        ElectionSettings {
            registry: registry.clone(),
            access: etcd.access(),
            job: checkpoints.job().unwrap_or(last).to_owned(),
        }
    });
    let serve = Serve {
        threads: 0,
        coordinate: Some(RunSize { servers: *servers, workers: *workers }),
        membership: replicas.map_or(Membership::Static, |replicas| Membership::Elastic {
            replicas,
            shards_per_server: *shards_per_server,
        }),
        election,
        clock_timeout: clock.duration(),
        checkpoints: checkpoints.settings(),
        resume: checkpoints.resumed()?,
        ..Serve::new(connect)
    };
    match serve.run().with_context(|| format!("the run of the coordinator at {listen}")) {
        Ok(_) => tracing::info!("this coordinator has ended"),
        Err(error) => return leaving::left_early(error),
    }
    Ok(())
}
