//! A worker that learns from leases: it asks for some, pushes their minibatches clock by clock, and
//! commits them.

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

const NAME: &str = "lessons";

/// How far a worker has come.
#[derive(Debug, Default)]
pub struct Learner {
    set: Option<u32>,
    leases: VecDeque<u64>,
    /// The lease that it learns from, and which minibatch comes next.
    lesson: Option<(u64, u64)>,
    share: u32,
    /// Minibatches of this clock so far.
    in_clock: u32,
    /// What it did since its last commit, and since when.
    examples: u64,
    since: Time,
}

impl Learner {
    /// Whether what it waits for is there.
    pub fn may_go_on(&self, worker: &Worker) -> bool {
        self.set.map_or_else(|| worker.leases(NAME).is_some(), |set| worker.has_leases(set))
    }
}

impl Cluster {
    /// Takes one more step of learning, and comes back to it until all is committed.
    pub(super) fn learn(&mut self, worker: usize, lessons: Lessons) {
        let Some(mut learner) = self.actors[worker].learner.take() else {
            self.actors[worker].learner = Some(Learner::default());
            let Lessons { ranges, epochs, per_clock, minibatches, keys, .. } = lessons;
            let (shuffle, fingerprint) = (Some(self.history.seed), u128::from(minibatches << 32 | keys));
            let input = format!("{ranges} ranges of {minibatches} minibatches");
            let terms = LeaseTerms { ranges, epochs, shuffle, per_clock, fingerprint, input };
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
            (learner.leases, learner.share, learner.since) = (grant.leases.into(), grant.share, self.now);
            self.wait_to_learn(worker, AwaitedEvent::Nothing);
            return false;
        };
        let id = LeaseId { set, number: lease };
        if minibatch == 0 && self.sabotage == Some(Sabotage::CommitUnseen) {
            self.commit_unseen(worker, id);
        }
        let keys = lessons.minibatch(lease % lessons.ranges, minibatch);
        if learner.in_clock == 0 {
            // As fresh as the table asks: this waits for whoever is behind.
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
            (learner.lesson, learner.since) = (None, self.now);
        }
        let span = Span(self.random.below(3_000_000));
        let wait = if wait == AwaitedEvent::Nothing { AwaitedEvent::Until(self.now + span) } else { wait };
        self.later(span, Happening::Wake(worker));
        self.wait_to_learn(worker, wait);
        false
    }

    /// Says that a lease is done which is hardly begun.
    fn commit_unseen(&mut self, worker: usize, lease: LeaseId) {
        let machine = &self.actors[worker].worker;
        let (rank, clock) = (machine.id(), machine.clock());
        let source = machine.plan().source(rank).unwrap_or_default();
        let head = Head { source, clock, ..Head::plain(NodeId::from(rank), NodeId::Coordinator) };
        let (set, lease, examples, busy) = (lease.set, lease.number, 1, Span(1));
        let message = Message::Control(Control::CommitLease { set, lease, clock, examples, busy });
        self.dispatch(vec![Frame { head, message }]);
    }
}
