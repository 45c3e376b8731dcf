//! Rules of order and time: a worker's pushes, assigned values, tasks after those that they depend
//! on, one head of a shard at a time, barriers, and notices to workers that wait.

use super::{Checker, any_read, broken, each_row};
use crate::history::{HeadSaid, History, HistoryEvent};
use crate::program::TableIndex;
use std::collections::{BTreeMap, BTreeSet};
use types::{Consistency, Span, UpdaterSpec};
use worker::{Notice, TicketId};

/// A read that holds a worker's push to a row holds that worker's earlier pushes to the row.
#[must_use]
pub fn fifo_per_worker() -> Checker {
    each_row("fifo_per_worker", any_read, |seen| {
        let mut missing: BTreeMap<u32, usize> = BTreeMap::new();
        for (worker, n, mark) in seen.pushes() {
            if !seen.row.holds(worker, n) {
                if seen.counts(&mark) {
                    missing.entry(worker).or_insert(n);
                }
            } else if let Some(earlier) = missing.get(&worker) {
                return Some(format!("holds push {n} of worker {worker} but not its push {earlier}"));
            }
        }
        None
    })
}

/// No reader sees a row of an assign table go back.
///
/// Concerns tables whose rows have one writer each, which assigns rising numbers.
#[must_use]
pub fn assigned_values_never_go_back() -> Checker {
    Box::new(|history| {
        let mut latest: BTreeMap<(u32, TableIndex, u64), f64> = BTreeMap::new();
        for read in history.reads() {
            if history.specs[read.table.0].updater != UpdaterSpec::Assign {
                continue;
            }
            let width = history.specs[read.table.0].width as usize;
            for (key, row) in read.read.keys.iter().zip(read.read.values.chunks_exact(width)) {
                let before = latest.entry((read.worker, read.table, *key)).or_insert(row[0]);
                if row[0] < *before {
                    let what = format!(
                        "worker {} at {} reads {} at key {key} after {before}",
                        read.worker, read.reader, row[0]
                    );
                    return broken(history, "assigned_values_never_go_back", what);
                }
                *before = row[0];
            }
        }
        Ok(())
    })
}

/// A worker sends its task i only after its tasks before i − τ are answered.
///
/// Concerns tables with a delay τ, whose tasks have a row each.
#[must_use]
pub fn delay_at_most(tau: u64) -> Checker {
    Box::new(move |history| {
        // By worker and table: the rows in the order in which their tasks were asked for.
        let mut asked: BTreeMap<(u32, TableIndex), Vec<u64>> = BTreeMap::new();
        // The rows whose tasks are answered.
        let mut answered: BTreeSet<(u32, TableIndex, u64)> = BTreeSet::new();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::Pushed { table, keys, .. } => {
                    asked.entry((entry.worker, *table)).or_default().extend(keys);
                }
                HistoryEvent::TaskAnswered { table, row } => {
                    answered.insert((entry.worker, *table, *row));
                }
                HistoryEvent::TaskSent { table, row } if has_delay(history, *table) => {
                    let rows = asked.entry((entry.worker, *table)).or_default();
                    let Some(i) = rows.iter().position(|asked| asked == row) else { continue };
                    let first = i.saturating_sub(tau as usize);
                    let open = rows[..first].iter().find(|row| !answered.contains(&(entry.worker, *table, **row)));
                    if let Some(open) = open {
                        let worker = entry.worker;
                        let what = format!("worker {worker} sends its task on row {row} before row {open} is answered");
                        return broken(history, "delay_at_most", what);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    })
}

fn has_delay(history: &History, table: TableIndex) -> bool {
    matches!(history.specs[table.0].consistency, Consistency::Delay { .. })
}

/// A worker sends a task only after the tasks that it must follow are answered.
///
/// Concerns tasks that have a row each.
#[must_use]
pub fn runs_after() -> Checker {
    Box::new(|history| {
        let mut rows: BTreeMap<(u32, TicketId), (TableIndex, u64)> = BTreeMap::new();
        let mut follows: BTreeMap<(u32, TableIndex, u64), Vec<TicketId>> = BTreeMap::new();
        for entry in &history.entries {
            if let HistoryEvent::Pushed { table, ticket, keys, after, .. }
            | HistoryEvent::PullIssued { table, ticket, keys, after, .. } = &entry.event
                && let [row] = keys[..]
            {
                rows.insert((entry.worker, *ticket), (*table, row));
                follows.insert((entry.worker, *table, row), after.clone());
            }
        }
        let mut answered: BTreeSet<(u32, TableIndex, u64)> = BTreeSet::new();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::TaskAnswered { table, row } => {
                    answered.insert((entry.worker, *table, *row));
                }
                HistoryEvent::TaskSent { table, row } => {
                    let after = follows.get(&(entry.worker, *table, *row)).map_or(&[][..], Vec::as_slice);
                    let mut named = after.iter().filter_map(|ticket| rows.get(&(entry.worker, *ticket)));
                    if let Some((_, open)) =
                        named.find(|(table, row)| !answered.contains(&(entry.worker, *table, *row)))
                    {
                        let what = format!("worker {} sends row {row} before row {open} is answered", entry.worker);
                        return broken(history, "runs_after", what);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    })
}

/// At most one server at a time acknowledges and answers as the head of a shard.
///
/// Under one plan it is always the same server. Once it has answered, no other server answers under
/// an older plan.
#[must_use]
pub fn one_head_at_a_time() -> Checker {
    Box::new(|history| {
        let mut heads: BTreeMap<(types::TableId, types::ShardId), &HeadSaid> = BTreeMap::new();
        for said in &history.heads {
            let head = heads.entry((said.table, said.shard)).or_insert(said);
            if said.plan > head.plan {
                *head = said;
            } else if said.server != head.server {
                let of = |said: &HeadSaid| {
                    let at = said.at.since(types::Time(0)).as_secs_f64();
                    format!("at {at:.3} s by plan {}", said.plan.0)
                };
                let what = format!(
                    "{} answers for shard {} {}, and {} did {}",
                    said.server,
                    said.shard.0,
                    of(said),
                    head.server,
                    of(head)
                );
                return broken(history, "one_head_at_a_time", what);
            }
        }
        Ok(())
    })
}

/// A worker passes a barrier only after every worker that has not left has reached it.
#[must_use]
pub fn barriers_hold() -> Checker {
    Box::new(|history| {
        let mut reached: BTreeMap<u32, u64> = history.starters().map(|rank| (rank, 0)).collect();
        for entry in &history.entries {
            match &entry.event {
                HistoryEvent::BarrierReached { number } => {
                    reached.insert(entry.worker, *number);
                }
                HistoryEvent::Left | HistoryEvent::Crashed => {
                    reached.remove(&entry.worker);
                }
                HistoryEvent::Joined { .. } => {
                    reached.insert(entry.worker, 0);
                }
                HistoryEvent::BarrierPassed { number } => {
                    if let Some((missing, _)) = reached.iter().find(|(_, reached)| *reached < number) {
                        let what = format!("worker {} passes barrier {number} without worker {missing}", entry.worker);
                        return broken(history, "barriers_hold", what);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    })
}

/// A program that waits longer than `failure_timeout` for a read or a barrier is told which workers
/// it waits for.
///
/// The workers named must hold it up: at the time of the notice they have not ended the clocks, or
/// reached the barrier, that the waiting worker needs.
#[must_use]
pub fn no_silent_wait(failure_timeout: Span) -> Checker {
    Box::new(move |history| {
        let mut clocks: BTreeMap<u32, u64> = BTreeMap::new();
        let mut barriers: BTreeMap<u32, u64> = BTreeMap::new();
        let mut waits: BTreeMap<(u32, u64), (types::Time, u64, bool)> = BTreeMap::new();
        let silent = |worker: u32, what: &str| {
            broken(history, "no_silent_wait", format!("worker {worker} waited for {what} and was told no worker"))
        };
        // A barrier has the name 0 in `waits`: no ticket has it.
        for entry in &history.entries {
            let worker = entry.worker;
            match &entry.event {
                HistoryEvent::ClockEnded { .. } => *clocks.entry(worker).or_default() += 1,
                HistoryEvent::PullIssued { table, clock, ticket, .. } => {
                    let slack = match history.specs[table.0].consistency {
                        Consistency::Bounded { slack, .. } => slack,
                        Consistency::Unbounded | Consistency::Delay { .. } => u64::MAX,
                    };
                    waits.insert((worker, ticket.0), (entry.at, clock.0.saturating_sub(slack), false));
                }
                HistoryEvent::BarrierReached { number } => {
                    barriers.insert(worker, *number);
                    waits.insert((worker, 0), (entry.at, *number, false));
                }
                HistoryEvent::Noticed(notice) => {
                    let (on, barrier) = match notice {
                        Notice::Push { .. } | Notice::Codec { .. } => continue,
                        Notice::Read { on, .. } => (on, false),
                        Notice::Barrier { on } => (on, true),
                        Notice::Leases { .. } => continue,
                    };
                    let concerned: Vec<_> =
                        waits.iter_mut().filter(|((who, name), _)| *who == worker && (*name == 0) == barrier).collect();
                    let needed = concerned.iter().map(|(_, (_, needed, _))| *needed).max().unwrap_or(0);
                    let has = if barrier { &barriers } else { &clocks };
                    let wrong = on.iter().find(|named| has.get(&named.0).is_some_and(|has| *has >= needed));
                    if let Some(wrong) = wrong {
                        let what = format!("worker {worker} is told that it waits for {wrong}, which is not behind");
                        return broken(history, "no_silent_wait", what);
                    }
                    if on.is_empty() {
                        return silent(worker, "a read or a barrier");
                    }
                    concerned.into_iter().for_each(|(_, (.., told))| *told = true);
                }
                HistoryEvent::PullReturned { ticket, .. } | HistoryEvent::PullFailed { ticket, .. } => {
                    if let Some((since, _, false)) = waits.remove(&(worker, ticket.0))
                        && entry.at.since(since) > failure_timeout
                    {
                        return silent(worker, "a read");
                    }
                }
                HistoryEvent::BarrierPassed { .. } => {
                    if let Some((since, _, false)) = waits.remove(&(worker, 0))
                        && entry.at.since(since) > failure_timeout
                    {
                        return silent(worker, "a barrier");
                    }
                }
                _ => {}
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NodeId, Plan, PlanNumber, ShardId, TableId, Time};

    /// The violation found when servers answer for shards in this order: (shard, server, plan).
    fn found(said: &[(u32, u32, u64)]) -> Option<String> {
        let said = said.iter().zip(1..).map(|((shard, server, plan), at)| HeadSaid {
            at: Time(at * 1_000_000_000),
            table: TableId(0),
            shard: ShardId(*shard),
            server: NodeId::Server(*server),
            plan: PlanNumber(*plan),
        });
        let history = History {
            seed: 0,
            plan: Plan::default(),
            specs: Vec::new(),
            entries: Vec::new(),
            heads: said.collect(),
            ended: Time(0),
        };
        one_head_at_a_time()(&history).err().map(|violation| violation.what)
    }

    #[test]
    fn heads_may_change_with_the_plan_and_differ_between_shards() {
        assert_eq!(found(&[(0, 0, 1), (1, 1, 1), (0, 0, 1), (0, 1, 2), (1, 1, 1), (0, 1, 2), (0, 0, 3)]), None);
    }

    #[test]
    fn a_head_of_an_older_plan_may_answer_until_the_next_head_does() {
        assert_eq!(found(&[(0, 0, 1), (0, 0, 1), (0, 1, 2)]), None);
        let what = found(&[(0, 0, 1), (0, 1, 2), (0, 0, 1)]).expect("the old head answers after the new one");
        assert_eq!(what, "server 0 answers for shard 0 at 3.000 s by plan 1, and server 1 did at 2.000 s by plan 2");
    }

    #[test]
    fn two_heads_under_one_plan_are_noticed() {
        let what = found(&[(0, 0, 2), (0, 1, 2)]).expect("a plan has one head for a shard");
        assert_eq!(what, "server 1 answers for shard 0 at 2.000 s by plan 2, and server 0 did at 1.000 s by plan 2");
    }
}
