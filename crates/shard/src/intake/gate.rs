//! The once-only gate at work: lets the next item of a worker's stream in, and answers for every
//! other.

use crate::intake::stream::Verdict;
use crate::shard::Shard;
use types::WorkerId;
use update::Number;
use wire::{Acked, Frame, Head, Message, Outbox, Refusal, Refused, Resend, ResendReason};

impl<T: Number> Shard<T> {
    /// Lets the next item of a worker's stream in, or answers for it. `Some` means: do it, then
    /// `finish`.
    pub(crate) fn gate(&mut self, head: &Head, settled: u64, out: &mut Outbox) -> Option<WorkerId> {
        let (table, shard) = (self.table, self.placed.shard);
        let Some(&worker) = self.ranks.get(&head.source) else {
            let refused = vec![Refused { number: head.number, refusal: Refusal::Expelled }];
            let acked = Acked { table, shard, through: head.number, refused };
            let mut reply = Head::plain(self.placed.owner, head.from);
            reply.source = head.source;
            out.send(Frame { head: reply, message: Message::Acked(acked) });
            return None;
        };
        let stream = &mut self.streams[worker.0 as usize];
        stream.settle(settled);
        match stream.judge(head.number) {
            Verdict::Fresh => Some(worker),
            Verdict::Finished => {
                self.counts.repeated += 1;
                self.unacknowledged.push(worker);
                None
            }
            Verdict::Gap => {
                self.ask_again(worker, ResendReason::Gap, out);
                None
            }
        }
    }

    pub(crate) fn ask_again(&mut self, worker: WorkerId, reason: ResendReason, out: &mut Outbox) {
        let stream = &mut self.streams[worker.0 as usize];
        if !stream.ask() && reason == ResendReason::Gap {
            return;
        }
        let next = stream.finished().saturating_add(1);
        let resend = Resend { table: self.table, shard: self.placed.shard, next, reason };
        self.say(worker, Message::Resend(resend), out);
    }

    pub(crate) fn finish(&mut self, worker: WorkerId, refusal: Option<Refusal>, out: &mut Outbox) {
        self.streams[worker.0 as usize].finish(refusal);
        self.note_progress();
        self.peers.iter_mut().for_each(|peers| peers.open_batch.pushed(worker));
        self.unacknowledged.push(worker);
        let finished = self.streams[worker.0 as usize].finished();
        for read in self.parked.take_own(worker, finished) {
            self.try_read(read, None, out);
        }
    }
}
