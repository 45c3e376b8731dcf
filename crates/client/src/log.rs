//! Update logs: each thread of a worker notes its updates by itself; they meet when somebody reads or a clock ends.

use std::sync::{Arc, Mutex, PoisonError};
use types::{Combine, TableSpec, UpdaterSpec};
use update::Number;
use wire::Keys;

/// One thread's updates to a table since they were last collected. Noting one takes no lock that another thread wants.
pub struct Log<T: Number> {
    entries: Arc<Mutex<Entries<T>>>,
    width: usize,
}

#[derive(Default)]
struct Entries<T> {
    batches: Vec<(Keys, Vec<T>, u64)>,
    dropped: bool,
}

impl<T: Number> Log<T> {
    /// Notes an update: `values` row after row in the order of `keys`, computed from `examples` examples.
    ///
    /// It reaches the shards when any thread of this worker pulls from the table, or at the end of the clock. Where
    /// merging changes nothing (the updater is `sum`, or the table combines by clock), updates of one row are added up
    /// first; elsewhere each is applied by itself.
    pub fn add(&mut self, keys: &Keys, values: &[T], examples: u64) {
        debug_assert_eq!(values.len(), keys.len() * self.width, "one row of values for each key");
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.batches.push((keys.clone(), values.to_vec(), examples));
    }
}

impl<T: Number> Drop for Log<T> {
    fn drop(&mut self) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).dropped = true;
    }
}

/// All threads' logs of one table.
pub(crate) struct Logs<T: Number> {
    logs: Mutex<Vec<Arc<Mutex<Entries<T>>>>>,
}

impl<T: Number> Logs<T> {
    pub fn new() -> Self {
        Self { logs: Mutex::new(Vec::new()) }
    }

    pub fn open(&self, width: usize) -> Log<T> {
        let entries = Arc::new(Mutex::new(Entries { batches: Vec::new(), dropped: false }));
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(entries.clone());
        Log { entries, width }
    }

    /// Everything noted so far, as batches to be pushed.
    pub fn collect(&self, spec: &TableSpec) -> Vec<(Keys, Vec<T>, u64)> {
        let mut batches = Vec::new();
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.retain(|log| {
            let mut entries = log.lock().unwrap_or_else(PoisonError::into_inner);
            batches.append(&mut entries.batches);
            !entries.dropped
        });
        let mergeable = spec.updater == UpdaterSpec::Sum || matches!(spec.combine, Combine::Clock(_));
        if batches.len() > 1 && mergeable { vec![merge(spec, &batches)] } else { batches }
    }
}

/// One batch that adds up to all of them.
fn merge<T: Number>(spec: &TableSpec, batches: &[(Keys, Vec<T>, u64)]) -> (Keys, Vec<T>, u64) {
    let width = spec.width as usize;
    let mut rows: Vec<(u64, &[T])> = batches
        .iter()
        .flat_map(|(keys, values, _)| (0..keys.len()).map(|i| keys.position(i).0).zip(values.chunks_exact(width)))
        .collect();
    // Stable: updates of one row are added up in the order in which they were noted.
    rows.sort_by_key(|(position, _)| *position);
    let mut positions: Vec<u64> = Vec::new();
    let mut values: Vec<T> = Vec::new();
    for (position, row) in rows {
        if positions.last() == Some(&position) {
            let start = values.len() - width;
            update::add_into(&mut values[start..], row);
        } else {
            positions.push(position);
            values.extend_from_slice(row);
        }
    }
    let examples = batches.iter().map(|(_, _, examples)| examples).sum();
    (Keys::at(spec.shape.placement(), &positions), values, examples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Placement;

    #[test]
    fn logs_of_several_threads_add_up_where_merging_changes_nothing() {
        let spec = TableSpec::sparse("t", 2);
        let logs = Logs::<i64>::new();
        let (mut one, mut two) = (logs.open(2), logs.open(2));
        let keys = |ids: &[u64]| Keys::distinct(Placement::Spread, ids);
        one.add(&keys(&[5]), &[1, 2], 1);
        two.add(&keys(&[5]), &[10, 20], 2);
        two.add(&keys(&[9]), &[7, 7], 3);
        let batches = logs.collect(&spec);
        assert_eq!(batches.len(), 1);
        let (keys, values, examples) = &batches[0];
        let rows: Vec<(u64, &[i64])> = keys.ids().zip(values.chunks(2)).collect();
        assert!(rows.contains(&(5, &[11, 22])) && rows.contains(&(9, &[7, 7])) && rows.len() == 2);
        assert_eq!(*examples, 6);
        assert!(logs.collect(&spec).is_empty(), "collected once");
    }

    #[test]
    fn updates_that_must_stay_apart_do() {
        let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 0.0 });
        let logs = Logs::<f32>::new();
        let mut log = logs.open(1);
        let keys = Keys::distinct(Placement::Spread, &[1]);
        log.add(&keys, &[1.0], 1);
        log.add(&keys, &[2.0], 1);
        drop(log);
        assert_eq!(logs.collect(&spec).len(), 2);
    }
}
