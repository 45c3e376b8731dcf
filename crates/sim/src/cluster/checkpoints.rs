//! Checkpoints in a simulated run, and runs that resume from one.
//!
//! A checkpoint is begun at a given time, and tried again until one is whole or the run is over.
//! Files of shards and residuals count as written at once. The messages about them travel through
//! the network like all others.

use super::{Cluster, Happening, RunSize, control};
use crate::check::Violation;
use crate::faults::Faults;
use crate::history::HistoryEvent;
use coordinator::{CheckpointOutcome, Membership, Resume, WrittenCheckpoint};
use shard::{Restored, ServerInput, ShardImage};
use std::collections::BTreeMap;
use types::{Clock, NodeId, Span, TableId, TableSpec};
use wire::{Control, Frame};
use worker::SavedResiduals;

/// The interval at which the checkpoint under way is looked at.
const LOOK: Span = Span::from_millis(5);

/// A whole checkpoint, from which a run can resume.
#[derive(Clone, Debug)]
pub struct SavedCheckpoint {
    gathered: WrittenCheckpoint,
    images: Vec<ShardImage>,
    residuals: Vec<SavedResiduals>,
}

impl SavedCheckpoint {
    /// The clock at which every shard was copied.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.gathered.clock
    }

    /// How many leases of the first data set are done.
    #[must_use]
    pub fn leases_done(&self) -> u64 {
        self.gathered.leases.first().map_or(0, |kept| kept.done().count())
    }

    fn resume(&self) -> Resume {
        let WrittenCheckpoint { name, clock, shards, tables, leases, .. } = self.gathered.clone();
        let tables = tables.into_iter().map(|(spec, _)| spec).collect();
        Resume { location: String::new(), name, clock, shards, tables, leases }
    }
}

/// The checkpoints of a run.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// All copies of shards. A copy's entry is its index.
    images: Vec<ShardImage>,
    /// All residuals of workers. The entry of residuals is their index.
    residuals: Vec<SavedResiduals>,
    /// How long after a whole checkpoint another is wanted.
    every: Option<Span>,
    /// Whether one is made when every worker has left, and no other.
    last: bool,
    /// The checkpoint that this run resumed from.
    from: Option<SavedCheckpoint>,
    /// What each server has said of its copies. It repeats that when it is asked again.
    said: BTreeMap<NodeId, Vec<Control>>,
    /// What each worker has said of its residuals.
    said_residuals: BTreeMap<NodeId, Frame>,
    whole: Vec<SavedCheckpoint>,
    /// How many were given up.
    missed: u64,
}

impl Cluster {
    /// An elastic cluster of another size that resumes from a checkpoint. Use the seed of the run
    /// that wrote it: the order of its leases comes from the seed.
    #[must_use]
    pub fn resumed(
        seed: u64,
        size: RunSize,
        faults: Faults,
        failure_timeout: Span,
        replicas: u32,
        from: &SavedCheckpoint,
    ) -> Self {
        let membership = Membership::Elastic { replicas, shards_per_server: 2 };
        let mut cluster = Self::with(seed, size, faults, membership, failure_timeout, Some(from.resume()));
        cluster.checkpoints.from = Some(from.clone());
        cluster
    }

    /// Makes a checkpoint after this time.
    pub fn checkpoint(&mut self, after: Span) {
        self.later(after, Happening::Checkpoint);
    }

    /// Makes a checkpoint after this time, and another each time `every` has passed since the last
    /// whole one.
    pub fn checkpoint_every(&mut self, after: Span, every: Span) {
        self.checkpoints.every = Some(every);
        self.checkpoint(after);
    }

    /// Makes a checkpoint when every worker has left.
    pub fn last_checkpoint(&mut self) {
        self.checkpoints.last = true;
        self.coordinator.last_checkpoint(true);
        self.checkpoint(LOOK);
    }

    pub(super) fn look_at_checkpoint(&mut self) {
        if self.leadership.away {
            return self.later(LOOK, Happening::Checkpoint);
        }
        if self.checkpoints.last {
            // A coordinator that leads since the last look may not have been told.
            self.coordinator.last_checkpoint(true);
            let in_time = self.coordinator.awaits_last_checkpoint() || self.coordinator.is_ending();
            if !in_time {
                return self.later(LOOK, Happening::Checkpoint);
            }
        }
        match self.coordinator.take_checkpoint_end() {
            Some(CheckpointOutcome::Whole(gathered)) => {
                // Two servers may have copied one shard: the coordinator decides whose copy counts.
                let entries = gathered.tables.iter().flat_map(|(_, entries)| entries);
                let indices = entries.map(|entry| entry.parse::<usize>().expect("as it was written"));
                let images = indices.map(|index| self.checkpoints.images[index].clone()).collect();
                let residuals =
                    gathered.residuals.iter().map(|entry| entry.parse::<usize>().expect("as it was written"));
                let residuals = residuals.map(|index| self.checkpoints.residuals[index].clone()).collect();
                self.checkpoints.whole.push(SavedCheckpoint { gathered, images, residuals });
                let every = self.checkpoints.every;
                return every.into_iter().for_each(|every| self.later(every, Happening::Checkpoint));
            }
            Some(_) => self.checkpoints.missed += 1,
            None => {}
        }
        if self.coordinator.may_checkpoint() {
            self.drive_coordinator(|coordinator, now, out| {
                coordinator.checkpoint(now, String::new(), String::new(), out);
            });
        }
        if !self.coordinator.is_finished() {
            self.later(LOOK, Happening::Checkpoint);
        }
    }

    /// Makes a server restore its shards of a table from the checkpoint.
    pub(super) fn restore(&mut self, server: usize, table: TableId, spec: TableSpec, clock: Clock) {
        let (Some(machine), Some(from)) = (&self.servers[server], &self.checkpoints.from) else { return };
        if machine.has_table(table) {
            return;
        }
        let image = |shard| from.images.iter().find(|image| image.shard == shard && image.name == spec.name);
        let images = machine.shards_of(&spec).into_iter().filter_map(image).cloned().collect();
        let residuals =
            from.residuals.iter().flat_map(|residuals| &residuals.tables).filter(|(name, _)| *name == spec.name);
        let residuals = residuals.map(|(_, rows)| rows.clone()).collect();
        let restored = Box::new(Restored { table, spec, clock, images, residuals });
        self.drive_server(server, ServerInput::Restore(self.now, restored));
    }

    /// The checkpoints that were whole, in order.
    #[must_use]
    pub fn saved_checkpoints(&self) -> &[SavedCheckpoint] {
        &self.checkpoints.whole
    }

    /// Writes the copies that a server has made, and tells the coordinator.
    pub(super) fn write_images(&mut self, server: usize) {
        let Some(machine) = &mut self.servers[server] else { return };
        let node = NodeId::Server(server as u32);
        for image in machine.take_images() {
            let entry = self.checkpoints.images.len().to_string();
            let written = Control::Written { number: image.checkpoint, table: image.table, shard: image.shard, entry };
            self.checkpoints.said.entry(node).or_default().push(written.clone());
            self.checkpoints.images.push(image);
            self.dispatch(vec![control(node, written)]);
        }
    }

    /// Writes the residuals that a worker has saved, and tells the coordinator.
    pub(super) fn write_residuals(&mut self, worker: usize) {
        let machine = &mut self.actors[worker].worker;
        let Some(residuals) = machine.take_residuals() else { return };
        let number = residuals.checkpoint;
        let entry = Some(self.checkpoints.residuals.len().to_string());
        let node = machine.id().into();
        let source = machine.plan().source(machine.id()).unwrap_or_default();
        let mut written = control(node, Control::ResidualsWritten { number, entry });
        written.head.source = source;
        self.checkpoints.residuals.push(residuals);
        self.checkpoints.said_residuals.insert(node, written.clone());
        self.dispatch(vec![written]);
    }

    /// Repeats what a node has said of its files, when it is asked for a checkpoint again.
    pub(super) fn say_written_again(&mut self, node: NodeId) {
        let written = self.checkpoints.said_residuals.get(&node).cloned();
        written.into_iter().for_each(|written| self.dispatch(vec![written]));
        for said in self.checkpoints.said.get(&node).cloned().unwrap_or_default() {
            self.dispatch(vec![control(node, said)]);
        }
    }

    /// How many checkpoints were whole, and how many were given up.
    #[must_use]
    pub fn checkpoint_counts(&self) -> (usize, u64) {
        (self.checkpoints.whole.len(), self.checkpoints.missed)
    }

    /// Checks that every whole checkpoint holds exactly the pushes of the clocks before its own.
    /// Panics, naming the seed, if one does not.
    ///
    /// Concerns a run with one table, which combines by clock and whose pushes mark. Every worker
    /// must live to the end.
    pub fn check_checkpoints(&self) {
        let mut pushed: BTreeMap<(u64, u32), Vec<(Clock, u32)>> = BTreeMap::new();
        for entry in &self.history.entries {
            if let HistoryEvent::Pushed { clock, keys, marks, .. } = &entry.event {
                for (key, mark) in keys.iter().zip(marks) {
                    pushed.entry((*key, entry.worker)).or_default().push((*clock, *mark));
                }
            }
        }
        for SavedCheckpoint { gathered, images, .. } in &self.checkpoints.whole {
            let clock = &gathered.clock;
            let mut held: BTreeMap<(u64, u32), f64> = BTreeMap::new();
            for image in images {
                let placement = self.history.specs[0].shape.placement();
                let shard::ImagePositions::List(positions) = &image.places else { continue };
                let rows = image.rows.numbers::<f64>().expect("f64").chunks_exact(image.stride);
                for (position, row) in positions.iter().zip(rows) {
                    let key = placement.key(types::Position(*position)).0;
                    (0..).zip(row).filter(|(_, value)| **value != 0.0).for_each(|(worker, value)| {
                        held.insert((key, worker), *value);
                    });
                }
            }
            let before = |marks: &Vec<(Clock, u32)>| -> f64 {
                let before = marks.iter().filter(|(made, _)| made < clock);
                before.map(|(_, mark)| 4f64.powi(*mark as i32)).sum()
            };
            let expected = pushed.iter().map(|(name, marks)| (*name, before(marks))).filter(|(_, sum)| *sum != 0.0);
            let expected: BTreeMap<(u64, u32), f64> = expected.collect();
            if held != expected {
                let what = format!("the checkpoint at {clock:?} holds {held:?}, not {expected:?}");
                panic!(
                    "{}",
                    Violation { seed: self.history.seed, promise: "checkpoints_hold_the_clocks_before", what }
                );
            }
        }
    }
}
