//! Dictionary compression of key lists: a recording holds a list in full once, and names it from
//! then on.

use std::collections::{BTreeMap, VecDeque};
use types::Placement;
use wire::{Bits, Field, Keys, Payload, Reader, Signature, WireError};

/// The bound of the dictionary, in bytes of keys; the oldest list is dropped first.
const REMEMBERED: usize = 64 << 20;

/// How a list is written.
const SPELT: u8 = 0;
const KNOWN: u8 = 1;
const CHOSEN: u8 = 2;

type Name = (Placement, Signature);

/// The last key lists that a recording holds in full. The writer and a reader of the recording have
/// the same ones, because both go by what is written.
#[derive(Default)]
pub struct KeyListDictionary {
    known: BTreeMap<Name, Keys>,
    order: VecDeque<Name>,
    bytes: usize,
}

impl KeyListDictionary {
    /// A list that was chosen from another goes as that one and bits.
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
                let (from, bits) = (self.get_plain(tag, input)?, Payload::get(input)?);
                let bits = Bits::read(from.len(), bits.bytes());
                Ok(from.choose(&bits.ok_or(WireError::Malformed("a bit set of another length than its key list"))?))
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
                self.known.get(&name).cloned().ok_or(WireError::Malformed("a list that was never spelt out"))
            }
            _ => Err(WireError::Malformed("an unknown kind of list")),
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

/// The memory of a list: its keys, and the overhead of an entry.
fn cost(keys: &Keys) -> usize {
    keys.len() * 8 + 128
}
