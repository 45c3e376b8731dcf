//! A cache of key lists that a shard has seen: a worker sends a repeated list as a signature, and
//! the shard has its slots ready.

use crate::rows::Resolved;
use crate::rows::slot::Forwarding;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
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
    /// The layout whose moves it follows, and how many of its slots are those after the moves.
    forwarded: (u64, usize),
}

impl Entry {
    /// Replaces the slots of rows that have moved. Rows move in position order, so each slot is
    /// looked at about once. Returns how many were.
    fn forward(&mut self, forwarding: &Forwarding) -> usize {
        if self.forwarded.0 != forwarding.number() {
            self.forwarded = (forwarding.number(), 0);
        }
        let begin = self.forwarded.1;
        let Resolved::List(slots) = &*self.known.resolved else { return 0 };
        let moved = slots[begin..].iter().take_while(|slot| forwarding.of(**slot).is_some()).count();
        let end = begin + moved;
        if slots[begin..end].iter().any(|slot| forwarding.is_old(*slot))
            && let Resolved::List(slots) = Arc::make_mut(&mut self.known.resolved)
        {
            slots[begin..end].iter_mut().for_each(|slot| *slot = forwarding.of(*slot).unwrap_or(*slot));
        }
        self.forwarded.1 = end;
        moved
    }
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
    /// The layout whose moves [`forward`](KeyLists::forward) follows, and the last list that does.
    forwarded: (u64, Option<ListName>),
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
            forwarded: (0, None),
        }
    }

    fn shelf(&mut self, returned: bool) -> &mut Shelf {
        if returned { &mut self.returned } else { &mut self.new }
    }

    /// The list of that name, if it is remembered. Counts as a use of it. `forwarding`: where rows
    /// have moved to, while they are being laid out.
    pub fn get(&mut self, name: ListName, forwarding: Option<&Forwarding>) -> Option<Remembered> {
        let entry = self.entries.get_mut(&name)?;
        if entry.returned {
            self.returned.by_use.remove(&entry.used);
            self.uses += 1;
            entry.used = self.uses;
            self.returned.by_use.insert(self.uses, name);
        }
        if entry.generation == self.generation {
            if let Some(forwarding) = forwarding {
                entry.forward(forwarding);
            }
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
        self.entries.insert(name, Entry { known, used, returned, generation: self.generation, forwarded: (0, 0) });
        while let Some(oldest) = self.new.surplus() {
            self.forget(oldest);
            self.forgotten.put(oldest);
        }
        while let Some(oldest) = self.returned.surplus() {
            self.forget(oldest);
        }
    }

    /// All rows have moved: forgets slots that they have left, in lists with about `most` keys in
    /// all. Returns how many it has looked at, 0 if none is left.
    pub fn forward(&mut self, forwarding: &Forwarding, most: usize) -> usize {
        if self.forwarded.0 != forwarding.number() {
            self.forwarded = (forwarding.number(), None);
        }
        let mut seen = 0;
        let from = self.forwarded.1.map_or(Bound::Unbounded, Bound::Excluded);
        for (name, entry) in self.entries.range_mut((from, Bound::Unbounded)) {
            if seen >= most {
                break;
            }
            self.forwarded.1 = Some(*name);
            seen += 1;
            if entry.generation == self.generation {
                seen += entry.forward(forwarding);
            }
        }
        seen
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
    use crate::rows::slot::Move;

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
        names.into_iter().filter(|n| lists.get(name(*n), None).is_some()).collect()
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
        assert!(lists.get(name(1), None).is_some());
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
        assert!(matches!(lists.get(name(1), None), Some(Remembered::Outdated { positions }) if positions.len() == 800));
        assert!(lists.get(name(2), None).is_none(), "without positions it cannot be looked up");
    }

    const NEW: u32 = 1 << 31;

    fn of_slots(slots: &[u32]) -> KnownList {
        KnownList { resolved: Arc::new(Resolved::List(slots.to_vec())), ..known() }
    }

    fn slots(lists: &mut KeyLists, n: u128, forwarding: &Forwarding) -> Vec<u32> {
        match lists.get(name(n), Some(forwarding)) {
            Some(Remembered::Current(KnownList { resolved, .. })) => resolved.each().collect(),
            _ => panic!("list {n} is remembered"),
        }
    }

    #[test]
    fn key_lists_follow_rows_that_move() {
        let mut lists = lists();
        lists.put(name(1), of_slots(&[3, 1, 2]));
        lists.put(name(2), of_slots(&[3, 2]));
        let mut forwarding = Forwarding::new(1, 0, 5);
        forwarding.insert(Move { from: 3, to: NEW });
        assert_eq!(slots(&mut lists, 1, &forwarding), [NEW, 1, 2]);
        // A row was made meanwhile.
        lists.put(name(2), of_slots(&[NEW, NEW + 7, 2]));
        forwarding.insert(Move { from: 1, to: NEW + 1 });
        forwarding.insert(Move { from: 2, to: NEW + 2 });
        assert_eq!(slots(&mut lists, 2, &forwarding), [NEW, NEW + 7, NEW + 2]);
        // List 1 has not been used meanwhile.
        let mut seen = Vec::new();
        while seen.last() != Some(&0) {
            seen.push(lists.forward(&forwarding, 1));
        }
        assert_eq!(seen, [3, 1, 0], "a list at a time; of list 1, one slot was known");
        let mut back = Forwarding::new(2, 1, 9);
        assert_eq!(slots(&mut lists, 1, &back), [NEW, NEW + 1, NEW + 2]);
        back.insert(Move { from: NEW, to: 8 });
        assert_eq!([1, 2].map(|n| slots(&mut lists, n, &back)[0]), [8, 8]);
        // Outdated slots may be those of removed rows, which do not move.
        lists.rows_removed();
        assert_eq!([lists.forward(&back, 9), lists.forward(&back, 9)], [2, 0]);
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
        assert!(returned.iter().all(|name| lists.get(*name, None).is_none()));
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
