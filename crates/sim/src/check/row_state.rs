//! Rules of rows that one worker alone writes, by pushes, sets and deletes: they hold what that
//! worker's program made of them.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use crate::program::TableIndex;
use std::collections::BTreeMap;
use types::Clock;
use update::{Slots, UpdateStep, Updater, Updaters};

/// A row with one writer holds exactly what its writer's pushes, sets and deletes make of it, in
/// program order.
///
/// The writer's own reads must see that, and all final reads. Concerns f64 tables that apply each
/// push and whose reads hold own pushes, with a built-in updater that does not count examples.
#[must_use]
pub fn rows_are_as_their_writer_left_them() -> Checker {
    Box::new(|history| {
        for table in (0..history.specs.len()).map(TableIndex) {
            let spec = &history.specs[table.0];
            if spec.combine.holds_clocks() {
                continue;
            }
            let Ok(updater) = Updaters::builtin().make::<f64>(&spec.updater) else { continue };
            let width = spec.width as usize;
            let mut model = Model { updater, width, rows: BTreeMap::new() };
            let mut asked = BTreeMap::new();
            for entry in &history.entries {
                let by = entry.worker;
                let seen = match &entry.event {
                    HistoryEvent::Pushed { table: of, keys, values, .. } if *of == table => {
                        keys.iter().zip(values.chunks_exact(width)).for_each(|(key, row)| model.push(by, *key, row));
                        continue;
                    }
                    HistoryEvent::RowsSet { table: of, keys, values, .. } if *of == table => {
                        let stored = model.row_state_width();
                        keys.iter().zip(values.chunks_exact(stored)).for_each(|(key, row)| model.set(by, *key, row));
                        continue;
                    }
                    HistoryEvent::RowsDeleted { table: of, keys, .. } if *of == table => {
                        keys.iter().for_each(|key| model.delete(by, *key));
                        continue;
                    }
                    HistoryEvent::PullIssued { table: of, ticket, last, .. } if *of == table => {
                        asked.insert((by, *ticket), *last);
                        continue;
                    }
                    HistoryEvent::PullReturned { ticket, read } => {
                        let Some(last) = asked.get(&(by, *ticket)) else { continue };
                        model.unlike(by, *last, &read.keys, &read.values, width)
                    }
                    HistoryEvent::RowStateReturned { table: of, keys, values, last } if *of == table => {
                        model.unlike(by, *last, keys, values, model.row_state_width())
                    }
                    _ => continue,
                };
                if let Some(what) = seen {
                    return broken(history, "rows_are_as_their_writer_left_them", format!("worker {by} reads {what}"));
                }
            }
        }
        Ok(())
    })
}

/// A row with one writer holds at the end exactly the pushes of the clocks after its last delete.
///
/// A scan at the end finds exactly the rows that have such pushes. Concerns tables that sum by
/// clock.
#[must_use]
pub fn deletes_follow_the_update_of_their_clock() -> Checker {
    Box::new(|history| {
        for table in (0..history.specs.len()).map(TableIndex) {
            let width = history.specs[table.0].width as usize;
            let mut pushes: BTreeMap<u64, Vec<(Clock, Vec<f64>)>> = BTreeMap::new();
            let mut deleted: BTreeMap<u64, Clock> = BTreeMap::new();
            for entry in &history.entries {
                match &entry.event {
                    HistoryEvent::Pushed { table: of, clock, keys, values, .. } if *of == table => {
                        for (key, row) in keys.iter().zip(values.chunks_exact(width)) {
                            pushes.entry(*key).or_default().push((*clock, row.to_vec()));
                        }
                    }
                    HistoryEvent::RowsDeleted { table: of, clock, keys, .. } if *of == table => {
                        keys.iter().for_each(|key| {
                            deleted.insert(*key, *clock);
                        });
                    }
                    _ => {}
                }
            }
            let mut rows: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
            for (key, pushes) in pushes {
                let after = deleted.get(&key).copied();
                for (_, row) in pushes.iter().filter(|(clock, _)| after.is_none_or(|after| *clock > after)) {
                    let sum = rows.entry(key).or_insert_with(|| vec![0.0; width]);
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
            }
            let zeros = vec![0.0; width];
            for read in history.reads().into_iter().filter(|read| read.table == table && read.last) {
                for (key, row) in read.read.keys.iter().zip(read.read.values.chunks_exact(width)) {
                    let expected = rows.get(key).unwrap_or(&zeros);
                    if row != &expected[..] {
                        let what = format!("key {key} reads {row:?} at the end, and its pushes make {expected:?}");
                        return broken(history, "deletes_follow_the_update_of_their_clock", what);
                    }
                }
                let found: Vec<u64> = read.read.keys.iter().copied().filter(|key| !rows.contains_key(key)).collect();
                if read.scan && (!found.is_empty() || read.read.keys.len() != rows.len()) {
                    let what = format!("a scan finds keys {:?}, and there are {:?}", read.read.keys, rows.keys());
                    return broken(history, "deletes_follow_the_update_of_their_clock", what);
                }
            }
        }
        Ok(())
    })
}

/// The rows as their writers have made them so far.
struct Model {
    updater: Box<dyn Updater<f64>>,
    width: usize,
    /// By key: the worker that writes it, and its row state.
    rows: BTreeMap<u64, (u32, Vec<f64>)>,
}

impl Model {
    fn row_state_width(&self) -> usize {
        self.width + self.updater.state(self.width)
    }

    fn row(&mut self, by: u32, key: u64) -> &mut [f64] {
        let zeros = vec![0.0; self.row_state_width()];
        let (writer, row) = self.rows.entry(key).or_insert((by, zeros));
        assert_eq!(*writer, by, "key {key} has two writers; this checker needs one");
        row
    }

    fn push(&mut self, by: u32, key: u64, gradient: &[f64]) {
        let mut row = self.row(by, key).to_vec();
        self.updater.update_rows(&UpdateStep::default(), self.width, &mut row, Slots::List(&[0]), gradient);
        self.row(by, key).copy_from_slice(&row);
    }

    fn set(&mut self, by: u32, key: u64, row: &[f64]) {
        self.row(by, key).copy_from_slice(row);
    }

    fn delete(&mut self, by: u32, key: u64) {
        self.row(by, key).fill(0.0);
    }

    /// The first of these rows that differs from what its writer made, in words. Judges a reader's
    /// own rows, and in final reads all rows.
    fn unlike(&self, reader: u32, last: bool, keys: &[u64], values: &[f64], width: usize) -> Option<String> {
        let zeros = vec![0.0; self.row_state_width()];
        keys.iter().zip(values.chunks_exact(width)).find_map(|(key, row)| {
            let (writer, made) = self.rows.get(key).map_or((reader, &zeros), |(writer, row)| (*writer, row));
            let judged = last || writer == reader;
            (judged && row != &made[..width])
                .then(|| format!("{row:?} for key {key}, and worker {writer} made {:?}", &made[..width]))
        })
    }
}
