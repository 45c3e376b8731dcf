//! A node leaves, is told to leave, or is lost. The run then goes on without the node, or ends.

use super::Coordinator;
use crate::leaving::{LeaveRequest, can_spare};
use crate::liveness::{LivenessView, Verdict};
use crate::members::Leave;
use crate::say::say;
use types::{Chain, NodeId, WorkerId};
use wire::{Control, Outbox, Trouble};

impl Coordinator {
    /// Handles the report of a node's host that the node's process has ended. Its serving lease has
    /// ended too, so the coordinator need not wait for the promotion delay. A static run ends.
    pub fn gone(&mut self, node: NodeId, out: &mut Outbox) {
        self.touched = true;
        if self.has_begun() {
            let given_up = self.members.condemned(node).map(str::to_owned);
            self.fail(node, given_up.unwrap_or_else(|| "its process has ended".to_owned()), out);
            self.replan(out);
        }
    }

    /// Ends the run and tells every node: this coordinator cannot go on and no other can take over.
    pub fn give_up(&mut self, reason: String, out: &mut Outbox) {
        if self.lost.is_none() {
            self.touched = true;
            for node in self.everybody() {
                say(node, Control::Lost { node: NodeId::Coordinator, reason: reason.clone() }, out);
            }
            self.lost = Some((NodeId::Coordinator, reason));
        }
    }

    /// Handles a node's goodbye.
    pub(super) fn bye(&mut self, from: NodeId, out: &mut Outbox) {
        if !self.members.is_known(from) {
            return;
        }
        say(from, Control::Bye, out);
        // A server says goodbye when the run is over: no worker needs its shards any more.
        if self.members.depart(from) && matches!(from, NodeId::Worker(_)) {
            self.departed(from, out);
        }
    }

    /// Makes the parts forget a node that has left the run: none waits for it from here on.
    fn departed(&mut self, node: NodeId, out: &mut Outbox) {
        self.tables.forget(node, out);
        self.liveness.forget(node);
        match node {
            NodeId::Server(index) => {
                self.placement.remove_server(index);
                self.plans.replace_without(node);
                self.repair();
            }
            NodeId::Worker(rank) => {
                self.plans.request();
                self.plans.forget(node);
                if let Some(source) = self.members.source(node) {
                    self.leases.give_back(self.now, source, out);
                }
                self.barriers.forget(WorkerId(rank), &self.members, out);
                self.finish(out);
            }
            NodeId::Coordinator => {}
        }
    }

    /// Tells servers that the run is over, if it is and no last checkpoint is awaited.
    pub(super) fn finish(&self, out: &mut Outbox) {
        if self.members.is_over() && !self.awaits_last_checkpoint() {
            self.members.live_servers().for_each(|server| say(server, Control::Finish, out));
        }
    }

    /// Handles the loss of a node: an elastic run goes on without it where it can. Otherwise the
    /// run ends.
    pub(super) fn fail(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        if self.lost.is_some() {
            // The run has ended, and its nodes end one by one.
            return;
        }
        self.touched = true;
        if self.members.is_over() {
            self.with_checkpoints(|checkpoints, run| checkpoints.lose_last(node, run));
            // No worker needs its shards. It may have said goodbye to an earlier coordinator.
            self.members.depart(node);
            return;
        }
        if can_spare(node, &self.settings, &self.members, &self.placement) {
            self.expel(node, &reason, out);
        } else if self.members.is_there(node) {
            let (first, reason) = self.first_cause(node, reason);
            self.end(first, reason, out);
        }
    }

    /// The first of the losses that end the run together, with the reasons of all. A server is lost
    /// for good only if servers that also held its shards were lost before it.
    fn first_cause(&self, node: NodeId, reason: String) -> (NodeId, String) {
        let Some(((first, first_reason), later)) = self.unrepaired.split_first() else { return (node, reason) };
        if !matches!(node, NodeId::Server(_)) {
            return (node, reason);
        }
        let last = (node, reason);
        let later: Vec<String> =
            later.iter().chain([&last]).map(|(node, reason)| format!("{node} was lost, too: {reason}")).collect();
        (*first, format!("{first_reason}; before others held its shards, {}", later.join("; ")))
    }

    /// Gives up nodes that send heartbeats and do not do their part, and notes long clocks.
    pub(super) fn judge(&mut self, out: &mut Outbox) {
        if self.members.is_over() || self.lost.is_some() {
            return;
        }
        let (notice_after, _) = self.timeouts.notice_after(self.members.steps());
        let ask_again = self.timeouts.ask_again_after();
        let Self { settings, members, barriers, plans, placement, tables, liveness, now, .. } = self;
        let view =
            LivenessView { now: *now, settings, members, barriers, plans, placement, tables, notice_after, ask_again };
        let verdicts = liveness.judge(&view);
        let long = liveness.long_clocks(&view);
        for (node, clock, lasted) in long {
            let seconds = lasted.as_secs_f64();
            self.note(node, &format!("has been in {clock} for {seconds:.0} s, and other workers wait for it"));
        }
        for Verdict { node, reason, ends_run } in verdicts {
            if self.lost.is_some() || !self.members.is_there(node) {
                continue;
            }
            if ends_run {
                self.end(node, reason, out);
            } else if matches!(node, NodeId::Server(_))
                && can_spare(node, &self.settings, &self.members, &self.placement)
            {
                // Its serving lease may still last. The coordinator hears it no more, so it is
                // expelled when the promotion delay is over, as any silent server.
                self.note(node, &format!("is given up: {reason}"));
                say(node, Control::Lost { node, reason: reason.clone() }, out);
                self.members.condemn(node, &reason);
            } else {
                self.fail(node, reason, out);
            }
        }
    }

    /// Removes `node` from the run. If it still sends, it is answered with the reason.
    fn expel(&mut self, node: NodeId, reason: &str, out: &mut Outbox) {
        if !self.members.expel(node, reason) {
            return;
        }
        // States facts, because another loss may end the run in the next moment.
        let fact = match (node, self.members.present()) {
            (NodeId::Worker(_), 1) => "1 worker is left".to_owned(),
            (NodeId::Worker(_), left) => format!("{left} workers are left"),
            (NodeId::Server(_) | NodeId::Coordinator, _) => "other servers hold its shards".to_owned(),
        };
        self.note(node, &format!("is lost: {reason}; {fact}"));
        if matches!(node, NodeId::Server(_)) {
            self.unrepaired.push((node, reason.to_owned()));
        }
        self.departed(node, out);
    }

    /// Handles the report of a node that it cannot go on. A problem that stops one worker's program
    /// would stop the others too, so the run ends.
    pub(super) fn cannot_go_on(&mut self, node: NodeId, reason: &str, out: &mut Outbox) {
        if self.lost.is_none() && self.members.is_there(node) {
            self.end(node, format!("it could not go on: {reason}"), out);
        }
    }

    /// Nodes that send heartbeats and do not do their part.
    pub(super) fn troubles(&self) -> Vec<Trouble> {
        let Self { settings, members, barriers, plans, placement, tables, liveness, now, .. } = self;
        let (notice_after, _) = self.timeouts.notice_after(members.steps());
        let ask_again = self.timeouts.ask_again_after();
        let view =
            LivenessView { now: *now, settings, members, barriers, plans, placement, tables, notice_after, ask_again };
        liveness.troubles(&view)
    }

    /// Ends the run because of the loss of `node`, and tells all other nodes.
    fn end(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        for other in self.members.everybody_ever().filter(|other| *other != node) {
            say(other, Control::Lost { node, reason: reason.clone() }, out);
        }
        self.touched = true;
        self.lost = Some((node, reason));
    }

    /// Handles the request of a server that was told to leave. The server repeats the request until
    /// it is answered, and the coordinator answers each time.
    pub(super) fn retire(&mut self, node: NodeId, out: &mut Outbox) {
        let NodeId::Server(index) = node else { return };
        match self.members.ask_to_leave(node, self.now) {
            None => return,
            Some(Leave::Gone) => return say(node, Control::Released, out),
            Some(Leave::Asked(since)) => {
                let request = LeaveRequest {
                    others: self.members.staying().iter().filter(|other| **other != index).count(),
                    replicas: self.settings.replicas(),
                    waited: self.now.since(since),
                    limit: self.timeouts.waits_for_others(),
                };
                if let Some(reason) = request.refusal(self.settings.is_elastic()) {
                    return say(node, Control::LeaveDeferred { reason }, out);
                }
                self.members.let_leave(node);
                self.note(node, "was told to leave: other servers take over its shards");
            }
            Some(Leave::Leaving) => {}
        }
        if self.placement.stop_backfilling(index) {
            self.plans.request();
        }
        self.repair();
    }

    /// Releases leaving servers that are in no chain any more.
    pub(super) fn release(&mut self, out: &mut Outbox) {
        if !self.plans.is_steady() {
            return;
        }
        let holds = |chains: &[Chain], server: u32| chains.iter().any(|chain| chain.holds(server));
        let is_held = |server: u32| holds(&self.plan().chains, server) || holds(self.placement.chains(), server);
        let free: Vec<u32> = self.members.leaving().filter(|server| !is_held(*server)).collect();
        for node in free.into_iter().map(NodeId::Server) {
            self.touched = true;
            self.members.depart(node);
            self.plans.forget(node);
            self.tables.forget(node, out);
            self.note(node, "has left: other servers hold its shards");
            say(node, Control::Released, out);
        }
    }
}
