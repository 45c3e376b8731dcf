//! A server's part of a checkpoint: a thread writes copies of its shards, and reads the shards that
//! it restores. For a worker the thread writes what its codecs have still to send.

use super::{image_of, shard_of};
use shard::{ResidualRows, Restored, ShardImage};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use store::{CheckpointName, Opened, ResidualBytes, Store, Writing};
use types::{Clock, ShardId, TableId, TableSpec};
use wire::{Control, Field, Reader};
use worker::SavedResiduals;

/// What the thread is asked to do.
enum WriterTask {
    /// From now on copies belong to this checkpoint.
    Join {
        number: u64,
        location: String,
        name: String,
    },
    Write(Box<ShardImage>),
    WriteResiduals(Box<SavedResiduals>),
    Read(Box<TableToRestore>),
}

/// A table of a checkpoint that is to be read.
struct TableToRestore {
    table: TableId,
    spec: TableSpec,
    clock: Clock,
    location: String,
    name: String,
    shards: Vec<ShardId>,
}

/// What the thread has done.
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
pub(crate) enum WriterEvent {
    /// A part of a checkpoint is written, or is not: what the coordinator is told.
    Answer { number: u64, answer: Control },
    /// A table is read, for the machine.
    Restored(Box<Restored>),
    /// A table cannot be read.
    NotRestored { table: TableId, problem: String },
    /// Nobody has to be told.
    Nothing,
}

/// Writes and reads for one server, or writes for one worker.
#[derive(Default)]
pub(crate) struct CheckpointWriter {
    thread: Option<(Sender<WriterTask>, Receiver<WriterEvent>, JoinHandle<()>)>,
    /// Asked for and not finished.
    open: usize,
    /// The checkpoint it writes for, and what was said of it: said again when it is asked again,
    /// for it may have been lost.
    number: u64,
    /// The same, for the thread: copies for those before it are let go unwritten.
    newest: Arc<AtomicU64>,
    said: Vec<Control>,
    reading: BTreeSet<TableId>,
}

impl CheckpointWriter {
    fn give(&mut self, task: WriterTask) {
        if self.thread.is_none() {
            let (tasks, to_do) = channel();
            let (finish, events) = channel();
            let thread = std::thread::Builder::new().name("checkpoints".to_owned());
            let newest = self.newest.clone();
            match thread.spawn(move || do_tasks(&to_do, &newest, &finish)) {
                Ok(thread) => self.thread = Some((tasks, events, thread)),
                Err(error) => return tracing::error!(%error, "no thread to write checkpoints with"),
            }
        }
        if let Some((tasks, ..)) = &self.thread
            && tasks.send(task).is_ok()
        {
            self.open += 1;
        }
    }

    /// The coordinator wants a checkpoint. Returns what is to be said of it again.
    pub fn asked(&mut self, number: u64, location: &str, name: &str) -> Vec<Control> {
        if number > self.number {
            (self.number, self.said) = (number, Vec::new());
            self.newest.store(number, Ordering::Relaxed);
            self.give(WriterTask::Join { number, location: location.to_owned(), name: name.to_owned() });
        }
        self.said_of(number)
    }

    /// What was said of a checkpoint, if it is the last.
    pub fn said_of(&self, number: u64) -> Vec<Control> {
        if number == self.number { self.said.clone() } else { Vec::new() }
    }

    /// Reads a table of a checkpoint, of which the server holds these shards.
    pub fn restore(
        &mut self,
        (table, spec): (TableId, &TableSpec),
        clock: Clock,
        (location, name): (&str, &str),
        shards: Vec<ShardId>,
    ) {
        if self.reading.insert(table) {
            let (location, name) = (location.to_owned(), name.to_owned());
            self.give(WriterTask::Read(Box::new(TableToRestore {
                table,
                spec: spec.clone(),
                clock,
                location,
                name,
                shards,
            })));
        }
    }

    /// Writes copies.
    pub fn write(&mut self, images: Vec<ShardImage>) {
        images.into_iter().for_each(|image| self.give(WriterTask::Write(Box::new(image))));
    }

    /// Writes what a worker's codecs have still to send.
    pub fn write_residuals(&mut self, residuals: SavedResiduals) {
        self.give(WriterTask::WriteResiduals(Box::new(residuals)));
    }

    /// The next event.
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

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.open == 0 || self.thread.as_ref().is_none_or(|(_, _, thread)| thread.is_finished())
    }
}

fn do_tasks(to_do: &Receiver<WriterTask>, newest: &AtomicU64, finish: &Sender<WriterEvent>) {
    let mut writing: Option<(u64, Result<Writing, String>)> = None;
    // Residuals of the checkpoint that is read: files that concern several tables.
    let mut residuals: Option<(String, Vec<ResidualBytes>)> = None;
    for task in to_do {
        let is_newest = |number: u64| number >= newest.load(Ordering::Relaxed);
        let event = match task {
            WriterTask::Join { number, location, name } => {
                let joined = name.parse::<CheckpointName>().map_err(|error| error.to_string());
                let joined = joined.and_then(|name| Ok(Store::open(&location).map_err(|e| e.to_string())?.join(name)));
                (writing, residuals) = (Some((number, joined)), None);
                WriterEvent::Nothing
            }
            WriterTask::Write(image) => match &writing {
                Some((number, joined)) if *number == image.checkpoint && is_newest(*number) => {
                    WriterEvent::Answer { number: *number, answer: write(*number, joined, &image) }
                }
                // A copy for a checkpoint that was given up.
                _ => WriterEvent::Nothing,
            },
            WriterTask::WriteResiduals(residuals) => match &writing {
                Some((number, joined)) if *number == residuals.checkpoint && is_newest(*number) => {
                    WriterEvent::Answer { number: *number, answer: write_residuals(*number, joined, &residuals) }
                }
                _ => WriterEvent::Nothing,
            },
            WriterTask::Read(request) => {
                let table = request.table;
                match read(*request, &mut residuals) {
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

/// What is to be said of a copy: that it is written, or why not.
fn write(number: u64, joined: &Result<Writing, String>, image: &ShardImage) -> Control {
    let unwritten = |reason: String| Control::Unwritten { number, reason };
    let writing = match joined {
        Ok(writing) => writing,
        Err(reason) => return unwritten(reason.clone()),
    };
    let Some(shard) = shard_of(image) else {
        return unwritten(format!("the copy of shard {} of '{}' is damaged", image.shard.0, image.name));
    };
    match writing.shard(&shard) {
        Ok(entry) => {
            let entry = serde_json::json!({ "stride": image.stride, "shard": entry }).to_string();
            Control::Written { number, table: image.table, shard: image.shard, entry }
        }
        Err(error) => unwritten(error.to_string()),
    }
}

/// What is to be said of what a worker has still to send.
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

/// The name of a table's residuals in a worker's file.
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
    rows.collect::<Result<_, _>>().map_err(|error| format!("what workers had still to send to '{table}': {error}"))
}

fn read(request: TableToRestore, residuals: &mut Option<(String, Vec<ResidualBytes>)>) -> Result<Restored, String> {
    let TableToRestore { table, spec, clock, location, name, shards } = request;
    let name: CheckpointName = name.parse().map_err(|error: store::NotAName| error.to_string())?;
    let opened = Store::open(&location).and_then(|store| store.open_named(name, None));
    let opened = opened.map_err(|error| error.to_string())?;
    let image = |shard: ShardId| Ok(image_of(opened.shard(&spec.name, shard.0)?, table, clock));
    let images = shards.into_iter().map(image).collect::<Result<Vec<_>, store::StoreError>>();
    let images = images.map_err(|error| error.to_string())?;
    tracing::info!(table = spec.name, shards = images.len(), clock = clock.0, "restored from {name}");
    let residuals = residuals_of(&spec.name, &opened, residuals)?;
    Ok(Restored { table, spec, clock, images, residuals })
}
