//! The command `slackwater`.

mod bench;
mod demo;

use std::net::SocketAddr;

use clap::{Parser, Subcommand};

/// Trains one model on machines that do not keep step.
#[derive(Parser)]
#[command(name = "slackwater", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model twice, in lock-step and with slack, while workers are slowed at random, and show what slack gains.
    Demo(demo::Options),
    /// Measure this machine, and Slackwater against it.
    #[command(subcommand)]
    Bench(Bench),
    /// The other process of a benchmark; started by `bench`, never by hand.
    #[command(subcommand, hide = true)]
    BenchPeer(BenchPeer),
}

#[derive(Subcommand)]
enum Bench {
    /// What this machine itself can do: loopback TCP between two processes, and copying memory.
    Raw(bench::raw::Options),
}

#[derive(Subcommand)]
enum BenchPeer {
    /// Answers `bench raw`.
    Raw {
        /// Where the measuring process listens.
        #[arg(long)]
        connect: SocketAddr,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Bench(Bench::Raw(options)) => bench::raw::run(&options),
        Command::BenchPeer(BenchPeer::Raw { connect }) => bench::peer::serve(connect),
    }
}
