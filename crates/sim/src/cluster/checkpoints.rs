//! Checkpoints in a simulated run: begun at a time, and tried again until one is whole or the run is over. What servers copy counts as
//! written at once; what they say of it travels like everything else.

use super::{Cluster, Happening, control};
use crate::check::Violation;
use crate::history::Event;
use machine::{CheckpointEnd, Image, Outbox};
use std::collections::BTreeMap;
use types::{Clock, NodeId, Span};
use wire::Control;

/// How often it is looked at.
const LOOK: Span = Span::from_millis(5);

/// Checkpoints of a run.
#[derive(Default)]
pub(super) struct Checkpoints {
    images: Vec<Image>,
    /// What each server has said of its copies, which it says again when it is asked again.
    said: BTreeMap<NodeId, Vec<Control>>,
    begun: u64,
    whole: Vec<(u64, Clock)>,
    missed: u64,
}

impl Cluster {
    /// A checkpoint is wanted after so long.
    pub fn checkpoint(&mut self, after: Span) {
        self.later(after, Happening::Checkpoint);
    }

    pub(super) fn look_at_checkpoint(&mut self) {
        match self.coordinator.take_checkpoint_end() {
            Some(CheckpointEnd::Whole(gathered)) => {
                self.checkpoints.whole.push((self.checkpoints.begun, gathered.clock));
                return;
            }
            Some(_) => self.checkpoints.missed += 1,
            None => {}
        }
        if self.coordinator.may_checkpoint() {
            self.checkpoints.begun += 1;
            let mut out = Outbox::new();
            self.coordinator.checkpoint(self.now, String::new(), String::new(), &mut out);
            self.dispatch(out.drain().collect());
        }
        if !self.coordinator.is_finished() {
            self.later(LOOK, Happening::Checkpoint);
        }
    }

    /// What a server has copied is written.
    pub(super) fn write_images(&mut self, server: usize) {
        let Some(machine) = &mut self.servers[server] else { return };
        let node = NodeId::Server(server as u32);
        for image in machine.take_images() {
            let (number, table, shard) = (image.checkpoint, image.table, image.shard);
            let written = Control::Written { number, table, shard, entry: String::new() };
            self.checkpoints.said.entry(node).or_default().push(written.clone());
            self.checkpoints.images.push(image);
            self.dispatch(vec![control(node, written)]);
        }
    }

    /// A server that is asked for a checkpoint again says again what it has said.
    pub(super) fn say_written_again(&mut self, node: NodeId) {
        for said in self.checkpoints.said.get(&node).cloned().unwrap_or_default() {
            self.dispatch(vec![control(node, said)]);
        }
    }

    /// How many checkpoints were whole, and how many were given up because a clock had passed.
    #[must_use]
    pub fn checkpoint_counts(&self) -> (usize, u64) {
        (self.checkpoints.whole.len(), self.checkpoints.missed)
    }

    /// Every checkpoint that was whole holds, of a table that combines by clock and marks its pushes, exactly the pushes of clocks before
    /// its own. Every worker lives to the end.
    pub fn check_checkpoints(&self) {
        let mut pushed: BTreeMap<(u64, u32), Vec<(Clock, u32)>> = BTreeMap::new();
        for entry in &self.history.entries {
            if let Event::Pushed { clock, keys, marks, .. } = &entry.event {
                for (key, mark) in keys.iter().zip(marks) {
                    pushed.entry((*key, entry.worker)).or_default().push((*clock, *mark));
                }
            }
        }
        for (number, clock) in &self.checkpoints.whole {
            let mut held: BTreeMap<(u64, u32), f64> = BTreeMap::new();
            for image in self.checkpoints.images.iter().filter(|image| image.checkpoint == *number) {
                let placement = self.history.specs[0].shape.placement();
                let machine::Places::List(positions) = &image.places else { continue };
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
