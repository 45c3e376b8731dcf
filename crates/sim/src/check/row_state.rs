//! Rows that one worker alone writes, by pushes and by setting them: they are what its program has
//! made of them.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use crate::program::TableIndex;
use std::collections::BTreeMap;
use types::Combine;
use update::{Slots, UpdateStep, Updater, Updaters};

/// A row that only one worker writes is, when that worker has waited for it, what its pushes and
/// the rows that it set make of it in the order of its program: nothing is lost, done twice, or
/// done after what came later. So it is for everybody who reads when all are done. For tables of
/// f64 with one of the built-in updaters that do not count examples, which combine each push and
/// whose reads hold own pushes.
#[must_use]
pub fn rows_are_as_their_writer_left_them() -> Checker {
    Box::new(|history| {
        for table in (0..history.specs.len()).map(TableIndex) {
            let spec = &history.specs[table.0];
            if spec.combine != Combine::Each {
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
                        let kept = model.row_state_width();
                        keys.iter().zip(values.chunks_exact(kept)).for_each(|(key, row)| model.set(by, *key, row));
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

/// Rows as their writers have made them so far.
struct Model {
    updater: Box<dyn Updater<f64>>,
    width: usize,
    /// By key: who writes it, and the row as it is kept.
    rows: BTreeMap<u64, (u32, Vec<f64>)>,
}

impl Model {
    fn row_state_width(&self) -> usize {
        self.width + self.updater.state(self.width)
    }

    fn row(&mut self, by: u32, key: u64) -> &mut [f64] {
        let zeros = vec![0.0; self.row_state_width()];
        let (writer, row) = self.rows.entry(key).or_insert((by, zeros));
        assert_eq!(*writer, by, "key {key} has two writers, of whom nothing is promised");
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

    /// The first of these rows that is not what it should be for this reader, in words.
    fn unlike(&self, reader: u32, last: bool, keys: &[u64], values: &[f64], width: usize) -> Option<String> {
        let zeros = vec![0.0; self.row_state_width()];
        keys.iter().zip(values.chunks_exact(width)).find_map(|(key, row)| {
            let (writer, made) = self.rows.get(key).map_or((reader, &zeros), |(writer, row)| (*writer, row));
            let judged = last || writer == reader;
            (judged && row != &made[..width])
                .then(|| format!("{row:?} for key {key}, of which worker {writer} made {:?}", &made[..width]))
        })
    }
}
