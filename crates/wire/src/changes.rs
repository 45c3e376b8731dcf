//! The protocol of followers: how a shard numbers the changes that it sends, and how a follower
//! notices a gap.
//!
//! A shard numbers the batches of its change log: 1, 2, 3, … A message to a follower says which
//! batches it covers ([`ChangeChunk`]), and the follower keeps the number of the last one that it
//! holds ([`FollowerCursor`]). A message may cover batches that the follower holds already: rows
//! are sent as they are, so taking them again is harmless. Where batches are missing, the follower
//! takes nothing; it is sent everything after its number, or starts over.

use crate::field::fields;

/// Which changes of a shard a message carries: one chunk of all that changed after batch `from`, up
/// to batch `to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeChunk {
    /// The follower must hold everything up to this batch.
    pub from: u64,
    /// With the last chunk it holds everything up to this batch.
    pub to: u64,
    /// The chunk's number among those of the same range, from 0.
    pub chunk: u32,
    /// Whether it is the last of them.
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
    /// The range whose chunks are arriving, and how many of them have.
    arriving: Option<(u64, u64)>,
    chunks: u32,
}

/// What a chunk is to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// The first chunk of a range: what arrived of another range is void.
    First,
    /// The next chunk of the range that is arriving.
    Next,
    /// The last chunk of a range: with it, the follower holds the range.
    Complete,
    /// The follower has it already.
    Held,
    /// Something before it is missing.
    Gap,
}

impl FollowerCursor {
    /// A follower that holds everything up to batch `held`.
    #[must_use]
    pub fn at(held: u64) -> Self {
        Self { held, arriving: None, chunks: 0 }
    }

    /// The last batch that the follower holds, with everything before it.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether chunks of a range have arrived, and not all of them.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// Forgets the chunks of a range that has not arrived whole.
    pub fn forget_chunks(&mut self) {
        (self.arriving, self.chunks) = (None, 0);
    }

    /// Whether [`FollowerCursor::take`] would take this chunk.
    #[must_use]
    pub fn fits(&self, chunk: ChangeChunk) -> bool {
        let mut probe = *self;
        matches!(probe.take(chunk), ChangeStep::First | ChangeStep::Next | ChangeStep::Complete)
    }

    /// A chunk arrives. A range of a single chunk is [`ChangeStep::Complete`] at once.
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
            (self.arriving, self.chunks) = (Some((from, to)), 0);
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
    fn follower_takes_ranges_that_begin_where_it_stands_or_before() {
        let mut cursor = FollowerCursor::at(4);
        // (from, to, chunk, ends, what it is, the number held after it)
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
            (9, 11, 0, false, ChangeStep::First, 9), // the wider range takes its place
            (9, 10, 1, true, ChangeStep::Gap, 9),
            (9, 11, 1, true, ChangeStep::Complete, 11),
        ];
        for (index, (from, to, chunk, ends, step, held)) in cases.into_iter().enumerate() {
            assert_eq!(cursor.take(ChangeChunk { from, to, chunk, ends }), step, "step {index}");
            assert_eq!(cursor.held(), held, "step {index}");
        }
    }

    #[test]
    fn follower_forgets_the_chunks_of_a_range_that_is_given_up() {
        let mut cursor = FollowerCursor::at(0);
        let chunk = |chunk, ends| ChangeChunk { from: 0, to: 1, chunk, ends };
        assert_eq!(cursor.take(chunk(0, false)), ChangeStep::First);
        cursor.forget_chunks();
        assert_eq!(cursor.take(chunk(1, true)), ChangeStep::Gap);
        assert_eq!(cursor.take(chunk(0, false)), ChangeStep::First);
        assert_eq!(cursor.take(chunk(1, true)), ChangeStep::Complete);
    }
}
