//! The pool of connections whose peers have no place in the run, or have not shown that they have
//! one.
//!
//! It is bounded, in all and for each address. A new connection takes the place of the oldest one:
//! of its own address if that has its share, otherwise of the address with the most. So a flood
//! from one address pushes out its own connections, and nodes of the run are not in the pool.

use super::limits::Limits;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Where a connection comes from, as far as connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallerAddress {
    /// An IPv4 address, or the /64 network of an IPv6 address: one host may use all of that.
    Address(IpAddr),
    /// A process of this user on this host, through shared memory.
    Here,
}

impl CallerAddress {
    pub fn of(address: SocketAddr) -> Self {
        Self::Address(match address.ip().to_canonical() {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        })
    }
}

/// The connections of strangers, by serial number: the lowest is the oldest.
#[derive(Default)]
pub(super) struct Strangers {
    pool: BTreeMap<u64, (usize, CallerAddress)>,
    by_address: BTreeMap<CallerAddress, usize>,
}

impl Strangers {
    pub fn insert(&mut self, serial: u64, index: usize, address: CallerAddress) {
        self.pool.insert(serial, (index, address));
        *self.by_address.entry(address).or_default() += 1;
    }

    pub fn remove(&mut self, serial: u64) {
        let Some((_, address)) = self.pool.remove(&serial) else { return };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// The index of the connection that must close before one from `address` is accepted; `None` if
    /// there is room.
    pub fn to_close(&self, address: CallerAddress, limits: &Limits) -> Option<usize> {
        if self.by_address.get(&address).is_some_and(|count| *count >= limits.strangers_per_address) {
            return self.oldest_of(address);
        }
        if self.pool.len() < limits.strangers { None } else { self.oldest() }
    }

    /// The oldest connection of the address that has the most.
    pub fn oldest(&self) -> Option<usize> {
        let (address, _) = self.by_address.iter().max_by_key(|(_, count)| **count)?;
        self.oldest_of(*address)
    }

    fn oldest_of(&self, address: CallerAddress) -> Option<usize> {
        self.pool.values().find(|(_, of)| *of == address).map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> CallerAddress {
        CallerAddress::of(SocketAddr::from(([10, 0, 0, last], 1)))
    }

    fn limits(strangers: usize, strangers_per_address: usize) -> Limits {
        Limits { strangers, strangers_per_address, ..Limits::default() }
    }

    #[test]
    fn a_full_address_replaces_its_own_oldest_connection() {
        let mut strangers = Strangers::default();
        (0..4).for_each(|serial| strangers.insert(serial, 100 + serial as usize, from(1 + serial as u8 % 2)));
        let limits = limits(100, 2);
        assert_eq!(strangers.to_close(from(1), &limits), Some(100));
        assert_eq!(strangers.to_close(from(2), &limits), Some(101));
        assert_eq!(strangers.to_close(from(3), &limits), None);
        strangers.remove(0);
        assert_eq!(strangers.to_close(from(1), &limits), None);
    }

    #[test]
    fn a_full_pool_replaces_the_oldest_connection_of_the_address_with_the_most() {
        let mut strangers = Strangers::default();
        strangers.insert(0, 50, from(1));
        (1..5).for_each(|serial| strangers.insert(serial, 50 + serial as usize, from(2)));
        assert_eq!(strangers.to_close(from(3), &limits(5, 5)), Some(51));
        (1..5).for_each(|serial| strangers.remove(serial));
        assert_eq!(strangers.to_close(from(3), &limits(1, 5)), Some(50));
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let address = |text: &str| CallerAddress::of(text.parse().expect("an address"));
        assert_eq!(address("[2001:db8::1]:1"), address("[2001:db8::ffff:1]:2"));
        assert_ne!(address("[2001:db8::1]:1"), address("[2001:db8:0:1::1]:1"));
        assert_eq!(address("[::ffff:10.0.0.1]:1"), from(1));
    }
}
