//! The slots of a list of keys, as the index finds them and as updaters take them.

use update::{ABSENT, Slots};

/// The slots of some keys, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Consecutive slots.
    Run {
        /// The first slot.
        first: usize,
        /// How many slots.
        count: usize,
    },
    /// One slot for each key; `ABSENT` where there is no row.
    List(Vec<u32>),
}

impl Resolved {
    /// The slots in the form that an updater takes.
    pub fn slots(&self) -> Slots<'_> {
        match self {
            Self::Run { first, count } => Slots::Run { first: *first, count: *count },
            Self::List(list) => Slots::List(list),
        }
    }

    /// The slots that exist, one by one.
    pub fn each(&self) -> impl Iterator<Item = u32> + '_ {
        let (run, list) = match self {
            Self::Run { first, count } => (*first as u32..(*first + *count) as u32, &[][..]),
            Self::List(list) => (0..0, &list[..]),
        };
        run.chain(list.iter().copied().filter(|slot| *slot != ABSENT))
    }
}

/// Slots in the form that an updater takes: a run if they are consecutive.
pub fn as_slots(slots: &[u32]) -> Slots<'_> {
    match slots.first() {
        Some(&first) if slots.iter().zip(first..).all(|(slot, expected)| *slot == expected) => {
            Slots::Run { first: first as usize, count: slots.len() }
        }
        _ => Slots::List(slots),
    }
}
