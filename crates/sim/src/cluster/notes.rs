//! What the history learns from frames: which servers answer as heads of shards, and when tasks on
//! one row are sent and answered.

use super::Cluster;
use crate::history::{Entry, HeadSaid, HistoryEvent};
use crate::program::TableIndex;
use types::{PlanNumber, ShardId, TableId};
use wire::{Frame, KeyPart, Message};

/// The name of a task on one row of a dense table: worker, table, shard, whether it is a read, and
/// its number in the stream or of the request.
pub(super) type TaskName = (u32, TableId, ShardId, bool, u64);

impl Cluster {
    /// Records that a server answers as the head of a shard, if the frame is such an answer.
    pub(super) fn note_head(&mut self, frame: &Frame) {
        let (table, shard) = match &frame.message {
            Message::Acked(acked) => (acked.table, acked.shard),
            Message::Pulled(pulled) => (pulled.table, pulled.shard),
            _ => return,
        };
        let server = frame.head.from;
        let plan = frame.head.plan;
        // Any replica may refuse a worker that is not in the plan: such a refusal has plan 0.
        if plan == PlanNumber(0) {
            return;
        }
        self.history.heads.push(HeadSaid { at: self.now, table, shard, server, plan });
    }

    pub(super) fn note(&mut self, worker: u32, event: HistoryEvent) {
        self.history.entries.push(Entry { at: self.now, worker, event });
    }

    /// Records a task that is sent for the first time: a push or pull of one row of a dense table.
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

    /// Records the tasks that this frame is the first to answer.
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
