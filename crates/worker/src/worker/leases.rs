//! The calls for data leases: opening a data set, asking for leases, pushing for them, and
//! committing them.

use super::Worker;
use crate::leases::{LastPart, LeaseGrant, LeasedPushPart};
use crate::send::message::StreamMessage;
use crate::tickets::TicketPurpose;
use crate::{Batch, TableFailure, TicketId};
use codec::Formats;
use lease::{LeaseId, WorkReport};
use types::{Clock, TableId, Time};
use wire::{Keys, LeaseTerms, Outbox, Payload, Writes};

impl Worker {
    /// Opens a data set by name. [`Worker::leases`] returns the coordinator's answer.
    pub fn open_leases(&mut self, name: &str, terms: LeaseTerms, out: &mut Outbox) {
        let asked = self.leases.open(name, terms);
        self.control(asked, out);
    }

    /// The number of a data set, or why it cannot be leased, once the coordinator has answered.
    #[must_use]
    pub fn leases(&self, name: &str) -> Option<&Result<u32, String>> {
        self.leases.opened(name)
    }

    /// Asks for leases of a data set, unless a request is open. [`Worker::take_leases`] returns
    /// them. Meanwhile a worker without leases ends clocks as the others do, so that they need not
    /// wait for it.
    pub fn ask_leases(&mut self, set: u32, wanted: u64, out: &mut Outbox) {
        let asked = self.leases.ask(set, wanted);
        asked.into_iter().for_each(|asked| self.control(asked, out));
    }

    /// The answer to the last request for leases, once it is there.
    pub fn take_leases(&mut self, set: u32) -> Option<LeaseGrant> {
        self.leases.take(set, self.clock)
    }

    /// Whether [`Worker::take_leases`] would return an answer.
    #[must_use]
    pub fn has_leases(&self, set: u32) -> bool {
        self.leases.has_answer(set, self.clock)
    }

    /// Ends a data set for all workers: this worker gives back its leases, and the coordinator
    /// grants none again. Call it when no lease is [uncommitted](Self::uncommitted). Then ask for
    /// leases: the answer comes when no worker holds any.
    pub fn end_leases(&mut self, set: u32, out: &mut Outbox) {
        let ended = self.leases.end(set);
        ended.into_iter().for_each(|ended| self.control(ended, out));
    }

    /// Whether any worker has ended a data set before all its leases were committed.
    #[must_use]
    pub fn leases_ended(&self, set: u32) -> bool {
        self.leases.is_ended(set)
    }

    /// The program has finished a lease in this clock: it has pushed everything it learned from it.
    /// The worker commits the lease when shards have acknowledged those pushes. `work`: the work
    /// done since the last commit.
    pub fn commit_lease(
        &mut self,
        now: Time,
        lease: LeaseId,
        work: WorkReport,
        out: &mut Outbox,
    ) -> Result<(), TableFailure> {
        self.leases.check(lease)?;
        for LastPart { table, shard, id, examples } in self.leases.done(lease, self.clock, work) {
            let purpose = TicketPurpose { lease: Some(lease), ..TicketPurpose::of(table) };
            let ticket = self.tickets.open(purpose, 1);
            self.tickets.detach(ticket);
            let keys = Keys::run(0..0).slice(0..0);
            let values = Payload::EMPTY;
            let formats = Formats::default();
            let writes = Writes::Gradients { lease: Some(id) };
            let message = StreamMessage::Push { ticket, keys, values, formats, plain: None, writes };
            self.send_push(now, table, shard, message, Some(examples), 0.0, out);
        }
        self.proceed(now, out);
        Ok(())
    }

    /// Why the coordinator refused commits, since the last call.
    pub fn take_lease_problems(&mut self) -> Vec<String> {
        self.leases.take_problems()
    }

    /// How many leases of a data set are finished but not confirmed as committed.
    #[must_use]
    pub fn uncommitted(&self, set: u32) -> usize {
        self.leases.uncommitted(set)
    }

    /// Numbers the parts of a push made for a data lease, in the order in which the program submits
    /// pushes. The parts do not depend on the bandwidth.
    pub(super) fn number_leased_parts(&mut self, table: TableId, batch: &Batch) -> Vec<LeasedPushPart> {
        let (Some(lease), Some(known)) = (batch.lease, self.tables.get(&table)) else { return Vec::new() };
        let rows = batch.keys.rows_per_part(known.spec.number, known.spec.width);
        let by_shard = known.streams.iter().map(|stream| batch.keys.parts(stream.range(), rows)).collect();
        self.leases.number_parts(lease, table, by_shard, batch.examples)
    }

    /// A shard held a part of a lease already: another worker pushed it, for this clock.
    pub(super) fn already_held(&mut self, ticket: TicketId, clock: Clock) {
        let lease = self.tickets.purpose(ticket).and_then(|purpose| purpose.lease);
        lease.into_iter().for_each(|lease| self.leases.held_already(lease, clock));
    }

    /// Sends the commits of leases whose pushes are all acknowledged.
    pub(super) fn send_commits(&mut self, out: &mut Outbox) {
        for commit in self.leases.take_commits() {
            self.control(commit, out);
        }
    }

    /// Ends clocks up to the furthest worker's, while this worker holds no lease to learn from.
    pub(super) fn follow(&mut self, now: Time, out: &mut Outbox) {
        let Some(furthest) = self.leases.follows() else { return };
        while self.clock < furthest && self.is_flushed() && !self.left {
            self.close_clock(now, out);
        }
    }
}

#[cfg(test)]
mod tests;
