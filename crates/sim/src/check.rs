//! Checkers: each judges a history by one promise, from the history alone.

mod active;
mod clocks;
mod counted;
mod feed;
mod order;
mod queues;
mod row_state;

use crate::decode::{Row, rows};
use crate::history::{Fate, FinishedRead, History, HistoryEvent, Mark};
use crate::program::TableIndex;
pub use active::nothing_that_counts_is_left_out;
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
pub use queues::{held_clocks_at_most, open_reads_at_most};
pub use row_state::{deletes_follow_the_update_of_their_clock, rows_are_as_their_writer_left_them};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use types::{Clock, Combine, Consistency, ShardId};

/// Judges a history.
pub type Checker = Box<dyn Fn(&History) -> Result<(), Violation>>;

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// Which promise.
    pub promise: &'static str,
    /// To whom, where and how it was broken.
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

/// What is known of a table's pushes.
struct Pushes {
    /// For each key, what each worker pushed that marks.
    marks: BTreeMap<u64, BTreeMap<u32, Vec<Mark>>>,
    /// Clocks that were failed for everybody, with the shard.
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

/// A row of a read and the pushes that were made to it.
struct Seen<'a> {
    read: &'a FinishedRead<'a>,
    row: &'a Row,
    shard: ShardId,
    pushes: &'a Pushes,
}

impl Seen<'_> {
    /// Every push to the row: worker, n, and what is known of it.
    fn pushes(&self) -> impl Iterator<Item = (u32, usize, Mark)> + '_ {
        let of = self.pushes.marks.get(&self.row.key).into_iter().flatten();
        of.flat_map(|(worker, marks)| marks.iter().enumerate().map(|(n, mark)| (*worker, n, *mark)))
    }

    /// Whether the clock of a push was failed for everybody.
    fn failed(&self, mark: &Mark) -> bool {
        self.pushes.failed.contains(&(mark.clock, self.shard))
    }

    /// Whether a push should be in once its clock is: it was accepted, and its clock did not fail.
    fn counts(&self, mark: &Mark) -> bool {
        mark.fate == Fate::Accepted && !self.failed(mark)
    }

    fn place(&self) -> String {
        let FinishedRead { worker, table, reader, read, .. } = self.read;
        format!("worker {worker} at {reader}, told {}, reads key {} of table {} and", read.clock, self.row.key, table.0)
    }
}

/// Judges every row that tells which pushes it holds. `judge` says what is wrong with it.
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
    history.specs[read.table.0].combine == Combine::Each
}

/// A pull by a worker at clock c holds every push that any worker made in its clocks ≤ c − slack −
/// 1.
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

/// A read holds everything its reader pushed before it, in bounded tables where every push is
/// applied by itself.
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

/// No read holds a push twice, or one that was refused or never made; the final reads hold every
/// accepted one.
#[must_use]
pub fn no_acknowledged_push_lost_or_doubled() -> Checker {
    each_row("no_acknowledged_push_lost_or_doubled", any_read, |seen| {
        if let Some(worker) = seen.row.nonsense {
            return Some(format!("finds numbers that no pushes of worker {worker} add up to"));
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
                return Some(format!("holds push {n} of worker {worker}, which was not made yet"));
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

/// A read that says it reflects frontier F holds every push of clocks below F.
#[must_use]
pub fn reported_clock_is_true() -> Checker {
    each_row("reported_clock_is_true", any_read, |seen| {
        let missing = seen.pushes().find(|(worker, n, mark)| {
            mark.clock < seen.read.read.clock && !seen.row.holds(*worker, *n) && seen.counts(mark)
        });
        missing.map(|(worker, n, mark)| format!("misses push {n} of worker {worker} from {}", mark.clock))
    })
}

/// Everything that was asked for was answered, and every worker came to the end of its program.
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

/// A push with a value that is not finite is refused, and the refusal names the row.
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
                let what = format!("worker {} at {clock} pushes NaN to key {key}, and hears {named:?}", entry.worker);
                return broken(history, "not_finite_is_refused", what);
            }
        }
        Ok(())
    })
}
