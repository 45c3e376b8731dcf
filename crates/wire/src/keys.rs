//! Key lists: sorted, unique and immutable. A list is sent in full once and as a signature
//! afterwards.

mod choice;
mod part;

use crate::Payload;
use crate::order;
use choice::Choice;
pub use part::{KeyPart, KeySlice};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use types::{Key, NumberType, PART_BYTES, Placement, Position, PositionRange};

/// A 128-bit hash of a whole key list. It stands for the list in messages to a shard that knows the
/// list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub u128);

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The keys of a batch in their table's order, each once. A program makes it with its table's
/// `keys`, or with [`Keys::run`]. Cloning is cheap. Make a list once and use it often, because a
/// list that was sent before is sent as a signature.
///
/// ```
/// use types::Placement;
/// use wire::Keys;
///
/// let keys = Keys::distinct(Placement::Spread, &[9, 4, 9]);
/// assert_eq!(keys.len(), 2);
/// let values: Vec<f32> = keys.ids().map(|id| id as f32).collect();    // in the list's order
/// # assert_eq!(values.iter().sum::<f32>(), 13.0);
/// ```
#[derive(Clone)]
pub struct Keys {
    placement: Placement,
    list: List,
}

#[derive(Clone)]
enum List {
    Run { first: u64, count: u64 },
    Sorted { positions: Payload, signature: Arc<OnceLock<Signature>>, choice: Option<Arc<Choice>> },
}

/// Why ids are not a key list.
///
/// ```
/// use types::{Key, Placement};
/// use wire::{KeyError, Keys};
///
/// let error = Keys::in_order(Placement::Ordered, &[4, 2]).expect_err("2 is not after 4");
/// assert_eq!(error, KeyError::Unsorted { index: 1, key: Key(2) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The id at `index` does not come after the one before it in the table's order.
    Unsorted {
        /// The index of the id.
        index: usize,
        /// The id.
        key: Key,
    },
    /// The id at `index` occurs twice.
    Repeated {
        /// The index of its second occurrence.
        index: usize,
        /// The id.
        key: Key,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsorted { index, key } => write!(
                f,
                "{key} at index {index} is not in the table's order; make the list with Keys::distinct, which sorts"
            ),
            Self::Repeated { index, key } => write!(
                f,
                "{key} at index {index} occurs twice; add up its values and make the list with Keys::distinct"
            ),
        }
    }
}

impl std::error::Error for KeyError {}

impl Keys {
    /// Sorts `ids` into the table's order and drops repetitions. Values of a batch follow the order
    /// of [`Keys::ids`].
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// let keys = Keys::distinct(Placement::Ordered, &[9, 4, 9]);
    /// assert!(keys.ids().eq([4, 9]));
    /// ```
    #[must_use]
    pub fn distinct(placement: Placement, ids: &[u64]) -> Self {
        Self::with_places(placement, ids, &mut Vec::new())
    }

    /// As [`Keys::distinct`], and fills `places` with the index of each of `ids` in the list.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// let mut places = Vec::new();
    /// let keys = Keys::with_places(Placement::Ordered, &[9, 4, 9], &mut places);
    /// assert!(keys.ids().eq([4, 9]) && places == [1, 0, 1]);
    /// ```
    #[must_use]
    pub fn with_places(placement: Placement, ids: &[u64], places: &mut Vec<u32>) -> Self {
        let positions: Vec<u64> = ids.iter().map(|&id| placement.position(Key(id)).0).collect();
        Self::from_sorted(placement, order::distinct(&positions, places))
    }

    /// Takes `ids` that are in the table's order already, each once. The error names the first id
    /// that is not.
    ///
    /// ```
    /// use types::{Key, Placement};
    /// use wire::{KeyError, Keys};
    ///
    /// assert_eq!(Keys::in_order(Placement::Ordered, &[4, 9]).expect("rising").len(), 2);
    /// let error = Keys::in_order(Placement::Ordered, &[4, 9, 9]).expect_err("9 occurs twice");
    /// assert_eq!(error, KeyError::Repeated { index: 2, key: Key(9) });
    /// ```
    pub fn in_order(placement: Placement, ids: &[u64]) -> Result<Self, KeyError> {
        let positions: Vec<u64> = ids.iter().map(|&id| placement.position(Key(id)).0).collect();
        Self::at(placement, &positions)
    }

    /// Consecutive keys of a dense or ordered table. An empty or reversed range gives an empty
    /// list.
    ///
    /// ```
    /// use wire::Keys;
    ///
    /// let keys = Keys::run(10..13);
    /// assert!(keys.ids().eq([10, 11, 12]) && !keys.is_empty());
    /// ```
    #[must_use]
    pub fn run(ids: Range<u64>) -> Self {
        let count = ids.end.saturating_sub(ids.start);
        Self { placement: Placement::Ordered, list: List::Run { first: ids.start, count } }
    }

    /// Takes positions that are sorted and unique, such as a shard sends.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// assert!(Keys::at(Placement::Ordered, &[4, 9]).is_ok() && Keys::at(Placement::Ordered, &[9, 4]).is_err());
    /// ```
    pub fn at(placement: Placement, positions: &[u64]) -> Result<Self, KeyError> {
        let key = |index: usize| placement.key(Position(positions[index]));
        match first_disorder(positions) {
            None => Ok(Self::from_sorted(placement, positions.to_vec())),
            Some(index) if positions[index] == positions[index - 1] => {
                Err(KeyError::Repeated { index, key: key(index) })
            }
            Some(index) => Err(KeyError::Unsorted { index, key: key(index) }),
        }
    }

    fn from_sorted(placement: Placement, positions: Vec<u64>) -> Self {
        let list = List::Sorted { positions: Payload::new(positions), signature: Arc::default(), choice: None };
        Self { placement, list }
    }

    /// The number of keys.
    ///
    /// ```
    /// use wire::Keys;
    ///
    /// assert_eq!(Keys::run(3..8).len(), 5);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.list {
            List::Run { count, .. } => *count as usize,
            List::Sorted { positions, .. } => positions.len() / 8,
        }
    }

    /// Whether there are no keys.
    ///
    /// ```
    /// use wire::Keys;
    ///
    /// assert!(Keys::run(3..3).is_empty() && !Keys::run(3..4).is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The order of the keys.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// assert_eq!(Keys::distinct(Placement::Spread, &[1]).placement(), Placement::Spread);
    /// ```
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The position of the key at `index`. Panics past the end of a sorted list.
    ///
    /// ```
    /// use types::Position;
    /// use wire::Keys;
    ///
    /// assert_eq!(Keys::run(3..8).position(2), Position(5));
    /// ```
    #[must_use]
    pub fn position(&self, index: usize) -> Position {
        match &self.list {
            List::Run { first, .. } => Position(first + index as u64),
            List::Sorted { .. } => Position(self.sorted()[index]),
        }
    }

    /// The program's ids, in the table's order. The rows of a batch's values are in this order.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// assert!(Keys::distinct(Placement::Ordered, &[9, 4]).ids().eq([4, 9]));
    /// ```
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|index| self.placement.key(self.position(index)).0)
    }

    /// The positions of a sorted list; empty for a run.
    pub(crate) fn sorted(&self) -> &[u64] {
        match &self.list {
            List::Run { .. } => &[],
            List::Sorted { positions, .. } => positions.numbers().unwrap_or(&[]),
        }
    }

    /// The signature of a sorted list, computed at first use. Runs need none.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Keys;
    ///
    /// let list = |ids: &[u64]| Keys::distinct(Placement::Ordered, ids);
    /// assert_eq!(list(&[1, 2]).signature(), list(&[2, 1]).signature());
    /// assert_ne!(list(&[1, 2]).signature(), list(&[1, 3]).signature());
    /// assert_eq!(Keys::run(1..3).signature(), None);
    /// ```
    #[must_use]
    pub fn signature(&self) -> Option<Signature> {
        match &self.list {
            List::Run { .. } => None,
            List::Sorted { positions, signature, .. } => {
                Some(*signature.get_or_init(|| Signature(xxhash_rust::xxh3::xxh3_128(positions.bytes()))))
            }
        }
    }

    /// The indices of the keys in `range`.
    ///
    /// ```
    /// use types::{Position, PositionRange};
    /// use wire::Keys;
    ///
    /// let range = PositionRange { first: Position(5), last: Position(6) };
    /// assert_eq!(Keys::run(3..8).within(range), 2..4);
    /// ```
    #[must_use]
    pub fn within(&self, range: PositionRange) -> Range<usize> {
        match &self.list {
            List::Run { first, count } => {
                let last = first.saturating_add(*count); // one past the end
                let from = range.first.0.clamp(*first, last);
                let to = range.last.0.saturating_add(1).clamp(from, last);
                (from - first) as usize..(to - first) as usize
            }
            List::Sorted { .. } => {
                let sorted = self.sorted();
                let from = sorted.partition_point(|&position| position < range.first.0);
                let to = from + sorted[from..].partition_point(|&position| position <= range.last.0);
                from..to
            }
        }
    }

    /// The number of rows of `width` numbers that fit one part with their keys.
    ///
    /// ```
    /// use types::{NumberType, PART_BYTES};
    /// use wire::Keys;
    ///
    /// assert_eq!(Keys::run(0..9).rows_per_part(NumberType::F32, 1), PART_BYTES / 4);
    /// ```
    #[must_use]
    pub fn rows_per_part(&self, number: NumberType, width: u32) -> usize {
        let key_bytes = match &self.list {
            List::Run { .. } => 0,
            List::Sorted { .. } => 8,
        };
        (PART_BYTES / (width as usize * number.bytes() + key_bytes)).max(1)
    }

    /// A new list of the keys at `indices`, which must rise.
    ///
    /// ```
    /// use wire::Keys;
    ///
    /// assert!(Keys::run(3..8).select(&[0, 4]).ids().eq([3, 7]));
    /// ```
    #[must_use]
    pub fn select(&self, indices: &[u32]) -> Self {
        let positions = indices.iter().map(|&index| self.position(index as usize).0).collect();
        Self::from_sorted(self.placement, positions)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.list {
            List::Run { first, count } => write!(f, "Keys({first}..{})", first + count),
            List::Sorted { .. } => write!(f, "Keys({} sorted)", self.len()),
        }
    }
}

/// The index of the first position that does not rise above the one before it.
pub(crate) fn first_disorder(positions: &[u64]) -> Option<usize> {
    // Tests whole blocks without branches, so that the common case runs at the speed of memory.
    const BLOCK: usize = 512;
    let mut start = 1;
    while start < positions.len() {
        let end = (start + BLOCK).min(positions.len());
        let rises =
            positions[start - 1..end - 1].iter().zip(&positions[start..end]).fold(true, |all, (a, b)| all & (a < b));
        if !rises {
            return (start..end).find(|&index| positions[index - 1] >= positions[index]);
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_distinct_sorts_ids_and_drops_repetitions() {
        let keys = Keys::distinct(Placement::Spread, &[5, 3, 9, 3, 5]);
        let ids: Vec<u64> = keys.ids().collect();
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [3, 5, 9]);
        assert!(Keys::in_order(Placement::Spread, &ids).is_ok());
    }

    #[test]
    fn key_errors_name_the_index() {
        assert_eq!(
            Keys::in_order(Placement::Ordered, &[1, 4, 2]).err(),
            Some(KeyError::Unsorted { index: 2, key: Key(2) })
        );
        assert_eq!(
            Keys::in_order(Placement::Ordered, &[1, 4, 4]).err(),
            Some(KeyError::Repeated { index: 2, key: Key(4) })
        );
        let long: Vec<u64> = (0..5_000).collect();
        for swap in [1, 511, 512, 513, 4_999] {
            let mut broken = long.clone();
            broken.swap(swap - 1, swap);
            assert_eq!(first_disorder(&broken), Some(swap));
        }
        assert_eq!(first_disorder(&long), None);
    }

    #[test]
    fn keys_within_a_range_by_cases() {
        let range = |first, last| PositionRange { first: Position(first), last: Position(last) };
        let list = Keys::in_order(Placement::Ordered, &[2, 4, 6, 8]).expect("sorted");
        let run = Keys::run(2..9);
        // (range, indices in the list, indices in the run)
        for (range, in_list, in_run) in [
            (PositionRange::ALL, 0..4, 0..7),
            (range(0, 1), 0..0, 0..0),
            (range(4, 6), 1..3, 2..5),
            (range(5, 5), 2..2, 3..4),
            (range(8, u64::MAX), 3..4, 6..7),
            (range(20, 30), 4..4, 7..7),
        ] {
            assert_eq!(list.within(range), in_list, "{range:?}");
            assert_eq!(run.within(range), in_run, "{range:?}");
        }
    }

    #[test]
    fn signatures_depend_on_every_key() {
        let ids: Vec<u64> = (0..100).map(|i| i * 2).collect();
        let whole = Keys::in_order(Placement::Ordered, &ids).expect("sorted").signature();
        for index in 0..ids.len() {
            let mut other = ids.clone();
            other[index] += 1;
            assert_ne!(Keys::in_order(Placement::Ordered, &other).expect("sorted").signature(), whole);
        }
    }
}
