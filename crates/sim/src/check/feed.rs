//! The rule of the change feed: a program that applies its pages ends with the table's rows.

use super::{Checker, broken};
use crate::history::HistoryEvent;
use crate::program::TableIndex;
use std::collections::BTreeMap;
use types::{Key, UpdaterSpec};

/// The rows that a program knows from the pages of a feed.
#[derive(Default)]
struct Seen {
    rows: BTreeMap<u64, Vec<f64>>,
    /// The latest first number of each key, deleted ones included. Judged in assign tables only.
    latest: BTreeMap<u64, f64>,
    /// Whether the program has followed the feed to its end.
    ended: bool,
}

/// A program that followed a feed from before the first push to its end knows exactly the rows that
/// it then reads.
///
/// It knows all of them, none that was deleted, and each with its last values. In an assign table
/// whose values grow, a row never goes back unless the feed starts over.
#[must_use]
pub fn feeds_show_rows_as_they_are() -> Checker {
    const PROMISE: &str = "feeds_show_rows_as_they_are";
    Box::new(|history| {
        let mut feeds: BTreeMap<(u32, TableIndex), Seen> = BTreeMap::new();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::Followed { table, range, starts_over, keys, values, deleted } => {
                    let spec = &history.specs[table.0];
                    let placement = spec.shape.placement();
                    let seen = feeds.entry((entry.worker, *table)).or_default();
                    if *starts_over {
                        let stays = |key: &u64| !range.contains(placement.position(Key(*key)));
                        seen.rows.retain(|key, _| stays(key));
                        seen.latest.retain(|key, _| stays(key));
                    }
                    for (key, row) in keys.iter().zip(values.chunks_exact(spec.width as usize)) {
                        let before = seen.latest.insert(*key, row[0]).filter(|_| spec.updater == UpdaterSpec::Assign);
                        if before.is_some_and(|before| row[0] < before) {
                            let what =
                                format!("worker {} is told {} for key {key} after {before:?}", entry.worker, row[0]);
                            return broken(history, PROMISE, what);
                        }
                        seen.rows.insert(*key, row.to_vec());
                    }
                    deleted.iter().for_each(|key| drop(seen.rows.remove(key)));
                }
                HistoryEvent::FollowedToTheEnd { table } => {
                    feeds.entry((entry.worker, *table)).or_default().ended = true;
                }
                _ => {}
            }
        }
        for read in history.reads().into_iter().filter(|read| read.last) {
            let Some(seen) = feeds.get(&(read.worker, read.table)).filter(|seen| seen.ended) else { continue };
            let width = history.specs[read.table.0].width as usize;
            let zeros = vec![0.0; width];
            for (key, row) in read.read.keys.iter().zip(read.read.values.chunks_exact(width)) {
                let followed = seen.rows.get(key);
                if followed.unwrap_or(&zeros) != row || (read.scan && followed.is_none()) {
                    let what = format!(
                        "worker {} has {followed:?} for key {key} from its feed, and reads {row:?}",
                        read.worker
                    );
                    return broken(history, PROMISE, what);
                }
            }
            let stale = seen.rows.keys().find(|key| read.scan && !read.read.keys.contains(key));
            if let Some(key) = stale {
                let what = format!("worker {} was never told that key {key} was deleted", read.worker);
                return broken(history, PROMISE, what);
            }
        }
        Ok(())
    })
}
