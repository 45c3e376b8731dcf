//! The reads of a shard: parked reads, the encoder of answers, and whether this replica may answer.

pub(crate) mod parked;

use crate::reads::parked::{Parked, ParkedRead, Parking};
use codec::{Meter, PayloadEncoder, Stopwatch, TableCodecs};
use types::{Clock, Span, TableSpec, Time, WorkerId};
use wire::{CodecPipeline, Payload, Pulled};

/// The reads of one shard.
pub(crate) struct Reads {
    parked: Parked,
    /// Encodes answers, if the table has an exact (lossless) codec for reads.
    encoder: Option<PayloadEncoder>,
    counts: ReadCounts,
}

/// Counts of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Reads that were answered.
    pub answered: u64,
    /// Reads that were parked.
    pub parked: u64,
    /// The most reads that were parked at once.
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

    /// Parks a read until the frontier reaches `needed`. If that is `None`, until the reader's own
    /// pushes have arrived.
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

    /// Counts of reads so far.
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }

    /// Takes the parked reads that the frontier admits.
    pub fn take_admitted(&mut self, frontier: Clock) -> Vec<ParkedRead> {
        self.parked.take_admitted(frontier)
    }

    /// Takes the parked reads of `worker` that need its stream only up to `finished`.
    pub fn take_own(&mut self, worker: WorkerId, finished: u64) -> Vec<ParkedRead> {
        self.parked.take_own(worker, finished)
    }

    /// Parked reads that have waited `after` since they arrived or since the last notice. See
    /// [`Parked::overdue`].
    pub fn overdue(&mut self, now: Time, after: Span) -> Vec<(WorkerId, u64, bool)> {
        self.parked.overdue(now, after)
    }

    /// Whether any read waits for the frontier, and so for other workers.
    pub fn wait_for_others(&self) -> bool {
        self.parked.waits_for_others()
    }

    /// Drops the parked reads of a worker that is gone.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.parked.drop_worker(worker);
    }

    /// Drops all parked reads: the workers ask another replica.
    pub fn drop_all(&mut self) {
        self.parked = Parked::default();
    }

    /// What encoding answers has cost and gained.
    pub fn meter(&self) -> Meter {
        self.encoder.as_ref().map_or_else(Meter::default, |encoder| *encoder.meter())
    }

    /// Encodes the values of an answer, if the table has an exact codec for reads. The answer to a
    /// scan is not encoded.
    pub fn encode(&mut self, pulled: &mut Pulled) -> CodecPipeline {
        let Some(encoder) = self.encoder.as_mut().filter(|_| pulled.positions.is_empty()) else {
            return CodecPipeline::default();
        };
        // Exact codecs keep no residuals, so they need not know which rows these are.
        let encoded = encoder.encode(codec::BatchRows::List(&[]), pulled.values.bytes());
        encoded.map_or_else(CodecPipeline::default, |(bytes, formats)| {
            pulled.values = Payload::new(bytes);
            CodecPipeline(formats.0)
        })
    }
}

/// Whether this replica may answer, and which frontier workers were last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    may_answer: bool,
    /// The frontier that workers were last told.
    told: Clock,
    /// Whether the rows were exactly those of that frontier.
    exact: bool,
}

impl Serving {
    /// May answer; workers know clock 0.
    pub fn new() -> Self {
        Self { may_answer: true, told: Clock(0), exact: true }
    }

    /// Whether it may acknowledge and answer, as the head.
    pub fn may_answer(self) -> bool {
        self.may_answer
    }

    /// Sets whether it may acknowledge and answer.
    pub fn allow(&mut self, may_answer: bool) {
        self.may_answer = may_answer;
    }

    /// Workers were told this frontier, and whether the rows are exactly its rows.
    pub fn told(&mut self, frontier: Clock, exact: bool) {
        self.told = frontier;
        self.exact = exact;
    }

    /// Workers were told this frontier; the rows are as exact as before.
    pub fn told_frontier(&mut self, frontier: Clock) {
        self.told = frontier;
    }

    /// Whether workers have not been told this yet, so that a message is due.
    pub fn is_news(self, frontier: Clock, exact: bool) -> bool {
        self.told != frontier || self.exact != exact
    }
}
