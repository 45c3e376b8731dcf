//! `bench bytes`: real runs with the same seed, with plain messages and with shrunk ones: bytes each way, and what they learnt.

mod runs;
mod sparse;

use slackwater::Codecs;
use std::path::PathBuf;

/// The settings of `bench bytes`.
#[derive(clap::Args)]
pub struct Options {
    /// The folder of data sets: imdb and fashion-mnist.
    #[arg(long, default_value = "data")]
    data: PathBuf,
    #[arg(long, default_value_t = 200)]
    passes: u32,
    #[arg(long, value_delimiter = ',')]
    chain: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    down: Vec<String>,
}

/// The command `bench bytes`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let file = options.data.join("imdb/imdb.train.libsvm.zst");
    let codecs = Codecs::both(options.chain.clone()).down(options.down.clone());
    let s = sparse::solve(&file, codecs, options.passes)?;
    println!(
        "{:?} {:?}: run {:.0} last fifth {:.0} checks {:.0} objective {} nonzeros {}",
        options.chain,
        options.down,
        s.bytes(5),
        s.bytes(1),
        s.checks.both(),
        s.objective,
        s.non_zeros
    );
    Ok(())
}
