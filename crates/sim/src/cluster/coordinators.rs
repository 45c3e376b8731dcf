//! The coordinator, which may be lost: what it keeps before it tells is all that its successor goes
//! on from.

use super::moments::SOON;
use super::{Cluster, Happening};
use crate::sabotage::Sabotage;
use coordinator::{Coordinator, Membership, RunSize};
use std::collections::VecDeque;
use types::{NodeId, Source, Span, Time};
use wire::{Frame, Outbox};

/// How many decisions one that keeps them late has told and not kept.
const LATE: usize = 6;

/// How far a coordinator comes with what it decides last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It is gone before it has kept it.
    Forgotten,
    /// It is gone before it has told anybody.
    Kept,
    /// It is gone when it has told some.
    Told,
}

/// Who leads, and what of it outlives it.
pub(super) struct Leadership {
    size: RunSize,
    membership: Membership,
    failure_timeout: Span,
    /// The memory that was kept last.
    kept: Vec<u8>,
    /// Memories that are kept too late, by one that is broken.
    late: VecDeque<Vec<u8>>,
    term: u64,
    pub away: bool,
    /// How it goes, when it next decides something, and for how long nobody leads then.
    doom: Option<(Last, Span)>,
    /// Whether it will ever be lost: otherwise nothing need be kept.
    mortal: bool,
}

impl Leadership {
    pub fn new(size: RunSize, membership: Membership, failure_timeout: Span) -> Self {
        let (kept, late, term, away, doom, mortal) = (Vec::new(), VecDeque::new(), 0, false, None, false);
        Self { size, membership, failure_timeout, kept, late, term, away, doom, mortal }
    }

    /// Whether nodes come and go.
    pub fn is_elastic(&self) -> bool {
        self.membership != Membership::Static
    }
}

impl Cluster {
    /// The coordinator is gone at that time, or when it next decides something; its successor leads
    /// so long after that. Where nobody leads then, or the one who does is as good as gone, that
    /// successor is lost soon after it leads.
    pub fn crash_coordinator(&mut self, after: Span, back_after: Span) {
        self.may_be_unled();
        self.planned.unled += 1;
        self.later(after, Happening::CrashCoordinator(back_after));
    }

    /// From now on what the coordinator decides is kept.
    pub(super) fn may_be_unled(&mut self) {
        if !self.leadership.mortal {
            self.leadership.mortal = true;
            self.leadership.kept = self.coordinator.memory();
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

    /// Another coordinator leads, and knows what was kept.
    pub(super) fn succeed(&mut self) {
        self.forget_coordinators_clock();
        let now = self.clocks.show(NodeId::Coordinator, self.now);
        let Leadership { size, membership, failure_timeout, kept, .. } = &self.leadership;
        let recalled = Coordinator::recall(now, kept, *size, *membership, *failure_timeout);
        self.coordinator = recalled.expect("a coordinator's own memory");
        self.leadership.late.clear();
        self.leadership.term += 1;
        self.leadership.away = false;
    }

    /// Whether there is a coordinator and it knows that everybody has left.
    pub(super) fn is_finished(&self) -> bool {
        !self.leadership.away && self.coordinator.is_finished()
    }

    /// Has the coordinator take something, keep what came of it, and tell.
    pub(super) fn drive_coordinator(&mut self, take: impl FnOnce(&mut Coordinator, Time, &mut Outbox)) {
        if self.leadership.away {
            return;
        }
        let mut out = Outbox::new();
        let now = self.clocks.show(NodeId::Coordinator, self.now);
        take(&mut self.coordinator, now, &mut out);
        let plan = self.coordinator.plan();
        // When every worker has left, so may servers.
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
        let is_kept = memory == *self.leadership.late.back().unwrap_or(&self.leadership.kept);
        assert!(touched || is_kept, "a memory that is another, and says nothing of that, would not be kept");
        if is_kept {
            return self.dispatch(frames);
        }
        let doom = self.leadership.doom.take();
        let last = doom.map(|(last, _)| last);
        match self.sabotage {
            Some(Sabotage::TellBeforeSaving) => {
                self.leadership.late.push_back(memory);
                if self.leadership.late.len() > LATE {
                    self.leadership.kept = self.leadership.late.pop_front().unwrap_or_default();
                }
            }
            Some(Sabotage::KeepNothingNew) => {}
            _ if last == Some(Last::Forgotten) => {}
            _ => self.leadership.kept = memory,
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
