//! Decodes which pushes a row holds from its numbers.
//!
//! The n-th push of worker w adds 4ⁿ to column w ([`Write::Marks`](crate::Write::Marks)). So digit
//! n of the column in base 4 counts how often the row holds that push.

use crate::history::{FinishedRead, History};
use types::UpdaterSpec;

/// Which pushes a row holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: u64,
    /// For each worker: bit n is set if the row holds the worker's n-th push.
    pub held: Vec<u64>,
    /// A push that the row holds more than once: worker and n.
    pub doubled: Option<(u32, u32)>,
    /// A worker whose column is no sum of pushes.
    pub nonsense: Option<u32>,
}

impl Row {
    fn new(key: u64, values: &[f64], scale: f64) -> Self {
        let mut row = Self { key, held: vec![0; values.len()], doubled: None, nonsense: None };
        for ((worker, value), held) in (0u32..).zip(values).zip(&mut row.held) {
            let scaled = (value * scale).round();
            if !(0.0..(1u64 << 53) as f64).contains(&scaled) || (value * scale - scaled).abs() > 1e-6 {
                row.nonsense = Some(worker);
                continue;
            }
            let digits = scaled as u64;
            for n in 0..27 {
                let digit = digits >> (2 * n) & 3;
                *held |= u64::from(digit > 0) << n;
                if digit > 1 {
                    row.doubled = Some((worker, n));
                }
            }
        }
        row
    }

    /// Whether the row holds the n-th push of `worker`.
    pub fn holds(&self, worker: u32, n: usize) -> bool {
        self.held[worker as usize] >> n & 1 == 1
    }
}

/// The rows of a read. None if the rows of its table do not tell which pushes they hold.
pub fn rows(history: &History, read: &FinishedRead<'_>) -> Vec<Row> {
    let spec = &history.specs[read.table.0];
    let workers = history.plan.workers.len();
    if spec.updater != UpdaterSpec::Sum || spec.width as usize != workers {
        return Vec::new();
    }
    let scale = if spec.combine.takes_mean() { workers as f64 } else { 1.0 };
    let numbers = read.read.values.chunks_exact(workers);
    read.read.keys.iter().zip(numbers).map(|(key, values)| Row::new(*key, values, scale)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_which_pushes_it_holds() {
        let row = Row::new(9, &[21.0, 0.0, 4.0, 8.0, f64::NAN], 1.0);
        assert_eq!(row.held[..4], [0b111, 0, 0b10, 0b10]);
        assert_eq!(row.doubled, Some((3, 1)));
        assert_eq!(row.nonsense, Some(4));
        assert!(row.holds(2, 1) && !row.holds(2, 0));
        assert_eq!(Row::new(9, &[0.25, 1.25], 4.0).held, [0b1, 0b11], "a mean of four");
    }
}
