//! The tickets of a worker: pending tickets, finished tickets that the program has not taken, and
//! detached tickets, which it will not take.
//!
//! A ticket is pending while parts of it are. Its last part closes it and returns a
//! [`ClosedTicket`], with what the rest of the worker must do then.

use crate::ticket::{PartialRead, TicketFailure, TicketId, TicketOutcome};
use lease::LeaseId;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, OPEN_READS, TableId};
use wire::Refusal;

/// The operation that a ticket is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TicketPurpose {
    pub table: TableId,
    /// Whether the operation reads rows.
    pub reads: bool,
    /// For a table with a delay: the operation's place among the table's operations, from 1.
    pub place: Option<u64>,
    /// The data lease that the operation is made for.
    pub lease: Option<LeaseId>,
}

impl TicketPurpose {
    /// A push to a table without a delay and without a data lease.
    pub fn of(table: TableId) -> Self {
        Self { table, reads: false, place: None, lease: None }
    }
}

/// A ticket under way.
struct PendingTicket {
    purpose: TicketPurpose,
    /// How many parts are not done.
    parts: usize,
    failure: Option<TicketFailure>,
    read: Option<PartialRead>,
}

/// A ticket that its last part has just closed.
#[derive(Debug)]
#[must_use]
pub(crate) struct ClosedTicket {
    pub ticket: TicketId,
    pub purpose: TicketPurpose,
    /// The staleness of a read, in clocks; `None` for other operations.
    pub staleness: Option<u64>,
}

/// What a program takes from a finished ticket.
type Outcome = Result<TicketOutcome, (TableId, TicketFailure)>;

/// All tickets of a worker.
#[derive(Default)]
pub(crate) struct Tickets {
    last: u64,
    pending: BTreeMap<TicketId, PendingTicket>,
    finished: BTreeMap<TicketId, Outcome>,
    /// Pending tickets that the program will not take.
    detached: BTreeSet<TicketId>,
    /// Failures of detached tickets that the program has not been told of.
    unreported: Vec<(TableId, TicketFailure)>,
    /// How many pending tickets read rows.
    open_reads: usize,
}

impl Tickets {
    /// Opens a ticket with this many parts.
    pub fn open(&mut self, purpose: TicketPurpose, parts: usize) -> TicketId {
        self.last += 1;
        let ticket = TicketId(self.last);
        self.open_reads += usize::from(purpose.reads);
        self.pending.insert(ticket, PendingTicket { purpose, parts, failure: None, read: None });
        ticket
    }

    /// Whether a ticket is finished, taken or not.
    pub fn is_finished(&self, ticket: TicketId) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// The operation that a pending ticket was opened for.
    pub fn purpose(&self, ticket: TicketId) -> Option<TicketPurpose> {
        self.pending.get(&ticket).map(|pending| pending.purpose)
    }

    /// Whether another read may be opened.
    pub fn may_read(&self) -> bool {
        self.open_reads < OPEN_READS
    }

    /// Adds this many parts to a pending ticket.
    pub fn add_parts(&mut self, ticket: TicketId, parts: usize) {
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += parts;
        }
    }

    /// Adds this many parts to a pending ticket, and collects their answers in `read`.
    pub fn collect(&mut self, ticket: TicketId, parts: usize, read: PartialRead) {
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += parts;
            pending.read = Some(read);
        }
    }

    /// What a pending read has brought so far.
    pub fn read_mut(&mut self, ticket: TicketId) -> Option<&mut PartialRead> {
        self.pending.get_mut(&ticket)?.read.as_mut()
    }

    /// Counts a part of a ticket as done, or refused. Returns the ticket if that was its last part.
    pub fn part_done(&mut self, ticket: TicketId, refusal: Option<Refusal>) -> Option<ClosedTicket> {
        let pending = self.pending.get_mut(&ticket)?;
        pending.parts -= 1;
        if let Some(refusal) = refusal {
            pending.failure.get_or_insert(TicketFailure { refusal });
        }
        self.close_if_done(ticket)
    }

    /// Closes a pending ticket that has no parts left.
    pub fn close_if_done(&mut self, ticket: TicketId) -> Option<ClosedTicket> {
        if self.pending.get(&ticket)?.parts > 0 {
            return None;
        }
        let PendingTicket { purpose, failure, read, .. } = self.pending.remove(&ticket)?;
        self.open_reads -= usize::from(purpose.reads);
        let mut staleness = None;
        let outcome = match (failure, read) {
            (Some(failure), _) => Err((purpose.table, failure)),
            (None, None) => Ok(TicketOutcome::Done),
            (None, Some(read)) => {
                let mut rows = read.finish();
                if rows.clock == Clock(u64::MAX) {
                    rows.clock = rows.reader;
                }
                staleness = purpose.reads.then(|| rows.reader.0.saturating_sub(rows.clock.0));
                Ok(TicketOutcome::Rows(rows))
            }
        };
        if self.detached.remove(&ticket) {
            self.unreported.extend(outcome.err());
        } else {
            self.finished.insert(ticket, outcome);
        }
        Some(ClosedTicket { ticket, purpose, staleness })
    }

    /// The outcome of a finished ticket. A second call returns `None`.
    pub fn take(&mut self, ticket: TicketId) -> Option<Outcome> {
        self.finished.remove(&ticket)
    }

    /// The program will not take this ticket. If it fails, [`Tickets::take_unreported`] returns
    /// why.
    pub fn detach(&mut self, ticket: TicketId) {
        match self.finished.remove(&ticket) {
            Some(outcome) => self.unreported.extend(outcome.err()),
            None if self.pending.contains_key(&ticket) => {
                self.detached.insert(ticket);
            }
            None => {}
        }
    }

    /// Failures of detached tickets since the last call.
    pub fn take_unreported(&mut self) -> Vec<(TableId, TicketFailure)> {
        std::mem::take(&mut self.unreported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PullTarget;
    use types::NumberType;

    const TABLE: TableId = TableId(7);

    fn read(reader: u64, clock: u64) -> PartialRead {
        let mut read = PartialRead::new(PullTarget::empty(NumberType::F32), Clock(reader));
        read.reflects(Clock(clock));
        read
    }

    #[test]
    fn ticket_closes_with_its_last_part_and_is_taken_once() {
        let mut tickets = Tickets::default();
        let ticket = tickets.open(TicketPurpose::of(TABLE), 1);
        tickets.add_parts(ticket, 1);
        assert!(tickets.part_done(ticket, None).is_none() && !tickets.is_finished(ticket));
        let closed = tickets.part_done(ticket, None).expect("its last part");
        assert_eq!((closed.ticket, closed.purpose.table, closed.staleness), (ticket, TABLE, None));
        assert!(matches!(tickets.take(ticket), Some(Ok(TicketOutcome::Done))) && tickets.take(ticket).is_none());
        assert!(tickets.part_done(ticket, None).is_none(), "a late answer does no harm");
    }

    #[test]
    fn failed_ticket_that_is_detached_reports_its_first_refusal_once() {
        for detach_first in [false, true] {
            let mut tickets = Tickets::default();
            let ticket = tickets.open(TicketPurpose::of(TABLE), 2);
            if detach_first {
                tickets.detach(ticket);
            }
            assert!(tickets.part_done(ticket, Some(Refusal::PastClock)).is_none());
            assert!(tickets.part_done(ticket, Some(Refusal::NotOrdered)).is_some());
            let failure = (TABLE, TicketFailure { refusal: Refusal::PastClock });
            if !detach_first {
                tickets.detach(ticket);
            }
            assert_eq!((tickets.take(ticket).is_none(), tickets.take_unreported()), (true, vec![failure]));
            assert!(tickets.take_unreported().is_empty(), "told once");
        }
    }

    #[test]
    fn closed_read_reports_its_staleness_and_counts_as_fresh_without_answers() {
        // (the reader's clock, the least frontier of its parts, staleness)
        for (reader, clock, staleness) in [(5, 3, 2), (5, 9, 0), (5, u64::MAX, 0)] {
            let mut tickets = Tickets::default();
            let ticket = tickets.open(TicketPurpose { reads: true, ..TicketPurpose::of(TABLE) }, 0);
            tickets.collect(ticket, 1, read(reader, clock));
            assert!(tickets.close_if_done(ticket).is_none(), "a part is open");
            let closed = tickets.part_done(ticket, None).expect("its last part");
            assert_eq!(closed.staleness, Some(staleness), "{reader}, {clock}");
        }
    }

    #[test]
    fn open_reads_are_bounded_and_counted_until_they_close() {
        let mut tickets = Tickets::default();
        let purpose = TicketPurpose { reads: true, ..TicketPurpose::of(TABLE) };
        let opened: Vec<TicketId> = (0..OPEN_READS).map(|_| tickets.open(purpose, 0)).collect();
        assert!(!tickets.may_read());
        assert!(tickets.close_if_done(opened[0]).is_some() && tickets.may_read());
        tickets.open(TicketPurpose::of(TABLE), 1);
        assert!(tickets.may_read(), "a push does not count as a read");
    }
}
