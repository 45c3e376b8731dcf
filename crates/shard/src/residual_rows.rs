//! A worker's residuals of one table, as a checkpoint keeps them: what its lossy codec has not sent
//! yet.

use wire::{Field, Reader, WireError};

/// Residuals of the rows of one table: numbers that are added to the next pushes to these rows.
///
/// ```
/// use shard::ResidualRows;
/// use wire::{Field, Reader};
///
/// let residuals = ResidualRows { width: 2, runs: vec![(7, vec![0.5, -0.25])] };
/// let mut bytes = Vec::new();
/// residuals.put(&mut bytes);
/// assert_eq!(ResidualRows::get(&mut Reader(&bytes)), Ok(residuals));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualRows {
    /// Numbers in a row.
    pub width: u32,
    /// Runs of consecutive rows: the position of the first row, and the numbers of all rows.
    pub runs: Vec<(u64, Vec<f32>)>,
}

impl Field for ResidualRows {
    fn put(&self, out: &mut Vec<u8>) {
        self.width.put(out);
        (self.runs.len() as u32).put(out);
        for (first, values) in &self.runs {
            first.put(out);
            (values.len() as u32).put(out);
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let width = u32::get(input)?;
        let mut runs = Vec::new();
        for _ in 0..u32::get(input)? {
            let first = u64::get(input)?;
            let count = u32::get(input)?;
            let is_whole = width > 0 && count.is_multiple_of(width) && first.checked_add(u64::from(count)).is_some();
            if !is_whole {
                return Err(WireError::Malformed("residuals that are not whole rows"));
            }
            let bytes = input.take((count as usize).saturating_mul(4))?;
            let values: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if !values.iter().all(|value| value.is_finite()) {
                return Err(WireError::Malformed("a residual that is not a finite number"));
            }
            runs.push((first, values));
        }
        Ok(Self { width, runs })
    }
}
