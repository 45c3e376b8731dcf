//! What the saved forms of the parts have in common: maps, and bounds on what is believed.

use std::collections::BTreeMap;
use wire::{Field, Reader, WireError};

/// Names of nodes are below this: a larger one would make a plan grow without bound.
pub(crate) const MOST_NODES: u32 = 1 << 20;
/// Counters of a saved memory are below this, and have room to grow.
pub(crate) const MOST_COUNT: u64 = u64::MAX / 2;

pub(crate) fn put_map<K: Field, V: Field>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    (map.len() as u32).put(out);
    for (key, value) in map {
        key.put(out);
        value.put(out);
    }
}

pub(crate) fn get_map<K: Field + Ord, V: Field>(input: &mut Reader<'_>) -> Result<BTreeMap<K, V>, WireError> {
    let entries: Vec<(K, V)> = Field::get(input)?;
    let count = entries.len();
    let map: BTreeMap<K, V> = entries.into_iter().collect();
    if map.len() == count { Ok(map) } else { Err(WireError::Malformed("something that is there twice")) }
}

/// Refuses what was read if one of these demands does not hold.
pub(crate) fn check(demands: &[(bool, &'static str)]) -> Result<(), WireError> {
    let broken = demands.iter().find(|(holds, _)| !holds);
    broken.map_or(Ok(()), |(_, what)| Err(WireError::Malformed(what)))
}
