//! What a worker does with what arrives, and what it sends again.

use super::cache::Arrival;
use super::stream::{ItemKind, ReadKeys};
use super::ticket::PendingRead;
use super::{Notice, PART_COST, ShardLink, Worker, touch};
use crate::Outbox;
use std::collections::BTreeSet;
use types::{Clock, Combine, NodeId, TableId, Time};
use wire::{Control, Frame, Head, Keys, Message, Payload, Pulled, Refreshed, Refusal, ResendReason, Signature};

impl Worker {
    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let Frame { head, message } = frame;
        match message {
            Message::Acked(acked) => {
                let Some(link) = self.link(acked.table, acked.shard) else { return };
                touch(link, now);
                link.reaches(head.clock);
                for item in link.finish(acked.through) {
                    let refusal = acked.refused.iter().find(|refused| refused.number == item.number);
                    if let (Some(_), ItemKind::Push { keys, .. }) = (refusal, &item.kind)
                        && let Some(cache) = self.tables.get_mut(&acked.table).and_then(|table| table.cache.as_mut())
                    {
                        cache.refused(keys);
                    }
                    self.item_done(item.kind, refusal.map(|refused| refused.refusal.clone()));
                }
                self.make_room(acked.table);
            }
            Message::Resend(resend) => self.resend(now, &resend, out),
            Message::Pulled(pulled) => {
                self.pulled(now, &head, &pulled, out);
                self.make_room(pulled.table);
            }
            Message::PullRefused(refused) => {
                let sender = self.head();
                let Some(link) = self.link(refused.table, refused.shard) else { return };
                touch(link, now);
                if link.take_room(refused.request) {
                    // The shard will say of the pushes themselves what is wrong with them.
                    link.reaches(Clock(u64::MAX));
                } else if let Some(reading) = link.take_read(refused.request) {
                    if let Refusal::UnknownKeys { signature } = refused.refusal {
                        link.forget(Signature(signature));
                        link.read(sender, refused.request, reading).into_iter().for_each(|frame| out.send(frame));
                    } else {
                        let ticket = reading.ticket;
                        link.next_read(sender).into_iter().for_each(|frame| out.send(frame));
                        self.part_done(ticket, Some(refused.refusal));
                    }
                }
                self.make_room(refused.table);
            }
            Message::Waiting(waiting) => {
                let Some(table) = self.tables.get(&waiting.table) else { return };
                let (name, on) = (table.spec.name.clone(), waiting.on);
                let link = table.links.get(waiting.shard.0 as usize);
                self.notices.push(if link.is_some_and(|link| link.asks_for_room(waiting.request)) {
                    Notice::Push { table: name, on }
                } else {
                    Notice::Read { table: name, on }
                });
            }
            Message::Refresh(refresh) => self.refreshed(&head, &refresh, out),
            Message::Control(control) => self.controlled(control, out),
            Message::Push(_) | Message::Marker(_) | Message::Tune(_) | Message::Pull(_) | Message::Refreshed(_) => {}
        }
        self.start_queued(now, out);
    }

    fn link(&mut self, table: TableId, shard: types::ShardId) -> Option<&mut ShardLink> {
        self.tables.get_mut(&table)?.links.get_mut(shard.0 as usize)
    }

    fn item_done(&mut self, kind: ItemKind, refusal: Option<Refusal>) {
        match kind {
            ItemKind::Push { ticket, values, .. } => {
                self.unacknowledged_bytes -= values.len() + PART_COST;
                self.part_done(ticket, refusal);
            }
            ItemKind::Tune { ticket, .. } => self.part_done(ticket, refusal),
            ItemKind::Marker => {}
        }
    }

    fn resend(&mut self, now: Time, resend: &wire::Resend, out: &mut Outbox) {
        let head = self.head();
        let Some(link) = self.link(resend.table, resend.shard) else { return };
        touch(link, now);
        if let ResendReason::UnknownKeys { signature } = resend.reason {
            link.forget(Signature(signature));
        }
        let frames = link.resend(head, resend.next);
        self.counts.resent += frames.len() as u64;
        frames.into_iter().for_each(|frame| out.send(frame));
    }

    fn pulled(&mut self, now: Time, head: &Head, pulled: &Pulled, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        table.note_failed(&pulled.failed);
        let Some(link) = table.links.get_mut(pulled.shard.0 as usize) else { return };
        touch(link, now);
        link.reaches(head.clock);
        if link.take_room(pulled.request) {
            return;
        }
        let Some(mut reading) = link.take_read(pulled.request) else { return };
        let row_bytes = table.spec.row_bytes();
        let rows = reading.keys.slice().map_or(pulled.positions.len() / 8, wire::Slice::len);
        if pulled.values.len() != rows * row_bytes {
            let refusal =
                Refusal::WrongLength { expected: (rows * row_bytes) as u64, found: pulled.values.len() as u64 };
            link.next_read(sender).into_iter().for_each(|frame| out.send(frame));
            return self.part_done(reading.ticket, Some(refusal));
        }
        if let (Some(cache), Some(keys)) = (&mut table.cache, reading.keys.slice())
            && pulled.contains >= link.acknowledged
        {
            let arrival = arrival(link, head.clock, keys, &pulled.values, pulled.contains, table.spec.combine);
            cache.store(&arrival, pulled.chain);
        }
        if let Some(read) = self.pending.get_mut(&reading.ticket).and_then(|pending| pending.read.as_mut()) {
            fill(read, &reading.keys, pulled);
            read.clock = read.clock.min(head.clock);
            read.released_by = pulled.released_by.or(read.released_by);
            // Each shard tells of its own; a clock is named once.
            let new = |failed: &&wire::FailedClock| read.failed.iter().all(|known| known.clock != failed.clock);
            let new: Vec<_> = pulled.failed.iter().filter(new).cloned().collect();
            read.failed.extend(new);
        }
        if let (ReadKeys::Scan { range, .. }, Some(next)) = (&mut reading.keys, pulled.more) {
            range.first = next;
            self.requests += 1;
            link.read(sender, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
            return;
        }
        link.next_read(sender).into_iter().for_each(|frame| out.send(frame));
        self.part_done(reading.ticket, None);
    }

    fn refreshed(&mut self, head: &Head, refresh: &wire::Refresh, out: &mut Outbox) {
        let mut reply = self.head();
        let Some(table) = self.tables.get_mut(&refresh.table) else { return };
        table.note_failed(&refresh.failed);
        let Some(link) = table.links.get(refresh.shard.0 as usize) else { return };
        self.counts.refreshes += 1;
        reply.to = link.placed.owner;
        let receipt =
            Refreshed { table: refresh.table, shard: refresh.shard, chain: refresh.chain, link: refresh.link };
        out.send(Frame { head: reply, message: Message::Refreshed(receipt) });
        let Some(cache) = &mut table.cache else { return };
        let Some(positions) = refresh.positions.numbers::<u64>() else { return };
        if refresh.values.len() != positions.len() * table.spec.row_bytes() {
            return;
        }
        let owned = |position: &u64| link.placed.range.contains(types::Position(*position));
        if !positions.first().is_none_or(owned) || !positions.last().is_none_or(owned) {
            return;
        }
        let Ok(keys) = Keys::at(table.spec.shape.placement(), positions) else { return };
        let keys = keys.slice(0..keys.len());
        let arrival = arrival(link, head.clock, &keys, &refresh.values, refresh.contains, table.spec.combine);
        cache.refresh(&arrival, refresh.chain, refresh.link, refresh.contains >= link.acknowledged);
    }

    fn controlled(&mut self, control: Control, out: &mut Outbox) {
        match control {
            Control::TableMade { table, name } => {
                if let Some(spec) = self.asked.remove(&name) {
                    self.attach(table, spec, true, out);
                    self.made.insert(name, Ok(table));
                }
            }
            Control::AddTable { table, spec } => {
                self.attach(table, spec, false, out);
                self.control(Control::TableAdded { table, problem: None }, out);
            }
            Control::TableRefused { name, problem } if self.asked.remove(&name).is_some() => {
                self.made.insert(name, Err(problem));
            }
            Control::BarrierPassed { number } => self.barrier_passed = self.barrier_passed.max(number),
            Control::BarrierWaiting { on, .. } => self.notices.push(Notice::Barrier { on }),
            _ => {}
        }
    }

    /// A connection to `node` is there again: whatever may have been lost with the old one is sent again.
    pub fn reconnected(&mut self, now: Time, node: NodeId, out: &mut Outbox) {
        let head = self.head();
        if node == NodeId::Coordinator {
            return self.ask_again(out);
        }
        for link in self.tables.values_mut().flat_map(|table| &mut table.links).filter(|link| link.placed.owner == node)
        {
            touch(link, now);
            let mut frames = link.resend(head, 0);
            frames.extend(link.resend_reads(head));
            self.counts.resent += frames.len() as u64;
            frames.into_iter().for_each(|frame| out.send(frame));
        }
    }

    fn ask_again(&self, out: &mut Outbox) {
        for spec in self.asked.values() {
            self.control(Control::MakeTable { spec: spec.clone() }, out);
        }
        if self.barrier > self.barrier_passed {
            self.control(Control::Barrier { number: self.barrier }, out);
        }
    }

    /// Time has passed: over a transport that loses messages, what was not answered is sent again.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        let Some(after) = self.settings.resend_after else { return };
        if now.since(self.asked_control) >= after {
            self.asked_control = now;
            self.ask_again(out);
        }
        let overdue: BTreeSet<NodeId> = self
            .tables
            .values()
            .flat_map(|table| &table.links)
            .filter(|link| !link.is_idle() && now.since(link.moved) >= after)
            .map(|link| link.placed.owner)
            .collect();
        for node in overdue {
            self.reconnected(now, node, out);
        }
    }
}

/// Rows for the cache, with the own pushes that they lack.
fn arrival<'a>(
    link: &'a ShardLink,
    frontier: Clock,
    keys: &'a wire::Slice,
    values: &'a Payload,
    contains: u64,
    combine: Combine,
) -> Arrival<'a> {
    let later = link.unacknowledged.iter().filter(|item| item.number > contains && combine == Combine::Each);
    let later = later.filter_map(|item| match &item.kind {
        ItemKind::Push { keys, values, .. } => Some((keys, values)),
        _ => None,
    });
    Arrival { shard: link.placed.shard.0 as usize, frontier, keys, values, later: later.collect() }
}

/// Puts the rows of one part where the caller wants them.
fn fill(read: &mut PendingRead, keys: &ReadKeys, pulled: &Pulled) {
    let row_bytes = read.row_bytes;
    let values = pulled.values.bytes();
    match keys {
        ReadKeys::Straight { row, .. } => {
            read.target.bytes_mut()[row * row_bytes..][..values.len()].copy_from_slice(values);
        }
        ReadKeys::Scattered { rows, .. } => {
            let target = read.target.bytes_mut();
            for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
                target[*row as usize * row_bytes..][..row_bytes].copy_from_slice(value);
            }
        }
        ReadKeys::Scan { shard, .. } => {
            if let Some((positions, rows)) = read.found.get_mut(*shard) {
                positions.extend(pulled.positions.numbers::<u64>().unwrap_or(&[]));
                rows.extend_from_slice(values);
            }
        }
    }
}
