//! The serving lease: a server acknowledges writes and answers bounded reads only while it is
//! valid.
//!
//! Each acknowledged heartbeat renews the lease, by the server's own clock. The coordinator waits
//! longer than the lease lasts before it promotes another replica, so the two never overlap.

use super::Server;
use std::collections::VecDeque;
use types::{NodeId, Span, Time};
use wire::{Control, Frame, Head, Message, Outbox};

/// Until when a server may answer for its shards.
pub(super) struct ServingLease {
    length: Span,
    /// None before a heartbeat was answered.
    until: Option<Time>,
    /// Heartbeats that were not acknowledged yet: their numbers, and when they were sent.
    asked: VecDeque<(u64, Time)>,
    pub holds: bool,
}

/// How many heartbeats may be unacknowledged.
const HEARTBEATS: usize = 64;

impl Server {
    /// Gives the server a serving lease of this length. It is not valid before the first heartbeat
    /// is acknowledged: the server cannot know how long ago it was told to begin.
    #[must_use]
    pub fn leased(mut self, length: Option<Span>) -> Self {
        self.lease = length.map(|length| ServingLease { length, until: None, asked: VecDeque::new(), holds: false });
        self
    }

    /// Sends a heartbeat, which also asks to renew the serving lease.
    pub fn heartbeat(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        let mut head = Head::plain(self.node, NodeId::Coordinator);
        head.clock = self.furthest();
        if let Some(lease) = &mut self.lease {
            self.heartbeats += 1;
            head.number = self.heartbeats;
            lease.asked.push_back((self.heartbeats, now));
            if lease.asked.len() > HEARTBEATS {
                lease.asked.pop_front();
            }
        }
        out.send(Frame { head, message: Message::Control(Control::Heartbeat) });
        self.mind_lease(out);
    }

    /// Stops answering when its lease has ended, and goes on when it has another.
    pub(super) fn mind_lease(&mut self, out: &mut Outbox) {
        let Some(lease) = &mut self.lease else { return };
        let holds = lease.until.is_some_and(|until| self.now <= until);
        if std::mem::replace(&mut lease.holds, holds) != holds {
            self.touched.extend(self.shards.keys().copied());
            let answers = self.shards.iter_mut().filter(|(name, _)| !self.waiting.contains(name));
            answers.for_each(|(_, shard)| shard.answer(holds, out));
        }
    }

    /// A heartbeat of this number was answered: the lease lasts from when it was sent.
    pub(super) fn heartbeat_answered(&mut self, answered: u64, out: &mut Outbox) {
        if let Some(lease) = &mut self.lease {
            let asked = lease.asked.iter().find(|(number, _)| *number == answered);
            lease.until = lease.until.max(asked.map(|(_, sent)| *sent + lease.length));
            lease.asked.retain(|(number, _)| *number > answered);
        }
        self.mind_lease(out);
    }
}
