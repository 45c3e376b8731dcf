//! Membership: which process has which place, with which source, and which nodes take part.
//!
//! Invariants:
//! - Each time a place is given, its source is new and is never given again.
//! - A token names one process: a repeated join gets the same place and source.
//! - In an elastic run that has begun, no name is given twice.

mod reports;
#[cfg(test)]
pub(crate) mod tests;

use crate::saved::{self, MOST_COUNT, MOST_NODES, get_map, put_map};
use crate::settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use types::{Binding, Clock, NodeId, RunSize, Source, Span, Time, WorkerId};
use wire::{Control, Field, Frame, Head, Member, Message, NodeReport, NodeRole, Reader, WireError};

/// What the coordinator knows of one node.
struct MemberRecord {
    address: String,
    /// What its name is bound to; `None` in an insecure run.
    binding: Option<Binding>,
    /// The incarnation that has this place.
    source: Source,
    /// Whether it has sent a heartbeat under the name that it was given.
    ready: bool,
    /// When it was last heard.
    heard: Time,
    /// The first clock that it takes part in. None before it takes part.
    since: Option<Clock>,
    /// The highest clock of its messages.
    clock: Clock,
    /// When it first asked to leave. Not saved: it asks again.
    would_leave: Option<Time>,
    /// Whether it leaves as soon as other servers hold its shards.
    leaving: bool,
    /// Its last report.
    report: NodeReport,
    /// Whether it has left or was expelled.
    gone: bool,
    /// Why it was expelled. None if it was not.
    expelled: Option<String>,
    /// Why it is about to be expelled: its serving lease may last a while. Not saved.
    condemned: Option<String>,
}

impl MemberRecord {
    /// The record of a node that has just joined.
    fn new(address: String, binding: Option<Binding>, source: Source, heard: Time) -> Self {
        Self {
            address,
            binding,
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
            condemned: None,
        }
    }

    fn as_member(&self, node: NodeId) -> Member {
        Member { node, address: self.address.clone(), binding: self.binding.clone() }
    }

    /// Whether the node is in the run and has been told to begin.
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
    /// Who is at the other end of its connection; `None` in an insecure run.
    pub binding: Option<Binding>,
}

/// The place that a process was given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenPlace {
    pub node: NodeId,
    pub source: Source,
    /// Whether this join was the first with its token. A repeated join gets the place it had.
    pub is_new: bool,
}

/// Whether the coordinator handles a frame, by its sender.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// The sender has the place that it names, or no process has that place.
    Accepted,
    /// The sender's place was given to another process.
    Replaced,
    /// The sender was expelled or is about to be, for this reason.
    Expelled(String),
}

/// The state of a server's request to leave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It first asked at this time, and may not leave yet.
    Asked(Time),
    /// It may leave, and does when other servers hold its shards.
    Leaving,
    /// It has left.
    Gone,
}

/// Which process has which place.
#[derive(Default)]
pub(crate) struct Members {
    records: BTreeMap<NodeId, MemberRecord>,
    /// The place of each process, by its token.
    tokens: BTreeMap<u64, NodeId>,
    /// How many places were given so far: the last source.
    given: u64,
    /// Whether the run has begun.
    begun: bool,
    /// How many workers take part: the length of [`live_workers`](Self::live_workers). Barriers
    /// read it each time a worker reaches one.
    present: usize,
}

/// Places.
impl Members {
    /// Gives a process its place, or says why there is none for it.
    pub fn join(&mut self, settings: &Settings, request: JoinRequest, now: Time) -> Result<GivenPlace, String> {
        if let Some(node) = self.tokens.get(&request.token)
            && let Some(member) = self.records.get_mut(node)
        {
            if member.binding != request.binding {
                return Err(format!("{node} is another process: start this one again, to join as a new node"));
            }
            // The process missed the answer: its next heartbeat counts as its first.
            member.ready = false;
            return Ok(GivenPlace { node: *node, source: member.source, is_new: false });
        }
        let node = self.free_place(settings, request.role, request.place)?;
        self.tokens.insert(request.token, node);
        self.given += 1;
        let source = Source(self.given);
        self.records.insert(node, MemberRecord::new(request.address, request.binding, source, now));
        Ok(GivenPlace { node, source, is_new: true })
    }

    /// The place asked for, or the first that is free. Fails, in words, if there is none.
    fn free_place(&self, settings: &Settings, role: NodeRole, place: Option<u32>) -> Result<NodeId, String> {
        let (name, kind, most): (fn(u32) -> NodeId, &str, u32) = match role {
            NodeRole::Server => (NodeId::Server, "servers", settings.size().servers),
            NodeRole::Worker => (NodeId::Worker, "workers", settings.size().workers),
        };
        let is_free = |node: &NodeId| !self.records.contains_key(node);
        let joins_late = self.begun && settings.is_elastic();
        match place {
            Some(place) if place >= MOST_NODES => {
                Err(format!("there is no {}: a run has at most {MOST_NODES} {kind}, numbered from 0", name(place)))
            }
            Some(place) if joins_late && is_free(&name(place)) => Ok(name(place)),
            // A process that is started again by the same command asks for the name that it had. It
            // gets another: the coordinator may not know yet that the process before it is lost.
            _ if joins_late => {
                let unused = (most..MOST_NODES).map(name).find(is_free);
                unused.ok_or_else(|| format!("the run has given all names of {kind}; start a new run"))
            }
            None => {
                let full = || format!("the run has its {most} {kind} already; start it with more {kind}");
                (0..most).map(name).find(is_free).ok_or_else(full)
            }
            Some(place) if place >= most => {
                Err(format!("there is no {}: the run has {most} {kind}, numbered from 0", name(place)))
            }
            Some(place) if is_free(&name(place)) => Ok(name(place)),
            Some(place) => {
                let node = name(place);
                Err(format!("another process is {node} already; give each process its own place, or give none"))
            }
        }
    }

    /// Notes the time and clock of a frame with this head, if the coordinator handles it.
    pub fn hear(&mut self, head: &Head, now: Time) -> Hearing {
        let Some(member) = self.records.get_mut(&head.from) else { return Hearing::Accepted };
        if matches!(head.from, NodeId::Worker(_)) && head.source != member.source {
            return Hearing::Replaced;
        }
        if let Some(reason) = member.expelled.as_ref().or(member.condemned.as_ref()) {
            return Hearing::Expelled(reason.clone());
        }
        member.heard = now;
        member.clock = member.clock.max(head.clock);
        Hearing::Accepted
    }

    /// Notes a heartbeat of a node. Returns whether it is the first under its name. None if no node
    /// has that name.
    pub fn confirm(&mut self, node: NodeId) -> Option<bool> {
        self.records.get_mut(&node).map(|member| !std::mem::replace(&mut member.ready, true))
    }

    /// Frees the places of nodes that are silent for longer than `failure_timeout`, before the run
    /// begins: the run cannot lose these nodes yet. Returns whether a place became free.
    pub fn vacate_silent(&mut self, now: Time, failure_timeout: Span) -> bool {
        let before = self.records.len();
        self.records.retain(|_, member| now.since(member.heard) <= failure_timeout);
        self.tokens.retain(|_, node| self.records.contains_key(node));
        self.records.len() < before
    }

    /// The nodes that are silent for longer than their limit, and for how many seconds.
    pub fn silent(&self, now: Time, limit: impl Fn(NodeId) -> Span) -> Vec<(NodeId, f64)> {
        let there = self.records.iter().filter(|(_, member)| !member.gone);
        let silent = there.map(|(node, member)| (*node, now.since(member.heard)));
        silent.filter(|(node, span)| *span > limit(*node)).map(|(node, span)| (node, span.as_secs_f64())).collect()
    }

    /// The coordinator has not run for this long: nodes may have spoken meanwhile, so none of them
    /// counts as silent for that time. Time that nodes have to find their coordinator is not
    /// shortened.
    pub fn forgive(&mut self, slept: Span, now: Time) {
        self.records.values_mut().for_each(|member| member.heard = member.heard.max(now.min(member.heard + slept)));
    }

    /// Counts every node as heard at this time: nodes may need until then to find their new
    /// coordinator.
    pub fn take_over(&mut self, found: Time) {
        self.records.values_mut().for_each(|member| member.heard = found);
    }
}

/// Joining and leaving.
impl Members {
    /// Whether every place is taken, every node has sent a heartbeat, and the run has not begun.
    pub fn may_begin(&self, size: RunSize) -> bool {
        let complete = self.records.len() as u32 == size.servers + size.workers;
        complete && !self.begun && self.records.values().all(|member| member.ready)
    }

    /// Begins the run at this clock, with all nodes.
    pub fn begin(&mut self, first: Clock) {
        self.begun = true;
        self.records.values_mut().for_each(|member| member.since = Some(first));
        self.present = self.live_workers().count();
    }

    /// Makes a node take part from this clock on.
    pub fn admit(&mut self, node: NodeId, first: Clock) {
        let Some(member) = self.records.get_mut(&node).filter(|member| member.since.is_none()) else { return };
        member.since = Some(first);
        self.present += usize::from(is_worker(&node) && !member.gone);
    }

    /// Notes that a node has left the run. Returns whether it was in the run.
    pub fn depart(&mut self, node: NodeId) -> bool {
        let Some(member) = self.records.get_mut(&node).filter(|member| !member.gone) else { return false };
        member.gone = true;
        self.present -= usize::from(is_worker(&node) && member.since.is_some());
        true
    }

    /// Removes a node from the run. The node may not know: if it sends, it is answered with the
    /// reason. Returns whether it was in the run.
    pub fn expel(&mut self, node: NodeId, reason: &str) -> bool {
        if !self.depart(node) {
            return false;
        }
        let words = format!("{reason}, and the run went on without it; start it again to join as a new node");
        self.records.get_mut(&node).into_iter().for_each(|member| member.expelled = Some(words.clone()));
        self.tokens.retain(|_, known| *known != node);
        true
    }

    /// Stops hearing a node that is given up: its heartbeats are not answered any more, so that its
    /// serving lease ends, and it is silent from now on.
    pub fn condemn(&mut self, node: NodeId, reason: &str) {
        if let Some(member) = self.records.get_mut(&node).filter(|member| !member.gone) {
            member.condemned.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Why a node is given up. None if it is not.
    pub fn condemned(&self, node: NodeId) -> Option<&str> {
        self.records.get(&node)?.condemned.as_deref()
    }

    /// Whether a node is given up.
    pub fn is_condemned(&self, node: NodeId) -> bool {
        self.condemned(node).is_some()
    }

    /// Notes that a node asks to leave. Returns the state of its request, none if it has no place.
    pub fn ask_to_leave(&mut self, node: NodeId, now: Time) -> Option<Leave> {
        let member = self.records.get_mut(&node)?;
        let since = *member.would_leave.get_or_insert(now);
        Some(match (member.gone, member.leaving) {
            (true, _) => Leave::Gone,
            (false, true) => Leave::Leaving,
            (false, false) => Leave::Asked(since),
        })
    }

    /// Lets a server leave as soon as other servers hold its shards.
    pub fn let_leave(&mut self, node: NodeId) {
        self.records.get_mut(&node).into_iter().for_each(|member| member.leaving = true);
    }
}

/// Which nodes are in the run.
impl Members {
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether every node has left a run that has begun.
    pub fn is_finished(&self) -> bool {
        self.begun && self.records.values().all(|member| member.gone)
    }

    /// Whether every worker has left, and no other is about to take part.
    pub fn is_over(&self) -> bool {
        self.begun && self.present == 0 && !self.there().any(|(node, _)| is_worker(&node))
    }

    /// How many nodes have not joined yet, in words, for people who wait for the run to begin.
    pub fn missing(&self, size: RunSize) -> Option<String> {
        let count = |role: fn(&NodeId) -> bool| self.records.keys().filter(|node| role(node)).count() as u32;
        let servers = size.servers.saturating_sub(count(is_server));
        let workers = size.workers.saturating_sub(count(is_worker));
        let of = |number: u32, role: &str| format!("{number} {role}{}", if number == 1 { "" } else { "s" });
        (servers + workers > 0)
            .then(|| format!("{} and {} have yet to join", of(servers, "server"), of(workers, "worker")))
    }

    /// Whether a frame's sender has a place in the run. A process that asks for a place or for the
    /// run's status has none.
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

    /// Every node that takes part or is about to.
    pub fn everybody(&self) -> Vec<NodeId> {
        self.there().map(|(node, _)| node).collect()
    }

    pub fn is_known(&self, node: NodeId) -> bool {
        self.records.contains_key(&node)
    }

    pub fn is_there(&self, node: NodeId) -> bool {
        self.records.get(&node).is_some_and(|member| !member.gone)
    }

    /// Whether this incarnation has the node's place and is in the run.
    pub fn is_incarnation(&self, node: NodeId, source: Source) -> bool {
        self.records.get(&node).is_some_and(|member| !member.gone && member.source == source)
    }

    /// The source of the incarnation that has, or had, a node's place.
    pub fn source(&self, node: NodeId) -> Option<Source> {
        self.records.get(&node).map(|member| member.source)
    }

    /// The address at which a node of the run listens. None if it has left.
    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.records.get(&node).filter(|member| !member.gone).map(|member| member.address.as_str())
    }

    /// The addresses of all nodes of the run.
    pub fn addresses(&self) -> Vec<Member> {
        self.there().map(|(node, member)| member.as_member(node)).collect()
    }

    /// The address and key of the process with this token, if it has a place.
    pub fn by_token(&self, token: u64) -> Option<Member> {
        let node = self.tokens.get(&token)?;
        self.records.get(node).map(|member| member.as_member(*node))
    }

    /// The first clock that a node takes part in. None before it takes part.
    pub fn first_clock(&self, node: NodeId) -> Option<Clock> {
        self.records.get(&node).and_then(|member| member.since)
    }

    /// The highest clock of a node's messages.
    pub fn clock(&self, node: NodeId) -> Clock {
        self.records.get(&node).map(|member| member.clock).unwrap_or_default()
    }

    /// The highest clock of any node's messages.
    pub fn furthest_clock(&self) -> Clock {
        self.records.values().map(|member| member.clock).max().unwrap_or_default()
    }

    /// The workers that take part.
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

    /// The servers that are in the run.
    pub fn live_servers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.there().map(|(node, _)| node).filter(is_server)
    }

    /// The servers that take part and are not about to leave, in order.
    pub fn staying(&self) -> Vec<u32> {
        let stays = |(node, member): (NodeId, &MemberRecord)| match node {
            NodeId::Server(index) if member.takes_part() && !member.leaving => Some(index),
            NodeId::Server(_) | NodeId::Worker(_) | NodeId::Coordinator => None,
        };
        self.there().filter_map(stays).collect()
    }

    /// The servers that leave as soon as others hold their shards.
    pub fn leaving(&self) -> impl Iterator<Item = u32> + '_ {
        self.there().filter(|(_, member)| member.leaving).filter_map(|(node, _)| match node {
            NodeId::Server(index) => Some(index),
            NodeId::Coordinator | NodeId::Worker(_) => None,
        })
    }

    /// The workers of the next plan, by rank: those that have sent a heartbeat.
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
        self.binding.put(out);
        self.source.put(out);
        self.ready.put(out);
        self.since.put(out);
        self.gone.put(out);
        self.expelled.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut member = Self::new(Field::get(input)?, Field::get(input)?, Field::get(input)?, Time(0));
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
            (members.records.keys().all(is_name), "a member with an impossible name"),
            (members.tokens.values().all(|node| members.is_known(*node)), "a token of a node that is no member"),
            (sources.len() == members.records.len(), "one source for two members"),
            (sources.last().is_none_or(|last| last.0 <= members.given), "a source that was never given"),
            (members.given < MOST_COUNT, "a number of places that is too large"),
        ])?;
        Ok(members)
    }
}
