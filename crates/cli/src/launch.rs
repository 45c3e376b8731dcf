//! `launch`: a whole run on this host, each server and worker a process of its own.
//!
//! [`RunPlan`] lists the processes and [`Supervisor`] sees them through. However this command ends,
//! no process that it started is left. The processes are in sessions of their own: a terminal's
//! Ctrl-C reaches this process alone, which tells the workers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::value_parser;
use launch::{EndPolicy, Replacements, RunPlan, SameHost, Signal, SignalFlag, Supervisor};

use crate::checkpoints::CheckpointOptions;
use crate::logs::Form;
use crate::process::{Limits, Program, same_host_parser};
use crate::{replay, train};

/// After a child has died, the others get this long beyond the failure timeout: the coordinator
/// stays a while to tell all.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of `launch`.
#[derive(clap::Args)]
pub(crate) struct LaunchOptions {
    /// How many server processes to start; the first is the coordinator too.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = value_parser!(u32).range(1..=256))]
    servers: u32,
    /// How many worker processes to start.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Let processes come and go: how many servers hold each shard of every table. With 2 or more,
    /// a server that dies takes nothing with it. Another is started in its place, and so it is for
    /// a worker of `train`; other programs do without. A process of its own coordinates, and must
    /// live.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// How the processes talk: through shared memory, or over TCP as those of different hosts do.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    /// Record everything that each process is told and says, in files of this folder that
    /// `slackwater replay` feeds back.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Serve metrics of each server process, at this port + its number; port 0 is any free one. For
    /// those of workers, say --metrics to `train`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    checkpoints: CheckpointOptions,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`; `--
    /// train --help` lists them.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `launch`.
pub(crate) fn run(options: &LaunchOptions, log_form: Form) -> anyhow::Result<()> {
    run_killing(options, &[], log_form)
}

fn run_killing(options: &LaunchOptions, kills: &[(Duration, String)], log_form: Form) -> anyhow::Result<()> {
    // Settings that make no sense are refused here, once, rather than by every worker.
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
    let plan = plan(options, &coordinator_address.to_string(), log_form);
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
        // If all left at once, nobody would give the result of a program that has one to give.
        leave_by: if program.heeds_interrupts() { Signal::INT } else { Signal::TERM },
        after_a_loss: plan.failure_timeout + GRACE,
    };
    Ok(supervisor.run(&signals, policy)?)
}

/// A run of `program` in which each server's rows are held by another one too, and in which some
/// processes are killed, each after so long.
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
        metrics: None,
        limits: Limits { join_limit: 300, failure_timeout: 2 },
        checkpoints: CheckpointOptions::none(),
        program,
    };
    run_killing(&options, kills, log_form)
}

/// The processes of the run.
fn plan(options: &LaunchOptions, coordinator_address: &str, log_form: Form) -> RunPlan {
    let LaunchOptions { servers, workers, replicas, same_host, record, metrics, limits, checkpoints, program } =
        options;
    let mut common: Vec<OsString> = (log_form == Form::Json).then(|| "--log-json".into()).into_iter().collect();
    // As words of its own: the name of a folder need not be text.
    common.extend(record.iter().flat_map(|folder| ["--record".into(), folder.clone().into_os_string()]));
    RunPlan {
        replicas: *replicas,
        join_limit: Duration::from_secs(limits.join_limit),
        failure_timeout: Duration::from_secs(limits.failure_timeout),
        same_host: *same_host,
        common,
        coordinator: checkpoints.arguments(),
        server: metrics.iter().map(|address| format!("--metrics={address}").into()).collect(),
        program: program.clone(),
        ..RunPlan::new(coordinator_address, *servers, *workers)
    }
}
