//! What the saved forms of the parts share: maps, and bounds that a memory must keep, so that a
//! damaged one cannot exhaust the process.

use std::collections::BTreeMap;
use wire::{Field, Reader, WireError};

/// The names of servers, and of workers, are below this: a plan has an entry for each worker up to
/// the highest name.
pub(crate) const MOST_NODES: u32 = 1 << 20;
/// Counters of a saved memory are below this, so that they have room to grow.
pub(crate) const MOST_COUNT: u64 = u64::MAX / 2;

/// Writes a map as a list of entries.
pub(crate) fn put_map<K: Field, V: Field>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    (map.len() as u32).put(out);
    for (key, value) in map {
        key.put(out);
        value.put(out);
    }
}

/// Reads what [`put_map`] wrote. Refuses a key that is there twice.
pub(crate) fn get_map<K: Field + Ord, V: Field>(input: &mut Reader<'_>) -> Result<BTreeMap<K, V>, WireError> {
    let entries: Vec<(K, V)> = Field::get(input)?;
    let count = entries.len();
    let map: BTreeMap<K, V> = entries.into_iter().collect();
    if map.len() == count { Ok(map) } else { Err(WireError::Malformed("a map with one key twice")) }
}

/// Fails with the words of the first demand that does not hold.
pub(crate) fn check(demands: &[(bool, &'static str)]) -> Result<(), WireError> {
    let broken = demands.iter().find(|(holds, _)| !holds);
    broken.map_or(Ok(()), |(_, what)| Err(WireError::Malformed(what)))
}
