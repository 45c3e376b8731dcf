//! Checkpoints of a shard: the image of everything that it holds, copied at the moment its frontier
//! reaches a clock, and which checkpoint the shard was asked for.
//!
//! What an image holds depends on the table's combine rule:
//! - `clock`: every clock before the checkpoint's, and nothing of later clocks.
//! - `each`: the same, and also what faster workers pushed before the copy.
//!
//! Making an image is one copy of memory; the run goes on at once.

use types::{Clock, NumberType, ShardId, TableId};
use wire::{Field, Payload, Reader, WireError};

/// One shard of one table, as it was when the shard's frontier reached a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardImage {
    /// Number of the checkpoint that it belongs to.
    pub checkpoint: u64,
    /// The checkpoint's clock.
    pub clock: Clock,
    /// The table.
    pub table: TableId,
    /// The table's name.
    pub name: String,
    /// The shard.
    pub shard: ShardId,
    /// Type of the numbers in `rows`.
    pub number: NumberType,
    /// Numbers in one row state: the weights and the updater's state.
    pub stride: usize,
    /// Positions of the rows, in the order of `rows`.
    pub places: ImagePositions,
    /// Row states, one after the other.
    pub rows: Payload,
    /// The shard metadata, encoded by the shard.
    pub metadata: Vec<u8>,
}

/// Positions of an image's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePositions {
    /// Consecutive positions, as in a dense table.
    Run {
        /// The first position.
        first: u64,
        /// How many positions.
        count: u64,
    },
    /// Any positions, each once, in any order.
    List(Vec<u64>),
}

impl ImagePositions {
    /// How many positions there are.
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
            _ => return Err(WireError::Malformed("a shard image with a first position but no row count")),
        };
        let rows: Vec<u8> = Field::get(input)?;
        // Copied to aligned memory, because numbers are read in place.
        let mut aligned = vec![0u64; rows.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut aligned)[..rows.len()].copy_from_slice(&rows);
        let rows = Payload::new(aligned).slice(0..rows.len());
        Ok(Self { checkpoint, clock, table, name, shard, number, stride, places, rows, metadata: Field::get(input)? })
    }
}

/// The checkpoint that a shard was last asked for, and the state of its copy. A newer request
/// replaces an older one.
#[derive(Debug, Default)]
pub(crate) struct CheckpointRequest {
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    clock: Clock,
    /// Whether it is the last checkpoint, because every worker has left.
    last: bool,
    copy: Copy,
}

#[derive(Debug)]
enum Copy {
    /// The frontier has not reached the clock.
    Awaited,
    /// The frontier was past the clock already, so no copy can be made.
    Missed,
    /// The frontier is at the clock, and the rows are being copied. The metadata is of the moment
    /// at which that began.
    Copying { metadata: Vec<u8> },
    /// The copy is made and waits to be taken.
    Made(Box<ShardImage>),
    /// The copy was made and taken.
    Taken,
}

impl CheckpointRequest {
    /// Asks for checkpoint `number` at `clock`. Returns whether the request is new.
    pub fn ask(&mut self, number: u64, clock: Clock, last: bool) -> bool {
        let is_new = self.asked.as_ref().is_none_or(|asked| asked.number < number);
        if is_new {
            self.asked = Some(Asked { number, clock, last, copy: Copy::Awaited });
        }
        is_new
    }

    /// This replica became head or lost that role: a copy that was made before is not the head's
    /// state, so it is made again.
    pub fn await_again(&mut self) {
        self.asked.iter_mut().for_each(|asked| asked.copy = Copy::Awaited);
    }

    /// Tells that the head's frontier is at `frontier`. Returns whether to copy the shard now. A
    /// request whose clock has passed counts as missed.
    pub fn stands_at(&mut self, frontier: Clock) -> bool {
        let Some(asked) = self.asked.as_mut().filter(|asked| matches!(asked.copy, Copy::Awaited)) else { return false };
        if frontier > asked.clock {
            asked.copy = Copy::Missed;
        }
        frontier == asked.clock
    }

    /// The clock of a copy that is still to be made, if the frontier has reached or passed it.
    pub fn copies_at(&self, frontier: Clock) -> Option<Clock> {
        let awaited = |asked: &&Asked| asked.clock <= frontier && matches!(asked.copy, Copy::Awaited);
        self.asked.as_ref().filter(awaited).map(|asked| asked.clock)
    }

    /// Begins the copy, with the metadata of this moment.
    pub fn begin_copy(&mut self, metadata: Vec<u8>) {
        if let Some(asked) = &mut self.asked {
            asked.copy = Copy::Copying { metadata };
        }
    }

    /// Stores the copy, if one is being made; `copy` makes it from the checkpoint's number, its
    /// clock and the metadata.
    pub fn copied(&mut self, copy: impl FnOnce(u64, Clock, Vec<u8>) -> ShardImage) {
        let Some(asked) = &mut self.asked else { return };
        if let Copy::Copying { metadata } = &mut asked.copy {
            let metadata = std::mem::take(metadata);
            asked.copy = Copy::Made(Box::new(copy(asked.number, asked.clock, metadata)));
        }
    }

    /// Takes the copy, once, when the tail's frontier (`announced`) has reached the clock. Before
    /// that, a replica that takes over would accept pushes in earlier clocks, which the copy lacks.
    pub fn take(&mut self, announced: Clock) -> Option<ShardImage> {
        let is_due =
            |asked: &&mut Asked| matches!(asked.copy, Copy::Made(_)) && (asked.last || announced >= asked.clock);
        let asked = self.asked.as_mut().filter(is_due)?;
        match std::mem::replace(&mut asked.copy, Copy::Taken) {
            Copy::Made(image) => Some(*image),
            Copy::Awaited | Copy::Missed | Copy::Copying { .. } | Copy::Taken => None,
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

    fn image(checkpoint: u64, clock: Clock, metadata: Vec<u8>) -> ShardImage {
        ShardImage {
            checkpoint,
            clock,
            table: TableId(0),
            name: String::new(),
            shard: ShardId(0),
            number: NumberType::F32,
            stride: 1,
            places: ImagePositions::List(Vec::new()),
            rows: Payload::EMPTY,
            metadata,
        }
    }

    #[test]
    fn checkpoint_is_copied_at_its_clock_and_taken_once_the_tail_reaches_it() {
        let mut request = CheckpointRequest::default();
        assert!(request.ask(1, Clock(5), false) && !request.ask(1, Clock(9), false), "asked twice, wanted once");
        assert!(!request.stands_at(Clock(4)) && request.copies_at(Clock(4)).is_none());
        assert_eq!(request.copies_at(Clock(7)), Some(Clock(5)), "the frontier may pass several clocks at once");
        assert!(request.stands_at(Clock(5)));
        request.begin_copy(vec![7]);
        request.copied(image);
        assert!(request.take(Clock(4)).is_none(), "the tail is behind");
        assert!(request.take(Clock(5)).is_some_and(|image| (image.checkpoint, image.clock) == (1, Clock(5))));
        assert!(request.take(Clock(5)).is_none() && request.missed().is_none());
    }

    #[test]
    fn checkpoint_of_a_passed_clock_is_missed_until_the_next_request() {
        let mut request = CheckpointRequest::default();
        request.ask(1, Clock(5), false);
        assert!(!request.stands_at(Clock(6)));
        assert_eq!(request.missed(), Some(1));
        request.ask(2, Clock(8), false);
        assert_eq!((request.missed(), request.stands_at(Clock(8))), (None, true));
        request.begin_copy(vec![7]);
        request.copied(image);
        request.await_again();
        assert!(request.take(Clock(9)).is_none(), "another replica answers for the shard");
    }
}
