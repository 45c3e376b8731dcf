//! What the checkpoint tests share: folders for checkpoints, and runs whose processes are threads.

use slackwater::cluster::{CheckpointSettings, ResumeFrom};
use slackwater::security::Access;
use slackwater::{Connect, Error, RunSize, Serve, Session};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A test that takes longer hangs. None takes a tenth of it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A temporary folder, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("slackwater-checkpoints-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn location(&self) -> String {
        self.0.to_str().expect("text").to_owned()
    }

    /// The checkpoints that are published, oldest first.
    pub fn published(&self) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(&self.0).expect("readable").filter_map(|entry| Some(entry.ok()?.path()));
        let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.join("manifest.json").exists()).collect();
        folders.sort();
        folders
    }

    pub fn resume(&self) -> ResumeFrom {
        ResumeFrom { location: self.location(), job: "counts".into() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The clock that a checkpoint was made at.
pub fn clock_of(checkpoint: &Path) -> u64 {
    let manifest = std::fs::read_to_string(checkpoint.join("manifest.json")).expect("a manifest");
    let (_, rest) = manifest.split_once("\"clock\": ").expect("a clock");
    rest.split_once(',').and_then(|(clock, _)| clock.parse().ok()).expect("a number")
}

/// Runs servers, as two processes would, and workers in threads of this process. Returns what each
/// worker's `work` returned.
pub fn run<R: Send>(
    size: RunSize,
    serve: impl FnOnce(&mut Serve),
    work: impl Fn(&Session) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let coordinator_address = slackwater::cluster::free_address().expect("a free port");
    let connect = Connect {
        join_limit: Duration::from_secs(20),
        access: Access::Insecure,
        ..Connect::to(&coordinator_address.to_string())
    };
    let mut first = Serve { coordinate: Some(size), ..Serve::new(connect.clone()) };
    serve(&mut first);
    let others = Serve { threads: size.servers - 1, ..Serve::new(connect.clone()) };
    std::thread::scope(|scope| {
        let servers = [first, others].map(|serve| scope.spawn(move || serve.run()));
        let worker = || {
            let session = Session::connect(&connect)?;
            let result = work(&session)?;
            session.close()?;
            Ok(result)
        };
        let workers: Vec<_> = (0..size.workers).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        for server in servers {
            server.join().expect("no panic")?;
        }
        results
    })
}

/// Twenty checkpoints a second, none at the end; the last three are kept.
pub fn settings(folder: &Folder) -> CheckpointSettings {
    let every = Duration::from_millis(50);
    let keep = NonZeroUsize::new(3).expect("not 0");
    CheckpointSettings { every, keep, last: false, ..CheckpointSettings::new(&folder.location(), "counts") }
}
