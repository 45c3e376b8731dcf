//! Rows that count: where every push adds one to each number, a row tells how many pushes it holds,
//! whatever codec they took.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use crate::program::Lessons;
use std::collections::BTreeMap;
use types::Clock;

/// How far from a whole number rounding may take a count.
const ROUNDING: f64 = 0.1;

/// Every accepted push is counted once in each number of its rows by whoever reads last, and a read
/// holds no fewer than those of the clocks that its bound lets it see, and no more than were made.
#[must_use]
pub fn pushes_are_counted_once() -> Checker {
    Box::new(|history| {
        let refusals = history.refusals();
        // By table and key: the clocks of accepted pushes.
        let mut made: BTreeMap<(usize, u64), Vec<Clock>> = BTreeMap::new();
        for entry in &history.entries {
            let HistoryEvent::Pushed { table, clock, ticket, keys, .. } = &entry.event else { continue };
            if refusals.get(&(entry.worker, *ticket)).is_none_or(Option::is_none) {
                keys.iter().for_each(|key| made.entry((table.0, *key)).or_default().push(*clock));
            }
        }
        for read in history.reads() {
            let spec = &history.specs[read.table.0];
            let slack = spec.consistency.bound();
            for (key, values) in read.read.keys.iter().zip(read.read.values.chunks_exact(spec.width as usize)) {
                let clocks = made.get(&(read.table.0, *key)).map_or(&[][..], Vec::as_slice);
                let due = |clock: &&Clock| slack.is_some_and(|slack| clock.0 + slack < read.reader.0);
                let least = if read.last { clocks.len() } else { clocks.iter().filter(due).count() } as f64;
                let most = clocks.len() as f64;
                let within = |value: &f64| (least - ROUNDING..=most + ROUNDING).contains(value);
                if let Some(value) = values.iter().find(|value| !within(value)) {
                    let what = format!(
                        "worker {} at {} reads {value} for key {key}, to which {most} pushes were made and {least} are due",
                        read.worker, read.reader
                    );
                    return broken(history, "pushes_are_counted_once", what);
                }
            }
        }
        Ok(())
    })
}

/// When all leases are committed, every example has counted once in each epoch, whoever learnt from
/// it and however often.
#[must_use]
pub fn every_lease_counted_once(lessons: Lessons) -> Checker {
    Box::new(move |history| {
        let promise = "every_lease_counted_once";
        let mut seen = 0;
        for read in history.reads().into_iter().filter(|read| read.last && read.table == lessons.table) {
            seen += 1;
            let expected = f64::from(lessons.epochs);
            let wrong = read.read.keys.iter().zip(&read.read.values).find(|(_, count)| **count != expected);
            if let Some((key, count)) = wrong {
                let what =
                    format!("worker {} finds that example {key} counts {count} times, not {expected}", read.worker);
                return broken(history, promise, what);
            }
        }
        if seen == 0 { broken(history, promise, "nobody has read what was counted".to_owned()) } else { Ok(()) }
    })
}
