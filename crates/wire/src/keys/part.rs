//! The keys of one part: as a slice of a list in a machine ([`KeySlice`]), and as sent in a message
//! ([`KeyPart`]).

use super::{Keys, List, Signature, first_disorder};
use crate::Payload;
use crate::bits;
use crate::field::{Field, Reader};
use crate::frame::WireError;
use std::ops::Range;
use types::{Position, PositionRange};

/// Consecutive keys of one list: the keys of one part.
#[derive(Clone, Debug)]
pub struct KeySlice {
    pub(super) keys: Keys,
    pub(super) range: Range<usize>,
}

impl Keys {
    /// A slice of the list.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> KeySlice {
        KeySlice { keys: self.clone(), range }
    }
}

impl KeySlice {
    /// The indices of these keys in the whole list.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The position of the key at `index` of the slice.
    #[must_use]
    pub fn position(&self, index: usize) -> Position {
        self.keys.position(self.range.start + index)
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The slice without its first `count` keys.
    #[must_use]
    pub fn after(&self, count: usize) -> Self {
        Self { keys: self.keys.clone(), range: self.range.end.min(self.range.start + count)..self.range.end }
    }

    /// The positions of a sorted list; `None` for a run.
    #[must_use]
    pub fn sorted(&self) -> Option<&[u64]> {
        match &self.keys.list {
            List::Run { .. } => None,
            List::Sorted { .. } => Some(&self.keys.sorted()[self.range.clone()]),
        }
    }

    /// The message form for a shard that knows the list, or for a run.
    #[must_use]
    pub fn by_signature(&self) -> KeyPart {
        match (&self.keys.list, self.keys.signature()) {
            (List::Sorted { .. }, Some(signature)) => {
                KeyPart::Known { signature, start: self.range.start as u64, count: self.len() as u32 }
            }
            _ => KeyPart::Run { first: self.position(0), count: self.len() as u64 },
        }
    }

    /// The message form for a shard that does not know the list.
    #[must_use]
    pub fn in_full(&self) -> KeyPart {
        match (&self.keys.list, self.keys.signature()) {
            (List::Sorted { positions, .. }, Some(signature)) => KeyPart::List {
                signature,
                start: self.range.start as u64,
                positions: positions.slice(self.range.start * 8..self.range.end * 8),
            },
            _ => KeyPart::Run { first: self.position(0), count: self.len() as u64 },
        }
    }

    /// The signature of the whole list; `None` for a run.
    #[must_use]
    pub fn signature(&self) -> Option<Signature> {
        self.keys.signature()
    }
}

/// The keys of one part, as sent in a message.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyPart {
    /// Consecutive positions.
    Run {
        /// The first position.
        first: Position,
        /// The number of positions.
        count: u64,
    },
    /// A slice of a list, with its positions in full.
    List {
        /// The signature of the whole list.
        signature: Signature,
        /// The index in the whole list at which the slice starts.
        start: u64,
        /// The positions, u64 each.
        positions: Payload,
    },
    /// As `List`, with the positions encoded by the codec `keys`.
    Packed {
        /// The signature of the whole list.
        signature: Signature,
        /// The index in the whole list at which the slice starts.
        start: u64,
        /// The number of keys in the slice.
        count: u32,
        /// The encoded positions.
        packed: Payload,
    },
    /// Keys `start` to `start + count` of a list that the shard knows.
    Known {
        /// The signature of the whole list.
        signature: Signature,
        /// The index in the whole list at which the slice starts.
        start: u64,
        /// The number of keys in the slice.
        count: u32,
    },
    /// The keys whose bits are set, among keys `start` to `start + count` of a list that the shard
    /// knows.
    Chosen {
        /// The signature of the whole list.
        signature: Signature,
        /// The index in the whole list at which the slice starts.
        start: u64,
        /// The number of keys in the slice, chosen or not.
        count: u32,
        /// A bit for each key of the slice: see [`crate::Bits`].
        bits: Payload,
    },
    /// All keys that the shard has in a range (reads only).
    Scan {
        /// The range of positions.
        range: PositionRange,
    },
}

impl KeyPart {
    /// The number of keys; `None` for a scan, which only the shard can count.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Run { count, .. } => Some(*count),
            Self::List { positions, .. } => Some(positions.len() as u64 / 8),
            Self::Known { count, .. } | Self::Packed { count, .. } => Some(u64::from(*count)),
            Self::Chosen { bits, .. } => Some(bits::ones(bits.bytes()) as u64),
            Self::Scan { .. } => None,
        }
    }

    /// The indices of chosen keys within the slice; empty for other forms.
    pub fn chosen(&self) -> impl Iterator<Item = usize> + '_ {
        bits::indices(if let Self::Chosen { bits, .. } = self { bits.bytes() } else { &[] })
    }

    pub(crate) fn payload(&self) -> Option<&Payload> {
        match self {
            Self::List { positions, .. } => Some(positions),
            Self::Packed { packed, .. } => Some(packed),
            Self::Chosen { bits, .. } => Some(bits),
            _ => None,
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Run { first, count } => {
                0u8.put(out);
                first.put(out);
                count.put(out);
            }
            Self::List { signature, start, .. } => {
                1u8.put(out);
                signature.0.put(out);
                start.put(out);
            }
            Self::Known { signature, start, count } => {
                2u8.put(out);
                signature.0.put(out);
                start.put(out);
                count.put(out);
            }
            Self::Packed { signature, start, count, .. } => {
                4u8.put(out);
                signature.0.put(out);
                start.put(out);
                count.put(out);
            }
            Self::Scan { range } => {
                3u8.put(out);
                range.first.put(out);
                range.last.put(out);
            }
            Self::Chosen { signature, start, count, .. } => {
                5u8.put(out);
                signature.0.put(out);
                start.put(out);
                count.put(out);
            }
        }
    }

    /// Refuses a payload that does not fit the keys.
    pub(crate) fn check(&self) -> Result<(), WireError> {
        match self {
            Self::List { positions, .. } if !positions.len().is_multiple_of(8) => {
                Err(WireError::Malformed("a key list that is not a whole number of keys"))
            }
            Self::Chosen { count, bits, .. } if !bits::is_bits(*count as usize, bits.bytes()) => {
                Err(WireError::Malformed("a bit set of another length than its key list"))
            }
            Self::List { .. }
            | Self::Chosen { .. }
            | Self::Run { .. }
            | Self::Packed { .. }
            | Self::Known { .. }
            | Self::Scan { .. } => Ok(()),
        }
    }

    pub(crate) fn get(input: &mut Reader<'_>, positions: Payload) -> Result<Self, WireError> {
        let keys = match u8::get(input)? {
            0 => Self::Run { first: Field::get(input)?, count: Field::get(input)? },
            1 => Self::List { signature: Signature(Field::get(input)?), start: Field::get(input)?, positions },
            2 => Self::Known {
                signature: Signature(Field::get(input)?),
                start: Field::get(input)?,
                count: Field::get(input)?,
            },
            4 => Self::Packed {
                signature: Signature(Field::get(input)?),
                start: Field::get(input)?,
                count: Field::get(input)?,
                packed: positions,
            },
            3 => Self::Scan { range: PositionRange { first: Field::get(input)?, last: Field::get(input)? } },
            5 => Self::Chosen {
                signature: Signature(Field::get(input)?),
                start: Field::get(input)?,
                count: Field::get(input)?,
                bits: positions,
            },
            _ => return Err(WireError::Malformed("an unknown kind of key list")),
        };
        keys.check()?;
        Ok(keys)
    }

    /// The index in the slice of the first key that does not rise above the one before it.
    #[must_use]
    pub fn first_disorder(&self) -> Option<usize> {
        match self {
            Self::List { positions, .. } => first_disorder(positions.numbers().unwrap_or(&[])),
            _ => None,
        }
    }
}
