//! A program that learns from data leases: it asks for leases, pushes their minibatches clock by
//! clock, and commits them.

use super::actor::AwaitedEvent;
use super::{Cluster, Happening};
use crate::history::HistoryEvent;
use crate::program::{Lessons, Write};
use crate::sabotage::Sabotage;
use lease::{LeaseId, WorkReport};
use std::collections::VecDeque;
use types::{NodeId, Span, Time};
use wire::{Control, Frame, Head, LeaseTerms, Message};
use worker::{Worker, WorkerInput};

/// The name of the data set.
const NAME: &str = "lessons";

/// How far a worker has learnt.
#[derive(Debug, Default)]
pub struct Learner {
    /// The number of the data set, once it is open.
    set: Option<u32>,
    /// The leases that it has yet to learn from.
    leases: VecDeque<u64>,
    /// The lease that it learns from, and the number of its next minibatch.
    lesson: Option<(u64, u64)>,
    /// How many minibatches it should learn from in a clock.
    share: u32,
    /// How many minibatches it has pushed in this clock.
    in_clock: u32,
    /// How many examples it has learnt from since its last commit.
    examples: u64,
    /// When it last committed, or was granted leases.
    since: Time,
}

impl Learner {
    /// Whether the data set is open or, once it is, leases are granted.
    pub fn may_go_on(&self, worker: &Worker) -> bool {
        self.set.map_or_else(|| worker.leases(NAME).is_some(), |set| worker.has_leases(set))
    }
}

impl Cluster {
    /// Takes one more step of learning. The program repeats its step until the data set is over.
    pub(super) fn learn(&mut self, worker: usize, lessons: Lessons) {
        let Some(mut learner) = self.actors[worker].learner.take() else {
            self.actors[worker].learner = Some(Learner::default());
            let Lessons { ranges, epochs, per_clock, minibatches, keys, .. } = lessons;
            let terms = LeaseTerms {
                ranges,
                epochs,
                shuffle: Some(self.history.seed),
                per_clock,
                fingerprint: u128::from(minibatches << 32 | keys),
                input: format!("{ranges} ranges of {minibatches} minibatches"),
            };
            self.drive_worker(worker, WorkerInput::OpenLeases(NAME.to_owned(), terms));
            return self.wait_to_learn(worker, AwaitedEvent::Leases);
        };
        let over = self.learn_on(worker, lessons, &mut learner);
        if !over {
            self.actors[worker].learner = Some(learner);
        }
    }

    fn wait_to_learn(&mut self, worker: usize, wait: AwaitedEvent) {
        self.actors[worker].wait = wait;
        self.actors[worker].next -= 1;
    }

    /// The next step of a learner. Returns whether the data set is over.
    fn learn_on(&mut self, worker: usize, lessons: Lessons, learner: &mut Learner) -> bool {
        let Some(set) = learner.set else {
            learner.set = self.actors[worker].worker.leases(NAME).and_then(|set| set.clone().ok());
            self.wait_to_learn(worker, AwaitedEvent::Nothing);
            return false;
        };
        if learner.share > 0 && learner.in_clock >= learner.share {
            if !self.actors[worker].worker.is_flushed() {
                self.wait_to_learn(worker, AwaitedEvent::Flushed);
                return false;
            }
            let clock = self.actors[worker].worker.clock();
            self.note(worker as u32, HistoryEvent::ClockEnded { clock });
            self.drive_worker(worker, WorkerInput::EndClock(self.now));
            learner.in_clock = 0;
        }
        let lesson = learner.lesson.or_else(|| learner.leases.pop_front().map(|lease| (lease, 0)));
        let Some((lease, minibatch)) = lesson else {
            let Some(grant) = self.actors[worker].worker.take_leases(set) else {
                self.drive_worker(worker, WorkerInput::AskLeases(set, lessons.at_once));
                self.wait_to_learn(worker, AwaitedEvent::Leases);
                return false;
            };
            self.note_taken(worker, WorkerInput::TakeLeases(set));
            if grant.is_over() {
                return true;
            }
            learner.leases = grant.leases.into();
            learner.share = grant.share;
            learner.since = self.now;
            self.wait_to_learn(worker, AwaitedEvent::Nothing);
            return false;
        };
        let id = LeaseId { set, number: lease };
        if minibatch == 0 && self.sabotage == Some(Sabotage::CommitUnseen) {
            self.commit_unseen(worker, id);
        }
        let keys = lessons.minibatch(lease % lessons.ranges, minibatch);
        if learner.in_clock == 0 {
            // This read waits for slower workers, as the table's slack demands.
            self.pull(worker, lessons.table, &keys, &[], true, false);
        }
        let wait = self.actors[worker].wait;
        self.push(worker, lessons.table, &keys, &Write::Ones, &[], Some(id));
        learner.in_clock += 1;
        learner.examples += keys.len() as u64;
        learner.lesson = Some((lease, minibatch + 1));
        if minibatch + 1 == lessons.minibatches {
            let busy = Span(self.now.since(learner.since).0.max(1));
            let work = WorkReport { examples: std::mem::take(&mut learner.examples), busy };
            self.drive_worker(worker, WorkerInput::CommitLease(self.now, id, work));
            learner.lesson = None;
            learner.since = self.now;
        }
        let span = Span(self.random.below(3_000_000));
        let wait = if wait == AwaitedEvent::Nothing { AwaitedEvent::Until(self.now + span) } else { wait };
        self.later(span, Happening::Wake(worker));
        self.wait_to_learn(worker, wait);
        false
    }

    /// Sabotage: commits a lease that the worker has only begun.
    fn commit_unseen(&mut self, worker: usize, lease: LeaseId) {
        let machine = &self.actors[worker].worker;
        let rank = machine.id();
        let clock = machine.clock();
        let source = machine.plan().source(rank).unwrap_or_default();
        let head = Head { source, clock, ..Head::plain(NodeId::from(rank), NodeId::Coordinator) };
        let commit = Control::CommitLease { set: lease.set, lease: lease.number, clock, examples: 1, busy: Span(1) };
        self.dispatch(vec![Frame { head, message: Message::Control(commit) }]);
    }
}
