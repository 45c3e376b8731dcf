//! The index of a `spread` table: positions to slots, in position order, in pages with gaps.
//!
//! Positions are a mix (hash) of the keys, so they are spread evenly over the range. Within a page,
//! a position's home cell is its place in the page's range, scaled to the number of cells. Cells
//! hold positions in rising order: linear probing whose probe order is also the sort order.
//!
//! So a sorted batch walks the index from front to back, which suits the prefetcher, and a lookup
//! looks at a few neighbouring cells. Pages split as they fill. So rows may come in any order, even
//! sorted, and an insertion never costs more than a page.

mod remove;

use std::ops::RangeInclusive;
use types::PositionRange;
use update::ABSENT;

/// The highest load of a page, in sixteenths. Beyond this, the runs of full cells grow fast.
const MAX_LOAD_SIXTEENTHS: usize = 15;
/// Cells of a new page with `rows` rows: about 0.84 full. 12 bytes a cell then are 13 to 14 bytes a
/// row.
const fn cells_for(rows: usize) -> usize {
    rows * 6 / 5 + 4
}
/// A page with more rows than this is split.
const PAGE_ROWS: usize = 1536;
/// At most this many rows are in a page that comes out of a split.
const SPLIT_ROWS: usize = 896;
/// Cells behind the last home cell, so that the last run of full cells need not wrap around.
const TAIL: usize = 12;
/// Cells are prefetched this many lookups ahead, so that cache misses overlap.
const AHEAD: usize = 16;
/// Cells that a lookup compares at once.
const WINDOW: usize = 8;
/// A list that names at least one in this many rows is looked up by merging it with the pages.
const MERGE_ABOVE: usize = 2;
/// The position in an empty cell. A real position of this value has a slot, an empty cell has none.
const EMPTY: u64 = u64::MAX;

/// Positions in rising order, each with a slot.
#[derive(Debug)]
pub struct SpreadIndex {
    /// Pages in rising order; they cover the range without gaps. Never empty.
    pages: Vec<Page>,
    /// The first position that each page covers: small enough to stay in the cache.
    firsts: Vec<u64>,
    /// How many positions the index holds.
    len: usize,
}

/// The positions from `first` to where the next page begins.
#[derive(Debug)]
struct Page {
    first: u64,
    /// The lowest position that it held when it was laid out.
    lowest: u64,
    /// Scale of home cells: home = (position − lowest) × multiplier / 2⁶⁴, at most `homes`.
    multiplier: u64,
    /// The home cell of positions above the highest that it held when it was laid out.
    homes: usize,
    /// How many positions it holds.
    len: usize,
    /// By cell: the position, or `EMPTY`. Positions rise. The last cell is always empty.
    positions: Vec<u64>,
    /// By cell: the slot, `ABSENT` in an empty cell.
    slots: Vec<u32>,
}

impl Page {
    /// A page that covers positions from `first` on, with these entries (rising).
    fn new(first: u64, entries: &[(u64, u32)]) -> Self {
        let homes = cells_for(entries.len());
        let (lowest, highest) = match entries {
            [] => (first, first),
            [low, .., high] => (low.0, high.0),
            [only] => (only.0, only.0),
        };
        let span = u128::from(highest - lowest) + 1;
        let multiplier = u64::try_from(((homes as u128) << 64) / span).unwrap_or(u64::MAX);
        let mut page =
            Self { first, lowest, multiplier, homes, len: entries.len(), positions: Vec::new(), slots: Vec::new() };
        // Crowded positions may extend past the tail. Then the page gets as many cells as it needs.
        let mut free = 0;
        for (position, _) in entries {
            free = page.home(*position).max(free) + 1;
        }
        let cells = (homes + TAIL).max(free + 1);
        page.positions = vec![EMPTY; cells];
        page.slots = vec![ABSENT; cells];
        free = 0;
        for (position, slot) in entries {
            let cell = page.home(*position).max(free);
            page.positions[cell] = *position;
            page.slots[cell] = *slot;
            free = cell + 1;
        }
        page
    }

    /// The home cell of a position.
    #[inline]
    fn home(&self, position: u64) -> usize {
        let place = u128::from(position.saturating_sub(self.lowest)) * u128::from(self.multiplier);
        ((place >> 64) as usize).min(self.homes)
    }

    /// The first cell at or after its home whose position is not below `position`.
    #[inline]
    fn cell(&self, position: u64) -> usize {
        self.cell_from(self.home(position), position)
    }

    /// The first cell from `home` on whose position is not below `position`.
    #[inline]
    fn cell_from(&self, home: usize, position: u64) -> usize {
        let mut cell = home;
        // Positions rise up to the first empty cell, which counts as highest. So a binary search
        // within a window finds the cell. It is branch-free, because a processor could not predict
        // the branches.
        while let Some(window) = self.positions.get(cell..cell + WINDOW).and_then(|cells| cells.first_chunk::<WINDOW>())
        {
            let mut below = if window[3] < position { 4 } else { 0 };
            below += if window[(below + 1) & 7] < position { 2 } else { 0 };
            below += usize::from(window[below & 7] < position);
            if below < WINDOW - 1 || window[WINDOW - 1] >= position {
                return cell + below;
            }
            cell += WINDOW;
        }
        cell + self.positions[cell..].iter().take_while(|cell| **cell < position).count()
    }

    /// The home cell of a position. Prefetches its cells.
    #[inline]
    fn fetch(&self, position: u64) -> usize {
        let home = self.home(position);
        prefetch(&self.positions, home);
        prefetch(&self.slots, home);
        home
    }

    /// Writes the slot of each of the positions (rising, all of this page), or `ABSENT`. Returns
    /// how many were absent.
    fn merge(&self, wanted: &[u64], found: &mut [u32]) -> usize {
        let count = wanted.len().min(found.len());
        let wanted = &wanted[..count];
        let found = &mut found[..count];
        let mut next = 0;
        let mut absent = 0;
        for (&position, &slot) in self.positions.iter().zip(&self.slots) {
            if next == count {
                return absent;
            }
            if (position > wanted[next]) & (slot != ABSENT) {
                let passed = wanted[next..].iter().take_while(|wanted| **wanted < position).count();
                found[next..next + passed].fill(ABSENT);
                next += passed;
                absent += passed;
                if next == count {
                    return absent;
                }
            }
            // A slot that does not belong here is overwritten later: cheaper than a branch.
            found[next] = slot;
            next += usize::from((position == wanted[next]) & (slot != ABSENT));
        }
        found[next..].fill(ABSENT);
        absent + count - next
    }

    /// Whether the load stays within bounds with `more` positions.
    fn has_room_for(&self, more: usize) -> bool {
        (self.len + more) * 16 <= self.positions.len() * MAX_LOAD_SIXTEENTHS
    }

    /// Inserts a position, and moves the positions behind it up to the next empty cell. Returns
    /// false, without a change, if there is none but the last.
    fn insert(&mut self, position: u64, slot: u32) -> bool {
        let cell = self.cell(position);
        let Some(gap) = self.slots[cell..].iter().position(|&slot| slot == ABSENT).map(|gap| cell + gap) else {
            return false;
        };
        if gap + 1 == self.slots.len() {
            return false;
        }
        self.positions.copy_within(cell..gap, cell + 1);
        self.slots.copy_within(cell..gap, cell + 1);
        self.positions[cell] = position;
        self.slots[cell] = slot;
        self.len += 1;
        true
    }

    /// The positions and slots of this page, rising.
    fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.positions.iter().copied().zip(self.slots.iter().copied()).filter(|(_, slot)| *slot != ABSENT)
    }

    /// This page's entries and `new` ones in one rising sequence.
    fn merged(&self, new: &[(u64, u32)]) -> Vec<(u64, u32)> {
        let mut merged = Vec::with_capacity(self.len + new.len());
        let mut new = new.iter().copied().peekable();
        for entry in self.entries() {
            while let Some(earlier) = new.next_if(|next| next.0 < entry.0) {
                merged.push(earlier);
            }
            merged.push(entry);
        }
        merged.extend(new);
        merged
    }
}

impl SpreadIndex {
    /// An empty index over `range`.
    pub fn new(range: PositionRange) -> Self {
        Self { pages: vec![Page::new(range.first.0, &[])], firsts: vec![range.first.0], len: 0 }
    }

    /// The first position of the page after `page`; `None` for the last page.
    fn limit(&self, page: usize) -> Option<u64> {
        self.firsts.get(page + 1).copied()
    }

    /// The page that covers a position.
    fn page_of(&self, position: u64) -> usize {
        self.firsts.partition_point(|first| *first <= position).saturating_sub(1)
    }

    /// Appends the slot of each position (rising, all in the range), or `ABSENT`. Returns how many
    /// were absent.
    pub fn find(&self, positions: &[u64], slots: &mut Vec<u32>) -> usize {
        let (Some(&lowest), Some(&highest)) = (positions.first(), positions.last()) else { return 0 };
        let pages = self.page_of(highest) - self.page_of(lowest) + 1;
        let rows = self.len * pages / self.pages.len();
        if positions.len() * MERGE_ABOVE >= rows {
            self.find_by_merging(positions, slots)
        } else {
            self.find_by_probing(positions, slots)
        }
    }

    /// Looks up a list that names a large share of the rows between its ends: walks list and pages
    /// side by side.
    fn find_by_merging(&self, positions: &[u64], slots: &mut Vec<u32>) -> usize {
        let start = slots.len();
        slots.resize(start + positions.len(), ABSENT);
        let mut rest = positions;
        let mut found = &mut slots[start..];
        let mut absent = 0;
        while let Some(&position) = rest.first() {
            let page = self.page_of(position);
            let count = match self.limit(page) {
                Some(limit) => rest[..rest.len().min(PAGE_ROWS)].partition_point(|position| *position < limit),
                None => rest.len(),
            };
            let (here, later) = found.split_at_mut(count);
            absent += self.pages[page].merge(&rest[..count], here);
            rest = &rest[count..];
            found = later;
        }
        absent
    }

    /// Looks up a list that names few of the rows between its ends: probes each position from its
    /// home cell, and prefetches the cells of later positions, across pages.
    fn find_by_probing(&self, positions: &[u64], slots: &mut Vec<u32>) -> usize {
        let mut ahead = Ahead { index: self, page: 0, limit: None };
        ahead.go_to(positions[0]);
        let mut homes = [(0, 0); AHEAD];
        for (home, position) in homes.iter_mut().zip(positions) {
            *home = ahead.fetch(*position);
        }
        let mut absent = 0;
        slots.extend(positions.iter().enumerate().map(|(index, &position)| {
            let (page, home) = homes[index % AHEAD];
            if let Some(next) = positions.get(index + AHEAD) {
                homes[index % AHEAD] = ahead.fetch(*next);
            }
            let page = &self.pages[page];
            let cell = page.cell_from(home, position);
            let slot = if page.positions[cell] == position { page.slots[cell] } else { ABSENT };
            absent += usize::from(slot == ABSENT);
            slot
        }));
        absent
    }

    /// Positions and slots in a range of positions, rising.
    pub fn entries(&self, positions: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u32)> + '_ {
        let (first, last) = positions.into_inner();
        let entries = self.pages[self.page_of(first)..].iter().flat_map(Page::entries);
        entries.skip_while(move |(position, _)| *position < first).take_while(move |(position, _)| *position <= last)
    }

    /// The highest position in the index.
    pub fn highest(&self) -> Option<u64> {
        self.pages.iter().rev().find_map(|page| page.entries().last()).map(|(position, _)| position)
    }

    /// Replaces the slots of the first `most` positions from `first` on by what `renumber` gives
    /// for them, in position order. Returns the position after them.
    pub fn renumber_some(&mut self, first: u64, most: usize, mut renumber: impl FnMut(u32) -> u32) -> Option<u64> {
        let page = self.page_of(first);
        let mut left = most;
        for page in &mut self.pages[page..] {
            for (position, slot) in page.positions.iter().zip(&mut page.slots) {
                if *slot == ABSENT || *position < first {
                    continue;
                }
                if left == 0 {
                    return Some(*position);
                }
                *slot = renumber(*slot);
                left -= 1;
            }
        }
        None
    }

    /// Adds new positions (rising), with their slots.
    pub fn insert(&mut self, new: &[(u64, u32)]) {
        let mut rest = new;
        let mut split: Vec<(usize, Vec<Page>)> = Vec::new();
        let mut page = rest.first().map_or(0, |(lowest, _)| self.page_of(*lowest));
        while !rest.is_empty() {
            let limit = self.limit(page);
            let count = limit.map_or(rest.len(), |limit| rest.partition_point(|(position, _)| *position < limit));
            // Prefetches the cells of the next positions while these are inserted.
            let next_page = rest.get(count).map_or(0, |(lowest, _)| self.page_of(*lowest));
            for (position, _) in rest[count..].iter().take(AHEAD) {
                self.pages[next_page].fetch(*position);
            }
            if let Some(pages) = add_to_page(&mut self.pages[page], &rest[..count]) {
                split.push((page, pages));
            }
            page = next_page;
            rest = &rest[count..];
        }
        self.len += new.len();
        if split.is_empty() {
            return;
        }
        let mut split = split.into_iter().peekable();
        let old = std::mem::take(&mut self.pages);
        for (index, page) in old.into_iter().enumerate() {
            match split.next_if(|(at, _)| *at == index) {
                Some((_, pages)) => self.pages.extend(pages),
                None => self.pages.push(page),
            }
        }
        self.firsts = self.pages.iter().map(|page| page.first).collect();
    }
}

/// Walks the pages some lookups ahead, to prefetch cells.
struct Ahead<'a> {
    index: &'a SpreadIndex,
    /// The page that it has come to.
    page: usize,
    /// The first position of the page after it.
    limit: Option<u64>,
}

impl Ahead<'_> {
    fn go_to(&mut self, position: u64) {
        self.page = self.index.page_of(position);
        self.limit = self.index.limit(self.page);
        prefetch(&self.index.pages, self.page + 1);
    }

    /// The page and the home cell of a position, which must not be below those before it.
    /// Prefetches its cells.
    #[inline]
    fn fetch(&mut self, position: u64) -> (usize, usize) {
        if self.limit.is_some_and(|limit| position >= limit) {
            self.go_to(position);
        }
        (self.page, self.index.pages[self.page].fetch(position))
    }
}

/// Prefetches the cache line of `slice[index]`. Has no other effect.
#[inline]
fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect and never faults, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}

/// Adds entries to a page. If it had to be split, returns the pages that replace it.
fn add_to_page(page: &mut Page, new: &[(u64, u32)]) -> Option<Vec<Page>> {
    // A few entries are inserted one by one; many are merged in one pass.
    let one_by_one = new.len() * 8 <= page.len && page.has_room_for(new.len());
    let mut added = 0;
    if one_by_one {
        added = new.iter().take_while(|(position, slot)| page.insert(*position, *slot)).count();
        if added == new.len() {
            return None;
        }
    }
    let entries = page.merged(&new[added..]);
    if entries.len() <= PAGE_ROWS {
        *page = Page::new(page.first, &entries);
        return None;
    }
    let pieces = entries.len().div_ceil(SPLIT_ROWS);
    let bounds: Vec<usize> = (0..=pieces).map(|piece| entries.len() * piece / pieces).collect();
    let first_of = |bound: usize| if bound == 0 { page.first } else { entries[bound].0 };
    let pages = bounds.windows(2).map(|piece| Page::new(first_of(piece[0]), &entries[piece[0]..piece[1]]));
    Some(pages.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::Position;

    type Find = fn(&SpreadIndex, &[u64], &mut Vec<u32>) -> usize;
    const ALL_WAYS: [Find; 3] = [SpreadIndex::find, SpreadIndex::find_by_merging, SpreadIndex::find_by_probing];

    fn check(range: PositionRange, batches: &[Vec<u64>]) {
        let mut index = SpreadIndex::new(range);
        let mut model = BTreeMap::new();
        for batch in batches {
            let mut sorted: Vec<u64> = batch.iter().copied().filter(|p| range.contains(Position(*p))).collect();
            sorted.sort_unstable();
            sorted.dedup();
            let expected: Vec<u32> = sorted.iter().map(|p| model.get(p).copied().unwrap_or(ABSENT)).collect();
            let absent = expected.iter().filter(|slot| **slot == ABSENT).count();
            for find in ALL_WAYS.into_iter().filter(|_| !sorted.is_empty()) {
                let mut slots = vec![7];
                assert_eq!(find(&index, &sorted, &mut slots), absent);
                assert_eq!(slots[1..], expected);
            }
            let new: Vec<u64> = sorted.iter().copied().filter(|p| !model.contains_key(p)).collect();
            assert_eq!(absent, new.len());
            let new: Vec<(u64, u32)> = new.into_iter().zip(model.len() as u32..).collect();
            index.insert(&new);
            model.extend(new);
            assert_eq!(index.len, model.len());
        }
        let mut slots = Vec::new();
        index.find(&model.keys().copied().collect::<Vec<_>>(), &mut slots);
        assert_eq!(slots, model.values().copied().collect::<Vec<_>>());
        let mut before = Vec::new();
        let mut next = Some(range.first.0);
        while let Some(first) = next {
            next = index.renumber_some(first, 700, |slot| {
                before.push(slot);
                before.len() as u32 - 1
            });
        }
        assert!(model.values().eq(&before), "in position order");
        slots.clear();
        index.find(&model.keys().copied().collect::<Vec<_>>(), &mut slots);
        assert_eq!(slots, (0..model.len() as u32).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn spread_index_answers_as_a_sorted_map_does(
            batches in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..60), 0..12),
            ends in any::<(u64, u64)>(),
        ) {
            let first = ends.0.min(ends.1);
            let last = ends.0.max(ends.1);
            check(PositionRange { first: Position(first), last: Position(last) }, &batches);
            check(PositionRange::ALL, &batches);
        }

        #[test]
        fn spread_index_finds_crowded_positions(
            batches in prop::collection::vec(prop::collection::vec(0u64..300, 0..60), 0..12),
            high in any::<bool>(),
        ) {
            // All in one corner of the range: the worst case for home cells.
            let corner = |p: &u64| if high { u64::MAX - p } else { *p };
            let batches: Vec<Vec<u64>> = batches.iter().map(|batch| batch.iter().map(corner).collect()).collect();
            check(PositionRange::ALL, &batches);
        }
    }

    #[test]
    fn spread_index_holds_positions_that_are_added_one_by_one() {
        let batches: Vec<Vec<u64>> = (0..6_000u64).map(|i| vec![i.wrapping_mul(0x9E37_79B9_7F4A_7C15)]).collect();
        check(PositionRange::ALL, &batches);
    }

    #[test]
    fn spread_index_holds_positions_that_are_added_in_sorted_batches() {
        let mut all: Vec<u64> = (0..40_000u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        all.sort_unstable();
        let batches: Vec<Vec<u64>> = all.chunks(3_000).map(<[u64]>::to_vec).collect();
        check(PositionRange::ALL, &batches);
    }

    #[test]
    fn spread_index_lookup_probes_few_cells_in_any_insertion_order() {
        let mut all: Vec<u64> = (0..200_000u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let mut walked = |sorted: bool| {
            if sorted {
                all.sort_unstable();
            }
            let mut index = SpreadIndex::new(PositionRange::ALL);
            let mut slot = 0;
            for chunk in all.chunks(7_000) {
                let mut chunk: Vec<(u64, u32)> = chunk.iter().map(|position| (*position, 0)).collect();
                chunk.sort_unstable();
                chunk.iter_mut().zip(slot..).for_each(|(entry, slot)| entry.1 = slot);
                index.insert(&chunk);
                slot += chunk.len() as u32;
            }
            let steps: usize = all
                .iter()
                .map(|position| {
                    let page = &index.pages[index.page_of(*position)];
                    page.cell(*position) - page.home(*position)
                })
                .sum();
            steps as f64 / all.len() as f64
        };
        assert!(walked(false) < 8.0);
        assert!(walked(true) < 8.0);
    }
}
