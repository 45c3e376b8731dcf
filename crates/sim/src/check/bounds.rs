//! Rules of bounds: how many clocks with held pushes a worker may be ahead, and how many reads it
//! may have open.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use std::collections::{BTreeMap, BTreeSet};
use types::Clock;

/// A worker that pushed in a clock to a table that combines by clock ends that clock only while the
/// slowest worker is fewer than `most` clocks behind.
#[must_use]
pub fn held_clocks_at_most(most: u64) -> Checker {
    Box::new(move |history| {
        let mut ended: BTreeMap<u32, Clock> = history.starters().map(|rank| (rank, Clock(0))).collect();
        let mut pushed: BTreeSet<u32> = BTreeSet::new();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::Pushed { table, .. } if history.specs[table.0].combine.holds_clocks() => {
                    pushed.insert(entry.worker);
                }
                HistoryEvent::ClockEnded { clock } => {
                    let slowest = ended.values().min().copied().unwrap_or_default();
                    if pushed.remove(&entry.worker) && clock.0 >= slowest.0 + most {
                        let what = format!("worker {} ends {clock} while the slowest is at {slowest}", entry.worker);
                        return broken(history, "held_clocks_at_most", what);
                    }
                    ended.insert(entry.worker, clock.next());
                }
                HistoryEvent::Left | HistoryEvent::Crashed => {
                    ended.remove(&entry.worker);
                }
                HistoryEvent::Joined { clock } => {
                    ended.insert(entry.worker, *clock);
                }
                _ => {}
            }
        }
        Ok(())
    })
}

/// No worker has more than `most` reads open at once.
#[must_use]
pub fn open_reads_at_most(most: usize) -> Checker {
    Box::new(move |history| {
        let mut open: BTreeMap<u32, usize> = BTreeMap::new();
        for entry in &history.entries {
            let count = open.entry(entry.worker).or_default();
            match &entry.event {
                HistoryEvent::PullIssued { .. } => *count += 1,
                HistoryEvent::PullReturned { .. } | HistoryEvent::PullFailed { .. } => *count -= 1,
                _ => {}
            }
            if *count > most {
                return broken(
                    history,
                    "open_reads_at_most",
                    format!("worker {} has {count} reads open", entry.worker),
                );
            }
        }
        Ok(())
    })
}
