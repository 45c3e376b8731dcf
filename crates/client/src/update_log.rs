//! Update logs: each thread of a worker collects small updates in a log of its own. A read or the
//! end of a clock pushes the logs of all threads together.

use crate::Error;
use net::lock;
use std::sync::{Arc, Mutex};
use types::{Placement, TableSpec};
use update::Number;
use wire::Keys;
use worker::TableFailure;

/// A folding log adds up equal rows when it has grown to this many rows.
const FOLD_ROWS: usize = 1 << 16;

/// A log of this many bytes is full: it is folded if possible, and if it stays large it is pushed
/// with the other logs of its table.
const FULL_BYTES: usize = 32 << 20;
/// Memory of an unfolded update besides its rows, in bytes.
const UPDATE_BYTES: usize = 128;

/// One thread's log of updates to a table. Adding an update takes no lock that threads compete for.
/// Made by [`crate::Table::log`]. A log that is dropped still has its updates pushed.
///
/// ```
/// # use slackwater::{Keys, RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
/// let mut log = table.log();
/// log.add(&table.keys(&[0]), &[1.0], 1)?;
/// log.add(&table.keys(&[0]), &[2.0], 1)?;
/// assert_eq!(session.counts().parts, 0);                 // nothing is sent yet
/// assert_eq!(table.pull(&Keys::run(0..1))?.wait()?.values(), [3.0]);
/// assert_eq!(session.counts().parts, 1);                 // both travelled as one part
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub struct UpdateLog<T: Number> {
    entries: Arc<Mutex<Entries<T>>>,
    placement: Placement,
    width: usize,
    fold_at: usize,
    send: Send,
}

/// Pushes what the logs of a table hold.
type Send = Box<dyn Fn() -> Result<(), Error> + std::marker::Send + Sync>;

/// A log's content, which its thread and the collector share.
struct Entries<T> {
    noted: Noted<T>,
    dropped: bool,
}

/// A batch to be pushed: keys, values and the number of examples.
type Update<T> = (Keys, Vec<T>, u64);

/// The updates in a log.
enum Noted<T> {
    /// Updates of one row are added up before they are pushed.
    Folding { positions: Vec<u64>, values: Vec<T>, examples: u64 },
    /// The shard must apply each update by itself.
    Apart { updates: Vec<Update<T>>, bytes: usize },
}

impl<T: Number> Noted<T> {
    /// An empty log. It folds if merging does not change the result: the updater is `sum`, or the
    /// table combines by clock.
    fn new(spec: &TableSpec) -> Self {
        if spec.updater.is_additive() || spec.combine.holds_clocks() {
            Self::Folding { positions: Vec::new(), values: Vec::new(), examples: 0 }
        } else {
            Self::Apart { updates: Vec::new(), bytes: 0 }
        }
    }
}

impl<T: Number> UpdateLog<T> {
    /// Adds an update to the log: `new` row after row in the order of `keys`, computed from `more`
    /// examples.
    ///
    /// The worker pushes it when any of its threads pulls from the table, at the end of the clock,
    /// or when the log has grown to some 32 MB. If merging does not change the result (the updater
    /// is `sum`, or the table combines by clock), the log adds up updates of one row first.
    /// Otherwise shards apply each update by itself.
    ///
    /// Sends nothing and does not block, unless the log is full: then it pushes as
    /// [`crate::Table::push`] does, and fails if the run is over ([`Error::Run`]). Fails, and adds
    /// nothing, if the keys were made for a table in another order ([`Error::Batch`]) or if `new`
    /// is not one row for each key ([`Error::Table`]).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 3, 1))?;
    /// let mut log = table.log();
    /// let one = table.keys(&[0, 1]);
    /// let two = table.keys(&[1, 2]);
    /// log.add(&one, &[1.0, 1.0], 1)?;
    /// log.add(&two, &[1.0, 1.0], 1)?;
    /// assert!(log.add(&two, &[1.0], 1).is_err());
    /// assert_eq!(table.pull(&Keys::run(0..3))?.wait()?.values(), [1.0, 2.0, 1.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn add(&mut self, keys: &Keys, new: &[T], more: u64) -> Result<(), Error> {
        if keys.placement() != self.placement {
            return Err(Error::Batch(TableFailure::Placement));
        }
        if new.len() != keys.len() * self.width {
            let problem =
                format!("a logged update of {} rows of {} numbers has {} values", keys.len(), self.width, new.len());
            return Err(Error::Table { problem });
        }
        if self.note(keys, new, more) { (self.send)() } else { Ok(()) }
    }

    /// Adds an update that fits. Returns whether the log is full now.
    fn note(&mut self, keys: &Keys, new: &[T], more: u64) -> bool {
        let row_bytes = size_of::<u64>() + self.width * size_of::<T>();
        match &mut lock(&self.entries).noted {
            Noted::Folding { positions, values, examples } => {
                positions.extend((0..keys.len()).map(|index| keys.position(index).0));
                values.extend_from_slice(new);
                *examples += more;
                let is_large = positions.len() * row_bytes >= FULL_BYTES;
                if positions.len() >= self.fold_at || is_large {
                    fold(self.width, positions, values);
                    // Twice what is left, so that folding has a constant cost per row for any
                    // number of distinct rows.
                    self.fold_at = (2 * positions.len()).max(FOLD_ROWS);
                }
                // Half, because a log that stays larger would be folded again by the next update.
                is_large && positions.len() * row_bytes >= FULL_BYTES / 2
            }
            Noted::Apart { updates, bytes } => {
                updates.push((keys.clone(), new.to_vec(), more));
                *bytes += UPDATE_BYTES + keys.len() * row_bytes;
                *bytes >= FULL_BYTES
            }
        }
    }
}

impl<T: Number> Drop for UpdateLog<T> {
    fn drop(&mut self) {
        lock(&self.entries).dropped = true;
    }
}

/// The logs of one table, of all threads.
pub(crate) struct UpdateLogs<T: Number> {
    logs: Mutex<Vec<Arc<Mutex<Entries<T>>>>>,
    /// Locked while updates are collected and pushed, so that no other thread ends a clock in
    /// between.
    absorbing: Mutex<()>,
}

impl<T: Number> UpdateLogs<T> {
    pub fn new() -> Self {
        Self { logs: Mutex::new(Vec::new()), absorbing: Mutex::new(()) }
    }

    /// Opens a log. `send` pushes what the table's logs hold.
    pub fn open(&self, spec: &TableSpec, send: Send) -> UpdateLog<T> {
        let entries = Arc::new(Mutex::new(Entries { noted: Noted::new(spec), dropped: false }));
        lock(&self.logs).push(entries.clone());
        UpdateLog { entries, placement: spec.shape.placement(), width: spec.width as usize, fold_at: FOLD_ROWS, send }
    }

    /// Pushes all logged updates.
    pub fn absorb(&self, spec: &TableSpec, push: impl FnMut(Update<T>) -> Result<(), Error>) -> Result<(), Error> {
        let _absorbing = lock(&self.absorbing);
        self.collect(spec).into_iter().try_for_each(push)
    }

    /// Takes all logged updates, as batches to push. Forgets logs that were dropped.
    fn collect(&self, spec: &TableSpec) -> Vec<Update<T>> {
        let mut apart = Vec::new();
        let mut all_positions = Vec::new();
        let mut all_values = Vec::new();
        let mut all_examples = 0;
        lock(&self.logs).retain(|log| {
            let mut entries = lock(log);
            match &mut entries.noted {
                Noted::Folding { positions, values, examples } => {
                    all_positions.append(positions);
                    all_values.append(values);
                    all_examples += std::mem::take(examples);
                }
                Noted::Apart { updates, bytes } => {
                    apart.append(updates);
                    *bytes = 0;
                }
            }
            !entries.dropped
        });
        if !all_positions.is_empty() {
            fold(spec.width as usize, &mut all_positions, &mut all_values);
            if let Ok(keys) = Keys::at(spec.shape.placement(), &all_positions) {
                apart.push((keys, all_values, all_examples));
            }
        }
        apart
    }
}

/// Sorts rows by position and adds up rows of the same position, in the order in which they were
/// added.
fn fold<T: Number>(width: usize, positions: &mut Vec<u64>, values: &mut Vec<T>) {
    let mut order: Vec<u32> = (0..positions.len() as u32).collect();
    order.sort_by_key(|index| positions[*index as usize]);
    let mut sorted: Vec<u64> = Vec::new();
    let mut sums: Vec<T> = Vec::new();
    for index in order {
        let position = positions[index as usize];
        let row = &values[index as usize * width..][..width];
        if sorted.last() == Some(&position) {
            let start = sums.len() - width;
            update::add_into(&mut sums[start..], row);
        } else {
            sorted.push(position);
            sums.extend_from_slice(row);
        }
    }
    (*positions, *values) = (sorted, sums);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use types::UpdaterSpec;

    /// The `send` of logs that never fill up.
    fn never() -> Send {
        Box::new(|| panic!("the log is not full"))
    }

    #[test]
    fn logs_of_several_threads_add_up_in_a_sum_table() {
        let spec = TableSpec::sparse("t", 2);
        let logs = UpdateLogs::<i64>::new();
        let mut one = logs.open(&spec, never());
        let mut two = logs.open(&spec, never());
        let keys = |ids: &[u64]| Keys::distinct(Placement::Spread, ids);
        one.add(&keys(&[5]), &[1, 2], 1).expect("fits");
        two.add(&keys(&[5]), &[10, 20], 2).expect("fits");
        two.add(&keys(&[9]), &[7, 7], 3).expect("fits");
        let batches = logs.collect(&spec);
        assert_eq!(batches.len(), 1);
        let (keys, values, examples) = &batches[0];
        let rows: Vec<(u64, &[i64])> = keys.ids().zip(values.chunks(2)).collect();
        assert!(rows.contains(&(5, &[11, 22])) && rows.contains(&(9, &[7, 7])) && rows.len() == 2);
        assert_eq!(*examples, 6);
        assert!(logs.collect(&spec).is_empty(), "collected once");
    }

    #[test]
    fn updates_stay_apart_in_an_adagrad_table() {
        let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 0.0 });
        let logs = UpdateLogs::<f32>::new();
        let mut log = logs.open(&spec, never());
        let keys = Keys::distinct(Placement::Spread, &[1]);
        log.add(&keys, &[1.0], 1).expect("fits");
        log.add(&keys, &[2.0], 1).expect("fits");
        drop(log);
        assert_eq!(logs.collect(&spec).len(), 2);
    }

    #[test]
    fn a_log_of_a_hot_row_stays_small() {
        let spec = TableSpec::dense("t", 4, 1).number(types::NumberType::I64);
        let logs = UpdateLogs::<i64>::new();
        let mut log = logs.open(&spec, never());
        let keys = Keys::run(2..3);
        for _ in 0..3 * FOLD_ROWS {
            log.add(&keys, &[1], 1).expect("fits");
        }
        let rows = match &lock(&log.entries).noted {
            Noted::Folding { positions, .. } => positions.len(),
            Noted::Apart { .. } => panic!("sums fold"),
        };
        assert!(rows <= FOLD_ROWS);
        let batches = logs.collect(&spec);
        assert_eq!(batches[0].1, [3 * FOLD_ROWS as i64]);
        assert_eq!(batches[0].2, 3 * FOLD_ROWS as u64);
    }

    #[test]
    fn full_log_is_pushed_whether_it_folds_or_not() {
        let adagrad = UpdaterSpec::Adagrad { rate: 0.1, epsilon: 0.0 };
        for spec in [TableSpec::dense("t", 1 << 40, 1_000), TableSpec::dense("t", 1 << 40, 1_000).updater(adagrad)] {
            let logs = Arc::new(UpdateLogs::<f32>::new());
            let sent = Arc::new(AtomicUsize::new(0));
            let collected = logs.clone();
            let kept = spec.clone();
            let counted = sent.clone();
            let send = Box::new(move || {
                let rows: usize = collected.collect(&kept).iter().map(|(keys, ..)| keys.len()).sum();
                assert!(rows * 4_000 <= FULL_BYTES, "{rows} rows");
                counted.fetch_add(rows, Ordering::Relaxed);
                Ok(())
            });
            let mut log = logs.open(&spec, send);
            let rows = 20_000;
            for row in 0..rows {
                log.add(&Keys::run(row..row + 1), &[1.0; 1_000], 1).expect("fits");
            }
            let left: usize = logs.collect(&spec).iter().map(|(keys, ..)| keys.len()).sum();
            assert!(left * 4_000 <= FULL_BYTES, "{left} rows");
            assert_eq!(sent.load(Ordering::Relaxed) + left, rows as usize, "{}", spec.updater);
        }
    }
}
