//! From a part's keys to slots: spelt out, by signature, or as a run.

use crate::rows::Resolved;
use crate::rows::key_lists::KnownList;
use crate::shard::Shard;
use std::sync::Arc;
use types::Position;
use update::{ABSENT, Number};
use wire::{KeyPart, Payload, Refusal};

/// Why a part is not applied now.
pub(crate) enum NotApplied {
    /// It never will be.
    Refuse(Refusal),
    /// It will be once its keys are spelt out. Leaves no trace in the stream.
    UnknownKeys(u128),
}

impl From<Refusal> for NotApplied {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

/// Positions and slots of a part's rows, `ABSENT` where there is no row.
pub(crate) fn rows_of<'a>(
    keys: &KeyPart,
    positions: Option<&'a Payload>,
    resolved: &'a Resolved,
) -> impl Iterator<Item = (u64, u32)> + 'a {
    let (first, count, list) = match (keys, positions.and_then(Payload::numbers::<u64>)) {
        (KeyPart::Run { first, count }, _) => (first.0, *count, &[][..]),
        (_, list) => (0, 0, list.unwrap_or(&[])),
    };
    let positions = (0..count).map(move |index| first + index).chain(list.iter().copied());
    let (run, slots) = match resolved {
        Resolved::Run { first, count } => (*first as u32..(*first + *count) as u32, &[][..]),
        Resolved::List(slots) => (0..0, &slots[..]),
    };
    positions.zip(run.chain(slots.iter().copied()))
}

impl<T: Number> Shard<T> {
    /// Positions and slots of a part's keys; lists are remembered.
    pub(crate) fn resolve(
        &mut self,
        keys: &KeyPart,
        create: bool,
    ) -> Result<(Arc<Resolved>, Option<Payload>), NotApplied> {
        let (name, positions, known) = match keys {
            KeyPart::Run { first, count } => {
                return Ok((Arc::new(self.rows.resolve_run(*first, *count, create)?), None));
            }
            KeyPart::Scan { .. } => return Err(Refusal::NotOrdered.into()),
            // Undone before it comes here.
            KeyPart::Packed { .. } => return Err(Refusal::Undecodable.into()),
            KeyPart::Chosen { signature, start, count, .. } => {
                let known = self.lists.get((*signature, *start, *count)).ok_or(NotApplied::UnknownKeys(signature.0))?;
                return self.resolve_chosen(keys, &known, create);
            }
            KeyPart::Known { signature, start, count } => {
                let name = (*signature, *start, *count);
                let known = self.lists.get(name).ok_or(NotApplied::UnknownKeys(signature.0))?;
                match &known.positions {
                    // Complete: its slots are all there is to know.
                    None => return Ok((known.resolved, None)),
                    Some(positions) => (name, positions.clone(), Some(known)),
                }
            }
            KeyPart::List { signature, start, positions } => {
                let name = (*signature, *start, (positions.len() / 8) as u32);
                // Another worker may have sent it already; the bytes are compared, for a signature
                // is only a promise.
                let known = self.lists.get(name).filter(|known| known.positions.as_ref() == Some(positions));
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
            let outdated = known.incomplete_at.is_some_and(|rows| create || rows != self.rows.len());
            if !outdated {
                return Ok((known.resolved.clone(), Some(positions)));
            }
        }
        let list =
            positions.numbers::<u64>().ok_or(Refusal::WrongLength { expected: 0, found: positions.len() as u64 })?;
        let resolved = match known.as_ref().map(|known| &*known.resolved) {
            Some(Resolved::List(before)) if before.len() == list.len() => {
                self.rows.resolve_rest(list, before, create)?
            }
            _ => self.rows.resolve_list(list, create)?,
        };
        let resolved = Arc::new(resolved);
        let absent = matches!(&*resolved, Resolved::List(slots) if slots.contains(&ABSENT));
        let incomplete_at = absent.then(|| self.rows.len());
        let needed_again = absent || self.tracks_changes() || self.pending_rows.are_kept();
        let kept = needed_again.then(|| positions.clone());
        self.lists.put(name, KnownList { positions: kept, resolved: resolved.clone(), incomplete_at });
        Ok((resolved, Some(positions)))
    }

    /// Those of a list's rows that are chosen. Nothing of it is remembered: the next choice is
    /// another.
    fn resolve_chosen(
        &mut self,
        keys: &KeyPart,
        known: &KnownList,
        create: bool,
    ) -> Result<(Arc<Resolved>, Option<Payload>), NotApplied> {
        let list = known.positions.as_ref().and_then(Payload::numbers::<u64>);
        let positions: Option<Vec<u64>> = list.map(|list| keys.chosen().map(|index| list[index]).collect());
        let outdated = known.incomplete_at.is_some_and(|rows| create || rows != self.rows.len());
        let resolved = match (&*known.resolved, &positions) {
            (_, Some(positions)) if outdated => self.rows.resolve_list(positions, create)?,
            (Resolved::List(slots), _) => Resolved::List(keys.chosen().map(|index| slots[index]).collect()),
            (Resolved::Run { first, .. }, _) => {
                Resolved::List(keys.chosen().map(|index| (first + index) as u32).collect())
            }
        };
        Ok((Arc::new(resolved), positions.map(Payload::new)))
    }

    /// Those of a part's keys that a scan would not show now, where the table's rows can be held
    /// back from scans.
    pub(crate) fn unseen(&mut self, keys: &KeyPart) -> Result<Vec<u64>, NotApplied> {
        if !self.pending_rows.are_kept() {
            return Ok(Vec::new());
        }
        let (resolved, positions) = self.resolve(keys, false)?;
        let unseen = |(position, slot): &(u64, u32)| *slot == ABSENT || self.pending_rows.contains(*position);
        Ok(rows_of(keys, positions.as_ref(), &resolved).filter(unseen).map(|(position, _)| position).collect())
    }

    /// The position of the key at `index` of a part, if the shard knows it.
    pub(crate) fn position_of(&mut self, keys: &KeyPart, index: usize) -> Option<Position> {
        match keys {
            KeyPart::Run { first, .. } => first.0.checked_add(index as u64).map(Position),
            KeyPart::List { positions, .. } => positions.numbers::<u64>()?.get(index).copied().map(Position),
            KeyPart::Known { signature, start, count } => {
                let known = self.lists.get((*signature, *start, *count))?;
                known.positions?.numbers::<u64>()?.get(index).copied().map(Position)
            }
            KeyPart::Chosen { signature, start, count, .. } => {
                let known = self.lists.get((*signature, *start, *count))?;
                known.positions?.numbers::<u64>()?.get(keys.chosen().nth(index)?).copied().map(Position)
            }
            KeyPart::Scan { .. } | KeyPart::Packed { .. } => None,
        }
    }
}
