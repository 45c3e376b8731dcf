//! The command `slackwater`.

mod checkpoints;
mod coordinator;
mod demo;
mod figures;
mod inspect;
mod launch;
mod leaving;
mod logs;
mod predict;
mod process;
mod replay;
mod status;
mod tail;
mod totals;
mod train;

use std::process::ExitCode;

use ::launch::EXPELLED_STATUS;
use apps::train::TrainError;
use clap::{Parser, Subcommand};
use slackwater::cluster::NodeError;

/// Trains one model on machines that do not keep step.
#[derive(Parser)]
#[command(name = "slackwater", version, after_help = EXAMPLES)]
struct Arguments {
    /// Write log lines as JSON, one object each.
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Learn from a file and keep the model:
    slackwater train logistic --data train.libsvm.gz --out model.safetensors
  See what slack gains, in one process:
    slackwater demo
  The same as separate processes of this host:
    slackwater launch --servers 2 --workers 4 -- demo

What is logged on standard error is chosen by SLACKWATER_LOG or RUST_LOG: error, warn, info, debug, trace.";

const DEMO_EXAMPLES: &str = "\
Examples:
  Two runs of about 15 and 8 seconds, a table, and a picture in demo.svg:
    slackwater demo
  Eight workers of which one in each clock takes ten times as long, and more slack:
    slackwater demo --workers 8 --factor 10 --slack 8
  As processes of which a server and a worker are killed on the way:
    slackwater demo --kill
  Only the gain, for a program:
    slackwater demo --json | jq .gain_in_clocks_per_second";

const SERVER_EXAMPLES: &str = "\
Examples:
  A run of three servers and two workers on hosts a, b and c, all given the address of its coordinator.
  On a, a process that is one server and the coordinator:
    slackwater server --listen a:7000 --coordinate --servers 3 --workers 2
  On b, a process that is two servers:
    slackwater server --coordinator a:7000 --threads 2
  On c, each worker:
    slackwater worker --coordinator a:7000 -- demo
  The order does not matter: everybody waits until all have joined, at most --join-limit seconds.
  Where b is known to the others by an address of its own, and only two ports are let through to it:
    slackwater server --coordinator a:7000 --threads 2 --listen 0.0.0.0:7100 --advertise b.example.org
A process whose address only its own host can call says so, and what to do, in a warning.";

const COORDINATOR_EXAMPLES: &str = "\
Examples:
  A run that outlives its coordinator, on hosts a to f: two coordinators, of which one leads and the other takes over if that one is lost.
  They agree by an etcd on host e. On a, and the same on b:
    slackwater coordinator --listen a:7000,b:7000 --registry etcd://e:2379/slackwater/clicks-17 --servers 3 --workers 4 --replicas 2
  On c, d and f, a server; elsewhere, each worker:
    slackwater server --coordinator a:7000,b:7000
    slackwater worker --coordinator a:7000,b:7000 -- train logistic --data train.libsvm.gz
  A coordinator by itself, without etcd: the run ends with it.
    slackwater coordinator --listen a:7000 --servers 3 --workers 4
A coordinator says when it leads and when it follows. While etcd does not answer it says so, and whether the run goes on or waits;
nothing is lost meanwhile. A coordinator that was killed may be started again with the same words.";

const WORKER_EXAMPLES: &str = "\
Examples:
  Join the run whose coordinator is on host a, and train:
    slackwater worker --coordinator a:7000 -- demo --slack 5
  Be worker 0, which prints the result:
    slackwater worker --coordinator a:7000 --place 0 -- demo
See `slackwater server --help` for a whole run by hand.";

const LAUNCH_EXAMPLES: &str = "\
Examples:
  The demonstration as two server and four worker processes that talk through shared memory:
    slackwater launch --servers 2 --workers 4 -- demo
  The same for a program to read; log lines and progress are on standard error:
    slackwater launch -- demo --json > figures.json
Lines on standard error begin with the name of the process that said them. If a process dies, the others say so and end,
and `launch` ends with an error that names it.
  With a recording of everything that every process is told and says, to be fed back:
    slackwater launch --record recorded -- demo && slackwater replay recorded";

const REPLAY_EXAMPLES: &str = "\
Examples:
  Record a run, and see that every node of it, told the same again, says the same bytes:
    slackwater launch --record recorded -- demo
    slackwater replay recorded
  Only one of them, for a program to read:
    slackwater replay recorded/worker-0.recording --json
A recording is of one node: all frames, ticks, reconnections and calls, and every frame that it said. One of a process that was
killed ends there, and is compared as far as it goes. Updaters of a program's own are not known here.";

const TRAIN_EXAMPLES: &str = "\
Examples:
  Learn from a file, say how well on another, and keep the model:
    slackwater train logistic --data train.libsvm.gz --test test.libsvm.gz --epochs 5 --out model.safetensors
  Few weights that are not zero, on four workers that may be three clocks apart:
    slackwater train logistic --data 'day-*.vw.zst' --l1 1e-4 --workers 4 --slack 3
  Columns with names, where one is the label and ids are no numbers:
    slackwater train fm --data clicks.csv --label clicked --categorical user item
  The same settings from a file, one of them changed:
    slackwater train job.toml --rate 0.05
  As processes that each read a part of the files:
    slackwater launch --servers 2 --workers 4 -- train logistic --data train.libsvm.gz --out model.safetensors
An interrupt (Ctrl-C) finishes the clock, writes the model and says so; a second one ends at once.";

const PREDICT_EXAMPLES: &str = "\
Examples:
  A prediction a line; how good they are, if the rows have labels, is printed:
    slackwater predict --model model.safetensors --data test.libsvm.gz --out predictions.txt
  Only the figures, for a program:
    slackwater predict --model model.safetensors --data test.libsvm.gz --json";

const STATUS_EXAMPLES: &str = "\
Examples:
  Of the run of that coordinator:
    slackwater status --coordinator head:7000
  For a program, again and again:
    watch -n 1 slackwater status --coordinator head:7000 --json";

const TAIL_EXAMPLES: &str = "\
Examples:
  The rows of a table that change from now on, each as it is then:
    slackwater tail weights --coordinator head:7000
  All rows, and then what changes, for a program:
    slackwater tail weights --coordinator head:7000 --rows --json
A row that changes often is printed with its latest values; values between may be left out. The run does not wait for this
command. If it falls behind, or another server takes over a shard, a line says so, and all rows of that shard follow.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  How it was learnt, and the ten features that weigh most, by name:
    slackwater inspect model.safetensors --top 10 --names vocabulary.txt";

#[derive(Subcommand)]
enum Command {
    /// Learn a model from files: logistic, linear, softmax, a factorisation machine (fm) or a
    /// perceptron (mlp).
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(train::InProcess),
    /// Say what a model predicts for the rows of files.
    #[command(after_help = PREDICT_EXAMPLES)]
    Predict(predict::PredictOptions),
    /// Show how a model was learnt and which features weigh most.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(inspect::InspectOptions),
    /// Train a model twice, in lock-step and with slack, while workers are slowed at random, and
    /// show what slack gains.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::DemoOptions),
    /// Be one or more servers of a run, and its coordinator if so told.
    #[command(after_help = SERVER_EXAMPLES)]
    Server(process::ServerOptions),
    /// Coordinate a run, alone or as one of several of which one leads.
    #[command(after_help = COORDINATOR_EXAMPLES)]
    Coordinator(coordinator::CoordinatorOptions),
    /// Be a worker of a run.
    #[command(after_help = WORKER_EXAMPLES)]
    Worker(process::WorkerOptions),
    /// Start a whole run on this host, each server and worker a process of its own.
    #[command(after_help = LAUNCH_EXAMPLES)]
    Launch(launch::LaunchOptions),
    /// Show how a run stands: who is there, who holds what, who is slow or waited for, and when
    /// somebody counts as lost.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(status::StatusOptions),
    /// Print the rows of a table as they change, while the run goes on.
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(tail::TailOptions),
    /// Feed recordings back, and say of each whether the same was said again.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(replay::ReplayOptions),
    /// Measure this machine, and Slackwater against it.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The other process of a benchmark; started by `bench`, never by hand.
    #[command(subcommand, hide = true)]
    BenchPeer(bench::BenchPeer),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has heard enough, as `head` has.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if is_given_up(&error) { ExitCode::from(EXPELLED_STATUS) } else { ExitCode::FAILURE }
        }
    }
}

fn is_given_up(error: &anyhow::Error) -> bool {
    let given_up = |error: &slackwater::Error| matches!(error, slackwater::Error::Run(NodeError::GivenUp { .. }));
    match error.downcast_ref() {
        Some(TrainError::Cluster(error)) => given_up(error),
        _ => error.downcast_ref().is_some_and(given_up),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.root_cause().downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(Arguments { log_json, command }: Arguments) -> anyhow::Result<()> {
    let log_form = if log_json { logs::Form::Json } else { logs::Form::Text };
    // A process that others depend on says what it does; elsewhere only trouble is worth a line.
    let default = if matches!(command, Command::Server(_) | Command::Worker(_) | Command::Coordinator(_)) {
        "info"
    } else {
        "warn"
    };
    logs::start(log_form, default)?;
    match command {
        Command::Train(options) => train::run(&options),
        Command::Predict(options) => predict::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Tail(options) => tail::run(&options),
        Command::Demo(options) => demo::run(&options, log_form),
        Command::Server(options) => process::run_server(&options),
        Command::Coordinator(options) => coordinator::run(&options),
        Command::Worker(options) => process::run_worker(&options),
        Command::Launch(options) => launch::run(&options, log_form),
        Command::Replay(options) => replay::run(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::BenchPeer(peer) => bench::run_peer(&peer),
    }
}
