//! Replication: the head sends what has changed down the chain, window by window, and tells its workers only what the tail holds.
//!
//! A window is everything that changed since the one before: each row once, however many workers pushed to it, with its updater's
//! state; the sums that are held; and the ledger, in which the once-only gate stands. A copy takes a window whole or not at all.

pub(crate) mod batch;
pub(crate) mod dirty_rows;
pub(crate) mod peers;

use crate::follow::backfill::positions_of;
use crate::follow::replica::batch::Gathered;
use crate::follow::replica::peers::{Links, Post, Role, Window};
use crate::intake::combine::Held;
use crate::reads::parked::Parked;
use crate::shard::{AnyShard, Shard};
use types::{Clock, Combine, NodeId, PART_BYTES, Time, WorkerId};
use update::Number;
use wire::Outbox;
use wire::{Control, Frame, Head, Message, Payload, Piece, Replica, Replicated};

impl<T: Number> Shard<T> {
    fn chained(&self) -> Option<&Links> {
        self.links.as_ref().filter(|links| !links.is_solitary())
    }

    /// The frontier that workers are told of: what the tail holds. Rows may hold more.
    pub(crate) fn announced(&self) -> Clock {
        self.chained().map_or_else(|| self.frontier.value(), |links| links.announced)
    }

    /// Whether rows are those of the announced frontier and of no later one, where the table promises that.
    pub(crate) fn is_exact(&self) -> bool {
        self.spec.combine == Combine::Each || self.announced() == self.frontier.value()
    }

    /// How much of a worker's stream may be acknowledged.
    pub(crate) fn durable(&self, worker: WorkerId) -> u64 {
        self.chained().map_or(u64::MAX, |links| links.durable.get(&worker).copied().unwrap_or(0))
    }

    /// Takes its part in another chain.
    pub(crate) fn take_part(&mut self, role: Role, now: Time, out: &mut Outbox) {
        if self.links.is_none() && role.is_alone() {
            return;
        }
        let was_head = AnyShard::is_head(self);
        let was_chained = self.chained().is_some();
        let (alone, is_head) = (role.is_alone(), role.from.is_none());
        let announced = self.announced();
        let mut links = self.links.take().unwrap_or_else(|| Links::new(role.clone(), announced));
        if self.whole {
            links.filled_by = None;
        }
        links.take_part(role, self.window, self.plan.0, now);
        links.settle(self.window);
        self.links = (!alone).then_some(links);
        if is_head && !was_chained && self.chained().is_some() {
            self.windows_begin();
        }
        if is_head && !was_head {
            self.subscribers.start_over(self.plan);
            self.published.iter_mut().for_each(|published| published.start_over_at(self.plan));
        }
        if !is_head {
            // Whoever waits here asks the head.
            self.unacknowledged.clear();
            self.parked = Parked::default();
        }
        if is_head {
            // Everybody has to hear what this copy knows.
            self.streams.iter_mut().for_each(crate::intake::stream::Stream::remind);
            self.unacknowledged = self.ranks.values().copied().collect();
        }
        self.announce(out);
    }

    /// Whatever was done while nobody took windows was acknowledged; what is done from now on is sent first.
    pub(crate) fn windows_begin(&mut self) {
        let frontier = self.frontier.value();
        let streams = (0..).map(WorkerId).zip(&self.streams);
        let finished = streams.map(|(worker, stream)| (worker, stream.finished())).collect();
        if let Some(links) = self.links.as_mut().filter(|links| links.is_head()) {
            (links.durable, links.announced) = (finished, frontier);
            links.gathered = Gathered::default();
        }
        if self.held.is_empty() {
            return;
        }
        // The rows of sums that are held will change, and have to be known by position then.
        let positions = self.rows.positions();
        for (clock, held) in &self.held {
            if let Held::Sum(sum) = held {
                let rows = sum.slots().iter().map(|slot| (positions[*slot as usize], *slot));
                self.held_changes.entry(*clock).or_default().extend(rows);
            }
        }
    }

    /// Rows have changed.
    pub(crate) fn note_rows(&mut self, rows: impl Iterator<Item = (u64, u32)> + Clone) {
        let Some(links) = &mut self.links else { return };
        for filling in links.children.iter_mut().filter_map(|child| child.filling.as_mut()) {
            filling.changed(rows.clone());
        }
        if links.is_head() && links.has_receivers() {
            links.gathered.rows.extend(rows);
        }
    }

    /// Sums have changed.
    pub(crate) fn note_sums(&mut self, clock: Clock, rows: impl Iterator<Item = (u64, u32)>) {
        if let Some(links) = self.links.as_mut().filter(|links| links.is_head() && links.has_receivers()) {
            links.gathered.held.entry(clock).or_default().extend(rows);
        }
    }

    /// Something of a stream is finished, or the frontier has moved.
    pub(crate) fn note_progress(&mut self) {
        if let Some(links) = self.links.as_mut().filter(|links| links.is_head() && links.has_receivers()) {
            links.gathered.note(self.now);
        }
    }

    /// Closes the window that is open, if it is time.
    pub(crate) fn close_window(&mut self, out: &mut Outbox) {
        while let Some(links) = self.links.as_mut().filter(|links| links.is_head() && links.has_receivers()) {
            let row_bytes = self.rows.kept_width() * size_of::<T>() + 8;
            if !links.gathered.is_due(self.now, row_bytes, links.under_way()) {
                break;
            }
            let (rows, sums) = links.gathered.close();
            self.window = self.window.saturating_add(1);
            let pieces = self.pieces(&rows, &sums);
            self.send_window(pieces, out);
        }
        self.announce(out);
    }

    /// A window in pieces, the ledger last.
    fn pieces(&self, rows: &[(u64, u32)], sums: &[(Clock, Vec<(u64, u32)>)]) -> Vec<Replica> {
        let width = self.rows.width();
        let per_piece = |numbers: usize| (PART_BYTES / (numbers * size_of::<T>()).max(8)).max(1);
        let mut whats: Vec<(Piece, Payload, Payload)> = Vec::new();
        for rows in rows.chunks(per_piece(self.rows.kept_width())) {
            whats.push((Piece::Rows, positions_of(rows), self.kept_rows(rows)));
        }
        for (clock, rows) in sums {
            let Some(Held::Sum(sum)) = self.held.get(clock) else { continue };
            for rows in rows.chunks(per_piece(width)) {
                let sums = rows.iter().filter_map(|(_, slot)| sum.get(width, *slot)).flatten().copied();
                let values = Payload::new(sums.collect::<Vec<T>>());
                whats.push((Piece::Held { clock: *clock }, positions_of(rows), values));
            }
        }
        whats.push((Piece::Ledger { bytes: self.ledger() }, Payload::EMPTY, Payload::EMPTY));
        let (table, shard, window) = (self.table, self.placed.shard, self.window);
        let piece = |(piece, (what, positions, values))| Replica {
            table,
            shard,
            window,
            piece,
            filling: None,
            what,
            positions,
            values,
        };
        (0u32..).zip(whats).map(piece).collect()
    }

    /// The window that is whole here goes on to whoever is to have it.
    fn send_window(&mut self, pieces: Vec<Replica>, out: &mut Outbox) {
        let streams = (0..).map(WorkerId).zip(&self.streams);
        let finished = streams.map(|(worker, stream)| (worker, stream.finished())).collect();
        let window = Window { number: self.window, pieces, finished, frontier: self.frontier.value() };
        let mut post = Post::new();
        if let Some(links) = &mut self.links {
            links.send(window, self.now, &mut post);
        }
        self.post(post, out);
        self.settle_links(out);
    }

    fn post(&self, post: Post, out: &mut Outbox) {
        for (to, replica) in post {
            let head = Head { plan: self.plan, ..Head::plain(self.placed.owner, to) };
            out.send(Frame { head, message: Message::Replica(replica) });
        }
    }

    /// Somebody may hold more than before: whoever waits for that is told.
    fn settle_links(&mut self, out: &mut Outbox) {
        let Some(links) = &mut self.links else { return };
        let before = links.under_way();
        links.settle(self.window);
        if !links.is_head() {
            return self.answer_chain(out);
        }
        if before > 0 && links.under_way() == 0 {
            links.gathered.arrived(self.now);
        }
        let ranks = self.ranks.values().copied();
        for worker in ranks.collect::<Vec<_>>() {
            if let Some(stream) = self.streams.get_mut(worker.0 as usize) {
                stream.remind();
                self.unacknowledged.push(worker);
            }
        }
    }

    /// Tells whoever sends windows how many are held from here on.
    fn answer_chain(&mut self, out: &mut Outbox) {
        let Some(links) = &self.links else { return };
        let Some(from) = links.role.from else { return };
        let (table, shard) = (self.table, self.placed.shard);
        let replicated = Replicated { table, shard, through: links.through(self.window), filling: links.filled_by };
        let head = Head { plan: self.plan, ..Head::plain(self.placed.owner, from) };
        out.send(Frame { head, message: Message::Replicated(replicated) });
    }

    /// A piece of a window arrives. With the last of them the window is taken, if it is the next.
    pub(crate) fn replica(&mut self, from: NodeId, replica: Replica, out: &mut Outbox) {
        let Some(links) = self.links.as_mut().filter(|links| links.role.from == Some(from)) else { return };
        if let Some(filling) = replica.filling {
            if !self.whole {
                self.take_piece(filling, &replica);
            }
            return self.answer_chain(out);
        }
        if !self.whole && !links.complete {
            // Its filling will tell, or later windows.
            return;
        }
        let ends = matches!(replica.what, Piece::Ledger { .. });
        if replica.window != self.window.saturating_add(1) || replica.piece as usize > links.arriving.len() {
            links.arriving.clear();
            // Said once for each window: what is sent again, or what shows that something is missing.
            if ends {
                self.answer_chain(out);
            }
            return;
        }
        links.arriving.truncate(replica.piece as usize);
        links.arriving.push(replica);
        if ends {
            let pieces = std::mem::take(&mut links.arriving);
            // One that cannot be taken is sent again, and was damaged on its way, or is of another release.
            if pieces.iter().all(|piece| self.take(piece).is_some()) {
                self.window = self.window.saturating_add(1);
                self.send_window(pieces, out);
            }
        }
    }

    /// A piece of a filling is taken as it comes, if it is the next.
    fn take_piece(&mut self, filling: u64, replica: &Replica) {
        let Some(links) = &mut self.links else { return };
        let arrived = match links.filled_by {
            Some((known, arrived)) if known == filling => arrived,
            Some((known, _)) if known > filling => return,
            _ => {
                // From the beginning: sums of an earlier one may be of clocks that are over.
                self.held.clear();
                self.held_changes.clear();
                (self.window, links.complete) = (0, false);
                0
            }
        };
        links.filled_by = Some((filling, arrived));
        if replica.piece == arrived && self.take(replica).is_some() {
            let is_last = matches!(replica.what, Piece::Ledger { .. });
            if let Some(links) = &mut self.links {
                (links.filled_by, links.complete) = (Some((filling, arrived.saturating_add(1))), is_last);
            }
            if is_last {
                self.window = replica.window;
            }
        }
    }

    fn take(&mut self, Replica { what, positions, values, .. }: &Replica) -> Option<()> {
        match what {
            Piece::Rows => self.take_rows(positions.numbers()?, values.numbers()?),
            Piece::Held { clock } => self.take_held(*clock, positions.numbers()?, values.numbers()?),
            Piece::Ledger { bytes } => self.take_ledger(bytes).ok(),
        }
    }

    /// A copy holds windows.
    pub(crate) fn replicated(&mut self, from: NodeId, replicated: &Replicated, out: &mut Outbox) {
        let mut post = Post::new();
        if let Some(links) = &mut self.links {
            links.answered(from, replicated.through, replicated.filling, self.now, &mut post);
        }
        self.fill(&mut post);
        self.post(post, out);
        self.settle_links(out);
        self.close_window(out);
    }

    /// Time has passed: what was not answered is sent again, and who is filled is told.
    pub(crate) fn tick_chain(&mut self, out: &mut Outbox) {
        let mut post = Post::new();
        let mut filled = Vec::new();
        if let Some(links) = &mut self.links {
            links.send_again(self.now, &mut post);
            filled.extend(links.filled());
        }
        self.fill(&mut post);
        self.post(post, out);
        for node in filled {
            let NodeId::Server(server) = node else { continue };
            let (table, shard, plan) = (self.table, self.placed.shard, self.plan);
            let head = Head::plain(self.placed.owner, NodeId::Coordinator);
            out.send(Frame { head, message: Message::Control(Control::Filled { table, shard, server, plan }) });
        }
        self.close_window(out);
    }

    /// Workers are told of the frontier that the tail holds, if it is a new one.
    pub(crate) fn announce(&mut self, out: &mut Outbox) {
        if !AnyShard::is_head(self) || !self.may_answer {
            return;
        }
        if self.announced() == self.told && self.is_exact() == self.told_exact {
            return;
        }
        (self.told, self.told_exact) = (self.announced(), self.is_exact());
        let by = self.links.as_ref().map(|links| links.moved_by);
        self.tell(by, out);
    }
}
