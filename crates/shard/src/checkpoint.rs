//! Checkpoints of a shard: a copy of everything that it holds, made at the moment its frontier
//! reaches a clock, and a shard that is made from such a copy.
//!
//! Of a table that combines by clock a copy holds every clock before the checkpoint's and nothing
//! of later ones. Of one that applies each push as it comes it holds those, and whatever faster
//! workers had pushed by then. Making it is one copy of memory; the run goes on at once.

use types::{Clock, NumberType, ShardId, TableId};
use wire::{Field, Payload, Reader, WireError};

/// One shard of one table, as it was when the shard's frontier reached a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardImage {
    /// Which checkpoint of the run it is for.
    pub checkpoint: u64,
    /// The clock.
    pub clock: Clock,
    /// The table.
    pub table: TableId,
    /// The table's name.
    pub name: String,
    /// The shard.
    pub shard: ShardId,
    /// The type of the numbers.
    pub number: NumberType,
    /// Numbers of one row: its weights and its updater's state.
    pub stride: usize,
    /// Where the rows stand.
    pub places: ImagePositions,
    /// Row after row.
    pub rows: Payload,
    /// What else the shard knew: bytes of its own.
    pub metadata: Vec<u8>,
}

/// Where the rows of an image stand in their table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePositions {
    /// One after the other, as in a dense table.
    Run {
        /// Where the first stands.
        first: u64,
        /// How many there are.
        count: u64,
    },
    /// Anywhere, each once, in any order.
    List(Vec<u64>),
}

impl ImagePositions {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len() as u64,
        }
    }
}

impl Field for ShardImage {
    fn put(&self, out: &mut Vec<u8>) {
        (self.checkpoint, self.clock).put(out);
        (self.table, self.shard).put(out);
        self.name.put(out);
        self.number.put(out);
        (self.stride as u64).put(out);
        match &self.places {
            ImagePositions::Run { first, count } => (Some(*first), vec![*count]).put(out),
            ImagePositions::List(list) => (None::<u64>, list.clone()).put(out),
        }
        self.rows.bytes().to_vec().put(out);
        self.metadata.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (checkpoint, clock) = Field::get(input)?;
        let (table, shard) = Field::get(input)?;
        let name = Field::get(input)?;
        let number = Field::get(input)?;
        let stride = u64::get(input)? as usize;
        let places: (Option<u64>, Vec<u64>) = Field::get(input)?;
        let places = match (places.0, &places.1[..]) {
            (Some(first), [count]) => ImagePositions::Run { first, count: *count },
            (None, _) => ImagePositions::List(places.1),
            _ => return Err(WireError::Malformed("an image whose rows stand nowhere")),
        };
        let rows: Vec<u8> = Field::get(input)?;
        // Numbers are read where they lie, which is where numbers may.
        let mut aligned = vec![0u64; rows.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut aligned)[..rows.len()].copy_from_slice(&rows);
        let rows = Payload::new(aligned).slice(0..rows.len());
        Ok(Self { checkpoint, clock, table, name, shard, number, stride, places, rows, metadata: Field::get(input)? })
    }
}

/// The checkpoint that a shard was last asked for, and what became of it. One at a time: the
/// newest counts.
#[derive(Debug, Default)]
pub(crate) struct CheckpointRequest {
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    clock: Clock,
    /// Whether every worker has left.
    last: bool,
    copy: Copy,
}

#[derive(Debug)]
enum Copy {
    /// To be made.
    Awaited,
    /// It cannot be made: the clock had passed.
    Missed,
    /// Made, and not taken.
    Made(Box<ShardImage>),
    /// Made, and taken.
    Taken,
}

impl CheckpointRequest {
    /// A checkpoint of this number is wanted as of this clock. Returns whether that is news.
    pub fn ask(&mut self, number: u64, clock: Clock, last: bool) -> bool {
        let is_new = self.asked.as_ref().is_none_or(|asked| asked.number < number);
        if is_new {
            self.asked = Some(Asked { number, clock, last, copy: Copy::Awaited });
        }
        is_new
    }

    /// Another replica answers for the shard: what was copied here is not its state.
    pub fn await_again(&mut self) {
        self.asked.iter_mut().for_each(|asked| asked.copy = Copy::Awaited);
    }

    /// A head stands at `frontier`. Returns whether to copy the shard now; a clock that has passed
    /// is missed.
    pub fn stands_at(&mut self, frontier: Clock) -> bool {
        let Some(asked) = self.asked.as_mut().filter(|asked| matches!(asked.copy, Copy::Awaited)) else { return false };
        if frontier > asked.clock {
            asked.copy = Copy::Missed;
        }
        frontier == asked.clock
    }

    /// The clock to copy at, if the frontier has come to it or beyond.
    pub fn copies_at(&self, frontier: Clock) -> Option<Clock> {
        let awaited = |asked: &&Asked| asked.clock <= frontier && matches!(asked.copy, Copy::Awaited);
        self.asked.as_ref().filter(awaited).map(|asked| asked.clock)
    }

    /// The shard is copied, for the checkpoint of this number and clock.
    pub fn copied(&mut self, copy: impl FnOnce(u64, Clock) -> ShardImage) {
        if let Some(asked) = &mut self.asked {
            asked.copy = Copy::Made(Box::new(copy(asked.number, asked.clock)));
        }
    }

    /// The copy, once, and only when the tail is as far (`announced`). Before that, a replica that
    /// took over would answer for clocks before the checkpoint's, and workers would push in them
    /// what the copy lacks.
    pub fn take(&mut self, announced: Clock) -> Option<ShardImage> {
        let is_due =
            |asked: &&mut Asked| matches!(asked.copy, Copy::Made(_)) && (asked.last || announced >= asked.clock);
        let asked = self.asked.as_mut().filter(is_due)?;
        match std::mem::replace(&mut asked.copy, Copy::Taken) {
            Copy::Made(image) => Some(*image),
            Copy::Awaited | Copy::Missed | Copy::Taken => None,
        }
    }

    /// The number of the checkpoint whose clock has passed without a copy.
    pub fn missed(&self) -> Option<u64> {
        self.asked.as_ref().filter(|asked| matches!(asked.copy, Copy::Missed)).map(|asked| asked.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(checkpoint: u64, clock: Clock) -> ShardImage {
        let (table, shard, number) = (TableId(0), ShardId(0), NumberType::F32);
        let (places, rows) = (ImagePositions::List(Vec::new()), Payload::EMPTY);
        let (name, stride, metadata) = (String::new(), 1, Vec::new());
        ShardImage { checkpoint, clock, table, name, shard, number, stride, places, rows, metadata }
    }

    #[test]
    fn a_shard_is_copied_at_the_clock_and_handed_over_once_the_tail_is_there() {
        let mut request = CheckpointRequest::default();
        assert!(request.ask(1, Clock(5), false) && !request.ask(1, Clock(9), false), "asked twice, wanted once");
        assert!(!request.stands_at(Clock(4)) && request.copies_at(Clock(4)).is_none());
        assert_eq!(request.copies_at(Clock(7)), Some(Clock(5)), "the frontier may pass several clocks at once");
        assert!(request.stands_at(Clock(5)));
        request.copied(image);
        assert!(request.take(Clock(4)).is_none(), "the tail is behind");
        assert!(request.take(Clock(5)).is_some_and(|image| (image.checkpoint, image.clock) == (1, Clock(5))));
        assert!(request.take(Clock(5)).is_none() && request.missed().is_none());
    }

    #[test]
    fn a_clock_that_has_passed_is_missed_until_another_checkpoint_is_asked_for() {
        let mut request = CheckpointRequest::default();
        request.ask(1, Clock(5), false);
        assert!(!request.stands_at(Clock(6)));
        assert_eq!(request.missed(), Some(1));
        request.ask(2, Clock(8), false);
        assert_eq!((request.missed(), request.stands_at(Clock(8))), (None, true));
        request.copied(image);
        request.await_again();
        assert!(request.take(Clock(9)).is_none(), "another replica answers for the shard");
    }
}
