//! The rule of the active set: a shard leaves out only weights of an ℓ1 problem that cannot move.

use super::{Checker, broken};
use crate::history::{History, HistoryEvent};
use crate::program::TableIndex;
use std::collections::BTreeMap;
use types::{Clock, UpdaterSpec};

/// A row that a shard calls inactive has weight zero and a gradient within the ℓ1 penalty.
///
/// The checker computes both from the pushes of all workers in the clocks below the answer's
/// frontier. All workers that ask at the same frontier must get the same answer. Concerns proximal
/// tables of width 2 at a constant rate, and questions about one key at a time.
#[must_use]
pub fn nothing_that_counts_is_left_out() -> Checker {
    Box::new(|history| {
        let mut told: BTreeMap<(TableIndex, u64, Clock), bool> = BTreeMap::new();
        for entry in &history.entries {
            let HistoryEvent::Told { table, active, clock } = &entry.event else { continue };
            let UpdaterSpec::Proximal { rate, l1 } = history.specs[table.0].updater else { continue };
            for (key, active) in active {
                let said = format!("worker {} is told at {clock}: key {key} is active: {active}", entry.worker);
                if *told.entry((*table, *key, *clock)).or_insert(*active) != *active {
                    return broken(
                        history,
                        "nothing_that_counts_is_left_out",
                        format!("{said}; another worker is told otherwise"),
                    );
                }
                let (weight, gradient) = row(history, *table, *key, *clock, rate, l1);
                if !active && (weight != 0.0 || gradient.abs() > l1) {
                    let what = format!("{said}, but its weight is {weight} and its gradient {gradient}");
                    return broken(history, "nothing_that_counts_is_left_out", what);
                }
            }
        }
        Ok(())
    })
}

/// The weight of a key and its last gradient, after the proximal steps of all clocks below `below`.
fn row(history: &History, of: TableIndex, wanted: u64, below: Clock, rate: f64, l1: f64) -> (f64, f64) {
    let mut steps: BTreeMap<Clock, (f64, f64)> = BTreeMap::new();
    for entry in &history.entries {
        let HistoryEvent::Pushed { table, clock, keys, values, .. } = &entry.event else { continue };
        let place = keys.iter().position(|key| *key == wanted);
        if let Some(place) = place.filter(|_| *table == of && *clock < below) {
            let (gradient, curvature) = steps.entry(*clock).or_default();
            *gradient += values[2 * place];
            *curvature += values[2 * place + 1];
        }
    }
    let step = |(weight, _): (f64, f64), (gradient, curvature): &(f64, f64)| {
        let moved = weight - rate * gradient / curvature;
        let pull = rate * l1 / curvature;
        (moved - moved.clamp(-pull, pull), *gradient)
    };
    steps.values().fold((0.0, 0.0), step)
}
