//! Where a position's row lies: one of three ways, by the table's shape and order.

use super::spread::SpreadIndex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use types::{Placement, PositionRange, TableShape};
use update::ABSENT;

/// Positions to slots.
#[derive(Debug)]
pub enum Index {
    /// Slot i is the range's i-th position; every row exists.
    Dense {
        /// The range's first position.
        first: u64,
    },
    /// Any position, walked in order by a sorted batch.
    Spread(SpreadIndex),
    /// Any position, and ranges of them.
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

    /// Adds positions that are not there, rising, with slots counted up from `first_slot`.
    pub fn insert(&mut self, new: &[u64], first_slot: u32) {
        match self {
            Self::Dense { .. } => {}
            Self::Spread(index) => index.insert(new, first_slot),
            Self::Ordered(index) => index.extend(new.iter().copied().zip(first_slot..)),
        }
    }

    /// Numbers the slots anew in position order, where a batch walks the index. Returns the new
    /// slot of each old one, and the highest position.
    pub fn renumber(&mut self) -> Option<(Vec<u32>, u64)> {
        match self {
            Self::Spread(index) => Some((index.renumber(), index.highest()?)),
            Self::Dense { .. } | Self::Ordered(_) => None,
        }
    }

    /// What a sparse table has between two positions, rising: the first `limit` of them.
    pub fn entries(&self, positions: RangeInclusive<u64>, limit: usize) -> (Vec<u64>, Vec<u32>) {
        match self {
            Self::Dense { .. } => (Vec::new(), Vec::new()),
            Self::Spread(index) => index.entries(positions).take(limit).unzip(),
            Self::Ordered(index) => index.range(positions).take(limit).unzip(),
        }
    }
}
