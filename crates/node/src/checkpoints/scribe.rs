//! A server's hand: writes copies of its slices, and reads those that it is to hold, on a thread of its own. And a worker's, which writes
//! what its codecs have still to send.

use super::{image_of, shard_of};
use machine::{Image, Owed, OwedRows, Restored};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use store::{CheckpointName, Opened, ResidualBytes, Store, Writing};
use types::{Clock, ShardId, TableId, TableSpec};
use wire::{Control, Field, Reader};

enum Work {
    /// From now on copies belong to this checkpoint.
    Join {
        number: u64,
        location: String,
        name: String,
    },
    Write(Box<Image>),
    WriteOwed(Box<Owed>),
    Read(Box<Wanted>),
}

/// A table of a checkpoint that is to be read.
struct Wanted {
    table: TableId,
    spec: TableSpec,
    clock: Clock,
    location: String,
    name: String,
    slices: Vec<ShardId>,
}

/// Something that the thread is done with.
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
pub(crate) enum Finished {
    /// To be said to the coordinator.
    Say(Control),
    /// To be handed to the machine.
    Restore(Box<Restored>),
}

/// Writes and reads for one server, or writes for one worker.
#[derive(Default)]
pub(crate) struct Scribe {
    thread: Option<(Sender<Work>, Receiver<Finished>, JoinHandle<()>)>,
    /// Asked for and not finished.
    open: usize,
    /// The checkpoint it writes for, and what was said of it: said again when it is asked again, for it may have been lost.
    number: u64,
    /// The same, for the thread: copies for those before it are let go unwritten.
    newest: Arc<AtomicU64>,
    said: Vec<Control>,
    reading: BTreeSet<TableId>,
}

impl Scribe {
    fn give(&mut self, work: Work) {
        if self.thread.is_none() {
            let (works, to_do) = channel();
            let (finish, finished) = channel();
            let thread = std::thread::Builder::new().name("checkpoints".to_owned());
            let newest = self.newest.clone();
            match thread.spawn(move || work_off(&to_do, &newest, &finish)) {
                Ok(thread) => self.thread = Some((works, finished, thread)),
                Err(error) => return tracing::error!(%error, "no thread to write checkpoints with"),
            }
        }
        if let Some((works, ..)) = &self.thread
            && works.send(work).is_ok()
        {
            self.open += 1;
        }
    }

    /// The coordinator wants a checkpoint. Returns what is to be said of it again.
    pub fn asked(&mut self, number: u64, location: &str, name: &str) -> Vec<Control> {
        if number > self.number {
            (self.number, self.said) = (number, Vec::new());
            self.newest.store(number, Ordering::Relaxed);
            self.give(Work::Join { number, location: location.to_owned(), name: name.to_owned() });
        }
        self.said_of(number)
    }

    /// What was said of a checkpoint, if it is the last.
    pub fn said_of(&self, number: u64) -> Vec<Control> {
        if number == self.number { self.said.clone() } else { Vec::new() }
    }

    /// A table is to be restored, of which the server holds these slices.
    pub fn wanted(
        &mut self,
        (table, spec): (TableId, &TableSpec),
        clock: Clock,
        (location, name): (&str, &str),
        slices: Vec<ShardId>,
    ) {
        if self.reading.insert(table) {
            let (location, name) = (location.to_owned(), name.to_owned());
            self.give(Work::Read(Box::new(Wanted { table, spec: spec.clone(), clock, location, name, slices })));
        }
    }

    /// Writes copies.
    pub fn write(&mut self, images: Vec<Image>) {
        images.into_iter().for_each(|image| self.give(Work::Write(Box::new(image))));
    }

    /// Writes what a worker's codecs have still to send.
    pub fn write_owed(&mut self, owed: Owed) {
        self.give(Work::WriteOwed(Box::new(owed)));
    }

    /// The next thing that is done.
    pub fn next(&mut self) -> Option<Finished> {
        let (_, finished, _) = self.thread.as_ref().filter(|_| self.open > 0)?;
        let finished = finished.try_recv().ok()?;
        self.open -= 1;
        match &finished {
            Finished::Say(
                control @ (Control::Written { number, .. }
                | Control::Unwritten { number, .. }
                | Control::Owes { number, .. }),
            ) if *number == self.number => {
                self.said.push(control.clone());
            }
            Finished::Restore(restored) => {
                self.reading.remove(&restored.table);
            }
            Finished::Say(Control::TableAdded { table, .. }) => {
                self.reading.remove(table);
            }
            Finished::Say(_) => {}
        }
        Some(finished)
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.open == 0 || self.thread.as_ref().is_none_or(|(_, _, thread)| thread.is_finished())
    }
}

fn work_off(to_do: &Receiver<Work>, newest: &AtomicU64, finish: &Sender<Finished>) {
    let mut writing: Option<(u64, Result<Writing, String>)> = None;
    // What workers owed at the checkpoint that is read: files that concern several tables.
    let mut residuals: Option<(String, Vec<ResidualBytes>)> = None;
    for work in to_do {
        let is_newest = |number: u64| number >= newest.load(Ordering::Relaxed);
        let finished = match work {
            Work::Join { number, location, name } => {
                let joined = name.parse::<CheckpointName>().map_err(|error| error.to_string());
                let joined = joined.and_then(|name| Ok(Store::open(&location).map_err(|e| e.to_string())?.join(name)));
                (writing, residuals) = (Some((number, joined)), None);
                // Nobody has to be told.
                Finished::Say(Control::Beat)
            }
            Work::Write(image) => Finished::Say(match &writing {
                Some((number, joined)) if *number == image.checkpoint && is_newest(*number) => {
                    write(*number, joined, &image)
                }
                // A copy for a checkpoint that was given up.
                _ => Control::Beat,
            }),
            Work::WriteOwed(owed) => Finished::Say(match &writing {
                Some((number, joined)) if *number == owed.checkpoint && is_newest(*number) => {
                    write_owed(*number, joined, &owed)
                }
                _ => Control::Beat,
            }),
            Work::Read(wanted) => {
                let table = wanted.table;
                match read(*wanted, &mut residuals) {
                    Ok(restored) => Finished::Restore(Box::new(restored)),
                    Err(problem) => Finished::Say(Control::TableAdded { table, problem: Some(problem) }),
                }
            }
        };
        if finish.send(finished).is_err() {
            return;
        }
    }
}

/// What is to be said of a copy: that it is written, or why not.
fn write(number: u64, joined: &Result<Writing, String>, image: &Image) -> Control {
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
fn write_owed(number: u64, joined: &Result<Writing, String>, owed: &Owed) -> Control {
    let tables: Vec<(String, Vec<u8>)> = owed
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
        let entry = writing.residuals(&owed.worker.0.to_string(), &tables).map_err(|error| error.to_string())?;
        serde_json::to_string(&entry).map_err(|error| error.to_string())
    });
    match written {
        Ok(entry) => Control::Owes { number, entry: Some(entry) },
        Err(reason) => Control::Unwritten { number, reason },
    }
}

/// What the rows of a table that are owed are called in a worker's file.
fn tensor_of(table: &str) -> String {
    format!("table {table}")
}

/// What workers owed to a table.
fn owed_to(
    table: &str,
    opened: &Opened,
    known: &mut Option<(String, Vec<ResidualBytes>)>,
) -> Result<Vec<OwedRows>, String> {
    let name = opened.name().to_string();
    if known.as_ref().is_none_or(|(of, _)| *of != name) {
        let entries = opened.manifest().residuals.iter();
        let files = entries.map(|entry| opened.residuals(&entry.worker)).collect::<Result<_, _>>();
        *known = Some((name, files.map_err(|error| error.to_string())?));
    }
    let files = known.iter().flat_map(|(_, files)| files);
    let rows = files.filter_map(|file| file.get(&tensor_of(table))).map(|bytes| OwedRows::get(&mut Reader(bytes)));
    rows.collect::<Result<_, _>>().map_err(|error| format!("what workers had still to send to '{table}': {error}"))
}

fn read(wanted: Wanted, residuals: &mut Option<(String, Vec<ResidualBytes>)>) -> Result<Restored, String> {
    let Wanted { table, spec, clock, location, name, slices } = wanted;
    let name: CheckpointName = name.parse().map_err(|error: store::NotAName| error.to_string())?;
    let opened = Store::open(&location).and_then(|store| store.open_named(name, None));
    let opened = opened.map_err(|error| error.to_string())?;
    let image = |slice: ShardId| Ok(image_of(opened.shard(&spec.name, slice.0)?, table, clock));
    let images = slices.into_iter().map(image).collect::<Result<Vec<_>, store::StoreError>>();
    let images = images.map_err(|error| error.to_string())?;
    tracing::info!(table = spec.name, slices = images.len(), clock = clock.0, "restored from {name}");
    let owed = owed_to(&spec.name, &opened, residuals)?;
    Ok(Restored { table, spec, clock, images, owed })
}
