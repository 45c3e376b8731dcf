//! A minibatch: examples in columns (labels, importances, offsets, keys, values, fields), which a
//! learning loop reads from front to back. It is cleared and filled again, to use its memory again.

/// Some examples. The features of row i are `offsets()[i] .. offsets()[i + 1]` of `keys()` and
/// `values()`.
///
/// Keys are in the file's order, and one key may come more than once in a row (two names may hash
/// to one key). A program that needs each key once adds up the values of equal keys.
///
/// ```
/// use data::Minibatch;
///
/// let mut batch = Minibatch::new();
/// batch.push(3, 0.5);
/// batch.push(9, 1.0);
/// batch.end_row(1.0);
/// batch.end_row(0.0); // a row without features
/// assert_eq!((batch.rows(), batch.keys(), batch.labels()), (2, &[3, 9][..], &[1.0, 0.0][..]));
/// let weights = [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0];
/// let margins: Vec<f32> =
///     batch.iter().map(|row| row.keys.iter().zip(row.values).map(|(&key, value)| weights[key as usize] * value).sum()).collect();
/// assert_eq!(margins, [0.0, 0.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Minibatch {
    labels: Vec<f32>,
    /// One for each row, or empty while every importance is 1.
    importances: Vec<f32>,
    /// One more than the number of rows; the first is 0.
    offsets: Vec<usize>,
    keys: Vec<u64>,
    values: Vec<f32>,
    /// One for each feature, or empty.
    fields: Vec<u32>,
    epoch: u32,
}

/// One example of a minibatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinibatchRow<'a> {
    /// As [`Labels`](crate::Labels) converted it; none if labels are ignored.
    pub label: Option<f32>,
    /// How many ordinary examples this one counts for.
    pub importance: f32,
    /// One for each feature.
    pub keys: &'a [u64],
    /// One for each feature.
    pub values: &'a [f32],
    /// One for each feature if the format has fields, else empty.
    pub fields: &'a [u32],
}

impl Minibatch {
    /// A minibatch without rows.
    #[must_use]
    pub fn new() -> Self {
        Self {
            labels: Vec::new(),
            importances: Vec::new(),
            offsets: vec![0],
            keys: Vec::new(),
            values: Vec::new(),
            fields: Vec::new(),
            epoch: 0,
        }
    }

    /// How many examples it has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many features its rows have together.
    #[must_use]
    pub fn features(&self) -> usize {
        self.offsets[self.rows()]
    }

    /// One for each row; empty if labels are ignored.
    #[must_use]
    pub fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// One for each row, or none if every row counts as one example.
    #[must_use]
    pub fn importances(&self) -> Option<&[f32]> {
        (!self.importances.is_empty()).then_some(&self.importances)
    }

    /// Where each row's features begin, and where the last row's end.
    #[must_use]
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// One for each feature.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// One for each feature.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One for each feature, or none if the format has no fields.
    #[must_use]
    pub fn fields(&self) -> Option<&[u32]> {
        (!self.fields.is_empty()).then_some(&self.fields)
    }

    /// The number, from 0, of the pass over the data that all its rows come from.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> MinibatchRow<'_> {
        let span = self.offsets[index]..self.offsets[index + 1];
        MinibatchRow {
            label: self.labels.get(index).copied(),
            importance: self.importances.get(index).copied().unwrap_or(1.0),
            keys: &self.keys[span.clone()],
            values: &self.values[span.clone()],
            fields: self.fields.get(span).unwrap_or_default(),
        }
    }

    /// The rows, first to last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = MinibatchRow<'_>> {
        (0..self.rows()).map(|index| self.row(index))
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.importances.clear();
        self.offsets.truncate(1);
        self.keys.clear();
        self.values.clear();
        self.fields.clear();
    }

    /// Adds a feature to the current row, which [`end_row`](Self::end_row) will end.
    #[inline]
    pub fn push(&mut self, key: u64, value: f32) {
        self.keys.push(key);
        self.values.push(value);
    }

    /// Like [`push`](Self::push), with the feature's field. A minibatch has fields for all its
    /// features or for none.
    #[inline]
    pub fn push_in_field(&mut self, field: u32, key: u64, value: f32) {
        self.fields.push(field);
        self.push(key, value);
    }

    /// Ends the current row: its features are those pushed since the row before it ended.
    #[inline]
    pub fn end_row(&mut self, label: f32) {
        self.labels.push(label);
        self.end_row_without_label();
    }

    /// Like [`end_row`](Self::end_row), without a label. A minibatch has labels for all its rows or
    /// for none.
    #[inline]
    pub fn end_row_without_label(&mut self) {
        debug_assert!(self.fields.is_empty() || self.fields.len() == self.keys.len());
        self.offsets.push(self.keys.len());
        if !self.importances.is_empty() {
            self.importances.push(1.0);
        }
    }

    /// Sets how many examples the last ended row counts for.
    pub fn set_importance(&mut self, importance: f32) {
        if self.importances.is_empty() && importance != 1.0 {
            self.importances.resize(self.rows(), 1.0);
        }
        if let Some(last) = self.importances.last_mut() {
            *last = importance;
        }
    }

    /// Drops the features of the current row, which has not ended.
    pub(crate) fn abandon_row(&mut self) {
        let features = self.features();
        self.keys.truncate(features);
        self.values.truncate(features);
        self.fields.truncate(features);
    }

    /// Adds a row of another minibatch.
    pub(crate) fn copy_row(&mut self, row: MinibatchRow<'_>) {
        self.keys.extend_from_slice(row.keys);
        self.values.extend_from_slice(row.values);
        self.fields.extend_from_slice(row.fields);
        match row.label {
            Some(label) => self.end_row(label),
            None => self.end_row_without_label(),
        }
        self.set_importance(row.importance);
    }

    pub(crate) fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }
}

impl Default for Minibatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importances_are_stored_once_one_differs_from_1() {
        let mut batch = Minibatch::new();
        batch.end_row(0.0);
        batch.set_importance(1.0);
        assert_eq!(batch.importances(), None);
        batch.end_row(0.0);
        batch.set_importance(2.5);
        batch.end_row(0.0);
        assert_eq!(batch.importances(), Some(&[1.0, 2.5, 1.0][..]));
    }

    #[test]
    fn abandon_row_removes_all_of_the_current_row() {
        let mut batch = Minibatch::new();
        batch.push_in_field(1, 2, 3.0);
        batch.end_row(1.0);
        let before = batch.clone();
        batch.push_in_field(4, 5, 6.0);
        batch.abandon_row();
        assert_eq!(batch, before);
    }

    #[test]
    fn copy_row_copies_all_of_a_row() {
        let mut batch = Minibatch::new();
        batch.push_in_field(1, 2, 3.0);
        batch.end_row(1.0);
        batch.push_in_field(4, 5, 6.0);
        batch.end_row(0.0);
        batch.set_importance(3.0);
        let mut copy = Minibatch::new();
        for row in batch.iter() {
            copy.copy_row(row);
        }
        assert_eq!(copy, batch);
        copy.clear();
        assert_eq!(copy, Minibatch::new());
    }
}
