//! What a worker does with the frames that it receives, and retransmission: after a gap, a
//! reconnection or a timeout, the worker resends everything that is not acknowledged.
#![deny(clippy::wildcard_enum_match_arm)]

mod answers;
mod control;
mod deltas;

use super::Worker;
use crate::Notice;
use crate::send::message::StreamMessage;
use crate::send::stream::ShardStream;
use std::collections::BTreeSet;
use types::{Clock, NodeId, TableId, Time};
use wire::{Frame, Message, Outbox, Refusal, ResendReason, Signature};

impl Worker {
    /// Handles a frame that arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let Frame { head, message } = frame;
        if !self.identity.heeds(&head) {
            return;
        }
        self.heartbeats.hear(&head, &message);
        match message {
            Message::Acked(acked) => {
                let Some(stream) = self.stream(acked.table, acked.shard) else { return };
                stream.touch(now);
                stream.reaches(head.clock);
                let finished = stream.finish(acked.through);
                let parts = finished.iter().filter(|sent| matches!(sent.message, StreamMessage::Push { .. })).count();
                if self.link.arrived(now, parts) {
                    self.rate_changed();
                }
                // A shard that has expelled this worker answers for the item that arrived. It does
                // not know of earlier items that were lost on the way, so those count as refused,
                // too.
                let is_expelled = acked.refused.iter().any(|refused| refused.refusal == Refusal::Expelled);
                for sent in finished {
                    let refused = acked.refused.iter().find(|refused| refused.number == sent.number);
                    let refusal = refused.map(|refused| refused.refusal.clone());
                    let refusal = refusal.or_else(|| is_expelled.then_some(Refusal::Expelled));
                    if let (Some(_), StreamMessage::Push { keys, .. }) = (&refusal, &sent.message)
                        && let Some(table) = self.tables.get_mut(&acked.table)
                    {
                        table.cache.drop_rows(keys);
                    }
                    self.message_done(sent.message, refusal);
                }
                self.frontier_moved(acked.table);
            }
            Message::Resend(resend) => self.resend(now, &resend, out),
            Message::Pulled(pulled) => {
                self.pulled(now, &head, &pulled, out);
                self.frontier_moved(pulled.table);
            }
            Message::PullRefused(refused) => {
                let sender = self.head();
                let Some(stream) = self.stream(refused.table, refused.shard) else { return };
                stream.touch(now);
                if stream.take_frontier_answer(refused.request) {
                    // Lets the waiting pushes go: the shard will refuse them, each with its reason.
                    stream.reaches(Clock(u64::MAX));
                } else if let Some(reading) = stream.take_read(refused.request) {
                    if let Refusal::UnknownKeys { signature } = refused.refusal {
                        stream.forget(Signature(signature));
                        stream.read(sender, refused.request, reading, out);
                    } else {
                        let ticket = reading.ticket;
                        stream.next_read(sender, out);
                        self.part_done(ticket, Some(refused.refusal));
                    }
                }
                self.frontier_moved(refused.table);
            }
            Message::ReadWaiting(waiting) => {
                let Some(table) = self.tables.get(&waiting.table) else { return };
                let name = table.spec.name.clone();
                let on = waiting.on;
                let stream = table.streams.get(waiting.shard.0 as usize);
                self.notices.push(if stream.is_some_and(|stream| stream.is_frontier_request(waiting.request)) {
                    Notice::Push { table: name, on }
                } else {
                    Notice::Read { table: name, on }
                });
            }
            Message::Refresh(refresh) => self.refreshed(&head, &refresh, out),
            Message::Delta(delta) => self.delta_received(&head, &delta),
            Message::Control(control) => self.controlled(now, control, out),
            Message::Push(_)
            | Message::Marker(_)
            | Message::Tune(_)
            | Message::Pull(_)
            | Message::Refreshed(_)
            | Message::ReplicaChunk(_)
            | Message::Replicated(_) => {}
        }
        self.proceed(now, out);
    }

    fn stream(&mut self, table: TableId, shard: types::ShardId) -> Option<&mut ShardStream> {
        self.tables.get_mut(&table)?.streams.get_mut(shard.0 as usize)
    }

    fn message_done(&mut self, message: StreamMessage, refusal: Option<Refusal>) {
        match message {
            StreamMessage::Push { ticket, .. } => {
                self.link.release(&message);
                // Another worker pushed this part of a lease before. It counts once, as a success.
                let refusal = if let Some(Refusal::AlreadyHeld { clock }) = refusal {
                    self.counts.held_already += 1;
                    self.already_held(ticket, clock);
                    None
                } else {
                    refusal
                };
                self.counts.refused += u64::from(refusal.is_some());
                self.part_done(ticket, refusal);
            }
            StreamMessage::Tune { ticket, .. } => self.part_done(ticket, refusal),
            StreamMessage::Marker => {}
        }
    }

    fn resend(&mut self, now: Time, resend: &wire::Resend, out: &mut Outbox) {
        let head = self.head();
        let Some(stream) = self.stream(resend.table, resend.shard) else { return };
        stream.touch(now);
        if let ResendReason::UnknownKeys { signature } = resend.reason {
            stream.forget(Signature(signature));
        }
        let frames = stream.resend(head, resend.next);
        self.counts.resent += frames.len() as u64;
        self.link.send_again(frames, out);
    }

    /// The connection to `node` is restored: resends everything that the old one may have lost.
    pub fn reconnected(&mut self, now: Time, node: NodeId, out: &mut Outbox) {
        let head = self.head();
        if node == NodeId::Coordinator {
            return self.ask_again(out);
        }
        let streams = self.tables.values_mut().flat_map(|table| &mut table.streams);
        for stream in streams.filter(|stream| stream.owner() == node) {
            stream.touch(now);
            let mut frames = stream.resend(head, 0);
            frames.extend(stream.resend_reads(head));
            self.counts.resent += frames.len() as u64;
            self.link.send_again(frames, out);
        }
    }

    fn ask_again(&self, out: &mut Outbox) {
        self.asked.unanswered().for_each(|request| self.control(request, out));
        self.leases.unanswered().into_iter().for_each(|request| self.control(request, out));
    }

    /// Time has passed: sends what may be sent by now. Over a transport that loses messages, also
    /// resends what was not answered within the resend timeout.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.proceed(now, out);
        let Some(after) = self.settings.resend_after else { return };
        if self.asked.is_due(now, after) {
            self.ask_again(out);
        }
        let overdue: BTreeSet<NodeId> = self
            .tables
            .values()
            .flat_map(|table| &table.streams)
            .filter(|stream| stream.is_overdue(now, after))
            .map(ShardStream::owner)
            .collect();
        for node in overdue {
            self.reconnected(now, node, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use crate::testing::{TABLE, acknowledge, ones, worker_with_table};
    use types::{Consistency, TableSpec};
    use wire::{Keys, Refused};

    #[test]
    fn expelled_worker_fails_pushes_that_were_lost_on_the_way() {
        let spec = TableSpec::dense("t", 1, 1).consistency(Consistency::Unbounded);
        let mut worker = worker_with_table(spec, 1);
        let mut out = Outbox::new();
        let mut push = |worker: &mut Worker| {
            let batch = ones(Keys::run(0..1), 1, 1);
            worker.submit(Time(0), TABLE, Op::Push { batch }, None, &[], &mut out).expect("it fits")
        };
        let tickets = [push(&mut worker), push(&mut worker)];
        // The first push was lost. The shard has expelled the worker, and refuses the second one.
        let refused = vec![Refused { number: 2, refusal: Refusal::Expelled }];
        acknowledge(&mut worker, Time(0), 0, 2, refused, &mut out);
        for ticket in tickets {
            let failed = worker.take(ticket).expect("it is finished").expect_err("it was refused");
            assert_eq!(failed.1.refusal, Refusal::Expelled);
        }
    }
}
