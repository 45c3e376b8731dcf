//! Reads that wait on the shard: for the frontier, or for the reader's own pushes.

use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, PARKED_READS, Span, Time, WorkerId};
use wire::Pull;

/// A read and who made it, when and at which clock.
#[derive(Clone, Debug)]
pub(crate) struct ParkedRead {
    /// The reader.
    pub worker: WorkerId,
    /// Its clock.
    pub clock: Clock,
    /// When it arrived.
    pub since: Time,
    /// What it asks for.
    pub pull: Pull,
}

/// The reads of one shard that cannot be answered yet. Letting some go costs no look at the others.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    by_frontier: BTreeMap<Clock, Vec<ParkedRead>>,
    by_own: BTreeMap<WorkerId, Vec<ParkedRead>>,
    /// Every parked read, with the time of its last notice: a repeated request waits once.
    known: BTreeMap<(WorkerId, u64), Time>,
    /// How many of them each worker has.
    counts: BTreeMap<WorkerId, usize>,
}

/// What becomes of a read that cannot be answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    /// It waits.
    Parked,
    /// It was waiting already.
    Known,
    /// Its worker has as many waiting as it may.
    Full,
}

impl Parked {
    /// Parks a read until the frontier reaches `needed` or, without that, until the reader's own
    /// pushes are there.
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

    /// Whether any waits for the frontier, and so for other workers.
    pub fn waits_for_others(&self) -> bool {
        !self.by_frontier.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// The reads that a frontier lets go.
    pub fn take_admitted(&mut self, frontier: Clock) -> Vec<ParkedRead> {
        let waiting = self.by_frontier.split_off(&frontier.next());
        let admitted: Vec<_> = std::mem::replace(&mut self.by_frontier, waiting).into_values().flatten().collect();
        self.forget(&admitted);
        admitted
    }

    /// The reads of `worker` that waited for its stream up to `finished`.
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

    /// A worker that is gone is answered no more.
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

    /// Reads that have waited `after` since they came or since the last notice: reader, request,
    /// and whether it is the reader's own pushes that are missing.
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
