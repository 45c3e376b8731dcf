//! Checkpoints of a shard: a copy of everything that it holds, made at the moment its frontier
//! reaches a clock, and a shard that is made from such a copy.
//!
//! Of a table that combines by clock a copy holds every clock before the checkpoint's and nothing
//! of later ones. Of one that applies each push as it comes it holds those, and whatever faster
//! workers had pushed by then. Making it is one copy of memory; the run goes on at once.

use crate::intake::frontier::Frontier;
use crate::intake::stream::Stream;
use crate::residual_rows::ResidualRows;
use crate::rows::pending_rows::PendingRows;
use crate::shard::{AnyShard, Shard};
use types::{Clock, NumberType, Position, ShardId, TableId, WorkerId};
use update::Number;
use wire::{Field, Head, Keys, Payload, Push, Reader, WireError, Writes};

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

/// The checkpoint that a shard was last asked for.
pub(crate) struct RequestedCheckpoint {
    number: u64,
    clock: Clock,
    /// Whether every worker has left.
    last: bool,
    copy: Copy,
}

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

impl<T: Number> Shard<T> {
    /// A checkpoint of this number is to hold the shard as of this clock. One at a time: the newest
    /// counts. When every worker has left, and nothing of theirs is under way any more, it holds
    /// whatever clocks anybody has ended.
    pub(crate) fn checkpoint(&mut self, number: u64, clock: Clock, last: bool) {
        if !self.spec.is_checkpointed() || self.asked.as_ref().is_some_and(|asked| asked.number >= number) {
            return;
        }
        self.asked = Some(RequestedCheckpoint { number, clock, last, copy: Copy::Awaited });
        if last && AnyShard::is_head(self) {
            for worker in (0..self.sources.len() as u32).map(WorkerId) {
                self.frontier.leave(worker);
            }
            self.apply_before(clock.max(self.frontier.value()));
            self.copy();
        }
        self.look_at_clock();
    }

    /// A head that has heard of a checkpoint, or that was told of it before it was the head, may
    /// stand at its clock already, or beyond.
    pub(crate) fn look_at_clock(&mut self) {
        let (is_head, frontier) = (AnyShard::is_head(self), self.frontier.value());
        let Some(asked) = &mut self.asked else { return };
        if !is_head {
            // Somebody else answers for the shard: what was copied here is not its state.
            asked.copy = Copy::Awaited;
        } else if matches!(asked.copy, Copy::Awaited) && frontier > asked.clock {
            asked.copy = Copy::Missed;
        } else if matches!(asked.copy, Copy::Awaited) && frontier == asked.clock {
            self.copy();
        }
    }

    /// The clock to copy at, if the frontier has come to it.
    pub(crate) fn copies_at(&self, frontier: Clock) -> Option<Clock> {
        let awaited = |asked: &&RequestedCheckpoint| asked.clock <= frontier && matches!(asked.copy, Copy::Awaited);
        self.asked.as_ref().filter(awaited).map(|asked| asked.clock)
    }

    /// Copies everything, as it is now.
    pub(crate) fn copy(&mut self) {
        let Some(RequestedCheckpoint { number, clock, last, .. }) = self.asked else { return };
        let places = if self.rows.is_dense() {
            ImagePositions::Run { first: self.placed.range.first.0, count: self.rows.len() as u64 }
        } else {
            ImagePositions::List(self.rows.positions())
        };
        let image = ShardImage {
            checkpoint: number,
            clock,
            table: self.table,
            name: self.spec.name.clone(),
            shard: self.placed.shard,
            number: T::TYPE,
            stride: self.rows.row_state_width(),
            places,
            rows: Payload::new(self.rows.all_row_state().to_vec()),
            metadata: self.metadata(),
        };
        self.asked = Some(RequestedCheckpoint { number, clock, last, copy: Copy::Made(Box::new(image)) });
    }

    /// The copy, once, if it is this shard's to answer for: one whose lease has ended may lack what
    /// another was told. And not before the tail is as far: whoever took over earlier would answer
    /// for clocks before the checkpoint's, and have workers push in them what the copy lacks.
    pub(crate) fn take_image(&mut self) -> Option<ShardImage> {
        if !self.may_answer || !AnyShard::is_head(self) {
            return None;
        }
        let announced = self.announced();
        let is_due = |asked: &&mut RequestedCheckpoint| {
            matches!(asked.copy, Copy::Made(_)) && (asked.last || announced >= asked.clock)
        };
        let asked = self.asked.as_mut().filter(is_due)?;
        match std::mem::replace(&mut asked.copy, Copy::Taken) {
            Copy::Made(image) => Some(*image),
            Copy::Awaited | Copy::Missed | Copy::Taken => None,
        }
    }

    /// The checkpoint whose clock has passed without a copy, and where the frontier stands.
    pub(crate) fn missed(&self) -> Option<(u64, Clock)> {
        let frontier = self.frontier.value();
        let asked = self.asked.as_ref().filter(|_| self.may_answer && AnyShard::is_head(self))?;
        matches!(asked.copy, Copy::Missed).then_some((asked.number, frontier))
    }

    /// Is as it was at `clock`. Whoever took part then is forgotten, and what was held for that
    /// clock and later ones, parts of leases included: the plan's workers begin with that clock,
    /// and do it again.
    ///
    /// What workers had still to send is pushed once, as a contribution to that clock: so it
    /// arrives whoever takes part now.
    pub(crate) fn restore(
        &mut self,
        clock: Clock,
        image: &ShardImage,
        residuals: &[ResidualRows],
    ) -> Result<(), String> {
        let ShardImage { number, stride, places, rows, metadata, .. } = image;
        if *number != T::TYPE || *stride != self.rows.row_state_width() {
            let (ours, width) = (T::TYPE, self.rows.row_state_width());
            return Err(format!("its rows are {stride} numbers of type {number}, and the table's {width} of {ours}"));
        }
        let values = rows.numbers::<T>().filter(|values| Some(values.len()) == count_of(places, *stride));
        let values = values.ok_or("it has not as many rows as positions")?;
        self.put_image(places, values)?;
        let (sources, ranks) = (self.sources.clone(), self.ranks.clone());
        self.take_metadata(metadata).map_err(|error| format!("its metadata cannot be read: {error}"))?;
        (self.sources, self.ranks) = (sources, ranks);
        self.streams = self.sources.iter().map(|_| Stream::default()).collect();
        self.frontier = Frontier::starting(clock, self.sources.iter().map(Option::is_some));
        self.held.clear();
        self.held_changes.clear();
        self.held_examples.clear();
        self.leases.lose_open();
        self.failed.clear();
        let (pending_rows, _) = self.pending_rows.parts();
        self.pending_rows = PendingRows::from_parts(&self.spec, (pending_rows, Vec::new()));
        self.delta_log.iter_mut().for_each(|delta_log| delta_log.start_over_at(self.plan));
        self.receive(clock, residuals)?;
        (self.told, self.told_exact) = (clock, true);
        self.peers.iter_mut().for_each(|peers| peers.announced = clock);
        self.start_batches();
        Ok(())
    }

    /// Applies the residuals that workers have for rows of this shard, as one contribution.
    fn receive(&mut self, clock: Clock, residuals: &[ResidualRows]) -> Result<(), String> {
        let (width, range) = (self.rows.width(), self.placed.range);
        let mut rows: Vec<(u64, &[f32])> = Vec::new();
        for ResidualRows { width: theirs, runs } in residuals {
            if *theirs as usize != width {
                return Err(format!("what workers had still to send is {theirs} numbers wide, and the table {width}"));
            }
            let all = runs.iter().flat_map(|(first, values)| (*first..).zip(values.chunks_exact(width)));
            rows.extend(all.filter(|(position, _)| range.contains(Position(*position))));
        }
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(position, _)| *position);
        let (mut positions, mut sums) = (Vec::new(), Vec::<f64>::new());
        for (position, row) in rows {
            if positions.last() != Some(&position) {
                positions.push(position);
                sums.resize(positions.len() * width, 0.0);
            }
            let start = sums.len() - width;
            sums[start..].iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let values: Vec<T> = sums.into_iter().map(T::from_f64).collect();
        let unfit = |_| "what workers had still to send does not fit the table".to_owned();
        let keys = Keys::at(self.spec.shape.placement(), &positions).map_err(|error| unfit(error.to_string()))?;
        let (table, shard, number) = (self.table, self.placed.shard, T::TYPE);
        let (keys, values) = (keys.slice(0..keys.len()).in_full(), Payload::new(values));
        let push = Push { table, shard, settled: 0, number, writes: Writes::GRADIENTS, keys, values };
        let head = Head { clock, ..Head::plain(self.placed.owner, self.placed.owner) };
        self.contribute(&head, &push).map_err(|_| unfit(String::new()))
    }

    /// Rows as they are kept, from an image.
    fn put_image(&mut self, places: &ImagePositions, values: &[T]) -> Result<(), String> {
        let stride = self.rows.row_state_width();
        let refused = |refusal: wire::Refusal| format!("its rows do not fit the table: {refusal:?}");
        let unequal = "its rows are not as many as its positions".to_owned();
        match places {
            ImagePositions::Run { first, count } => {
                let resolved = self.rows.resolve_run(Position(*first), *count, true).map_err(refused)?;
                self.rows.put_row_state(&resolved, values).ok_or(unequal)
            }
            ImagePositions::List(list) => {
                let mut order: Vec<usize> = (0..list.len()).collect();
                order.sort_unstable_by_key(|at| list[*at]);
                let positions: Vec<u64> = order.iter().map(|at| list[*at]).collect();
                if positions.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err("it has two rows at one position".to_owned());
                }
                let resolved = self.rows.resolve_list(&positions, true).map_err(refused)?;
                let sorted: Vec<T> = order.iter().flat_map(|at| &values[at * stride..][..stride]).copied().collect();
                self.rows.put_row_state(&resolved, &sorted).ok_or(unequal)
            }
        }
    }
}

fn count_of(places: &ImagePositions, stride: usize) -> Option<usize> {
    usize::try_from(places.count()).ok()?.checked_mul(stride)
}
