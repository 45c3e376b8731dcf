//! `launch`: starts a whole run on this host, with a process for each server and worker.
//!
//! [`RunPlan`] lists the processes, and [`Supervisor`] starts, supervises and ends them. No process
//! outlives this command, however it ends. Each process has a session of its own, so a terminal's
//! Ctrl-C reaches only this command, which signals the workers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::value_parser;
use launch::{EndPolicy, Replacements, RunPlan, RunToken, SameHost, Signal, SignalFlag, Supervisor};
use slackwater::security::{Access, CERTIFICATE_VARIABLES, CertificateFiles, TOKEN_FILE_VARIABLE, Token};

use crate::checkpoints::CheckpointOptions;
use crate::logs::Form;
use crate::metrics::ServerMetrics;
use crate::process::{ClockTimeout, Limits, Program, same_host_parser};
use crate::security::SecurityOptions;
use crate::{replay, train};

/// After a process has died, the others have the failure timeout and this long to end. The
/// coordinator needs it to tell all nodes.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of `launch`.
#[derive(clap::Args)]
pub(crate) struct LaunchOptions {
    /// How many server processes to start. Without --replicas, the first is the coordinator too.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = value_parser!(u32).range(1..=256))]
    servers: u32,
    /// How many worker processes to start.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Make the run elastic, with this many replicas of each shard and the coordinator in a process
    /// of its own. With 2 or more, the run survives the loss of a server. `launch` replaces servers
    /// that die, and workers of `train`; `demo` goes on without them. Only the coordinator must not
    /// die.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// How the processes talk: through shared memory, or over TCP, as between hosts.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    /// Record all inputs and messages of each process into this folder, for `slackwater replay`.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    #[command(flatten)]
    metrics: ServerMetrics,
    #[command(flatten)]
    security: SecurityOptions,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    clock: ClockTimeout,
    #[command(flatten)]
    checkpoints: CheckpointOptions,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`.
    /// `-- train --help` lists the settings.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `launch`.
pub(crate) fn run(options: &LaunchOptions, log_form: Form) -> anyhow::Result<()> {
    run_killing(options, &[], log_form)
}

fn run_killing(options: &LaunchOptions, kills: &[(Duration, String)], log_form: Form) -> anyhow::Result<()> {
    // Refuse wrong settings here, once, rather than in every worker.
    let program = Program::parse(&options.program);
    if let Program::Train(train::InRun(given)) = &program
        && given.show
    {
        return train::show(given);
    }
    options.record.as_deref().map(replay::check_folder).transpose()?;
    options.checkpoints.resumed()?;
    let signals = SignalFlag::listen(&[Signal::INT, Signal::TERM, Signal::USR1, Signal::HUP, Signal::QUIT])?;
    let coordinator_address = launch::free_address().context("cannot listen on the loopback address")?;
    // Removed when the run is over.
    let (access, _run_token) = access(&options.security)?;
    let plan = plan(options, &coordinator_address.to_string(), access, log_form);
    let replacements = options.replicas.map(|_| Replacements {
        server: plan.server(None),
        worker: program.takes_late_workers().then(|| plan.worker(None)),
    });
    let mut supervisor = Supervisor::new(replacements)?;
    for (after, name) in kills {
        supervisor.kill_after(*after, name);
    }
    for process in plan.processes() {
        supervisor.start(process)?;
    }
    let policy = EndPolicy {
        interrupts: u32::from(program.heeds_interrupts()),
        leave_orders: u32::from(options.replicas.is_some()),
        // `train` writes its model after an interrupt. If all workers left, none would write it.
        leave_by: if program.heeds_interrupts() { Signal::INT } else { Signal::TERM },
        after_a_loss: plan.failure_timeout + GRACE,
    };
    Ok(supervisor.run(&signals, policy)?)
}

/// Launches `program` in a run with two replicas of each shard, and kills the named processes after
/// the given times.
pub(crate) fn demonstrate(
    (servers, workers): (u32, u32),
    program: Vec<OsString>,
    kills: &[(Duration, String)],
    log_form: Form,
) -> anyhow::Result<()> {
    let options = LaunchOptions {
        servers,
        workers,
        replicas: Some(2),
        same_host: SameHost::SharedMemory,
        record: None,
        metrics: ServerMetrics::default(),
        security: SecurityOptions::default(),
        limits: Limits { join_limit: 300, failure_timeout: 10 },
        clock: ClockTimeout::default(),
        checkpoints: CheckpointOptions::none(),
        program,
    };
    run_killing(&options, kills, log_form)
}

/// The options by which every process of the run proves who it is. Without a token of the user's,
/// the run gets one of its own.
fn access(security: &SecurityOptions) -> anyhow::Result<(Vec<OsString>, Option<RunToken>)> {
    let option = |name: &str, path: &Path| [name.into(), path.as_os_str().to_owned()];
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match security.access() {
        Access::TokenFile(path) => {
            // Refuses a file that is no token here, once, rather than in every process.
            Token::read(&path)?;
            Ok((option("--token-file", &path).into(), None))
        }
        Access::Certificates(CertificateFiles { certificate, key, authorities }) => {
            let files = [("--tls-cert", certificate), ("--tls-key", key), ("--tls-ca", authorities)];
            Ok((files.iter().flat_map(|(name, path)| option(name, path)).collect(), None))
        }
        Access::Insecure => Ok((vec!["--insecure".into()], None)),
        // The processes inherit what the environment says.
        Access::FromEnvironment | Access::Job(_) if is_set(TOKEN_FILE_VARIABLE) || is_set(CERTIFICATE_VARIABLES[0]) => {
            if let Some(path) = security.token_path() {
                Token::read(&path)?;
            }
            Ok((Vec::new(), None))
        }
        Access::FromEnvironment | Access::Job(_) => {
            let token = RunToken::create()?;
            Ok((option("--token-file", token.path()).into(), Some(token)))
        }
    }
}

/// The processes of the run.
fn plan(options: &LaunchOptions, coordinator_address: &str, access: Vec<OsString>, log_form: Form) -> RunPlan {
    let LaunchOptions {
        servers,
        workers,
        replicas,
        same_host,
        record,
        metrics,
        security: _,
        limits,
        clock,
        checkpoints,
        program,
    } = options;
    let mut common: Vec<OsString> = (log_form == Form::Json).then(|| "--log-json".into()).into_iter().collect();
    common.extend(access);
    common.extend(checkpoints.permissions());
    // The folder is a word of its own: its name need not be UTF-8.
    common.extend(record.iter().flat_map(|folder| ["--record".into(), folder.clone().into_os_string()]));
    let clock_timeout = clock.clock_timeout.map(|seconds| format!("--clock-timeout={seconds}").into());
    RunPlan {
        replicas: *replicas,
        join_limit: Duration::from_secs(limits.join_limit),
        failure_timeout: Duration::from_secs(limits.failure_timeout),
        same_host: *same_host,
        common,
        coordinator: checkpoints.arguments().into_iter().chain(clock_timeout).collect(),
        server: metrics.arguments(),
        program: program.clone(),
        ..RunPlan::new(coordinator_address, *servers, *workers)
    }
}
