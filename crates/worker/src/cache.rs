//! Copies of rows in a worker, each with the frontier it is fresh at.

use shard::rows::Index;
use types::{Clock, Consistency, Placement, TableShape, TableSpec};
use update::{ABSENT, Number, add_into, first_not_finite};
use wire::{Keys, Payload, Slice};

/// Which chain of refreshes keeps a shard's rows fresh, as far as it has arrived without a gap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain {
    name: u64,
    link: u64,
    frontier: Clock,
    /// Counts up whenever the chain breaks: rows of an earlier life keep the frontier they were read at.
    life: u64,
}

impl Chain {
    /// A read at `frontier` says which chain and link it belongs to. Returns the life its rows join, if the chain has
    /// arrived exactly as far.
    fn join(&mut self, frontier: Clock, said: Option<(u64, u64)>) -> Option<u64> {
        let (name, link) = said?;
        if name != self.name {
            *self = Self { name, link, frontier, life: self.life + 1 };
        }
        (link == self.link).then_some(self.life)
    }

    /// A link arrives. Returns whether it follows the last one.
    fn follow(&mut self, name: u64, link: u64, frontier: Clock) -> bool {
        let follows = name == self.name && Some(link) == self.link.checked_add(1);
        if follows {
            self.link = link;
            self.frontier = self.frontier.max(frontier);
        } else if name == self.name {
            self.cut();
        }
        follows
    }

    /// Something was missed: rows kept by this chain are only as fresh as when they were read.
    fn cut(&mut self) {
        *self = Self { name: 0, link: 0, frontier: Clock(0), life: self.life + 1 };
    }
}

/// Rows that came from a shard.
pub struct Arrival<'a> {
    pub shard: usize,
    pub frontier: Clock,
    pub keys: &'a Slice,
    pub values: &'a Payload,
    /// The worker's own later pushes, which the rows do not hold.
    pub later: Vec<(&'a Slice, Own<'a>)>,
}

/// What a worker itself did to rows.
#[derive(Clone, Copy)]
pub enum Own<'a> {
    /// It pushed these gradients.
    Pushed(&'a Payload),
    /// It put others in their place, which the shard will tell.
    Set,
}

/// A cache of any number type.
pub trait AnyCache: Send {
    /// Copies what the rule admits into `target`, notes the others by index, and returns the smallest frontier copied.
    fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8], misses: &mut Vec<u32>) -> Option<Clock>;
    /// Keeps what a read brought.
    fn store(&mut self, arrival: &Arrival<'_>, chain: Option<(u64, u64)>);
    /// Keeps what a refresh brought, if it follows the one before; else lets the chain go.
    fn refresh(&mut self, arrival: &Arrival<'_>, chain: u64, link: u64, intact: bool);
    /// The sum of squares of those rows that there are copies of, however old.
    fn squares(&self, keys: &Slice) -> Option<f64>;
    /// The worker itself pushes to these rows.
    fn pushed(&mut self, keys: &Slice, values: &Payload);
    /// Copies of these rows are given up: the worker has set them, or the shard refused what it pushed to them, which they hold.
    fn give_up(&mut self, keys: &Slice);
}

/// A cache for a table.
pub fn make(spec: &TableSpec, max_rows: u64, shards: usize) -> Box<dyn AnyCache> {
    match spec.number {
        types::NumberType::F32 => Box::new(Cache::<f32>::new(spec, max_rows, shards)),
        types::NumberType::F64 => Box::new(Cache::<f64>::new(spec, max_rows, shards)),
        types::NumberType::I64 => Box::new(Cache::<i64>::new(spec, max_rows, shards)),
    }
}

#[derive(Clone, Copy)]
struct Tag {
    frontier: Clock,
    shard: u32,
    life: Option<u64>,
}

struct Cache<T> {
    spec: TableSpec,
    max_rows: u64,
    index: Index,
    slab: Vec<T>,
    /// `None`: no copy, or one that lacks an own push.
    tags: Vec<Option<Tag>>,
    chains: Vec<Chain>,
}

impl<T: Number> Cache<T> {
    fn new(spec: &TableSpec, max_rows: u64, shards: usize) -> Self {
        let mut cache = Self {
            spec: spec.clone(),
            max_rows,
            index: index_for(spec, max_rows),
            slab: Vec::new(),
            tags: Vec::new(),
            chains: vec![Chain::default(); shards],
        };
        cache.clear();
        cache
    }

    fn width(&self) -> usize {
        self.spec.width as usize
    }

    /// Empties the cache: the bound is kept by starting over, which costs one round of reads.
    fn clear(&mut self) {
        self.index = index_for(&self.spec, self.max_rows);
        let rows = if self.index.is_dense() { self.spec.shape.extent().last.0 as usize + 1 } else { 0 };
        self.slab = vec![T::ZERO; rows * self.width()];
        self.tags = vec![None; rows];
    }

    fn slots(&self, positions: &[u64]) -> Vec<u32> {
        let mut slots = Vec::new();
        self.index.find(positions, &mut slots);
        slots
    }

    fn slots_or_new(&mut self, positions: &[u64]) -> Vec<u32> {
        let mut slots = self.slots(positions);
        let new: Vec<u64> =
            slots.iter().zip(positions).filter(|(slot, _)| **slot == ABSENT).map(|(_, position)| *position).collect();
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
        self.slab.resize(self.tags.len() * self.width(), T::ZERO);
        slots.iter_mut().filter(|slot| **slot == ABSENT).zip(first..).for_each(|(slot, new)| *slot = new);
        slots
    }

    /// What a copy is fresh at by now: its chain may have carried it on.
    fn frontier(&self, tag: Tag) -> Clock {
        let chain = self.chains[tag.shard as usize];
        if tag.life == Some(chain.life) { tag.frontier.max(chain.frontier) } else { tag.frontier }
    }

    fn keep(&mut self, arrival: &Arrival<'_>, life: Option<u64>) {
        let width = self.width();
        let Some(values) = arrival.values.numbers::<T>() else { return };
        let positions = positions(arrival.keys);
        let slots = self.slots_or_new(&positions);
        let mut kept = Vec::with_capacity(positions.len());
        for ((&slot, position), row) in slots.iter().zip(&positions).zip(values.chunks_exact(width)) {
            let Some(tag) = self.tags.get_mut(slot as usize) else { continue };
            // A late arrival must not put an older row in place of a newer one.
            if tag.is_some_and(|tag| tag.frontier > arrival.frontier) {
                continue;
            }
            *tag = Some(Tag { frontier: arrival.frontier, shard: arrival.shard as u32, life });
            self.slab[slot as usize * width..][..width].copy_from_slice(row);
            kept.push(*position);
        }
        // A newer row that stays has these in it already.
        for (keys, own) in &arrival.later {
            match own {
                Own::Pushed(values) => self.add_own(keys, values, Some(&kept)),
                Own::Set => self.give_up(keys),
            }
        }
    }

    /// An additive updater's effect is known: add it. Any other leaves the copy without its own push.
    fn add_own(&mut self, keys: &Slice, values: &Payload, only: Option<&[u64]>) {
        let additive = self.spec.updater.is_additive();
        let width = self.width();
        let Some(values) = values.numbers::<T>() else { return };
        if first_not_finite(values).is_some() {
            // The shard will refuse the part whole: the rows stay as they were.
            return;
        }
        let positions = positions(keys);
        let slots = self.slots(&positions);
        for ((slot, position), row) in slots.into_iter().zip(&positions).zip(values.chunks_exact(width)) {
            if slot == ABSENT || only.is_some_and(|only| only.binary_search(position).is_err()) {
                continue;
            }
            if additive {
                add_into(&mut self.slab[slot as usize * width..][..width], row);
            } else {
                self.tags[slot as usize] = None;
            }
        }
    }
}

/// A dense table that fits is kept as it is; of a larger one, whatever rows are read.
pub(super) fn index_for(spec: &TableSpec, max_rows: u64) -> Index {
    let shape = match spec.shape {
        TableShape::Dense { rows } if rows > max_rows => TableShape::Sparse { placement: Placement::Ordered, max_rows },
        shape => shape,
    };
    Index::new(shape, spec.shape.extent())
}

pub(super) fn positions(keys: &Slice) -> Vec<u64> {
    keys.sorted().map_or_else(|| (0..keys.len()).map(|index| keys.position(index).0).collect(), <[u64]>::to_vec)
}

impl<T: Number> AnyCache for Cache<T> {
    fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8], misses: &mut Vec<u32>) -> Option<Clock> {
        let width = self.width();
        let row_bytes = width * size_of::<T>();
        let slots = self.slots(&positions(&keys.slice(0..keys.len())));
        let rule: Consistency = self.spec.consistency;
        let mut lowest = None;
        for (index, &slot) in slots.iter().enumerate() {
            let fresh = self.tags.get(slot as usize).copied().flatten().map(|tag| self.frontier(tag));
            match fresh.filter(|frontier| rule.admits(reader, *frontier)) {
                Some(frontier) => {
                    let row = &self.slab[slot as usize * width..][..width];
                    target[index * row_bytes..][..row_bytes].copy_from_slice(bytemuck::cast_slice(row));
                    lowest = Some(lowest.map_or(frontier, |lowest: Clock| lowest.min(frontier)));
                }
                None => misses.push(index as u32),
            }
        }
        lowest
    }

    fn store(&mut self, arrival: &Arrival<'_>, chain: Option<(u64, u64)>) {
        let life = self.chains[arrival.shard].join(arrival.frontier, chain);
        self.keep(arrival, life);
    }

    fn refresh(&mut self, arrival: &Arrival<'_>, chain: u64, link: u64, intact: bool) {
        let state = &mut self.chains[arrival.shard];
        if !intact && state.name == chain {
            return state.cut();
        }
        if state.follow(chain, link, arrival.frontier) {
            let life = state.life;
            self.keep(arrival, Some(life));
        }
    }

    fn squares(&self, keys: &Slice) -> Option<f64> {
        let width = self.width();
        let slots = self.slots(&positions(keys));
        let copied = slots.into_iter().filter(|slot| self.tags.get(*slot as usize).copied().flatten().is_some());
        let rows = copied.flat_map(|slot| &self.slab[slot as usize * width..][..width]);
        let squares: Vec<f64> = rows.map(|value| value.to_f64() * value.to_f64()).collect();
        (!squares.is_empty()).then(|| squares.iter().sum())
    }

    fn pushed(&mut self, keys: &Slice, values: &Payload) {
        self.add_own(keys, values, None);
    }

    fn give_up(&mut self, keys: &Slice) {
        for slot in self.slots(&positions(keys)) {
            if let Some(tag) = self.tags.get_mut(slot as usize) {
                *tag = None;
            }
        }
    }
}
