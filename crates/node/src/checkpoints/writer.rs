//! A server's or worker's part of a checkpoint. For a server a thread writes copies of its shards,
//! and reads the shards that it restores. For a worker the thread writes its codecs' residuals.

use super::{image_of, shard_of};
use shard::{Discarded, ResidualRows, Restored, ShardImage};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use store::{AllowedLocations, CheckpointName, Opened, ResidualBytes, Store, Writing};
use types::{Clock, ShardId, TableId, TableSpec};
use wire::{Control, Field, Reader};
use worker::SavedResiduals;

/// A task for the thread.
enum WriterTask {
    /// From now on the thread writes for this checkpoint.
    Join {
        number: u64,
        location: String,
        name: String,
    },
    Write(Box<ShardImage>),
    WriteResiduals(Box<SavedResiduals>),
    Read(Box<TableToRestore>),
    /// Frees memory, which may take long.
    Free(Vec<Discarded>),
}

/// A table to read from a checkpoint.
struct TableToRestore {
    table: TableId,
    spec: TableSpec,
    clock: Clock,
    location: String,
    name: String,
    shards: Vec<ShardId>,
}

/// The outcome of a task.
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
pub(crate) enum WriterEvent {
    /// A part of a checkpoint was written, or could not be: the message for the coordinator.
    Answer { number: u64, answer: Control },
    /// A table was read, for the machine to restore.
    Restored(Box<Restored>),
    /// A table could not be read.
    NotRestored { table: TableId, problem: String },
    /// A task is done that has no outcome to report.
    Nothing,
}

/// Writes and reads for one server, or writes for one worker.
pub(crate) struct CheckpointWriter {
    /// Where it may write and read, whatever the coordinator says.
    allowed: AllowedLocations,
    thread: Option<(Sender<WriterTask>, Receiver<WriterEvent>, JoinHandle<()>)>,
    /// Tasks that are not finished.
    open: usize,
    /// The checkpoint that it writes for.
    number: u64,
    /// The same number, for the thread: it drops copies for earlier checkpoints.
    newest: Arc<AtomicU64>,
    /// The messages about that checkpoint, to be sent again if the coordinator asks again: they may
    /// have been lost.
    said: Vec<Control>,
    /// Tables that are being read.
    reading: BTreeSet<TableId>,
}

impl CheckpointWriter {
    /// A writer that uses these locations only.
    pub fn new(allowed: AllowedLocations) -> Self {
        Self {
            allowed,
            thread: None,
            open: 0,
            number: 0,
            newest: Arc::default(),
            said: Vec::new(),
            reading: BTreeSet::new(),
        }
    }

    fn give(&mut self, task: WriterTask) {
        if self.thread.is_none() {
            let (tasks, to_do) = channel();
            let (finish, events) = channel();
            let thread = std::thread::Builder::new().name("checkpoints".to_owned());
            let newest = self.newest.clone();
            let allowed = self.allowed.clone();
            match thread.spawn(move || do_tasks(&allowed, &to_do, &newest, &finish)) {
                Ok(thread) => self.thread = Some((tasks, events, thread)),
                Err(error) => {
                    return tracing::error!(
                        %error,
                        "cannot start the thread that writes checkpoints; raise the thread limit of this process"
                    );
                }
            }
        }
        if let Some((tasks, ..)) = &self.thread
            && tasks.send(task).is_ok()
        {
            self.open += 1;
        }
    }

    /// Takes in that the coordinator asks for a checkpoint. Returns the messages about it that must
    /// be sent again.
    pub fn asked(&mut self, number: u64, location: &str, name: &str) -> Vec<Control> {
        if number > self.number {
            self.number = number;
            self.said = Vec::new();
            self.newest.store(number, Ordering::Relaxed);
            self.give(WriterTask::Join { number, location: location.to_owned(), name: name.to_owned() });
        }
        self.said_of(number)
    }

    /// The messages about a checkpoint so far, if it is the newest.
    pub fn said_of(&self, number: u64) -> Vec<Control> {
        if number == self.number { self.said.clone() } else { Vec::new() }
    }

    /// Reads the given shards of a table from a checkpoint.
    pub fn restore(
        &mut self,
        (table, spec): (TableId, &TableSpec),
        clock: Clock,
        (location, name): (&str, &str),
        shards: Vec<ShardId>,
    ) {
        if self.reading.insert(table) {
            self.give(WriterTask::Read(Box::new(TableToRestore {
                table,
                spec: spec.clone(),
                clock,
                location: location.to_owned(),
                name: name.to_owned(),
                shards,
            })));
        }
    }

    /// Frees memory.
    pub fn free(&mut self, memory: Vec<Discarded>) {
        if !memory.is_empty() {
            self.give(WriterTask::Free(memory));
        }
    }

    /// Writes copies of shards.
    pub fn write(&mut self, images: Vec<ShardImage>) {
        images.into_iter().for_each(|image| self.give(WriterTask::Write(Box::new(image))));
    }

    /// Writes the residuals of a worker's codecs.
    pub fn write_residuals(&mut self, residuals: SavedResiduals) {
        self.give(WriterTask::WriteResiduals(Box::new(residuals)));
    }

    /// The outcome of the next finished task.
    pub fn next(&mut self) -> Option<WriterEvent> {
        let (_, events, _) = self.thread.as_ref().filter(|_| self.open > 0)?;
        let event = events.try_recv().ok()?;
        self.open -= 1;
        match &event {
            WriterEvent::Answer { number, answer } => {
                if *number == self.number {
                    self.said.push(answer.clone());
                }
            }
            WriterEvent::Restored(restored) => {
                self.reading.remove(&restored.table);
            }
            WriterEvent::NotRestored { table, .. } => {
                self.reading.remove(table);
            }
            WriterEvent::Nothing => {}
        }
        Some(event)
    }

    /// Whether no task is under way.
    pub fn is_idle(&self) -> bool {
        self.open == 0 || self.thread.as_ref().is_none_or(|(_, _, thread)| thread.is_finished())
    }
}

fn do_tasks(
    allowed: &AllowedLocations,
    to_do: &Receiver<WriterTask>,
    newest: &AtomicU64,
    finish: &Sender<WriterEvent>,
) {
    let mut writing: Option<(u64, Result<Writing, String>)> = None;
    // The residual files of the checkpoint that is being read. Each holds several tables.
    let mut residuals: Option<(String, Vec<ResidualBytes>)> = None;
    for task in to_do {
        let is_newest = |number: u64| number >= newest.load(Ordering::Relaxed);
        let event = match task {
            WriterTask::Join { number, location, name } => {
                writing = Some((number, join(allowed, &location, &name)));
                residuals = None;
                WriterEvent::Nothing
            }
            WriterTask::Write(image) => match &writing {
                Some((number, joined)) if *number == image.checkpoint && is_newest(*number) => {
                    WriterEvent::Answer { number: *number, answer: write(*number, joined, &image) }
                }
                // The copy is for a checkpoint that was given up.
                _ => WriterEvent::Nothing,
            },
            WriterTask::Free(memory) => {
                drop(memory);
                WriterEvent::Nothing
            }
            WriterTask::WriteResiduals(residuals) => match &writing {
                Some((number, joined)) if *number == residuals.checkpoint && is_newest(*number) => {
                    WriterEvent::Answer { number: *number, answer: write_residuals(*number, joined, &residuals) }
                }
                _ => WriterEvent::Nothing,
            },
            WriterTask::Read(request) => {
                let table = request.table;
                match read(allowed, *request, &mut residuals) {
                    Ok(restored) => WriterEvent::Restored(Box::new(restored)),
                    Err(problem) => WriterEvent::NotRestored { table, problem },
                }
            }
        };
        if finish.send(event).is_err() {
            return;
        }
    }
}

/// Joins a checkpoint that the coordinator has begun.
fn join(allowed: &AllowedLocations, location: &str, name: &str) -> Result<Writing, String> {
    let name: CheckpointName = name.parse().map_err(|error: store::NotAName| error.to_string())?;
    let store = allowed.resolve(location).and_then(|location| Store::open(&location));
    Ok(store.map_err(|error| error.to_string())?.join(name))
}

/// Writes a copy. Returns the message for the coordinator: that it is written, or why not.
fn write(number: u64, joined: &Result<Writing, String>, image: &ShardImage) -> Control {
    let unwritten = |reason: String| Control::Unwritten { number, reason };
    let writing = match joined {
        Ok(writing) => writing,
        Err(reason) => return unwritten(reason.clone()),
    };
    let Some(shard) = shard_of(image) else {
        return unwritten(format!("the copy of shard {} of table '{}' is damaged", image.shard.0, image.name));
    };
    match writing.shard(&shard) {
        Ok(entry) => {
            let entry = serde_json::json!({ "stride": image.stride, "shard": entry }).to_string();
            Control::Written { number, table: image.table, shard: image.shard, entry }
        }
        Err(error) => unwritten(error.to_string()),
    }
}

/// Writes a worker's residuals. Returns the message for the coordinator: that they are written, or
/// why not.
fn write_residuals(number: u64, joined: &Result<Writing, String>, residuals: &SavedResiduals) -> Control {
    let tables: Vec<(String, Vec<u8>)> = residuals
        .tables
        .iter()
        .map(|(table, rows)| {
            let mut bytes = Vec::new();
            rows.put(&mut bytes);
            (tensor_of(table), bytes)
        })
        .collect();
    let tables: Vec<(&str, &[u8])> = tables.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let written = joined.as_ref().map_err(Clone::clone).and_then(|writing| {
        let entry = writing.residuals(&residuals.worker.0.to_string(), &tables).map_err(|error| error.to_string())?;
        serde_json::to_string(&entry).map_err(|error| error.to_string())
    });
    match written {
        Ok(entry) => Control::ResidualsWritten { number, entry: Some(entry) },
        Err(reason) => Control::Unwritten { number, reason },
    }
}

/// The name of a table's residuals within a worker's file.
fn tensor_of(table: &str) -> String {
    format!("table {table}")
}

/// The residuals of all workers for a table.
fn residuals_of(
    table: &str,
    opened: &Opened,
    known: &mut Option<(String, Vec<ResidualBytes>)>,
) -> Result<Vec<ResidualRows>, String> {
    let name = opened.name().to_string();
    if known.as_ref().is_none_or(|(of, _)| *of != name) {
        let entries = opened.manifest().residuals.iter();
        let files = entries.map(|entry| opened.residuals(&entry.worker)).collect::<Result<_, _>>();
        *known = Some((name, files.map_err(|error| error.to_string())?));
    }
    let files = known.iter().flat_map(|(_, files)| files);
    let rows = files.filter_map(|file| file.get(&tensor_of(table))).map(|bytes| ResidualRows::get(&mut Reader(bytes)));
    rows.collect::<Result<_, _>>().map_err(|error| format!("the workers' residuals of table '{table}': {error}"))
}

fn read(
    allowed: &AllowedLocations,
    request: TableToRestore,
    residuals: &mut Option<(String, Vec<ResidualBytes>)>,
) -> Result<Restored, String> {
    let TableToRestore { table, spec, clock, location, name, shards } = request;
    let name: CheckpointName = name.parse().map_err(|error: store::NotAName| error.to_string())?;
    let store = allowed.resolve(&location).and_then(|location| Store::open(&location));
    let opened = store.and_then(|store| store.open_named(name, None));
    let opened = opened.map_err(|error| error.to_string())?;
    let image = |shard: ShardId| Ok(image_of(opened.shard(&spec.name, shard.0)?, table, clock));
    let images = shards.into_iter().map(image).collect::<Result<Vec<_>, store::StoreError>>();
    let images = images.map_err(|error| error.to_string())?;
    tracing::info!(
        table = spec.name,
        shards = images.len(),
        clock = clock.0,
        "restored the table's shards from {name}"
    );
    let residuals = residuals_of(&spec.name, &opened, residuals)?;
    Ok(Restored { table, spec, clock, images, residuals })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use store::CheckpointShard;
    use types::WorkerId;

    fn event(writer: &mut CheckpointWriter) -> WriterEvent {
        let begin = Instant::now();
        loop {
            match writer.next() {
                None | Some(WriterEvent::Nothing) => {}
                Some(event) => return event,
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no event");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A hostile coordinator names places that are not this node's: nothing is written, nothing is
    /// read.
    #[test]
    fn a_frame_does_not_choose_where_a_node_writes_and_reads() {
        let folder = std::env::temp_dir().join(format!("slackwater-writer-{}", std::process::id()));
        let path = |rest: &str| format!("{}/{rest}", folder.display());
        let own = path("own");
        // A whole checkpoint, for the messages that ask to read it.
        let store = Store::open(&path("other")).expect("a folder");
        let writing = store.begin("job").expect("begun");
        let rows = store::RowNumbers::F32([1.0][..].into());
        let positions = store::Positions::Run { first: 0, count: 1 };
        let metadata = [][..].into();
        let shard = CheckpointShard { table: "t".into(), index: 0, positions, stride: 1, rows, metadata };
        let written = writing.shard(&shard).expect("written");
        let spec = TableSpec::dense("t", 1, 1);
        let table = store::TableEntry {
            name: "t".to_owned(),
            spec: super::super::spec_entry(&spec),
            number: spec.number,
            stride: 1,
            shards: vec![written],
        };
        let manifest = store::Manifest { job: "job".to_owned(), shards: 1, tables: vec![table], ..Default::default() };
        writing.publish(&manifest).expect("published");
        let name = writing.name().to_string();
        let residuals = |checkpoint| SavedResiduals { checkpoint, worker: WorkerId(0), tables: Vec::new() };

        let mut writer = CheckpointWriter::new(AllowedLocations::within([&own]));
        let hostile = [path("new"), path("other"), path("own/../new"), "memory:".to_owned(), String::new()];
        for (number, location) in (1..).zip(&hostile) {
            writer.asked(number, location, &name);
            writer.write_residuals(residuals(number));
            let event = event(&mut writer);
            let WriterEvent::Answer { answer: Control::Unwritten { reason, .. }, .. } = event else {
                panic!("written to {location}")
            };
            assert!(reason.contains("may not be used for checkpoints"), "{reason}");
            let table = TableId(number as u32);
            writer.restore((table, &spec), Clock(0), (location, &name), vec![ShardId(0)]);
            let WriterEvent::NotRestored { problem, .. } = self::event(&mut writer) else {
                panic!("read from {location}")
            };
            assert!(problem.contains("may not be used for checkpoints"), "{problem}");
        }
        assert!(!folder.join("new").exists() && !folder.join("own").exists());
        // A name is no way out either.
        writer.asked(90, &own, "../other");
        writer.write_residuals(residuals(90));
        assert!(matches!(event(&mut writer), WriterEvent::Answer { answer: Control::Unwritten { .. }, .. }));
        // What is allowed works.
        writer.asked(91, &own, &name);
        writer.write_residuals(residuals(91));
        assert!(matches!(event(&mut writer), WriterEvent::Answer { answer: Control::ResidualsWritten { .. }, .. }));
        let mut writer = CheckpointWriter::new(AllowedLocations::within([path("other")]));
        writer.restore((TableId(0), &spec), Clock(0), (&path("other"), &name), vec![ShardId(0)]);
        assert!(matches!(event(&mut writer), WriterEvent::Restored(_)));
        std::fs::remove_dir_all(&folder).ok();
    }
}
