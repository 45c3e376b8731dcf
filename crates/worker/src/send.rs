//! The sending side of a worker: the network link to the servers, the stream to each shard, and the
//! codecs of pushes.
//!
//! | part | state that it owns |
//! | --- | --- |
//! | [`Link`] | the measured rate, the bound on it, waiting parts, unacknowledged bytes |
//! | [`stream::ShardStream`] | the numbered stream to one shard, reads under way, known key lists |
//! | [`push_codec::PushCodec`] | the encoders of one table, and their residuals |

pub(crate) mod link_rate;
pub(crate) mod message;
pub(crate) mod pacing;
pub(crate) mod push_codec;
pub(crate) mod stream;

use crate::PART_COST;
use link_rate::LinkRate;
use message::{StreamMessage, frame_bytes};
use pacing::{PACED_BYTES, PacedPart, Pacer, Turn};
use stream::ShardStream;
use types::{Bandwidth, Clock, TableId, Time};
use wire::{Frame, Head, Outbox};

/// The network link of a worker to the servers.
#[derive(Default)]
pub(crate) struct Link {
    rate: LinkRate,
    /// `None` while bandwidth is not bounded.
    pacer: Option<Pacer>,
    /// Bytes of messages that wait for bandwidth or are not acknowledged.
    unacknowledged_bytes: usize,
}

impl Link {
    /// Whether bandwidth is bounded.
    pub fn is_bounded(&self) -> bool {
        self.pacer.is_some()
    }

    /// The rate in bytes per second: as measured or as bounded, whichever is lower; `None` until
    /// one is known.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let measured = self.rate.bytes_per_second();
        match (&self.pacer, measured) {
            (Some(pacer), measured) => Some(measured.map_or(pacer.rate(), |measured| measured.min(pacer.rate()))),
            (None, measured) => measured,
        }
    }

    /// Bounds the bandwidth from now on.
    pub fn bound(&mut self, now: Time, bandwidth: Bandwidth) {
        match &mut self.pacer {
            Some(pacer) => pacer.set_rate(now, bandwidth),
            pacer @ None => *pacer = Some(Pacer::new(now, bandwidth)),
        }
    }

    /// Lifts the bound. Call it when no part waits.
    pub fn lift_bound(&mut self) {
        self.pacer = None;
    }

    /// The most bytes that a part of a push may have. Bounded links have small parts, so that there
    /// is a choice which part goes next.
    pub fn part_bytes(&self) -> Option<usize> {
        self.pacer.as_ref().map(|_| PACED_BYTES)
    }

    /// Counts the bytes of a message as held, until it is [released](Self::release).
    pub fn hold(&mut self, message: &StreamMessage) {
        self.unacknowledged_bytes += message.held_bytes() + PART_COST;
    }

    /// Stops counting a message, because it is acknowledged.
    pub fn release(&mut self, message: &StreamMessage) {
        self.unacknowledged_bytes -= message.held_bytes() + PART_COST;
    }

    /// Bytes of messages that wait for bandwidth or are not acknowledged.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacknowledged_bytes
    }

    /// Measures the rate from this many acknowledged parts of pushes. Returns whether there is a
    /// new estimate.
    pub fn arrived(&mut self, now: Time, parts: usize) -> bool {
        self.rate.arrived(now, parts)
    }

    /// Sends a frame that cannot wait, and charges it to the bound, so that later frames wait
    /// longer.
    pub fn send(&mut self, frame: Frame, out: &mut Outbox) {
        if let Some(pacer) = &mut self.pacer {
            pacer.spend(frame_bytes(&frame));
        }
        out.send(frame);
    }

    /// Resends frames. They cannot wait, and are charged to the bound.
    pub fn send_again(&mut self, frames: Vec<Frame>, out: &mut Outbox) {
        if let Some(pacer) = &mut self.pacer {
            pacer.charge_resent(&frames);
        }
        frames.into_iter().for_each(|frame| out.send(frame));
    }

    /// Sends a part of a push at once, and charges it to the bound.
    pub fn send_part(
        &mut self,
        now: Time,
        stream: &mut ShardStream,
        head: Head,
        message: StreamMessage,
        out: &mut Outbox,
    ) {
        stream.touch(now);
        let frame = stream.append_with_examples(head, message);
        let bytes = frame_bytes(&frame);
        self.rate.sent(now, bytes as u64);
        if let Some(pacer) = &mut self.pacer {
            pacer.spend(bytes);
        }
        out.send(frame);
    }

    /// Has a part of a push wait for bandwidth. Returns its number in the order of waiting parts; 0
    /// if bandwidth is not bounded.
    pub fn wait(&mut self, part: PacedPart) -> u64 {
        self.pacer.as_mut().map_or(0, |pacer| pacer.add(part))
    }

    /// Whether the part of this number still waits.
    pub fn has_waiting_part(&self, number: u64) -> bool {
        self.pacer.as_ref().is_some_and(|pacer| pacer.has(number))
    }

    /// The number of the last part that had to wait; `None` if bandwidth is not bounded.
    pub fn last_part(&self) -> Option<u64> {
        self.pacer.as_ref().map(Pacer::made)
    }

    /// The number of the first part of a table that waits for bandwidth.
    pub fn first_waiting(&self, table: TableId) -> Option<u64> {
        self.pacer.as_ref().and_then(|pacer| pacer.first_of(table))
    }

    /// A read waits for the parts of its table up to `last`: they go before other parts.
    pub fn expect(&mut self, table: TableId, last: u64) {
        if let Some(pacer) = &mut self.pacer {
            pacer.expect(table, last);
        }
    }

    /// Whether nothing waits for bandwidth.
    pub fn is_idle(&self) -> bool {
        self.pacer.as_ref().is_none_or(Pacer::is_empty)
    }

    /// Frees the values of waiting parts, in a run that is over.
    pub fn free_values(&mut self) {
        self.pacer.iter_mut().for_each(Pacer::free_values);
    }

    /// Ends a clock for a shard: at once, or behind the parts of that clock that wait.
    pub fn end_clock(&mut self, now: Time, table: TableId, stream: &mut ShardStream, head: Head, out: &mut Outbox) {
        let shard = stream.shard().0 as usize;
        if let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.has_waiting(table, shard)) {
            let examples = stream.take_examples();
            return pacer.end_clock(table, shard, Head { examples, ..head });
        }
        stream.touch(now);
        self.send(stream.append(head, StreamMessage::Marker), out);
    }

    /// The messages that a shard's answer does not reflect, in order: sent messages with numbers
    /// above `contains`, then those that wait for bandwidth. `None` if the worker has freed some of
    /// them.
    pub fn unseen<'a>(
        &'a self,
        table: TableId,
        stream: &'a ShardStream,
        contains: u64,
    ) -> Option<impl Iterator<Item = &'a StreamMessage>> {
        let shard = stream.shard().0 as usize;
        let waiting = self.pacer.iter().flat_map(move |pacer| pacer.waiting(table, shard));
        Some(stream.unseen(contains)?.chain(waiting))
    }

    /// Adds the tokens of the time that has passed.
    pub fn refill(&mut self, now: Time) {
        if let Some(pacer) = &mut self.pacer {
            pacer.refill(now);
        }
    }

    /// Whether a read or a push goes next; `None` if bandwidth is not bounded or none is left.
    pub fn turn(&mut self, now: Time) -> Option<Turn> {
        self.pacer.as_mut()?.turn(now)
    }

    /// Sends a read whose turn it is.
    pub fn send_waiting_read(&mut self, frame: Frame, out: &mut Outbox) {
        self.send(frame, out);
        self.set_turn(Turn::Push);
    }

    /// Sends the next waiting part, and the ends of clocks that waited for it. Returns its table,
    /// or `None` if no part waits. `stream`: returns the stream to a shard.
    pub fn send_waiting_part<'a>(
        &mut self,
        now: Time,
        clock: Clock,
        stream: impl FnOnce(TableId, usize) -> Option<&'a mut ShardStream>,
        out: &mut Outbox,
    ) -> Option<TableId> {
        let PacedPart { table, shard, head, message, .. } = self.pacer.as_mut()?.next(clock)?;
        self.set_turn(Turn::Read);
        if let Some(stream) = stream(table, shard) {
            self.send_part(now, stream, head, message, out);
            let due = self.pacer.as_mut().map(|pacer| pacer.due_markers((table, shard)));
            for head in due.unwrap_or_default() {
                self.send(stream.append_with_examples(head, StreamMessage::Marker), out);
            }
        }
        Some(table)
    }

    fn set_turn(&mut self, turn: Turn) {
        if let Some(pacer) = &mut self.pacer {
            pacer.set_turn(turn);
        }
    }
}

#[cfg(test)]
mod tests;
