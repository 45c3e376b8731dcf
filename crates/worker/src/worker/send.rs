//! Pacing: bounds the worker's bandwidth, and after each event starts the operations and sends the
//! frames that may go.

use super::Worker;
use crate::Notice;
use crate::send::pacing::Turn;
use types::{Bandwidth, Time};
use wire::Outbox;

impl Worker {
    /// Bounds the bandwidth from now on. `None` lifts the bound, and sends everything that waits.
    pub fn limit(&mut self, now: Time, bandwidth: Option<Bandwidth>, out: &mut Outbox) {
        match bandwidth {
            Some(bandwidth) => self.link.bound(now, bandwidth),
            None => {
                while self.send_part(now, out) {}
                self.link.lift_bound();
            }
        }
        // The bound also limits the link's rate, by which `auto` chooses codecs.
        self.rate_changed();
        let head = self.head();
        let paced = self.link.is_bounded();
        for stream in self.tables.values_mut().flat_map(|table| &mut table.streams) {
            stream.set_paced(paced);
            while stream.next_read(head, out) {
                stream.touch(now);
            }
        }
        self.proceed(now, out);
    }

    /// The rate of the network link changed: chooses codecs anew where the spec says `auto`, and
    /// warns of codecs that cost more time than they save.
    pub(super) fn rate_changed(&mut self) {
        let Some(rate) = self.link_rate() else { return };
        for table in self.tables.values_mut() {
            table.push_codec.follow(rate);
            let key_form = table.push_codec.key_form();
            table.streams.iter_mut().for_each(|stream| stream.set_key_form(key_form));
            if let Some(pipeline) = table.push_codec.warn(rate) {
                let name = table.spec.name.clone();
                self.notices.push(Notice::Codec { table: name, pipeline, bytes_per_second: rate as u64 });
            }
        }
    }

    /// Starts the operations that wait for nothing any more, and sends what may be sent by now.
    /// Repeats that while it releases other operations.
    pub(super) fn proceed(&mut self, now: Time, out: &mut Outbox) {
        loop {
            self.start_queued(now, out);
            self.send_paced(now, out);
            self.send_commits(out);
            self.follow(now, out);
            if !self.schedule.has_ready() {
                return;
            }
        }
    }

    /// Where bandwidth is bounded: sends what may be sent by now.
    pub(super) fn send_paced(&mut self, now: Time, out: &mut Outbox) {
        self.link.refill(now);
        while let Some(turn) = self.link.turn(now) {
            let sent = match turn {
                Turn::Read => self.send_read(now, out) || self.send_part(now, out),
                Turn::Push => self.send_part(now, out) || self.send_read(now, out),
            };
            if !sent {
                return;
            }
        }
    }

    /// Sends the part of a read that has waited longest. Returns whether there is one.
    fn send_read(&mut self, now: Time, out: &mut Outbox) -> bool {
        let head = self.head();
        let streams = self.tables.values_mut().flat_map(|table| &mut table.streams);
        let waiting = streams.filter_map(|stream| Some((stream.first_unsent()?, stream)));
        let Some((_, stream)) = waiting.min_by_key(|(request, _)| *request) else { return false };
        let Some(frame) = stream.send_unsent(head) else { return false };
        stream.touch(now);
        self.link.send_waiting_read(frame, out);
        true
    }

    /// Sends the next part of a push. Returns whether there is one.
    fn send_part(&mut self, now: Time, out: &mut Outbox) -> bool {
        let tables = &mut self.tables;
        let sent = self.link.send_waiting_part(
            now,
            self.clock,
            move |table, shard| tables.get_mut(&table)?.streams.get_mut(shard),
            out,
        );
        let Some(table) = sent else { return false };
        self.schedule.gone(table, self.link.first_waiting(table));
        true
    }
}

#[cfg(test)]
mod tests;
