//! Nodes that send heartbeats and do not do their part (failure detection by evidence of progress):
//! each duty of a node has a time limit. The evidence that the node does it is what other nodes and
//! the node itself report.
//!
//! | a node | evidence | after the limit |
//! | --- | --- | --- |
//! | a server that does not adopt a plan | it has not answered `Adopt` | it is expelled |
//! | a node that does not hear the coordinator | its heartbeats name no newer answer | it is expelled |
//! | two nodes that do not reach each other | one of them reports the other as silent | one of them is expelled, see `silent_links.rs` |
//! | a worker at a barrier, and a reader that needs a clock of it | reports of both and of the server | the run ends, see `waits.rs` |
//! | a worker that never ends its first clock | other workers are ahead | it is expelled, see `clocks.rs` |
//! | a worker that is long in one clock | it does not wait for others | reported; expelled if there is a limit |
//!
//! Silence of a whole node is not judged here. Invariants:
//! - Time in which a node was silent for the coordinator, or in which the coordinator did not run,
//!   counts against no node: frames may be unread on either side.
//! - Nothing here is saved. A successor counts every limit anew.

mod clocks;
mod silent_links;
#[cfg(test)]
mod tests;
mod waits;

use crate::barriers::Barriers;
use crate::leaving::can_spare;
use crate::members::Members;
use crate::placement::Placement;
use crate::plans::Plans;
use crate::settings::Settings;
use crate::tables::Tables;
use clocks::ClockTimes;
use silent_links::SilentLinks;
use std::collections::BTreeMap;
use types::{Clock, NodeId, PlanNumber, Span, Time};
use waits::BarrierWaits;
use wire::{Head, NodeReport, Timeout, Trouble};

/// `status` shows a trouble that has lasted for this long, or for a quarter of its limit.
const SHOWN_AFTER: Span = Span::from_secs(3);
/// A server is asked this often to adopt a plan before it is given up: requests may be lost.
const ASKS: u64 = 16;
/// How long a worker may take for its first clock while others are ahead, unless the shell sets
/// another limit.
const FIRST_CLOCK: Span = Span::from_secs(300);

/// How long a node may fail in each duty. `None` switches a rule off.
///
/// ```
/// use coordinator::LivenessLimits;
/// use types::Span;
///
/// let timeout = Span::from_secs(10);
/// let limits = LivenessLimits { clock: Some(Span::from_secs(60)), ..LivenessLimits::of(timeout) };
/// assert_eq!((limits.deadlock, limits.deaf), (Some(timeout), Some(Span::from_secs(20))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessLimits {
    /// A server adopts a plan within this time.
    pub adoption: Option<Span>,
    /// A node hears an answer of the coordinator within this time.
    pub deaf: Option<Span>,
    /// Two nodes reach each other within this time.
    pub link: Option<Span>,
    /// A worker at a barrier and a read that needs a clock of it wait for each other for this time.
    pub deadlock: Option<Span>,
    /// A worker ends its first clock within this time, if others are ahead.
    pub first_clock: Option<Span>,
    /// A worker is in one clock, without waiting for others, for this time.
    pub clock: Option<Span>,
}

impl LivenessLimits {
    /// The limits that follow from a failure timeout.
    #[must_use]
    pub fn of(failure_timeout: Span) -> Self {
        let twice = Span(failure_timeout.0.saturating_mul(2));
        Self {
            adoption: Some(twice),
            deaf: Some(twice),
            link: Some(twice),
            deadlock: Some(failure_timeout),
            first_clock: Some(FIRST_CLOCK),
            clock: None,
        }
    }

    /// No limits.
    #[must_use]
    pub fn none() -> Self {
        Self { adoption: None, deaf: None, link: None, deadlock: None, first_clock: None, clock: None }
    }

    /// The limits with their reasons, for `slackwater status`.
    pub(crate) fn list(&self) -> Vec<Timeout> {
        let all = [
            (
                "a server that does not adopt a plan is given up",
                self.adoption,
                "two failure timeouts, and at least 16 requests to adopt it",
            ),
            ("a node that does not hear the coordinator is given up", self.deaf, "two failure timeouts"),
            ("one of two nodes that do not reach each other is given up", self.link, "two failure timeouts"),
            ("a barrier and a read that wait for each other end the run", self.deadlock, "the failure timeout"),
            (
                "a worker that has never ended a clock is given up while others are ahead",
                self.first_clock,
                "the time to join (--join-limit), at least 300 s",
            ),
            ("a worker that is in one clock without waiting for others is given up", self.clock, "--clock-timeout"),
        ];
        let given = all.into_iter().filter_map(|(what, limit, why)| Some((what, limit?, why)));
        given.map(|(what, limit, why)| Timeout::new(what, limit, why, None)).collect()
    }
}

/// What the rules read of the other parts.
pub(crate) struct LivenessView<'a> {
    pub now: Time,
    pub settings: &'a Settings,
    pub members: &'a Members,
    pub barriers: &'a Barriers,
    pub plans: &'a Plans,
    pub placement: &'a Placement,
    pub tables: &'a Tables,
    /// When others that wait for a worker are told of it.
    pub notice_after: Span,
    /// When a server that has not adopted a plan is asked again.
    pub ask_again: Span,
}

impl LivenessView<'_> {
    fn takes_part(&self, node: NodeId) -> bool {
        self.members.is_there(node) && self.members.first_clock(node).is_some() && !self.members.is_condemned(node)
    }
}

/// A node that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub node: NodeId,
    pub reason: String,
    /// Whether the run ends. Otherwise it goes on without the node where it can.
    pub ends_run: bool,
}

/// What a node does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    NotAdopting { plan: PlanNumber },
    Deaf,
    Unreached { peer: NodeId },
    Deadlock { words: String },
    FirstClock { clock: Clock },
    LongClock { clock: Clock },
}

/// A node that does not do its part now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    node: NodeId,
    fault: Fault,
    lasted: Span,
    limit: Option<Span>,
}

impl Case {
    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.lasted > limit)
    }

    fn is_half_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.lasted.0 > limit.0 / 2)
    }

    /// The peer that the node does not reach, if that is the fault.
    fn unreached(&self) -> Option<NodeId> {
        match self.fault {
            Fault::Unreached { peer } => Some(peer),
            Fault::NotAdopting { .. }
            | Fault::Deaf
            | Fault::Deadlock { .. }
            | Fault::FirstClock { .. }
            | Fault::LongClock { .. } => None,
        }
    }

    /// The node is given up for this fault. None where another node may be the one to go.
    fn verdict(&self) -> Option<Verdict> {
        let ends_run = matches!(self.fault, Fault::Deadlock { .. });
        self.unreached().is_none().then(|| Verdict { node: self.node, reason: self.reason(), ends_run })
    }

    fn is_shown(&self) -> bool {
        let quarter = self.limit.map_or(SHOWN_AFTER, |limit| Span(limit.0 / 4));
        self.lasted >= quarter.min(SHOWN_AFTER)
    }

    /// The fault in words that follow the name of the node.
    fn words(&self) -> String {
        match &self.fault {
            Fault::NotAdopting { plan } => format!("sends heartbeats and does not adopt plan {}", plan.0),
            Fault::Deaf => "sends heartbeats and does not hear the coordinator".to_owned(),
            Fault::Unreached { peer } => format!("waits for {peer} and does not hear it"),
            Fault::Deadlock { words } => words.clone(),
            Fault::FirstClock { clock } => {
                format!("has not ended its first clock, {}, while other workers are ahead", clock.0)
            }
            Fault::LongClock { clock } => format!("is in clock {} and does not wait for others", clock.0),
        }
    }

    /// Why the node is given up: what failed, the likely cause, and what to do.
    fn reason(&self) -> String {
        let seconds = self.lasted.as_secs_f64();
        let what = match &self.fault {
            Fault::NotAdopting { plan } => {
                format!("it sent heartbeats but did not adopt plan {} for {seconds:.1} s", plan.0)
            }
            Fault::Deaf => format!("it sent heartbeats but did not hear the coordinator for {seconds:.1} s"),
            Fault::Unreached { .. } => format!("it was unreachable for {seconds:.1} s"),
            Fault::Deadlock { words } => return words.clone(),
            Fault::FirstClock { clock } => {
                format!("it did not end its first clock, {}, within {seconds:.0} s", clock.0)
            }
            Fault::LongClock { clock } => {
                format!("it was in clock {} for {seconds:.1} s without waiting for others", clock.0)
            }
        };
        let next = match &self.fault {
            Fault::NotAdopting { .. } => "its process hangs: look at its log",
            Fault::Deaf | Fault::Unreached { .. } => {
                "the link is down in one direction or both: check the network and firewalls"
            }
            Fault::Deadlock { .. } => "",
            Fault::FirstClock { .. } => "its program hangs, or prepares for longer than --join-limit allows",
            Fault::LongClock { .. } => "its program hangs, or --clock-timeout is too short",
        };
        format!("{what}; {next}")
    }
}

/// What the coordinator knows of a node's contact with it.
struct Contact {
    /// When the node was last heard.
    heard: Time,
    /// Since when it was heard without a long gap.
    steady: Time,
    /// The number of the last answer that it has heard, and when it first named that.
    answer: u64,
    hears: Time,
}

/// Which nodes do not do their part, and since when.
pub(crate) struct Liveness {
    limits: LivenessLimits,
    /// A node that is not heard for this long has stalled.
    stall: Span,
    contacts: BTreeMap<NodeId, Contact>,
    links: SilentLinks,
    clocks: ClockTimes,
    waits: BarrierWaits,
}

impl Liveness {
    pub fn new(failure_timeout: Span) -> Self {
        Self {
            limits: LivenessLimits::of(failure_timeout),
            stall: Span(failure_timeout.0 / 2),
            contacts: BTreeMap::new(),
            links: SilentLinks::default(),
            clocks: ClockTimes::default(),
            waits: BarrierWaits::default(),
        }
    }

    pub fn limits(&self) -> &LivenessLimits {
        &self.limits
    }

    pub fn set_limits(&mut self, limits: LivenessLimits) {
        self.limits = limits;
    }

    /// A node begins to take part now: its duties begin.
    pub fn begin(&mut self, node: NodeId, now: Time) {
        self.contacts.insert(node, Contact { heard: now, steady: now, answer: 0, hears: now });
        self.clocks.forget(node);
    }

    /// Forgets a node that has left.
    pub fn forget(&mut self, node: NodeId) {
        self.contacts.remove(&node);
        self.links.forget(node);
        self.clocks.forget(node);
        self.waits.forget(node);
    }

    /// A frame of a member has arrived.
    pub fn hear(&mut self, head: &Head, now: Time) {
        let contact =
            self.contacts.entry(head.from).or_insert(Contact { heard: now, steady: now, answer: 0, hears: now });
        if now.since(contact.heard) > self.stall {
            contact.steady = now;
        }
        contact.heard = now;
        self.clocks.hear(head.from, head.clock, now);
    }

    /// A node names the last answer of the coordinator that it has heard.
    pub fn answered(&mut self, node: NodeId, answer: u64, now: Time) {
        if let Some(contact) = self.contacts.get_mut(&node).filter(|contact| answer > contact.answer) {
            contact.answer = answer;
            contact.hears = now;
        }
    }

    /// A member has sent its report.
    pub fn report(&mut self, node: NodeId, report: &NodeReport, now: Time) {
        self.links.report(node, &report.silent_peers, now);
        self.waits.report(node, report, now);
        if report.blocked.is_some() {
            self.clocks.waits(node, now);
        }
    }

    /// The coordinator has not run until now: no node is to blame for that time.
    pub fn forgive(&mut self, now: Time) {
        self.contacts.values_mut().for_each(|contact| contact.steady = now);
        self.clocks.forgive(now);
        self.waits.forgive(now);
    }

    /// For how long a worker is in its clock.
    pub fn in_clock(&self, node: NodeId, now: Time) -> Option<Span> {
        self.clocks.since(node).map(|since| now.since(since))
    }

    /// Since when a node is heard without a long gap. None if it is not heard now.
    fn steady(&self, node: NodeId, now: Time) -> Option<Time> {
        let contact = self.contacts.get(&node)?;
        (now.since(contact.heard) <= self.stall).then_some(contact.steady)
    }

    /// All troubles now.
    fn cases(&self, view: &LivenessView<'_>) -> Vec<Case> {
        let mut cases = Vec::new();
        let now = view.now;
        let mut add = |node: NodeId, fault: Fault, since: Time, limit: Option<Span>| {
            let Some(steady) = self.steady(node, now).filter(|_| view.takes_part(node)) else { return };
            cases.push(Case { node, fault, lasted: now.since(since.max(steady)), limit });
        };
        for (node, contact) in &self.contacts {
            add(*node, Fault::Deaf, contact.hears, self.limits.deaf);
        }
        if let Some((asked, servers)) = view.plans.adoption() {
            let plan = view.plans.plan().number;
            let asks = Span(view.ask_again.0.saturating_mul(ASKS));
            let limit = self.limits.adoption.map(|limit| limit.max(asks));
            servers.into_iter().for_each(|node| add(node, Fault::NotAdopting { plan }, asked, limit));
        }
        for (worker, clock, since) in self.clocks.first_clocks(view.members) {
            add(worker, Fault::FirstClock { clock }, since, self.limits.first_clock);
        }
        for (worker, clock, since) in self.clocks.computing() {
            if self.limits.clock.is_some() {
                add(worker, Fault::LongClock { clock }, since, self.limits.clock);
            }
        }
        for (node, words, since) in self.waits.standing(view) {
            add(node, Fault::Deadlock { words }, since, self.limits.deadlock);
        }
        for (one, other, since) in self.links.silent() {
            if let Some(steady) = self.steady(other, now).filter(|_| view.takes_part(other)) {
                add(one, Fault::Unreached { peer: other }, since.max(steady), self.limits.link);
            }
        }
        // Without a limit a rule is switched off, except for what is only reported.
        cases.retain(|case| case.limit.is_some());
        cases
    }

    /// The nodes to give up now.
    pub fn judge(&mut self, view: &LivenessView<'_>) -> Vec<Verdict> {
        self.waits.look(view);
        let cases = self.cases(view);
        let mut verdicts: Vec<Verdict> = cases.iter().filter(|case| case.is_over()).filter_map(Case::verdict).collect();
        // Other faults explain silent links of the same node.
        let is_explained = |node: NodeId| verdicts.iter().any(|verdict| verdict.node == node);
        let links = |is_in: fn(&Case) -> bool| -> Vec<(NodeId, NodeId)> {
            let links = cases.iter().filter(|case| is_in(case)).filter_map(|case| Some((case.node, case.unreached()?)));
            links.filter(|(one, other)| !is_explained(*one) && !is_explained(*other)).collect()
        };
        let can_spare = |node| can_spare(node, view.settings, view.members, view.placement);
        let chosen =
            silent_links::choose(&links(Case::is_over), &links(Case::is_half_over), view.plans.plan(), &can_spare);
        if let Some((node, peers)) = chosen {
            let of_node =
                cases.iter().filter(|case| case.unreached().is_some_and(|peer| [case.node, peer].contains(&node)));
            let seconds = of_node.map(|case| case.lasted).max().unwrap_or_default().as_secs_f64();
            let names: Vec<String> = peers.iter().map(ToString::to_string).collect();
            let reason = format!(
                "it and {} have not reached each other for {seconds:.1} s, though the coordinator hears all of \
                 them; the link is down in one direction or both: check the network and firewalls",
                names.join(", ")
            );
            verdicts.push(Verdict { node, reason, ends_run: false });
        }
        verdicts
    }

    /// Workers to report in the log: the worker, its clock, and for how long it is in the clock.
    /// Each is reported again when the time has doubled.
    pub fn long_clocks(&mut self, view: &LivenessView<'_>) -> Vec<(NodeId, Clock, Span)> {
        self.clocks.overdue(view)
    }

    /// Nodes that do not do their part, for `slackwater status`.
    pub fn troubles(&self, view: &LivenessView<'_>) -> Vec<Trouble> {
        let shown = self.cases(view).into_iter().filter(Case::is_shown);
        shown
            .map(|case| Trouble { node: case.node, what: case.words(), lasted: case.lasted, limit: case.limit })
            .collect()
    }
}
