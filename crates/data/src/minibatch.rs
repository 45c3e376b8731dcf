//! Examples in columns: what a learning loop reads from front to back, and what is cleared and
//! filled again.

/// Some examples. Features of row i are `offsets()[i] .. offsets()[i + 1]` of `keys()` and
/// `values()`.
///
/// Keys stand as the file has them: in the file's order, and one key may come more than once in a
/// row (two names may hash to one key). A program that needs each key once adds up the values of
/// equal keys.
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
    /// One a row, or none at all while every importance is 1.
    importances: Vec<f32>,
    /// One more than there are rows; the first is 0.
    offsets: Vec<usize>,
    keys: Vec<u64>,
    values: Vec<f32>,
    /// One a feature, or none at all.
    fields: Vec<u32>,
    epoch: u32,
}

/// One example of a minibatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinibatchRow<'a> {
    /// As [`Labels`](crate::Labels) made it; none where labels are ignored.
    pub label: Option<f32>,
    /// How many ordinary examples this one counts for.
    pub importance: f32,
    /// One a feature.
    pub keys: &'a [u64],
    /// One a feature.
    pub values: &'a [f32],
    /// One a feature where the format has fields; empty elsewhere.
    pub fields: &'a [u32],
}

impl Minibatch {
    /// Without rows.
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

    /// How many examples there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many features all rows have together.
    #[must_use]
    pub fn features(&self) -> usize {
        self.offsets[self.rows()]
    }

    /// One a row; empty where labels are ignored.
    #[must_use]
    pub fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// One a row, or nothing where every row counts as one example.
    #[must_use]
    pub fn importances(&self) -> Option<&[f32]> {
        (!self.importances.is_empty()).then_some(&self.importances)
    }

    /// Where each row's features begin, and where the last row's end.
    #[must_use]
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// One a feature.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// One a feature.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One a feature, or nothing where the format has no fields.
    #[must_use]
    pub fn fields(&self) -> Option<&[u32]> {
        (!self.fields.is_empty()).then_some(&self.fields)
    }

    /// The pass over the data that this is of, from 0. All its rows are of that pass.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Row `index`.
    ///
    /// # Panics
    /// If there are not as many rows.
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

    /// Takes all rows out and keeps the memory.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.importances.clear();
        self.offsets.truncate(1);
        self.keys.clear();
        self.values.clear();
        self.fields.clear();
    }

    /// Adds a feature to the row that is not ended yet.
    #[inline]
    pub fn push(&mut self, key: u64, value: f32) {
        self.keys.push(key);
        self.values.push(value);
    }

    /// As [`push`](Self::push), in a field. A minibatch has fields for all its features or for
    /// none.
    #[inline]
    pub fn push_in_field(&mut self, field: u32, key: u64, value: f32) {
        self.fields.push(field);
        self.push(key, value);
    }

    /// Ends the row: the features pushed since the last one ended are its features.
    #[inline]
    pub fn end_row(&mut self, label: f32) {
        self.labels.push(label);
        self.end_row_without_label();
    }

    /// As [`end_row`](Self::end_row). A minibatch has labels for all its rows or for none.
    #[inline]
    pub fn end_row_without_label(&mut self) {
        debug_assert!(self.fields.is_empty() || self.fields.len() == self.keys.len());
        self.offsets.push(self.keys.len());
        if !self.importances.is_empty() {
            self.importances.push(1.0);
        }
    }

    /// Says how many examples the row ended last counts for.
    pub fn set_importance(&mut self, importance: f32) {
        if self.importances.is_empty() && importance != 1.0 {
            self.importances.resize(self.rows(), 1.0);
        }
        if let Some(last) = self.importances.last_mut() {
            *last = importance;
        }
    }

    /// Forgets the features pushed since the last row ended.
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
    fn importances_are_kept_from_the_first_row_that_has_another_than_one() {
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
    fn an_abandoned_row_leaves_nothing_behind() {
        let mut batch = Minibatch::new();
        batch.push_in_field(1, 2, 3.0);
        batch.end_row(1.0);
        let before = batch.clone();
        batch.push_in_field(4, 5, 6.0);
        batch.abandon_row();
        assert_eq!(batch, before);
    }

    #[test]
    fn a_copied_row_is_the_same_row() {
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
