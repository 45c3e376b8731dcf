//! Rules of rows that count: every push adds 1 to each number, so a row tells how many pushes it
//! holds, with any codec. Pushes count once, and so do the examples of each lease.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use crate::program::Lessons;
use std::collections::BTreeMap;
use types::Clock;

/// How far rounding codecs may move a count.
const ROUNDING: f64 = 0.1;

/// The final reads count every accepted push exactly once, in each number of its rows.
///
/// Earlier reads count at least the pushes of the clocks that their bound promises, and at most all
/// accepted pushes.
#[must_use]
pub fn pushes_are_counted_once() -> Checker {
    Box::new(|history| {
        let refusals = history.refusals();
        // The clocks of accepted pushes, by table and key.
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
                        "worker {} at {} reads {value} for key {key}, which has {most} pushes of which {least} are due",
                        read.worker, read.reader
                    );
                    return broken(history, "pushes_are_counted_once", what);
                }
            }
        }
        Ok(())
    })
}

/// Every example counts exactly once in each epoch when all leases are committed, even if several
/// workers learnt from it.
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
        if seen == 0 { broken(history, promise, "no worker has read the counts at the end".to_owned()) } else { Ok(()) }
    })
}
