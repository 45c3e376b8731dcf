//! A worker at a barrier and a reader that wait for each other: the barrier waits for the reader,
//! and the reader's read waits until the worker at the barrier has ended a clock.
//!
//! Servers report parked reads, and workers report that their program waits in one call. A program
//! may ask for rows and not wait for them: so a read counts only while its reader waits.

use super::LivenessView;
use std::collections::BTreeMap;
use types::{NodeId, TableId, Time, WorkerId};
use wire::{NodeReport, WaitingRead};

/// A worker at a barrier, a reader, and the table that it reads.
type Names = (WorkerId, WorkerId, TableId);

/// Barriers and reads that may wait for each other.
#[derive(Default)]
pub(super) struct BarrierWaits {
    /// The parked reads that each server reports.
    reads: BTreeMap<NodeId, Vec<WaitingRead>>,
    /// Since when the program of each worker waits in one call.
    blocked: BTreeMap<NodeId, Time>,
    /// Pairs that wait for each other, since when.
    standing: BTreeMap<Names, (WaitingRead, Time)>,
}

impl BarrierWaits {
    /// A node has sent its report.
    pub fn report(&mut self, node: NodeId, report: &NodeReport, now: Time) {
        match node {
            NodeId::Server(_) if report.waiting_reads.is_empty() => drop(self.reads.remove(&node)),
            NodeId::Server(_) => drop(self.reads.insert(node, report.waiting_reads.clone())),
            NodeId::Worker(_) => {
                self.blocked.remove(&node);
                let since = report.blocked.map(|span| Time(now.0.saturating_sub(span.0)));
                self.blocked.extend(since.map(|since| (node, since)));
            }
            NodeId::Coordinator => {}
        }
    }

    pub fn forget(&mut self, node: NodeId) {
        self.reads.remove(&node);
        self.blocked.remove(&node);
    }

    /// The coordinator has not run until now.
    pub fn forgive(&mut self, now: Time) {
        self.standing.values_mut().for_each(|(_, since)| *since = now);
    }

    /// Looks which pairs wait for each other now.
    pub fn look(&mut self, view: &LivenessView<'_>) {
        let before = std::mem::take(&mut self.standing);
        if !view.barriers.is_anybody_there() {
            return;
        }
        for read in self.reads.values().flatten() {
            let reader = NodeId::from(read.reader);
            let Some(blocked) = self.blocked.get(&reader) else { continue };
            if !view.takes_part(reader) || view.barriers.is_there(read.reader) {
                continue;
            }
            for at_barrier in view.members.live_workers().filter(|worker| view.barriers.is_there(*worker)) {
                if view.members.clock(at_barrier.into()) >= read.needs {
                    continue;
                }
                let names = (at_barrier, read.reader, read.table);
                // Several servers may report the same pair.
                let since = before.get(&names).map_or(view.now, |(_, since)| *since).max(*blocked);
                self.standing.insert(names, (*read, since));
            }
        }
    }

    /// The pairs that wait for each other: the worker at the barrier, the reason in words, and
    /// since when.
    pub fn standing(&self, view: &LivenessView<'_>) -> Vec<(NodeId, String, Time)> {
        let words = |((at_barrier, reader, table), (read, since)): (&Names, &(WaitingRead, Time))| {
            let node = NodeId::from(*at_barrier);
            let clock = view.members.clock(node);
            let words = format!(
                "{node} waits at a barrier in clock {clock} for {reader}, and {reader} waits in a read of table \
                 '{table}' in clock {at} until {node} has ended clock {needs}: neither can go on; end the clock \
                 before the barrier in every worker",
                clock = clock.0,
                reader = NodeId::from(*reader),
                table = view.tables.name(*table).unwrap_or_default(),
                at = read.clock.0,
                needs = read.needs.0.saturating_sub(1),
            );
            (node, words, *since)
        };
        self.standing.iter().map(words).collect()
    }
}
