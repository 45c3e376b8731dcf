//! Reads through the parts of a shard. A read is admitted, or parked until the frontier and the
//! reader's own pushes allow an answer. Then its values are collected from the rows and sent.

use crate::follow::Followers;
use crate::intake::decode::unpacked;
use crate::reads::parked::{ParkedRead, Parking};
use crate::rows::resolve::{FoundRows, NotApplied};
use crate::shard::Shard;
use std::sync::Arc;
use types::{CacheSpec, PARKED_READS, PART_BYTES, Time, WorkerId};
use update::Number;
use wire::{FailedClock, Frame, Head, KeyPart, Message, Outbox, Pull, PullRefused, Pulled, Refusal, Wants};

impl<T: Number> Shard<T> {
    /// Takes a part of a read: answers it, parks it or refuses it.
    pub(super) fn start_read(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox) {
        if let Wants::Changes { cursor } = pull.wants {
            return self.answer_feed(now, head, cursor, &pull, out);
        }
        let Some(worker) = self.streams.worker(head.source) else {
            let reply = Head { source: head.source, ..self.identity.plain_head(head.from) };
            let message = Message::PullRefused(self.refused(pull.request, Refusal::Expelled));
            return out.send(Frame { head: reply, message });
        };
        let request = pull.request;
        match unpacked(pull.keys) {
            Ok(keys) => {
                let pull = Pull { keys, ..pull };
                self.try_read(ParkedRead { worker, clock: head.clock, since: now, pull }, None, out);
            }
            Err(refusal) => self.say(worker, Message::PullRefused(self.refused(request, refusal)), out),
        }
    }

    /// The refusal of a read.
    pub(super) fn refused(&self, request: u64, refusal: Refusal) -> PullRefused {
        PullRefused { table: self.identity.table, shard: self.identity.shard(), request, refusal }
    }

    /// Answers a read, or parks it until the frontier and the reader's own pushes allow an answer.
    /// `released_by`: the worker that moved the frontier, if the read waited for that.
    pub(super) fn try_read(&mut self, read: ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let exact = self.is_exact();
        let frontier = self.clocks.frontier();
        let admits = |frontier| self.spec.consistency.admits(read.clock, frontier) && read.pull.frontier <= frontier;
        let bounded = self.spec.consistency.bound().is_some();
        let admitted = exact && admits(self.announced()) && (self.serving.may_answer() || !bounded);
        if !admitted && admits(frontier) {
            // The read waits only until the replicas hold the frontier.
            self.followers.replicas.need_batch();
        }
        let has_own = self.streams.finished(read.worker) >= read.pull.after;
        if admitted && has_own {
            self.reads.count_answer();
            return self.answer(&read, released_by, out);
        }
        let needed = self.spec.consistency.needed(read.clock).max(read.pull.frontier);
        let needed = if exact { needed } else { needed.max(frontier) };
        let worker = read.worker;
        let request = read.pull.request;
        if self.reads.park(read, (!admitted).then_some(needed)) == Parking::Full {
            let refusal = Refusal::TooManyReads { most: PARKED_READS as u64 };
            self.say(worker, Message::PullRefused(self.refused(request, refusal)), out);
        }
    }

    /// Answers a read, with the deltas that it asks for.
    fn answer(&mut self, read: &ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let mut head = self.head(read.worker);
        let message = match self.collect(read, released_by) {
            Ok(mut pulled) => {
                if let (Some(after), Some(0)) = (read.pull.deltas, read.pull.keys.count()) {
                    let deltas = self.followers.deltas.as_ref();
                    pulled.sequence = deltas.and_then(|deltas| deltas.send(after, head, &self.view(), out));
                }
                head.codecs = self.reads.encode(&mut pulled);
                Message::Pulled(pulled)
            }
            Err(NotApplied::Refuse(refusal)) => Message::PullRefused(self.refused(read.pull.request, refusal)),
            Err(NotApplied::UnknownKeys(signature)) => {
                Message::PullRefused(self.refused(read.pull.request, Refusal::UnknownKeys { signature }))
            }
        };
        out.send(Frame { head, message });
    }

    fn collect(&mut self, read: &ParkedRead, released_by: Option<WorkerId>) -> Result<Pulled, NotApplied> {
        let answered = self.answered(read, released_by);
        match read.pull.wants {
            Wants::Values => self.collect_values(read, answered),
            Wants::Active => self.collect_active(read, answered),
            Wants::RowState => self.collect_row_state(read, answered),
            // `start_read` has answered this one: it is never parked.
            Wants::Changes { .. } => Err(Refusal::Undecodable.into()),
        }
    }

    /// The values of the rows that are read.
    fn collect_values(&mut self, read: &ParkedRead, answered: Pulled) -> Result<Pulled, NotApplied> {
        let pull = &read.pull;
        let row_bytes = self.spec.row_bytes();
        let names_keys = pull.keys.count().is_some();
        let subscribes = pull.subscribe && self.spec.consistency.is_eager() && names_keys;
        let joins = pull.deltas.is_some() && self.followers.deltas.is_some() && names_keys;
        let (found, count, answered) = match &pull.keys {
            KeyPart::Scan { range } => {
                let (found, resolved, more) = self.rows.scan_shown(*range, (PART_BYTES / (row_bytes + 8)).max(1));
                let rows = FoundRows { slots: Arc::new(resolved), positions: None };
                (rows, found.len(), Pulled { more, positions: self.pool.copy(&found), ..answered })
            }
            keys => {
                let (found, count) = self.resolve_read(keys)?;
                (found, count, answered)
            }
        };
        if let Some(values) = self.rows.lend(&found.slots).filter(|_| !joins && !subscribes) {
            return Ok(Pulled { values, ..answered });
        }
        let mut values = self.pool.take(count * row_bytes);
        self.rows.read(self.clocks.frontier(), found.slots.slots(), values.numbers_mut::<T>());
        let sequence = match self.spec.cache {
            _ if joins => self.followers.deltas.as_mut().and_then(|deltas| {
                let last = self.followers.log.last();
                let positions: Vec<u64> = found.rows(&pull.keys).map(|(position, _)| position).collect();
                // Only tables of f32 have a delta log.
                deltas.join(last, &positions, bytemuck::cast_slice_mut(values.numbers_mut::<T>()))
            }),
            CacheSpec::Rows { max_rows } if subscribes => {
                let announced = self.announced();
                let rows: Vec<(u64, u32)> = found.rows(&pull.keys).collect();
                let Followers { log, subscribers, .. } = &mut self.followers;
                subscribers.subscribe(read.worker, announced, &rows, max_rows, log.last())
            }
            CacheSpec::Rows { .. } | CacheSpec::Off => None,
        };
        Ok(Pulled { sequence, values: values.freeze(), ..answered })
    }

    /// Which of the rows that are read are active, a bit for each.
    fn collect_active(&mut self, read: &ParkedRead, answered: Pulled) -> Result<Pulled, NotApplied> {
        self.check_count(&read.pull.keys)?;
        let found = self.rows.resolve(&read.pull.keys, false)?;
        let slots: Vec<u32> = found.slots.each().collect();
        Ok(Pulled { positions: self.pool.copy(self.rows.active_bits(&slots).bytes()), ..answered })
    }

    /// The state of the rows that are read: as many of the first rows as one part holds.
    fn collect_row_state(&mut self, read: &ParkedRead, answered: Pulled) -> Result<Pulled, NotApplied> {
        let row_bytes = self.rows.row_state_bytes();
        if row_bytes > PART_BYTES {
            return Err(Refusal::WideRows { bytes: row_bytes as u64 }.into());
        }
        let most = (PART_BYTES / (row_bytes + 8)).max(1);
        let mut more = None;
        let (positions, slots): (Vec<u64>, Vec<u32>) = match &read.pull.keys {
            KeyPart::Scan { range } => {
                let (found, resolved, next) = self.rows.scan_shown(*range, most);
                more = next;
                (found, resolved.each().collect())
            }
            keys => {
                let (found, count) = self.resolve_read(keys)?;
                let rows: (Vec<u64>, Vec<u32>) = found.rows(keys).take(most).unzip();
                if let KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. } = keys
                    && rows.0.len() < most.min(count)
                {
                    // The shard remembers only the slots of this list, and needs its positions: the
                    // worker must send the keys in full.
                    return Err(NotApplied::UnknownKeys(signature.0));
                }
                rows
            }
        };
        let values = self.rows.row_states(slots.into_iter(), &self.pool);
        Ok(Pulled { more, positions: self.pool.copy(&positions), values, ..answered })
    }

    /// Finds the rows that a read names, and makes absent ones if reads of this table do. Returns
    /// the rows and the number of keys.
    fn resolve_read(&mut self, keys: &KeyPart) -> Result<(FoundRows, usize), NotApplied> {
        let count = self.check_count(keys)?;
        let create = self.rows.reads_create();
        let found = self.rows.resolve(keys, create)?;
        if create {
            self.rows.made_by_read(found.rows(keys).map(|(position, _)| position));
        }
        Ok((found, count as usize))
    }

    /// How many keys a part names. Refuses more keys than a part may name.
    pub(super) fn check_count(&self, keys: &KeyPart) -> Result<u64, Refusal> {
        let count = keys.count().unwrap_or(0);
        let bytes = count.saturating_mul(self.spec.row_bytes() as u64);
        if bytes > PART_BYTES as u64 {
            return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes });
        }
        Ok(count)
    }

    /// An answer to a read, still without rows.
    fn answered(&self, read: &ParkedRead, released_by: Option<WorkerId>) -> Pulled {
        let in_view = |failed: &&FailedClock| self.spec.consistency.reports_failure(read.clock, failed.clock);
        Pulled {
            contains: self.streams.finished(read.worker),
            released_by,
            failed: self.clocks.failed().filter(in_view).cloned().collect(),
            ..Pulled::empty(self.identity.table, self.identity.shard(), read.pull.request)
        }
    }
}
