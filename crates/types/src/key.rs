//! Keys, which programs use, and positions: a key's place in its table's order.
//!
//! Batches, shards and frames hold positions only. In a dense or `ordered` table, the position is
//! the key. In a `spread` table, it is a fixed bijective mix of the key. So ids 0…10⁵ are spread
//! evenly over all servers, and a sorted batch walks a shard's index from front to back.

use std::fmt;

/// The 64-bit name of a row.
///
/// ```
/// use types::Key;
///
/// assert_eq!(Key(42).to_string(), "key 42");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A key's place in its table's order.
///
/// ```
/// use types::{Key, Placement, Position};
///
/// assert_eq!(Placement::Ordered.position(Key(42)), Position(42));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", self.0)
    }
}

/// The order in which a table places and sorts its keys.
///
/// ```
/// use types::{Key, Placement};
///
/// let far_apart = |placement: Placement| placement.position(Key(1)).0.abs_diff(placement.position(Key(2)).0) > 1 << 32;
/// assert!(far_apart(Placement::Spread) && !far_apart(Placement::Ordered));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// By a fixed mix of the key: even load for any pattern of ids.
    #[default]
    Spread,
    /// By the key itself: range calls are possible.
    Ordered,
}

/// Odd, so that multiplication by it is a bijection of u64.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
const SECOND_MULTIPLIER: u64 = 0xD6E8_FEB8_6659_FD93;

const fn inverse(odd: u64) -> u64 {
    // Newton's iteration doubles the correct low bits: 3 → 6 → 12 → 24 → 48 → 96.
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

impl Placement {
    /// The position of `key`.
    ///
    /// ```
    /// use types::{Key, Placement, Position};
    ///
    /// assert_eq!(Placement::Ordered.position(Key(9)), Position(9));
    /// assert_ne!(Placement::Spread.position(Key(9)), Position(9));
    /// ```
    #[inline]
    #[must_use]
    pub fn position(self, key: Key) -> Position {
        match self {
            Self::Ordered => Position(key.0),
            Self::Spread => {
                let mut x = key.0;
                x = (x ^ (x >> 32)).wrapping_mul(MULTIPLIER);
                x = (x ^ (x >> 32)).wrapping_mul(SECOND_MULTIPLIER);
                Position(x ^ (x >> 32))
            }
        }
    }

    /// The key at `position`: the inverse of [`Placement::position`].
    ///
    /// ```
    /// use types::{Key, Placement};
    ///
    /// for placement in [Placement::Spread, Placement::Ordered] {
    ///     assert_eq!(placement.key(placement.position(Key(9))), Key(9));
    /// }
    /// ```
    #[inline]
    #[must_use]
    pub fn key(self, position: Position) -> Key {
        match self {
            Self::Ordered => Key(position.0),
            Self::Spread => {
                let mut x = position.0;
                x = (x ^ (x >> 32)).wrapping_mul(const { inverse(SECOND_MULTIPLIER) });
                x = (x ^ (x >> 32)).wrapping_mul(const { inverse(MULTIPLIER) });
                Key(x ^ (x >> 32))
            }
        }
    }
}

/// Consecutive positions. Both ends are included, so that all of u64 is a range too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionRange {
    /// The first position of the range.
    pub first: Position,
    /// The last position of the range.
    pub last: Position,
}

impl PositionRange {
    /// All positions.
    pub const ALL: Self = Self { first: Position(0), last: Position(u64::MAX) };

    /// Whether `position` lies in the range.
    #[inline]
    #[must_use]
    pub fn contains(self, position: Position) -> bool {
        self.first <= position && position <= self.last
    }

    /// Cuts the range into `pieces` consecutive ranges whose lengths differ by at most one. Returns
    /// fewer if the range has fewer positions.
    #[must_use]
    pub fn split(self, pieces: usize) -> Vec<Self> {
        let length = u128::from(self.last.0 - self.first.0) + 1;
        let pieces = (pieces.max(1) as u128).min(length);
        let cut = |i: u128| self.first.0 as u128 + length * i / pieces;
        (0..pieces).map(|i| Self { first: Position(cut(i) as u64), last: Position((cut(i + 1) - 1) as u64) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_map_positions_back_to_keys() {
        let mut key = 1u64;
        for _ in 0..10_000 {
            key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for placement in [Placement::Spread, Placement::Ordered] {
                assert_eq!(placement.key(placement.position(Key(key))), Key(key));
            }
        }
    }

    #[test]
    fn spread_placement_balances_small_ids_over_servers() {
        for servers in [2, 3, 7, 16] {
            let ranges = PositionRange::ALL.split(servers);
            let mut counts = vec![0usize; servers];
            for id in 0..100_000 {
                let position = Placement::Spread.position(Key(id));
                counts[ranges.iter().position(|range| range.contains(position)).expect("ranges cover all")] += 1;
            }
            let even = 100_000 / servers;
            assert!(counts.iter().all(|&n| n.abs_diff(even) < even / 10), "{servers} servers got {counts:?}");
        }
    }

    #[test]
    fn range_split_covers_the_range_without_gap_or_overlap() {
        for (first, last, pieces) in [(0, u64::MAX, 3), (0, u64::MAX, 1), (5, 9, 2), (5, 6, 4), (7, 7, 1)] {
            let whole = PositionRange { first: Position(first), last: Position(last) };
            let parts = whole.split(pieces);
            assert_eq!(parts.first().map(|p| p.first), Some(whole.first));
            assert_eq!(parts.last().map(|p| p.last), Some(whole.last));
            assert!(parts.windows(2).all(|w| w[0].last.0 + 1 == w[1].first.0));
        }
    }
}
