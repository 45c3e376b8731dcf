//! The coordinator's part of a checkpoint: a thread begins checkpoints, publishes those that
//! servers have written, and removes old ones.

use super::{CheckpointSettings, leases_entry, spec_entry};
use coordinator::{CheckpointOutcome, Coordinator, CoordinatorInput, Resume, WrittenCheckpoint};
use serde_json::Value;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;
use store::{
    CheckpointName, CheckpointShard, Manifest, Positions, ResidualsEntry, RowNumbers, ShardEntry, Store, StoreError,
    TableEntry, Writing,
};
use types::{NumberType, TableSpec, Time};
use wire::Outbox;

/// What the thread is asked to do.
enum PublisherTask {
    Begin,
    Publish(Box<WrittenCheckpoint>),
    Abandon,
}

/// What the thread has done.
enum PublisherEvent {
    Begun(String),
    Published { name: String, clock: u64, bytes: u64 },
    Abandoned,
    Failed(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The thread is at it.
    Working,
    /// The servers are.
    Gathering,
}

/// Begins and publishes the checkpoints of a run.
pub(crate) struct CheckpointPublisher {
    settings: CheckpointSettings,
    tasks: Option<Sender<PublisherTask>>,
    events: Receiver<PublisherEvent>,
    thread: Option<JoinHandle<()>>,
    stage: Stage,
    /// When the next one is due.
    due: Instant,
    /// Whether the machine has been told that it waits for a last one.
    told_of_last: bool,
}

impl CheckpointPublisher {
    /// Starts the thread. The checkpoint that the run came from stays, for it has tables that may
    /// yet be asked for. Where the run `is_new`, half-written checkpoints are removed.
    pub fn start(settings: CheckpointSettings, came_from: Option<&Resume>, is_new: bool) -> std::io::Result<Self> {
        let came_from = came_from.and_then(|resume| resume.name.parse().ok());
        let (tasks, to_do) = channel();
        let (finish, events) = channel();
        let of_thread = settings.clone();
        let thread = std::thread::Builder::new().name("checkpoints".to_owned());
        let thread = thread.spawn(move || do_tasks(&of_thread, (came_from, is_new), &to_do, &finish))?;
        let due = Instant::now() + settings.every;
        Ok(Self {
            settings,
            tasks: Some(tasks),
            events,
            thread: Some(thread),
            stage: Stage::Idle,
            due,
            told_of_last: false,
        })
    }

    fn give(&mut self, task: PublisherTask) {
        self.stage = Stage::Working;
        self.tasks.as_ref().map(|tasks| tasks.send(task));
    }

    /// Does what is to be done now. What the machine is told is returned, for the record.
    pub fn turn(&mut self, now: Time, machine: &mut Coordinator, out: &mut Outbox) -> Vec<CoordinatorInput> {
        let mut told = Vec::new();
        if self.settings.last && !std::mem::replace(&mut self.told_of_last, true) {
            told.push(CoordinatorInput::LastCheckpoint(true));
            machine.last_checkpoint(true);
        }
        let over = machine.awaits_last_checkpoint();
        while let Ok(event) = self.events.try_recv() {
            match event {
                PublisherEvent::Begun(name) => {
                    self.stage = Stage::Gathering;
                    let input = CoordinatorInput::Checkpoint(now, self.settings.location.clone(), name);
                    input.clone().apply(machine, out);
                    told.push(input);
                }
                PublisherEvent::Failed(reason) if over => {
                    self.finished(PublisherEvent::Failed(reason), machine);
                    told.push(CoordinatorInput::LastCheckpoint(false));
                    machine.last_checkpoint(false);
                }
                event @ (PublisherEvent::Published { .. } | PublisherEvent::Abandoned | PublisherEvent::Failed(_)) => {
                    self.finished(event, machine);
                }
            }
        }
        self.gather(machine);
        let due = Instant::now() >= self.due || machine.awaits_last_checkpoint();
        if self.stage == Stage::Idle && due && machine.may_checkpoint() {
            self.due = Instant::now() + self.settings.every;
            self.give(PublisherTask::Begin);
        }
        told
    }

    /// Takes what has come of a checkpoint that servers are at.
    fn gather(&mut self, machine: &mut Coordinator) {
        match machine.take_checkpoint_end() {
            None => {}
            Some(CheckpointOutcome::Whole(gathered)) => self.give(PublisherTask::Publish(Box::new(gathered))),
            Some(CheckpointOutcome::Missed { reason }) => {
                tracing::debug!("a checkpoint is tried again: {reason}");
                self.due = Instant::now();
                self.give(PublisherTask::Abandon);
            }
            Some(CheckpointOutcome::Failed { reason }) => {
                Self::say_none(machine, &reason);
                self.give(PublisherTask::Abandon);
            }
        }
    }

    fn say_none(machine: &Coordinator, reason: &str) {
        match machine.is_ending() {
            true => tracing::error!("NO LAST CHECKPOINT: {reason}. The run ends without it; those before are there"),
            false => tracing::error!("NO CHECKPOINT: {reason}. The run goes on without it, and tries again"),
        }
    }

    fn finished(&mut self, event: PublisherEvent, machine: &Coordinator) {
        self.stage = Stage::Idle;
        match event {
            PublisherEvent::Published { name, clock, bytes } => {
                tracing::info!(clock, bytes, location = self.settings.location, "{name} is there");
            }
            PublisherEvent::Failed(reason) => Self::say_none(machine, &reason),
            PublisherEvent::Abandoned | PublisherEvent::Begun(_) => {}
        }
    }

    /// The run is over: what can be published still is, and waited for.
    pub fn finish(mut self, machine: &mut Coordinator) {
        self.gather(machine);
        if machine.is_checkpointing() {
            tracing::info!("the run ended before the checkpoint that was under way");
            self.give(PublisherTask::Abandon);
        }
        drop(self.tasks.take());
        while let Ok(event) = self.events.recv() {
            if let PublisherEvent::Begun(_) = event {
                // Its folder is removed when the next run begins.
                continue;
            }
            self.finished(event, machine);
        }
        self.thread.take().map(JoinHandle::join);
    }
}

fn do_tasks(
    settings: &CheckpointSettings,
    (came_from, is_new): (Option<CheckpointName>, bool),
    to_do: &Receiver<PublisherTask>,
    finish: &Sender<PublisherEvent>,
) {
    // Nobody else makes checkpoints here: what is half-written was left by somebody who was killed.
    // But a leader before this one may be about to publish its last.
    let removed = |store: Store| if is_new { store.remove_unfinished().map(drop) } else { Ok(()) };
    if let Err(error) = Store::open(&settings.location).and_then(removed) {
        tracing::warn!(%error, "what a run before has left half-written could not be removed");
    }
    let mut writing: Option<Writing> = None;
    for task in to_do {
        let event = match task {
            PublisherTask::Begin => {
                match Store::open(&settings.location).and_then(|store| store.begin(&settings.job)) {
                    Ok(begun) => {
                        let name = begun.name().to_string();
                        writing = Some(begun);
                        PublisherEvent::Begun(name)
                    }
                    Err(error) => PublisherEvent::Failed(error.to_string()),
                }
            }
            PublisherTask::Publish(gathered) => {
                let Some(writing) = writing.take() else { continue };
                let published = publish(settings, &writing, &gathered, came_from);
                if published.is_err() {
                    writing.abandon().ok();
                }
                published.unwrap_or_else(PublisherEvent::Failed)
            }
            PublisherTask::Abandon => {
                writing.take().map(Writing::abandon);
                PublisherEvent::Abandoned
            }
        };
        if finish.send(event).is_err() {
            return;
        }
    }
}

/// Writes the manifest, and removes what is too old.
fn publish(
    settings: &CheckpointSettings,
    writing: &Writing,
    gathered: &WrittenCheckpoint,
    came_from: Option<CheckpointName>,
) -> Result<PublisherEvent, String> {
    let WrittenCheckpoint { name, clock, shards, tables, leases, residuals, .. } = gathered;
    let words = |error: StoreError| error.to_string();
    let tables = tables.iter().map(|(spec, entries)| table_entry(writing, *shards, spec, entries));
    let tables = tables.collect::<Result<Vec<_>, String>>()?;
    let (job, leases) = (settings.job.clone(), leases_entry(leases));
    let residuals = residuals.iter().map(|entry| serde_json::from_str(entry).map_err(|error| error.to_string()));
    let residuals = residuals.collect::<Result<Vec<ResidualsEntry>, _>>()?;
    let manifest = Manifest { job, clock: clock.0, shards: *shards, tables, leases, residuals };
    writing.publish(&manifest).map_err(words)?;
    let bytes = manifest.files().map(|(file, _)| file.bytes).sum();
    // It is there, whatever becomes of those before it.
    if let Err(error) = Store::open(&settings.location).and_then(|store| store.prune_sparing(settings.keep, came_from))
    {
        tracing::warn!(%error, "old checkpoints could not be removed");
    }
    Ok(PublisherEvent::Published { name: name.clone(), clock: clock.0, bytes })
}

/// What the manifest says of a table. Every table has all shards there: of those that a small one
/// has not, nothing is kept.
fn table_entry(writing: &Writing, shards: u32, spec: &TableSpec, entries: &[String]) -> Result<TableEntry, String> {
    let (mut stride, mut written) = (u64::from(spec.width), Vec::new());
    for entry in entries {
        let entry: Value = serde_json::from_str(entry).map_err(|error| error.to_string())?;
        stride = entry["stride"].as_u64().unwrap_or(stride);
        let shard: ShardEntry = serde_json::from_value(entry["shard"].clone()).map_err(|error| error.to_string())?;
        written.push(shard);
    }
    for index in written.len() as u32..shards {
        let rows = match spec.number {
            NumberType::F32 => RowNumbers::F32([][..].into()),
            NumberType::F64 => RowNumbers::F64([][..].into()),
            NumberType::I64 => RowNumbers::I64([][..].into()),
        };
        let positions = Positions::Run { first: 0, count: 0 };
        let (table, stride, metadata) = (spec.name[..].into(), stride as usize, [][..].into());
        let nothing = CheckpointShard { table, index, positions, stride, rows, metadata };
        written.push(writing.shard(&nothing).map_err(|error| error.to_string())?);
    }
    let (name, number) = (spec.name.clone(), spec.number);
    Ok(TableEntry { name, spec: spec_entry(spec), number, stride, shards: written })
}
