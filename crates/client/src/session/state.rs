//! [`SessionState`]: the state that a session shares with its tables and tickets.

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

/// A push blocks while this many bytes of earlier pushes are unacknowledged.
const UNACKNOWLEDGED: usize = 256 << 20;

/// The state that a session shares with its tables and tickets.
pub(crate) struct SessionState {
    pub driver: Arc<Driver>,
    /// Buffers for copies of the caller's values.
    pub pool: Pool,
    pub(super) size: RunSize,
    pub(super) rank: WorkerId,
    pub(super) members: Vec<Member>,
    /// Whether the worker joined by a later plan than the run's first.
    pub(super) joined_late: bool,
    /// Whether the run is elastic: nodes join and leave while it lasts.
    pub(super) open: bool,
    pub(super) opened: Instant,
    pub times: Mutex<TimeBreakdown>,
    /// When the last clock ended, and how long the worker had waited for other workers by then.
    pub(super) stepped: Mutex<(Instant, Duration)>,
    /// The update logs of every table, shared by all its handles, and how to send them at the end
    /// of a clock.
    pub(super) logs: Mutex<BTreeMap<TableId, TableLogs>>,
    pub(super) unique_numbers: AtomicU64,
}

/// One table's update logs, of any number type, and how to send them.
pub(super) struct TableLogs {
    pub logs: Arc<dyn Any + Send + Sync>,
    pub absorb: Box<dyn Fn() -> Result<(), Error> + Send>,
}

impl SessionState {
    /// Starts the driver of a worker that has joined, with its background thread.
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

    /// The error for a refused part. An expelled worker may learn it here, from a server: that is
    /// the run's failure, not a refusal.
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

    /// Pushes what the update logs of every table hold.
    pub(super) fn absorb_logs(&self) -> Result<(), Error> {
        lock(&self.logs).values().try_for_each(|table| (table.absorb)())
    }

    /// Fails if a push whose ticket was dropped was refused since the last call of this function.
    pub(super) fn unreported(&self) -> Result<(), Error> {
        match self.driver.call(|worker| worker.take_unreported()).as_slice() {
            [(table, failure), others @ ..] => Err(self.refused(*table, failure, others.len())),
            [] => Ok(()),
        }
    }

    /// Tells the driver that a clock has ended, and how long it took without the time spent waiting
    /// for other workers.
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

    /// How the worker has spent its time so far.
    pub fn time_breakdown(&self) -> TimeBreakdown {
        let times = lock(&self.times).clone();
        TimeBreakdown { total: self.opened.elapsed(), ..times }
    }

    /// Adds a wait to the account: of the worker that released it, or else of the network.
    pub fn account(&self, released_by: Option<WorkerId>, time: Duration) {
        let mut times = lock(&self.times);
        match released_by {
            Some(worker) => *times.bound.entry(worker).or_default() += time,
            None => times.network += time,
        }
    }

    /// Runs a push or a pull. First blocks while too many bytes or reads are under way.
    pub fn call_with_room<R>(&self, call: impl FnOnce(&mut WorkerHandle<'_>) -> R) -> Result<R, Error> {
        let has_room = |worker: &worker::Worker| {
            worker.unacknowledged_bytes() < UNACKNOWLEDGED && worker.may_read() && worker.may_send()
        };
        self.call_when(has_room, call)
    }

    /// Runs a call. First blocks until the worker is `ready`, and accounts for the wait.
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

    /// Blocks, in the middle of an operation, until the worker is `ready`, and accounts for the
    /// wait.
    pub fn wait_until(&self, ready: impl Fn(&worker::Worker) -> bool) -> Result<(), Error> {
        self.under_way(|| Ok(self.driver.see_through(|worker| ready(worker).then_some(()))?))
    }

    /// Runs a wait for messages under way, and accounts for its time.
    fn under_way<R>(&self, wait: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = wait();
        self.account(None, begin.elapsed());
        result
    }
}
