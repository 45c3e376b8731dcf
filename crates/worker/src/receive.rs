//! What a worker does with what arrives, and what it sends again.

use super::cache::{Arrival, Own};
use super::pacing::{Pacer, send};
use super::stream::{ItemKind, ReadKeys, Reading};
use super::ticket::PendingRead;
use super::{Notice, PART_COST, ShardLink, Worker, active, row_state, touch};
use codec::{Formats, Meter, PayloadDecoder, Stopwatch};
use std::collections::BTreeSet;
use types::{Clock, Combine, NodeId, PART_BYTES, Plan, TableId, TableSpec, Time};
use wire::Outbox;
use wire::{
    Control, Frame, Head, KeyPart, Keys, Message, Payload, Pulled, READ_WHOLE, Refreshed, Refusal, ResendReason,
    Signature, Step, Wants, Writes,
};

impl Worker {
    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let Frame { head, message } = frame;
        // What a shard says to one incarnation is of no meaning to another.
        if head.source != self.source && matches!(head.from, NodeId::Server(_)) {
            return;
        }
        if !self.leader.heeds(&head) {
            return;
        }
        match message {
            Message::Acked(acked) => {
                let Some(link) = self.link(acked.table, acked.shard) else { return };
                touch(link, now);
                link.reaches(head.clock);
                let finished = link.finish(acked.through);
                let parts = finished.iter().filter(|item| matches!(item.kind, ItemKind::Push { .. })).count();
                if self.rate.arrived(now, parts) {
                    self.rate_changed();
                }
                for item in finished {
                    let refusal = acked.refused.iter().find(|refused| refused.number == item.number);
                    if let (Some(_), ItemKind::Push { keys, .. }) = (refusal, &item.kind)
                        && let Some(cache) = self.tables.get_mut(&acked.table).and_then(|table| table.cache.as_mut())
                    {
                        cache.give_up(keys);
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
            Message::Step(step) => self.stepped(&head, &step),
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

    fn link(&mut self, table: TableId, shard: types::ShardId) -> Option<&mut ShardLink> {
        self.tables.get_mut(&table)?.links.get_mut(shard.0 as usize)
    }

    fn item_done(&mut self, kind: ItemKind, refusal: Option<Refusal>) {
        match kind {
            ItemKind::Push { ticket, .. } => {
                self.unacknowledged_bytes -= kind.kept() + PART_COST;
                // Another worker had pushed it: it counts, and once.
                let refusal = match refusal {
                    Some(Refusal::AlreadyHeld { clock }) => {
                        self.counts.held_already += 1;
                        self.already_held(ticket, clock);
                        None
                    }
                    other => other,
                };
                self.counts.refused += u64::from(refusal.is_some());
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
        if let Some(pacer) = &mut self.pacer {
            pacer.charge_resent(&frames);
        }
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
        if let ReadKeys::Steps { .. } = reading.keys {
            return self.caught_up(now, head, pulled, reading, out);
        }
        let row_bytes = table.spec.row_bytes();
        let rows = reading.keys.slice().map_or(pulled.positions.len() / 8, wire::Slice::len);
        let decoded = decoded(
            &mut self.decoder,
            &mut table.decoded,
            self.settings.stopwatch,
            &table.spec,
            head,
            &pulled.values,
            rows,
        );
        let pulled = &decoded.map_or_else(|| pulled.clone(), |values| Pulled { values, ..pulled.clone() });
        let row_bytes = match reading.wants {
            Wants::Values => Some(row_bytes).filter(|row_bytes| pulled.values.len() == rows * row_bytes),
            Wants::Active => Some(0).filter(|_| active::is_whole(reading.keys.slice(), pulled)),
            Wants::Kept => {
                let read = self.pending.get(&reading.ticket).and_then(|pending| pending.read.as_ref());
                row_state::row_bytes(&table.spec, &reading.keys, read.map_or(0, |read| read.row_bytes), pulled)
            }
        };
        let Some(row_bytes) = row_bytes else {
            let row_bytes = table.spec.row_bytes();
            let refusal =
                Refusal::WrongLength { expected: (rows * row_bytes) as u64, found: pulled.values.len() as u64 };
            link.next_read(sender).into_iter().for_each(|frame| out.send(frame));
            return self.part_done(reading.ticket, Some(refusal));
        };
        let shard = pulled.shard.0 as usize;
        if let (Some(copies), Some(at), Some(keys)) = (&mut table.copies, pulled.chain, reading.keys.slice())
            && reading.steps.is_some()
            && let Some(values) = pulled.values.numbers::<f32>()
        {
            copies.keep(shard, head.clock, at, keys, values);
        } else if let (Some(cache), Some(keys)) = (&mut table.cache, reading.keys.slice())
            && pulled.contains >= link.acknowledged
            && reading.wants == Wants::Values
        {
            let held = held(self.pacer.as_ref(), pulled.table, shard);
            let arrival = arrival(link, held, head.clock, keys, &pulled.values, pulled.contains, table.spec.combine);
            cache.store(&arrival, pulled.chain);
        }
        if let Some(read) = self.pending.get_mut(&reading.ticket).and_then(|pending| pending.read.as_mut()) {
            match reading.wants {
                Wants::Values => fill(read, &reading.keys, pulled),
                Wants::Active => active::fill(read, &reading.keys, pulled),
                Wants::Kept => {
                    read.row_bytes = row_bytes;
                    fill(read, &reading.keys, pulled);
                }
            }
            read.clock = read.clock.min(head.clock);
            read.released_by = pulled.released_by.or(read.released_by);
            // Each shard tells of its own; a clock is named once.
            let new = |failed: &&wire::FailedClock| read.failed.iter().all(|known| known.clock != failed.clock);
            let new: Vec<_> = pulled.failed.iter().filter(new).cloned().collect();
            read.failed.extend(new);
        }
        let goes_on = match (&mut reading.keys, pulled.more) {
            (ReadKeys::Scan { range, .. }, Some(next)) => {
                range.first = next;
                true
            }
            (ReadKeys::Kept { keys, .. }, _) => {
                *keys = keys.after(rows);
                !keys.is_empty()
            }
            _ => false,
        };
        if goes_on {
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
        send(&mut self.pacer, Frame { head: reply, message: Message::Refreshed(receipt) }, out);
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
        let held = held(self.pacer.as_ref(), refresh.table, refresh.shard.0 as usize);
        let arrival = arrival(link, held, head.clock, &keys, &refresh.values, refresh.contains, table.spec.combine);
        cache.refresh(&arrival, refresh.chain, refresh.link, refresh.contains >= link.acknowledged);
    }

    /// A step arrives: copies add it if it is the next one. Others are asked for again when they are missed.
    fn stepped(&mut self, head: &Head, step: &Step) {
        let Some(table) = self.tables.get_mut(&step.table) else { return };
        let shard = step.shard.0 as usize;
        let (Some(copies), Some(link)) = (&mut table.copies, table.links.get(shard)) else { return };
        let most = PART_BYTES / table.spec.row_bytes().max(1);
        let count = step.keys.count().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= most);
        let (Some(count), true) = (count, copies.follows(shard, step.chain, step.number)) else { return };
        let mut positions = vec![0u64; count];
        match &step.keys {
            KeyPart::Run { first, .. } => {
                positions.iter_mut().zip(0..).for_each(|(position, index)| *position = first.0.saturating_add(index));
            }
            KeyPart::Packed { packed, .. } if codec::keys::decode(packed.bytes(), &mut positions).is_ok() => {}
            _ => return,
        }
        let owned = |position: &u64| link.placed.range.contains(types::Position(*position));
        if !positions.first().is_none_or(owned) || !positions.last().is_none_or(owned) {
            return;
        }
        let stopwatch = self.settings.stopwatch;
        let before = table.decoded;
        let plain = decoded(&mut self.decoder, &mut table.decoded, stopwatch, &table.spec, head, &step.values, count);
        // What a step saves is what it takes the place of: the rows that there are copies of.
        let packed = if let KeyPart::Packed { packed, .. } = &step.keys { packed.len() } else { 0 };
        (table.decoded.bytes_in, table.decoded.bytes_out) = (before.bytes_in, before.bytes_out);
        table.decoded.encoded(copies.held(&positions) * table.spec.row_bytes(), step.values.len() + packed, 0);
        let values = plain.as_ref().unwrap_or(&step.values);
        if let Some(changes) =
            values.numbers::<f32>().filter(|changes| changes.len() * 4 == count * table.spec.row_bytes())
        {
            let changes = changes.to_vec();
            copies.add(shard, positions, changes, step.reaches);
            self.counts.steps += 1;
        }
    }

    /// The steps that a reader asked for have been sent: its copies are fresh if they have all arrived.
    fn caught_up(&mut self, now: Time, head: &Head, pulled: &Pulled, reading: Reading, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        let shard = pulled.shard.0 as usize;
        let (Some(copies), Some(link)) = (&mut table.copies, table.links.get_mut(shard)) else { return };
        let ReadKeys::Steps { keys, rows } = &reading.keys else { return };
        let declined = pulled.chain == Some(READ_WHOLE);
        let missing = match pulled.chain {
            Some((chain, step)) if copies.reach(shard, head.clock, chain, step) => {
                let Some(read) = self.pending.get_mut(&reading.ticket).and_then(|pending| pending.read.as_mut()) else {
                    return;
                };
                read.released_by = pulled.released_by.or(read.released_by);
                let new = |failed: &&wire::FailedClock| read.failed.iter().all(|known| known.clock != failed.clock);
                let new: Vec<_> = pulled.failed.iter().filter(new).cloned().collect();
                read.failed.extend(new);
                let (clock, gone) = copies.fill(keys, rows, read.target.bytes_mut());
                read.clock = read.clock.min(clock.unwrap_or(read.clock));
                gone
            }
            // Others of the shard may still be brought up to date later.
            Some(READ_WHOLE) => (0..keys.len() as u32).collect(),
            Some((chain, _))
                if copies.is_of(shard, chain) && reading.steps.is_some_and(|(had, _)| copies.step(shard) > had) =>
            {
                // Some were lost on the way. From the last that arrived, once more; if none did, it is no use to ask again.
                self.requests += 1;
                let reading = Reading { steps: Some((copies.step(shard), keys.len() as u64)), ..reading };
                link.read(sender, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                return;
            }
            _ => {
                copies.lose(shard);
                (0..keys.len() as u32).collect()
            }
        };
        table.steps_declined(declined);
        let Some(link) = table.links.get_mut(shard) else { return };
        // What is not there any more is read whole.
        let positions: Vec<u64> = missing.iter().map(|index| keys.position(*index as usize).0).collect();
        let places: Vec<u32> = missing.iter().map(|index| rows[*index as usize]).collect();
        let mut parts = 0;
        if let Ok(keys) = Keys::at(table.spec.shape.placement(), &positions) {
            let rows_per_part = keys.rows_per_part(table.spec.number, table.spec.width);
            for start in (0..keys.len()).step_by(rows_per_part) {
                let end = keys.len().min(start + rows_per_part);
                self.requests += 1;
                let keys = ReadKeys::Scattered { keys: keys.slice(start..end), rows: places[start..end].to_vec() };
                let (ticket, clock, after, subscribe) =
                    (reading.ticket, reading.clock, reading.after, reading.subscribe);
                let reading =
                    Reading { ticket, clock, after, subscribe, steps: Some((0, 0)), wants: Wants::Values, keys };
                touch(link, now);
                link.read(sender, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                parts += 1;
            }
        }
        link.next_read(sender).into_iter().for_each(|frame| out.send(frame));
        if let Some(pending) = self.pending.get_mut(&reading.ticket) {
            pending.parts += parts;
        }
        self.part_done(reading.ticket, None);
    }

    fn controlled(&mut self, now: Time, control: Control, out: &mut Outbox) {
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
            Control::Adopt { plan, enacted, .. } => self.adopt(now, plan, enacted, out),
            Control::Checkpoint { number, clock, .. } => self.save_owed(number, clock, out),
            Control::BarrierPassed { number } => self.barrier_passed = self.barrier_passed.max(number),
            Control::BarrierWaiting { on, .. } => self.notices.push(Notice::Barrier { on }),
            control => self.leases_controlled(control),
        }
    }

    /// Goes by another plan, unless it is an old one.
    fn adopt(&mut self, now: Time, plan: Plan, enacted: bool, out: &mut Outbox) {
        if plan.number > self.plan.number {
            self.plan = plan;
            let mut moved = BTreeSet::new();
            for table in self.tables.values_mut() {
                for (link, placed) in table.links.iter_mut().zip(self.plan.shards(table.spec.shape)) {
                    if link.placed.owner != placed.owner {
                        link.move_to(placed.owner);
                        moved.insert(placed.owner);
                    }
                }
            }
            // Everything that is not acknowledged is sent again before anything else is said there.
            moved.into_iter().for_each(|owner| self.reconnected(now, owner, out));
        }
        self.control(Control::Adopted { plan: self.plan.number, enacted, frontier: Clock(0) }, out);
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
            if let Some(pacer) = &mut self.pacer {
                pacer.charge_resent(&frames);
            }
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
        self.ask_leases_again(out);
    }

    /// Time has passed: over a transport that loses messages, what was not answered is sent again.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.proceed(now, out);
        let Some(after) = self.settings.resend_after else { return };
        if now.since(self.asked_control) >= after {
            self.asked_control = now;
            self.ask_again(out);
        }
        let overdue: BTreeSet<NodeId> = self
            .tables
            .values()
            .flat_map(|table| &table.links)
            .filter(|link| link.awaits_answer() && now.since(link.moved) >= after)
            .map(|link| link.placed.owner)
            .collect();
        for node in overdue {
            self.reconnected(now, node, out);
        }
    }
}

/// Pushes to a shard that wait for bandwidth.
fn held(pacer: Option<&Pacer>, table: TableId, shard: usize) -> impl Iterator<Item = &ItemKind> {
    pacer.into_iter().flat_map(move |pacer| pacer.held(table, shard))
}

/// Rows for the cache, with the own pushes that they lack.
fn arrival<'a>(
    link: &'a ShardLink,
    held: impl Iterator<Item = &'a ItemKind>,
    frontier: Clock,
    keys: &'a wire::Slice,
    values: &'a Payload,
    contains: u64,
    combine: Combine,
) -> Arrival<'a> {
    let unseen = link.unacknowledged.iter().filter(|item| item.number > contains).map(|item| &item.kind);
    let later = unseen.chain(held).filter(|_| combine == Combine::Each).filter_map(|kind| match kind {
        ItemKind::Push { keys, writes: Writes::Rows, .. } => Some((keys, Own::Set)),
        ItemKind::Push { keys, values, plain, .. } => Some((keys, Own::Pushed(plain.as_ref().unwrap_or(values)))),
        ItemKind::Marker | ItemKind::Tune { .. } => None,
    });
    Arrival { shard: link.placed.shard.0 as usize, frontier, keys, values, later: later.collect() }
}

/// Values as they were before they were encoded; `None` where they were not.
fn decoded(
    decoder: &mut PayloadDecoder,
    meter: &mut Meter,
    stopwatch: Stopwatch,
    spec: &TableSpec,
    head: &Head,
    values: &Payload,
    rows: usize,
) -> Option<Payload> {
    let formats = Formats(head.codecs.0);
    if formats.leaves_values() {
        return None;
    }
    let bytes = rows.checked_mul(spec.row_bytes()).filter(|bytes| *bytes <= PART_BYTES)?;
    let began = (stopwatch.0)();
    let mut numbers = vec![0u64; bytes.div_ceil(8)];
    let out = &mut bytemuck::cast_slice_mut(&mut numbers)[..bytes];
    // What cannot be read has the wrong length, too, and is refused for that.
    decoder.decode(formats, values.bytes(), spec.number, spec.width as usize, out).ok()?;
    meter.encoded(bytes, values.len(), 0);
    meter.decoded(bytes, (stopwatch.0)().saturating_sub(began));
    Some(Payload::new(numbers).slice(0..bytes))
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
        // Those come from the copies.
        ReadKeys::Steps { .. } => {}
        ReadKeys::Scan { shard, .. } | ReadKeys::Kept { part: shard, .. } => {
            if let Some((positions, rows)) = read.found.get_mut(*shard) {
                positions.extend(pulled.positions.numbers::<u64>().unwrap_or(&[]));
                rows.extend_from_slice(values);
            }
        }
    }
}
