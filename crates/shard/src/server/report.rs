//! A server's report to the coordinator, beside its heartbeats: the shards it answers for, the
//! workers that reads wait for, and its time-outs.

use super::Server;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, ShardId, TableId, WorkerId};
use wire::{NodeReport, Timeout, WaitingRead};

/// A report names this many parked reads at most.
const WAITING_READS: usize = 64;

impl Server {
    /// The server's own part of the report. The shell adds its measurements.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let mut shards: BTreeMap<ShardId, u64> = BTreeMap::new();
        let mut frontiers: BTreeMap<TableId, Clock> = BTreeMap::new();
        let mut waited_for: BTreeSet<WorkerId> = BTreeSet::new();
        let mut waiting_reads: BTreeMap<(WorkerId, TableId), WaitingRead> = BTreeMap::new();
        for ((table, id), shard) in self.shards.iter().filter(|(_, shard)| shard.is_head()) {
            *shards.entry(*id).or_default() += shard.counts().bytes;
            let frontier = shard.frontier();
            frontiers.entry(*table).and_modify(|lowest| *lowest = (*lowest).min(frontier)).or_insert(frontier);
            waited_for.extend(shard.waited_for());
            for waiting in shard.waiting_reads() {
                let most = waiting_reads.entry((waiting.reader, waiting.table)).or_insert(waiting);
                *most = if most.needs < waiting.needs { waiting } else { *most };
            }
        }
        let slowest =
            self.shards.values().filter_map(|shard| shard.resends()).max_by_key(|(late, trip)| (*late, trip.mean));
        let resend = slowest.map(|(late, trip)| {
            let why = "mean plus four deviations of the time until a batch is acknowledged, at least 0.1 s, doubled after each resend";
            Timeout::new("a replication batch is resent down the chain", late, why, Some(trip))
        });
        NodeReport {
            shards: shards.into_iter().collect(),
            frontiers: frontiers.into_iter().collect(),
            waited_for: waited_for.into_iter().collect(),
            waiting_reads: waiting_reads.into_values().take(WAITING_READS).collect(),
            silent_peers: self.heartbeats.silent_peers(),
            timeouts: resend.into_iter().collect(),
            ..NodeReport::default()
        }
    }
}
