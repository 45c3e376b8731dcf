//! A cache of key lists that a shard has seen: a worker sends a repeated list as a signature, and
//! the shard has its slots ready.

use crate::rows::Resolved;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use wire::{Payload, Signature};

/// Default bound on the memory for the key lists of one shard, in bytes.
pub const LIST_BYTES: usize = 256 << 20;

/// One shard's part of a list: the signature of the whole list, and the start and length of the
/// part.
pub(crate) type ListName = (Signature, u64, u32);

/// A list and the slots of its rows.
#[derive(Clone)]
pub(crate) struct KnownList {
    /// Positions as u64: sorted, unique, within the shard's range, as was checked when the list
    /// first came. Kept only if they are needed again: some key has no row yet, or followers need
    /// the positions of changed rows.
    pub positions: Option<Payload>,
    /// The slots as last looked up.
    pub resolved: Arc<Resolved>,
    /// If some keys had no row at the last lookup: how many rows the shard had then. When it has
    /// more, some of these keys may have rows.
    pub incomplete_at: Option<usize>,
}

/// A list that is remembered.
pub(crate) enum Remembered {
    /// Its slots are valid.
    Current(KnownList),
    /// Rows have been removed since the last lookup, so other rows may have some of its slots now.
    Outdated {
        /// As in [`KnownList`].
        positions: Payload,
    },
}

struct Entry {
    known: KnownList,
    /// Its key in the `by_use` of its shelf.
    used: u64,
    /// Whether it came back after it was forgotten once.
    returned: bool,
    /// The generation of the rows at the last lookup.
    generation: u64,
}

/// Key lists by name, in a cache with two shelves (segmented LRU).
///
/// A new list is held for a while, long enough for the push that follows a pull. A list that comes
/// back after it was forgotten goes to the shelf of returned lists, which forgets the least
/// recently used one. So lists that are used only once take little memory and evict no returned
/// list.
///
/// A removal of rows begins a new generation. Slots of an earlier generation are never handed out.
/// A list that is kept with its positions is looked up again when it is next used. A list without
/// positions is forgotten, and the shard asks the worker for its keys.
pub(crate) struct KeyLists {
    entries: BTreeMap<ListName, Entry>,
    new: Shelf,
    returned: Shelf,
    forgotten: Forgotten,
    /// Counts uses of lists, to order them.
    uses: u64,
    /// Counts removals of rows.
    generation: u64,
}

/// Some of the lists, in the order in which they are to be forgotten.
struct Shelf {
    by_use: BTreeMap<u64, ListName>,
    /// Memory that these lists take.
    bytes: usize,
    /// Bound on `bytes`.
    limit: usize,
}

/// Names of lists that were forgotten and go to the shelf of returned lists when they come back.
#[derive(Default)]
struct Forgotten {
    names: BTreeSet<ListName>,
    by_age: VecDeque<ListName>,
}

/// How many names of forgotten lists are remembered.
const FORGOTTEN_NAMES: usize = 1 << 15;
/// New lists have this fraction (one in so many) of the memory.
const NEW_SHARE: usize = 8;

impl Shelf {
    fn new(limit: usize) -> Self {
        Self { by_use: BTreeMap::new(), bytes: 0, limit }
    }

    /// The list to forget next, if the lists take too much memory.
    fn surplus(&self) -> Option<ListName> {
        let oldest = self.by_use.first_key_value().map(|(_, name)| *name);
        oldest.filter(|_| self.bytes > self.limit)
    }
}

impl Forgotten {
    fn put(&mut self, name: ListName) {
        if self.names.insert(name) {
            self.by_age.push_back(name);
        }
        if self.by_age.len() > FORGOTTEN_NAMES
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.names.remove(&oldest);
        }
    }
}

impl KeyLists {
    /// Forgets all lists.
    pub fn clear(&mut self) {
        *self = Self::new(self.new.limit + self.returned.limit);
    }

    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let new = limit / NEW_SHARE;
        Self {
            entries: BTreeMap::new(),
            new: Shelf::new(new),
            returned: Shelf::new(limit - new),
            forgotten: Forgotten::default(),
            uses: 0,
            generation: 0,
        }
    }

    fn shelf(&mut self, returned: bool) -> &mut Shelf {
        if returned { &mut self.returned } else { &mut self.new }
    }

    /// The list of that name, if it is remembered. Counts as a use of it.
    pub fn get(&mut self, name: ListName) -> Option<Remembered> {
        let entry = self.entries.get_mut(&name)?;
        if entry.returned {
            self.returned.by_use.remove(&entry.used);
            self.uses += 1;
            entry.used = self.uses;
            self.returned.by_use.insert(self.uses, name);
        }
        if entry.generation == self.generation {
            return Some(Remembered::Current(entry.known.clone()));
        }
        let positions = entry.known.positions.clone();
        if positions.is_none() {
            self.forget_outdated(name);
        }
        positions.map(|positions| Remembered::Outdated { positions })
    }

    /// Rows have been removed: the slots of all lists so far are outdated.
    pub fn rows_removed(&mut self) {
        self.generation += 1;
    }

    /// Forgets a list whose slots are outdated. A returned list goes to its shelf again when the
    /// worker sends its keys.
    fn forget_outdated(&mut self, name: ListName) {
        if self.forget(name).is_some_and(|entry| entry.returned) {
            self.forgotten.put(name);
        }
    }

    /// Remembers a list, or replaces what was known of it.
    pub fn put(&mut self, name: ListName, known: KnownList) {
        let (used, returned) = match self.forget(name) {
            Some(before) => (before.used, before.returned),
            None => {
                self.uses += 1;
                (self.uses, self.forgotten.names.contains(&name))
            }
        };
        let shelf = self.shelf(returned);
        shelf.by_use.insert(used, name);
        shelf.bytes += cost(&known);
        self.entries.insert(name, Entry { known, used, returned, generation: self.generation });
        while let Some(oldest) = self.new.surplus() {
            self.forget(oldest);
            self.forgotten.put(oldest);
        }
        while let Some(oldest) = self.returned.surplus() {
            self.forget(oldest);
        }
    }

    /// The rows have moved: `moves` gives the new slot of each old one.
    pub fn renumber(&mut self, moves: &[u32]) {
        for entry in self.entries.values_mut().filter(|entry| entry.generation == self.generation) {
            entry.known.resolved = Arc::new(entry.known.resolved.moved(moves));
        }
    }

    fn forget(&mut self, name: ListName) -> Option<Entry> {
        let entry = self.entries.remove(&name)?;
        let shelf = self.shelf(entry.returned);
        shelf.by_use.remove(&entry.used);
        shelf.bytes -= cost(&entry.known);
        Some(entry)
    }
}

/// Memory that a list takes, in bytes.
fn cost(known: &KnownList) -> usize {
    let slots = match &*known.resolved {
        Resolved::Run { .. } => 0,
        Resolved::List(slots) => slots.len() * 4,
    };
    known.positions.as_ref().map_or(0, Payload::len) + slots + 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownList {
        KnownList {
            positions: Some(Payload::new(vec![0u64; 100])),
            resolved: Arc::new(Resolved::List(vec![0; 100])),
            incomplete_at: None,
        }
    }

    fn name(n: u128) -> ListName {
        (Signature(n), 0, 100)
    }

    /// A cache with room for two new lists and fourteen returned ones.
    fn lists() -> KeyLists {
        KeyLists::new(16 * cost(&known()))
    }

    fn held(lists: &mut KeyLists, names: impl IntoIterator<Item = u128>) -> Vec<u128> {
        names.into_iter().filter(|n| lists.get(name(*n)).is_some()).collect()
    }

    #[test]
    fn key_lists_forget_new_lists_oldest_first() {
        let mut lists = lists();
        (1..=2).for_each(|n| lists.put(name(n), known()));
        assert_eq!(held(&mut lists, 1..=2), [1, 2]);
        lists.put(name(2), known());
        assert_eq!(held(&mut lists, 1..=2), [1, 2], "putting it again costs nothing more");
        lists.put(name(3), known());
        assert_eq!(held(&mut lists, 1..=3), [2, 3]);
    }

    #[test]
    fn key_lists_keep_returned_lists_while_others_pass_by() {
        let mut lists = lists();
        for _ in 0..2 {
            (1..=14).for_each(|n| lists.put(name(n), known()));
        }
        (100..200).for_each(|n| lists.put(name(n), known()));
        assert_eq!(
            held(&mut lists, 1..200),
            (1..=12).chain([198, 199]).collect::<Vec<_>>(),
            "13 and 14 were put twice without being forgotten between"
        );
        (13..=14).for_each(|n| lists.put(name(n), known()));
        assert!(lists.get(name(1)).is_some());
        (100..=101).for_each(|n| lists.put(name(n), known()));
        assert_eq!(
            held(&mut lists, 1..=14),
            [vec![1], (4..=14).collect()].concat(),
            "2 and 3 were used least recently"
        );
    }

    #[test]
    fn key_lists_never_hand_out_slots_from_before_a_removal() {
        let mut lists = lists();
        let without_positions = KnownList { positions: None, ..known() };
        lists.put(name(1), known());
        lists.put(name(2), without_positions.clone());
        lists.rows_removed();
        assert!(matches!(lists.get(name(1)), Some(Remembered::Outdated { positions }) if positions.len() == 800));
        assert!(lists.get(name(2)).is_none(), "without positions it cannot be looked up");
        // Outdated slots are not moved.
        lists.renumber(&[]);
        lists.put(name(1), known());
        lists.put(name(2), without_positions);
        lists.renumber(&[7]);
        for n in [1, 2] {
            let Some(Remembered::Current(known)) = lists.get(name(n)) else { panic!("it was put again") };
            assert_eq!(*known.resolved, Resolved::List(vec![7; 100]));
        }
    }

    #[test]
    fn key_lists_keep_the_shelf_of_returned_lists_across_a_removal() {
        let mut lists = lists();
        let without_positions = || KnownList { positions: None, ..known() };
        for _ in 0..2 {
            (1..=8).for_each(|n| lists.put(name(n), without_positions()));
        }
        assert_eq!(lists.returned.by_use.len(), 8 - lists.new.by_use.len());
        let returned: Vec<ListName> = lists.returned.by_use.values().copied().collect();
        lists.rows_removed();
        assert!(returned.iter().all(|name| lists.get(*name).is_none()));
        assert_eq!((lists.returned.by_use.len(), lists.returned.bytes), (0, 0));
        returned.iter().for_each(|name| lists.put(*name, without_positions()));
        assert!(lists.returned.by_use.values().eq(&returned));
    }

    #[test]
    fn key_lists_bound_the_names_of_forgotten_lists() {
        let mut lists = lists();
        (0..2 * FORGOTTEN_NAMES as u128).for_each(|n| lists.put(name(n), known()));
        assert_eq!(lists.forgotten.names.len(), FORGOTTEN_NAMES);
        assert_eq!(lists.forgotten.by_age.len(), FORGOTTEN_NAMES);
    }
}
