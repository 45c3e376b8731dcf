//! Servers that leave in good order: what they hold goes to others first, and they are released
//! when nothing depends on them.

use super::{Coordinator, Membership, MembershipEvent};
use types::{NodeId, Time};
use wire::{Control, Outbox};

impl Coordinator {
    /// A server was told to leave. It says so again until it is answered, and is answered each
    /// time.
    pub(super) fn retire(&mut self, node: NodeId, out: &mut Outbox) {
        let NodeId::Server(index) = node else { return };
        let Some(member) = self.members.get_mut(&node) else { return };
        if member.gone {
            return Self::say(node, Control::Released, out);
        }
        let since = *member.would_leave.get_or_insert(self.now);
        if !member.leaving {
            if let Some(reason) = self.why_it_stays(index, since) {
                return Self::say(node, Control::LeaveDeferred { reason }, out);
            }
            self.members.get_mut(&node).into_iter().for_each(|member| member.leaving = true);
            self.events
                .push(MembershipEvent { node, what: "was told to leave: what it holds goes to others".to_owned() });
        }
        for chain in &mut self.chains {
            let before = chain.backfilling.len();
            chain.backfilling.retain(|member| *member != index);
            self.changed |= chain.backfilling.len() < before;
        }
        self.repair();
    }

    /// Why a server that would leave since then cannot yet, if that is so.
    fn why_it_stays(&self, server: u32, since: Time) -> Option<String> {
        if self.membership == Membership::Static {
            return Some("nobody can take its place in a run that nodes do not come to and go from".to_owned());
        }
        let (others, replicas) = (self.staying().into_iter().filter(|other| *other != server).count(), self.replicas());
        if others == 0 {
            let reason = "no other server is there to take over what it holds; start one, or tell the workers to leave";
            return Some(reason.to_owned());
        }
        let limit = self.waits_for_others();
        (others < replicas && self.now.since(since) < limit).then(|| {
            format!(
                "there would be fewer than {replicas} replicas without it; start another server, or it leaves after {} s all the same",
                limit.as_secs_f64()
            )
        })
    }

    /// Lets those go whom no plan needs any more.
    pub(super) fn release(&mut self, out: &mut Outbox) {
        if self.adoption.is_some() || self.changed {
            return;
        }
        let is_free = |index: u32| !self.chains.iter().chain(&self.plan.chains).any(|chain| chain.holds(index));
        let free = self.members.iter().filter(|(node, member)| {
            member.leaving && !member.gone && matches!(node, NodeId::Server(index) if is_free(*index))
        });
        for node in free.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.touched = true;
            self.members.get_mut(&node).into_iter().for_each(|member| member.gone = true);
            self.untold.remove(&node);
            self.forget_at_tables(node, out);
            self.events.push(MembershipEvent { node, what: "has left: others hold what it held".to_owned() });
            Self::say(node, Control::Released, out);
        }
    }
}
