//! Finds the slots of a part's keys, which come as a list, as a signature, or as a run.

use crate::rows::key_lists::{KnownList, ListName, Remembered};
use crate::rows::{Resolved, Rows};
use std::sync::Arc;
use types::Position;
use update::{ABSENT, Number};
use wire::{KeyPart, Payload, Refusal};

/// Why a part is not applied now.
pub(crate) enum NotApplied {
    /// It is refused for good.
    Refuse(Refusal),
    /// The shard does not know the list of this signature: the worker must resend the part with its
    /// keys in full. The part does not count as finished in its stream.
    UnknownKeys(u128),
}

impl From<Refusal> for NotApplied {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

/// The rows of some keys.
#[derive(Clone)]
pub(crate) struct FoundRows {
    /// The slot of each key.
    pub slots: Arc<Resolved>,
    /// The positions of a list. `None` for a run, and for a list of which only the slots are
    /// remembered.
    pub positions: Option<Payload>,
}

impl FoundRows {
    /// Positions and slots of the rows of `keys`, `ABSENT` where there is no row. Empty if the
    /// positions are not known.
    pub fn rows(&self, keys: &KeyPart) -> impl Iterator<Item = (u64, u32)> + Clone + '_ {
        let (first, count, list) = match (keys, self.positions.as_ref().and_then(Payload::numbers::<u64>)) {
            (KeyPart::Run { first, count }, _) => (first.0, *count, &[][..]),
            (_, list) => (0, 0, list.unwrap_or(&[])),
        };
        let positions = (0..count).map(move |index| first + index).chain(list.iter().copied());
        let (run, slots) = match &*self.slots {
            Resolved::Run { first, count } => (*first as u32..(*first + *count) as u32, &[][..]),
            Resolved::List(slots) => (0..0, &slots[..]),
        };
        positions.zip(run.chain(slots.iter().copied()))
    }
}

impl<T: Number> Rows<T> {
    /// Finds the rows of a part's keys. With `create`, makes absent rows. Remembers lists.
    pub(crate) fn resolve(&mut self, keys: &KeyPart, create: bool) -> Result<FoundRows, NotApplied> {
        let (name, positions, known) = match keys {
            KeyPart::Run { first, count } => {
                let slots = Arc::new(self.slab.resolve_run(*first, *count, create)?);
                return Ok(FoundRows { slots, positions: None });
            }
            KeyPart::Scan { .. } => return Err(Refusal::NotOrdered.into()),
            // Packed keys are decoded before.
            KeyPart::Packed { .. } => return Err(Refusal::Undecodable.into()),
            KeyPart::Chosen { signature, start, count, .. } => {
                let known = self.known((*signature, *start, *count)).ok_or(NotApplied::UnknownKeys(signature.0))?;
                return self.resolve_chosen(keys, &known, create);
            }
            KeyPart::Known { signature, start, count } => {
                let name = (*signature, *start, *count);
                let known = self.known(name).ok_or(NotApplied::UnknownKeys(signature.0))?;
                match &known.positions {
                    // Every key has a row, and positions are not needed.
                    None => return Ok(FoundRows { slots: known.resolved, positions: None }),
                    Some(positions) => (name, positions.clone(), Some(known)),
                }
            }
            KeyPart::List { signature, start, positions } => {
                let name = (*signature, *start, (positions.len() / 8) as u32);
                // Another worker may have sent this list already. The bytes are compared, because a
                // worker may send a wrong signature.
                let known = self.known(name).filter(|known| known.positions.as_ref() == Some(positions));
                if known.is_none()
                    && let Some(index) = keys.first_disorder()
                {
                    let position = positions.numbers::<u64>().map_or(0, |list| list[index]);
                    return Err(Refusal::Unsorted { position: Position(position) }.into());
                }
                (name, positions.clone(), known)
            }
        };
        if let Some(known) = &known {
            let outdated = known.incomplete_at.is_some_and(|rows| create || rows != self.slab.len());
            if !outdated {
                return Ok(FoundRows { slots: known.resolved.clone(), positions: Some(positions) });
            }
        }
        let list =
            positions.numbers::<u64>().ok_or(Refusal::WrongLength { expected: 0, found: positions.len() as u64 })?;
        let resolved = match known.as_ref().map(|known| &*known.resolved) {
            Some(Resolved::List(before)) if before.len() == list.len() => {
                self.slab.resolve_rest(list, before, create)?
            }
            _ => self.slab.resolve_list(list, create)?,
        };
        let known = self.remember(name, &positions, resolved);
        Ok(FoundRows { slots: known.resolved, positions: Some(positions) })
    }

    /// Remembers the slots of a list.
    fn remember(&mut self, name: ListName, positions: &Payload, resolved: Resolved) -> KnownList {
        let absent = matches!(&resolved, Resolved::List(slots) if slots.contains(&ABSENT));
        let incomplete_at = absent.then(|| self.slab.len());
        let needed_again = absent || self.names_rows || self.pending.are_kept();
        let kept = needed_again.then(|| positions.clone());
        let known = KnownList { positions: kept, resolved: Arc::new(resolved), incomplete_at };
        self.lists.put(name, known.clone());
        known
    }

    /// The list of this name, if it is remembered. Looks its slots up again if rows have been
    /// removed since.
    fn known(&mut self, name: ListName) -> Option<KnownList> {
        let positions = match self.lists.get(name, self.slab.forwarding())? {
            Remembered::Current(known) => return Some(known),
            Remembered::Outdated { positions } => positions,
        };
        let resolved = self.slab.resolve_list(positions.numbers::<u64>()?, false).ok()?;
        let known = self.remember(name, &positions, resolved);
        // Returned even if they are not kept, because they are at hand.
        Some(KnownList { positions: Some(positions), ..known })
    }

    /// Finds the rows that are chosen from a list. The choice is not remembered, because the next
    /// choice differs.
    fn resolve_chosen(&mut self, keys: &KeyPart, known: &KnownList, create: bool) -> Result<FoundRows, NotApplied> {
        let list = known.positions.as_ref().and_then(Payload::numbers::<u64>);
        let positions: Option<Vec<u64>> = list.map(|list| keys.chosen().map(|index| list[index]).collect());
        let outdated = known.incomplete_at.is_some_and(|rows| create || rows != self.slab.len());
        let resolved = match (&*known.resolved, &positions) {
            (_, Some(positions)) if outdated => self.slab.resolve_list(positions, create)?,
            (Resolved::List(slots), _) => Resolved::List(keys.chosen().map(|index| slots[index]).collect()),
            (Resolved::Run { first, .. }, _) => {
                Resolved::List(keys.chosen().map(|index| (first + index) as u32).collect())
            }
        };
        Ok(FoundRows { slots: Arc::new(resolved), positions: positions.map(Payload::new) })
    }

    /// The positions of a part's keys that a reader's scan does not show now. Empty in a table
    /// without pending rows.
    pub(crate) fn unseen(&mut self, keys: &KeyPart) -> Result<Vec<u64>, NotApplied> {
        if !self.pending.are_kept() {
            return Ok(Vec::new());
        }
        let found = self.resolve(keys, false)?;
        let unseen = |(position, slot): &(u64, u32)| *slot == ABSENT || self.pending.contains(*position);
        Ok(found.rows(keys).filter(unseen).map(|(position, _)| position).collect())
    }

    /// The position of the key at `index` of a part, if the shard knows it.
    pub(crate) fn position_of(&mut self, keys: &KeyPart, index: usize) -> Option<Position> {
        match keys {
            KeyPart::Run { first, .. } => first.0.checked_add(index as u64).map(Position),
            KeyPart::List { positions, .. } => positions.numbers::<u64>()?.get(index).copied().map(Position),
            KeyPart::Known { signature, start, count } => {
                let known = self.known((*signature, *start, *count))?;
                known.positions?.numbers::<u64>()?.get(index).copied().map(Position)
            }
            KeyPart::Chosen { signature, start, count, .. } => {
                let known = self.known((*signature, *start, *count))?;
                known.positions?.numbers::<u64>()?.get(keys.chosen().nth(index)?).copied().map(Position)
            }
            KeyPart::Scan { .. } | KeyPart::Packed { .. } => None,
        }
    }
}
