//! Checkpoints through the parts of a shard: the copy of everything that it holds at a clock.

use crate::checkpoint::{ImagePositions, ShardImage};
use crate::discarded::Discarded;
use crate::rows::PieceOfWork;
use crate::shard::{AnyShard, Shard};
use types::{Clock, WorkerId};
use update::Number;
use wire::Payload;

impl<T: Number> Shard<T> {
    /// Asks for checkpoint `number` at `clock`. `last`: every worker has left, and none of their
    /// messages is under way. Then the copy holds every clock that any of them has ended.
    pub(super) fn begin_checkpoint(&mut self, number: u64, clock: Clock, last: bool) {
        if !self.spec.is_checkpointed() || !self.checkpoint.ask(number, clock, last) {
            return;
        }
        self.discard_copy();
        if last && AnyShard::is_head(self) {
            for worker in (0..self.streams.ranks()).map(WorkerId) {
                self.clocks.leave(worker);
            }
            self.apply_before(clock.max(self.clocks.frontier()));
            self.copy();
        }
        self.look_at_clock();
    }

    /// Copies the shard now if it is the head and its frontier is at the checkpoint's clock
    /// already. Called when a checkpoint is asked for, and when the role changes.
    pub(super) fn look_at_clock(&mut self) {
        if !AnyShard::is_head(self) {
            self.checkpoint.await_again();
            self.discard_copy();
        } else if self.checkpoint.stands_at(self.clocks.frontier()) {
            self.copy();
        }
    }

    /// Begins to copy everything for the checkpoint, as it is now. A piece of rows is copied at
    /// once, more rows piece by piece in [`AnyShard::work`], while pushes and reads go on.
    pub(super) fn copy(&mut self) {
        self.discard_copy();
        self.checkpoint.begin_copy(self.view().metadata());
        self.rows.begin_copy();
        let piece = self.rows_of_a_piece();
        if self.rows.slot_count() <= piece {
            while self.rows.work(piece) == PieceOfWork::Piece {}
            self.take_copy();
        }
    }

    /// Hands the copy over to the checkpoint, once it is whole.
    pub(super) fn take_copy(&mut self) {
        let Some(copied) = self.rows.take_copy() else { return };
        let count = (copied.rows.len() / self.rows.row_state_width()) as u64;
        let places = match copied.positions {
            Some(positions) => ImagePositions::List(positions),
            None => ImagePositions::Run { first: self.identity.placed.range.first.0, count },
        };
        let image = |checkpoint, clock, metadata| ShardImage {
            checkpoint,
            clock,
            table: self.identity.table,
            name: self.spec.name.clone(),
            shard: self.identity.shard(),
            number: T::TYPE,
            stride: self.rows.row_state_width(),
            places,
            rows: Payload::new(copied.rows),
            metadata,
        };
        self.checkpoint.copied(image);
    }

    /// Gives up a copy that is being made.
    fn discard_copy(&mut self) {
        self.discarded.extend(self.rows.drop_copy().map(Discarded::new));
    }
}
