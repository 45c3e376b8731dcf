//! Parked reads: reads that wait in the shard for the frontier or for the reader's own pushes.

use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, PARKED_READS, Span, Time, WorkerId};
use wire::Pull;

/// A read that cannot be answered yet.
#[derive(Clone, Debug)]
pub(crate) struct ParkedRead {
    /// The reader.
    pub worker: WorkerId,
    /// The reader's clock.
    pub clock: Clock,
    /// When it arrived.
    pub since: Time,
    /// The request.
    pub pull: Pull,
}

/// The parked reads of one shard. Taking some does not look at the others.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// Reads that wait for the frontier, by the clock that it must reach.
    by_frontier: BTreeMap<Clock, Vec<ParkedRead>>,
    /// Reads that wait for the reader's own pushes, by reader.
    by_own: BTreeMap<WorkerId, Vec<ParkedRead>>,
    /// Reader and request number of every parked read, with the time of its arrival or last notice.
    /// A repeated request is parked once.
    known: BTreeMap<(WorkerId, u64), Time>,
    /// How many parked reads each worker has.
    counts: BTreeMap<WorkerId, usize>,
}

/// What happened to a read that cannot be answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    /// It is parked now.
    Parked,
    /// It was parked already.
    Known,
    /// It is not parked: its worker has as many parked reads as it may.
    Full,
}

impl Parked {
    /// Parks a read until the frontier reaches `needed`. If that is `None`, until the reader's own
    /// pushes have arrived.
    pub fn park(&mut self, read: ParkedRead, needed: Option<Clock>) -> Parking {
        let name = (read.worker, read.pull.request);
        if self.known.contains_key(&name) {
            return Parking::Known;
        }
        let count = self.counts.entry(read.worker).or_default();
        if *count == PARKED_READS {
            return Parking::Full;
        }
        *count += 1;
        self.known.insert(name, read.since);
        match needed {
            Some(frontier) => self.by_frontier.entry(frontier).or_default().push(read),
            None => self.by_own.entry(read.worker).or_default().push(read),
        }
        Parking::Parked
    }

    /// Whether any read waits for the frontier, and so for other workers.
    pub fn waits_for_others(&self) -> bool {
        !self.by_frontier.is_empty()
    }

    /// How many reads are parked.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Takes the reads that the frontier admits.
    pub fn take_admitted(&mut self, frontier: Clock) -> Vec<ParkedRead> {
        let waiting = self.by_frontier.split_off(&frontier.next());
        let admitted: Vec<_> = std::mem::replace(&mut self.by_frontier, waiting).into_values().flatten().collect();
        self.forget(&admitted);
        admitted
    }

    /// Takes the reads of `worker` that need its stream only up to `finished`.
    pub fn take_own(&mut self, worker: WorkerId, finished: u64) -> Vec<ParkedRead> {
        let Some(reads) = self.by_own.get_mut(&worker) else { return Vec::new() };
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(reads).into_iter().partition(|read| read.pull.after <= finished);
        if waiting.is_empty() {
            self.by_own.remove(&worker);
        } else {
            *reads = waiting;
        }
        self.forget(&ready);
        ready
    }

    /// Drops the reads of a worker that is gone.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.by_own.remove(&worker);
        self.by_frontier.values_mut().for_each(|reads| reads.retain(|read| read.worker != worker));
        self.known.retain(|(reader, _), _| *reader != worker);
        self.counts.remove(&worker);
    }

    fn forget(&mut self, reads: &[ParkedRead]) {
        for read in reads {
            self.known.remove(&(read.worker, read.pull.request));
            if let Some(count) = self.counts.get_mut(&read.worker) {
                *count -= 1;
            }
        }
    }

    /// Reads that have waited `after` since they arrived or since the last notice: the reader, the
    /// request, and whether it waits for the reader's own pushes. Counts as their next notice.
    pub fn overdue(&mut self, now: Time, after: Span) -> Vec<(WorkerId, u64, bool)> {
        let overdue: BTreeSet<(WorkerId, u64)> =
            self.known.iter().filter(|(_, noticed)| now.since(**noticed) >= after).map(|(name, _)| *name).collect();
        for name in &overdue {
            self.known.insert(*name, now);
        }
        let own = |name: &(WorkerId, u64)| {
            self.by_own.get(&name.0).is_some_and(|reads| reads.iter().any(|read| read.pull.request == name.1))
        };
        overdue.iter().map(|name| (name.0, name.1, own(name))).collect()
    }
}
