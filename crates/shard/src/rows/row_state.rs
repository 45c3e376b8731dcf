//! Reads and writes row state: a row's weights followed by its updater's state. Replicas,
//! checkpoints and programs that save and load rows exchange it.

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

    /// The state of every row that exists, by slot.
    pub fn all_row_state(&self) -> Vec<T> {
        self.slab.all_row_state()
    }

    /// The position of every row that exists, by slot: as many as
    /// [`all_row_state`](Self::all_row_state) has rows.
    pub fn all_positions(&self) -> Vec<u64> {
        self.slab.all_positions()
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
