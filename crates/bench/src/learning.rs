//! Shared by the benchmarks that train: temporary files, a reader, and logistic regression in one
//! process.

use std::path::{Path, PathBuf};

use anyhow::Context;
use apps::logistic::Logistic;
use apps::train::{Go, Rule, Training, train};
use data::{DataReader, Format, Labels, ReaderSettings};
use slackwater::policy::Codecs;
use slackwater::{Consistency, RunSize, Session};

/// α and β of ftrl.
pub(crate) const RATE: f64 = 0.1;
pub(crate) const BETA: f64 = 1.0;

/// A temporary folder for the files of one run. Dropping it removes the folder and its files.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder, empty.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::named("bench")
    }

    /// Makes another folder than those with other names, empty.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("slackwater-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Opens LibSVM text of two classes, to read in minibatches of `minibatch_rows` rows.
pub(crate) fn open(file: &Path, minibatch_rows: usize) -> anyhow::Result<DataReader> {
    let settings = ReaderSettings { minibatch_rows, ..ReaderSettings::new(Format::LibSvm, Labels::Binary) };
    Ok(DataReader::open(&[file.to_str().context("the path of the data is not UTF-8")?], settings)?)
}

/// Training by ftrl without penalties, at slack 3.
pub(crate) fn training(bias: bool) -> Training {
    Training {
        rule: Rule::Ftrl { rate: RATE, beta: BETA },
        l1: 0.0,
        consistency: Consistency::slack(3),
        bias,
        codecs: Codecs::default(),
    }
}

/// Learns from all rows with `workers` workers and one server, in this process.
pub(crate) fn embedded(reader: &DataReader, workers: u32) -> anyhow::Result<()> {
    let sessions = Session::embedded(RunSize { servers: 1, workers })?;
    let training = training(false);
    let work = |session: Session| -> anyhow::Result<()> {
        let share = reader.for_worker(session.rank(), workers)?;
        train(&session, &Logistic { l2: 0.0 }, &training, None, &share, |_| Go::On)?;
        Ok(session.close()?)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| work(session))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
