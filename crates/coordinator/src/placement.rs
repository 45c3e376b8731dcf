//! Placement: the chain of every shard in the next plan, and when shards move.
//!
//! Each method that may change a chain returns whether it did: then a new plan is due. `balance.rs`
//! decides which server gets which shard.

#[cfg(test)]
mod tests;

use crate::balance::ShardLayout;
use crate::saved::{self, MOST_NODES};
use std::collections::{BTreeMap, BTreeSet};
use types::{Chain, ShardId, Span, TableId, Time};
use wire::{Field, Reader, WireError};

/// Shards move to even out servers only if these hold at least this many bytes each, on average.
const WORTH_MOVING: u64 = 1 << 20;

/// The servers that may hold shards.
pub(crate) struct Holders {
    /// The servers that take part and are not about to leave, in order.
    pub staying: Vec<u32>,
    /// How many of them hold each shard.
    pub replicas: usize,
}

/// The chain of each shard in the next plan.
#[derive(Default)]
pub(crate) struct Placement {
    chains: Vec<Chain>,
    /// Bytes of each shard, as its head reports them.
    bytes: Vec<u64>,
    /// By shard and server: the tables whose backfill to that replica is done, in the plan in
    /// force.
    backfilled: BTreeMap<(u32, u32), BTreeSet<TableId>>,
    /// When shards were last moved because servers held uneven amounts. 0 before the first time.
    leveled: Time,
    /// Whether some shard had too few replicas at the last check.
    lacks_replicas: bool,
}

impl Placement {
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Makes the first chains: each server is head of neighbouring shards, and the servers after it
    /// hold the other replicas.
    pub fn begin(&mut self, servers: u32, shards: u32, replicas: usize) {
        let replicas = (replicas as u32).min(servers);
        let chain = |shard: u32| {
            let head = (u64::from(shard) * u64::from(servers) / u64::from(shards)) as u32;
            Chain {
                replicas: (0..replicas).map(|replica| (head + replica) % servers).collect(),
                backfilling: Vec::new(),
            }
        };
        self.chains = (0..shards).map(chain).collect();
    }

    fn layout<'a>(&'a mut self, holders: &'a Holders) -> ShardLayout<'a> {
        ShardLayout {
            chains: &mut self.chains,
            bytes: &self.bytes,
            servers: &holders.staying,
            replicas: holders.replicas,
        }
    }

    /// Whether every shard that a server holds has a complete replica on another server.
    pub fn has_replicas(&self, server: u32) -> bool {
        self.chains.iter().all(|chain| chain.replicas.iter().any(|member| *member != server))
    }

    /// Takes a lost server out of all chains: the other replicas of its shards take over.
    pub fn remove_server(&mut self, server: u32) {
        for chain in &mut self.chains {
            chain.replicas.retain(|member| *member != server);
            chain.backfilling.retain(|member| *member != server);
        }
    }

    /// Stops all backfills to a server that is about to leave.
    pub fn stop_backfilling(&mut self, server: u32) -> bool {
        let mut changed = false;
        for chain in &mut self.chains {
            let before = chain.backfilling.len();
            chain.backfilling.retain(|member| *member != server);
            changed |= chain.backfilling.len() < before;
        }
        changed
    }

    /// Whether every shard has all of its replicas again, after some lacked one at the last check.
    pub fn is_whole_again(&mut self, replicas: usize) -> bool {
        let lacks = |chain: &Chain| chain.replicas.len() < replicas || !chain.backfilling.is_empty();
        let lacked = std::mem::replace(&mut self.lacks_replicas, self.chains.iter().any(lacks));
        lacked && !self.lacks_replicas
    }

    /// Adds replicas where a shard has too few and there are servers that can hold them.
    pub fn repair(&mut self, holders: &Holders) -> bool {
        self.layout(holders).repair()
    }

    /// Gives a server that has joined its share of replicas.
    pub fn share_out(&mut self, holders: &Holders) -> bool {
        self.layout(holders).share_out()
    }

    /// Notes the bytes of shards that their head has reported.
    pub fn hear_bytes(&mut self, shards: &[(ShardId, u64)]) {
        self.bytes.resize(self.chains.len(), 0);
        for (shard, bytes) in shards {
            if let Some(known) = self.bytes.get_mut(shard.0 as usize) {
                *known = *bytes;
            }
        }
    }

    /// Moves shards if some servers hold far more than others and it is worth it. Does nothing
    /// while a replica is backfilled, or sooner than `after` since the last time.
    pub fn level(&mut self, now: Time, after: Span, holders: &Holders) -> bool {
        let is_settled = self.chains.iter().all(|chain| chain.backfilling.is_empty());
        let bytes = self.bytes.iter().sum::<u64>() * holders.replicas as u64;
        let is_worth_it = bytes >= WORTH_MOVING * holders.staying.len() as u64;
        if !is_settled || !is_worth_it || now.since(self.leveled) < after {
            return false;
        }
        let mut layout = self.layout(holders);
        let changed = layout.is_uneven() && layout.share_out();
        if changed {
            self.leveled = now;
        }
        changed
    }

    /// Notes that a replica is backfilled with one table's shard. Once this is so for every table,
    /// the replica joins the chain. `tables` says how many shards each table has.
    pub fn backfilled(
        &mut self,
        (table, shard, server): (TableId, ShardId, u32),
        tables: &[(TableId, usize)],
        holders: &Holders,
    ) -> bool {
        let index = shard.0 as usize;
        if !self.chains.get(index).is_some_and(|chain| chain.backfilling.contains(&server)) {
            return false;
        }
        let backfilled = self.backfilled.entry((shard.0, server)).or_default();
        backfilled.insert(table);
        if !tables.iter().all(|(table, shards)| *shards <= index || backfilled.contains(table)) {
            return false;
        }
        self.layout(holders).complete(index, server);
        true
    }

    /// Completes the backfill of all shards from this one on: no table has them, so they are empty.
    pub fn complete_empty(&mut self, first: usize, holders: &Holders) {
        for shard in first..self.chains.len() {
            for server in self.chains[shard].backfilling.clone() {
                self.layout(holders).complete(shard, server);
            }
        }
    }

    /// Forgets which backfills are done: with a new plan, tails report them anew, under its number.
    pub fn forget_backfills(&mut self) {
        self.backfilled.clear();
    }
}

/// Whether all servers in these chains have names below [`MOST_NODES`].
pub(crate) fn names_are_small(chains: &[Chain]) -> bool {
    let servers = |chain: &Chain| chain.replicas.iter().chain(&chain.backfilling).all(|server| *server < MOST_NODES);
    chains.iter().all(servers)
}

/// Bytes and backfills are not saved: servers report them again.
impl Field for Placement {
    fn put(&self, out: &mut Vec<u8>) {
        self.chains.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let chains: Vec<Chain> = Field::get(input)?;
        saved::check(&[(names_are_small(&chains), "a server with an impossible name")])?;
        Ok(Self { chains, ..Self::default() })
    }
}
