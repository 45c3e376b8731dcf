//! The once-only gate of a shard: which workers may push to it, and which item of each worker's
//! stream is next.
//!
//! A shard knows a worker by its source, which no other incarnation ever has. The gate admits
//! exactly the next sequence number of a stream. It decides how to answer every other one.

use crate::intake::stream::{Stream, Verdict};
use std::collections::BTreeMap;
use types::{Plan, Source, WorkerId};
use wire::{Field, Reader, Refusal, Refused, WireError};

/// What the gate decides about an arriving item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// It is the next item of this worker's stream: handle it, then finish it.
    Open(WorkerId),
    /// It was finished before: acknowledge it again.
    Finished,
    /// Items before it are missing.
    Gap {
        /// The worker whose stream has the gap.
        worker: WorkerId,
        /// The first number that is missing, if the worker must be asked to resend from it. Set
        /// once for each gap.
        next: Option<u64>,
    },
    /// Its sender is not a worker of the plan.
    Expelled,
}

/// One rank: the incarnation that has it, and its stream.
#[derive(Clone, Debug, Default)]
struct Member {
    source: Option<Source>,
    stream: Stream,
}

/// The workers of the plan, by rank, each with its stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    /// By rank.
    members: Vec<Member>,
    /// Ranks of the workers that may push, by source.
    ranks: BTreeMap<Source, WorkerId>,
    /// Workers to acknowledge to; a worker may be listed more than once.
    unacknowledged: Vec<WorkerId>,
}

impl Streams {
    /// The workers of a plan, none of which has sent anything.
    pub fn new(plan: &Plan) -> Self {
        Self::of(plan.workers.iter().map(|source| Member { source: *source, stream: Stream::default() }).collect())
    }

    fn of(members: Vec<Member>) -> Self {
        let sources = (0..).map(WorkerId).zip(&members);
        let ranks = sources.filter_map(|(worker, member)| member.source.map(|source| (source, worker))).collect();
        Self { members, ranks, unacknowledged: Vec::new() }
    }

    /// The rank of the incarnation with this source, if the plan has it.
    pub fn worker(&self, source: Source) -> Option<WorkerId> {
        self.ranks.get(&source).copied()
    }

    /// The source of the worker at this rank, if there is one.
    pub fn source(&self, worker: WorkerId) -> Option<Source> {
        self.members.get(worker.0 as usize).and_then(|member| member.source)
    }

    /// For each rank, whether it has a worker.
    pub fn present(&self) -> impl Iterator<Item = bool> + '_ {
        self.members.iter().map(|member| member.source.is_some())
    }

    /// How many ranks there are, with or without a worker.
    pub fn ranks(&self) -> u32 {
        self.members.len() as u32
    }

    /// Admits a new incarnation, with a new stream.
    pub fn admit(&mut self, worker: WorkerId, source: Source) {
        let rank = worker.0 as usize;
        if self.members.len() <= rank {
            self.members.resize_with(rank + 1, Member::default);
        }
        self.members[rank] = Member { source: Some(source), stream: Stream::default() };
        self.ranks.insert(source, worker);
    }

    /// Expels the worker's incarnation: the gate refuses everything that it still sends.
    pub fn expel(&mut self, worker: WorkerId) {
        self.ranks.retain(|_, known| *known != worker);
        self.members.get_mut(worker.0 as usize).and_then(|member| member.source.take());
    }

    /// Judges an item by its sequence number. `settled`: the worker knows the outcome of items up
    /// to this number.
    pub fn judge(&mut self, source: Source, number: u64, settled: u64) -> Entrance {
        let Some(&worker) = self.ranks.get(&source) else { return Entrance::Expelled };
        let stream = &mut self.members[worker.0 as usize].stream;
        stream.settle(settled);
        match stream.judge(number) {
            Verdict::Fresh => Entrance::Open(worker),
            Verdict::Finished => {
                self.unacknowledged.push(worker);
                Entrance::Finished
            }
            Verdict::Gap => Entrance::Gap { worker, next: stream.ask().then(|| stream.finished().saturating_add(1)) },
        }
    }

    /// The number that the worker must resend from, because its item names keys that the shard does
    /// not know.
    pub fn ask_again(&mut self, worker: WorkerId) -> u64 {
        let stream = &mut self.members[worker.0 as usize].stream;
        stream.ask();
        stream.finished().saturating_add(1)
    }

    /// The worker's next item is finished: applied, or refused for good. Returns its number.
    pub fn finish(&mut self, worker: WorkerId, refusal: Option<Refusal>) -> u64 {
        self.unacknowledged.push(worker);
        let stream = &mut self.members[worker.0 as usize].stream;
        stream.finish(refusal);
        stream.finished()
    }

    /// The last finished number of a worker's stream.
    pub fn finished(&self, worker: WorkerId) -> u64 {
        self.members.get(worker.0 as usize).map_or(0, |member| member.stream.finished())
    }

    /// The last finished number of every stream.
    pub fn all_finished(&self) -> impl Iterator<Item = (WorkerId, u64)> + '_ {
        (0..).map(WorkerId).zip(&self.members).map(|(worker, member)| (worker, member.stream.finished()))
    }

    /// Marks every worker for another acknowledgement, because more may be durable or because this
    /// replica has become head.
    pub fn remind_all(&mut self) {
        self.members.iter_mut().for_each(|member| member.stream.remind());
        self.unacknowledged.extend(self.ranks.values());
    }

    /// Forgets which acknowledgements are due: another replica sends them.
    pub fn acknowledge_nothing(&mut self) {
        self.unacknowledged.clear();
    }

    /// The acknowledgements that are due: the worker, the last acknowledged number, and the
    /// refusals up to it. `durable` gives the number up to which a worker's stream may be
    /// acknowledged.
    pub fn take_acknowledgements(&mut self, durable: impl Fn(WorkerId) -> u64) -> Vec<(WorkerId, u64, Vec<Refused>)> {
        let mut due = Vec::new();
        for worker in self.unacknowledged.drain(..) {
            let Some(member) = self.members.get_mut(worker.0 as usize) else { continue };
            let each = member.stream.take_acknowledgements(durable(worker)).into_iter();
            due.extend(each.map(|(through, refused)| (worker, through, refused)));
        }
        due
    }

    /// Starts every stream over; the workers stay.
    pub fn start_over(&mut self) {
        self.members.iter_mut().for_each(|member| member.stream = Stream::default());
    }
}

impl Field for Streams {
    fn put(&self, out: &mut Vec<u8>) {
        self.members.iter().map(|member| member.source).collect::<Vec<_>>().put(out);
        self.members.iter().map(|member| member.stream.clone()).collect::<Vec<_>>().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let sources: Vec<Option<Source>> = Field::get(input)?;
        let streams: Vec<Stream> = Field::get(input)?;
        if sources.len() != streams.len() {
            return Err(WireError::Malformed("shard metadata whose workers and streams differ in number"));
        }
        let each = sources.into_iter().zip(streams);
        Ok(Self::of(each.map(|(source, stream)| Member { source, stream }).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> Streams {
        Streams::new(&Plan::first(1, vec![Some(Source(5)), None, Some(Source(6))].into_iter().flatten().collect()))
    }

    #[test]
    fn gate_judges_each_item_by_its_source_and_number() {
        let mut streams = streams();
        // (source, number, what the gate decides); an item that enters is finished at once
        let cases = [
            (5, 1, Entrance::Open(WorkerId(0))),
            (5, 1, Entrance::Finished),
            (5, 3, Entrance::Gap { worker: WorkerId(0), next: Some(2) }),
            (5, 4, Entrance::Gap { worker: WorkerId(0), next: None }),
            (5, 2, Entrance::Open(WorkerId(0))),
            (6, 1, Entrance::Open(WorkerId(1))),
            (7, 1, Entrance::Expelled),
        ];
        for (source, number, expected) in cases {
            let entrance = streams.judge(Source(source), number, 0);
            assert_eq!(entrance, expected, "source {source}, number {number}");
            if let Entrance::Open(worker) = entrance {
                assert_eq!(streams.finish(worker, None), number);
            }
        }
    }

    #[test]
    fn gate_refuses_a_replaced_incarnation_and_its_successor_starts_at_one() {
        let mut streams = streams();
        streams.judge(Source(5), 1, 0);
        streams.finish(WorkerId(0), None);
        streams.expel(WorkerId(0));
        assert_eq!(streams.judge(Source(5), 2, 0), Entrance::Expelled);
        streams.admit(WorkerId(0), Source(9));
        assert_eq!(streams.judge(Source(9), 1, 0), Entrance::Open(WorkerId(0)));
        streams.admit(WorkerId(3), Source(10));
        assert_eq!(
            (streams.ranks(), streams.source(WorkerId(2)), streams.source(WorkerId(3))),
            (4, None, Some(Source(10)))
        );
    }

    #[test]
    fn acknowledgements_stop_at_the_durable_number() {
        let mut streams = streams();
        for number in 1..=3 {
            streams.judge(Source(5), number, 0);
            streams.finish(WorkerId(0), None);
        }
        assert_eq!(streams.take_acknowledgements(|_| 2), [(WorkerId(0), 2, Vec::new())]);
        assert_eq!(streams.take_acknowledgements(|_| 3), [], "no acknowledgement is due");
        streams.remind_all();
        let due = streams.take_acknowledgements(|_| u64::MAX);
        assert_eq!(due, [(WorkerId(0), 3, Vec::new()), (WorkerId(1), 0, Vec::new())]);
    }

    #[test]
    fn streams_round_trip_and_lists_of_unequal_length_are_malformed() {
        let mut streams = streams();
        streams.judge(Source(6), 1, 0);
        streams.finish(WorkerId(1), Some(Refusal::NotOrdered));
        let mut bytes = Vec::new();
        streams.put(&mut bytes);
        let mut again = Streams::get(&mut Reader(&bytes)).expect("its own bytes");
        assert_eq!((again.finished(WorkerId(1)), again.judge(Source(6), 2, 0)), (1, Entrance::Open(WorkerId(1))));
        let mut uneven = Vec::new();
        (vec![Some(Source(1))]).put(&mut uneven);
        Vec::<Stream>::new().put(&mut uneven);
        assert!(Streams::get(&mut Reader(&uneven)).is_err());
    }
}
