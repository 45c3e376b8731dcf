//! The protocol between a shard and its followers: numbered changes, and how a follower notices a
//! gap.
//!
//! A shard numbers the batches of its change log: 1, 2, 3, … A message to a follower says which
//! batches it covers ([`ChangeChunk`]). The follower keeps the number of the last batch that it
//! holds ([`FollowerCursor`]).
//!
//! A message may cover batches that the follower holds already. Taking them again is harmless,
//! because rows are sent as they are now. If batches are missing, the follower takes nothing. The
//! shard sends everything after the follower's number, or the follower starts over.

use crate::field::fields;

/// The changes of a shard that a message carries: one chunk of the range of changes after batch
/// `from`, up to batch `to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeChunk {
    /// The follower must hold all changes up to this batch.
    pub from: u64,
    /// With the last chunk, the follower holds all changes up to this batch.
    pub to: u64,
    /// The number of the chunk within the range, from 0.
    pub chunk: u32,
    /// Whether it is the last chunk of the range.
    pub ends: bool,
}

/// A follower's place in the change log of a shard.
///
/// ```
/// use wire::{ChangeChunk, ChangeStep, FollowerCursor};
///
/// let mut cursor = FollowerCursor::at(3);
/// let chunk = |from, to, chunk, ends| ChangeChunk { from, to, chunk, ends };
/// assert_eq!(cursor.take(chunk(3, 5, 0, false)), ChangeStep::First);
/// assert_eq!(cursor.take(chunk(3, 5, 1, true)), ChangeStep::Complete);
/// assert_eq!(cursor.held(), 5);
/// assert_eq!(cursor.take(chunk(4, 5, 0, true)), ChangeStep::Held);
/// assert_eq!(cursor.take(chunk(6, 7, 0, true)), ChangeStep::Gap);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowerCursor {
    held: u64,
    /// The range whose chunks are arriving.
    arriving: Option<(u64, u64)>,
    /// The number of its chunks that have arrived.
    chunks: u32,
}

/// What a follower does with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// Takes it as the first chunk of a range, and drops the chunks of an incomplete range.
    First,
    /// Takes it as the next chunk of the range.
    Next,
    /// Takes it as the last chunk of a range, which the follower then holds.
    Complete,
    /// Ignores it, because the follower holds it already.
    Held,
    /// Refuses it, because changes before it are missing.
    Gap,
}

impl FollowerCursor {
    /// A follower that holds all changes up to batch `held`.
    #[must_use]
    pub fn at(held: u64) -> Self {
        Self { held, arriving: None, chunks: 0 }
    }

    /// The last batch that the follower holds; it holds all earlier ones too.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether some chunks of a range have arrived, but not all.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// Drops the chunks of an incomplete range.
    pub fn forget_chunks(&mut self) {
        self.arriving = None;
        self.chunks = 0;
    }

    /// Whether [`FollowerCursor::take`] would take this chunk.
    #[must_use]
    pub fn fits(&self, chunk: ChangeChunk) -> bool {
        let mut probe = *self;
        matches!(probe.take(chunk), ChangeStep::First | ChangeStep::Next | ChangeStep::Complete)
    }

    /// Takes a chunk. A range of a single chunk is [`ChangeStep::Complete`] at once.
    pub fn take(&mut self, ChangeChunk { from, to, chunk, ends }: ChangeChunk) -> ChangeStep {
        if to <= self.held {
            return ChangeStep::Held;
        }
        if from > self.held {
            return ChangeStep::Gap;
        }
        if self.arriving != Some((from, to)) {
            if chunk > 0 {
                return ChangeStep::Gap;
            }
            self.arriving = Some((from, to));
            self.chunks = 0;
        }
        if chunk != self.chunks {
            return if chunk < self.chunks { ChangeStep::Held } else { ChangeStep::Gap };
        }
        self.chunks += 1;
        if ends {
            *self = Self::at(to);
            return ChangeStep::Complete;
        }
        if chunk == 0 { ChangeStep::First } else { ChangeStep::Next }
    }
}

fields!(ChangeChunk { from, to, chunk, ends });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follower_takes_ranges_that_begin_at_or_before_its_cursor() {
        let mut cursor = FollowerCursor::at(4);
        // (from, to, chunk, ends, expected step, batch held after it)
        let cases = [
            (5, 6, 0, true, ChangeStep::Gap, 4),
            (4, 6, 1, true, ChangeStep::Gap, 4), // the first chunk is missing
            (4, 6, 0, false, ChangeStep::First, 4),
            (4, 6, 0, false, ChangeStep::Held, 4), // resent
            (4, 6, 2, false, ChangeStep::Gap, 4),
            (4, 6, 1, false, ChangeStep::Next, 4),
            (4, 7, 1, true, ChangeStep::Gap, 4), // of another range
            (4, 6, 2, true, ChangeStep::Complete, 6),
            (4, 6, 2, true, ChangeStep::Held, 6),
            (2, 9, 0, true, ChangeStep::Complete, 9), // covers what is held as well
            (9, 10, 0, false, ChangeStep::First, 9),
            (9, 11, 0, false, ChangeStep::First, 9), // a wider range replaces it
            (9, 10, 1, true, ChangeStep::Gap, 9),
            (9, 11, 1, true, ChangeStep::Complete, 11),
        ];
        for (index, (from, to, chunk, ends, step, held)) in cases.into_iter().enumerate() {
            assert_eq!(cursor.take(ChangeChunk { from, to, chunk, ends }), step, "step {index}");
            assert_eq!(cursor.held(), held, "step {index}");
        }
    }

    #[test]
    fn follower_drops_the_chunks_of_an_incomplete_range() {
        let mut cursor = FollowerCursor::at(0);
        let chunk = |chunk, ends| ChangeChunk { from: 0, to: 1, chunk, ends };
        assert_eq!(cursor.take(chunk(0, false)), ChangeStep::First);
        cursor.forget_chunks();
        assert_eq!(cursor.take(chunk(1, true)), ChangeStep::Gap);
        assert_eq!(cursor.take(chunk(0, false)), ChangeStep::First);
        assert_eq!(cursor.take(chunk(1, true)), ChangeStep::Complete);
    }
}
