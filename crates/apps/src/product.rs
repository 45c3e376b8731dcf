//! Matrix products, by the library matrixmultiply. [`View`]s are checked when they are made, so the
//! unsafe call stays within the slices.

/// A matrix in a slice: the number in row i and column j is at i · `row_step` + j · `column_step`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    numbers: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> View<'a> {
    /// A matrix whose rows begin `step` numbers apart.
    ///
    /// # Panics
    /// If the slice is too short, or rows overlap.
    #[must_use]
    pub fn rows(numbers: &'a [f32], rows: usize, columns: usize, step: usize) -> Self {
        assert!(columns <= step && fits(numbers.len(), rows, columns, step), "the matrix lies in the slice");
        Self { numbers, rows, columns, row_step: step, column_step: 1 }
    }

    /// The transposed matrix, of the same numbers.
    #[must_use]
    pub fn transposed(self) -> Self {
        let Self { numbers, rows, columns, row_step, column_step } = self;
        Self { numbers, rows: columns, columns: rows, row_step: column_step, column_step: row_step }
    }
}

/// Whether the rows lie within a slice of `length` numbers.
fn fits(length: usize, rows: usize, columns: usize, step: usize) -> bool {
    rows == 0
        || (rows - 1).checked_mul(step).and_then(|last| last.checked_add(columns)).is_some_and(|end| end <= length)
}

/// Writes the product of two matrices into rows that lie `step` numbers apart.
///
/// # Panics
/// If the matrices' sizes do not match, or the result does not fit into `out`.
pub fn multiply(left: View<'_>, right: View<'_>, out: &mut [f32], step: usize) {
    assert_eq!(left.columns, right.rows, "a row of the left one is as long as a column of the right one");
    assert!(right.columns <= step && fits(out.len(), left.rows, right.columns, step), "the product fits");
    let m = left.rows;
    let k = left.columns;
    let n = right.columns;
    // SAFETY: a view's last number is within its slice (`View::rows`; a transposed one has the same
    // numbers), the product's last one is within `out`, and rows do not overlap in it. `out` is
    // borrowed alone, so nothing else lies in it.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            left.numbers.as_ptr(),
            left.row_step as isize,
            left.column_step as isize,
            right.numbers.as_ptr(),
            right.row_step as isize,
            right.column_step as isize,
            0.0,
            out.as_mut_ptr(),
            step as isize,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_matches_the_definition() {
        for (m, k, n, step) in [(1, 1, 1, 1), (3, 5, 2, 2), (7, 4, 9, 12), (16, 33, 17, 20), (0, 3, 2, 2), (2, 0, 3, 3)]
        {
            let number = |seed: usize| (seed * 7919 % 23) as f32 - 11.0;
            let left: Vec<f32> = (0..m * (k + 1)).map(number).collect();
            let right: Vec<f32> = (0..n * k).map(|seed| number(seed + 5)).collect();
            let mut out = vec![0.5; m * step];
            // The right matrix is stored transposed.
            let left_view = View::rows(&left, m, k, k + 1);
            let right_view = View::rows(&right, n, k, k).transposed();
            multiply(left_view, right_view, &mut out, step);
            for row in 0..m {
                for column in 0..n {
                    let expected: f32 = (0..k).map(|at| left[row * (k + 1) + at] * right[column * k + at]).sum();
                    assert_eq!(out[row * step + column], expected, "{m} × {k} × {n}");
                }
                assert!(out[row * step + n..(row + 1) * step].iter().all(|beside| *beside == 0.5));
            }
        }
    }

    #[test]
    #[should_panic(expected = "the product fits")]
    fn multiply_panics_if_the_product_does_not_fit() {
        let numbers = [1.0; 4];
        let square = View::rows(&numbers, 2, 2, 2);
        multiply(square, square, &mut [0.0; 3], 2);
    }

    #[test]
    #[should_panic(expected = "the matrix lies in the slice")]
    fn a_view_beyond_its_slice_panics() {
        let _ = View::rows(&[1.0; 5], 2, 3, 3);
    }
}
