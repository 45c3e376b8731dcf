//! The benchmarks of the command `slackwater bench`. Most print their figures beside a reference
//! that is measured in the same run: the machine itself, or another program.
//!
//! `slackwater bench` is [`Bench`] on the command line and a call of [`run`]. Some benchmarks start
//! this program again as another process; [`BenchPeer`] lists what such a process does.

mod bytes;
mod chaos;
mod clicks;
mod cluster;
mod codec;
mod cold;
mod core;
mod deleted;
mod embedded;
mod large;
mod learning;
mod lists;
mod logistic;
mod measure;
mod peer;
mod raw;
mod resident;
mod scale;
mod server;
mod siege;
mod wire;

use std::net::SocketAddr;

pub use bytes::BytesBench;
pub use chaos::{ChaosBench, ChaosWorker};
use clap::Subcommand;
pub use cluster::ClusterBench;
pub use codec::CodecBench;
pub use embedded::EmbeddedBench;
pub use large::LargeBench;
pub use logistic::LogisticBench;
pub use raw::RawBench;
pub use scale::ScaleBench;
pub use server::BenchServer;
pub use siege::{SiegeAttacker, SiegeBench, SiegeSpinner};
pub use wire::WireBench;

/// A benchmark and its settings.
#[derive(Subcommand)]
pub enum Bench {
    /// The machine without Slackwater: loopback TCP between two processes, and copying memory.
    Raw(RawBench),
    /// Slackwater between two processes: over TCP beside raw TCP, and through shared memory beside
    /// copying memory.
    Wire(WireBench),
    /// Slackwater in one process, beside copying memory in the same run.
    Embedded(EmbeddedBench),
    /// How cost grows with rows, connections, shards and the size of parts. For training: with
    /// workers, minibatches and features.
    Scale(ScaleBench),
    /// Logistic regression from text, beside a hand-written loop, and beside Vowpal Wabbit where it
    /// is installed.
    Logistic(LogisticBench),
    /// The same training without and with codecs: bytes each way, and what the model has learnt.
    Bytes(BytesBench),
    /// What each codec saves, loses and costs on one core, beside copying memory in the same run.
    Codec(CodecBench),
    /// What replicas and checkpoints cost, and how long a run needs when a server joins or is lost.
    Cluster(ClusterBench),
    /// Fault injection: kills, stops, starves and cuts off real processes, the coordinator too, at
    /// random, and accounts for every push.
    Chaos(ChaosBench),
    /// A secured run under attack: by strangers, and by holders of a token of each role. Accounts
    /// for every push, and compares throughput to that beside a process that only spins.
    Siege(SiegeBench),
    /// One large shard that is made, checkpointed, restored and backfilled while a worker pushes:
    /// the longest pause of a push, and its rate over the undisturbed rate
    Large(LargeBench),
}

/// What the other process of a benchmark does. Benchmarks start it; it is not for users.
#[derive(Subcommand)]
pub enum BenchPeer {
    /// Servers for `bench wire` and `bench scale`.
    Server(BenchServer),
    /// A worker that pushes for `bench chaos`.
    Chaos(ChaosWorker),
    /// A process that keeps a core busy for `bench chaos`.
    Busy,
    /// The attacker of `bench siege`.
    Siege(SiegeAttacker),
    /// A process that takes as much of the processors as an attacker, for `bench siege`.
    Spin(SiegeSpinner),
    /// The other end of the connection of `bench raw`.
    Raw {
        /// The address at which the measuring process listens.
        #[arg(long)]
        connect: SocketAddr,
        /// The core that the process is pinned to.
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
        Bench::Siege(options) => siege::run(options),
        Bench::Large(options) => large::run(options),
    }
}

/// Runs the other process of a benchmark until the benchmark ends it.
pub fn run_peer(peer: &BenchPeer) -> anyhow::Result<()> {
    match peer {
        BenchPeer::Server(options) => server::serve(options),
        BenchPeer::Chaos(options) => chaos::work(options),
        BenchPeer::Busy => {
            chaos::keep_busy();
            Ok(())
        }
        BenchPeer::Siege(options) => siege::attack(options),
        BenchPeer::Spin(options) => {
            siege::spin(options);
            Ok(())
        }
        BenchPeer::Raw { connect, core } => {
            core.iter().copied().for_each(self::core::stay_on);
            peer::serve(*connect)
        }
    }
}
