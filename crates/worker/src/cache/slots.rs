//! Slots for cached rows, each with a tag that says how fresh its row is. Both kinds of cache keep
//! their rows here.
//!
//! A dense table within the bound has a slot for every row. Other tables get a slot for each row
//! that the worker reads. When new rows would pass the bound, the cache drops all rows and starts
//! over, which costs one round of reads.

use shard::rows::Index;
use types::{Placement, TableShape, TableSpec};
use update::{ABSENT, Number};
use wire::KeySlice;

/// Rows of a table in slots, with their tags.
pub(crate) struct CachedRows<T, Tag> {
    shape: TableShape,
    width: usize,
    max_rows: u64,
    index: Index,
    values: Vec<T>,
    /// One tag for each slot; `None` if the slot holds no usable row.
    tags: Vec<Option<Tag>>,
}

impl<T: Number, Tag: Copy> CachedRows<T, Tag> {
    /// Empty slots for at most `max_rows` rows.
    pub fn new(spec: &TableSpec, max_rows: u64) -> Self {
        let shape = spec.shape;
        let width = spec.width as usize;
        let index = index_for(shape, max_rows);
        let mut rows = Self { shape, width, max_rows, index, values: Vec::new(), tags: Vec::new() };
        rows.clear();
        rows
    }

    fn clear(&mut self) {
        self.index = index_for(self.shape, self.max_rows);
        let rows = if self.index.is_dense() { self.shape.extent().last.0 as usize + 1 } else { 0 };
        self.values = vec![T::ZERO; rows * self.width];
        self.tags = vec![None; rows];
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The slot of each row; [`ABSENT`] for a row without one.
    pub fn slots(&self, positions: &[u64]) -> Vec<u32> {
        let mut slots = Vec::new();
        self.index.find(positions, &mut slots);
        slots
    }

    /// The slot of each row, with new slots for rows without one. All are [`ABSENT`] if the rows
    /// are more than the bound.
    pub fn slots_or_new(&mut self, positions: &[u64]) -> Vec<u32> {
        let mut slots = self.slots(positions);
        let absent = slots.iter().zip(positions).filter(|(slot, _)| **slot == ABSENT);
        let first = self.tags.len() as u32;
        let new: Vec<(u64, u32)> = absent.map(|(_, position)| *position).zip(first..).collect();
        if new.is_empty() {
            return slots;
        }
        if (self.tags.len() + new.len()) as u64 > self.max_rows {
            self.clear();
            if positions.len() as u64 > self.max_rows {
                return vec![ABSENT; positions.len()];
            }
            return self.slots_or_new(positions);
        }
        self.index.insert(&new);
        self.tags.resize(self.tags.len() + new.len(), None);
        self.values.resize(self.tags.len() * self.width, T::ZERO);
        slots.iter_mut().filter(|slot| **slot == ABSENT).zip(first..).for_each(|(slot, new)| *slot = new);
        slots
    }

    /// The tag of a slot; `None` if it has none, or for [`ABSENT`].
    pub fn tag(&self, slot: u32) -> Option<Tag> {
        self.tags.get(slot as usize).copied().flatten()
    }

    /// The tag of a slot, for changes; `None` for [`ABSENT`].
    pub fn tag_mut(&mut self, slot: u32) -> Option<&mut Option<Tag>> {
        self.tags.get_mut(slot as usize)
    }

    /// All tags, for changes.
    pub fn tags_mut(&mut self) -> impl Iterator<Item = &mut Option<Tag>> {
        self.tags.iter_mut()
    }

    /// The row in a slot.
    pub fn row(&self, slot: u32) -> &[T] {
        &self.values[slot as usize * self.width..][..self.width]
    }

    /// The row in a slot, for changes.
    pub fn row_mut(&mut self, slot: u32) -> &mut [T] {
        &mut self.values[slot as usize * self.width..][..self.width]
    }
}

fn index_for(shape: TableShape, max_rows: u64) -> Index {
    let extent = shape.extent();
    let shape = match shape {
        TableShape::Dense { rows } if rows > max_rows => TableShape::Sparse { placement: Placement::Ordered, max_rows },
        shape => shape,
    };
    Index::new(shape, extent)
}

/// The positions of a list of keys.
pub(crate) fn positions(keys: &KeySlice) -> Vec<u64> {
    keys.sorted().map_or_else(|| (0..keys.len()).map(|index| keys.position(index).0).collect(), <[u64]>::to_vec)
}
