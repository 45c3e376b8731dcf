//! Rows stored one by one under their positions, with clock eviction (second chance).

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Rows by position, each in a slot.
#[derive(Debug, Default)]
pub(crate) struct SingleRows {
    slots: HashMap<u64, usize, BuildHasherDefault<PositionHasher>>,
    /// The position of the row in each slot.
    pub(crate) positions: Vec<u64>,
    /// Whether the row in each slot was used since the hand last passed it.
    touched: Vec<bool>,
    pub(crate) values: Vec<f32>,
    /// The slot at which the search for a row to evict continues.
    hand: usize,
}

impl SingleRows {
    pub(crate) fn row_mut(&mut self, position: u64, width: usize) -> Option<&mut [f32]> {
        let slot = *self.slots.get(&position)?;
        self.touched[slot] = true;
        Some(&mut self.values[slot * width..][..width])
    }

    pub(crate) fn push(&mut self, position: u64, row: &[f32]) {
        self.slots.insert(position, self.positions.len());
        self.positions.push(position);
        // A new row counts as unused, so that a row used once is evicted before one used again.
        self.touched.push(false);
        self.values.extend_from_slice(row);
    }

    /// The slot of the row to evict: the next one that was not used since the hand last passed.
    /// There must be at least one slot.
    pub(crate) fn oldest(&mut self) -> usize {
        loop {
            let slot = self.hand % self.positions.len();
            self.hand = slot + 1;
            if !std::mem::take(&mut self.touched[slot]) {
                return slot;
            }
        }
    }

    pub(crate) fn replace(&mut self, slot: usize, position: u64, row: &[f32]) {
        self.slots.remove(&self.positions[slot]);
        self.slots.insert(position, slot);
        self.positions[slot] = position;
        self.values[slot * row.len()..][..row.len()].copy_from_slice(row);
    }

    /// Removes and returns the rows at positions `first` to `last`.
    pub(crate) fn take_between(&mut self, first: u64, last: u64, width: usize) -> Vec<(u64, Vec<f32>)> {
        let mut taken = Vec::new();
        let mut slot = 0;
        while slot < self.positions.len() {
            let position = self.positions[slot];
            if !(first..=last).contains(&position) {
                slot += 1;
                continue;
            }
            taken.push((position, self.values[slot * width..][..width].to_vec()));
            self.remove(slot, width);
        }
        taken
    }

    /// Removes the row in `slot`; the last row takes its slot.
    fn remove(&mut self, slot: usize, width: usize) {
        self.slots.remove(&self.positions.swap_remove(slot));
        self.touched.swap_remove(slot);
        let last = self.values.len() - width;
        self.values.copy_within(last.., slot * width);
        self.values.truncate(last);
        if let Some(&moved) = self.positions.get(slot) {
            self.slots.insert(moved, slot);
        }
    }
}

/// Hashes positions by one multiplication. That is several times cheaper than the map's default
/// hash, and safe because the program itself chose the positions.
#[derive(Default)]
struct PositionHasher(u64);

impl Hasher for PositionHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, position: u64) {
        let product = u128::from(self.0 ^ position) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}
