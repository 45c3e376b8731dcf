//! Dictionary compression of key lists in recordings of a worker's inputs: a list is held in full
//! the first time, and after that goes by its signature while the dictionary remembers it.
//!
//! The dictionary is bounded. Writer and reader add and drop the same lists, because both go by the
//! recorded bytes alone.

use std::collections::{BTreeMap, VecDeque};
use types::Placement;
use wire::{Bits, Field, Keys, Payload, Reader, Signature, WireError};

/// The bound of the dictionary, in bytes of keys; it drops the oldest list first.
const REMEMBERED: usize = 64 << 20;

/// The tag of a list that follows in full.
const SPELT: u8 = 0;
/// The tag of a list that goes by its signature.
const KNOWN: u8 = 1;
/// The tag of keys chosen from another list: that list and one bit for each of its keys.
const CHOSEN: u8 = 2;

type Name = (Placement, Signature);

/// The last key lists that a recording holds in full. The recording's writer and its readers have
/// the same lists, because both add and drop them by the recorded bytes alone.
#[derive(Default)]
pub struct KeyListDictionary {
    known: BTreeMap<Name, Keys>,
    order: VecDeque<Name>,
    bytes: usize,
}

impl KeyListDictionary {
    /// Writes a list. Keys chosen from another list go as that list and bits.
    pub(crate) fn put(&mut self, keys: &Keys, out: &mut Vec<u8>) {
        let Some((from, bits)) = keys.chosen_from() else { return self.put_plain(keys, out) };
        CHOSEN.put(out);
        self.put_plain(from, out);
        Payload::new(bits.bytes().to_vec()).put(out);
    }

    fn put_plain(&mut self, keys: &Keys, out: &mut Vec<u8>) {
        let name = keys.signature().map(|signature| (keys.placement(), signature));
        match name.filter(|name| self.known.contains_key(name)) {
            Some((placement, signature)) => {
                KNOWN.put(out);
                placement.put(out);
                signature.0.put(out);
            }
            None => {
                SPELT.put(out);
                keys.put(out);
                self.remember(keys);
            }
        }
    }

    pub(crate) fn get(&mut self, input: &mut Reader<'_>) -> Result<Keys, WireError> {
        match u8::get(input)? {
            CHOSEN => {
                let tag = u8::get(input)?;
                let from = self.get_plain(tag, input)?;
                let bits = Payload::get(input)?;
                let bits = Bits::read(from.len(), bits.bytes());
                Ok(from.choose(&bits.ok_or(WireError::Malformed("a choice without one bit for each key"))?))
            }
            tag => self.get_plain(tag, input),
        }
    }

    fn get_plain(&mut self, tag: u8, input: &mut Reader<'_>) -> Result<Keys, WireError> {
        match tag {
            SPELT => {
                let keys = Keys::get(input)?;
                self.remember(&keys);
                Ok(keys)
            }
            KNOWN => {
                let name = (Field::get(input)?, Signature(Field::get(input)?));
                self.known
                    .get(&name)
                    .cloned()
                    .ok_or(WireError::Malformed("a key list that was not recorded in full before"))
            }
            _ => Err(WireError::Malformed("an unknown kind of key list")),
        }
    }

    fn remember(&mut self, keys: &Keys) {
        let Some(signature) = keys.signature() else { return };
        let name = (keys.placement(), signature);
        if self.known.insert(name, keys.clone()).is_some() {
            return;
        }
        self.order.push_back(name);
        self.bytes += cost(keys);
        while self.bytes > REMEMBERED {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(keys) = self.known.remove(&oldest) {
                self.bytes -= cost(&keys);
            }
        }
    }
}

/// About how many bytes of memory a list takes: its keys, and the overhead of an entry.
fn cost(keys: &Keys) -> usize {
    keys.len() * 8 + 128
}
