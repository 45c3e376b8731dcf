//! The index of a shard: the slot of each position. There are three kinds, by the table's shape and
//! placement: dense, `spread` and `ordered`.

use super::spread::SpreadIndex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use types::{Placement, PositionRange, TableShape};
use update::ABSENT;

/// A map from positions to slots.
#[derive(Debug)]
pub enum Index {
    /// Dense table: slot i is the range's i-th position, and every row exists.
    Dense {
        /// The range's first position.
        first: u64,
    },
    /// Sparse `spread` table: a sorted batch walks the index in order.
    Spread(SpreadIndex),
    /// Sparse `ordered` table: a B-tree, which finds ranges of positions too.
    Ordered(BTreeMap<u64, u32>),
}

impl Index {
    /// The index of a table of this shape over `range`, empty unless dense.
    pub fn new(shape: TableShape, range: PositionRange) -> Self {
        match shape {
            TableShape::Dense { .. } => Self::Dense { first: range.first.0 },
            TableShape::Sparse { placement: Placement::Spread, .. } => Self::Spread(SpreadIndex::new(range)),
            TableShape::Sparse { placement: Placement::Ordered, .. } => Self::Ordered(BTreeMap::new()),
        }
    }

    /// Whether every row exists.
    pub fn is_dense(&self) -> bool {
        matches!(self, Self::Dense { .. })
    }

    /// Appends the slot of each of the sorted positions, or `ABSENT`. Returns how many were absent.
    pub fn find(&self, positions: &[u64], slots: &mut Vec<u32>) -> usize {
        match self {
            Self::Dense { first } => {
                slots.extend(positions.iter().map(|position| (position - first) as u32));
                0
            }
            Self::Spread(index) => index.find(positions, slots),
            Self::Ordered(index) => {
                let start = slots.len();
                slots.extend(positions.iter().map(|position| index.get(position).copied().unwrap_or(ABSENT)));
                slots[start..].iter().filter(|slot| **slot == ABSENT).count()
            }
        }
    }

    /// Adds new positions, rising, with their slots.
    pub fn insert(&mut self, new: &[(u64, u32)]) {
        match self {
            Self::Dense { .. } => {}
            Self::Spread(index) => index.insert(new),
            Self::Ordered(index) => index.extend(new.iter().copied()),
        }
    }

    /// Removes positions (rising). Skips unknown ones. Returns the slots of the others, in the
    /// order of their positions.
    pub fn remove(&mut self, positions: &[u64]) -> Vec<u32> {
        match self {
            // Rows of a dense table cannot be removed.
            Self::Dense { .. } => Vec::new(),
            Self::Spread(index) => index.remove(positions),
            // Front to back, so a position's node was mostly visited for the position before it.
            Self::Ordered(index) => positions.iter().filter_map(|position| index.remove(position)).collect(),
        }
    }

    /// Whether a sorted batch walks the index, so that rows in position order are read faster.
    pub fn is_walked(&self) -> bool {
        matches!(self, Self::Spread(_))
    }

    /// Replaces the slots of the first `most` positions from `first` on by what `renumber` gives
    /// for them, in position order. Returns the position after them. Does nothing for a dense
    /// table, whose slots are positions.
    pub fn renumber_some(&mut self, first: u64, most: usize, mut renumber: impl FnMut(u32) -> u32) -> Option<u64> {
        match self {
            Self::Dense { .. } => None,
            Self::Spread(index) => index.renumber_some(first, most, renumber),
            Self::Ordered(index) => {
                let mut entries = index.range_mut(first..);
                entries.by_ref().take(most).for_each(|(_, slot)| *slot = renumber(*slot));
                entries.next().map(|(position, _)| *position)
            }
        }
    }

    /// The highest position of a sparse table.
    pub fn highest(&self) -> Option<u64> {
        match self {
            Self::Dense { .. } => None,
            Self::Spread(index) => index.highest(),
            Self::Ordered(index) => index.last_key_value().map(|(highest, _)| *highest),
        }
    }

    /// The first `limit` positions of a sparse table in this range, rising, and their slots.
    /// Nothing for a dense table.
    pub fn entries(&self, positions: RangeInclusive<u64>, limit: usize) -> (Vec<u64>, Vec<u32>) {
        match self {
            Self::Dense { .. } => (Vec::new(), Vec::new()),
            Self::Spread(index) => index.entries(positions).take(limit).unzip(),
            Self::Ordered(index) => index.range(positions).take(limit).unzip(),
        }
    }
}
