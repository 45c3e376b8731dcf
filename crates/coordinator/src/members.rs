//! Membership: which node has which place, under which source, and which nodes take part.
//!
//! Invariants:
//! - Each time a place is given, its source is new and is never given again.
//! - A token names one process: a join that is repeated gets the same place and source.
//! - In an elastic run that has begun, no name is given twice.

mod reports;
#[cfg(test)]
pub(crate) mod tests;

use crate::saved::{self, MOST_COUNT, MOST_NODES, get_map, put_map};
use crate::settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, RunSize, Source, Span, Time, WorkerId};
use wire::{Control, Field, Frame, Head, Member, Message, NodeReport, NodeRole, Reader, WireError};

/// What the coordinator knows of one node.
struct MemberRecord {
    address: String,
    /// The incarnation that has this place.
    source: Source,
    /// Whether the node has spoken under the name it was given.
    ready: bool,
    heard: Time,
    /// The first clock it takes part in, once it does.
    since: Option<Clock>,
    /// Where its clock was when it was last heard.
    clock: Clock,
    /// Since when it asks to leave. Not saved: it asks again.
    would_leave: Option<Time>,
    /// Whether it leaves as soon as others hold what it holds.
    leaving: bool,
    /// What it has said of itself.
    report: NodeReport,
    gone: bool,
    /// Why the run goes on without it, if it does.
    expelled: Option<String>,
}

impl MemberRecord {
    /// For a node that has just joined.
    fn new(address: String, source: Source, heard: Time) -> Self {
        Self {
            address,
            source,
            ready: false,
            heard,
            since: None,
            clock: Clock(0),
            would_leave: None,
            leaving: false,
            report: NodeReport::default(),
            gone: false,
            expelled: None,
        }
    }

    /// Whether the node that has this place is in the run, and has been told to begin.
    fn takes_part(&self) -> bool {
        !self.gone && self.since.is_some()
    }
}

/// A process that asks for a place.
pub(crate) struct JoinRequest {
    pub role: NodeRole,
    /// The number it asks for among those of its role.
    pub place: Option<u32>,
    pub address: String,
    pub token: u64,
}

/// The place that a process has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenPlace {
    pub node: NodeId,
    pub source: Source,
    /// Whether it was given just now, and not for an earlier join with the same token.
    pub is_new: bool,
}

/// Whether a frame's sender is heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// It has the place that it names, or none at all.
    Accepted,
    /// Its place was given to another process.
    Replaced,
    /// The run goes on without it, for this reason.
    Expelled(String),
}

/// How far a server that asks to leave has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It asks, since this time.
    Asked(Time),
    /// It was let: it leaves when others hold what it holds.
    Leaving,
    /// It has left.
    Gone,
}

/// Who has which place.
#[derive(Default)]
pub(crate) struct Members {
    records: BTreeMap<NodeId, MemberRecord>,
    tokens: BTreeMap<u64, NodeId>,
    /// Places given so far: the last source.
    given: u64,
    /// Whether every place was taken once, so that the run has begun.
    begun: bool,
    /// How many workers take part: the length of [`live_workers`](Self::live_workers), which
    /// barriers need with each arrival.
    present: usize,
}

/// Places.
impl Members {
    /// Gives a process its place, or says why there is none for it.
    pub fn join(&mut self, settings: &Settings, request: JoinRequest, now: Time) -> Result<GivenPlace, String> {
        if let Some(node) = self.tokens.get(&request.token)
            && let Some(member) = self.records.get_mut(node)
        {
            // It missed the answer: its next heartbeat counts as its first.
            member.ready = false;
            return Ok(GivenPlace { node: *node, source: member.source, is_new: false });
        }
        let node = self.free_place(settings, request.role, request.place)?;
        self.tokens.insert(request.token, node);
        self.given += 1;
        let source = Source(self.given);
        self.records.insert(node, MemberRecord::new(request.address, source, now));
        Ok(GivenPlace { node, source, is_new: true })
    }

    /// The place asked for, or the first that is free; otherwise why there is none.
    fn free_place(&self, settings: &Settings, role: NodeRole, place: Option<u32>) -> Result<NodeId, String> {
        let (name, most): (fn(u32) -> NodeId, u32) = match role {
            NodeRole::Server => (NodeId::Server, settings.size().servers),
            NodeRole::Worker => (NodeId::Worker, settings.size().workers),
        };
        let is_free = |node: &NodeId| !self.records.contains_key(node);
        let comes_later = self.begun && settings.is_elastic();
        match place {
            Some(place) if place >= MOST_NODES => Err(format!("there are no more than {MOST_NODES} of a kind, from 0")),
            Some(place) if comes_later && is_free(&name(place)) => Ok(name(place)),
            // A process that is started again by the same command asks for the name that it had,
            // and gets another: the process before it may be lost without notice so far.
            _ if comes_later => {
                let unused = (most..MOST_NODES).map(name).find(is_free);
                unused.ok_or_else(|| "the run has no more names to give; start a new one".to_owned())
            }
            None => {
                let full = || format!("the run has its {most} already; start it with room for more");
                (0..most).map(name).find(is_free).ok_or_else(full)
            }
            Some(place) if place >= most => Err(format!("there is no {}: the run has {most}, from 0", name(place))),
            Some(place) if is_free(&name(place)) => Ok(name(place)),
            Some(place) => Err(format!("another process is {} already; give each its own place, or none", name(place))),
        }
    }

    /// Notes that a frame arrived with this head, if its sender is heard.
    pub fn hear(&mut self, head: &Head, now: Time) -> Hearing {
        let Some(member) = self.records.get_mut(&head.from) else { return Hearing::Accepted };
        if matches!(head.from, NodeId::Worker(_)) && head.source != member.source {
            return Hearing::Replaced;
        }
        if let Some(reason) = &member.expelled {
            return Hearing::Expelled(reason.clone());
        }
        member.heard = now;
        member.clock = member.clock.max(head.clock);
        Hearing::Accepted
    }

    /// A node speaks under the name it was given. Returns whether it does so for the first time;
    /// none if no node has that name.
    pub fn confirm(&mut self, node: NodeId) -> Option<bool> {
        self.records.get_mut(&node).map(|member| !std::mem::replace(&mut member.ready, true))
    }

    /// Before the run begins, a place is kept only while its node is heard: people may take their
    /// time to start every process. Returns whether a place became free.
    pub fn vacate_silent(&mut self, now: Time, failure_timeout: Span) -> bool {
        let before = self.records.len();
        self.records.retain(|_, member| now.since(member.heard) <= failure_timeout);
        self.tokens.retain(|_, node| self.records.contains_key(node));
        self.records.len() < before
    }

    /// Nodes that are silent for longer than they may be, and for how many seconds.
    pub fn silent(&self, now: Time, limit: impl Fn(NodeId) -> Span) -> Vec<(NodeId, f64)> {
        let there = self.records.iter().filter(|(_, member)| !member.gone);
        let silent = there.map(|(node, member)| (*node, now.since(member.heard)));
        silent.filter(|(node, span)| *span > limit(*node)).map(|(node, span)| (node, span.as_secs_f64())).collect()
    }

    /// Every node is taken to be heard at this time: it may need until then to find its new
    /// coordinator.
    pub fn take_over(&mut self, found: Time) {
        self.records.values_mut().for_each(|member| member.heard = found);
    }
}

/// Coming and going.
impl Members {
    /// Whether every place is taken and every node has spoken, and the run has not begun.
    pub fn may_begin(&self, size: RunSize) -> bool {
        let complete = self.records.len() as u32 == size.servers + size.workers;
        complete && !self.begun && self.records.values().all(|member| member.ready)
    }

    /// The run begins at this clock, with all of them.
    pub fn begin(&mut self, first: Clock) {
        self.begun = true;
        self.records.values_mut().for_each(|member| member.since = Some(first));
        self.present = self.live_workers().count();
    }

    /// A node takes part from this clock on.
    pub fn admit(&mut self, node: NodeId, first: Clock) {
        let Some(member) = self.records.get_mut(&node).filter(|member| member.since.is_none()) else { return };
        member.since = Some(first);
        self.present += usize::from(is_worker(&node) && !member.gone);
    }

    /// A node takes part no more. Returns whether it was there.
    pub fn depart(&mut self, node: NodeId) -> bool {
        let Some(member) = self.records.get_mut(&node).filter(|member| !member.gone) else { return false };
        member.gone = true;
        self.present -= usize::from(is_worker(&node) && member.since.is_some());
        true
    }

    /// A node takes part no more, though it may not know: it is answered with the reason. Returns
    /// whether it was there.
    pub fn expel(&mut self, node: NodeId, reason: &str) -> bool {
        if !self.depart(node) {
            return false;
        }
        let words = format!("{reason}, and the run went on without it; start it again to join as a new one");
        self.records.get_mut(&node).into_iter().for_each(|member| member.expelled = Some(words.clone()));
        self.tokens.retain(|_, known| *known != node);
        true
    }

    /// A node asks to leave: how far that has come. None if it has no place.
    pub fn ask_to_leave(&mut self, node: NodeId, now: Time) -> Option<Leave> {
        let member = self.records.get_mut(&node)?;
        let since = *member.would_leave.get_or_insert(now);
        Some(match (member.gone, member.leaving) {
            (true, _) => Leave::Gone,
            (false, true) => Leave::Leaving,
            (false, false) => Leave::Asked(since),
        })
    }

    /// A node that asked to leave may, as soon as others hold what it holds.
    pub fn let_leave(&mut self, node: NodeId) {
        self.records.get_mut(&node).into_iter().for_each(|member| member.leaving = true);
    }
}

/// Who is there.
impl Members {
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether every node has left a run that has begun.
    pub fn is_finished(&self) -> bool {
        self.begun && self.records.values().all(|member| member.gone)
    }

    /// Whether every worker has left, and none is about to take part.
    pub fn is_over(&self) -> bool {
        self.begun && self.present == 0 && !self.there().any(|(node, _)| is_worker(&node))
    }

    /// Who has not joined yet, in words, for people who wait for the run to begin.
    pub fn missing(&self, size: RunSize) -> Option<String> {
        let count = |role: fn(&NodeId) -> bool| self.records.keys().filter(|node| role(node)).count() as u32;
        let servers = size.servers.saturating_sub(count(is_server));
        let workers = size.workers.saturating_sub(count(is_worker));
        (servers + workers > 0).then(|| format!("{servers} servers and {workers} workers have yet to join"))
    }

    /// Whether a frame's sender has a place in the run, rather than asks for one, or only how the
    /// run stands.
    pub fn knows(&self, frame: &Frame) -> bool {
        if let Message::Control(Control::Join { token, .. }) = &frame.message {
            return self.tokens.contains_key(token);
        }
        let Head { from, source, .. } = frame.head;
        let has_place = |member: &MemberRecord| !member.gone && (member.source == source || is_server(&from));
        self.records.get(&from).is_some_and(has_place)
    }

    fn there(&self) -> impl Iterator<Item = (NodeId, &MemberRecord)> {
        self.records.iter().filter(|(_, member)| !member.gone).map(|(node, member)| (*node, member))
    }

    /// Every node that has ever been in the run.
    pub fn everybody_ever(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.records.keys().copied()
    }

    /// Every node that is there, or is about to be.
    pub fn everybody(&self) -> Vec<NodeId> {
        self.there().map(|(node, _)| node).collect()
    }

    pub fn is_known(&self, node: NodeId) -> bool {
        self.records.contains_key(&node)
    }

    pub fn is_there(&self, node: NodeId) -> bool {
        self.records.get(&node).is_some_and(|member| !member.gone)
    }

    /// Whether this incarnation has a place, and is there.
    pub fn is_incarnation(&self, node: NodeId, source: Source) -> bool {
        self.records.get(&node).is_some_and(|member| !member.gone && member.source == source)
    }

    /// The incarnation that has, or had, a node's place.
    pub fn source(&self, node: NodeId) -> Option<Source> {
        self.records.get(&node).map(|member| member.source)
    }

    /// Where a node listens, of those that are there.
    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.records.get(&node).filter(|member| !member.gone).map(|member| member.address.as_str())
    }

    /// Where everybody listens.
    pub fn addresses(&self) -> Vec<Member> {
        self.there().map(|(node, member)| Member { node, address: member.address.clone() }).collect()
    }

    /// The first clock that a node takes part in, if it does.
    pub fn first_clock(&self, node: NodeId) -> Option<Clock> {
        self.records.get(&node).and_then(|member| member.since)
    }

    /// The clock of the furthest node, as last heard.
    pub fn furthest_clock(&self) -> Clock {
        self.records.values().map(|member| member.clock).max().unwrap_or_default()
    }

    /// Workers that take part.
    pub fn live_workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.records.iter().filter(|(_, member)| member.takes_part()).filter_map(|(node, _)| match node {
            NodeId::Worker(rank) => Some(WorkerId(*rank)),
            NodeId::Coordinator | NodeId::Server(_) => None,
        })
    }

    /// How many workers take part.
    pub fn present(&self) -> usize {
        self.present
    }

    /// Servers that are there.
    pub fn live_servers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.there().map(|(node, _)| node).filter(is_server)
    }

    /// Servers that take part and are not about to leave, in order.
    pub fn staying(&self) -> Vec<u32> {
        let stays = |(node, member): (NodeId, &MemberRecord)| match node {
            NodeId::Server(index) if member.takes_part() && !member.leaving => Some(index),
            NodeId::Server(_) | NodeId::Worker(_) | NodeId::Coordinator => None,
        };
        self.there().filter_map(stays).collect()
    }

    /// Servers that leave as soon as others hold what they hold.
    pub fn leaving(&self) -> impl Iterator<Item = u32> + '_ {
        self.there().filter(|(_, member)| member.leaving).filter_map(|(node, _)| match node {
            NodeId::Server(index) => Some(index),
            NodeId::Coordinator | NodeId::Worker(_) => None,
        })
    }

    /// The workers of the next plan, by rank: those that have spoken.
    pub fn planned_workers(&self) -> Vec<Option<Source>> {
        let mut workers = Vec::new();
        for (node, member) in &self.records {
            let NodeId::Worker(rank) = node else { continue };
            let counts = !member.gone && (member.ready || member.since.is_some());
            workers.resize(*rank as usize, None);
            workers.push(counts.then_some(member.source));
        }
        workers
    }
}

fn is_server(node: &NodeId) -> bool {
    matches!(node, NodeId::Server(_))
}

fn is_worker(node: &NodeId) -> bool {
    matches!(node, NodeId::Worker(_))
}

impl Field for MemberRecord {
    fn put(&self, out: &mut Vec<u8>) {
        self.address.put(out);
        self.source.put(out);
        self.ready.put(out);
        self.since.put(out);
        self.gone.put(out);
        self.expelled.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut member = Self::new(Field::get(input)?, Field::get(input)?, Time(0));
        member.ready = Field::get(input)?;
        member.since = Field::get(input)?;
        member.gone = Field::get(input)?;
        member.expelled = Field::get(input)?;
        Ok(member)
    }
}

impl Field for Members {
    fn put(&self, out: &mut Vec<u8>) {
        put_map(&self.records, out);
        put_map(&self.tokens, out);
        self.given.put(out);
        self.begun.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let records: BTreeMap<NodeId, MemberRecord> = get_map(input)?;
        let mut members =
            Self { records, tokens: get_map(input)?, given: Field::get(input)?, begun: Field::get(input)?, present: 0 };
        members.present = members.live_workers().count();
        let is_name = |node: &NodeId| match node {
            NodeId::Coordinator => false,
            NodeId::Server(index) | NodeId::Worker(index) => *index < MOST_NODES,
        };
        let sources: BTreeSet<Source> = members.records.values().map(|member| member.source).collect();
        saved::check(&[
            (members.records.keys().all(is_name), "a member without a name"),
            (members.tokens.values().all(|node| members.is_known(*node)), "a process without a place"),
            (sources.len() == members.records.len(), "an incarnation with two places"),
            (sources.last().is_none_or(|last| last.0 <= members.given), "an incarnation that was never given"),
            (members.given < MOST_COUNT, "a count of places without end"),
        ])?;
        Ok(members)
    }
}
