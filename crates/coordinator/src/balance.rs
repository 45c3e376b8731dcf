//! Shard placement by bytes, with rendezvous hashing (highest random weight): which servers hold
//! each shard.
//!
//! Rules:
//! - A shard with too few replicas gets new ones, on the servers that hold the fewest bytes.
//! - A server that joins takes its share of the bytes and no more.
//! - A server that leaves keeps its shards until enough other servers hold all of them.
//!
//! Each server ranks all shards by a hash of the shard and itself. A server with less than its
//! share takes the shards that it ranks first, from servers with more than theirs. Nothing else
//! moves.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use types::Chain;

/// A server's load may differ from its share by one part in this many: a shard is never split to
/// come closer.
const TOLERANCE: u64 = 10;

/// The chains of all shards, and the servers that may hold them.
pub(super) struct ShardLayout<'a> {
    pub chains: &'a mut [Chain],
    /// Bytes of each shard, by index. A shard beyond the end counts as empty.
    pub bytes: &'a [u64],
    /// Servers that stay in the run, in rising order.
    pub servers: &'a [u32],
    /// How many servers hold each shard, where there are enough.
    pub replicas: usize,
}

impl ShardLayout<'_> {
    /// A shard's weight: its bytes, and at least 1, so that empty shards are spread too.
    fn weight(&self, shard: usize) -> u64 {
        self.bytes.get(shard).copied().unwrap_or(0).max(1)
    }

    fn stays(&self, server: u32) -> bool {
        self.servers.binary_search(&server).is_ok()
    }

    fn wanted(&self) -> usize {
        self.replicas.min(self.servers.len())
    }

    /// Bytes of each server that stays, as they are after all backfills: a shard that moves counts
    /// for the server that it moves to.
    pub fn loads(&self) -> BTreeMap<u32, u64> {
        let mut loads: BTreeMap<u32, u64> = self.servers.iter().map(|server| (*server, 0)).collect();
        for (shard, chain) in self.chains.iter().enumerate() {
            for server in chain.replicas.iter().chain(&chain.backfilling) {
                loads.entry(*server).and_modify(|load| *load += self.weight(shard));
            }
        }
        for (shard, chain) in self.chains.iter().enumerate().filter(|(_, chain)| !chain.backfilling.is_empty()) {
            let stay = chain.replicas.iter().chain(&chain.backfilling).filter(|server| self.stays(**server)).count();
            for _ in self.replicas..stay {
                let Some(loaded) = most_loaded(chain.replicas.iter(), &loads) else { break };
                loads.entry(loaded).and_modify(|load| *load = load.saturating_sub(self.weight(shard)));
            }
        }
        loads
    }

    /// Adds replicas, to be backfilled, to shards that too few staying servers hold. Places the
    /// largest shards first. Returns whether anything changed.
    pub fn repair(&mut self) -> bool {
        let mut loads = self.loads();
        let mut shards: Vec<usize> = (0..self.chains.len()).collect();
        shards.sort_by_key(|shard| std::cmp::Reverse(self.weight(*shard)));
        let mut changed = false;
        for shard in shards {
            loop {
                let chain = &self.chains[shard];
                let held =
                    chain.replicas.iter().chain(&chain.backfilling).filter(|server| self.stays(**server)).count();
                if held >= self.wanted() {
                    break;
                }
                let free = loads.iter().filter(|(server, _)| !chain.holds(**server));
                let least = free.min_by_key(|(server, load)| (**load, preference(shard, **server)));
                let Some(server) = least.map(|(server, _)| *server) else { break };
                let weight = self.weight(shard);
                loads.entry(server).and_modify(|load| *load += weight);
                self.chains[shard].backfilling.push(server);
                changed = true;
            }
            changed |= self.let_go(shard);
        }
        changed
    }

    /// Takes leaving servers out of a shard's chain once enough staying servers hold all of it.
    fn let_go(&mut self, shard: usize) -> bool {
        let wanted = self.wanted();
        let staying = self.chains[shard].replicas.iter().filter(|server| self.stays(**server)).count();
        if staying < wanted || wanted == 0 || staying == self.chains[shard].replicas.len() {
            return false;
        }
        let servers = self.servers;
        self.chains[shard].replicas.retain(|server| servers.binary_search(server).is_ok());
        true
    }

    /// Makes a backfilled replica the tail of its chain, behind the replica that backfilled it:
    /// every replica must hold everything that its successors hold. Then takes the replica that it
    /// replaces out of the chain.
    pub fn complete(&mut self, shard: usize, server: u32) {
        self.chains[shard].backfilling.retain(|member| *member != server);
        self.chains[shard].replicas.push(server);
        self.let_go(shard);
        if self.chains[shard].replicas.len() <= self.replicas {
            return;
        }
        let loads = self.loads();
        while self.chains[shard].replicas.len() > self.replicas {
            let others = self.chains[shard].replicas.iter().filter(|member| **member != server);
            let Some(loaded) = most_loaded(others, &loads) else { break };
            self.chains[shard].replicas.retain(|member| *member != loaded);
        }
    }

    /// Gives servers below their share new replicas of the shards that they rank first, taken from
    /// servers above theirs. Returns whether anything changed.
    pub fn share_out(&mut self) -> bool {
        let mut loads = self.loads();
        let share = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
        let mut changed = false;
        for server in self.servers {
            if loads[server] >= share - share / TOLERANCE {
                continue;
            }
            let mut shards: Vec<usize> = (0..self.chains.len()).collect();
            shards.sort_by_cached_key(|shard| preference(*shard, *server));
            for shard in shards {
                let own = loads[server];
                let weight = self.weight(shard);
                let chain = &self.chains[shard];
                if own >= share {
                    break;
                }
                if own + weight > share + share / TOLERANCE || chain.holds(*server) || !chain.backfilling.is_empty() {
                    continue;
                }
                // Takes it from the replica's most loaded server, if that brings the two loads
                // closer.
                let can_give =
                    |member: &&u32| loads.get(member).is_some_and(|load| *load > share && *load > own + weight);
                let Some(from) = most_loaded(chain.replicas.iter().filter(can_give), &loads) else { continue };
                loads.entry(*server).and_modify(|load| *load += weight);
                loads.entry(from).and_modify(|load| *load -= weight);
                self.chains[shard].backfilling.push(*server);
                changed = true;
            }
        }
        changed
    }

    /// Whether some server holds over 5/4 of its share, so that moving shards is worth it.
    pub fn is_uneven(&self) -> bool {
        let loads = self.loads();
        let share = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
        loads.values().any(|load| *load > share + share / 4)
    }
}

fn most_loaded<'s>(servers: impl Iterator<Item = &'s u32>, loads: &BTreeMap<u32, u64>) -> Option<u32> {
    servers.copied().max_by_key(|server| loads.get(server).copied())
}

/// The server's rank of a shard, by a hash of both. The lowest rank comes first.
fn preference(shard: usize, server: u32) -> u64 {
    let mut bits = (shard as u64) << 32 | u64::from(server);
    bits = (bits ^ bits >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^ bits >> 32
}
