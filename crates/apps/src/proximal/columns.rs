//! A worker's examples in memory as a sparse matrix by columns (CSC), whose columns are sorted by
//! block. A block is a set of features, the same for all workers: the proximal method takes one
//! block at a time.

use data::{DataError, DataReader, ReadProgress};
use std::ops::Range;

/// A worker's examples, all of them in memory.
pub struct ExampleColumns {
    /// −1 or 1 for each row.
    pub labels: Vec<f32>,
    /// The key of each column, rising within each block.
    pub keys: Vec<u64>,
    /// For each block, the index in `keys` of its first column; then the number of columns.
    blocks: Vec<usize>,
    /// For each column, the index in `rows` and `values` of its first entry; then the number of
    /// entries.
    offsets: Vec<usize>,
    /// The row of each entry.
    rows: Vec<u32>,
    /// The value of each entry.
    values: Vec<f32>,
}

/// The block of a key, the same for all workers. It is taken from the highest bits of a product,
/// which spreads neighbouring keys over all blocks.
fn block_of(key: u64, blocks: usize) -> usize {
    ((u128::from(key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)) * blocks as u128) >> 64) as usize
}

impl ExampleColumns {
    /// Reads all rows. Adds up the values of entries with the same row and key.
    pub fn read(reader: &DataReader, blocks: usize) -> Result<(Self, ReadProgress), DataError> {
        let mut labels = Vec::new();
        let mut entries: Vec<(u32, u64, u32, f32)> = Vec::new();
        let mut batches = reader.batches()?;
        for batch in &mut batches {
            let batch = batch?;
            if batch.importances().is_some() {
                let problem = "the proximal method counts each row as one example, but a row has another importance than 1; \
                               use ftrl, or remove the importances";
                return Err(DataError::Setting { problem: problem.to_owned() });
            }
            for row in batch.iter() {
                let number = labels.len() as u32;
                labels.push(if row.label.is_some_and(|label| label > 0.5) { 1.0 } else { -1.0 });
                let entry = |(key, value): (&u64, &f32)| (block_of(*key, blocks) as u32, *key, number, *value);
                entries.extend(row.keys.iter().zip(row.values).map(entry));
            }
        }
        entries.sort_unstable_by_key(|(block, key, row, _)| (*block, *key, *row));
        let mut columns = Self {
            labels,
            keys: Vec::new(),
            blocks: vec![0],
            offsets: Vec::new(),
            rows: Vec::new(),
            values: Vec::new(),
        };
        for (block, key, row, value) in entries {
            while columns.blocks.len() <= block as usize {
                columns.blocks.push(columns.keys.len());
            }
            let new_column = columns.keys.len() == columns.blocks[block as usize] || columns.keys.last() != Some(&key);
            if new_column {
                columns.keys.push(key);
                columns.offsets.push(columns.rows.len());
            }
            if !new_column && columns.rows.last() == Some(&row) {
                if let Some(last) = columns.values.last_mut() {
                    *last += value;
                }
            } else {
                columns.rows.push(row);
                columns.values.push(value);
            }
        }
        columns.offsets.push(columns.rows.len());
        columns.blocks.resize(blocks + 1, columns.keys.len());
        Ok((columns, batches.progress()))
    }

    /// The columns of a block.
    pub fn block(&self, block: usize) -> Range<usize> {
        self.blocks[block]..self.blocks[block + 1]
    }

    /// The rows and values of a column.
    pub fn column(&self, column: usize) -> impl Iterator<Item = (usize, f32)> + '_ {
        let span = self.offsets[column]..self.offsets[column + 1];
        self.rows[span.clone()].iter().map(|row| *row as usize).zip(self.values[span].iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::{Format, Labels, ReaderSettings};

    #[test]
    fn every_entry_is_in_the_column_of_its_key_once() {
        let path = std::env::temp_dir().join(format!("slackwater-columns-{}.libsvm", std::process::id()));
        std::fs::write(&path, "+1 1:1 2:2 70:3\n-1 2:4 2:1\n+1\n-1 1:5 900:6\n").expect("a file can be written");
        let name = path.to_str().expect("a path in UTF-8").to_owned();
        let reader =
            DataReader::open(&[name], ReaderSettings::new(Format::LibSvm, Labels::Binary)).expect("it is there");
        for blocks in [1, 2, 7] {
            let (columns, _) = ExampleColumns::read(&reader, blocks).expect("it is sound");
            assert_eq!(columns.labels, [1.0, -1.0, 1.0, -1.0]);
            let mut found: Vec<(u64, Vec<(usize, f32)>)> = (0..blocks)
                .flat_map(|block| columns.block(block))
                .map(|column| (columns.keys[column], columns.column(column).collect()))
                .collect();
            found.sort_by_key(|(key, _)| *key);
            let expected = [
                (1, vec![(0, 1.0), (3, 5.0)]),
                (2, vec![(0, 2.0), (1, 5.0)]),
                (70, vec![(0, 3.0)]),
                (900, vec![(3, 6.0)]),
            ];
            assert_eq!(found, expected);
        }
        std::fs::remove_file(&path).expect("it was there");
    }
}
