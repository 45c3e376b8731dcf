//! Who holds which shards, by bytes: replicas are made where some are missing, a server that comes
//! takes its share and no more, and what a server that leaves holds goes to others before it does.
//!
//! Shards are the virtual nodes of consistent hashing: each server has a preference for each of
//! them, by a hash of both. Whoever has less than its share of the bytes takes those that it
//! prefers from servers that have more than theirs, so that nothing else moves.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use types::Chain;

/// A server is given no more than this part of its share beyond it, and is content with as little
/// less: a shard is not cut for the rest.
const TOLERANCE: u64 = 10;

/// Shards and the servers that are to hold them.
pub(super) struct ShardLayout<'a> {
    pub chains: &'a mut [Chain],
    /// Bytes of each shard, where they are known.
    pub bytes: &'a [u64],
    /// Servers that stay, in order.
    pub servers: &'a [u32],
    /// How many of them are to hold each shard, if there are as many.
    pub replicas: usize,
}

impl ShardLayout<'_> {
    /// What a shard weighs: an empty one, too, has to be somewhere.
    fn weight(&self, shard: usize) -> u64 {
        self.bytes.get(shard).copied().unwrap_or(0).max(1)
    }

    fn stays(&self, server: u32) -> bool {
        self.servers.binary_search(&server).is_ok()
    }

    fn wanted(&self) -> usize {
        self.replicas.min(self.servers.len())
    }

    /// What each server that stays holds, or is to: a replica that is being moved counts where it
    /// goes.
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

    /// Places new replicas, to be backfilled, where too few of the servers that stay hold a shard.
    /// The largest shards go first. Returns whether anything changed.
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

    /// Servers that leave let go of a shard once enough others hold all of it.
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

    /// A replica is backfilled: it becomes the tail, behind the one that backfilled it, because
    /// every replica holds everything its successors hold. The server that it replaces lets go of
    /// the shard.
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

    /// Servers that hold less than their share get new replicas, of the shards that they prefer
    /// among those of servers that hold more. Returns whether anything changed.
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
                let (own, weight, chain) = (loads[server], self.weight(shard), &self.chains[shard]);
                if own >= share {
                    break;
                }
                if own + weight > share + share / TOLERANCE || chain.holds(*server) || !chain.backfilling.is_empty() {
                    continue;
                }
                // From whoever has the most, if that makes both more alike.
                let rich = |member: &&u32| loads.get(member).is_some_and(|load| *load > share && *load > own + weight);
                let Some(from) = most_loaded(chain.replicas.iter().filter(rich), &loads) else { continue };
                loads.entry(*server).and_modify(|load| *load += weight);
                loads.entry(from).and_modify(|load| *load -= weight);
                self.chains[shard].backfilling.push(*server);
                changed = true;
            }
        }
        changed
    }

    /// Whether some server has so much more than its share that what it holds is worth moving.
    pub fn is_uneven(&self) -> bool {
        let loads = self.loads();
        let share = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
        loads.values().any(|load| *load > share + share / 4)
    }
}

fn most_loaded<'s>(servers: impl Iterator<Item = &'s u32>, loads: &BTreeMap<u32, u64>) -> Option<u32> {
    servers.copied().max_by_key(|server| loads.get(server).copied())
}

/// How much a server wants a shard: the least first.
fn preference(shard: usize, server: u32) -> u64 {
    let mut bits = (shard as u64) << 32 | u64::from(server);
    bits = (bits ^ bits >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^ bits >> 32
}
