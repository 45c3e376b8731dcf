//! The keys of one part: a piece of a list as machines hold it, and as it travels.

use super::{Keys, List, Signature, first_disorder};
use crate::Payload;
use crate::bits;
use crate::field::{Field, Reader};
use crate::frame::WireError;
use std::ops::Range;
use types::{Position, PositionRange};

/// Neighbouring keys of one list: what one part speaks of.
#[derive(Clone, Debug)]
pub struct KeySlice {
    pub(super) keys: Keys,
    pub(super) range: Range<usize>,
}

impl Keys {
    /// A piece of the list, as machines hold it.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> KeySlice {
        KeySlice { keys: self.clone(), range }
    }
}

impl KeySlice {
    /// Which keys of the whole list these are.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The position of the key at `index` of the slice.
    #[must_use]
    pub fn position(&self, index: usize) -> Position {
        self.keys.position(self.range.start + index)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Those of them after the first so many.
    #[must_use]
    pub fn after(&self, count: usize) -> Self {
        Self { keys: self.keys.clone(), range: self.range.end.min(self.range.start + count)..self.range.end }
    }

    /// The positions, where they are a sorted list.
    #[must_use]
    pub fn sorted(&self) -> Option<&[u64]> {
        match &self.keys.list {
            List::Run { .. } => None,
            List::Sorted { .. } => Some(&self.keys.sorted()[self.range.clone()]),
        }
    }

    /// What travels to a shard that has seen the list before, or for a run.
    #[must_use]
    pub fn by_signature(&self) -> KeyPart {
        match (&self.keys.list, self.keys.signature()) {
            (List::Sorted { .. }, Some(signature)) => {
                KeyPart::Known { signature, start: self.range.start as u64, count: self.len() as u32 }
            }
            _ => KeyPart::Run { first: self.position(0), count: self.len() as u64 },
        }
    }

    /// What travels to a shard that has not seen the list.
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

    /// The signature of the whole list, unless it is a run.
    #[must_use]
    pub fn signature(&self) -> Option<Signature> {
        self.keys.signature()
    }
}

/// The keys of one part as they travel.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyPart {
    /// Neighbouring positions.
    Run {
        /// The first of them.
        first: Position,
        /// How many there are.
        count: u64,
    },
    /// Keys `start` and following of the list with this signature, spelt out.
    List {
        /// Of the whole list.
        signature: Signature,
        /// Where in the whole list this piece starts.
        start: u64,
        /// u64 each.
        positions: Payload,
    },
    /// As `List`, with the positions shortened by the crate `codec`.
    Packed {
        /// Of the whole list.
        signature: Signature,
        /// Where in the whole list this piece starts.
        start: u64,
        /// How many keys of it.
        count: u32,
        /// What stands for the positions.
        packed: Payload,
    },
    /// Keys `start` to `start + count` of a list that the shard has seen.
    Known {
        /// Of the whole list.
        signature: Signature,
        /// Where in the whole list this piece starts.
        start: u64,
        /// How many keys of it.
        count: u32,
    },
    /// Those of keys `start` to `start + count` of a list that the shard has seen whose bits are
    /// set.
    Chosen {
        /// Of the whole list.
        signature: Signature,
        /// Where in the whole list the piece starts.
        start: u64,
        /// How many keys the piece has, chosen or not.
        count: u32,
        /// A bit for each of them: see [`crate::Bits`].
        bits: Payload,
    },
    /// Whatever keys the shard has between two positions (reads only).
    Scan {
        /// Both ends included.
        range: PositionRange,
    },
}

impl KeyPart {
    /// How many keys there are, where that is known without the shard.
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

    /// Those of the list's piece that are chosen, as indices into it; none where keys are not named
    /// that way.
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

    pub(crate) fn get(input: &mut Reader<'_>, positions: Payload) -> Result<Self, WireError> {
        Ok(match u8::get(input)? {
            0 => Self::Run { first: Field::get(input)?, count: Field::get(input)? },
            1 => {
                if !positions.len().is_multiple_of(8) {
                    return Err(WireError::Malformed("a key list is not a whole number of keys"));
                }
                Self::List { signature: Signature(Field::get(input)?), start: Field::get(input)?, positions }
            }
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
            5 => {
                let signature = Signature(Field::get(input)?);
                let start = Field::get(input)?;
                let count = u32::get(input)?;
                if !bits::is_bits(count as usize, positions.bytes()) {
                    return Err(WireError::Malformed("bits that are not one for each key"));
                }
                Self::Chosen { signature, start, count, bits: positions }
            }
            _ => return Err(WireError::Malformed("an unknown kind of key list")),
        })
    }

    /// The first key that does not rise above the one before it, as an index into the piece.
    #[must_use]
    pub fn first_disorder(&self) -> Option<usize> {
        match self {
            Self::List { positions, .. } => first_disorder(positions.numbers().unwrap_or(&[])),
            _ => None,
        }
    }
}
