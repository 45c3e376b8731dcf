//! `server` and `worker`: one process of a run, which joins at its coordinator's address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, value_parser};
use launch::{SAME_HOST_WORDS, parse_same_host};
use observe::{CodecCost, CoordinatorState, Metrics, ServerState};
use slackwater::cluster::{
    CoordinatorReportCallback, LeaveSignal, Membership, NodeId, ReportCallback, SameHost, ServerReport,
};
use slackwater::monitor::Meter;
use slackwater::security::Role;
use slackwater::{Connect, RunSize, Serve, Session};

use crate::metrics::ServerMetrics;
use crate::security::SecurityOptions;
use crate::{checkpoints, demo, leaving, train};

/// The settings of how a process joins a run.
#[derive(clap::Args)]
pub(crate) struct JoinOptions {
    /// The coordinator's address, the same for every process of the run. If there are several
    /// coordinators (see `slackwater coordinator --help`), list all addresses with commas between
    /// them. A process with --coordinate may have --listen instead.
    #[arg(long = "coordinator", value_name = "HOST:PORT", required_unless_present = "listen")]
    coordinator_address: Option<String>,
    /// The number that this server or worker takes, from 0. Give numbers to all processes of the
    /// run, or to none.
    #[arg(long, value_name = "NUMBER")]
    place: Option<u32>,
    /// The ADDRESS:PORT where this process listens. The default is any free port: of the loopback
    /// address if the coordinator is there, else of every address. With --threads, the servers use
    /// this port and the following ones. With --coordinate and without --coordinator, this is
    /// where the coordinator listens: HOST:PORT, or 0.0.0.0:PORT or [::]:PORT for every address.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// The address by which the other processes reach this one. The default is the address by
    /// which it reaches the coordinator. Give the port only if it differs from that of --listen.
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Option<String>,
    /// How this process talks to processes of its own host: through shared memory where both
    /// support it, or over TCP.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    /// Record all inputs and messages of this process into this folder, for `slackwater replay`.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// A location (folder or s3://BUCKET/PATH) where this process may read and write checkpoints,
    /// and beneath it. Repeat it for several. With a token, a server refuses a run that keeps its
    /// checkpoints elsewhere; a worker needs it if a codec keeps residuals. `launch` gives it to
    /// its processes, and a process with --checkpoint or --resume has it.
    #[arg(long = "checkpoint-location", value_name = "LOCATION")]
    checkpoint_locations: Vec<String>,
    #[command(flatten)]
    security: SecurityOptions,
    #[command(flatten)]
    limits: Limits,
}

/// Parses --same-host.
pub(crate) fn same_host_parser() -> impl TypedValueParser<Value = SameHost> {
    PossibleValuesParser::new(SAME_HOST_WORDS).try_map(|word| parse_same_host(&word).ok_or("not a transport"))
}

/// Time limits of a process in a run.
#[derive(Clone, clap::Args)]
pub(crate) struct Limits {
    /// How many seconds to wait until all processes have joined, before this one fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) join_limit: u64,
    /// A process that is silent for this many seconds counts as lost. A static run then ends; an
    /// elastic run goes on without it. All other time-outs follow from this one and from
    /// measurements; `slackwater status --verbose` shows them. A process that has ended is noticed
    /// at once; this is for hosts that are cut off and processes that hang.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) failure_timeout: u64,
}

/// The setting of a coordinator for workers that hang.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct ClockTimeout {
    /// Give up a worker that is in one clock for this many seconds without waiting for other
    /// workers: its program hangs. Choose more than the longest clock takes, and than the program
    /// takes before its first clock and after its last. Without it, such a worker is only reported,
    /// in the log and by `slackwater status`.
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) clock_timeout: Option<u64>,
}

impl ClockTimeout {
    pub(crate) fn duration(self) -> Option<Duration> {
        self.clock_timeout.map(Duration::from_secs)
    }
}

impl JoinOptions {
    /// The coordinator's address. A process that coordinates may give it as --listen.
    fn coordinator_address(&self, coordinates: bool) -> anyhow::Result<&str> {
        let own = self.listen.as_deref().filter(|_| coordinates);
        self.coordinator_address.as_deref().or(own).context(
            "the coordinator's address is not known: give --coordinator HOST:PORT (only the process with \
             --coordinate can do with --listen)",
        )
    }

    fn connect(&self, coordinates: bool, job: &str, leave: LeaveSignal) -> anyhow::Result<Connect> {
        let Self {
            coordinator_address,
            place,
            listen,
            advertise,
            same_host,
            record,
            checkpoint_locations,
            security,
            limits,
        } = self;
        let listen = listen.as_deref().filter(|_| !coordinates || coordinator_address.is_some());
        let parsed = listen.map(|listen| {
            listen.parse::<SocketAddr>().with_context(|| {
                format!("cannot listen at '{listen}': give --listen ADDRESS:PORT, such as 0.0.0.0:7100")
            })
        });
        Ok(Connect {
            place: *place,
            listen: parsed.transpose()?,
            advertise: advertise.clone(),
            record: record.clone(),
            join_limit: Duration::from_secs(limits.join_limit),
            failure_timeout: Duration::from_secs(limits.failure_timeout),
            same_host: *same_host,
            access: security.access(),
            job: job.to_owned(),
            checkpoint_locations: checkpoint_locations.clone(),
            leave,
            ..Connect::to(self.coordinator_address(coordinates)?)
        })
    }
}

/// The settings of `server`.
#[derive(clap::Args)]
pub(crate) struct ServerOptions {
    #[command(flatten)]
    join: JoinOptions,
    /// How many servers run in this process, each a thread that holds its share of every table. 0
    /// with --coordinate runs the coordinator alone.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(0..=1024))]
    threads: u32,
    /// Run the coordinator in this process too. Exactly one process of a run does that.
    #[arg(long, requires_all = ["servers", "workers"])]
    coordinate: bool,
    /// How many servers the run has, in all processes together.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..))]
    servers: Option<u32>,
    /// How many workers the run has.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// Make the run elastic, with this many replicas of each shard. Nodes may join and leave the
    /// run. With 2 or more, the run survives the loss of a server: other servers are backfilled
    /// with its shards.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// How many shards each table has per initial server. Shards are what moves between servers.
    #[arg(long, value_name = "COUNT", requires = "replicas", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1024))]
    shards_per_server: u32,
    #[command(flatten)]
    metrics: ServerMetrics,
    #[command(flatten)]
    clock: ClockTimeout,
    #[command(flatten)]
    checkpoints: checkpoints::CheckpointOptions,
}

/// The command `server`: serves until the run ends, or until it was told to leave and has handed
/// over its shards.
pub(crate) fn run_server(options: &ServerOptions) -> anyhow::Result<()> {
    let coordinated = match (options.servers, options.workers) {
        (Some(servers), Some(workers)) if servers < options.threads => {
            let threads = options.threads;
            bail!(
                "a run of {servers} servers and {workers} workers has no room for the {threads} servers of this \
                 process: give --servers at least {threads}, or fewer --threads"
            );
        }
        (Some(servers), Some(workers)) => Some(RunSize { servers, workers }),
        _ => None,
    };
    if options.threads == 0 && coordinated.is_none() {
        bail!("this process would have nothing to run: give --threads at least 1, or --coordinate");
    }
    let join = &options.join;
    let step = join.place.unwrap_or(0);
    let role = if options.threads == 0 { Role::Coordinator } else { Role::Server };
    let metrics = options.metrics.served_at(step).map(|served| served.serve(&join.security, role)).transpose()?;
    let on_report = metrics.as_ref().map(|(metrics, _)| into_metrics(metrics.clone()));
    let membership = match options.replicas {
        Some(replicas) => Membership::Elastic { replicas, shards_per_server: options.shards_per_server },
        None => Membership::Static,
    };
    if options.threads > 1 && options.replicas.is_some_and(|replicas| replicas > 1) {
        tracing::warn!(
            "servers of one process are lost together, and may hold replicas of the same shard: start each server \
             as a process of its own"
        );
    }
    let checkpoints = options.checkpoints.settings();
    let resume = options.checkpoints.resumed()?;
    if coordinated.is_none() && (checkpoints.is_some() || resume.is_some()) {
        bail!("--checkpoint and --resume belong to the coordinator: give them to the process with --coordinate");
    }
    let clock_timeout = options.clock.duration();
    if coordinated.is_none() && clock_timeout.is_some() {
        bail!("--clock-timeout belongs to the coordinator: give it to the process with --coordinate");
    }
    let serve = Serve {
        threads: options.threads,
        clock_timeout,
        coordinate: coordinated,
        membership,
        on_report,
        on_coordinator_report: metrics.as_ref().map(|(metrics, _)| coordinator_into_metrics(metrics.clone())),
        checkpoints,
        resume,
        ..Serve::new(join.connect(
            options.coordinate,
            options.checkpoints.job().unwrap_or_default(),
            leaving::listen()?,
        )?)
    };
    let in_run = format!("the run of the coordinator at {}", join.coordinator_address(options.coordinate)?);
    let reports = match serve.run().context(in_run) {
        Ok(reports) => reports,
        Err(error) => return leaving::left_early(error),
    };
    for report in reports {
        let node = report.node;
        let traffic = report.traffic;
        tracing::info!(%node, received_bytes = traffic.bytes_in, sent_bytes = traffic.bytes_out, "finished");
    }
    Ok(())
}

/// A callback that writes the reports of a coordinator into metrics.
fn coordinator_into_metrics(metrics: Metrics) -> CoordinatorReportCallback {
    CoordinatorReportCallback::new(move |report| {
        let traffic = report.traffic;
        metrics.coordinator(&CoordinatorState {
            bytes_sent: traffic.bytes_out,
            bytes_received: traffic.bytes_in,
            refused_connections: traffic.refused,
            unauthenticated_frames: traffic.unauthenticated,
            unsent_bytes: report.unsent_bytes as u64,
        });
    })
}

/// A callback that writes the reports of servers into metrics.
fn into_metrics(metrics: Metrics) -> ReportCallback {
    let cost = |meter: &Meter, nanoseconds: Option<f64>| CodecCost {
        ratio: meter.ratio(),
        relative_error: meter.relative_error(),
        seconds_per_megabyte: nanoseconds.map(|nanoseconds| nanoseconds / 1e9),
    };
    Arc::new(move |report: &ServerReport| {
        let ServerReport { counts, traffic, .. } = report;
        let NodeId::Server(number) = report.node else { return };
        let up = &counts.upward;
        let down = &counts.downward;
        let state = ServerState {
            bytes_sent: traffic.bytes_out,
            bytes_received: traffic.bytes_in,
            refused_parts: counts.shards.refused,
            refused_connections: traffic.refused,
            unauthenticated_frames: traffic.unauthenticated,
            parked_reads: counts.shards.parked,
            rows_held: counts.shards.rows,
            unsent_bytes: report.unsent_bytes as u64,
            codecs: [cost(up, up.decode_ns_per_megabyte()), cost(down, down.encode_ns_per_megabyte())],
        };
        metrics.server(number, &state);
    })
}

/// The settings of `worker`.
#[derive(clap::Args)]
pub(crate) struct WorkerOptions {
    #[command(flatten)]
    join: JoinOptions,
    /// The name of the job. The coordinator turns the worker away if the run has another job.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`.
    /// `-- train --help` lists the settings.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `worker`: joins the run, and runs the program to its end.
pub(crate) fn run_worker(options: &WorkerOptions) -> anyhow::Result<()> {
    let program = Program::parse(&options.program);
    let coordinator_address = options.join.coordinator_address(false)?;
    let in_run = || format!("the run of the coordinator at {coordinator_address}");
    let leave = leaving::listen()?;
    let leases_data = program.leases_data();
    let join = || {
        let job = options.job.as_deref().unwrap_or_default();
        let session = Session::connect(&options.join.connect(false, job, leave)?).with_context(in_run)?;
        let RunSize { servers, workers } = session.size();
        tracing::info!(node = format!("worker {}", session.rank()), servers, workers, "working");
        if session.now().0 > 0 && !session.joined_late() {
            say_resumed(session.now().0, leases_data && session.is_elastic());
        }
        Ok(session)
    };
    let worked = match program {
        Program::Demo(training) => join()
            .and_then(|session| in_time(session, "the demonstration").with_context(in_run))
            .and_then(|session| demo::work(session, &training).with_context(in_run)),
        Program::Train(train::InRun(given)) => train::work(&given, &options.join.security, join),
    };
    worked.or_else(leaving::left_early)
}

/// Logs that the run resumes from a checkpoint, and which rows it learns from again.
fn say_resumed(clock: u64, leased: bool) {
    const RESUMED: &str = "the run resumes from a checkpoint, with weights and updater state as they were";
    if leased {
        tracing::info!(clock, "{RESUMED}. It learns only from the rows that were not learnt from before");
    } else {
        tracing::warn!(
            clock,
            "{RESUMED}. Each worker has a fixed share of the data, without a record of which rows it has learnt \
             from: every epoch begins again, and rows count again. To resume within an epoch, run with --replicas \
             and without --updater=proximal"
        );
    }
}

/// Turns away a worker that joined late, for a program that needs all its workers from the start.
pub(crate) fn in_time(session: Session, program: &str) -> anyhow::Result<Session> {
    if session.joined_late() {
        // Close the session at once, so that the other workers do not wait for this one.
        session.close()?;
        bail!("the run has begun, and {program} takes no workers that join late; start a new run");
    }
    Ok(session)
}

/// A learning program that a worker can run.
#[derive(Subcommand)]
pub(crate) enum Program {
    /// Train a model twice while workers are slowed at random, in lock-step and with slack, and
    /// show what slack gains.
    ///
    /// The run sets the numbers of servers and workers. Worker 0 prints the result and draws the
    /// chart.
    Demo(demo::Training),
    /// Train a model on files: logistic, linear, softmax, a factorisation machine (fm) or a
    /// multi-layer perceptron (mlp).
    ///
    /// The run sets the numbers of servers and workers. Each worker reads its part of the files.
    /// Worker 0 prints the result and writes the model. In an elastic run, one of the workers that
    /// are there at the end does.
    Train(train::InRun),
}

#[derive(Parser)]
#[command(
    name = "",
    no_binary_name = true,
    disable_help_subcommand = true,
    override_usage = "… -- <PROGRAM> [SETTINGS]"
)]
struct ProgramLine {
    #[command(subcommand)]
    program: Program,
}

impl Program {
    /// Whether its workers, interrupted once, end by themselves and write their result.
    pub(crate) fn heeds_interrupts(&self) -> bool {
        matches!(self, Self::Train(_))
    }

    /// Whether it leases its data in an elastic run, rather than share it out by rank.
    fn leases_data(&self) -> bool {
        matches!(self, Self::Demo(_)) || self.takes_late_workers()
    }

    /// Whether it takes workers that join late.
    pub(crate) fn takes_late_workers(&self) -> bool {
        match self {
            Self::Demo(_) => false,
            Self::Train(train::InRun(given)) => train::takes_late_workers(given),
        }
    }

    /// Parses the words after `--`. On a mistake, prints it and ends this process.
    pub(crate) fn parse(words: &[OsString]) -> Self {
        ProgramLine::parse_from(words).program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        join: JoinOptions,
    }

    /// The coordinator's address and where this process listens, or the error.
    fn found(words: &str, coordinates: bool) -> Result<(String, Option<String>), String> {
        let line = Line::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
        let connect = line.join.connect(coordinates, "", LeaveSignal::default()).map_err(|error| error.to_string())?;
        Ok((connect.coordinator_address, connect.listen.map(|address| address.to_string())))
    }

    #[test]
    fn a_coordinating_process_needs_only_an_address_to_listen_at() {
        let at = |coordinator: &str, listen: Option<&str>| Ok((coordinator.to_owned(), listen.map(str::to_owned)));
        assert_eq!(found("--listen head:7000", true), at("head:7000", None));
        assert_eq!(found("--coordinator head:7000", true), at("head:7000", None));
        let both = "--coordinator head:7000 --listen 0.0.0.0:7100";
        for coordinates in [true, false] {
            assert_eq!(found(both, coordinates), at("head:7000", Some("0.0.0.0:7100")));
        }
        let refused = |words, says: &str| found(words, false).is_err_and(|error| error.contains(says));
        assert!(refused("--listen 0.0.0.0:7100", "give --coordinator HOST:PORT"));
        assert!(refused("--coordinator head:7000 --listen head", "give --listen ADDRESS:PORT"));
        assert!(refused("", "--coordinator <HOST:PORT>"));
    }
}
