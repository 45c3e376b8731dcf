//! What the log says while a worker waits for others: one line when it begins to wait for a worker,
//! and reminders while that lasts.
//!
//! Shards and the coordinator send a notice for each read, push or barrier that waits, again every
//! few seconds. Notices about the same workers are one wait here, whatever causes them.

use crate::reminder::Reminder;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use types::WorkerId;

/// A shard sends the first notice of a read or push when it has waited for this long. When the
/// first notice of a barrier or a lease comes depends on what the coordinator has measured.
const NOTICE_AFTER: Duration = Duration::from_secs(3);
/// A wait of which no notice came for this long is over.
const OVER_AFTER: Duration = Duration::from_secs(10);

/// What waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting<'a> {
    /// A read of a table.
    Read {
        table: &'a str,
    },
    /// A push to a table, many clocks ahead of the slowest worker.
    Push {
        table: &'a str,
    },
    Barrier,
    /// A worker without a data lease, for workers that hold some.
    Leases,
}

/// The waits of which notices came lately.
#[derive(Default)]
pub(super) struct WaitLog {
    waits: BTreeMap<Awaited, ActiveWait>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited {
    OwnPushes,
    Worker(WorkerId),
}

struct ActiveWait {
    since: Instant,
    noticed: Instant,
    reminder: Reminder,
}

impl WaitLog {
    /// The line to log for a notice, if one is due. `on` are the workers it waits for; none if it
    /// waits for this worker's own pushes.
    pub fn line(&mut self, now: Instant, waiting: Waiting<'_>, on: &[WorkerId]) -> Option<String> {
        self.waits.retain(|_, wait| now.saturating_duration_since(wait.noticed) < OVER_AFTER);
        let workers = on.iter().map(|worker| Awaited::Worker(*worker));
        let awaited: Vec<Awaited> = if on.is_empty() { vec![Awaited::OwnPushes] } else { workers.collect() };
        let began = match waiting {
            Waiting::Read { .. } | Waiting::Push { .. } => now.checked_sub(NOTICE_AFTER).unwrap_or(now),
            Waiting::Barrier | Waiting::Leases => now,
        };
        let mut is_due = false;
        let mut longest = Duration::ZERO;
        for awaited in awaited {
            let begun = || ActiveWait { since: began, noticed: now, reminder: Reminder::default() };
            let wait = self.waits.entry(awaited).or_insert_with(begun);
            wait.noticed = now;
            let waited = now.saturating_duration_since(wait.since);
            is_due |= wait.reminder.is_due(waited.max(NOTICE_AFTER));
            longest = longest.max(waited);
        }
        let seconds = if longest.is_zero() { String::new() } else { format!(" ({} s)", longest.as_secs()) };
        is_due.then(|| format!("waiting for {}{seconds}{}", names(on), reason(waiting)))
    }
}

fn names(on: &[WorkerId]) -> String {
    if on.is_empty() {
        return "this worker's own pushes to reach the servers".to_owned();
    }
    on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why the worker waits, in words that its user knows: tables whose names begin with a dot are made
/// by Slackwater's own programs and are not named.
fn reason(waiting: Waiting<'_>) -> String {
    match waiting {
        Waiting::Read { table } | Waiting::Push { table } if table.starts_with('.') => String::new(),
        Waiting::Read { table } => format!(": a read of table {table} needs its clocks"),
        Waiting::Push { table } => format!(": a push to table {table} is too many clocks ahead"),
        Waiting::Barrier => ": it has not reached the barrier".to_owned(),
        Waiting::Leases => ": it holds the last data leases".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: WorkerId = WorkerId(1);
    const TWO: WorkerId = WorkerId(2);
    const READ: Waiting<'static> = Waiting::Read { table: "weights" };

    /// The lines for notices of a read, each so many seconds after the start.
    fn lines(notices: &[(u64, &[WorkerId])]) -> Vec<(u64, String)> {
        let mut log = WaitLog::default();
        let start = Instant::now();
        let line = |(second, on): &(u64, &[WorkerId])| {
            let line = log.line(start + Duration::from_secs(*second), READ, on);
            line.map(|line| (*second, line.split(':').next().unwrap_or_default().to_owned()))
        };
        notices.iter().filter_map(line).collect()
    }

    fn line(second: u64, words: &str) -> (u64, String) {
        (second, words.to_owned())
    }

    #[test]
    fn a_long_wait_is_logged_at_first_and_then_rarely() {
        let notices: Vec<(u64, &[WorkerId])> = (1..=20).map(|count| (3 * count, &[ONE][..])).collect();
        let expected = [line(3, "waiting for worker 1 (3 s)"), line(30, "waiting for worker 1 (30 s)")];
        assert_eq!(lines(&notices)[..2], expected);
        assert_eq!(lines(&notices).len(), 3);
    }

    #[test]
    fn another_worker_is_named_at_once_and_a_known_one_is_not_named_again() {
        let notices: [(u64, &[WorkerId]); 4] = [(3, &[ONE]), (4, &[ONE, TWO]), (5, &[TWO]), (6, &[])];
        let expected = [
            line(3, "waiting for worker 1 (3 s)"),
            line(4, "waiting for worker 1, worker 2 (4 s)"),
            line(6, "waiting for this worker's own pushes to reach the servers (3 s)"),
        ];
        assert_eq!(lines(&notices), expected);
    }

    #[test]
    fn a_wait_that_ended_begins_anew() {
        let expected = [line(3, "waiting for worker 1 (3 s)"), line(60, "waiting for worker 1 (3 s)")];
        assert_eq!(lines(&[(3, &[ONE]), (60, &[ONE])]), expected);
    }

    #[test]
    fn a_line_says_what_waits_and_names_no_internal_table() {
        for (waiting, words) in [
            (READ, "waiting for worker 1 (3 s): a read of table weights needs its clocks"),
            (Waiting::Read { table: ".accounts" }, "waiting for worker 1 (3 s)"),
            (Waiting::Push { table: ".accounts" }, "waiting for worker 1 (3 s)"),
            (Waiting::Push { table: "w" }, "waiting for worker 1 (3 s): a push to table w is too many clocks ahead"),
            (Waiting::Barrier, "waiting for worker 1: it has not reached the barrier"),
            (Waiting::Leases, "waiting for worker 1: it holds the last data leases"),
        ] {
            assert_eq!(WaitLog::default().line(Instant::now(), waiting, &[ONE]).as_deref(), Some(words));
        }
    }
}
