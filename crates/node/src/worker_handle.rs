//! The interface to a worker's machine for its shell and its program: it makes each call, and
//! records it if the worker is recorded.

use crate::Recorder;
use lease::{LeaseId, WorkReport};
use std::ops::Deref;
use std::time::Instant;
use types::{Bandwidth, NodeId, TableId, TableSpec, Time};
use wire::{Frame, Keys, LeaseTerms, Outbox};
use worker::{
    LeaseGrant, Notice, Op, PullTarget, RowsOfPush, TableFailure, TicketFailure, TicketId, TicketOutcome, Worker,
    WorkerInput,
};

/// Access to a worker's machine while the driver is locked. Methods that only read are those of
/// [`Worker`] itself, by `Deref`.
pub struct WorkerHandle<'a> {
    pub(crate) worker: &'a mut Worker,
    /// The zero of the machine's time.
    pub(crate) start: Instant,
    pub(crate) out: &'a mut Outbox,
    pub(crate) recorder: Option<&'a Recorder>,
}

impl Deref for WorkerHandle<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.worker
    }
}

impl WorkerHandle<'_> {
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn note(&self, input: impl FnOnce() -> WorkerInput) {
        if let Some(recorder) = self.recorder {
            recorder.input(input());
        }
    }

    /// See [`Worker::make_table`].
    pub fn make_table(&mut self, spec: TableSpec) {
        self.note(|| WorkerInput::MakeTable(spec.clone()));
        self.worker.make_table(spec, self.out);
    }

    /// See [`Worker::submit`].
    pub fn submit(
        &mut self,
        table: TableId,
        op: Op,
        into: Option<PullTarget>,
        after: &[TicketId],
    ) -> Result<TicketId, TableFailure> {
        let now = self.now();
        let recorded = self.recorder.map(|_| op.clone());
        let ticket = self.worker.submit(now, table, op, into, after, self.out)?;
        // Records only accepted operations. A refused one could succeed in the replay: that always
        // has a buffer of the right size, which the program may not have had.
        if let Some(op) = recorded {
            self.note(|| WorkerInput::Submit(now, table, op, after.to_vec()));
        }
        Ok(ticket)
    }

    /// See [`Worker::begin_push`].
    pub fn begin_push(&mut self, table: TableId, keys: &Keys, examples: u64) -> Result<Option<TicketId>, TableFailure> {
        self.note(|| WorkerInput::BeginPush(table, keys.clone(), examples));
        self.worker.begin_push(table, keys, examples)
    }

    /// See [`Worker::push_rows`].
    pub fn push_rows(&mut self, part: RowsOfPush) {
        let now = self.now();
        self.note(|| WorkerInput::PushRows(now, part.clone()));
        self.worker.push_rows(now, part, self.out);
    }

    /// See [`Worker::end_push`].
    pub fn end_push(&mut self, ticket: TicketId) {
        self.note(|| WorkerInput::EndPush(ticket));
        self.worker.end_push(ticket);
    }

    /// See [`Worker::limit`].
    pub fn limit(&mut self, bandwidth: Option<Bandwidth>) {
        let now = self.now();
        self.note(|| WorkerInput::Limit(now, bandwidth));
        self.worker.limit(now, bandwidth, self.out);
    }

    /// See [`Worker::end_clock`].
    pub fn end_clock(&mut self) {
        let now = self.now();
        self.note(|| WorkerInput::EndClock(now));
        self.worker.end_clock(now, self.out);
    }

    /// See [`Worker::open_leases`].
    pub fn open_leases(&mut self, name: &str, terms: LeaseTerms) {
        self.note(|| WorkerInput::OpenLeases(name.to_owned(), terms.clone()));
        self.worker.open_leases(name, terms, self.out);
    }

    /// See [`Worker::ask_leases`].
    pub fn ask_leases(&mut self, set: u32, wanted: u64) {
        self.note(|| WorkerInput::AskLeases(set, wanted));
        self.worker.ask_leases(set, wanted, self.out);
    }

    /// See [`Worker::end_leases`].
    pub fn end_leases(&mut self, set: u32) {
        self.note(|| WorkerInput::EndLeases(set));
        self.worker.end_leases(set, self.out);
    }

    /// See [`Worker::commit_lease`].
    pub fn commit_lease(&mut self, lease: LeaseId, work: WorkReport) -> Result<(), TableFailure> {
        let now = self.now();
        self.note(|| WorkerInput::CommitLease(now, lease, work));
        self.worker.commit_lease(now, lease, work, self.out)
    }

    /// See [`Worker::take_leases`]. It is recorded, because a worker that has taken its leases no
    /// longer ends clocks by itself.
    pub fn take_leases(&mut self, set: u32) -> Option<LeaseGrant> {
        let grant = self.worker.take_leases(set);
        if grant.is_some() {
            self.note(|| WorkerInput::TakeLeases(set));
        }
        grant
    }

    /// See [`Worker::barrier`].
    pub fn barrier(&mut self) -> u64 {
        self.note(|| WorkerInput::Barrier);
        self.worker.barrier(self.out)
    }

    /// See [`Worker::flush_residuals`].
    pub fn flush_residuals(&mut self) -> bool {
        let now = self.now();
        self.note(|| WorkerInput::FlushResiduals(now));
        self.worker.flush_residuals(now, self.out)
    }

    /// See [`Worker::leave`].
    pub fn leave(&mut self) {
        self.note(|| WorkerInput::Leave);
        self.worker.leave(self.out);
    }

    /// See [`Worker::fail`].
    pub fn fail(&mut self, reason: String) {
        self.note(|| WorkerInput::Fail(reason.clone()));
        self.worker.fail(reason, self.out);
    }

    /// See [`Worker::let_go`].
    pub fn let_go(&mut self) {
        self.worker.let_go();
    }

    pub(crate) fn handle(&mut self, frame: Frame) {
        let now = self.now();
        self.note(|| WorkerInput::Frame(now, Box::new(frame.clone())));
        self.worker.handle(now, frame, self.out);
    }

    pub(crate) fn tick(&mut self) {
        let now = self.now();
        self.note(|| WorkerInput::Tick(now));
        self.worker.tick(now, self.out);
    }

    pub(crate) fn reconnected(&mut self, node: NodeId) {
        let now = self.now();
        self.note(|| WorkerInput::Reconnected(now, node));
        self.worker.reconnected(now, node, self.out);
    }

    pub(crate) fn heartbeat(&mut self) {
        let now = self.now();
        self.note(|| WorkerInput::Heartbeat(now));
        self.worker.heartbeat(now, self.out);
    }

    // The calls below do not change what the worker sends, so they are not recorded.

    /// See [`Worker::take`].
    pub fn take(&mut self, ticket: TicketId) -> Option<Result<TicketOutcome, (TableId, TicketFailure)>> {
        self.worker.take(ticket)
    }

    /// See [`Worker::take_lease_problems`].
    pub fn take_lease_problems(&mut self) -> Vec<String> {
        self.worker.take_lease_problems()
    }

    /// See [`Worker::detach`].
    pub fn detach(&mut self, ticket: TicketId) {
        self.worker.detach(ticket);
    }

    /// See [`Worker::take_unreported`].
    pub fn take_unreported(&mut self) -> Vec<(TableId, TicketFailure)> {
        self.worker.take_unreported()
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        self.worker.take_notices()
    }
}
