//! Lists that were chosen from another list. To a shard that knows the other list, a choice is sent
//! as one bit for each key of that list.

use super::{KeyPart, KeySlice, Keys, List, Signature};
use crate::{Bits, Payload};
use std::ops::Range;
use std::sync::Arc;
use types::PositionRange;

/// The list that another was chosen from, and which of its keys.
#[derive(Debug)]
pub(super) struct Choice {
    /// A sorted list that is not itself a choice.
    from: Keys,
    /// The indices of the chosen keys, rising.
    indices: Vec<u32>,
}

impl Keys {
    /// A new list of the keys whose bits are set. It is sent as these bits to a shard that knows
    /// this list.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::{Bits, Keys};
    ///
    /// let keys = Keys::distinct(Placement::Ordered, &[10, 20, 30]);
    /// let mut bits = Bits::none(3);
    /// bits.set(0);
    /// bits.set(2);
    /// assert!(keys.choose(&bits).ids().eq([10, 30]));
    /// ```
    #[must_use]
    pub fn choose(&self, bits: &Bits) -> Self {
        let indices: Vec<u32> =
            bits.indices().take_while(|index| *index < self.len()).map(|index| index as u32).collect();
        if indices.len() == self.len() {
            return self.clone();
        }
        let mut chosen = self.select(&indices);
        if let List::Sorted { choice, .. } = &mut chosen.list {
            *choice = match &self.list {
                List::Run { .. } => None,
                List::Sorted { choice: None, .. } => Some(Arc::new(Choice { from: self.clone(), indices })),
                List::Sorted { choice: Some(before), .. } => {
                    let indices = indices.iter().map(|index| before.indices[*index as usize]).collect();
                    Some(Arc::new(Choice { from: before.from.clone(), indices }))
                }
            };
        }
        chosen
    }

    /// The list that these keys were [chosen](Keys::choose) from, with a bit set for each chosen
    /// key.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::{Bits, Keys};
    ///
    /// let keys = Keys::distinct(Placement::Ordered, &[10, 20, 30]);
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// let (from, found) = keys.choose(&bits).chosen_from().map(|(from, bits)| (from.len(), bits)).expect("chosen");
    /// assert_eq!((from, found), (3, bits));
    /// assert!(keys.chosen_from().is_none());
    /// ```
    #[must_use]
    pub fn chosen_from(&self) -> Option<(&Self, Bits)> {
        let Choice { from, indices } = self.choice()?;
        let mut bits = Bits::none(from.len());
        indices.iter().for_each(|index| bits.set(*index as usize));
        Some((from, bits))
    }

    fn choice(&self) -> Option<&Choice> {
        match &self.list {
            List::Run { .. } => None,
            List::Sorted { choice, .. } => choice.as_deref(),
        }
    }

    /// Splits the keys within `range` into parts of at most `rows` keys, in order. A choice is
    /// split where the list it was chosen from is split, so that each part is a choice from one
    /// part of that list.
    ///
    /// ```
    /// use types::PositionRange;
    /// use wire::Keys;
    ///
    /// assert_eq!(Keys::run(5..10).parts(PositionRange::ALL, 2), [0..2, 2..4, 4..5]);
    /// ```
    #[must_use]
    pub fn parts(&self, range: PositionRange, rows: usize) -> Vec<Range<usize>> {
        if let Some(Choice { from, indices }) = self.choice() {
            let place = |index: usize| indices.partition_point(|chosen| (*chosen as usize) < index);
            let parts = from.parts(range, rows).into_iter().map(|part| place(part.start)..place(part.end));
            return parts.filter(|part| !part.is_empty()).collect();
        }
        let within = self.within(range);
        within.clone().step_by(rows).map(|start| start..within.end.min(start + rows)).collect()
    }
}

impl KeySlice {
    /// The list that these keys were chosen from, and the range of its indices in which they lie.
    #[must_use]
    pub fn chosen_from(&self) -> Option<(Signature, Range<usize>)> {
        let Choice { from, indices } = self.keys.choice()?;
        let first = *indices.get(self.range.start)?;
        let last = *indices.get(self.range.end.checked_sub(1)?)?;
        Some((from.signature()?, first as usize..last as usize + 1))
    }

    /// The message form for a shard that knows keys `start` to `start + count` of that list, among
    /// which these lie.
    #[must_use]
    pub fn by_choice(&self, start: u64, count: u32) -> Option<KeyPart> {
        let (signature, _) = self.chosen_from()?;
        let mut bits = Bits::none(count as usize);
        for index in &self.keys.choice()?.indices[self.range.clone()] {
            bits.set((u64::from(*index) - start) as usize);
        }
        Some(KeyPart::Chosen { signature, start, count, bits: Payload::new(bits.bytes().to_vec()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Placement;

    fn chosen(keys: &Keys, wanted: impl Fn(usize) -> bool) -> Keys {
        let mut bits = Bits::none(keys.len());
        (0..keys.len()).filter(|index| wanted(*index)).for_each(|index| bits.set(index));
        keys.choose(&bits)
    }

    #[test]
    fn choices_are_sent_as_bits_of_the_original_list() {
        let ids: Vec<u64> = (0..20).map(|i| i * 3).collect();
        let all = Keys::in_order(Placement::Ordered, &ids).expect("sorted");
        let third = chosen(&all, |index| index % 3 == 1);
        assert!(third.ids().eq([3, 12, 21, 30, 39, 48, 57]));
        let slice = third.slice(1..4);
        let signature = all.slice(0..1).signature().expect("of a list");
        assert_eq!(slice.chosen_from(), Some((signature, 4..11)));
        let Some(KeyPart::Chosen { start: 4, count: 8, bits, .. }) = slice.by_choice(4, 8) else { panic!("chosen") };
        assert_eq!(bits.bytes(), [0b0100_1001]);
        // A choice of a choice is one of the first list; all of a list is the list.
        let of_third = chosen(&third, |index| index >= 5);
        assert_eq!(of_third.slice(0..2).chosen_from(), Some((signature, 16..20)));
        assert_eq!(chosen(&all, |_| true).slice(0..20).chosen_from(), None);
    }

    #[test]
    fn choices_split_where_the_original_list_splits() {
        let rows = 5_000;
        let ids: Vec<u64> = (0..3 * rows as u64 + 5).collect();
        let all = Keys::in_order(Placement::Ordered, &ids).expect("sorted");
        let range = PositionRange { first: types::Position(10), last: types::Position(ids.len() as u64) };
        let whole = all.parts(range, rows);
        assert_eq!(whole[0], 10..10 + rows);
        let few = chosen(&all, |index| index % 1000 == 0 && index / rows != 1);
        let parts = few.parts(range, rows);
        assert_eq!(
            parts.iter().map(ExactSizeIterator::len).sum::<usize>(),
            few.len() - 1,
            "all but the first, which is out of range"
        );
        for part in parts {
            let (_, span) = few.slice(part).chosen_from().expect("chosen");
            assert!(whole.iter().any(|whole| whole.start <= span.start && span.end <= whole.end), "{span:?}");
        }
        assert!(Keys::run(0..10).parts(PositionRange::ALL, 8).into_iter().eq([0..8, 8..10]));
    }
}
