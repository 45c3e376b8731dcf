//! `launch`: a whole run on this host, each server and worker a process of its own.
//!
//! However it ends, no process that it started is left: when one dies, the others get time to notice and say so, and
//! whoever is still there after that is ended by process id. The processes are in groups of their own, so that what a
//! terminal says to stop reaches this process alone, which tells the others.

mod children;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anyhow::Context;
use children::{Children, Patience, Spares};
use clap::value_parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use slackwater::SameHost;

use crate::logs::Form;
use crate::process::{Limits, Program, same_host_parser};
use crate::{checkpoints, replay, train};

/// After a child has died the others get this long beyond their own patience: the coordinator stays a while to tell all.
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
    /// Let processes come and go: how many servers hold each part of every table. With 2 or more, a server that dies takes nothing with
    /// it. Another is started in its place, and so it is for a worker of `train`; other programs do without. A process of its own
    /// coordinates, and must live.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=16))]
    copies: Option<u32>,
    /// How the processes talk: through shared memory, or over TCP as those of different hosts do.
    #[arg(long, value_name = "WAY", default_value = "shared-memory", value_parser = same_host_parser())]
    same_host: SameHost,
    /// Record everything that each process is told and says, in files of this folder that `slackwater replay` feeds back.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Serve metrics of each server process, at this port + its number; port 0 is any free one. For those of workers, say --metrics to
    /// `train`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    checkpoints: checkpoints::CheckpointOptions,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`; `-- train --help` lists them.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `launch`.
pub(crate) fn run(options: &LaunchOptions, log_form: Form) -> anyhow::Result<()> {
    run_killing(options, Vec::new(), log_form)
}

fn run_killing(options: &LaunchOptions, kills: Vec<(Duration, String)>, log_form: Form) -> anyhow::Result<()> {
    // Settings that make no sense are refused here, once, rather than by every worker.
    let program = Program::parse(&options.program);
    if let Program::Train(train::InRun(given)) = &program
        && given.show
    {
        return train::show(given);
    }
    options.record.as_deref().map(replay::check_folder).transpose()?;
    options.checkpoints.resumed()?;
    let stop = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGQUIT] {
        signal_hook::flag::register_usize(signal, stop.clone(), signal as usize)
            .context("cannot listen for signals")?;
    }
    let meet = free_address()?;
    let mut children = Children::default();
    if options.copies.is_some() {
        let worker = program.takes_late_workers().then(|| spare("worker", options, &meet, log_form)).flatten();
        children.spares = Some(Spares { server: spare("server", options, &meet, log_form), worker });
    }
    children.kills = kills;
    for (name, arguments) in processes(options, &meet, log_form) {
        children.start(name, arguments)?;
    }
    let patience = Patience {
        interrupts: u32::from(program.heeds_interrupts()),
        leave_orders: u32::from(options.copies.is_some()),
        // If all left at once, nobody would give the result of a program that has one to give.
        leave_by: if program.heeds_interrupts() { SIGINT } else { SIGTERM },
        after_a_death: Duration::from_secs(options.limits.patience) + GRACE,
    };
    children.see_through(&stop, patience)
}

/// A run of `program` in which each server's rows are held by another one too, and in which some processes are killed, each after so long.
pub(crate) fn demonstrate(
    (servers, workers): (u32, u32),
    program: Vec<OsString>,
    kills: Vec<(Duration, String)>,
    log_form: Form,
) -> anyhow::Result<()> {
    let limits = Limits { join_limit: 300, patience: 2 };
    let (copies, same_host, record, metrics) = (Some(2), SameHost::SharedMemory, None, None);
    let checkpoints = checkpoints::CheckpointOptions::none();
    let options = LaunchOptions { servers, workers, copies, same_host, record, metrics, limits, checkpoints, program };
    run_killing(&options, kills, log_form)
}

/// A loopback address that nobody listens at.
fn free_address() -> anyhow::Result<String> {
    Ok(slackwater::free_address().context("cannot listen on the loopback address")?.to_string())
}

/// The name and the arguments of every process of the run.
fn processes(options: &LaunchOptions, meet: &str, log_form: Form) -> Vec<(String, Vec<OsString>)> {
    let LaunchOptions { servers, workers, copies, same_host, record, metrics, limits, checkpoints, program } = options;
    let common = |kind: &str, place: u32| {
        let mut arguments = vec![kind.to_owned(), format!("--meet={meet}"), format!("--place={place}")];
        arguments.extend([format!("--join-limit={}", limits.join_limit), format!("--patience={}", limits.patience)]);
        arguments.push(format!(
            "--same-host={}",
            match same_host {
                SameHost::SharedMemory => "shared-memory",
                SameHost::Tcp => "tcp",
            }
        ));
        arguments.extend((log_form == Form::Json).then(|| "--log-json".to_owned()));
        let mut arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        // As words of its own: the name of a folder need not be text.
        arguments.extend(record.iter().flat_map(|folder| ["--record".into(), folder.clone().into_os_string()]));
        arguments
    };
    let shape = ["--coordinate".to_owned(), format!("--servers={servers}"), format!("--workers={workers}")];
    let shape: Vec<OsString> = shape.map(OsString::from).into_iter().chain(checkpoints.arguments()).collect();
    let server = |place| {
        let mut arguments = common("server", place);
        arguments.extend(metrics.iter().map(|address| format!("--metrics={address}").into()));
        if place == 0 && copies.is_none() {
            arguments.extend(shape.clone());
        }
        (format!("server {place}"), arguments)
    };
    // Where any server may die, the coordinator is none of them.
    let coordinator = copies.map(|copies| {
        let mut arguments = common("server", 0);
        arguments.extend(["--threads=0".into(), format!("--copies={copies}").into()]);
        arguments.extend(shape.clone());
        ("coordinator".to_owned(), arguments)
    });
    let worker = |place| {
        let arguments = common("worker", place).into_iter();
        let arguments = arguments.chain([OsString::from("--")]).chain(program.iter().cloned());
        (format!("worker {place}"), arguments.collect())
    };
    let servers = (0..*servers).map(server);
    coordinator.into_iter().chain(servers).chain((0..*workers).map(worker)).collect()
}

/// The arguments of a process that takes the place of a dead one of its kind, `server` or `worker`, in a run that does without those that
/// die.
fn spare(kind: &str, options: &LaunchOptions, meet: &str, log_form: Form) -> Option<Vec<OsString>> {
    let last = processes(options, meet, log_form).into_iter().rfind(|(name, _)| name.starts_with(kind));
    let mut in_program = false;
    let is_common = |word: &OsString| {
        in_program |= word == "--";
        in_program || !word.to_string_lossy().starts_with("--place=")
    };
    last.map(|(_, arguments)| arguments.into_iter().filter(is_common).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_coordinates_and_every_process_has_its_place() {
        let limits = Limits { join_limit: 7, patience: 2 };
        let program = vec![OsString::from("demo"), OsString::from("--json")];
        let metrics = Some("here:9".to_owned());
        let (copies, same_host) = (None, SameHost::Tcp);
        let checkpoints = checkpoints::CheckpointOptions::none();
        let options = LaunchOptions {
            servers: 2,
            workers: 3,
            copies,
            same_host,
            record: None,
            metrics,
            limits,
            checkpoints,
            program,
        };
        let processes = processes(&options, "here:1", Form::Json);
        let names: Vec<&str> = processes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        for (name, arguments) in &processes {
            let line = arguments.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
            let (kind, place) = name.split_once(' ').unwrap();
            let begins =
                format!("{kind} --meet=here:1 --place={place} --join-limit=7 --patience=2 --same-host=tcp --log-json");
            assert!(line.starts_with(&begins), "{line}");
            assert_eq!(line.contains("--metrics=here:9"), kind == "server", "{line}");
            assert_eq!(line.contains("--coordinate --servers=2 --workers=3"), name == "server 0", "{line}");
            assert_eq!(line.ends_with(" -- demo --json"), kind == "worker", "{line}");
        }
        let options = LaunchOptions { copies: Some(2), ..options };
        let processes = super::processes(&options, "here:1", Form::Json);
        let names: Vec<&str> = processes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["coordinator", "server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        let common = "--meet=here:1 --join-limit=7 --patience=2 --same-host=tcp --log-json";
        for (kind, more) in [("server", "--metrics=here:9"), ("worker", "-- demo --json")] {
            let spare = spare(kind, &options, "here:1", Form::Json).unwrap();
            let line = spare.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
            assert_eq!(line, format!("{kind} {common} {more}"));
        }
    }
}
