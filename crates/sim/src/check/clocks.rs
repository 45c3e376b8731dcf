//! Rules of tables that combine pushes by clock: a read holds exactly the clocks below the one that
//! it reports, a scan shows no row early, and all workers see the same clocks fail.

use super::{Checker, broken, each_row};
use crate::history::{FinishedRead, History, HistoryEvent};
use crate::program::TableIndex;
use std::collections::BTreeSet;
use types::{Clock, Consistency, ShardId};
use wire::Refusal;

fn is_by_clock(history: &History, read: &FinishedRead<'_>) -> bool {
    history.specs[read.table.0].combine.holds_clocks()
}

/// The clocks of a table that a refused contribution failed, with the shard that refused it.
pub(super) fn failed_clocks(history: &History, of: TableIndex) -> BTreeSet<(Clock, ShardId)> {
    if !history.specs[of.0].combine.holds_clocks() {
        return BTreeSet::new();
    }
    let placement = history.specs[of.0].shape.placement();
    let refusals = history.refusals();
    let failed = history.entries.iter().filter_map(|entry| match &entry.event {
        HistoryEvent::Pushed { table, clock, ticket, .. } if *table == of => {
            match refusals.get(&(entry.worker, *ticket)).copied().flatten() {
                Some(Refusal::NotFinite { position }) => Some((*clock, history.shard(of, placement.key(*position).0))),
                _ => None,
            }
        }
        _ => None,
    });
    failed.collect()
}

/// A row holds all pushes of the clocks below one frontier, and no others.
///
/// That is the reported frontier, or a later one where the read has several shards, cached rows or
/// is a scan. No push of the reader is visible before its clock has ended.
#[must_use]
pub fn reads_hold_exactly_the_clocks_below_the_reported_one() -> Checker {
    each_row("reads_hold_exactly_the_clocks_below_the_reported_one", is_by_clock, |seen| {
        let read = seen.read;
        let counted: Vec<_> = seen.pushes().filter(|(_, _, mark)| seen.counts(mark)).collect();
        let newest =
            counted.iter().filter(|(worker, n, _)| seen.row.holds(*worker, *n)).map(|(.., mark)| mark.clock).max();
        let exact = read.shards == 1 && !read.scan && read.read.cached_rows == 0;
        let reported = read.read.clock;
        if let Some(newest) = newest.filter(|newest| exact && *newest >= reported) {
            return Some(format!("holds a push from {newest}"));
        }
        let frontier = newest.map_or(reported, |newest| newest.next().max(reported));
        if let Some((worker, n, mark)) =
            counted.iter().find(|(worker, n, mark)| mark.clock < frontier && !seen.row.holds(*worker, *n))
        {
            return Some(format!("misses push {n} of worker {worker} from {}, but holds later ones", mark.clock));
        }
        let early = counted.iter().find(|(worker, n, mark)| {
            *worker == read.worker && mark.clock >= read.ended && seen.row.holds(*worker, *n)
        });
        early.map(|(_, n, mark)| format!("holds its own push {n} from {}, which has not ended", mark.clock))
    })
}

/// A scan shows a row only if an applied clock has made it: every row shown holds a push.
///
/// Concerns tables without initial values.
#[must_use]
pub fn scans_show_no_row_before_its_clock() -> Checker {
    fn concerns(history: &History, read: &FinishedRead<'_>) -> bool {
        is_by_clock(history, read) && read.scan
    }
    each_row("scans_show_no_row_before_its_clock", concerns, |seen| {
        seen.row.held.iter().all(|held| *held == 0).then(|| "finds a row that no applied clock has made".to_owned())
    })
}

/// Every read is told exactly the failed clocks in its view.
///
/// In view are the failed clocks below the reported frontier that a reader at its clock may not
/// have heard of yet. Concerns reads of one shard without cached rows.
#[must_use]
pub fn failed_clocks_are_seen_alike() -> Checker {
    Box::new(|history| {
        for read in history.reads().iter().filter(|read| is_by_clock(history, read)) {
            let shards: BTreeSet<_> = read.read.keys.iter().map(|key| history.shard(read.table, *key)).collect();
            let (Some(shard), 1) = (shards.first(), shards.len()) else { continue };
            let slack = match history.specs[read.table.0].consistency {
                Consistency::Bounded { slack, .. } => slack,
                Consistency::Unbounded | Consistency::Delay { .. } => 0,
            };
            let in_view = |clock: Clock| clock < read.read.clock && clock.0 + slack + 1 >= read.reader.0;
            let expected: Vec<Clock> = failed_clocks(history, read.table)
                .into_iter()
                .filter(|(clock, failed)| failed == shard && in_view(*clock))
                .map(|(clock, _)| clock)
                .collect();
            let told: Vec<Clock> = read.read.failed.iter().map(|failed| failed.clock).collect();
            if read.read.cached_rows == 0 && told != expected {
                let key = read.read.keys[0];
                let what = format!(
                    "worker {} at {} reads key {key} and is told that {told:?} failed, not {expected:?}",
                    read.worker, read.reader
                );
                return broken(history, "failed_clocks_are_seen_alike", what);
            }
        }
        Ok(())
    })
}
