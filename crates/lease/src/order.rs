//! The order in which leases are granted: by number, or shuffled within each epoch by a seed.
//!
//! A shuffled order is computed in both directions by a Feistel network and not stored, so ten
//! million ranges take no memory. Checkpoints depend on it, so it must not change.

use types::mix;

/// Rounds of the Feistel network, each over both halves: enough to scatter neighbours.
const ROUNDS: u64 = 4;

/// A lease's place in the order of granting, over all epochs.
///
/// ```
/// use lease::{LeaseOrder, OrderIndex};
///
/// let order = LeaseOrder { ranges: 10, shuffle: Some(7) };
/// let place = order.place(23);
/// assert!((20..30).contains(&place.0), "in the third epoch, like its lease");
/// assert_eq!(order.lease(place), 23);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderIndex(pub u64);

/// Maps leases to places in the order of granting, and back. Lease `epoch × ranges + index` is
/// range `index` of the input in that epoch.
///
/// ```
/// use lease::{LeaseOrder, OrderIndex};
///
/// let plain = LeaseOrder { ranges: 4, shuffle: None };
/// assert_eq!((0..8).map(|place| plain.lease(OrderIndex(place))).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
/// let shuffled = LeaseOrder { ranges: 4, shuffle: Some(1) };
/// let mut second: Vec<u64> = (4..8).map(|place| shuffled.lease(OrderIndex(place))).collect();
/// second.sort_unstable();
/// assert_eq!(second, [4, 5, 6, 7]);
/// assert_eq!((plain.epoch(6), plain.range(6)), (1, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOrder {
    /// The number of ranges of the input.
    pub ranges: u64,
    /// The seed of the shuffle; `None` grants leases in order of their numbers.
    pub shuffle: Option<u64>,
}

impl LeaseOrder {
    /// The lease at `place`.
    #[must_use]
    pub fn lease(self, place: OrderIndex) -> u64 {
        self.within_epoch(place.0, |shuffle, index| shuffle.forwards(index))
    }

    /// The place of `lease`.
    #[must_use]
    pub fn place(self, lease: u64) -> OrderIndex {
        OrderIndex(self.within_epoch(lease, |shuffle, index| shuffle.backwards(index)))
    }

    /// The epoch of `lease`, from 0.
    #[must_use]
    pub fn epoch(self, lease: u64) -> u64 {
        lease.checked_div(self.ranges).unwrap_or(0)
    }

    /// The range of the input that `lease` covers, from 0.
    #[must_use]
    pub fn range(self, lease: u64) -> u64 {
        lease.checked_rem(self.ranges).unwrap_or(0)
    }

    fn within_epoch(self, number: u64, step: impl FnOnce(EpochOrder, u64) -> u64) -> u64 {
        let (Some(seed), Some(epoch)) = (self.shuffle, number.checked_div(self.ranges)) else { return number };
        let index = number % self.ranges;
        number - index + step(EpochOrder::new(self.ranges, mix(seed ^ mix(epoch))), index)
    }
}

/// A permutation of `0..ranges`: a Feistel network over the next power of two, with cycle walking.
/// A result beyond the range goes through the network again. That is less than once on average,
/// because more than half of the results are within the range.
struct EpochOrder {
    ranges: u64,
    key: u64,
    low_bits: u32,
    low: u64,
    high: u64,
}

impl EpochOrder {
    fn new(ranges: u64, key: u64) -> Self {
        let bits = u64::BITS - (ranges - 1).leading_zeros();
        let low_bits = bits / 2;
        Self { ranges, key, low_bits, low: (1 << low_bits) - 1, high: (1 << (bits - low_bits)) - 1 }
    }

    fn forwards(&self, index: u64) -> u64 {
        self.walk(index, |index| {
            (0..ROUNDS).fold(index, |index, round| self.mix_high(self.mix_low(index, round), round))
        })
    }

    fn backwards(&self, index: u64) -> u64 {
        self.walk(index, |index| {
            (0..ROUNDS).rev().fold(index, |index, round| self.mix_low(self.mix_high(index, round), round))
        })
    }

    fn walk(&self, index: u64, step: impl Fn(u64) -> u64) -> u64 {
        let mut index = step(index);
        while index >= self.ranges {
            index = step(index);
        }
        index
    }

    /// Mixes the high half into the low one. It is its own inverse.
    fn mix_low(&self, index: u64, round: u64) -> u64 {
        index ^ (self.bits(index >> self.low_bits, 2 * round) & self.low)
    }

    /// Mixes the low half into the high one. It is its own inverse.
    fn mix_high(&self, index: u64, round: u64) -> u64 {
        index ^ ((self.bits(index & self.low, 2 * round + 1) & self.high) << self.low_bits)
    }

    fn bits(&self, half: u64, step: u64) -> u64 {
        mix(half ^ mix(self.key.wrapping_add(step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_has_every_lease_once_in_each_epoch() {
        for ranges in (1..40).chain([63, 64, 65, 1000, 1023, 1024, 1025]) {
            for seed in [0, 1, u64::MAX] {
                let order = LeaseOrder { ranges, shuffle: Some(seed) };
                let mut orders = Vec::new();
                for epoch in 0..3 {
                    let places = epoch * ranges..(epoch + 1) * ranges;
                    let leases: Vec<u64> = places.clone().map(|place| order.lease(OrderIndex(place))).collect();
                    let back: Vec<u64> = leases.iter().map(|lease| order.place(*lease).0).collect();
                    assert_eq!(back, places.clone().collect::<Vec<_>>(), "{ranges} ranges");
                    let mut sorted = leases.clone();
                    sorted.sort_unstable();
                    assert_eq!(sorted, places.collect::<Vec<_>>(), "{ranges} ranges");
                    orders.push(leases.iter().map(|lease| order.range(*lease)).collect::<Vec<_>>());
                }
                assert!(ranges < 20 || (orders[0] != orders[1] && orders[1] != orders[2]), "{ranges} ranges");
            }
        }
    }

    #[test]
    fn order_shuffle_scatters_places_and_neighbours() {
        const RANGES: u64 = 10_000;
        let order = LeaseOrder { ranges: RANGES, shuffle: Some(3) };
        let leases: Vec<u64> = (0..RANGES).map(|place| order.lease(OrderIndex(place))).collect();
        let stayed = leases.iter().zip(0..).filter(|(lease, place)| *lease == place).count();
        let neighbours = leases.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(stayed < 10 && neighbours < 20, "{stayed} stayed, and {neighbours} neighbours are still neighbours");
        // Each hundredth of the order holds leases from every tenth of the input.
        for hundredth in leases.chunks(RANGES as usize / 100) {
            let mut tenths = [0; 10];
            hundredth.iter().for_each(|lease| tenths[(lease * 10 / RANGES) as usize] += 1);
            assert!(tenths.iter().all(|count| (1..=30).contains(count)), "{tenths:?}");
        }
    }

    #[test]
    fn order_shuffle_never_changes() {
        let first = |ranges, shuffle, epoch: u64| {
            let order = LeaseOrder { ranges, shuffle: Some(shuffle) };
            (0..8).map(|place| order.range(order.lease(OrderIndex(epoch * ranges + place)))).collect::<Vec<_>>()
        };
        assert_eq!(first(10, 1, 0), [9, 2, 3, 7, 8, 0, 4, 1]);
        assert_eq!(first(10, 1, 1), [4, 8, 1, 0, 3, 7, 2, 5]);
        assert_eq!(first(1_000_000, 42, 3), [246425, 206987, 38407, 52787, 630131, 211572, 286547, 721712]);
    }

    #[test]
    fn order_accepts_input_without_ranges() {
        let order = LeaseOrder { ranges: 0, shuffle: Some(1) };
        assert_eq!(
            (order.lease(OrderIndex(3)), order.place(3), order.epoch(3), order.range(3)),
            (3, OrderIndex(3), 0, 0)
        );
    }

    proptest! {
        #[test]
        fn order_maps_places_to_leases_and_back(ranges in 1u64.., seed in any::<u64>(), number in any::<u64>()) {
            let order = LeaseOrder { ranges, shuffle: Some(seed) };
            // Numbers may end within the last epoch.
            let number = if order.epoch(number) == u64::MAX / ranges { number % ranges } else { number };
            let lease = order.lease(OrderIndex(number));
            prop_assert_eq!(order.epoch(lease), order.epoch(number));
            prop_assert_eq!(order.place(lease), OrderIndex(number));
        }
    }
}
