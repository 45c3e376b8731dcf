//! The command `slackwater`.

mod bench;
#[cfg_attr(not(test), expect(dead_code, reason = "parts of the demonstration; no command drives them yet"))]
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
    /// Slackwater over TCP between two processes, beside raw TCP in the same run.
    Wire(bench::wire::Options),
    /// Slackwater in one process, beside copying memory in the same run.
    Embedded(bench::embedded::Options),
    /// How cost grows with rows, connections, shards and the size of parts.
    Scale(bench::scale::Options),
}

#[derive(Subcommand)]
enum BenchPeer {
    /// Serves `bench wire`.
    Server(bench::server::Options),
    /// Answers `bench raw`.
    Raw {
        /// Where the measuring process listens.
        #[arg(long)]
        connect: SocketAddr,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Bench(Bench::Raw(options)) => bench::raw::run(&options),
        Command::Bench(Bench::Wire(options)) => bench::wire::run(&options),
        Command::Bench(Bench::Embedded(options)) => bench::embedded::run(&options),
        Command::Bench(Bench::Scale(options)) => bench::scale::run(&options),
        Command::BenchPeer(BenchPeer::Server(options)) => bench::server::serve(&options),
        Command::BenchPeer(BenchPeer::Raw { connect }) => bench::peer::serve(connect),
    }
}
