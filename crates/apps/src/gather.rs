//! The distinct keys of a minibatch, and where each feature's weight lies among what was pulled for them.

use crate::scaling::{Scale, Scaling};
use data::Minibatch;
use slackwater::Keys;

/// The key under which a program learns its constant term. Readers never make it: indices are smaller, and a hash meets it
/// once in 2⁶⁴.
pub const BIAS: u64 = u64::MAX;

/// A minibatch with its distinct keys. Weights and gradients come in the order of `keys`.
pub struct Examples<'a> {
    /// The rows as they were read.
    pub batch: &'a Minibatch,
    /// The distinct keys, in the order of the table.
    pub keys: Keys,
    /// For each feature of the batch, the place of its key.
    places: &'a [u32],
    /// For each feature of the batch, its value.
    values: &'a [f32],
    label: Scale,
    bias: Option<u32>,
}

/// One example: its label, and where its weights are.
pub struct Example<'a> {
    /// What is to be learnt; 0 where the data has no labels.
    pub label: f32,
    /// How many ordinary examples it counts for.
    pub importance: f32,
    /// For each feature, the place of its weights. One place may come twice, where two names hash to one key.
    pub places: &'a [u32],
    /// For each feature, its value.
    pub values: &'a [f32],
    /// The place of the constant term, if the program learns one.
    pub bias: Option<u32>,
}

impl Example<'_> {
    /// The places and values of all terms, the constant one last.
    pub fn terms(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        let features = self.places.iter().zip(self.values).map(|(place, value)| (*place as usize, *value));
        features.chain(self.bias.map(|place| (place as usize, 1.0)))
    }

    /// Σ w x over the terms, where each weight is one number.
    #[must_use]
    pub fn score(&self, weights: &[f32]) -> f64 {
        let features = self.places.iter().zip(self.values);
        let sum: f64 = features.map(|(place, value)| f64::from(weights[*place as usize]) * f64::from(*value)).sum();
        sum + self.bias.map_or(0.0, |place| f64::from(weights[place as usize]))
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
        let (labels, importances) = (self.batch.labels(), self.batch.importances());
        self.batch.offsets().windows(2).enumerate().map(move |(row, ends)| Example {
            label: labels.get(row).map_or(0.0, |label| self.label.apply(*label)),
            importance: importances.map_or(1.0, |importances| importances[row]),
            places: &self.places[ends[0]..ends[1]],
            values: &self.values[ends[0]..ends[1]],
            bias: self.bias,
        })
    }
}

/// Finds the distinct keys of one minibatch after another, in memory that is used again.
#[derive(Default)]
pub struct Gather {
    cells: Vec<Cell>,
    /// Cells of another round than this one are empty.
    round: u32,
    distinct: Vec<u64>,
    places: Vec<u32>,
    /// The place among the table's keys of each distinct key.
    order: Vec<u32>,
    /// The values on one scale, where there is one.
    scaled: Vec<f32>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    key: u64,
    /// Among the distinct keys, in the order in which they were first seen.
    place: u32,
    round: u32,
}

/// There are at least this many cells for each distinct key.
const ROOM: usize = 2;
const FEWEST_CELLS: usize = 1 << 10;

impl Gather {
    /// Gathers a minibatch, on a scale if there is one. `sort` puts distinct keys into a table's order ([`Table::keys`](slackwater::Table::keys)).
    pub fn gather<'a>(
        &'a mut self,
        batch: &'a Minibatch,
        with_bias: bool,
        scaling: Option<&Scaling>,
        sort: impl FnOnce(&[u64]) -> Keys,
    ) -> Examples<'a> {
        self.begin();
        self.places.clear();
        for &key in batch.keys() {
            let place = self.place(key);
            self.places.push(place);
        }
        let bias = with_bias.then(|| self.place(BIAS));
        let keys = sort(&self.distinct);
        self.order.clear();
        self.order.resize(self.distinct.len(), 0);
        for (place, key) in (0..).zip(keys.ids()) {
            let first_seen = self.place(key);
            self.order[first_seen as usize] = place;
        }
        for place in &mut self.places {
            *place = self.order[*place as usize];
        }
        let bias = bias.map(|place| self.order[place as usize]);
        let mut values = batch.values();
        if let Some(scaling) = scaling {
            let scales: Vec<Scale> = keys.ids().map(|key| scaling.of(key)).collect();
            let scaled = self.places.iter().zip(values).map(|(place, value)| scales[*place as usize].apply(*value));
            self.scaled.clear();
            self.scaled.extend(scaled);
            values = &self.scaled;
        }
        let label = scaling.map_or(Scale::NONE, Scaling::label);
        Examples { batch, keys, places: &self.places, values, label, bias }
    }

    fn begin(&mut self) {
        self.distinct.clear();
        self.round = self.round.wrapping_add(1);
        if self.cells.is_empty() || self.round == 0 {
            self.cells.clear();
            self.cells.resize(self.cells.capacity().max(FEWEST_CELLS).next_power_of_two(), Cell::default());
            self.round = 1;
        }
    }

    /// The place of a key among the distinct ones; a new key takes the next.
    #[inline]
    fn place(&mut self, key: u64) -> u32 {
        let mask = self.cells.len() - 1;
        let mut at = home(key, self.cells.len());
        loop {
            let cell = self.cells[at];
            if cell.round != self.round {
                break;
            }
            if cell.key == key {
                return cell.place;
            }
            at = (at + 1) & mask;
        }
        let place = self.distinct.len() as u32;
        self.distinct.push(key);
        self.cells[at] = Cell { key, place, round: self.round };
        if self.distinct.len() * ROOM > self.cells.len() {
            self.grow();
        }
        place
    }

    fn grow(&mut self) {
        let count = self.cells.len() * 2;
        self.cells.clear();
        self.cells.resize(count, Cell::default());
        for (place, &key) in (0..).zip(&self.distinct) {
            let mut at = home(key, count);
            while self.cells[at].round == self.round {
                at = (at + 1) & (count - 1);
            }
            self.cells[at] = Cell { key, place, round: self.round };
        }
    }
}

/// Where the search for a key begins: the highest bits of a product with 2⁶⁴ / φ, which neighbours do not share.
#[inline]
fn home(key: u64, cells: usize) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - cells.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::Placement;

    fn batch(rows: &[&[u64]]) -> Minibatch {
        let mut batch = Minibatch::new();
        for row in rows {
            row.iter().for_each(|key| batch.push(*key, *key as f32));
            batch.end_row(row.len() as f32);
        }
        batch
    }

    #[test]
    fn every_feature_finds_its_key_whatever_was_gathered_before() {
        let many: Vec<u64> = (0..5_000).map(|key| key * key).collect();
        let mut gather = Gather::default();
        for rows in [&[&[7, 3, 7][..], &[], &[3, 900]][..], &[&many, &many[..9]], &[], &[&[900][..], &[u64::MAX - 1]]] {
            for with_bias in [false, true] {
                let batch = batch(rows);
                let examples = gather.gather(&batch, with_bias, None, |keys| Keys::distinct(Placement::Spread, keys));
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
}
