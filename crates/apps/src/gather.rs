//! Prepares a minibatch for a program: finds its distinct keys, and for each feature the place of
//! its weight among the rows that are pulled for those keys. Standardises the values if asked to.
//!
//! Small keys are looked up in an array, others in a hash table. Both keep stamps, so nothing is
//! cleared between minibatches.

use crate::scaling::{Scale, Scaling};
use data::Minibatch;
use slackwater::Keys;
use slackwater::policy::Placement;

/// The key of a program's constant term. Features hardly ever have it: indices of LibSVM are
/// smaller, and a hash equals it once in 2⁶⁴.
pub const BIAS: u64 = u64::MAX;

/// A minibatch with its distinct keys. Weights and gradients are in the order of `keys`.
pub struct Examples<'a> {
    /// The rows as they were read.
    pub batch: &'a Minibatch,
    /// The distinct keys, in the order of the table.
    pub keys: &'a Keys,
    /// For each feature of the batch, the place of its key in `keys`.
    places: &'a [u32],
    /// For each feature of the batch, its value.
    values: &'a [f32],
    label: Scale,
    bias: Option<u32>,
}

/// One example: its label, and where its weights are.
pub struct Example<'a> {
    /// The label; 0 if the data has no labels.
    pub label: f32,
    /// How many ordinary examples it counts for.
    pub importance: f32,
    /// For each feature, the place of its weights. A place may come twice, if two names hash to one
    /// key.
    pub places: &'a [u32],
    /// For each feature, its value.
    pub values: &'a [f32],
    /// The place of the constant term, if the program learns one.
    pub bias: Option<u32>,
}

impl Example<'_> {
    /// The places and values of all terms, the constant term last.
    pub fn terms(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        let features = self.places.iter().zip(self.values).map(|(place, value)| (*place as usize, *value));
        features.chain(self.bias.map(|place| (place as usize, 1.0)))
    }

    /// Σ w x over the terms, for a table with one weight for each key.
    #[must_use]
    pub fn score(&self, weights: &[f32]) -> f64 {
        // Four sums, so that an addition need not wait for the one before.
        let mut sums = [0.0; 4];
        let mut places = self.places.chunks_exact(4);
        let mut values = self.values.chunks_exact(4);
        let term = |(place, value): (&u32, &f32)| f64::from(weights[*place as usize]) * f64::from(*value);
        for four in (&mut places).zip(&mut values) {
            sums.iter_mut().zip(four.0.iter().zip(four.1).map(term)).for_each(|(sum, term)| *sum += term);
        }
        let rest: f64 = places.remainder().iter().zip(values.remainder()).map(term).sum();
        let constant = self.bias.map_or(0.0, |place| f64::from(weights[place as usize]));
        (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest + constant
    }
}

impl Examples<'_> {
    /// How many examples there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.rows()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The examples, first to last.
    pub fn iter(&self) -> impl Iterator<Item = Example<'_>> {
        let labels = self.batch.labels();
        let importances = self.batch.importances();
        self.batch.offsets().windows(2).enumerate().map(move |(row, ends)| Example {
            label: labels.get(row).map_or(0.0, |label| self.label.apply(*label)),
            importance: importances.map_or(1.0, |importances| importances[row]),
            places: &self.places[ends[0]..ends[1]],
            values: &self.values[ends[0]..ends[1]],
            bias: self.bias,
        })
    }
}

/// The keys that a minibatch needs of the tables, found ahead of time in the reader's thread.
pub struct GatheredKeys {
    /// The distinct keys, in the order of the table.
    pub keys: Keys,
    places: Vec<u32>,
    /// The scaled values, if features are standardised.
    scaled: Option<Vec<f32>>,
    label: Scale,
    bias: Option<u32>,
}

impl Default for GatheredKeys {
    fn default() -> Self {
        Self { keys: Keys::run(0..0), places: Vec::new(), scaled: None, label: Scale::NONE, bias: None }
    }
}

impl GatheredKeys {
    /// The examples of `batch`, from which this was gathered.
    #[must_use]
    pub fn examples<'a>(&'a self, batch: &'a Minibatch) -> Examples<'a> {
        let values = self.scaled.as_deref().unwrap_or_else(|| batch.values());
        let Self { keys, places, label, bias, .. } = self;
        Examples { batch, keys, places, values, label: *label, bias: *bias }
    }
}

/// Finds the distinct keys of one minibatch after another, and uses its memory again.
pub struct Gather {
    placement: Placement,
    with_bias: bool,
    scaling: Option<Scaling>,
    seen: Seen,
    /// For each distinct key, its place in the table's order.
    order: Vec<u32>,
}

impl Gather {
    /// For tables of this placement, with or without a constant term, and with standardised
    /// features if `scaling` is given.
    #[must_use]
    pub fn new(placement: Placement, with_bias: bool, scaling: Option<&Scaling>) -> Self {
        Self { placement, with_bias, scaling: scaling.cloned(), seen: Seen::default(), order: Vec::new() }
    }

    /// Fills `gathered` for a minibatch.
    pub fn gather(&mut self, batch: &Minibatch, gathered: &mut GatheredKeys) {
        let Self { placement, with_bias, scaling, seen, order } = self;
        let GatheredKeys { keys, places, scaled, label, bias } = gathered;
        seen.begin();
        places.clear();
        seen.places(batch.keys(), places);
        *bias = with_bias.then(|| seen.place(BIAS));
        *keys = Keys::with_places(*placement, seen.distinct(), order);
        let order = &order[..];
        for place in places.iter_mut() {
            *place = order[*place as usize];
        }
        *bias = bias.map(|place| order[place as usize]);
        if let Some(scaling) = scaling {
            let scales: Vec<Scale> = keys.ids().map(|key| scaling.of(key)).collect();
            let on_scale =
                places.iter().zip(batch.values()).map(|(place, value)| scales[*place as usize].apply(*value));
            let scaled = scaled.get_or_insert_default();
            scaled.clear();
            scaled.extend(on_scale);
            *label = scaling.label();
        }
    }
}

/// The distinct keys of a minibatch, in the order in which they first came. Finds a key's place by
/// its stamp: from an array for small keys, from a hash table for others.
#[derive(Default)]
struct Seen {
    /// How many of `keys` are distinct keys of this minibatch; the rest is spare room.
    count: usize,
    keys: Vec<u64>,
    /// The stamp of this minibatch's first key. A smaller stamp is from an earlier minibatch, so
    /// nothing has to be cleared between minibatches.
    first: u32,
    /// The stamps of small keys, by key. A key's stamp is `first` plus its place.
    small: Vec<u32>,
    /// A hash table of the other keys, with linear probing.
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    key: u64,
    stamp: u32,
}

/// Keys below this have a stamp each in `Seen::small`. A power of two.
const SMALL: u64 = 1 << 20;
/// At least this many cells of the hash table for each distinct key.
const ROOM: usize = 2;
/// Cells of the hash table, at least. A power of two.
const FEWEST_CELLS: usize = 1 << 10;
/// Keys that are looked up together, all in the array or each by itself.
const SOME: usize = 512;

impl Seen {
    /// Begins a minibatch.
    fn begin(&mut self) {
        let next = self.first.max(1).checked_add(self.count as u32).filter(|next| *next < u32::MAX / 2);
        self.first = next.unwrap_or_else(|| {
            self.small.fill(0);
            self.cells.fill(Cell::default());
            1
        });
        self.count = 0;
    }

    fn distinct(&self) -> &[u64] {
        &self.keys[..self.count]
    }

    /// Appends the place of each key to `places`.
    fn places(&mut self, keys: &[u64], places: &mut Vec<u32>) {
        for some in keys.chunks(SOME) {
            // All bits of all keys, so no key is larger than this.
            let bits = some.iter().fold(0, |bits, key| bits | *key);
            if bits < SMALL {
                self.make_small(bits);
                self.small_places(some, places);
            } else {
                places.extend(some.iter().map(|key| self.place(*key)));
            }
        }
    }

    /// Like [`places`](Self::places), for keys that all have a stamp in the array.
    ///
    /// The processor cannot predict whether a key is new, so the code does not branch on it. Each
    /// key is written behind the distinct ones, and stays there if it is new.
    fn small_places(&mut self, keys: &[u64], places: &mut Vec<u32>) {
        self.make_room(keys.len());
        let first = self.first;
        let small = &mut self.small[..];
        let distinct = &mut self.keys[..];
        let mut count = self.count;
        places.extend(keys.iter().map(|key| {
            let stamp = &mut small[*key as usize];
            let is_new = *stamp < first;
            let place = if is_new { count as u32 } else { *stamp - first };
            *stamp = first + place;
            distinct[count] = *key;
            count += usize::from(is_new);
            place
        }));
        self.count = count;
    }

    /// Makes room behind the distinct keys for `more` keys, and for one that is not new.
    fn make_room(&mut self, more: usize) {
        if self.keys.len() <= self.count + more {
            self.keys.resize((self.count + more + 1).next_power_of_two(), 0);
        }
    }

    /// Gives each key up to this one a stamp in the array.
    fn make_small(&mut self, key: u64) {
        if self.small.len() <= key as usize {
            self.small.resize((key as usize + 1).next_power_of_two(), 0);
        }
    }

    /// The place of a key among the distinct ones. A new key gets the next place.
    #[inline]
    fn place(&mut self, key: u64) -> u32 {
        let first = self.first;
        let next = self.count as u32;
        let stamp = match self.small.get_mut(key as usize) {
            Some(stamp) => stamp,
            None => self.rare(key),
        };
        if let Some(place) = stamp.checked_sub(first) {
            return place;
        }
        *stamp = first + next;
        self.make_room(1);
        self.keys[self.count] = key;
        self.count += 1;
        next
    }

    /// The stamp of a key that is not in the array yet, or too large for it.
    fn rare(&mut self, key: u64) -> &mut u32 {
        if key < SMALL {
            self.make_small(key);
            return &mut self.small[key as usize];
        }
        if (self.count + 1) * ROOM > self.cells.len() {
            self.grow();
        }
        let at = self.cell(key);
        self.cells[at].key = key;
        &mut self.cells[at].stamp
    }

    /// The cell of a key, or the empty cell that it can take.
    #[inline]
    fn cell(&self, key: u64) -> usize {
        let mask = self.cells.len() - 1;
        // The highest bits of a product with 2⁶⁴ / φ, which differ for neighbouring keys (Fibonacci
        // hashing).
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.cells.len().trailing_zeros())) as usize;
        while self.cells[at].stamp >= self.first && self.cells[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    /// Doubles the hash table, and puts this minibatch's keys into it again.
    fn grow(&mut self) {
        let count = (self.cells.len() * 2).max(FEWEST_CELLS);
        self.cells.clear();
        self.cells.resize(count, Cell::default());
        for (stamp, place) in (self.first..).zip(0..self.count) {
            let key = self.keys[place];
            if key >= SMALL {
                let at = self.cell(key);
                self.cells[at] = Cell { key, stamp };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: &[&[u64]]) -> Minibatch {
        let mut batch = Minibatch::new();
        for row in rows {
            row.iter().for_each(|key| batch.push(*key, *key as f32));
            batch.end_row(row.len() as f32);
        }
        batch
    }

    #[test]
    fn gather_finds_each_features_key_after_any_earlier_minibatch() {
        // Some keys are small, some are hashed.
        let many: Vec<u64> = (0..5_000).map(|key| key * key).collect();
        let mut gathers = [false, true].map(|with_bias| Gather::new(Placement::Spread, with_bias, None));
        let mut gathered = GatheredKeys::default();
        for rows in [&[&[7, 3, 7][..], &[], &[3, 900]][..], &[&many, &many[..9]], &[], &[&[900][..], &[u64::MAX - 1]]] {
            for gather in &mut gathers {
                let batch = batch(rows);
                let with_bias = gather.with_bias;
                gather.gather(&batch, &mut gathered);
                let examples = gathered.examples(&batch);
                let ids: Vec<u64> = examples.keys.ids().collect();
                assert_eq!(ids.contains(&BIAS), with_bias);
                assert_eq!(examples.len(), rows.len());
                for (example, row) in examples.iter().zip(rows) {
                    let found: Vec<u64> = example.places.iter().map(|place| ids[*place as usize]).collect();
                    assert_eq!(found, *row);
                    assert_eq!(example.bias.map(|place| ids[place as usize]), with_bias.then_some(BIAS));
                    assert_eq!(example.label, row.len() as f32);
                    assert_eq!(example.terms().count(), row.len() + usize::from(with_bias));
                }
            }
        }
    }

    #[test]
    fn stamps_restart_when_they_run_out() {
        let mut seen = Seen::default();
        let keys = [5, 1 << 40, 5, 6, 1 << 40];
        for first in [0, u32::MAX / 2 - 2, 0] {
            seen.first = first.max(seen.first);
            seen.begin();
            assert_eq!(keys.map(|key| seen.place(key)), [0, 1, 0, 2, 1], "after {first}");
        }
        assert!(seen.first < 100);
    }
}
