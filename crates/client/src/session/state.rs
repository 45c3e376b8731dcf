//! The state of a session, which its tables and tickets share.

use crate::Error;
use crate::time_breakdown::TimeBreakdown;
use net::lock;
use node::{Driver, DriverSettings, NodeError, Recorder, WorkerHandle};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use types::{NodeId, Placement, PlanNumber, RunSize, TableId, TableSpec, WorkerId};
use wire::{Member, Pool};
use worker::TicketFailure;

/// Pushed bytes that may be unacknowledged before a push blocks.
const UNACKNOWLEDGED: usize = 256 << 20;

pub(crate) struct SessionState {
    pub driver: Arc<Driver>,
    /// Where values of the caller's are copied to.
    pub pool: Pool,
    pub(super) size: RunSize,
    pub(super) rank: WorkerId,
    pub(super) members: Vec<Member>,
    /// Whether the worker joined by a later plan than the run's first.
    pub(super) joined_late: bool,
    /// Whether nodes come and go.
    pub(super) open: bool,
    pub(super) opened: Instant,
    pub times: Mutex<TimeBreakdown>,
    /// When the last clock ended, and how long had been waited for others by then.
    pub(super) stepped: Mutex<(Instant, Duration)>,
    /// The logs of every table, however often it was opened, and how to send them at the end of a
    /// clock.
    pub(super) logs: Mutex<BTreeMap<TableId, TableLogs>>,
    pub(super) unique_numbers: AtomicU64,
}

/// One table's logs, of whatever number type, and how to send them.
pub(super) struct TableLogs {
    pub logs: Arc<dyn Any + Send + Sync>,
    pub absorb: Box<dyn Fn() -> Result<(), Error> + Send>,
}

impl SessionState {
    /// A worker that has joined, and the thread that keeps its things moving.
    pub fn start(
        joined: node::JoinedRun,
        transport: Box<dyn net::Transport>,
        waiter: Box<dyn net::Waiter>,
        settings: DriverSettings,
        recorder: Option<Recorder>,
    ) -> Result<Self, NodeError> {
        let size =
            RunSize { servers: joined.plan.servers().len() as u32, workers: joined.plan.live_workers().count() as u32 };
        let rank = match joined.node {
            NodeId::Worker(rank) => WorkerId(rank),
            _ => WorkerId(0),
        };
        let members = joined.members.clone();
        let open = joined.serving_lease.is_some();
        let joined_late = joined.plan.number > PlanNumber(1);
        Ok(Self {
            driver: Driver::start(joined, transport, waiter, settings, recorder)?,
            pool: Pool::new(),
            size,
            rank,
            members,
            joined_late,
            open,
            opened: Instant::now(),
            times: Mutex::new(TimeBreakdown::default()),
            stepped: Mutex::new((Instant::now(), Duration::ZERO)),
            logs: Mutex::new(BTreeMap::new()),
            unique_numbers: AtomicU64::new(0),
        })
    }

    /// The error for a refused part. An expelled worker learns that it is one from the first node
    /// it contacts: a server, or the coordinator.
    pub fn refused(&self, table: TableId, failure: &TicketFailure, others: usize) -> Error {
        if failure.refusal == wire::Refusal::Expelled {
            let reason = failure.refusal.describe("", Placement::Ordered);
            return NodeError::GivenUp { node: NodeId::Worker(self.rank.0), reason }.into();
        }
        let named = |spec: &TableSpec| (spec.name.clone(), spec.shape.placement());
        let named = self.driver.call(|worker| worker.spec(table).map(named));
        let (table, placement) = named.unwrap_or_else(|| (format!("number {}", table.0), Placement::Ordered));
        Error::Refused { worker: self.rank, table, placement, refusal: failure.refusal.clone(), others }
    }

    /// Sends what the logs of every table hold.
    pub(super) fn absorb_logs(&self) -> Result<(), Error> {
        lock(&self.logs).values().try_for_each(|table| (table.absorb)())
    }

    /// Fails if a push whose ticket was dropped was refused since this was last asked.
    pub(super) fn unreported(&self) -> Result<(), Error> {
        match self.driver.call(|worker| worker.take_unreported()).as_slice() {
            [(table, failure), others @ ..] => Err(self.refused(*table, failure, others.len())),
            [] => Ok(()),
        }
    }

    /// A clock has ended: how long it took, without the time in which others were waited for.
    pub(super) fn stepped(&self) {
        let waited = {
            let times = lock(&self.times);
            times.waited_for_others() + times.barrier
        };
        let mut last = lock(&self.stepped);
        let took = last.0.elapsed().saturating_sub(waited.saturating_sub(last.1));
        *last = (Instant::now(), waited);
        self.driver.stepped(took);
    }

    /// Where the worker's time went so far.
    pub fn time_breakdown(&self) -> TimeBreakdown {
        let times = lock(&self.times).clone();
        TimeBreakdown { total: self.opened.elapsed(), ..times }
    }

    pub fn account(&self, released_by: Option<WorkerId>, time: Duration) {
        let mut times = lock(&self.times);
        match released_by {
            Some(worker) => *times.bound.entry(worker).or_default() += time,
            None => times.network += time,
        }
    }

    /// Runs a push or a pull; blocks first while too much is under way.
    pub fn call_with_room<R>(&self, call: impl FnOnce(&mut WorkerHandle<'_>) -> R) -> Result<R, Error> {
        let has_room = |worker: &worker::Worker| {
            worker.unacknowledged_bytes() < UNACKNOWLEDGED && worker.may_read() && worker.may_send()
        };
        self.call_when(has_room, call)
    }

    /// Runs a call; blocks first until the worker is `ready`, and accounts for that.
    pub fn call_when<R>(
        &self,
        ready: impl Fn(&worker::Worker) -> bool,
        call: impl FnOnce(&mut WorkerHandle<'_>) -> R,
    ) -> Result<R, Error> {
        let mut call = Some(call);
        let now = self.driver.call(|worker| ready(worker).then(|| call.take().map(|call| call(worker))).flatten());
        if let Some(result) = now {
            return Ok(result);
        }
        let Some(call) = call else { unreachable!("a call that was not made is still there") };
        self.under_way(|| Ok(self.driver.call_when(ready, call)?))
    }

    /// Blocks until the worker is `ready`, in the middle of something, and accounts for that.
    pub fn wait_until(&self, ready: impl Fn(&worker::Worker) -> bool) -> Result<(), Error> {
        self.under_way(|| Ok(self.driver.see_through(|worker| ready(worker).then_some(()))?))
    }

    /// Accounts for the time that something takes which waits for what is under way.
    fn under_way<R>(&self, wait: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = wait();
        self.account(None, begin.elapsed());
        result
    }
}
