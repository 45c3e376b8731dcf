//! The coordinator's part of a checkpoint: a thread begins checkpoints, publishes the manifest when
//! the servers have written all shards, and removes old checkpoints.

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

/// A task for the thread.
enum PublisherTask {
    Begin,
    Publish(Box<WrittenCheckpoint>),
    Abandon,
}

/// The outcome of a task.
enum PublisherEvent {
    Begun(String),
    Published { name: String, clock: u64, bytes: u64 },
    Abandoned,
    Failed(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The thread works on a task.
    Working,
    /// The servers and workers write their parts.
    Gathering,
}

/// Begins and publishes the checkpoints of a run.
pub(crate) struct CheckpointPublisher {
    settings: CheckpointSettings,
    tasks: Option<Sender<PublisherTask>>,
    events: Receiver<PublisherEvent>,
    thread: Option<JoinHandle<()>>,
    stage: Stage,
    /// When the next checkpoint is due.
    due: Instant,
    /// Whether the machine knows that the end of the run waits for a last checkpoint.
    told_of_last: bool,
    /// Why the last checkpoint of the run could not be made, if it could not.
    last_failed: Option<String>,
}

impl CheckpointPublisher {
    /// Starts the thread. It never removes the checkpoint that the run came from: the run may still
    /// restore tables from it. If the run `is_new`, it removes incomplete checkpoints.
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
            last_failed: None,
        })
    }

    fn give(&mut self, task: PublisherTask) {
        self.stage = Stage::Working;
        self.tasks.as_ref().map(|tasks| tasks.send(task));
    }

    /// Handles the thread's events and gives it the next task. Returns the machine's inputs, for
    /// the recording.
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

    /// Takes the outcome of the checkpoint that servers and workers were writing.
    fn gather(&mut self, machine: &mut Coordinator) {
        match machine.take_checkpoint_end() {
            None => {}
            Some(CheckpointOutcome::Whole(gathered)) => self.give(PublisherTask::Publish(Box::new(gathered))),
            Some(CheckpointOutcome::Missed { reason }) => {
                tracing::debug!("a checkpoint missed its clock and is tried again: {reason}");
                self.due = Instant::now();
                self.give(PublisherTask::Abandon);
            }
            Some(CheckpointOutcome::Failed { reason }) => {
                self.say_none(machine, reason);
                self.give(PublisherTask::Abandon);
            }
        }
    }

    fn say_none(&mut self, machine: &Coordinator, reason: String) {
        if machine.is_ending() {
            tracing::error!("NO LAST CHECKPOINT: {reason}. The run ends without it; earlier ones still exist");
            self.last_failed = Some(reason);
        } else {
            tracing::error!("NO CHECKPOINT: {reason}. It is tried again while the run lasts");
        }
    }

    fn finished(&mut self, event: PublisherEvent, machine: &Coordinator) {
        self.stage = Stage::Idle;
        match event {
            PublisherEvent::Published { name, clock, bytes } => {
                tracing::info!(clock, bytes, location = self.settings.location, "published {name}");
                self.last_failed = None;
            }
            PublisherEvent::Failed(reason) => self.say_none(machine, reason),
            PublisherEvent::Abandoned | PublisherEvent::Begun(_) => {}
        }
    }

    /// Ends the thread when the run is over. Waits until a complete checkpoint is published.
    /// Returns why the last checkpoint could not be made, if it could not.
    pub fn finish(mut self, machine: &mut Coordinator) -> Option<String> {
        self.gather(machine);
        if machine.is_checkpointing() {
            tracing::info!("the run ended before its current checkpoint was complete; that one is removed");
            self.give(PublisherTask::Abandon);
        }
        drop(self.tasks.take());
        while let Ok(event) = self.events.recv() {
            if let PublisherEvent::Begun(_) = event {
                // The next run removes its folder.
                continue;
            }
            self.finished(event, machine);
        }
        self.thread.take().map(JoinHandle::join);
        self.last_failed
    }
}

fn do_tasks(
    settings: &CheckpointSettings,
    (came_from, is_new): (Option<CheckpointName>, bool),
    to_do: &Receiver<PublisherTask>,
    finish: &Sender<PublisherEvent>,
) {
    // At the beginning of a run an incomplete checkpoint was left by a run that was killed. Later
    // it may be one that an earlier leader of this run is about to publish.
    let removed = |store: Store| if is_new { store.remove_unfinished().map(drop) } else { Ok(()) };
    if let Err(error) = Store::open(&settings.location).and_then(removed) {
        tracing::warn!(
            location = settings.location, %error,
            "cannot remove incomplete checkpoints of an earlier run; they only take space"
        );
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

/// Writes the manifest, and removes the oldest checkpoints.
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
    let residuals = residuals.iter().map(|entry| serde_json::from_str(entry).map_err(|error| error.to_string()));
    let residuals = residuals.collect::<Result<Vec<ResidualsEntry>, _>>()?;
    let manifest = Manifest {
        job: settings.job.clone(),
        clock: clock.0,
        shards: *shards,
        tables,
        leases: leases_entry(leases),
        residuals,
    };
    writing.publish(&manifest).map_err(words)?;
    let bytes = manifest.files().map(|(file, _)| file.bytes).sum();
    // The checkpoint exists from here on, also if old ones cannot be removed.
    if let Err(error) = Store::open(&settings.location).and_then(|store| store.prune_sparing(settings.keep, came_from))
    {
        tracing::warn!(
            location = settings.location, %error,
            "cannot remove old checkpoints; they only take space, and the next checkpoint tries again"
        );
    }
    Ok(PublisherEvent::Published { name: name.clone(), clock: clock.0, bytes })
}

/// The manifest's entry for a table. It lists all shards of the run: shards that a small table does
/// not have are written empty.
fn table_entry(writing: &Writing, shards: u32, spec: &TableSpec, entries: &[String]) -> Result<TableEntry, String> {
    let mut stride = u64::from(spec.width);
    let mut written = Vec::new();
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
        let empty = CheckpointShard {
            table: spec.name[..].into(),
            index,
            positions: Positions::Run { first: 0, count: 0 },
            stride: stride as usize,
            rows,
            metadata: [][..].into(),
        };
        written.push(writing.shard(&empty).map_err(|error| error.to_string())?);
    }
    Ok(TableEntry { name: spec.name.clone(), spec: spec_entry(spec), number: spec.number, stride, shards: written })
}
