//! The command `slackwater`: parses the command line and runs one command, each in a file of its
//! own. The help texts of the commands, with their examples, are here.

mod checkpoints;
mod coordinator;
mod demo;
mod figures;
mod inspect;
mod launch;
mod leaving;
mod logs;
mod metrics;
mod predict;
mod process;
mod replay;
mod security;
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
  The same, as separate processes of this host:
    slackwater launch --servers 2 --workers 4 -- demo

Log lines go to standard error. SLACKWATER_LOG or RUST_LOG sets their level: error, warn, info, debug, trace.";

const DEMO_EXAMPLES: &str = "\
Examples:
  Two runs of about 15 and 8 seconds, a table, and a chart in demo.svg:
    slackwater demo
  Eight workers and more slack; in each clock, one worker takes ten times as long:
    slackwater demo --workers 8 --factor 10 --slack 8
  As processes, of which a server and a worker are killed during the run:
    slackwater demo --kill
  Only the gain, for a program to read:
    slackwater demo --json | jq .gain_in_clocks_per_second";

const SERVER_EXAMPLES: &str = "\
Examples:
  A run of three servers and two workers on hosts a, b and c. Every process gets the coordinator's address, and the token of
  the run (see `slackwater token create --help`):
    export SLACKWATER_TOKEN_FILE=job.token
  On a, a process that is one server and the coordinator:
    slackwater server --listen a:7000 --coordinate --servers 3 --workers 2
  On b, a process that is two servers:
    slackwater server --coordinator a:7000 --threads 2
  On c, twice, a worker:
    slackwater worker --coordinator a:7000 -- demo
  Start them in any order: each process waits until all have joined, at most --join-limit seconds.
  If the others reach b by another name, and a firewall opens only ports 7100 and 7101:
    slackwater server --coordinator a:7000 --threads 2 --listen 0.0.0.0:7100 --advertise b.example.org
  With checkpoints, each server says itself where it may write, whatever the coordinator names:
    slackwater server --listen a:7000 --coordinate --servers 3 --workers 2 --checkpoint /shared/clicks
    slackwater server --coordinator a:7000 --threads 2 --checkpoint-location /shared/clicks
A process that only its own host can reach logs a warning that says what to do.";

const COORDINATOR_EXAMPLES: &str = "\
Examples:
  A run that survives the loss of a coordinator, on hosts a to f. One of two coordinators leads; the other takes over if the
  leader is lost. They elect the leader through etcd, on host e. SLACKWATER_TOKEN_FILE names the run's token everywhere. On a,
  and the same on b:
    slackwater coordinator --listen a:7000,b:7000 --registry etcd://e:2379/slackwater/clicks-17 --servers 3 --workers 4 --replicas 2
  On c, d and f, a server; on any hosts, four workers:
    slackwater server --coordinator a:7000,b:7000
    slackwater worker --coordinator a:7000,b:7000 -- train logistic --data train.libsvm.gz
  With an etcd that speaks TLS, asks for a certificate, and for a user: a file with the line NAME:PASSWORD. Add to the above:
    --registry etcds://e:2379/slackwater/clicks-17 --etcd-cacert ca.pem --etcd-cert node.pem --etcd-key node.key --etcd-user-file user
  One coordinator, without etcd. If it is lost, the run ends:
    slackwater coordinator --listen a:7000 --servers 3 --workers 4
A coordinator logs when it leads and when it follows. While etcd does not answer, it logs whether the run continues or waits;
nothing is lost meanwhile. A coordinator that was killed may be started again with the same arguments.";

const WORKER_EXAMPLES: &str = "\
Examples:
  Join the run whose coordinator is on host a, and train:
    slackwater worker --coordinator a:7000 -- demo --slack 5
  Be worker 0, which prints the result:
    slackwater worker --coordinator a:7000 --place 0 -- demo
See `slackwater server --help` for a whole run started by hand.";

const LAUNCH_EXAMPLES: &str = "\
Examples:
  The demonstration as two server and four worker processes that talk through shared memory:
    slackwater launch --servers 2 --workers 4 -- demo
  The same for a program to read; log lines and progress are on standard error:
    slackwater launch -- demo --json > figures.json
  Record all inputs and messages of every process, and replay them:
    slackwater launch --record recorded -- demo && slackwater replay recorded
Each line on standard error begins with the name of the process that wrote it. Without --replicas, a process that dies ends
the run: the other processes name it and end, and `launch` fails with an error that names it.";

const TOKEN_EXAMPLES: &str = "\
Examples:
  Make the token of a run, copy the file to every host, and start each process with it:
    slackwater token create > job.token
    slackwater server --token-file job.token --coordinator a:7000
  A token for a colleague who may look, for eight hours:
    slackwater token create --role reader --ttl 8h --token-file job.token > reader.token
    slackwater status --token-file reader.token --coordinator a:7000
  What Prometheus or curl need to read the metrics of the run: the bearer, and the certificate to trust:
    slackwater token http-bearer --token-file reader.token > bearer
    slackwater token ca --token-file reader.token > ca.pem
    curl --cacert ca.pem -H \"Authorization: Bearer $(cat bearer)\" https://host1:9100/metrics
Every process that has the job token is a full member of the job. `launch` makes a token for its run by itself.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  Record a run, and check that every node sends the same bytes when it gets the same inputs again:
    slackwater launch --record recorded -- demo
    slackwater replay recorded
  Replay one node, for a program to read:
    slackwater replay recorded/worker-0.recording --json
A recording holds one node's inputs (frames, ticks, reconnections and calls) and every frame that it sent. If its process was
killed, the recording ends there, and the replay compares it up to that point. Only built-in updaters can be replayed.";

const TRAIN_EXAMPLES: &str = "\
Examples:
  Learn from a file, test on another, and keep the model:
    slackwater train logistic --data train.libsvm.gz --test test.libsvm.gz --epochs 5 --out model.safetensors
  A sparse model, on four workers that may be three clocks apart:
    slackwater train logistic --data 'day-*.vw.zst' --l1 1e-4 --workers 4 --slack 3
  A CSV file with a label column, and ids that are names rather than numbers:
    slackwater train fm --data clicks.csv --label clicked --categorical user item
  Settings from a job file, one of them changed:
    slackwater train job.toml --rate 0.05
  As processes that each read a part of the files:
    slackwater launch --servers 2 --workers 4 -- train logistic --data train.libsvm.gz --out model.safetensors
An interrupt (Ctrl-C) ends the training after the current clock and writes the model; a second one ends the process at once.";

const PREDICT_EXAMPLES: &str = "\
Examples:
  Write one prediction a line, and print how good they are if the rows have labels:
    slackwater predict --model model.safetensors --data test.libsvm.gz --out predictions.txt
  Only the figures, for a program to read:
    slackwater predict --model model.safetensors --data test.libsvm.gz --json";

const STATUS_EXAMPLES: &str = "\
Examples:
  The run whose coordinator is at this address:
    slackwater status --coordinator head:7000
  As JSON, once a second:
    watch -n 1 slackwater status --coordinator head:7000 --json";

const TAIL_EXAMPLES: &str = "\
Examples:
  Rows of the table `weights` that change from now on:
    slackwater tail weights --coordinator head:7000
  All rows first, and then each change, for a program to read:
    slackwater tail weights --coordinator head:7000 --rows --json
Each line has a row's latest values; values in between may be left out. The run does not wait for this command. If this
command falls behind, or another server takes over a shard, a line says so, and all rows of that shard follow.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  The settings of a model, and its ten heaviest features by name:
    slackwater inspect model.safetensors --top 10 --names vocabulary.txt
  The contents of the newest checkpoint in a folder:
    slackwater inspect checkpoints/";

#[derive(Subcommand)]
enum Command {
    /// Train a model on files: logistic, linear, softmax, a factorisation machine (fm) or a
    /// multi-layer perceptron (mlp).
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(train::InProcess),
    /// Predict the rows of files with a model.
    #[command(after_help = PREDICT_EXAMPLES)]
    Predict(predict::PredictOptions),
    /// Show a model's settings and heaviest features, or the contents of a checkpoint.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(inspect::InspectOptions),
    /// Train a model twice while workers are slowed at random, in lock-step and with slack, and
    /// show what slack gains.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::DemoOptions),
    /// Run one or more servers in this process, and with --coordinate the coordinator too.
    #[command(after_help = SERVER_EXAMPLES)]
    Server(process::ServerOptions),
    /// Run a coordinator in this process, alone or as one of several of which one leads.
    #[command(after_help = COORDINATOR_EXAMPLES)]
    Coordinator(coordinator::CoordinatorOptions),
    /// Run one worker in this process.
    #[command(after_help = WORKER_EXAMPLES)]
    Worker(process::WorkerOptions),
    /// Start a whole run on this host, with a process for each server and worker.
    #[command(after_help = LAUNCH_EXAMPLES)]
    Launch(launch::LaunchOptions),
    /// Show the state of a run: its nodes, which server holds which shards, slow workers, and
    /// time-outs.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(status::StatusOptions),
    /// Make tokens, by which the processes of a run prove who they are.
    #[command(subcommand, after_help = TOKEN_EXAMPLES)]
    Token(security::TokenCommand),
    /// Print the rows of a table as they change, while the run goes on.
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(tail::TailOptions),
    /// Replay recordings, and check that each node sends the same bytes again.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(replay::ReplayOptions),
    /// Benchmark this machine, and Slackwater beside it.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The second process of a benchmark. `bench` starts it; do not start it by hand.
    #[command(subcommand, hide = true)]
    BenchPeer(bench::BenchPeer),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if is_expelled(&error) { ExitCode::from(EXPELLED_STATUS) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether the run has expelled this process, so that `launch` replaces it.
fn is_expelled(error: &anyhow::Error) -> bool {
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
    // A process that others depend on logs what it does; the other commands log warnings only.
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
        Command::Token(command) => security::run(&command),
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
