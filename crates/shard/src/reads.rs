//! Reads that cannot be answered yet, the encoder of answers, and the right to answer at all.

pub(crate) mod parked;

use crate::reads::parked::{Parked, ParkedRead, Parking};
use codec::{Meter, PayloadEncoder, Stopwatch, TableCodecs};
use types::{Clock, Span, TableSpec, Time, WorkerId};
use wire::{CodecPipeline, Payload, Pulled};

/// The reads of one shard.
pub(crate) struct Reads {
    parked: Parked,
    /// Where an exact codec shrinks what is read.
    encoder: Option<PayloadEncoder>,
    counts: ReadCounts,
}

/// How many reads there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Answered.
    pub answered: u64,
    /// Parked before they were answered.
    pub parked: u64,
    /// Most that were parked at once.
    pub most_parked: u64,
}

impl Reads {
    /// No reads yet, of a table with these codecs.
    pub fn new(spec: &TableSpec, codecs: &TableCodecs, seed: u64, stopwatch: Stopwatch) -> Self {
        let exact = codecs.down.pipeline().filter(|pipeline| !pipeline.is_lossy());
        let exact = exact.filter(|pipeline| pipeline.values().is_some() || pipeline.bytes().is_some());
        let width = spec.width as usize;
        let encoder = exact.map(|pipeline| PayloadEncoder::new(pipeline, spec.number, width, seed, stopwatch));
        Self { parked: Parked::default(), encoder, counts: ReadCounts::default() }
    }

    /// Parks a read until the frontier reaches `needed` or, without that, until the reader's own
    /// pushes are there.
    pub fn park(&mut self, read: ParkedRead, needed: Option<Clock>) -> Parking {
        let parking = self.parked.park(read, needed);
        if parking == Parking::Parked {
            self.counts.parked += 1;
            self.counts.most_parked = self.counts.most_parked.max(self.parked.len() as u64);
        }
        parking
    }

    /// Counts an answer.
    pub fn count_answer(&mut self) {
        self.counts.answered += 1;
    }

    /// How many there were.
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }

    /// The reads that a frontier lets go.
    pub fn take_admitted(&mut self, frontier: Clock) -> Vec<ParkedRead> {
        self.parked.take_admitted(frontier)
    }

    /// The reads of `worker` that waited for its stream up to `finished`.
    pub fn take_own(&mut self, worker: WorkerId, finished: u64) -> Vec<ParkedRead> {
        self.parked.take_own(worker, finished)
    }

    /// Reads that have waited `after` since they came or since the last notice.
    pub fn overdue(&mut self, now: Time, after: Span) -> Vec<(WorkerId, u64, bool)> {
        self.parked.overdue(now, after)
    }

    /// Whether any waits for the frontier, and so for other workers.
    pub fn wait_for_others(&self) -> bool {
        self.parked.waits_for_others()
    }

    /// A worker that is gone is answered no more.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.parked.drop_worker(worker);
    }

    /// Drops all of them: the workers ask another replica.
    pub fn drop_all(&mut self) {
        self.parked = Parked::default();
    }

    /// What encoding answers has cost and gained.
    pub fn meter(&self) -> Meter {
        self.encoder.as_ref().map_or_else(Meter::default, |encoder| *encoder.meter())
    }

    /// Encodes what is read, where the table has an exact codec for that. What a scan finds goes as
    /// it is.
    pub fn encode(&mut self, pulled: &mut Pulled) -> CodecPipeline {
        let Some(encoder) = self.encoder.as_mut().filter(|_| pulled.positions.is_empty()) else {
            return CodecPipeline::default();
        };
        // Exact codecs remember nothing, so it does not matter which rows these are.
        let encoded = encoder.encode(codec::BatchRows::List(&[]), pulled.values.bytes());
        encoded.map_or_else(CodecPipeline::default, |(bytes, formats)| {
            pulled.values = Payload::new(bytes);
            CodecPipeline(formats.0)
        })
    }
}

/// Whether this replica may answer, and which frontier workers were last told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    may_answer: bool,
    told: Clock,
    /// Whether the rows were exactly those of that frontier.
    exact: bool,
}

impl Serving {
    /// May answer, and has told of clock 0.
    pub fn new() -> Self {
        Self { may_answer: true, told: Clock(0), exact: true }
    }

    /// Whether it may acknowledge and answer, as the head.
    pub fn may_answer(self) -> bool {
        self.may_answer
    }

    /// It may, or may no longer.
    pub fn allow(&mut self, may_answer: bool) {
        self.may_answer = may_answer;
    }

    /// Workers were told of this frontier.
    pub fn told(&mut self, frontier: Clock, exact: bool) {
        (self.told, self.exact) = (frontier, exact);
    }

    /// Workers were told of this frontier, with rows as exact as before.
    pub fn told_frontier(&mut self, frontier: Clock) {
        self.told = frontier;
    }

    /// Whether workers have not been told this yet.
    pub fn is_news(self, frontier: Clock, exact: bool) -> bool {
        self.told != frontier || self.exact != exact
    }
}
