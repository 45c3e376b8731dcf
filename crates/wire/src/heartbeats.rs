//! The heartbeats of a node: their numbers, the last one that the coordinator has answered, and the
//! peers that the node waits for and has not heard (failure detection between peers).
//!
//! A node sends a heartbeat to the coordinator and to each peer from which an answer is due. A peer
//! answers at once, whatever else it has to wait for. So silence of a peer means that the peer does
//! not run, or that the link to it is down in one direction or in both.

use crate::{Control, Frame, Head, Message, Outbox};
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, Span, Time};

/// A node's heartbeats, and the silence of the peers that it waits for.
///
/// ```
/// use types::{NodeId, Span, Time};
/// use wire::{Head, Heartbeats, Outbox};
///
/// let server = NodeId::Server(2);
/// let mut heartbeats = Heartbeats::default();
/// let own = Head::plain(NodeId::Worker(0), NodeId::Coordinator);
/// heartbeats.send(Time(0), own, [server], &mut Outbox::new());
/// heartbeats.send(Time(500), own, [server], &mut Outbox::new());
/// assert_eq!(heartbeats.silent_peers(), [(server, Span(500))]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    /// The number of the last heartbeat.
    sent: u64,
    /// The number of the last heartbeat that the coordinator has answered.
    answered: u64,
    /// When the last heartbeat was sent.
    sent_at: Time,
    /// Since when an answer is due from each peer that was not heard since.
    due: BTreeMap<NodeId, Time>,
}

impl Heartbeats {
    /// Sends a heartbeat to the coordinator and to each peer from which an answer is due
    /// (`awaited`). `own` is a head of this node to the coordinator. Returns the number of the
    /// heartbeat.
    pub fn send(&mut self, now: Time, own: Head, awaited: impl IntoIterator<Item = NodeId>, out: &mut Outbox) -> u64 {
        self.sent += 1;
        self.sent_at = now;
        let awaited: BTreeSet<NodeId> = awaited.into_iter().collect();
        self.due.retain(|peer, _| awaited.contains(peer));
        for peer in &awaited {
            self.due.entry(*peer).or_insert(now);
        }
        for to in std::iter::once(NodeId::Coordinator).chain(awaited) {
            let message = Message::Control(Control::Heartbeat { heard: self.answered });
            out.send(Frame { head: Head { to, number: self.sent, ..own }, message });
        }
        self.sent
    }

    /// Takes in that a frame with this head arrived.
    pub fn hear(&mut self, head: &Head, message: &Message) {
        if head.from != NodeId::Coordinator {
            self.due.remove(&head.from);
        } else if matches!(message, Message::Control(Control::Heartbeat { .. })) {
            self.answered = self.answered.max(head.number.min(self.sent));
        }
    }

    /// The answer to a heartbeat of a peer. None if the message is an answer itself.
    #[must_use]
    pub fn answer(own: NodeId, head: &Head) -> Option<Frame> {
        let message = Message::Control(Control::Heartbeat { heard: head.number });
        (head.number > 0).then(|| Frame { head: Head { source: head.source, ..Head::plain(own, head.from) }, message })
    }

    /// The peers from which an answer is due and that were not heard since, and for how long at the
    /// last heartbeat.
    #[must_use]
    pub fn silent_peers(&self) -> Vec<(NodeId, Span)> {
        let silent = self.due.iter().map(|(peer, since)| (*peer, self.sent_at.since(*since)));
        silent.filter(|(_, span)| *span > Span(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVERS: [NodeId; 2] = [NodeId::Server(0), NodeId::Server(1)];

    fn send(heartbeats: &mut Heartbeats, at: u64, awaited: &[NodeId]) -> Vec<Frame> {
        let mut out = Outbox::new();
        let own = Head::plain(NodeId::Server(7), NodeId::Coordinator);
        heartbeats.send(Time(at), own, awaited.iter().copied(), &mut out);
        out.drain().collect()
    }

    fn heard_number(frame: &Frame) -> u64 {
        let Message::Control(Control::Heartbeat { heard }) = frame.message else { panic!("a heartbeat: {frame:?}") };
        heard
    }

    #[test]
    fn heartbeats_name_the_last_answer_of_the_coordinator() {
        let mut heartbeats = Heartbeats::default();
        let first = send(&mut heartbeats, 0, &[]);
        send(&mut heartbeats, 1, &[]);
        assert_eq!((first.len(), first[0].head.number, heard_number(&first[0])), (1, 1, 0));
        // (the number in the coordinator's answer, the answer that the next heartbeat names)
        // An answer to a heartbeat that was never sent counts as one to the last.
        for (number, named) in [(2, 2), (1, 2), (99, 4), (0, 4)] {
            let head = Head { number, ..Head::plain(NodeId::Coordinator, NodeId::Server(7)) };
            heartbeats.hear(&head, &Message::Control(Control::Heartbeat { heard: 0 }));
            let next = send(&mut heartbeats, 2, &[]);
            assert_eq!(heard_number(&next[0]), named, "after {number}");
        }
    }

    #[test]
    fn peer_is_silent_while_an_answer_is_due_and_it_was_not_heard() {
        let mut heartbeats = Heartbeats::default();
        assert_eq!(send(&mut heartbeats, 0, &SERVERS).len(), 3, "the coordinator and both peers are asked");
        assert_eq!(heartbeats.silent_peers(), []);
        send(&mut heartbeats, 10, &SERVERS);
        let answer = Heartbeats::answer(SERVERS[0], &Head { number: 2, ..Head::plain(NodeId::Server(7), SERVERS[0]) });
        let answer = answer.expect("it is asked");
        heartbeats.hear(&answer.head, &answer.message);
        assert_eq!(Heartbeats::answer(NodeId::Server(7), &answer.head), None, "an answer is not answered");
        assert_eq!(heartbeats.silent_peers(), [(SERVERS[1], Span(10))]);
        send(&mut heartbeats, 30, &SERVERS);
        assert_eq!(heartbeats.silent_peers(), [(SERVERS[1], Span(30))], "the other is asked anew");
        send(&mut heartbeats, 40, &SERVERS[..1]);
        assert_eq!(heartbeats.silent_peers(), [(SERVERS[0], Span(10))], "nothing is due from the other any more");
    }
}
