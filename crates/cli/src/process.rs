//! `server` and `worker`: one process of a run, which joins at the address of its coordinator.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, value_parser};
use launch::{SAME_HOST_WORDS, parse_same_host};
use observe::{CodecCost, Metrics, ServerState};
use slackwater::cluster::{LeaveSignal, Membership, NodeId, ReportCallback, SameHost, ServerReport};
use slackwater::monitor::Meter;
use slackwater::{Connect, RunSize, Serve, Session};

use crate::{checkpoints, demo, leaving, train};

/// How a process finds the others, and how long it waits for them.
#[derive(clap::Args)]
pub(crate) struct JoinOptions {
    /// The address of the coordinator, the same for every process of the run. Where there are
    /// several coordinators (see `slackwater coordinator --help`), the addresses of all of them,
    /// with commas between. The process with --coordinate may be given --listen instead.
    #[arg(long = "coordinator", value_name = "HOST:PORT", required_unless_present = "listen")]
    coordinator_address: Option<String>,
    /// The number this process takes among its kind, from 0, where that matters. Give one to every
    /// process, or to none.
    #[arg(long, value_name = "NUMBER")]
    place: Option<u32>,
    /// Where this process listens for the others: ADDRESS:PORT. By default at any free port: of the
    /// loopback address if the coordinator is there, else of every address. Several servers take
    /// this port and those after it. With --coordinate and without --coordinator: where the
    /// coordinator listens, HOST:PORT, or 0.0.0.0:PORT or [::]:PORT for every address of its host.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// How the others reach this process, if not by the address by which it reaches the
    /// coordinator. The port is needed only where it differs from the one listened at.
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Option<String>,
    /// How this process talks to those of its own host: through shared memory wherever both ends
    /// can, or over TCP as to any other.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    /// Record everything that this process is told and says, in files of this folder that
    /// `slackwater replay` feeds back.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// Reads how processes of one host talk.
pub(crate) fn same_host_parser() -> impl TypedValueParser<Value = SameHost> {
    PossibleValuesParser::new(SAME_HOST_WORDS).try_map(|word| parse_same_host(&word).ok_or("not a way to talk"))
}

/// How long is waited before something counts as gone wrong.
#[derive(Clone, clap::Args)]
pub(crate) struct Limits {
    /// How many seconds to wait for everybody to join before giving up.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) join_limit: u64,
    /// A process that is silent for this many seconds is lost, and the run with it; or done
    /// without, where processes come and go. Every other time-out follows from this and from what
    /// is measured: `slackwater status` shows them.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) failure_timeout: u64,
}

impl JoinOptions {
    /// The coordinator's address; of the process that coordinates, where it listens does as well.
    fn coordinator_address(&self, coordinates: bool) -> anyhow::Result<&str> {
        let own = self.listen.as_deref().filter(|_| coordinates);
        self.coordinator_address.as_deref().or(own).context(
            "the coordinator's address is not known: give --coordinator HOST:PORT (only the process with \
             --coordinate can do with --listen)",
        )
    }

    fn connect(&self, coordinates: bool, job: &str, leave: LeaveSignal) -> anyhow::Result<Connect> {
        let Self { coordinator_address, place, listen, advertise, same_host, record, limits } = self;
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
            job: job.to_owned(),
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
    /// How many servers this process is: each is a thread that holds its share of every table. 0,
    /// with --coordinate, is the coordinator alone.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(0..=1024))]
    threads: u32,
    /// Be the coordinator too, at the coordinator's address. One process of a run does that.
    #[arg(long, requires_all = ["servers", "workers"])]
    coordinate: bool,
    /// How many servers the run has, those of this and of all other processes together.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..))]
    servers: Option<u32>,
    /// How many workers the run has.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// Let nodes come and go: how many servers hold each shard of every table. With 2 or more, the
    /// run goes on without servers that are lost, and other servers are backfilled with their
    /// shards. Servers that are started later join the run.
    #[arg(long, value_name = "COUNT", requires = "coordinate", value_parser = value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// How many shards each table is cut into, for each server that the run begins with. A shard is
    /// the unit that can be moved.
    #[arg(long, value_name = "COUNT", requires = "replicas", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1024))]
    shards_per_server: u32,
    /// Serve metrics of the servers here, at this port + the --place of the first; port 0 is any
    /// free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    checkpoints: checkpoints::CheckpointOptions,
}

/// The command `server`: serves until the run ends, or until it is told to leave and others hold
/// what it held.
pub(crate) fn run_server(options: &ServerOptions) -> anyhow::Result<()> {
    let coordinated = match (options.servers, options.workers) {
        (Some(servers), Some(workers)) if servers < options.threads => {
            let threads = options.threads;
            bail!(
                "a run of {servers} servers and {workers} workers has no room for the {threads} servers of this process"
            );
        }
        (Some(servers), Some(workers)) => Some(RunSize { servers, workers }),
        _ => None,
    };
    if options.threads == 0 && coordinated.is_none() {
        bail!("this process would be nothing: give --threads at least 1, or --coordinate");
    }
    let join = &options.join;
    let step = join.place.unwrap_or(0);
    let metrics = options.metrics.as_deref().map(|address| train::serve_metrics(address, step)).transpose()?;
    let on_report = metrics.as_ref().map(|(metrics, _)| into_metrics(metrics.clone()));
    let membership = match options.replicas {
        Some(replicas) => Membership::Elastic { replicas, shards_per_server: options.shards_per_server },
        None => Membership::Static,
    };
    if options.threads > 1 && options.replicas.is_some_and(|replicas| replicas > 1) {
        tracing::warn!(
            "servers of one process die together, and may hold each other's replicas: start them as processes of their own"
        );
    }
    let (checkpoints, resume) = (options.checkpoints.settings(), options.checkpoints.resumed()?);
    if coordinated.is_none() && (checkpoints.is_some() || resume.is_some()) {
        bail!("checkpoints are the coordinator's to make and to resume: say so to the process with --coordinate");
    }
    let serve = Serve {
        threads: options.threads,
        coordinate: coordinated,
        membership,
        on_report,
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
        let (node, traffic) = (report.node, report.traffic);
        tracing::info!(%node, received_bytes = traffic.bytes_in, sent_bytes = traffic.bytes_out, "finished");
    }
    Ok(())
}

/// Shows how servers are doing.
fn into_metrics(metrics: Metrics) -> ReportCallback {
    let cost = |meter: &Meter, nanoseconds: Option<f64>| CodecCost {
        ratio: meter.ratio(),
        relative_error: meter.relative_error(),
        seconds_per_megabyte: nanoseconds.map(|nanoseconds| nanoseconds / 1e9),
    };
    Arc::new(move |report: &ServerReport| {
        let ServerReport { counts, traffic, .. } = report;
        let NodeId::Server(number) = report.node else { return };
        let (up, down) = (&counts.upward, &counts.downward);
        let state = ServerState {
            bytes_sent: traffic.bytes_out,
            bytes_received: traffic.bytes_in,
            refused_parts: counts.shards.refused,
            refused_connections: traffic.refused,
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
    /// The job that this worker is for: a run of another job turns it away.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`;
    /// `-- train --help` lists them.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `worker`: joins the run, and works until the program is done.
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
        Program::Train(train::InRun(given)) => train::work(&given, join),
    };
    worked.or_else(leaving::left_early)
}

/// Says what becomes of the data in a run that goes on from a checkpoint.
fn say_resumed(clock: u64, leased: bool) {
    const ROWS: &str = "the run goes on from a checkpoint: weights and what updaters know are as they were";
    if leased {
        tracing::info!(clock, "{ROWS}. What was learnt from by then is not learnt from again; the rest is");
    } else {
        tracing::warn!(
            clock,
            "{ROWS}. The data is shared out by rank, so nobody knows what was learnt from by then: every epoch begins again, and rows count \
             again. Only runs with --replicas go on where they were, and those not by proximal steps"
        );
    }
}

/// Turns a worker away that came to a run under way, for a program that goes with the workers that
/// it begins with.
pub(crate) fn in_time(session: Session, program: &str) -> anyhow::Result<Session> {
    if session.joined_late() {
        // It leaves at once: what the others do is not touched.
        session.close()?;
        bail!("the run was under way, and {program} goes with the workers that it begins with; start a new run");
    }
    Ok(session)
}

/// A learning program that a worker can run.
#[derive(Subcommand)]
pub(crate) enum Program {
    /// Train a model twice, in lock-step and with slack, while workers are slowed at random, and
    /// show what slack gains.
    ///
    /// How many servers and workers there are is the run's to say. Worker 0 prints the result and
    /// writes the picture.
    Demo(demo::Training),
    /// Learn a model from files: logistic, linear, softmax or a factorisation machine.
    ///
    /// How many servers and workers there are is the run's to say, and each worker reads its part
    /// of the files. Worker 0 prints the result and writes the model; in a run that workers come to
    /// and go from, the first of those that are there at the end.
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
    /// Whether its workers, interrupted once, come to an end by themselves and have something to
    /// show for it.
    pub(crate) fn heeds_interrupts(&self) -> bool {
        matches!(self, Self::Train(_))
    }

    /// Whether it leases its data in a run that workers come to and go from, rather than share it
    /// out by rank.
    fn leases_data(&self) -> bool {
        matches!(self, Self::Demo(_)) || self.takes_late_workers()
    }

    /// Whether it takes workers that come later.
    pub(crate) fn takes_late_workers(&self) -> bool {
        match self {
            Self::Demo(_) => false,
            Self::Train(train::InRun(given)) => train::takes_late_workers(given),
        }
    }

    /// Understands what follows `--`; if it cannot, says why and ends this process.
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

    /// The coordinator's address and where this process listens, or what is wrong.
    fn found(words: &str, coordinates: bool) -> Result<(String, Option<String>), String> {
        let line = Line::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
        let connect = line.join.connect(coordinates, "", LeaveSignal::default()).map_err(|error| error.to_string())?;
        Ok((connect.coordinator_address, connect.listen.map(|address| address.to_string())))
    }

    #[test]
    fn a_coordinating_process_may_be_told_only_where_to_listen() {
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
