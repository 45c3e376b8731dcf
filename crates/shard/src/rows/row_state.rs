//! Reads and writes row state: a row's weights followed by its updater's state. Replicas,
//! checkpoints and programs that save and load rows exchange it.

use crate::rows::snapshot::{CopiedRows, Snapshot};
use crate::rows::{Resolved, Rows};
use types::Position;
use update::{ABSENT, Number};
use wire::{Payload, Pool, Refusal};

impl<T: Number> Rows<T> {
    /// Numbers in the state of a row.
    pub fn row_state_width(&self) -> usize {
        self.slab.row_state_width()
    }

    /// Bytes in the state of a row.
    pub fn row_state_bytes(&self) -> usize {
        self.row_state_width() * size_of::<T>()
    }

    /// Begins a copy of the state of all rows, as they are now. [`Rows::work`] makes it in pieces,
    /// while rows change.
    pub fn begin_copy(&mut self) {
        self.slab.begin_copy();
    }

    /// Whether a copy is being made, or is whole and was not taken.
    pub fn is_being_copied(&self) -> bool {
        self.slab.is_being_copied()
    }

    /// The copy, once it is whole.
    pub fn take_copy(&mut self) -> Option<CopiedRows<T>> {
        self.slab.take_copy()
    }

    /// Gives up the copy. Returns its memory, which may take long to free.
    pub fn drop_copy(&mut self) -> Option<Snapshot<T>> {
        self.slab.drop_copy()
    }

    /// The state of the rows at `slots`, zeros where there is no row, in memory from `pool`.
    pub fn row_states(&self, slots: impl ExactSizeIterator<Item = u32>, pool: &Pool) -> Payload {
        let width = self.row_state_width();
        let mut values = pool.take(slots.len() * self.row_state_bytes());
        for (row, slot) in values.numbers_mut::<T>().chunks_exact_mut(width).zip(slots) {
            match slot {
                ABSENT => row.fill(T::ZERO),
                slot => row.copy_from_slice(self.slab.row_state(slot)),
            }
        }
        values.freeze()
    }

    /// Replaces the state of rows. `None`, and no change, if `values` do not fill exactly these
    /// rows.
    pub fn put_row_state(&mut self, resolved: &Resolved, values: &[T]) -> Option<()> {
        self.slab.put_row_state(resolved, values)
    }

    /// The slots of consecutive positions. Makes absent rows.
    pub fn make_run(&mut self, first: Position, count: u64) -> Result<Resolved, Refusal> {
        self.slab.resolve_run(first, count, true)
    }

    /// The slots of rising positions. Makes absent rows.
    pub fn make_rows(&mut self, positions: &[u64]) -> Result<Resolved, Refusal> {
        self.slab.resolve_list(positions, true)
    }

    /// The rows that exist at rising positions, by position and slot.
    pub fn rows_at(&self, positions: &[u64]) -> Result<Vec<(u64, u32)>, Refusal> {
        let (slots, _) = self.slab.find_list(positions)?;
        Ok(positions.iter().copied().zip(slots).filter(|(_, slot)| *slot != ABSENT).collect())
    }

    /// The slots of rising positions, `ABSENT` where there is no row.
    pub fn find_rows(&self, positions: &[u64]) -> Result<Resolved, Refusal> {
        self.slab.find_list(positions).map(|(slots, _)| Resolved::List(slots))
    }
}
