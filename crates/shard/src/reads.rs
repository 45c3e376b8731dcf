//! Reads: answered at once, or parked until the frontier and the reader's own pushes allow an
//! answer.

pub(crate) mod active;
pub(crate) mod parked;

use crate::reads::parked::{ParkedRead, Parking};
use crate::rows::Resolved;
use crate::rows::resolve::{NotApplied, rows_of};
use crate::shard::Shard;
use std::sync::Arc;
use types::{CacheSpec, Clock, PARKED_READS, PART_BYTES, WorkerId};
use update::Number;
use wire::{CodecPipeline, FailedClock, Frame, KeyPart, Message, Outbox, Payload, PullRefused, Pulled, Refusal, Wants};

impl<T: Number> Shard<T> {
    /// Answers a read, or parks it until the frontier and the reader's own pushes allow an answer.
    pub(crate) fn try_read(&mut self, read: ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let exact = self.is_exact();
        let admits = |frontier| self.spec.consistency.admits(read.clock, frontier) && read.pull.frontier <= frontier;
        let bounded = self.spec.consistency.bound().is_some();
        let admitted = exact && admits(self.announced()) && (self.may_answer || !bounded);
        if !admitted && admits(self.frontier.value()) {
            // The read waits only for the replicas.
            self.peers.iter_mut().for_each(|peers| peers.open_batch.needed = true);
        }
        let has_own = self.streams[read.worker.0 as usize].finished() >= read.pull.after;
        if admitted && has_own {
            self.counts.reads += 1;
            return self.answer(&read, released_by, out);
        }
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let needed = Clock(read.clock.0.saturating_sub(slack)).max(read.pull.frontier);
        let needed = if exact { needed } else { needed.max(self.frontier.value()) };
        let (worker, request) = (read.worker, read.pull.request);
        match self.parked.park(read, (!admitted).then_some(needed)) {
            Parking::Parked => {
                self.counts.parked += 1;
                self.counts.most_parked = self.counts.most_parked.max(self.parked.len() as u64);
            }
            Parking::Known => {}
            Parking::Full => {
                let refusal = Refusal::TooManyReads { most: PARKED_READS as u64 };
                let (table, shard) = (self.table, self.placed.shard);
                self.say(worker, Message::PullRefused(PullRefused { table, shard, request, refusal }), out);
            }
        }
    }

    fn answer(&mut self, read: &ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let mut head = self.head(read.worker);
        let message = match self.collect(read, released_by) {
            Ok(mut pulled) => {
                if let (Some(delta), Some(0)) = (read.pull.deltas, read.pull.keys.count()) {
                    pulled.sequence = self.send_deltas(read.worker, delta, out);
                }
                head.codecs = self.encode(&mut pulled);
                Message::Pulled(pulled)
            }
            Err(stop) => {
                let refusal = match stop {
                    NotApplied::Refuse(refusal) => refusal,
                    NotApplied::UnknownKeys(signature) => Refusal::UnknownKeys { signature },
                };
                let request = read.pull.request;
                Message::PullRefused(PullRefused { table: self.table, shard: self.placed.shard, request, refusal })
            }
        };
        out.send(Frame { head, message });
    }

    /// Encodes what is read, where the table has an exact codec for that. What a scan finds goes as
    /// it is.
    fn encode(&mut self, pulled: &mut Pulled) -> CodecPipeline {
        let Some(encoder) = self.encoder.as_mut().filter(|_| pulled.positions.is_empty()) else {
            return CodecPipeline::default();
        };
        // Exact codecs remember nothing, so it does not matter which rows these are.
        let encoded = encoder.encode(codec::BatchRows::List(&[]), pulled.values.bytes());
        encoded.map_or_else(CodecPipeline::default, |(bytes, formats)| {
            pulled.values = Payload::new(bytes);
            CodecPipeline(formats.0)
        })
    }

    fn collect(&mut self, read: &ParkedRead, released_by: Option<WorkerId>) -> Result<Pulled, NotApplied> {
        let pull = &read.pull;
        match pull.wants {
            Wants::Values => {}
            Wants::Active => return self.collect_active(read, released_by),
            Wants::RowState => return self.collect_row_state(read, released_by),
        }
        let row_bytes = self.spec.row_bytes();
        let mut positions = Payload::EMPTY;
        let mut more = None;
        let subscribes = pull.subscribe && self.spec.consistency.is_eager() && pull.keys.count().is_some();
        let joins = pull.deltas.is_some() && self.delta_log.is_some() && pull.keys.count().is_some();
        let mut read_rows = Vec::new();
        let (resolved, count) = match &pull.keys {
            KeyPart::Scan { range } => {
                let (found, resolved, next) = self.scan_shown(*range, (PART_BYTES / (row_bytes + 8)).max(1));
                positions = self.pool.copy(&found);
                more = next;
                (Arc::new(resolved), found.len())
            }
            keys => {
                let (resolved, list, count) = self.resolve_read(keys)?;
                if subscribes || joins {
                    read_rows = rows_of(keys, list.as_ref(), &resolved).collect();
                }
                (resolved, count)
            }
        };
        if let Some(values) = self.rows.lend(&resolved).filter(|_| !joins && !subscribes) {
            return Ok(Pulled { more, positions, values, ..self.answered(read, released_by) });
        }
        let mut values = self.pool.take(count * row_bytes);
        self.rows.read(self.frontier.value(), resolved.slots(), values.numbers_mut::<T>());
        let sequence = match self.spec.cache {
            _ if joins => self.delta_log.as_mut().and_then(|delta_log| {
                let positions: Vec<u64> = read_rows.iter().map(|(position, _)| *position).collect();
                let begun = self.held.last_key_value().map_or(Clock(0), |(clock, _)| clock.next());
                // Only tables of f32 have a delta log.
                delta_log.join(begun, &positions, bytemuck::cast_slice_mut(values.numbers_mut::<T>()))
            }),
            CacheSpec::Rows { max_rows } if subscribes => {
                let announced = self.announced();
                self.subscribers.subscribe(read.worker, announced, &read_rows, max_rows)
            }
            _ => None,
        };
        Ok(Pulled { sequence, more, positions, values: values.freeze(), ..self.answered(read, released_by) })
    }

    /// Finds the rows that a read names, and makes those that a read creates. Returns where they
    /// lie, the positions of a list, and how many keys the read names.
    pub(crate) fn resolve_read(
        &mut self,
        keys: &KeyPart,
    ) -> Result<(Arc<Resolved>, Option<Payload>, usize), NotApplied> {
        let count = self.check_count(keys)?;
        let create = self.rows.reads_create();
        let (resolved, list) = self.resolve(keys, create)?;
        if create {
            self.pending_rows.read(rows_of(keys, list.as_ref(), &resolved).map(|(position, _)| position));
        }
        Ok((resolved, list, count as usize))
    }

    /// How many keys a read names, unless they are more than a part of a read ever names.
    pub(crate) fn check_count(&self, keys: &KeyPart) -> Result<u64, Refusal> {
        let count = keys.count().unwrap_or(0);
        let bytes = count.saturating_mul(self.spec.row_bytes() as u64);
        if bytes > PART_BYTES as u64 {
            return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes });
        }
        Ok(count)
    }

    /// An answer without rows.
    pub(crate) fn answered(&self, read: &ParkedRead, released_by: Option<WorkerId>) -> Pulled {
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let in_view = |failed: &&FailedClock| failed.clock.0.saturating_add(slack).saturating_add(1) >= read.clock.0;
        Pulled {
            table: self.table,
            shard: self.placed.shard,
            request: read.pull.request,
            contains: self.streams[read.worker.0 as usize].finished(),
            sequence: None,
            released_by,
            failed: self.failed.iter().filter(in_view).cloned().collect(),
            more: None,
            positions: Payload::EMPTY,
            values: Payload::EMPTY,
        }
    }
}
