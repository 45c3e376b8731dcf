//! Pushes through the parts of a shard. A part passes the once-only gate, is decoded and validated,
//! is applied or held for its clock, and is then finished in its stream. Clock markers and settings
//! pass the same gate.

use crate::intake::clocks::Contribution;
use crate::intake::gate::Entrance;
use crate::intake::validate::{check_setting, checked};
use crate::leases::applied::RUNS;
use crate::rows::resolve::NotApplied;
use crate::shard::Shard;
use crate::view::Row;
use types::WorkerId;
use update::Number;
use wire::{Acked, Frame, Head, KeyPart, Marker, Message, Outbox, Push, Refusal, Refused, Resend, ResendReason};
use wire::{Tune, Writes};

impl<T: Number> Shard<T> {
    /// Passes an item through the once-only gate. Returns its worker if it is the next item of the
    /// stream: the caller handles it, then [`finish`](Self::finish)es it. Answers any other item.
    fn admit(&mut self, head: &Head, settled: u64, out: &mut Outbox) -> Option<WorkerId> {
        match self.streams.judge(head.source, head.number, settled) {
            Entrance::Open(worker) => return Some(worker),
            Entrance::Finished => self.counts.repeated += 1,
            Entrance::Gap { worker, next } => {
                if let Some(next) = next {
                    self.ask_again(worker, next, ResendReason::Gap, out);
                }
            }
            Entrance::Expelled => {
                let refused = vec![Refused { number: head.number, refusal: Refusal::Expelled }];
                let acked =
                    Acked { table: self.identity.table, shard: self.identity.shard(), through: head.number, refused };
                let reply = Head { source: head.source, ..self.identity.plain_head(head.from) };
                out.send(Frame { head: reply, message: Message::Acked(acked) });
            }
        }
        None
    }

    /// Asks a worker to resend its stream from `next`.
    fn ask_again(&self, worker: WorkerId, next: u64, reason: ResendReason, out: &mut Outbox) {
        let resend = Resend { table: self.identity.table, shard: self.identity.shard(), next, reason };
        self.say(worker, Message::Resend(resend), out);
    }

    /// The worker's next item is finished: answers the worker's reads that waited for it.
    fn finish(&mut self, worker: WorkerId, refusal: Option<Refusal>, out: &mut Outbox) {
        let finished = self.streams.finish(worker, refusal);
        self.followers.replicas.note_progress(self.now);
        self.followers.replicas.note_push(worker);
        for read in self.reads.take_own(worker, finished) {
            self.try_read(read, None, out);
        }
    }

    /// Takes a part of a push.
    pub(super) fn take_push(&mut self, head: &Head, push: Push, out: &mut Outbox) {
        let Some(worker) = self.admit(head, push.settled, out) else { return };
        let writes = push.writes;
        let part = writes.lease();
        if let Some(clock) = part.and_then(|part| self.leases.held_in(part)) {
            // Another worker pushed this part before. It counts once, and so do its examples.
            self.counts.held_already += 1;
            return self.finish(worker, Some(Refusal::AlreadyHeld { clock }), out);
        }
        let done = self.check(worker, head, writes).and_then(|()| {
            let push = self.decoder.decode(head.codecs, push, &self.spec, &self.pool)?;
            match writes {
                Writes::Gradients { .. } => self.contribute(head, &push),
                Writes::Rows => self.put_in_place(head, &push),
                Writes::Nothing => self.delete(head, &push),
            }
        });
        if !matches!(done, Err(NotApplied::UnknownKeys(_) | NotApplied::Refuse(Refusal::TooManyLeases { .. }))) {
            // A refused part is held too: a second run of the lease would be refused again.
            let open = self.clocks.is_open(head.clock).then_some(head.clock);
            part.into_iter().for_each(|part| self.leases.hold(part, open));
        }
        match done {
            Ok(()) => {
                self.counts.parts += 1;
                self.finish(worker, None, out);
            }
            Err(NotApplied::UnknownKeys(signature)) => {
                let next = self.streams.ask_again(worker);
                self.ask_again(worker, next, ResendReason::UnknownKeys { signature }, out);
            }
            Err(NotApplied::Refuse(refusal)) => {
                self.counts.refused += 1;
                // The examples of a refused part count, because other shards count them too. They
                // may include those of earlier parts.
                self.count_examples(head);
                self.clocks.refused(worker, head.clock, &refusal);
                self.finish(worker, Some(refusal), out);
            }
        }
    }

    /// Checks that come before decoding. The clock is checked first, because most other refusals
    /// fail the clock that the part names.
    fn check(&self, worker: WorkerId, head: &Head, writes: Writes) -> Result<(), NotApplied> {
        self.clocks.check(worker, head.clock, writes)?;
        if writes.lease().is_some() && self.leases.is_full() {
            return Err(Refusal::TooManyLeases { most: RUNS as u64 }.into());
        }
        match writes {
            Writes::Nothing if self.rows.is_dense() => Err(Refusal::Dense.into()),
            Writes::Gradients { .. } | Writes::Rows | Writes::Nothing => Ok(()),
        }
    }

    /// Counts the examples of a push or a marker: now, or when its clock is applied.
    fn count_examples(&mut self, head: &Head) {
        let now = self.clocks.count_examples(head.clock, head.examples);
        self.rows.count_examples(now);
    }

    /// Checks a part whole, then applies it or holds it for its clock.
    pub(super) fn contribute(&mut self, head: &Head, push: &Push) -> Result<(), NotApplied> {
        let clock = head.clock;
        let values = checked(push, self.rows.width(), &mut self.rows)?;
        if values.is_empty() {
            // A part without rows only carries examples.
            self.count_examples(head);
            return Ok(());
        }
        let unseen = self.rows.unseen(&push.keys)?;
        let found = self.rows.resolve(&push.keys, true)?;
        self.count_examples(head);
        self.rows.make_pending(clock, &unseen);
        match self.clocks.contribution(clock, || self.rows.take_spare()) {
            Contribution::Apply => {
                self.rows.apply(clock, found.slots.slots(), values);
                self.followers.changed(found.rows(&push.keys));
            }
            Contribution::Hold(sum) => {
                sum.add(self.rows.width(), self.rows.slot_counts(), &found.slots, values);
                if self.followers.need_changes() {
                    self.clocks.will_change(clock, found.rows(&push.keys));
                }
                self.followers.changed_sums(clock, found.rows(&push.keys));
            }
            Contribution::Drop => {}
        }
        Ok(())
    }

    /// Sets rows: checks the part whole, then replaces the row state of its keys.
    fn put_in_place(&mut self, head: &Head, push: &Push) -> Result<(), NotApplied> {
        let values = checked(push, self.rows.row_state_width(), &mut self.rows)?;
        let found = self.rows.resolve(&push.keys, true)?;
        self.rows.count_examples(head.examples);
        // Cannot fail: the number of values was checked, and absent rows were made.
        let put = self.rows.put_row_state(&found.slots, values);
        debug_assert!(put.is_some(), "{} numbers do not fill the rows", values.len());
        self.followers.changed(found.rows(&push.keys));
        Ok(())
    }

    /// Deletes rows: at once in an `each` table, after the combined update of the push's clock in a
    /// `clock` table. Skips keys without a row.
    fn delete(&mut self, head: &Head, push: &Push) -> Result<(), NotApplied> {
        if !push.values.is_empty() {
            return Err(Refusal::WrongLength { expected: 0, found: push.values.len() as u64 }.into());
        }
        let count = self.check_count(&push.keys)?;
        let found = self.rows.resolve(&push.keys, false)?;
        let rows: Vec<Row> = found.rows(&push.keys).collect();
        if let KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. } = &push.keys
            && rows.len() as u64 != count
        {
            // The shard remembers only the slots of this list, and needs its positions: the worker
            // must send the keys in full.
            return Err(NotApplied::UnknownKeys(signature.0));
        }
        self.count_examples(head);
        let positions: Vec<u64> = rows.iter().map(|(position, _)| *position).collect();
        if self.clocks.takes_removal(head.clock, &positions) {
            self.followers.changed_sums(head.clock, rows.into_iter());
        } else {
            self.remove(&positions);
        }
        Ok(())
    }

    /// A worker has ended a clock.
    pub(super) fn take_marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox) {
        let Some(worker) = self.admit(head, marker.settled, out) else { return };
        self.count_examples(head);
        let moved = self.clocks.advance(worker, head.clock, marker.since);
        self.finish(worker, None, out);
        if moved {
            self.frontier_moved(worker, out);
        }
    }

    /// A worker changes a setting. Refuses a bad value, and settings at too many clocks.
    pub(super) fn take_tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox) {
        let Some(worker) = self.admit(head, tune.settled, out) else { return };
        let refusal = check_setting(tune.setting).and_then(|()| self.clocks.keep_setting(tune.at)).err();
        match refusal {
            None => self.rows.tune(tune.at, tune.setting),
            Some(_) => self.counts.refused += 1,
        }
        self.finish(worker, refusal, out);
    }
}
