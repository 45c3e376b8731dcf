//! Shared by the tests of this folder: finding the real data sets, and training in a cluster within
//! this process.

use apps::model::{Model, ModelTable};
use apps::program::{Program, Task};
use apps::scaling::Scaling;
use apps::train::{Go, Training, train};
use data::{DataReader, Format, Labels, ReaderSettings};
use slackwater::{Consistency, RunSize, Session};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many workers, and how fresh their reads must be.
pub type Way = (u32, Consistency);

/// The folder of a data set, within the folder that `SLACKWATER_DATA` names. If it is missing,
/// prints that the test is skipped.
pub fn folder(name: &str) -> Option<PathBuf> {
    data::data_set(name).inspect_err(|why| eprintln!("SKIPPED: {why}")).ok()
}

/// Settings for LibSVM text with these labels, read once and in order.
pub fn lib_svm(labels: Labels) -> ReaderSettings {
    ReaderSettings::new(Format::LibSvm, labels)
}

/// Opens one file with these settings.
pub fn open(file: &Path, settings: ReaderSettings) -> DataReader {
    DataReader::open(&[file.to_str().expect("a path in UTF-8")], settings).expect("the data set is there")
}

/// Runs `work` on each worker of a cluster in this process, with the worker's share of the data.
pub fn on_workers<R: Send>(
    reader: &DataReader,
    workers: u32,
    work: impl Fn(&Session, &DataReader) -> R + Sync,
) -> Vec<R> {
    let sessions = Session::embedded(RunSize { servers: 2, workers }).expect("a cluster in this process");
    let run = |session: Session| {
        let share = reader.for_worker(session.rank(), workers).expect("a share of the data");
        let result = work(&session, &share);
        session.barrier().expect("all workers are there");
        session.close().expect("a session ends");
        result
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| run(session))).collect();
        running.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    })
}

/// Trains a program. If `standardise` is given, features are first standardised for that task.
pub fn learn(
    program: &dyn Program,
    training: &Training,
    standardise: Option<Task>,
    reader: &DataReader,
    workers: u32,
) -> Model {
    let models = on_workers(reader, workers, |session, share| {
        let measure = |task| Scaling::measure(session, task, &share.once()).expect("the data can be measured");
        let scaling = standardise.map(measure);
        let trained = train(session, program, training, scaling.as_ref(), share, |_| Go::On).expect("it trains");
        let pull = |(table, shape): (&slackwater::Table<f32>, apps::program::Weights)| {
            let mut pulled = ModelTable::pull(table).expect("the weights can be read");
            if let Some(scaling) = &scaling {
                scaling.unfold(&mut pulled);
            }
            (shape.name.to_owned(), pulled)
        };
        let tables = trained.tables.iter().zip(program.tables()).map(pull).collect();
        Model { tables, ..Model::default() }
    });
    models.into_iter().next().expect("there is a worker")
}

/// A folder for one test's files, which is removed when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder. No other test has the same one, even for the same name.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("slackwater-{name}-{}-{}", own.0, own.1));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Self(folder)
    }

    /// The path of a file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
