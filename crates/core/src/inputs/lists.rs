//! Key lists that a recording has spelt out, so that it can name them from then on.

use std::collections::{BTreeMap, VecDeque};
use types::Placement;
use wire::{Field, Keys, Reader, Signature, WireError};

/// Lists that are remembered, in bytes of keys; what came first is forgotten first.
const REMEMBERED: usize = 64 << 20;

type Name = (Placement, Signature);

/// The last lists that were spelt out. Whoever writes and whoever reads keep the same ones, since both go by what is written.
#[derive(Default)]
pub struct Lists {
    known: BTreeMap<Name, Keys>,
    order: VecDeque<Name>,
    bytes: usize,
}

impl Lists {
    pub(super) fn put(&mut self, keys: &Keys, out: &mut Vec<u8>) {
        let name = keys.signature().map(|signature| (keys.placement(), signature));
        match name.filter(|name| self.known.contains_key(name)) {
            Some((placement, signature)) => {
                true.put(out);
                placement.put(out);
                signature.0.put(out);
            }
            None => {
                false.put(out);
                keys.put(out);
                self.remember(keys);
            }
        }
    }

    pub(super) fn get(&mut self, input: &mut Reader<'_>) -> Result<Keys, WireError> {
        if bool::get(input)? {
            let name = (Field::get(input)?, Signature(Field::get(input)?));
            return self.known.get(&name).cloned().ok_or(WireError::Malformed("a list that was never spelt out"));
        }
        let keys = Keys::get(input)?;
        self.remember(&keys);
        Ok(keys)
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

/// A list's keys, and what it costs to keep it at all.
fn cost(keys: &Keys) -> usize {
    keys.len() * 8 + 128
}
