//! The loss of the coordinator. It saves its memory before it sends any decision, and its successor
//! starts from the saved memory alone.

use super::moments::SOON;
use super::{Cluster, Happening};
use crate::sabotage::Sabotage;
use coordinator::{Coordinator, LivenessLimits, Membership, RunSize};
use std::collections::VecDeque;
use types::{NodeId, Source, Span, Time};
use wire::{Frame, Outbox};

/// Under [`Sabotage::TellBeforeSaving`]: how many decisions the coordinator has sent and not saved.
const LATE: usize = 6;

/// How far a coordinator that crashes comes with its last decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It crashes before it saves the decision.
    Forgotten,
    /// It crashes after it saves the decision and before it sends any message.
    Kept,
    /// It crashes after it has sent half of the messages.
    Told,
}

/// Whether a coordinator leads, and its saved memory.
pub(super) struct Leadership {
    size: RunSize,
    membership: Membership,
    failure_timeout: Span,
    /// The memory that was saved last.
    saved: Vec<u8>,
    /// Memories that a sabotaged coordinator saves too late.
    late: VecDeque<Vec<u8>>,
    term: u64,
    /// Whether no coordinator leads.
    pub away: bool,
    /// How the coordinator crashes at its next decision, and for how long no coordinator leads
    /// then.
    doom: Option<(Last, Span)>,
    /// How long nodes may fail to do their part.
    pub limits: LivenessLimits,
    /// Whether a coordinator may crash in this run. Otherwise no memory is saved.
    mortal: bool,
}

impl Leadership {
    pub fn new(size: RunSize, membership: Membership, failure_timeout: Span) -> Self {
        Self {
            size,
            membership,
            failure_timeout,
            saved: Vec::new(),
            late: VecDeque::new(),
            term: 0,
            away: false,
            doom: None,
            limits: LivenessLimits::of(failure_timeout),
            mortal: false,
        }
    }

    /// Whether the run is elastic.
    pub fn is_elastic(&self) -> bool {
        self.membership != Membership::Static
    }
}

impl Cluster {
    /// Fault: crashes the coordinator when this time has passed, or at its next decision after
    /// that. Its successor leads `back_after` later. If no coordinator leads at that time, or the
    /// one that leads is about to crash, its successor crashes instead.
    pub fn crash_coordinator(&mut self, after: Span, back_after: Span) {
        self.may_be_unled();
        self.planned.unled += 1;
        self.later(after, Happening::CrashCoordinator(back_after));
    }

    /// Saves the coordinator's memory from now on, because it may crash.
    pub(super) fn may_be_unled(&mut self) {
        if !self.leadership.mortal {
            self.leadership.mortal = true;
            self.leadership.saved = self.coordinator.memory();
        }
    }

    pub(super) fn crash_the_coordinator(&mut self, back_after: Span) {
        if self.leadership.away || self.leadership.doom.is_some() {
            return self.later(Span(SOON), Happening::CrashCoordinator(back_after));
        }
        match self.random.below(6) {
            0 => self.leadership.doom = Some((Last::Forgotten, back_after)),
            1 => self.leadership.doom = Some((Last::Kept, back_after)),
            2 => self.leadership.doom = Some((Last::Told, back_after)),
            _ => self.coordinator_is_gone(back_after),
        }
    }

    fn coordinator_is_gone(&mut self, back_after: Span) {
        self.leadership.away = true;
        self.network.counts.unled += 1;
        self.later(back_after, Happening::Succeed);
    }

    /// Lets a successor lead, from the saved memory.
    pub(super) fn succeed(&mut self) {
        self.forget_coordinators_clock();
        let now = self.clocks.show(NodeId::Coordinator, self.now);
        let Leadership { size, membership, failure_timeout, saved, .. } = &self.leadership;
        let recalled = Coordinator::recall(now, saved, *size, *membership, *failure_timeout);
        self.coordinator = recalled.expect("a coordinator's own memory").limited(self.leadership.limits);
        self.leadership.late.clear();
        self.leadership.term += 1;
        self.leadership.away = false;
    }

    /// Whether a coordinator leads that knows that every node has left.
    pub(super) fn is_finished(&self) -> bool {
        !self.leadership.away && self.coordinator.is_finished()
    }

    /// Gives the coordinator an input, saves its memory if that changed, and sends its frames. Here
    /// the coordinator crashes, if it is about to.
    pub(super) fn drive_coordinator(&mut self, take: impl FnOnce(&mut Coordinator, Time, &mut Outbox)) {
        if self.leadership.away {
            return;
        }
        let mut out = Outbox::new();
        let now = self.clocks.show(NodeId::Coordinator, self.now);
        take(&mut self.coordinator, now, &mut out);
        let events = self.coordinator.take_events();
        self.end_unreachable(&events);
        self.events.extend(events);
        let plan = self.coordinator.plan();
        // After every worker has left, servers may leave too.
        if plan.live_workers().count() > 0 {
            let replicas = plan.chains.iter().map(|chain| chain.replicas.len()).min();
            self.fewest_replicas = self.fewest_replicas.min(replicas.unwrap_or(usize::MAX));
        }
        let mut frames: Vec<Frame> = out.drain().collect();
        frames.iter_mut().for_each(|frame| frame.head.source = Source(self.leadership.term));
        if !self.leadership.mortal {
            return self.dispatch(frames);
        }
        let memory = self.coordinator.memory();
        let touched = self.coordinator.take_touched() || self.sabotage.is_some();
        let is_saved = memory == *self.leadership.late.back().unwrap_or(&self.leadership.saved);
        assert!(touched || is_saved, "the memory changed and `take_touched` said no: a shell would not save it");
        if is_saved {
            return self.dispatch(frames);
        }
        let doom = self.leadership.doom.take();
        let last = doom.map(|(last, _)| last);
        match self.sabotage {
            Some(Sabotage::TellBeforeSaving) => {
                self.leadership.late.push_back(memory);
                if self.leadership.late.len() > LATE {
                    self.leadership.saved = self.leadership.late.pop_front().unwrap_or_default();
                }
            }
            Some(Sabotage::KeepNothingNew) => {}
            _ if last == Some(Last::Forgotten) => {}
            _ => self.leadership.saved = memory,
        }
        match last {
            None => {}
            Some(_) if self.sabotage == Some(Sabotage::TellBeforeSaving) => {}
            Some(Last::Told) => frames.truncate(frames.len().div_ceil(2)),
            Some(Last::Forgotten | Last::Kept) => frames.clear(),
        }
        self.dispatch(frames);
        doom.into_iter().for_each(|(_, back_after)| self.coordinator_is_gone(back_after));
    }
}
