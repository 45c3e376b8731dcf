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

    /// The reads that wait for the frontier. See [`Parked::waiting`].
    pub fn waiting(&self) -> impl Iterator<Item = (WorkerId, Clock, Clock)> + '_ {
        self.parked.waiting()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parked_read;
    use codec::{Formats, PayloadDecoder};
    use types::{Codecs, Combine, NumberType, Reduce, ShardId, TableId};

    /// The reads of a table of rows of 4096 numbers, with these codecs for reads.
    fn reads(down: &[&str]) -> Reads {
        let spec = TableSpec::dense("t", 4, 4096).combine(Combine::Clock(Reduce::Sum)).cached(4);
        let spec = spec.codecs(Codecs::default().down(down.iter().copied()));
        Reads::new(&spec, &TableCodecs::of(&spec).expect("they go together"), 7, Stopwatch::default())
    }

    fn pulled(positions: &[u64]) -> Pulled {
        Pulled {
            positions: Payload::new(positions.to_vec()),
            values: Payload::new(vec![1f32; 4096]),
            ..Pulled::empty(TableId(0), ShardId(0), 1)
        }
    }

    #[test]
    fn reads_encode_answers_by_exact_codecs_only_and_scans_never() {
        // (codecs for reads, positions of the answer, whether it is encoded)
        for (down, positions, encodes) in
            [(&["zstd"][..], &[][..], true), (&["zstd"], &[2], false), (&["1bit"], &[], false), (&[], &[], false)]
        {
            let mut reads = reads(down);
            let mut answer = pulled(positions);
            let codecs = reads.encode(&mut answer);
            assert_eq!(codecs != CodecPipeline::default(), encodes, "{down:?} {positions:?}");
            assert_eq!(reads.meter().bytes_in > 0, encodes, "{down:?} {positions:?}");
            assert_eq!(answer.values.len() < 4 * 4096, encodes, "{down:?} {positions:?}");
            let mut values = vec![0f32; 4096];
            let out = bytemuck::cast_slice_mut(&mut values);
            let bytes = answer.values.bytes();
            PayloadDecoder::default().decode(Formats(codecs.0), bytes, NumberType::F32, 4096, out).expect("readable");
            assert_eq!(values, [1.0; 4096], "{down:?} {positions:?}");
        }
    }

    #[test]
    fn reads_count_each_parked_read_once_and_the_most_at_once() {
        let mut reads = reads(&[]);
        let park = |reads: &mut Reads, request| reads.park(parked_read(0, request, 0, Time(0)), Some(Clock(request)));
        assert_eq!(
            [1, 2, 1].map(|request| park(&mut reads, request)),
            [Parking::Parked, Parking::Parked, Parking::Known]
        );
        assert_eq!(reads.take_admitted(Clock(2)).len(), 2);
        assert_eq!(park(&mut reads, 3), Parking::Parked);
        reads.count_answer();
        assert_eq!(reads.counts(), ReadCounts { answered: 1, parked: 3, most_parked: 2 });
    }

    #[test]
    fn reads_of_a_worker_or_of_all_are_dropped_unanswered() {
        let mut reads = reads(&[]);
        (0..3).for_each(|worker| {
            reads.park(parked_read(worker, 1, 0, Time(0)), Some(Clock(4)));
            reads.park(parked_read(worker, 2, 5, Time(0)), None);
        });
        reads.drop_worker(WorkerId(1));
        let admitted: Vec<WorkerId> = reads.take_admitted(Clock(4)).iter().map(|read| read.worker).collect();
        assert_eq!(admitted, [WorkerId(0), WorkerId(2)]);
        assert_eq!((0..3).map(|worker| reads.take_own(WorkerId(worker), 5).len()).collect::<Vec<_>>(), [1, 0, 1]);
        reads.park(parked_read(0, 3, 0, Time(0)), Some(Clock(9)));
        reads.drop_all();
        assert!(!reads.wait_for_others() && reads.take_admitted(Clock(9)).is_empty());
        assert_eq!(reads.overdue(Time(99), Span(1)), []);
    }

    #[test]
    fn serving_has_news_until_workers_were_told() {
        let mut serving = Serving::new();
        assert!(serving.may_answer() && !serving.is_news(Clock(0), true), "workers know clock 0");
        // (frontier and exactness that are told, frontier and exactness now, whether that is news)
        for (told, now, news) in [
            ((3, true), (3, true), false),
            ((3, true), (4, true), true),
            ((3, true), (3, false), true),
            ((3, false), (3, false), false),
            ((3, false), (3, true), true),
        ] {
            serving.told(Clock(told.0), told.1);
            assert_eq!(serving.is_news(Clock(now.0), now.1), news, "told {told:?}, now {now:?}");
        }
        serving.told_frontier(Clock(5));
        assert!(serving.is_news(Clock(5), true), "the rows were not exact before, and are now");
        assert!(!serving.is_news(Clock(5), false));
    }

    #[test]
    fn serving_replica_knows_what_it_told_after_a_time_without_permission() {
        let mut serving = Serving::new();
        serving.told(Clock(3), true);
        serving.allow(false);
        assert!(!serving.may_answer() && serving.is_news(Clock(4), true));
        serving.allow(true);
        assert!(serving.may_answer());
        assert_eq!((serving.is_news(Clock(3), true), serving.is_news(Clock(4), true)), (false, true));
    }
}
