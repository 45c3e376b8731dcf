//! Key lists that a shard has seen: a repeated list comes as a signature, and its slots are looked up only once.

use crate::rows::Resolved;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Payload, Signature};

/// What a shard remembers of lists, in bytes.
pub const LIST_BYTES: usize = 256 << 20;

/// One shard's piece of a list: signature of the whole, start and length of the piece.
pub type ListName = (Signature, u64, u32);

/// A list and where its rows lie.
#[derive(Clone)]
pub struct Known {
    /// u64 each, sorted, unique, within the shard's range: checked when it was first seen. Kept only where they are needed
    /// again: some key has no row yet, or changed rows must be named.
    pub positions: Option<Payload>,
    /// The slots as last looked up.
    pub resolved: Arc<Resolved>,
    /// How many rows the shard had then, if some of the keys had none; new rows may be theirs.
    pub incomplete_at: Option<usize>,
}

struct Entry {
    known: Known,
    used: u64,
}

/// The lists, the least recently used forgotten first.
pub struct KeyLists {
    entries: BTreeMap<ListName, Entry>,
    by_use: BTreeMap<u64, ListName>,
    uses: u64,
    bytes: usize,
    limit: usize,
}

impl KeyLists {
    /// Remembers up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, limit }
    }

    /// The list of that name, if it is remembered.
    pub fn get(&mut self, name: ListName) -> Option<Known> {
        let entry = self.entries.get_mut(&name)?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, name);
        Some(entry.known.clone())
    }

    /// Remembers a list, or what is newly known of it.
    pub fn put(&mut self, name: ListName, known: Known) {
        self.forget(name);
        let bytes = cost(&known);
        self.uses += 1;
        self.by_use.insert(self.uses, name);
        self.entries.insert(name, Entry { known, used: self.uses });
        self.bytes += bytes;
        while self.bytes > self.limit {
            let Some((_, &oldest)) = self.by_use.first_key_value() else { break };
            self.forget(oldest);
        }
    }

    /// All rows have been put in order: what was looked up lies elsewhere now.
    pub fn renumber(&mut self, moves: &[u32]) {
        for entry in self.entries.values_mut() {
            entry.known.resolved = Arc::new(entry.known.resolved.moved(moves));
        }
    }

    fn forget(&mut self, name: ListName) {
        if let Some(entry) = self.entries.remove(&name) {
            self.by_use.remove(&entry.used);
            self.bytes -= cost(&entry.known);
        }
    }
}

fn cost(known: &Known) -> usize {
    let slots = match &*known.resolved {
        Resolved::Run { .. } => 0,
        Resolved::List(slots) => slots.len() * 4,
    };
    known.positions.as_ref().map_or(0, Payload::len) + slots + 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_list_is_forgotten_first() {
        let known = || Known {
            positions: Some(Payload::new(vec![0u64; 100])),
            resolved: Arc::new(Resolved::List(vec![0; 100])),
            incomplete_at: None,
        };
        let name = |n: u128| (Signature(n), 0, 100);
        let mut lists = KeyLists::new(3 * cost(&known()));
        (1..=3).for_each(|n| lists.put(name(n), known()));
        assert!(lists.get(name(1)).is_some());
        lists.put(name(4), known());
        assert!(lists.get(name(2)).is_none(), "2 was not used since 1 was");
        assert!([1, 3, 4].into_iter().all(|n| lists.get(name(n)).is_some()));
        lists.put(name(1), known());
        assert!([1, 3, 4].into_iter().all(|n| lists.get(name(n)).is_some()), "putting it again costs nothing more");
    }
}
