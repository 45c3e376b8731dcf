//! A node joins: the coordinator gives it a place. It begins with all other nodes or, in a run that
//! has begun, when every server knows of it.

use super::Coordinator;
use crate::members::{GivenPlace, JoinRequest};
use crate::placement::Placement;
use crate::say::say;
use types::limits::{ADDRESS_BYTES, NAME_BYTES};
use types::{Clock, NodeId};
use wire::{Control, Frame, Head, Message, Outbox};

/// Why a node with this job and address cannot join. None if it can. Logs and `status` show both,
/// so control characters, which can change what a terminal shows, are refused.
fn refuses_texts(job: &str, address: &str) -> Option<String> {
    let refuses = |what: &str, text: &str, most: usize| {
        let bytes = text.len();
        if bytes > most {
            return Some(format!("its {what} has {bytes} bytes, and {most} are allowed"));
        }
        let has_control = text.contains(|character: char| character.is_control());
        has_control.then(|| format!("its {what} has a control character: {text:?}"))
    };
    refuses("address", address, ADDRESS_BYTES).or_else(|| refuses("job name", job, NAME_BYTES))
}

impl Coordinator {
    /// Answers a process that asks for a place.
    pub(super) fn join(&mut self, from: NodeId, job: &str, request: JoinRequest, out: &mut Outbox) {
        let token = request.token;
        if self.members.by_token(token).is_none() && !self.join_budget.take(self.now) {
            return;
        }
        let refusal = refuses_texts(job, &request.address).or_else(|| self.settings.refuses_job(job));
        let refusal = refusal.or_else(|| self.refuses_all());
        let given = refusal.map_or_else(|| self.members.join(&self.settings, request, self.now), Err);
        match given {
            Ok(GivenPlace { node, source, is_new }) => {
                if is_new && self.has_begun() {
                    self.note(node, "joins the run");
                }
                say(from, Control::Welcome { node, source, token }, out);
            }
            Err(reason) => say(from, Control::JoinRefused { reason, token }, out),
        }
    }

    /// Why no node can join any more. None while nodes can.
    fn refuses_all(&self) -> Option<String> {
        if let Some((node, reason)) = &self.lost {
            return Some(format!("the run has lost {node} ({reason}); start a new run"));
        }
        self.members.is_over().then(|| "the run is over: every worker has left; start a new run".to_owned())
    }

    /// Handles a heartbeat: begins the run if this was the last node awaited, admits a node that
    /// has just joined, and acknowledges the heartbeat otherwise.
    pub(super) fn heartbeat(&mut self, head: &Head, out: &mut Outbox) {
        let from = head.from;
        if matches!(from, NodeId::Server(_)) {
            self.checkpoints.hear_frontier(head.clock);
        }
        let Some(is_first) = self.members.confirm(from) else { return };
        self.touched |= is_first;
        if let Some((node, reason)) = &self.lost {
            // The node may have missed the message that the run is lost.
            return say(from, Control::Lost { node: *node, reason: reason.clone() }, out);
        }
        if self.members.may_begin(self.settings.size()) {
            self.begin_run(out);
        } else if self.has_begun() && is_first {
            self.come_in(from, out);
        } else if head.number == 0 && self.members.first_clock(from).is_some() {
            // Nodes number their heartbeats from when they begin: this one has missed `Begin`.
            self.begin(from, out);
        } else {
            let head = Head { number: head.number, ..Head::plain(NodeId::Coordinator, from) };
            out.send(Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) });
        }
    }

    /// Makes the first plan when every node has joined, and tells all to begin.
    fn begin_run(&mut self, out: &mut Outbox) {
        let shards = self.checkpoints.resumed_shards().unwrap_or_else(|| self.settings.shards());
        self.placement.begin(self.settings.size().servers, shards, self.settings.replicas());
        self.plans.begin(self.placement.chains(), &self.members);
        self.members.begin(self.checkpoints.first_clock());
        for node in self.members.everybody_ever() {
            self.liveness.begin(node, self.now);
            self.begin(node, out);
        }
    }

    /// Handles the first heartbeat of a node that has joined a run that has begun. A server takes
    /// part at once, a worker when the plan that names it is enacted.
    fn come_in(&mut self, node: NodeId, out: &mut Outbox) {
        match node {
            _ if self.members.first_clock(node).is_some() => self.begin(node, out),
            NodeId::Server(_) => {
                self.let_begin(node, Clock(0), out);
                self.repair();
                self.lay_out(Placement::share_out);
            }
            NodeId::Worker(_) | NodeId::Coordinator => self.plans.request(),
        }
    }

    /// Makes a node take part from this clock on, and tells it of every table.
    pub(super) fn let_begin(&mut self, node: NodeId, first: Clock, out: &mut Outbox) {
        self.members.admit(node, first);
        self.liveness.begin(node, self.now);
        self.begin(node, out);
        self.tables.introduce(node, out);
    }

    /// Tells a node to begin, if it takes part.
    fn begin(&self, to: NodeId, out: &mut Outbox) {
        let Some(clock) = self.members.first_clock(to) else { return };
        let plan = self.plan().clone();
        let members = self.members.addresses();
        let barriers = self.barriers.passed();
        let serving_lease = self.timeouts.serving_lease();
        let locations = self.checkpoints.locations().to_vec();
        say(to, Control::Begin { plan, members, clock, barriers, serving_lease, locations }, out);
    }
}
