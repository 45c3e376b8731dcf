//! For how long each worker is in its clock, in all and without waiting for others.

use super::LivenessView;
use crate::members::Members;
use std::collections::BTreeMap;
use types::{Clock, NodeId, Span, Time};

/// A long clock is reported after this long, unless clocks usually take longer, and then each time
/// it has doubled.
const REPORTED_AFTER: Span = Span::from_secs(30);

/// A worker in its clock.
struct InClock {
    clock: Clock,
    /// When it began the clock, as the coordinator heard.
    since: Time,
    /// When it last waited for others in the clock.
    computes: Time,
    /// The time in the clock at which it was last reported.
    reported: Span,
}

/// The clocks of all workers.
#[derive(Default)]
pub(super) struct ClockTimes {
    workers: BTreeMap<NodeId, InClock>,
}

impl ClockTimes {
    /// A worker is in this clock, or in a later one.
    pub fn hear(&mut self, node: NodeId, clock: Clock, now: Time) {
        if !matches!(node, NodeId::Worker(_)) {
            return;
        }
        let begun = || InClock { clock, since: now, computes: now, reported: Span(0) };
        let known = self.workers.entry(node).or_insert_with(begun);
        if clock > known.clock {
            *known = begun();
        }
    }

    /// A worker waits for others now.
    pub fn waits(&mut self, node: NodeId, now: Time) {
        self.workers.get_mut(&node).into_iter().for_each(|known| known.computes = now);
    }

    pub fn forget(&mut self, node: NodeId) {
        self.workers.remove(&node);
    }

    /// The coordinator has not run until now.
    pub fn forgive(&mut self, now: Time) {
        self.workers.values_mut().for_each(|known| known.computes = now);
    }

    /// When a worker began its clock.
    pub fn since(&self, node: NodeId) -> Option<Time> {
        self.workers.get(&node).map(|known| known.since)
    }

    /// The workers that compute: their clocks, and since when they have not waited for others.
    pub fn computing(&self) -> impl Iterator<Item = (NodeId, Clock, Time)> + '_ {
        self.workers.iter().map(|(node, known)| (*node, known.clock, known.computes))
    }

    /// The clock of the furthest worker in the run.
    fn furthest(&self, members: &Members) -> Option<Clock> {
        self.workers.iter().filter(|(node, _)| members.is_there(**node)).map(|(_, known)| known.clock).max()
    }

    /// The workers that are in their first clock while another worker is ahead: that clock, and
    /// since when they have not waited for others.
    pub fn first_clocks<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (NodeId, Clock, Time)> + 'a {
        let furthest = self.furthest(members);
        let is_first = move |node: NodeId, clock: Clock| members.first_clock(node) == Some(clock);
        self.computing().filter(move |(node, clock, _)| is_first(*node, *clock) && furthest > Some(*clock))
    }

    /// The workers whose clocks are to be reported now: others are ahead of them, or wait for them
    /// at a barrier. Returns the clock and the time in it, without waiting for others.
    pub fn overdue(&mut self, view: &LivenessView<'_>) -> Vec<(NodeId, Clock, Span)> {
        let furthest = self.furthest(view.members);
        let first = REPORTED_AFTER.max(view.notice_after);
        let awaited: Vec<NodeId> = view.barriers.awaited(view.members).map(NodeId::from).collect();
        let mut overdue = Vec::new();
        for (node, known) in &mut self.workers {
            let lasted = view.now.since(known.computes);
            let is_waited_for = furthest > Some(known.clock) || awaited.contains(node);
            let due = first.max(Span(known.reported.0.saturating_mul(2)));
            if view.takes_part(*node) && is_waited_for && lasted >= due {
                known.reported = lasted;
                overdue.push((*node, known.clock, lasted));
            }
        }
        overdue
    }
}
