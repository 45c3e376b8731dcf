//! Checkers: each judges one rule, by the history of a run alone.
//!
//! The first sentence of each checker is the rule. Checkers that follow single pushes need tables
//! whose programs push [`Write::Marks`](crate::Write::Marks): their rows tell which pushes they
//! hold (`decode.rs`). Other tables are skipped.

mod active;
mod bounds;
mod clocks;
mod counted;
mod feed;
mod order;
mod row_state;

use crate::decode::{Row, rows};
use crate::history::{Fate, FinishedRead, History, HistoryEvent, Mark};
use crate::program::TableIndex;
pub use active::nothing_that_counts_is_left_out;
pub use bounds::{held_clocks_at_most, open_reads_at_most};
pub use clocks::{
    failed_clocks_are_seen_alike, reads_hold_exactly_the_clocks_below_the_reported_one,
    scans_show_no_row_before_its_clock,
};
pub use counted::{every_lease_counted_once, pushes_are_counted_once};
pub use feed::feeds_show_rows_as_they_are;
pub use order::{
    assigned_values_never_go_back, barriers_hold, delay_at_most, fifo_per_worker, no_silent_wait, one_head_at_a_time,
    runs_after,
};
pub use row_state::{deletes_follow_the_update_of_their_clock, rows_are_as_their_writer_left_them};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use types::{Clock, Consistency, ShardId};

/// Judges a history by one rule. Fails with the first violation.
pub type Checker = Box<dyn Fn(&History) -> Result<(), Violation>>;

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The name of the rule's checker.
    pub promise: &'static str,
    /// Which worker or server saw what, where, and why that breaks the rule.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {} is broken: {}", self.seed, self.promise, self.what)
    }
}

fn broken(history: &History, promise: &'static str, what: String) -> Result<(), Violation> {
    Err(Violation { seed: history.seed, promise, what })
}

/// The pushes to a table.
struct Pushes {
    /// For each key and worker: the worker's marking pushes to the key, in order.
    marks: BTreeMap<u64, BTreeMap<u32, Vec<Mark>>>,
    /// Clocks that a refused contribution failed for all workers, with the shard.
    failed: BTreeSet<(Clock, ShardId)>,
}

impl Pushes {
    fn new(history: &History, table: TableIndex) -> Self {
        let mut marks: BTreeMap<u64, BTreeMap<u32, Vec<Mark>>> = BTreeMap::new();
        for ((worker, key), made) in history.marks(table) {
            marks.entry(key).or_default().insert(worker, made);
        }
        Self { marks, failed: clocks::failed_clocks(history, table) }
    }
}

/// A row of a read, and the pushes that were made to it.
struct Seen<'a> {
    read: &'a FinishedRead<'a>,
    row: &'a Row,
    shard: ShardId,
    pushes: &'a Pushes,
}

impl Seen<'_> {
    /// Every push to the row: the worker, its number n among the worker's pushes, and its mark.
    fn pushes(&self) -> impl Iterator<Item = (u32, usize, Mark)> + '_ {
        let of = self.pushes.marks.get(&self.row.key).into_iter().flatten();
        of.flat_map(|(worker, marks)| marks.iter().enumerate().map(|(n, mark)| (*worker, n, *mark)))
    }

    /// Whether the clock of a push failed for all workers.
    fn failed(&self, mark: &Mark) -> bool {
        self.pushes.failed.contains(&(mark.clock, self.shard))
    }

    /// Whether the row must hold a push once it holds the push's clock: the push was accepted, and
    /// its clock did not fail.
    fn counts(&self, mark: &Mark) -> bool {
        mark.fate == Fate::Accepted && !self.failed(mark)
    }

    fn place(&self) -> String {
        let FinishedRead { worker, table, reader, read, .. } = self.read;
        format!("worker {worker} at {reader}, told {}, reads key {} of table {} and", read.clock, self.row.key, table.0)
    }
}

/// Judges every row that tells which pushes it holds, of the reads that the rule `concerns`.
/// `judge` returns what is wrong with a row.
fn each_row(
    promise: &'static str,
    concerns: fn(&History, &FinishedRead<'_>) -> bool,
    judge: impl Fn(&Seen<'_>) -> Option<String> + 'static,
) -> Checker {
    Box::new(move |history| {
        let tables = (0..history.specs.len()).map(TableIndex);
        let pushes: Vec<Pushes> = tables.map(|table| Pushes::new(history, table)).collect();
        for read in history.reads().iter().filter(|read| concerns(history, read)) {
            for row in &rows(history, read) {
                let shard = history.shard(read.table, row.key);
                let seen = Seen { read, row, shard, pushes: &pushes[read.table.0] };
                if let Some(what) = judge(&seen) {
                    return broken(history, promise, format!("{} {what}", seen.place()));
                }
            }
        }
        Ok(())
    })
}

fn any_read(_: &History, _: &FinishedRead<'_>) -> bool {
    true
}

fn is_each(history: &History, read: &FinishedRead<'_>) -> bool {
    !history.specs[read.table.0].combine.holds_clocks()
}

/// A read at clock c holds every push of every worker's clocks up to c − slack − 1.
#[must_use]
pub fn staleness_at_most(slack: u64) -> Checker {
    each_row("staleness_at_most", any_read, move |seen| {
        let visible = |clock: Clock| clock.0 + slack < seen.read.reader.0;
        let missing = seen
            .pushes()
            .find(|(worker, n, mark)| visible(mark.clock) && !seen.row.holds(*worker, *n) && seen.counts(mark));
        missing.map(|(worker, n, mark)| {
            format!("misses push {n} of worker {worker} from {}, though the slack is {slack}", mark.clock)
        })
    })
}

/// A read holds every push that its reader made before it.
///
/// Concerns bounded tables that apply every push by itself.
#[must_use]
pub fn reads_own_writes() -> Checker {
    fn promised(history: &History, read: &FinishedRead<'_>) -> bool {
        is_each(history, read) && matches!(history.specs[read.table.0].consistency, Consistency::Bounded { .. })
    }
    each_row("reads_own_writes", promised, |seen| {
        let own = |worker: u32, mark: &Mark| worker == seen.read.worker && mark.made < seen.read.issued;
        let missing = seen.pushes().find(|(worker, n, mark)| {
            own(*worker, mark) && mark.fate == Fate::Accepted && !seen.row.holds(*worker, *n)
        });
        missing.map(|(_, n, mark)| format!("misses its own push {n} from {}", mark.clock))
    })
}

/// Every accepted push counts exactly once.
///
/// No read holds a push twice, or a push that was refused, that failed with its clock or that was
/// never made. The final reads hold every accepted push.
#[must_use]
pub fn no_acknowledged_push_lost_or_doubled() -> Checker {
    each_row("no_acknowledged_push_lost_or_doubled", any_read, |seen| {
        if let Some(worker) = seen.row.nonsense {
            return Some(format!("finds numbers that are no sum of pushes of worker {worker}"));
        }
        if let Some((worker, n)) = seen.row.doubled {
            return Some(format!("holds push {n} of worker {worker} more than once"));
        }
        for (worker, n, mark) in seen.pushes() {
            let holds = seen.row.holds(worker, n);
            if holds && mark.fate == Fate::Refused {
                return Some(format!("holds push {n} of worker {worker}, which was refused"));
            }
            if holds && seen.failed(&mark) {
                return Some(format!("holds push {n} of worker {worker}, though {} failed", mark.clock));
            }
            if holds && mark.made > seen.read.returned {
                return Some(format!("holds push {n} of worker {worker}, which was made later"));
            }
            if seen.read.last && !holds && seen.counts(&mark) {
                return Some(format!("has lost push {n} of worker {worker} from {}", mark.clock));
            }
        }
        let made =
            |worker: u32| (seen.pushes.marks.get(&seen.row.key).and_then(|made| made.get(&worker))).map_or(0, Vec::len);
        let phantom = (0u32..).zip(&seen.row.held).find(|(worker, held)| **held >> made(*worker) != 0);
        phantom.map(|(worker, _)| format!("holds a push that worker {worker} never made"))
    })
}

/// A read that reports frontier F holds every push of the clocks below F.
#[must_use]
pub fn reported_clock_is_true() -> Checker {
    each_row("reported_clock_is_true", any_read, |seen| {
        let missing = seen.pushes().find(|(worker, n, mark)| {
            mark.clock < seen.read.read.clock && !seen.row.holds(*worker, *n) && seen.counts(mark)
        });
        missing.map(|(worker, n, mark)| format!("misses push {n} of worker {worker} from {}", mark.clock))
    })
}

/// Every operation is answered, and every worker comes to the end of its program or crashes.
#[must_use]
pub fn all_finished() -> Checker {
    Box::new(|history| {
        let mut open = BTreeMap::new();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::Pushed { ticket, .. }
                | HistoryEvent::RowsSet { ticket, .. }
                | HistoryEvent::RowsDeleted { ticket, .. }
                | HistoryEvent::PullIssued { ticket, .. } => {
                    open.insert((entry.worker, *ticket), entry.at);
                }
                HistoryEvent::PushDone { ticket, .. }
                | HistoryEvent::PullReturned { ticket, .. }
                | HistoryEvent::PullFailed { ticket, .. } => {
                    open.remove(&(entry.worker, *ticket));
                }
                _ => {}
            }
        }
        let gone = |event: &HistoryEvent| {
            matches!(event, HistoryEvent::Left | HistoryEvent::Crashed | HistoryEvent::TurnedAway)
        };
        let left = history.entries.iter().filter(|entry| gone(&entry.event)).count();
        let crashed =
            |worker| history.entries.iter().any(|entry| entry.worker == worker && entry.event == HistoryEvent::Crashed);
        open.retain(|(worker, _), _| !crashed(*worker));
        match open.first_key_value() {
            Some(((worker, ticket), _)) => {
                broken(history, "all_finished", format!("ticket {} of worker {worker} was never answered", ticket.0))
            }
            None if left < history.plan.workers.len() => {
                broken(history, "all_finished", format!("{left} of {} workers left", history.plan.workers.len()))
            }
            None => Ok(()),
        }
    })
}

/// A push with a value that is not finite is refused, and the refusal names that value's row.
#[must_use]
pub fn not_finite_is_refused() -> Checker {
    Box::new(|history| {
        let refusals = history.refusals();
        for entry in &history.entries {
            let HistoryEvent::Pushed { table, clock, ticket, keys, values, .. } = &entry.event else { continue };
            let width = history.specs[table.0].width as usize;
            let Some(bad) = values.iter().position(|value| !value.is_finite()) else { continue };
            let placement = history.specs[table.0].shape.placement();
            let named = match refusals.get(&(entry.worker, *ticket)) {
                Some(Some(wire::Refusal::NotFinite { position })) => Some(placement.key(*position).0),
                _ => None,
            };
            if named != Some(keys[bad / width]) {
                let key = keys[bad / width];
                let what =
                    format!("worker {} at {clock} pushes NaN to key {key}; the refusal names {named:?}", entry.worker);
                return broken(history, "not_finite_is_refused", what);
            }
        }
        Ok(())
    })
}
