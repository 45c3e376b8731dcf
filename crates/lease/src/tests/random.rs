//! Random runs against a model that stores the state of every lease.

use super::*;
use proptest::prelude::*;

/// One step of a random run: kind, source, amount.
type Step = (u8, u64, u64);

/// The expected state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Held(u64),
    /// Finished in a clock of this run, or `None` if before this run.
    FinishedLeases(Option<u64>),
}

struct Model {
    order: LeaseOrder,
    /// The state of each lease, by place.
    leases: Vec<State>,
    /// Clocks before this one are settled.
    settled: u64,
}

impl Model {
    fn done_before(&self, clock: u64) -> Vec<u64> {
        let done = |state: &State| matches!(state, State::FinishedLeases(at) if *at < Some(clock));
        let places = (0..).zip(&self.leases).filter(|(_, state)| done(state));
        let mut leases: Vec<u64> = places.map(|(place, _)| self.order.lease(OrderIndex(place))).collect();
        leases.sort_unstable();
        leases
    }

    fn leases_of(&self, done: &FinishedLeases) -> Vec<u64> {
        (0..self.leases.len() as u64).filter(|lease| done.contains(*lease)).collect()
    }

    /// Checks that the allocator grants the first open leases, and only if there are any.
    fn grant(&mut self, allocator: &mut LeaseAllocator, source: u64, wanted: u64) {
        let open = |state: &State| *state == State::Open;
        match allocator.grant(Time(0), Source(source), wanted) {
            GrantReply::Leases { leases, share } => {
                assert!(!leases.is_empty() && leases.len() as u64 <= wanted.max(1) && share >= 1);
                for lease in leases {
                    let first = self.leases.iter().position(open).expect("something is open");
                    assert_eq!(self.order.place(lease), OrderIndex(first as u64));
                    self.leases[first] = State::Held(source);
                }
            }
            GrantReply::Wait { holder, .. } => {
                assert!(!self.leases.iter().any(open), "something is open");
                assert!(self.leases.contains(&State::Held(holder.0)), "{holder:?} holds nothing");
            }
            GrantReply::Over => assert!(self.leases.iter().all(|state| matches!(state, State::FinishedLeases(_)))),
            GrantReply::Full => panic!("no worker holds so many"),
        }
    }

    fn commit(&mut self, allocator: &mut LeaseAllocator, source: u64, clock: u64, leases: &[u64]) {
        let receipt = allocator.commit(Source(source), leases, Clock(clock), WORK);
        let mut expected = CommitReceipt::default();
        for &lease in leases {
            let state = self.leases.get_mut(self.order.place(lease).0 as usize).filter(|_| lease < allocator.leases);
            match state {
                None => expected.refused.push(CommitRefusal::Unknown { lease }),
                Some(State::Open) => expected.refused.push(CommitRefusal::NotGranted { lease }),
                Some(State::Held(holder)) if *holder != source => {
                    expected.refused.push(CommitRefusal::HeldByAnother { lease, holder: Source(*holder) });
                }
                Some(state @ State::Held(_)) => {
                    *state = State::FinishedLeases(Some(clock));
                    expected.fresh += 1;
                }
                Some(State::FinishedLeases(_)) => expected.repeated += 1,
            }
        }
        assert_eq!(receipt, expected, "{leases:?} by {source}");
    }

    fn take_back(&mut self, from: impl Fn(State) -> bool) -> u64 {
        let back = self.leases.iter_mut().filter(|state| from(**state));
        back.map(|state| *state = State::Open).count() as u64
    }

    fn check(&self, allocator: &LeaseAllocator) {
        let all = u64::MAX;
        assert_eq!(self.leases_of(&allocator.committed()), self.done_before(all));
        let undone = |state: &State| !matches!(state, State::FinishedLeases(_));
        let through = self.leases.iter().position(undone).unwrap_or(self.leases.len());
        assert_eq!(allocator.through(), OrderIndex(through as u64));
        assert_eq!(allocator.is_over(), through == self.leases.len());
        let held = |source| self.leases.iter().filter(|state| **state == State::Held(source)).count() as u64;
        assert!(allocator.holders().all(|(source, count)| count == held(source.0)));
        for source in 0..4 {
            let told = allocator.held_by(Source(source)).into_iter().map(|lease| self.order.place(lease).0);
            assert!(
                told.eq((0..).zip(&self.leases).filter(|(_, s)| **s == State::Held(source)).map(|(place, _)| place))
            );
        }
        for clock in 0..8 {
            let done = allocator.committed_before(Clock(clock));
            let through = allocator.through_before(Clock(clock));
            assert_eq!((done.is_none(), through.is_none()), (clock < self.settled, clock < self.settled));
            if let (Some(done), Some(through)) = (done, through) {
                assert_eq!(self.leases_of(&done), self.done_before(clock));
                assert_eq!(done.through(), through);
            }
        }
    }

    fn step(&mut self, allocator: &mut LeaseAllocator, (kind, source, amount): Step) {
        // Clocks of 0 to 7.
        let clock = amount % 8;
        match kind {
            0..=3 => self.grant(allocator, source, amount),
            4..=6 => {
                // Some of the leases that it holds, in any order.
                let mine = (0..).zip(&self.leases).filter(|(_, state)| **state == State::Held(source));
                let mut leases: Vec<u64> = mine.map(|(place, _)| self.order.lease(OrderIndex(place))).collect();
                leases.sort_unstable_by_key(|lease| lease.wrapping_mul(amount | 1) % 17);
                leases.truncate(amount as usize);
                self.commit(allocator, source, clock, &leases);
            }
            7 => self.commit(allocator, source, clock, &[amount, amount + 1, amount * amount]),
            8 => assert_eq!(allocator.expel(Source(source)), self.take_back(|state| state == State::Held(source))),
            9 => {
                let bytes = saved(allocator);
                let again = restored(&bytes).expect("valid bytes");
                assert_eq!((&again, &saved(&again)), (&*allocator, &bytes));
                *allocator = again;
            }
            10 => {
                allocator.settle(Clock(clock));
                self.settled = self.settled.max(clock);
            }
            // All workers are lost, and a run resumes from a checkpoint of an earlier clock.
            _ => {
                let clock = clock.max(self.settled);
                let done = allocator.committed_before(Clock(clock)).expect("the clock is not settled");
                *allocator = LeaseAllocator::resume(allocator.terms(), &done).expect("the same input");
                self.take_back(|state| !matches!(state, State::FinishedLeases(at) if at < Some(clock)));
                // Finished leases count as finished before any clock of the new run.
                self.leases
                    .iter_mut()
                    .filter(|state| **state != State::Open)
                    .for_each(|state| *state = State::FinishedLeases(None));
                self.settled = 0;
            }
        }
    }
}

fn random_run(terms: GrantTerms, steps: Vec<Step>) {
    let mut allocator = LeaseAllocator::new(terms).unwrap();
    let leases = terms.leases().unwrap();
    let mut model = Model { order: terms.order(), leases: vec![State::Open; leases as usize], settled: 0 };
    for step in steps {
        model.step(&mut allocator, step);
        model.check(&allocator);
    }
    // All workers but one are lost; the last one ends the run.
    for source in 1..4 {
        model.step(&mut allocator, (8, source, 0));
    }
    while !allocator.is_over() {
        model.step(&mut allocator, (0, 0, 5));
        model.step(&mut allocator, (4, 0, 15));
    }
    model.check(&allocator);
    assert_eq!(allocator.grant(Time(0), Source(0), 1), GrantReply::Over);
}

proptest! {
    #[test]
    fn random_runs_commit_every_lease_once(
        ranges in 0u64..12,
        epochs in 0u32..4,
        shuffle in prop::option::of(any::<u64>()),
        steps in prop::collection::vec((0u8..12, 0u64..4, 0u64..20), 0..80),
    ) {
        random_run(terms(ranges, epochs, shuffle), steps);
    }

    #[test]
    fn damaged_allocator_bytes_are_refused_or_give_a_working_allocator(
        steps in prop::collection::vec((0u8..11, 0u64..4, 0u64..20), 0..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        length in any::<prop::sample::Index>(),
    ) {
        let terms = terms(10, 3, Some(2));
        let mut allocator = LeaseAllocator::new(terms).unwrap();
        let mut model = Model { order: terms.order(), leases: vec![State::Open; 30], settled: 0 };
        steps.into_iter().for_each(|step| model.step(&mut allocator, step));
        let mut bytes = saved(&allocator);
        prop_assert!(restored(&bytes[..length.index(bytes.len())]).is_err(), "cut off");
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(mut other) = restored(&bytes) {
            for source in 0..4 {
                other.grant(Time(1), Source(source), 3);
                other.commit(Source(source), &[1, 5, 29], Clock(9), WORK);
                other.expel(Source(source));
            }
            let again = saved(&other);
            prop_assert_eq!(saved(&restored(&again).expect("valid bytes")), again);
            prop_assert!(other.committed().count() <= 30 || other.terms() != terms);
        }
    }
}
