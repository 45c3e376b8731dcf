//! Membership: which node has which place, and when the run begins.

use super::memory::MOST_NODES;
use super::{Coordinator, Membership, MembershipEvent};
use types::{Clock, NodeId, Source, Time};
use wire::{Control, Frame, Head, Message, NodeReport, NodeRole, Outbox};

pub(super) struct MemberRecord {
    pub address: String,
    /// The incarnation that has this place. Each time a place is given, its source is new, and is
    /// never used again.
    pub source: Source,
    /// Whether the node has spoken under the name it was given.
    pub ready: bool,
    pub heard: Time,
    /// The first clock it takes part in, once it does.
    pub since: Option<Clock>,
    /// Where its clock was when it was last heard.
    pub clock: Clock,
    /// Since when it would leave. Not kept: it says so again.
    pub would_leave: Option<Time>,
    /// Whether it does, when others hold what it holds.
    pub leaving: bool,
    /// What it has said of itself.
    pub report: NodeReport,
    pub gone: bool,
    /// Why the run goes on without it, if it does.
    pub expelled: Option<String>,
}

impl MemberRecord {
    /// For somebody who has just come.
    pub fn new(address: String, source: Source, heard: Time) -> Self {
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
    pub fn takes_part(&self) -> bool {
        !self.gone && self.since.is_some()
    }
}

impl Coordinator {
    pub(super) fn join(
        &mut self,
        now: Time,
        from: NodeId,
        (role, place): (NodeRole, Option<u32>),
        address: String,
        token: u64,
        out: &mut Outbox,
    ) {
        if let Some((node, reason)) = &self.lost {
            let reason = format!("the run has lost {node} ({reason}); start a new one");
            return Self::say(from, Control::JoinRefused { reason, token }, out);
        }
        if self.is_over() {
            let reason = "the run is over: every worker has left; start a new one".to_owned();
            return Self::say(from, Control::JoinRefused { reason, token }, out);
        }
        let node = match self.tokens.get(&token) {
            // It missed an answer: its next heartbeat is taken for the first again.
            Some(node) => {
                if let Some(member) = self.members.get_mut(node) {
                    member.ready = false;
                }
                *node
            }
            None => {
                let node = match self.free_place(role, place) {
                    Ok(node) => node,
                    Err(reason) => return Self::say(from, Control::JoinRefused { reason, token }, out),
                };
                self.tokens.insert(token, node);
                self.given += 1;
                let source = Source(self.given);
                self.members.insert(node, MemberRecord::new(address, source, now));
                if self.begun {
                    self.events.push(MembershipEvent { node, what: "joins the run".to_owned() });
                }
                node
            }
        };
        let Some(source) = self.members.get(&node).map(|member| member.source) else { return };
        Self::say(from, Control::Welcome { node, source, token }, out);
    }

    /// The place asked for, or the first that is free; otherwise why there is none.
    fn free_place(&self, role: NodeRole, place: Option<u32>) -> Result<NodeId, String> {
        let (name, most): (fn(u32) -> NodeId, u32) = match role {
            NodeRole::Server => (NodeId::Server, self.size.servers),
            NodeRole::Worker => (NodeId::Worker, self.size.workers),
        };
        let is_free = |node: &NodeId| !self.members.contains_key(node);
        let comes_later = self.begun && self.membership != Membership::Static;
        match place {
            Some(place) if place >= MOST_NODES => Err(format!("there are no more than {MOST_NODES} of a kind, from 0")),
            Some(place) if comes_later && is_free(&name(place)) => Ok(name(place)),
            // A name is never given twice in a run that has begun. Whoever is started again under
            // one that was given gets another: the first may be lost, though nobody has noticed
            // yet.
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

    pub(super) fn heartbeat(&mut self, from: NodeId, number: u64, out: &mut Outbox) {
        let Some(member) = self.members.get_mut(&from) else { return };
        let first = !std::mem::replace(&mut member.ready, true);
        self.touched |= first;
        if let Some((node, reason)) = &self.lost {
            // Said again to whoever missed it.
            return Self::say(from, Control::Lost { node: *node, reason: reason.clone() }, out);
        }
        let complete = self.members.len() as u32 == self.size.servers + self.size.workers;
        if complete && !self.begun && self.members.values().all(|member| member.ready) {
            self.begin_run(out);
        } else if self.begun && first {
            self.come_in(from, out);
        } else {
            let head = Head { number, ..Head::plain(NodeId::Coordinator, from) };
            out.send(Frame { head, message: Message::Control(Control::Heartbeat) });
        }
    }

    /// A node speaks for the first time since it was given its place, in a run that has begun: it
    /// takes part, or will when the servers know.
    fn come_in(&mut self, node: NodeId, out: &mut Outbox) {
        let Some(member) = self.members.get_mut(&node) else { return };
        match (member.since, node) {
            (Some(_), _) => self.begin(node, out),
            (None, NodeId::Server(_)) => {
                member.since = Some(Clock(0));
                self.begin(node, out);
                self.tell_tables(node, out);
                self.repair();
                self.rebalance();
            }
            (None, _) => self.changed = true,
        }
    }

    /// Before the run begins a place is kept only for those who are there: people may take their
    /// time to start every process.
    pub(super) fn vacate_silent(&mut self, now: Time) {
        let (failure_timeout, before) = (self.failure_timeout, self.members.len());
        self.members.retain(|_, member| now.since(member.heard) <= failure_timeout);
        self.touched |= self.members.len() < before;
        self.tokens.retain(|_, node| self.members.contains_key(node));
    }
}
