//! What the history is told, beside what programs do: who answers as the head of a shard, and which
//! tasks on one row are under way.

use super::Cluster;
use crate::history::{Entry, HeadSaid, HistoryEvent};
use crate::program::TableIndex;
use types::{PlanNumber, ShardId, TableId};
use wire::{Frame, KeyPart, Message};

/// A task on one row of a dense table, by the shard's name for it.
pub(super) type TaskName = (u32, TableId, ShardId, bool, u64);

impl Cluster {
    /// What a server says as the head of a shard.
    pub(super) fn note_head(&mut self, frame: &Frame) {
        let (table, shard) = match &frame.message {
            Message::Acked(acked) => (acked.table, acked.shard),
            Message::Pulled(pulled) => (pulled.table, pulled.shard),
            _ => return,
        };
        let (server, plan) = (frame.head.from, frame.head.plan);
        // Whoever is none of the plan's workers is told so by anybody.
        if plan == PlanNumber(0) {
            return;
        }
        self.history.heads.push(HeadSaid { at: self.now, table, shard, server, plan });
    }

    pub(super) fn note(&mut self, worker: u32, event: HistoryEvent) {
        self.history.entries.push(Entry { at: self.now, worker, event });
    }

    /// A frame about one row of a dense table is a task, to be told from its answer.
    pub(super) fn note_task(&mut self, worker: u32, frame: &Frame) {
        let (table, shard, keys, read, number) = match &frame.message {
            Message::Push(push) => (push.table, push.shard, &push.keys, false, frame.head.number),
            Message::Pull(pull) => (pull.table, pull.shard, &pull.keys, true, pull.request),
            _ => return,
        };
        let KeyPart::Run { first, count: 1 } = keys else { return };
        let Some(index) = self.actors[worker as usize].index_of(table) else { return };
        let name = (worker, table, shard, read, number);
        if self.tasks.insert(name, (index, first.0, false)).is_none() {
            self.note(worker, HistoryEvent::TaskSent { table: index, row: first.0 });
        }
    }

    pub(super) fn note_answers(&mut self, worker: u32, frame: &Frame) {
        let names = match &frame.message {
            Message::Acked(acked) => {
                let name = |number| (worker, acked.table, acked.shard, false, number);
                name(0)..=name(acked.through)
            }
            Message::Pulled(pulled) => {
                let name = (worker, pulled.table, pulled.shard, true, pulled.request);
                name..=name
            }
            _ => return,
        };
        let answered: Vec<(TableIndex, u64)> = self
            .tasks
            .range_mut(names)
            .filter(|(_, (_, _, answered))| !answered)
            .map(|(_, (index, row, answered))| {
                *answered = true;
                (*index, *row)
            })
            .collect();
        for (table, row) in answered {
            self.note(worker, HistoryEvent::TaskAnswered { table, row });
        }
    }
}
