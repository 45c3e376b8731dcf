//! Shuffle buffer: it is filled with the rows of some minibatches, and gives them out in an order
//! that follows from the seed.

use types::{SplitMix64, mix};

use crate::Minibatch;

/// How rows are shuffled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// How many minibatches of rows the buffer holds. A row moves no further than that.
    pub minibatches: usize,
}

/// The buffer: rows that wait to be given out in another order.
pub struct ShuffleBuffer {
    rows: Minibatch,
    /// The rows that have not been given out yet; the next one is last.
    order: Vec<usize>,
    seed: u64,
    /// How often it has been filled.
    fills: u64,
}

impl ShuffleBuffer {
    pub fn new(seed: u64) -> Self {
        Self { rows: Minibatch::new(), order: Vec::new(), seed, fills: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Fills the empty buffer again, in a new order.
    pub fn refill<E>(&mut self, fill: impl FnOnce(&mut Minibatch) -> Result<(), E>) -> Result<(), E> {
        self.rows.clear();
        fill(&mut self.rows)?;
        self.order.clear();
        self.order.extend(0..self.rows.rows());
        // Each fill has random numbers of its own.
        let mut stream = SplitMix64::new(mix(self.seed ^ mix(self.fills)));
        // The first number is skipped, as it always was: so the order of a seed never changes.
        stream.draw();
        self.fills += 1;
        stream.shuffle(&mut self.order);
        Ok(())
    }

    /// Moves up to `limit` rows into `batch`.
    pub fn give(&mut self, batch: &mut Minibatch, limit: usize) {
        for _ in 0..limit {
            let Some(index) = self.order.pop() else { return };
            batch.copy_row(self.rows.row(index));
        }
    }
}
