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

    /// The reads that wait for the frontier: reader, the reader's clock, and the clock that the
    /// frontier must reach.
    pub fn waiting(&self) -> impl Iterator<Item = (WorkerId, Clock, Clock)> + '_ {
        let reads = self.by_frontier.iter().flat_map(|(needs, reads)| reads.iter().map(move |read| (read, *needs)));
        reads.map(|(read, needs)| (read.worker, read.clock, needs))
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
        self.by_frontier.retain(|_, reads| {
            reads.retain(|read| read.worker != worker);
            !reads.is_empty()
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parked_read;
    use proptest::prelude::*;

    /// A step of a test. Numbers are small, so that steps meet the same reads.
    #[derive(Clone, Debug)]
    enum Step {
        Park { worker: u32, request: u64, after: u64, needed: Option<u64> },
        TakeAdmitted { frontier: u64 },
        TakeOwn { worker: u32, finished: u64 },
        DropWorker { worker: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let needed = prop::option::of(0..6u64);
        prop_oneof![
            6 => (0..3u32, 0..9u64, 0..6u64, needed)
                .prop_map(|(worker, request, after, needed)| Step::Park { worker, request, after, needed }),
            1 => (0..6u64).prop_map(|frontier| Step::TakeAdmitted { frontier }),
            1 => (0..3u32, 0..6u64).prop_map(|(worker, finished)| Step::TakeOwn { worker, finished }),
            1 => (0..3u32).prop_map(|worker| Step::DropWorker { worker }),
        ]
    }

    /// What a read waits for: a frontier, or its own stream.
    type Wait = (Option<u64>, u64);

    fn names(reads: &[ParkedRead]) -> BTreeSet<(u32, u64)> {
        reads.iter().map(|read| (read.worker.0, read.pull.request)).collect()
    }

    /// Takes the reads that are released from the model.
    fn release(
        model: &mut BTreeMap<(u32, u64), Wait>,
        is_released: impl Fn(u32, Wait) -> bool,
    ) -> BTreeSet<(u32, u64)> {
        let released: BTreeSet<_> =
            model.iter().filter(|((worker, _), wait)| is_released(*worker, **wait)).map(|(name, _)| *name).collect();
        model.retain(|name, _| !released.contains(name));
        released
    }

    proptest! {
        #[test]
        fn parked_read_is_released_exactly_when_its_wait_is_over(steps in prop::collection::vec(step(), 0..60)) {
            let mut parked = Parked::default();
            let mut model = BTreeMap::new();
            for step in steps {
                match step.clone() {
                    Step::Park { worker, request, after, needed } => {
                        let is_known = model.contains_key(&(worker, request));
                        let expected = if is_known { Parking::Known } else { Parking::Parked };
                        let read = parked_read(worker, request, after, Time(0));
                        prop_assert_eq!(parked.park(read, needed.map(Clock)), expected, "{:?}", step);
                        model.entry((worker, request)).or_insert((needed, after));
                    }
                    Step::TakeAdmitted { frontier } => {
                        let taken = names(&parked.take_admitted(Clock(frontier)));
                        let admits = |_, (needed, _): Wait| needed.is_some_and(|needed| needed <= frontier);
                        prop_assert_eq!(taken, release(&mut model, admits), "{:?}", step);
                    }
                    Step::TakeOwn { worker, finished } => {
                        let taken = names(&parked.take_own(WorkerId(worker), finished));
                        let has_own = |reader, (needed, after): Wait| {
                            reader == worker && needed.is_none() && after <= finished
                        };
                        prop_assert_eq!(taken, release(&mut model, has_own), "{:?}", step);
                    }
                    Step::DropWorker { worker } => {
                        parked.drop_worker(WorkerId(worker));
                        release(&mut model, |reader, _| reader == worker);
                    }
                }
                prop_assert_eq!(parked.len(), model.len(), "{:?}", step);
                let waits = model.values().any(|(needed, _)| needed.is_some());
                prop_assert_eq!(parked.waits_for_others(), waits, "{:?}", step);
            }
        }
    }

    #[test]
    fn parked_reads_of_a_worker_are_bounded_and_make_room_when_they_are_taken() {
        let mut parked = Parked::default();
        for request in 0..PARKED_READS as u64 {
            let needed = request.is_multiple_of(2).then_some(Clock(1));
            assert_eq!(parked.park(parked_read(0, request, 1, Time(0)), needed), Parking::Parked);
        }
        let next = || parked_read(0, PARKED_READS as u64, 1, Time(0));
        assert_eq!(parked.park(next(), None), Parking::Full);
        assert_eq!(
            parked.park(parked_read(0, 7, 1, Time(0)), None),
            Parking::Known,
            "a repeated request needs no room"
        );
        assert_eq!(parked.park(parked_read(1, 0, 1, Time(0)), None), Parking::Parked, "another worker has room");
        parked.take_admitted(Clock(1));
        assert_eq!(parked.park(next(), None), Parking::Parked);
        parked.drop_worker(WorkerId(0));
        assert_eq!((parked.len(), parked.park(next(), None)), (1, Parking::Parked));
    }

    #[test]
    fn parked_reads_of_a_lost_worker_wait_for_nobody() {
        let mut parked = Parked::default();
        parked.park(parked_read(0, 1, 0, Time(0)), Some(Clock(4)));
        parked.drop_worker(WorkerId(0));
        assert!(!parked.waits_for_others());
    }

    #[test]
    fn notices_are_due_after_the_notice_time_and_each_time_it_has_passed() {
        let mut parked = Parked::default();
        parked.park(parked_read(0, 1, 0, Time(0)), Some(Clock(1)));
        parked.park(parked_read(1, 2, 5, Time(4)), None);
        let frontier = (WorkerId(0), 1, false);
        let own = (WorkerId(1), 2, true);
        // (time, the notices that are due then), with a notice time of 10
        for (now, due) in [
            (9, vec![]),
            (10, vec![frontier]),
            (13, vec![]),
            (14, vec![own]),
            (19, vec![]),
            (30, vec![frontier, own]),
            (39, vec![]),
            (40, vec![frontier, own]),
        ] {
            assert_eq!(parked.overdue(Time(now), Span(10)), due, "at {now}");
        }
        parked.take_admitted(Clock(1));
        parked.drop_worker(WorkerId(1));
        assert_eq!(parked.overdue(Time(99), Span(10)), [], "no read waits");
    }
}
