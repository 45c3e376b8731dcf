//! Removal from the index of a `spread` table: backward-shift deletion within a page. Pages that
//! have become sparse are joined with their neighbours.
//!
//! Invariants:
//! - No cell between a position's home cell and its cell is empty, so a lookup ends at the first
//!   empty cell.
//! - A page has at most about two and a half cells a row.
//! - Two neighbouring pages have at least [`SPARSE_ROWS`] rows each or more than [`SPLIT_ROWS`]
//!   together. So memory follows the rows that are left.

use super::{AHEAD, EMPTY, Page, SPLIT_ROWS, SpreadIndex, TAIL, cells_for};
use update::ABSENT;

/// A page with fewer rows than this is joined with a neighbour if both fit a page of
/// [`SPLIT_ROWS`]. A joined page is far from being split again.
const SPARSE_ROWS: usize = SPLIT_ROWS / 2;
/// A batch that names more than one in this many rows of a page has the page laid out anew.
const LAY_OUT_ABOVE: usize = 8;

/// Whether two neighbouring pages with these numbers of rows must be joined.
fn belong_together(rows: usize, others: usize) -> bool {
    let least = rows.min(others);
    least == 0 || (least < SPARSE_ROWS && rows + others <= SPLIT_ROWS)
}

impl Page {
    /// Removes a position and returns its slot. The positions behind it move back over the gap as
    /// far as their homes allow, so that no lookup ends at the gap too early.
    fn remove(&mut self, position: u64) -> Option<u32> {
        let mut gap = self.cell(position);
        let slot = self.slots[gap];
        if self.positions[gap] != position || slot == ABSENT {
            return None;
        }
        // The last cell is always empty, so every full cell has one behind it.
        while self.slots[gap + 1] != ABSENT && self.home(self.positions[gap + 1]) <= gap {
            self.positions[gap] = self.positions[gap + 1];
            self.slots[gap] = self.slots[gap + 1];
            gap += 1;
        }
        self.positions[gap] = EMPTY;
        self.slots[gap] = ABSENT;
        self.len -= 1;
        Some(slot)
    }

    /// Removes positions (rising, all of this page), and appends the slots of those that it held.
    fn remove_batch(&mut self, positions: &[u64], freed: &mut Vec<u32>) {
        if positions.len() * LAY_OUT_ABOVE <= self.len {
            freed.extend(positions.iter().filter_map(|position| self.remove(*position)));
            if self.is_loose() {
                *self = Self::new(self.first, &self.entries().collect::<Vec<_>>());
            }
            return;
        }
        let mut positions = positions.iter().peekable();
        let mut kept = Vec::with_capacity(self.len);
        for (position, slot) in self.entries() {
            while positions.next_if(|next| **next < position).is_some() {}
            match positions.next_if(|next| **next == position) {
                Some(_) => freed.push(slot),
                None => kept.push((position, slot)),
            }
        }
        if kept.len() < self.len {
            *self = Self::new(self.first, &kept);
        }
    }

    /// Whether it has more than twice the cells that its rows need.
    fn is_loose(&self) -> bool {
        self.slots.len() > 2 * cells_for(self.len) + TAIL
    }
}

impl SpreadIndex {
    /// Removes positions (rising). Skips unknown ones. Returns the slots of the others, in the
    /// order of their positions.
    pub fn remove(&mut self, positions: &[u64]) -> Vec<u32> {
        let mut freed = Vec::with_capacity(positions.len().min(self.len));
        let mut rest = positions;
        let mut joins = false;
        let mut page = rest.first().map_or(0, |lowest| self.page_of(*lowest));
        while !rest.is_empty() {
            let limit = self.limit(page);
            let count = limit.map_or(rest.len(), |limit| rest.partition_point(|position| *position < limit));
            let (here, later) = rest.split_at(count);
            // Prefetches the cells of the next positions while these are removed.
            let next_page = later.first().map_or(0, |lowest| self.page_of(*lowest));
            for position in later.iter().take(AHEAD) {
                self.pages[next_page].fetch(*position);
            }
            self.pages[page].remove_batch(here, &mut freed);
            joins = joins || self.joins_neighbour(page);
            page = next_page;
            rest = later;
        }
        self.len -= freed.len();
        if joins {
            self.join_pages();
        }
        freed
    }

    /// Whether a page must be joined with the one before or behind it.
    fn joins_neighbour(&self, page: usize) -> bool {
        let pages = &self.pages[page.saturating_sub(1)..self.pages.len().min(page + 2)];
        pages.windows(2).any(|pair| belong_together(pair[0].len, pair[1].len))
    }

    /// Joins the pages that must be joined. A joined page covers the ranges of all its pages.
    fn join_pages(&mut self) {
        let mut pages = std::mem::take(&mut self.pages).into_iter().peekable();
        while let Some(page) = pages.next() {
            let mut rows = page.len;
            let mut entries = Vec::new();
            while let Some(next) = pages.next_if(|next| belong_together(rows, next.len)) {
                if entries.is_empty() {
                    entries.extend(page.entries());
                }
                entries.extend(next.entries());
                rows += next.len;
            }
            self.pages.push(if entries.is_empty() { page } else { Page::new(page.first, &entries) });
        }
        self.firsts = self.pages.iter().map(|page| page.first).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::spread::PAGE_ROWS;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::PositionRange;

    /// The index, beside a map that holds what the index should hold.
    struct Checked {
        index: SpreadIndex,
        model: BTreeMap<u64, u32>,
        next: u32,
    }

    impl Checked {
        fn new() -> Self {
            Self { index: SpreadIndex::new(PositionRange::ALL), model: BTreeMap::new(), next: 0 }
        }

        fn insert(&mut self, positions: impl IntoIterator<Item = u64>) {
            let new: BTreeMap<u64, u32> =
                positions.into_iter().filter(|position| !self.model.contains_key(position)).zip(self.next..).collect();
            let new: Vec<(u64, u32)> = new.into_keys().zip(self.next..).collect();
            self.next += new.len() as u32;
            self.index.insert(&new);
            self.model.extend(new);
        }

        fn remove(&mut self, positions: impl IntoIterator<Item = u64>) {
            let mut positions: Vec<u64> = positions.into_iter().collect();
            positions.sort_unstable();
            positions.dedup();
            let expected: Vec<u32> = positions.iter().filter_map(|position| self.model.remove(position)).collect();
            assert_eq!(self.index.remove(&positions), expected);
        }

        /// Checks that both ways of lookup find exactly the model's positions, and that the pages
        /// keep their invariants.
        fn check(&self) {
            let Self { index, model, .. } = self;
            assert_eq!(index.len, model.len());
            assert!(index.entries(0..=u64::MAX).eq(model.iter().map(|(position, slot)| (*position, *slot))));
            let wanted: BTreeMap<u64, u32> =
                model.keys().flat_map(|position| [*position, position ^ 1]).map(|position| (position, 0)).collect();
            let wanted: Vec<u64> = wanted.into_keys().collect();
            let expected: Vec<u32> =
                wanted.iter().map(|position| model.get(position).copied().unwrap_or(ABSENT)).collect();
            for find in [SpreadIndex::find_by_merging, SpreadIndex::find_by_probing] {
                let mut found = Vec::new();
                if !wanted.is_empty() {
                    find(index, &wanted, &mut found);
                }
                assert_eq!(found, expected);
            }
            assert_eq!(index.pages[0].first, 0);
            assert!(index.firsts.iter().is_sorted_by(|one, next| one < next));
            assert!(index.firsts.iter().zip(&index.pages).all(|(first, page)| *first == page.first));
            assert!(index.pages.iter().all(|page| page.len == page.entries().count() && !page.is_loose()));
            let pairs = index.pages.windows(2);
            assert!(pairs.into_iter().all(|pair| !belong_together(pair[0].len, pair[1].len)), "joined pages");
        }

        fn cells(&self) -> usize {
            self.index.pages.iter().map(|page| page.positions.capacity()).sum()
        }
    }

    fn scattered(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    proptest! {
        #[test]
        fn index_holds_what_a_sorted_map_holds_after_removals(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u64>(), 0..60)), 0..24),
            shift in prop::sample::select(vec![0u32, 48, 56]),
            high in any::<bool>(),
        ) {
            // Shifted down, positions crowd in one corner of the range and repeat.
            let place = |position: &u64| if high { u64::MAX - (position >> shift) } else { position >> shift };
            let mut checked = Checked::new();
            for (inserts, positions) in steps {
                let positions: Vec<u64> = positions.iter().map(place).collect();
                if inserts {
                    checked.insert(positions);
                } else {
                    // Also removes some known positions, because few random ones are known.
                    let known: Vec<u64> = checked.model.keys().copied().step_by(3).collect();
                    checked.remove(positions.into_iter().chain(known));
                }
                checked.check();
            }
        }
    }

    #[test]
    fn index_removes_from_any_page_and_joins_sparse_pages() {
        let rows = 20 * PAGE_ROWS as u64;
        /// A name, and which positions are removed, by their number in order and the number of all.
        type Case = (&'static str, fn(u64, u64) -> bool);
        let cases: [Case; 8] = [
            ("all", |_, _| true),
            ("none", |_, _| false),
            ("the first page", |number, _| number < 1600),
            ("the last page", |number, rows| number + 1600 >= rows),
            ("the first row", |number, _| number == 0),
            ("all but the last row", |number, rows| number + 1 < rows),
            ("all but one in a hundred", |number, _| number % 100 != 0),
            ("the middle", |number, rows| number > rows / 4 && number < rows / 2),
        ];
        for (name, is_removed) in cases {
            for batch in [1, 37, 100_000] {
                let mut checked = Checked::new();
                checked.insert(scattered(rows));
                let removed: Vec<u64> = checked
                    .model
                    .keys()
                    .copied()
                    .zip(0..)
                    .collect::<Vec<(u64, u64)>>()
                    .into_iter()
                    .filter(|(_, number)| is_removed(*number, rows))
                    .map(|(position, _)| position)
                    .collect();
                removed.chunks(batch).for_each(|batch| checked.remove(batch.iter().copied()));
                checked.check();
                let most = 3 * checked.model.len() + 40 * checked.index.pages.len();
                assert!(checked.cells() <= most, "{name}, {batch} at once: {} cells", checked.cells());
                assert!(checked.index.pages.len() <= 1 + checked.model.len() * 2 / SPLIT_ROWS, "{name}");
                checked.insert(removed.into_iter().rev());
                checked.check();
            }
        }
    }

    #[test]
    fn index_finds_positions_that_were_displaced_by_a_removed_one() {
        // Crowded: all but one of the positions have the same home.
        let mut checked = Checked::new();
        checked.insert((0..200).chain([u64::MAX]));
        for position in [0, 100, 199, 50, u64::MAX, 1] {
            checked.remove([position]);
            checked.check();
        }
        checked.insert([u64::MAX, 100]);
        checked.check();
    }
}
