//! Copies that grow by steps: where a lossy codec shrinks what shards send, a worker keeps published rows and adds to them
//! what each step says they change by, in order. All copies of a shard's rows are then as the shard published them last.

use super::cache::{index_for, positions};
use shard::rows::Index;
use types::{Clock, Consistency, TableSpec};
use update::{ABSENT, add_into};
use wire::{Keys, Slice};

/// Pieces of one move of the frontier: a table of a terabyte has no more.
const MOST_PIECES: usize = 1 << 20;

/// How far a shard's steps have come.
#[derive(Clone, Debug, Default)]
struct Followed {
    chain: u64,
    step: u64,
    frontier: Clock,
    /// Pieces of a move of the frontier that has not arrived whole: their numbers, positions and changes.
    staged: Vec<(u64, Vec<u64>, Vec<f32>)>,
}

/// When a row was copied.
#[derive(Clone, Copy, Debug)]
struct Tag {
    shard: u32,
    chain: u64,
    step: u64,
    frontier: Clock,
}

/// Copies of a table's published rows.
pub struct Copies {
    spec: TableSpec,
    max_rows: u64,
    index: Index,
    rows: Vec<f32>,
    tags: Vec<Option<Tag>>,
    shards: Vec<Followed>,
}

/// What copies say to a read.
#[derive(Debug, Default)]
pub struct Answer {
    /// The smallest frontier among the rows that were copied out.
    pub clock: Option<Clock>,
    /// By place in the list: copies that the rule does not admit before some steps are added.
    pub stale: Vec<u32>,
    /// By place in the list: no copies.
    pub absent: Vec<u32>,
}

impl Copies {
    pub fn new(spec: &TableSpec, max_rows: u64, shards: usize) -> Self {
        let mut copies = Self {
            spec: spec.clone(),
            max_rows,
            index: index_for(spec, max_rows),
            rows: Vec::new(),
            tags: Vec::new(),
            shards: vec![Followed::default(); shards],
        };
        copies.clear();
        copies
    }

    fn width(&self) -> usize {
        self.spec.width as usize
    }

    /// Gives all copies up: they are read anew.
    fn clear(&mut self) {
        self.index = index_for(&self.spec, self.max_rows);
        let rows = if self.index.is_dense() { self.spec.shape.extent().last.0 as usize + 1 } else { 0 };
        self.rows = vec![0.0; rows * self.width()];
        self.tags = vec![None; rows];
    }

    /// The last step of a shard that was added.
    pub fn step(&self, shard: usize) -> u64 {
        self.shards[shard].step
    }

    /// What a copy is fresh at, if its shard still counts on it.
    fn frontier(&self, tag: Tag) -> Option<Clock> {
        let shard = &self.shards[tag.shard as usize];
        let carried = if shard.step >= tag.step { shard.frontier } else { Clock(0) };
        (tag.chain == shard.chain).then_some(tag.frontier.max(carried))
    }

    /// Copies what the rule admits into `target` and says what it lacks.
    pub fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8]) -> Answer {
        let row_bytes = self.width() * 4;
        let rule: Consistency = self.spec.consistency;
        let mut answer = Answer::default();
        let mut slots = Vec::new();
        self.index.find(&positions(&keys.slice(0..keys.len())), &mut slots);
        for (place, &slot) in (0..).zip(&slots) {
            let tag = self.tags.get(slot as usize).copied().flatten();
            match tag.and_then(|tag| self.frontier(tag)) {
                Some(frontier) if rule.admits(reader, frontier) => {
                    self.copy(slot, &mut target[place as usize * row_bytes..][..row_bytes]);
                    answer.clock = Some(answer.clock.map_or(frontier, |clock: Clock| clock.min(frontier)));
                }
                Some(_) => answer.stale.push(place),
                None => answer.absent.push(place),
            }
        }
        answer
    }

    fn copy(&self, slot: u32, target: &mut [u8]) {
        let row = &self.rows[slot as usize * self.width()..][..self.width()];
        target.copy_from_slice(bytemuck::cast_slice(row));
    }

    /// Copies rows out, whatever the rule says. Returns the smallest frontier among them, and by index those that are no longer
    /// there.
    pub fn fill(&self, keys: &Slice, rows: &[u32], target: &mut [u8]) -> (Option<Clock>, Vec<u32>) {
        let row_bytes = self.width() * 4;
        let mut slots = Vec::new();
        self.index.find(&positions(keys), &mut slots);
        let (mut clock, mut gone) = (None, Vec::new());
        for (index, (&slot, &row)) in (0..).zip(slots.iter().zip(rows)) {
            let tag = self.tags.get(slot as usize).copied().flatten();
            match tag.and_then(|tag| self.frontier(tag)) {
                Some(frontier) => {
                    self.copy(slot, &mut target[row as usize * row_bytes..][..row_bytes]);
                    clock = Some(clock.map_or(frontier, |clock: Clock| clock.min(frontier)));
                }
                None => gone.push(index),
            }
        }
        (clock, gone)
    }

    /// Keeps published rows that hold all steps up to `step`.
    pub fn keep(&mut self, shard: usize, frontier: Clock, (chain, step): (u64, u64), keys: &Slice, values: &[f32]) {
        let followed = &mut self.shards[shard];
        if followed.chain > chain {
            return;
        }
        if followed.chain < chain {
            *followed = Followed { chain, step, frontier, staged: Vec::new() };
        }
        // A late arrival: the steps that it lacks will not come again.
        if step < followed.step {
            return;
        }
        let width = self.width();
        let positions = positions(keys);
        let slots = self.slots_or_new(&positions);
        for (&slot, row) in slots.iter().zip(values.chunks_exact(width)) {
            let Some(tag) = self.tags.get_mut(slot as usize) else { continue };
            if tag.is_some_and(|tag| tag.chain == chain && tag.step > step) {
                continue;
            }
            *tag = Some(Tag { shard: shard as u32, chain, step, frontier });
            self.rows[slot as usize * width..][..width].copy_from_slice(row);
        }
    }

    fn slots_or_new(&mut self, positions: &[u64]) -> Vec<u32> {
        let mut slots = Vec::new();
        self.index.find(positions, &mut slots);
        let absent = slots.iter().zip(positions).filter(|(slot, _)| **slot == ABSENT);
        let new: Vec<u64> = absent.map(|(_, position)| *position).collect();
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
        let first = self.tags.len() as u32;
        self.index.insert(&new, first);
        self.tags.resize(self.tags.len() + new.len(), None);
        self.rows.resize(self.tags.len() * self.width(), 0.0);
        slots.iter_mut().filter(|slot| **slot == ABSENT).zip(first..).for_each(|(slot, new)| *slot = new);
        slots
    }

    /// How many of these rows there are copies of.
    pub fn held(&self, positions: &[u64]) -> usize {
        let mut slots = Vec::new();
        self.index.find(positions, &mut slots);
        slots.into_iter().filter(|slot| self.tags.get(*slot as usize).copied().flatten().is_some()).count()
    }

    /// Whether copies of a shard's rows are of this chain.
    pub fn is_of(&self, shard: usize, chain: u64) -> bool {
        self.shards[shard].chain == chain
    }

    /// Whether a step is the next one of a shard.
    pub fn follows(&self, shard: usize, chain: u64, number: u64) -> bool {
        self.shards[shard].chain == chain && self.shards[shard].step.checked_add(1) == Some(number)
    }

    /// Takes a step that [`Copies::follows`]. Copies change when all pieces of a move of the frontier are there: never do they
    /// hold one clock here and another there.
    pub fn add(&mut self, shard: usize, positions: Vec<u64>, changes: Vec<f32>, reaches: Option<Clock>) {
        let width = self.width();
        let followed = &mut self.shards[shard];
        followed.step += 1;
        followed.staged.push((followed.step, positions, changes));
        let Some(frontier) = reaches else {
            // No move of the frontier has so many pieces: whoever sends them is not to be followed.
            if followed.staged.len() > MOST_PIECES {
                self.lose(shard);
            }
            return;
        };
        followed.frontier = followed.frontier.max(frontier);
        let chain = followed.chain;
        for (number, positions, changes) in std::mem::take(&mut followed.staged) {
            let mut slots = Vec::new();
            self.index.find(&positions, &mut slots);
            for (&slot, change) in slots.iter().zip(changes.chunks_exact(width)) {
                let tag = self.tags.get(slot as usize).copied().flatten();
                if tag.is_some_and(|tag| tag.chain == chain && tag.step < number) {
                    add_into(&mut self.rows[slot as usize * width..][..width], change);
                }
            }
        }
    }

    /// A shard says that a reader with all steps up to `step` is fresh at `frontier`. Returns whether this one has them.
    pub fn reach(&mut self, shard: usize, frontier: Clock, chain: u64, step: u64) -> bool {
        let followed = &mut self.shards[shard];
        let there = followed.chain == chain && followed.step >= step;
        if there {
            followed.frontier = followed.frontier.max(frontier);
        }
        there
    }

    /// A shard no longer knows the steps that would follow: its rows are read anew.
    pub fn lose(&mut self, shard: usize) {
        // No copy is of this chain, and the next answer starts a new one, whatever its name.
        self.shards[shard] = Followed::default();
        for tag in &mut self.tags {
            if tag.is_some_and(|tag| tag.shard as usize == shard) {
                *tag = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(copies: &Copies, ids: &[u64], reader: u64) -> (Vec<f32>, Answer) {
        let keys = Keys::in_order(types::Placement::Ordered, ids).expect("sorted");
        let mut values = vec![0f32; ids.len()];
        let answer = copies.read(&keys, Clock(reader), bytemuck::cast_slice_mut(&mut values));
        (values, answer)
    }

    fn keep(copies: &mut Copies, frontier: u64, at: (u64, u64), ids: &[u64], values: &[f32]) {
        let keys = Keys::in_order(types::Placement::Ordered, ids).expect("sorted");
        copies.keep(0, Clock(frontier), at, &keys.slice(0..keys.len()), values);
    }

    #[test]
    fn steps_are_added_in_order_to_the_rows_that_lack_them() {
        let spec = TableSpec::sparse("t", 1).ordered();
        let mut copies = Copies::new(&spec, 100, 1);
        keep(&mut copies, 0, (1, 4), &[10, 20], &[1.0, 2.0]);
        assert!(!copies.follows(0, 1, 6), "one is missing");
        assert!(!copies.follows(0, 2, 5), "of another chain");
        assert!(copies.follows(0, 1, 5));
        // A row that is read later holds that step already.
        keep(&mut copies, 1, (1, 5), &[30], &[3.0]);
        copies.add(0, vec![10, 30, 40], vec![0.5, 0.5, 0.5], Some(Clock(1)));
        assert!(!copies.reach(0, Clock(2), 1, 6) && copies.reach(0, Clock(1), 1, 5));
        let (values, answer) = read(&copies, &[10, 20, 30, 40], 1);
        assert_eq!((values, answer.clock), (vec![1.5, 2.0, 3.0, 0.0], Some(Clock(1))));
        assert_eq!((answer.stale, answer.absent), (vec![], vec![3]));
        let (_, answer) = read(&copies, &[10, 30], 2);
        assert_eq!((answer.stale, answer.absent), (vec![0, 1], vec![]), "not fresh enough");
        keep(&mut copies, 0, (1, 4), &[10], &[1.0]);
        assert_eq!(read(&copies, &[10], 1).0, [1.5], "a late answer changes nothing");
    }

    #[test]
    fn a_new_chain_and_a_lost_one_make_copies_worthless() {
        let spec = TableSpec::dense("t", 4, 1);
        let mut copies = Copies::new(&spec, 100, 1);
        keep(&mut copies, 0, (1, 4), &[0, 1], &[1.0, 2.0]);
        keep(&mut copies, 0, (2, 0), &[1], &[5.0]);
        assert_eq!(read(&copies, &[0, 1], 0).1.absent, [0]);
        keep(&mut copies, 0, (1, 9), &[0], &[1.0]);
        assert_eq!(read(&copies, &[0], 0).1.absent, [0], "of the old chain");
        copies.lose(0);
        assert_eq!(read(&copies, &[0, 1], 0).1.absent, [0, 1]);
    }
}
