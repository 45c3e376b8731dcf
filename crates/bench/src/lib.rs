//! Benchmarks: what Slackwater does, printed beside what the machine itself can do, or beside a
//! peer.
//!
//! `slackwater bench` is [`Bench`] on the command line and a call of [`run`]. Some benchmarks start
//! this program again as another process; what that process does is [`BenchPeer`].

mod bytes;
mod chaos;
mod clicks;
mod cluster;
mod codec;
mod cold;
mod core;
mod deleted;
mod embedded;
mod learning;
mod lists;
mod logistic;
mod measure;
mod peer;
mod raw;
mod scale;
mod server;
mod wire;

use std::net::SocketAddr;

pub use bytes::BytesBench;
pub use chaos::{ChaosBench, ChaosWorker};
use clap::Subcommand;
pub use cluster::ClusterBench;
pub use codec::CodecBench;
pub use embedded::EmbeddedBench;
pub use logistic::LogisticBench;
pub use raw::RawBench;
pub use scale::ScaleBench;
pub use server::BenchServer;
pub use wire::WireBench;

/// A benchmark and its settings.
#[derive(Subcommand)]
pub enum Bench {
    /// What this machine itself can do: loopback TCP between two processes, and copying memory.
    Raw(RawBench),
    /// Slackwater between two processes, over TCP beside raw TCP and through shared memory beside
    /// copying memory.
    Wire(WireBench),
    /// Slackwater in one process, beside copying memory in the same run.
    Embedded(EmbeddedBench),
    /// How cost grows with rows, connections, shards and the size of parts, and that of training
    /// with workers, minibatches and features.
    Scale(ScaleBench),
    /// Logistic regression from text, beside a plain loop written by hand, and Vowpal Wabbit where
    /// it is installed.
    Logistic(LogisticBench),
    /// The same training with plain messages and with shrunk ones: bytes each way, and what was
    /// learnt.
    Bytes(BytesBench),
    /// What each codec saves, loses and costs on one core, beside copying memory in the same run.
    Codec(CodecBench),
    /// What replicas cost: pushes to servers that hold everything twice, beside servers that hold
    /// it once.
    Cluster(ClusterBench),
    /// Real processes that are killed and stopped at random, while every push is accounted for.
    Chaos(ChaosBench),
}

/// The other process of a benchmark.
#[derive(Subcommand)]
pub enum BenchPeer {
    /// Serves `bench wire`.
    Server(BenchServer),
    /// Pushes for `bench chaos`.
    Chaos(ChaosWorker),
    /// Answers `bench raw`.
    Raw {
        /// Where the measuring process listens.
        #[arg(long)]
        connect: SocketAddr,
        /// The core to stay on.
        #[arg(long)]
        core: Option<usize>,
    },
}

/// Runs a benchmark and prints its figures.
pub fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Raw(options) => raw::run(options),
        Bench::Wire(options) => wire::run(options),
        Bench::Embedded(options) => embedded::run(options),
        Bench::Scale(options) => scale::run(options),
        Bench::Logistic(options) => logistic::run(options),
        Bench::Bytes(options) => bytes::run(options),
        Bench::Codec(options) => codec::run(options),
        Bench::Cluster(options) => cluster::run(options),
        Bench::Chaos(options) => chaos::run(options),
    }
}

/// Does what the other process of a benchmark does, until the benchmark is done with it.
pub fn run_peer(peer: &BenchPeer) -> anyhow::Result<()> {
    match peer {
        BenchPeer::Server(options) => server::serve(options),
        BenchPeer::Chaos(options) => chaos::work(options),
        BenchPeer::Raw { connect, core } => {
            core.iter().copied().for_each(self::core::stay_on);
            peer::serve(*connect)
        }
    }
}
