//! A worker with its program: runs the program step by step, and records in the history what it
//! does and sees.
#![deny(clippy::wildcard_enum_match_arm)]

use super::follower::Follower;
use super::learner::Learner;
use super::{Cluster, Happening};
use crate::history::{HistoryEvent, ReadRecord};
use crate::program::{Action, TableIndex, Write};
use crate::sabotage::Sabotage;
use lease::LeaseId;
use std::collections::BTreeMap;
use types::{Key, NumberType, Setting, Source, TableId, TableSpec, Time};
use wire::{Bits, Keys, Payload};
use worker::{Batch, Op, PullTarget, TicketId, TicketOutcome, Values, Worker, WorkerInput};

/// The most marking pushes of one worker to one row: up to here every 4ⁿ, and their sum, is exact
/// in an f64.
const MOST_MARKS: u32 = 26;

/// Where a worker is between joining and leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has no place yet.
    Away,
    /// It was given a place, as this incarnation, and waits to begin.
    Welcomed(Source),
    /// It runs its program.
    Working,
    /// It has said goodbye and waits for the answer.
    Leaving,
    /// The coordinator has acknowledged its goodbye, or the run was over before it joined.
    Gone,
    /// It crashed, or was expelled.
    Crashed,
}

/// What the program waits for before its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedEvent {
    Nothing,
    Until(Time),
    For(TicketId),
    Table(TableIndex),
    Barrier(u64),
    /// The data set, or leases of it.
    Leases,
    /// Until the worker has sent everything that the program asked for.
    Flushed,
}

/// An operation that is not finished yet.
pub(super) enum Task {
    /// A push, set or delete.
    Push,
    /// The keys asked for. A scan has none: it learns them from the answer.
    Pull(Option<Vec<u64>>, TableIndex),
    Ask(Vec<u64>, TableIndex),
    /// A read of row state, and whether it is a final read.
    RowState(TableIndex, bool),
    /// A page of a feed, and whether the program follows the feed to its end.
    Follow(TableIndex, bool),
    Tune,
}

/// A worker and its program.
pub struct Actor {
    pub worker: Worker,
    pub program: Vec<Action>,
    pub presence: Presence,
    pub(super) next: usize,
    pub(super) wait: AwaitedEvent,
    /// When the program took its last step.
    stepped: Time,
    pub(super) learner: Option<Learner>,
    pub(super) tables: BTreeMap<TableIndex, TableId>,
    pub(super) followers: BTreeMap<TableIndex, Follower>,
    tasks: Vec<TicketId>,
    pub(super) outstanding: BTreeMap<TicketId, Task>,
    marks: BTreeMap<(TableIndex, u64), u32>,
}

impl Actor {
    pub fn new(worker: Worker) -> Self {
        Self {
            worker,
            program: Vec::new(),
            presence: Presence::Working,
            next: 0,
            wait: AwaitedEvent::Nothing,
            stepped: Time(0),
            learner: None,
            tables: BTreeMap::new(),
            followers: BTreeMap::new(),
            tasks: Vec::new(),
            outstanding: BTreeMap::new(),
            marks: BTreeMap::new(),
        }
    }

    /// The table's index in the history.
    pub fn index_of(&self, id: TableId) -> Option<TableIndex> {
        self.tables.iter().find(|(_, known)| **known == id).map(|(index, _)| *index)
    }

    /// Whether it has begun to take part, even if it has left since. A crashed worker does not
    /// count.
    pub fn has_begun(&self) -> bool {
        matches!(self.presence, Presence::Working | Presence::Leaving | Presence::Gone)
    }

    /// Whether it has left for good, or crashed.
    pub fn is_over(&self) -> bool {
        matches!(self.presence, Presence::Gone | Presence::Crashed)
    }

    /// What the worker is doing and waits for, in words, unless it is over.
    pub fn stands(&self) -> Option<String> {
        (!self.is_over()).then(|| {
            let id = self.worker.id();
            let step = self.program.get(self.next);
            format!("{id} at {} is {:?}, waits for {:?} before {step:?}", self.worker.clock(), self.presence, self.wait)
        })
    }

    /// Since when the program waits in one call. None while it computes.
    pub fn blocked(&self) -> Option<Time> {
        (!matches!(self.wait, AwaitedEvent::Until(_))).then_some(self.stepped)
    }

    fn may_go_on(&self, now: Time, specs: &[TableSpec]) -> bool {
        match self.wait {
            AwaitedEvent::Nothing => true,
            AwaitedEvent::Until(time) => now >= time,
            AwaitedEvent::For(ticket) => self.worker.is_finished(ticket),
            AwaitedEvent::Table(table) => self.worker.table(&specs[table.0].name).is_some(),
            AwaitedEvent::Barrier(number) => self.worker.barrier_passed(number),
            AwaitedEvent::Leases => self.learner.as_ref().is_none_or(|learner| learner.may_go_on(&self.worker)),
            AwaitedEvent::Flushed => self.worker.is_flushed(),
        }
    }

    /// The numbers of a push in the order of `keys`, and for each key which mark it adds.
    fn numbers(&mut self, table: TableIndex, width: usize, ids: &[u64], keys: &Keys, write: &Write) -> Written {
        let own = self.worker.id().0 as usize;
        let mut written = Written { marks: Vec::new(), values: vec![0.0; keys.len() * width] };
        for (row, id) in keys.ids().enumerate() {
            let values = &mut written.values[row * width..][..width];
            if let Write::Numbers(numbers) = write {
                let place = ids.iter().position(|other| *other == id).unwrap_or(0);
                values.copy_from_slice(&numbers[place * width..][..width]);
                continue;
            }
            if *write == Write::Ones {
                values.fill(1.0);
                continue;
            }
            let mark = self.marks.entry((table, id)).or_default();
            assert!(*mark < MOST_MARKS, "worker {own} pushes too often to {}", Key(id));
            values[own] = if *write == (Write::MarksWithNan { key: id }) { f64::NAN } else { 4f64.powi(*mark as i32) };
            written.marks.push(*mark);
            *mark += 1;
        }
        written
    }
}

struct Written {
    marks: Vec<u32>,
    values: Vec<f64>,
}

fn payload(number: NumberType, values: &[f64]) -> Payload {
    match number {
        NumberType::F32 => Payload::new(values.iter().map(|value| *value as f32).collect::<Vec<f32>>()),
        NumberType::F64 => Payload::new(values.to_vec()),
        NumberType::I64 => Payload::new(values.iter().map(|value| *value as i64).collect::<Vec<i64>>()),
    }
}

pub(super) fn reals(target: &PullTarget) -> Vec<f64> {
    match target {
        PullTarget::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
        PullTarget::F64(values) => values.clone(),
        PullTarget::I64(values) => values.iter().map(|value| *value as f64).collect(),
        PullTarget::Buffer(..) => unreachable!("programs of the simulator read into vectors"),
    }
}

/// Names neighbouring rows of a dense table as a run, and all other keys as a list.
fn keys_of(spec: &TableSpec, ids: &[u64]) -> Keys {
    let run =
        matches!(spec.shape, types::TableShape::Dense { .. }) && ids.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    match ids {
        [first, .., last] if run => Keys::run(*first..last + 1),
        [only] if run => Keys::run(*only..only + 1),
        _ => Keys::distinct(spec.shape.placement(), ids),
    }
}

impl Cluster {
    /// Runs a worker's program until it has to wait.
    pub(super) fn advance(&mut self, worker: usize) {
        if self.actors[worker].presence != Presence::Working {
            return;
        }
        loop {
            self.collect(worker);
            if !self.actors[worker].may_go_on(self.now, &self.history.specs) {
                return;
            }
            self.arrived(worker);
            let actor = &self.actors[worker];
            let Some(step) = actor.program.get(actor.next).cloned() else {
                if actor.worker.is_idle() && actor.outstanding.is_empty() {
                    self.actors[worker].presence = Presence::Leaving;
                    self.note(worker as u32, HistoryEvent::Left);
                    self.drive_worker(worker, WorkerInput::Leave);
                }
                return;
            };
            let must_wait = match step {
                Action::EndClock => !actor.worker.is_flushed(),
                Action::Pull { .. }
                | Action::PullRowState { .. }
                | Action::Scan { .. }
                | Action::Follow { .. }
                | Action::Ask { .. } => self.sabotage != Some(Sabotage::AskWithoutRoom) && !actor.worker.may_read(),
                Action::WaitUntilIdle => !actor.worker.is_idle(),
                Action::MakeTable(_)
                | Action::Compute(_)
                | Action::Push { .. }
                | Action::Set { .. }
                | Action::Delete { .. }
                | Action::Tune { .. }
                | Action::JumpFrom { .. }
                | Action::Learn(_)
                | Action::Limit(_)
                | Action::Barrier => false,
            };
            if must_wait {
                return;
            }
            self.actors[worker].next += 1;
            self.actors[worker].stepped = self.now;
            self.take_step(worker, step);
        }
    }

    /// Ends the program's wait: what it waited for has come.
    fn arrived(&mut self, worker: usize) {
        match std::mem::replace(&mut self.actors[worker].wait, AwaitedEvent::Nothing) {
            AwaitedEvent::Barrier(number) => self.note(worker as u32, HistoryEvent::BarrierPassed { number }),
            AwaitedEvent::Table(table) => {
                let actor = &mut self.actors[worker];
                match actor.worker.table(&self.history.specs[table.0].name).cloned() {
                    Some(Ok(id)) => {
                        actor.tables.insert(table, id);
                    }
                    Some(Err(problem)) => self.note(worker as u32, HistoryEvent::TableRefused { problem }),
                    None => {}
                }
            }
            AwaitedEvent::Nothing
            | AwaitedEvent::Until(_)
            | AwaitedEvent::For(_)
            | AwaitedEvent::Leases
            | AwaitedEvent::Flushed => {}
        }
    }

    fn take_step(&mut self, worker: usize, step: Action) {
        let now = self.now;
        match step {
            Action::MakeTable(table) => {
                let spec = self.history.specs[table.0].clone();
                self.drive_worker(worker, WorkerInput::MakeTable(spec));
                self.actors[worker].wait = AwaitedEvent::Table(table);
            }
            Action::Compute(span) => {
                self.actors[worker].wait = AwaitedEvent::Until(now + span);
                self.later(span, Happening::Wake(worker));
            }
            Action::Push { table, keys, write, after } => self.push(worker, table, &keys, &write, &after, None),
            Action::Pull { table, keys, after, wait, last } => self.pull(worker, table, &keys, &after, wait, last),
            Action::Scan { table, first, end, last } => {
                let range = types::PositionRange { first: types::Position(first), last: types::Position(end) };
                let id = self.actors[worker].tables[&table];
                let ticket = self.submit(worker, id, Op::Scan { range, row_state: false }, Vec::new());
                self.pull_issued(worker, ticket, table, None, Vec::new(), true, last);
            }
            Action::Follow { table, from, last } => self.follow(worker, table, from, last),
            Action::Set { table, keys, rows } => self.set_rows(worker, table, &keys, &rows),
            Action::Delete { table, keys } => self.delete(worker, table, &keys),
            Action::PullRowState { table, keys, last } => {
                let keys = self.keys_of(table, &keys);
                let id = self.actors[worker].tables[&table];
                if let Some(ticket) = self.submit(worker, id, Op::RowState { keys }, Vec::new()) {
                    self.actors[worker].outstanding.insert(ticket, Task::RowState(table, last));
                    self.actors[worker].wait = AwaitedEvent::For(ticket);
                }
            }
            Action::Ask { table, keys } => {
                let keys = self.keys_of(table, &keys);
                let id = self.actors[worker].tables[&table];
                let ids = keys.ids().collect();
                if let Some(ticket) = self.submit(worker, id, Op::Active { keys }, Vec::new()) {
                    self.actors[worker].outstanding.insert(ticket, Task::Ask(ids, table));
                    self.actors[worker].wait = AwaitedEvent::For(ticket);
                }
            }
            Action::Tune { table, rate } => {
                let id = self.actors[worker].tables[&table];
                let clock = self.actors[worker].worker.clock();
                let ticket = self.submit(worker, id, Op::Tune { setting: Setting::Rate(rate) }, Vec::new());
                self.actors[worker].outstanding.extend(ticket.map(|ticket| (ticket, Task::Tune)));
                self.note(worker as u32, HistoryEvent::Tuned { table, clock, rate });
            }
            Action::Limit(bandwidth) => {
                self.drive_worker(worker, WorkerInput::Limit(now, bandwidth));
            }
            Action::EndClock => {
                let clock = self.actors[worker].worker.clock();
                self.note(worker as u32, HistoryEvent::ClockEnded { clock });
                self.drive_worker(worker, WorkerInput::EndClock(now));
            }
            Action::Learn(lessons) => self.learn(worker, lessons),
            Action::WaitUntilIdle => {}
            Action::JumpFrom { clock, to } => {
                if self.actors[worker].worker.clock().0 >= clock {
                    self.actors[worker].next = to;
                }
            }
            Action::Barrier => {
                if let Some(number) = self.drive_worker(worker, WorkerInput::Barrier) {
                    self.actors[worker].wait = AwaitedEvent::Barrier(number);
                    self.note(worker as u32, HistoryEvent::BarrierReached { number });
                }
            }
        }
    }

    pub(super) fn submit(&mut self, worker: usize, table: TableId, op: Op, after: Vec<TicketId>) -> Option<TicketId> {
        self.drive_worker(worker, WorkerInput::Submit(self.now, table, op, after)).map(TicketId)
    }

    /// The tickets that an operation must follow, and those that the worker is told to follow:
    /// sabotage can leave them out.
    fn followed(&self, worker: usize, after: &[usize]) -> (Vec<TicketId>, Vec<TicketId>) {
        let named: Vec<TicketId> = after.iter().map(|task| self.actors[worker].tasks[*task]).collect();
        let obeyed = if self.sabotage == Some(Sabotage::IgnoreAfter) { Vec::new() } else { named.clone() };
        (named, obeyed)
    }

    /// A key list as its program would make it: chosen from another list where that is possible.
    fn keys_of(&self, table: TableIndex, ids: &[u64]) -> Keys {
        let spec = &self.history.specs[table.0];
        if self.chosen_from.is_empty() || !ids.iter().all(|id| self.chosen_from.contains(id)) {
            return keys_of(spec, ids);
        }
        let all = Keys::distinct(spec.shape.placement(), &self.chosen_from);
        let mut bits = Bits::none(all.len());
        all.ids().enumerate().filter(|(_, id)| ids.contains(id)).for_each(|(index, _)| bits.set(index));
        all.choose(&bits)
    }

    pub(super) fn push(
        &mut self,
        worker: usize,
        table: TableIndex,
        ids: &[u64],
        write: &Write,
        after: &[usize],
        lease: Option<LeaseId>,
    ) {
        let spec = &self.history.specs[table.0];
        let number = spec.number;
        let width = spec.width as usize;
        let keys = self.keys_of(table, ids);
        let actor = &mut self.actors[worker];
        let id = actor.tables[&table];
        let clock = actor.worker.clock();
        let Written { marks, values } = actor.numbers(table, width, ids, &keys, write);
        let batch = Batch {
            keys: keys.clone(),
            values: Values { number, bytes: payload(number, &values) },
            examples: keys.len() as u64,
            lease,
        };
        let (named, obeyed) = self.followed(worker, after);
        // The push is recorded before it is made, because its frames are recorded as they leave.
        let line = self.history.entries.len();
        let keys = keys.ids().collect();
        let ticket = TicketId(0);
        self.note(worker as u32, HistoryEvent::Pushed { table, clock, ticket, keys, marks, values, after: named });
        let name = self.submit(worker, id, Op::Push { batch }, obeyed);
        if let (Some(name), HistoryEvent::Pushed { ticket, .. }) = (name, &mut self.history.entries[line].event) {
            *ticket = name;
            self.actors[worker].tasks.push(name);
            self.actors[worker].outstanding.insert(name, Task::Push);
        }
    }

    /// Sets rows of keys, in any order, with their updater's state.
    fn set_rows(&mut self, worker: usize, table: TableIndex, ids: &[u64], rows: &[f64]) {
        let number = self.history.specs[table.0].number;
        let keys = self.keys_of(table, ids);
        let width = rows.len() / ids.len().max(1);
        let place = |id: u64| ids.iter().position(|other| *other == id).unwrap_or(0);
        let values: Vec<f64> = keys.ids().flat_map(|id| rows[place(id) * width..][..width].to_vec()).collect();
        let bytes = Values { number, bytes: payload(number, &values) };
        let id = self.actors[worker].tables[&table];
        let names = keys.ids().collect();
        if let Some(ticket) = self.submit(worker, id, Op::Set { keys, values: bytes }, Vec::new()) {
            self.actors[worker].tasks.push(ticket);
            self.actors[worker].outstanding.insert(ticket, Task::Push);
            self.note(worker as u32, HistoryEvent::RowsSet { table, ticket, keys: names, values });
        }
    }

    fn delete(&mut self, worker: usize, table: TableIndex, ids: &[u64]) {
        let keys = self.keys_of(table, ids);
        let id = self.actors[worker].tables[&table];
        let names = keys.ids().collect();
        if let Some(ticket) = self.submit(worker, id, Op::Delete { keys }, Vec::new()) {
            self.actors[worker].tasks.push(ticket);
            self.actors[worker].outstanding.insert(ticket, Task::Push);
            let clock = self.actors[worker].worker.clock();
            self.note(worker as u32, HistoryEvent::RowsDeleted { table, clock, ticket, keys: names });
        }
    }

    pub(super) fn pull(
        &mut self,
        worker: usize,
        table: TableIndex,
        ids: &[u64],
        after: &[usize],
        wait: bool,
        last: bool,
    ) {
        let keys = self.keys_of(table, ids);
        let id = self.actors[worker].tables[&table];
        let (named, obeyed) = self.followed(worker, after);
        let ids: Vec<u64> = keys.ids().collect();
        let ticket = self.submit(worker, id, Op::Pull { keys }, obeyed);
        self.pull_issued(worker, ticket, table, Some(ids), named, wait, last);
    }

    #[allow(clippy::too_many_arguments)] // One line of the history, field by field.
    fn pull_issued(
        &mut self,
        worker: usize,
        ticket: Option<TicketId>,
        table: TableIndex,
        keys: Option<Vec<u64>>,
        after: Vec<TicketId>,
        wait: bool,
        last: bool,
    ) {
        let Some(ticket) = ticket else { return };
        let actor = &mut self.actors[worker];
        let clock = actor.worker.clock();
        actor.tasks.push(ticket);
        actor.outstanding.insert(ticket, Task::Pull(keys.clone(), table));
        if wait {
            actor.wait = AwaitedEvent::For(ticket);
        }
        let keys = keys.unwrap_or_default();
        self.note(worker as u32, HistoryEvent::PullIssued { table, clock, ticket, keys, after, last });
    }

    /// Takes notices and answers that have come for the program, and records them in the history.
    fn collect(&mut self, worker: usize) {
        let actor = &mut self.actors[worker];
        let mut events: Vec<HistoryEvent> =
            actor.worker.take_notices().into_iter().map(HistoryEvent::Noticed).collect();
        let finished: Vec<TicketId> =
            actor.outstanding.keys().copied().filter(|ticket| actor.worker.is_finished(*ticket)).collect();
        for ticket in finished {
            let (Some(task), Some(result)) = (actor.outstanding.remove(&ticket), actor.worker.take(ticket)) else {
                continue;
            };
            let event = match (task, result) {
                (Task::Push, result) => {
                    HistoryEvent::PushDone { ticket, refusal: result.err().map(|(_, failure)| failure.refusal) }
                }
                (Task::Pull(keys, table), Ok(TicketOutcome::Rows(rows))) => {
                    let placement = self.history.specs[table.0].shape.placement();
                    let found = || rows.positions.iter().map(|at| placement.key(types::Position(*at)).0).collect();
                    let read = ReadRecord {
                        keys: keys.unwrap_or_else(found),
                        values: reals(&rows.values),
                        clock: rows.clock,
                        failed: rows.failed,
                        cached_rows: rows.cached_rows,
                    };
                    HistoryEvent::PullReturned { ticket, read }
                }
                (Task::Ask(keys, table), Ok(TicketOutcome::Rows(rows))) => {
                    let active = keys.into_iter().enumerate().map(|(index, key)| (key, rows.active.get(index)));
                    HistoryEvent::Told { table, active: active.collect(), clock: rows.clock }
                }
                (Task::RowState(table, last), Ok(TicketOutcome::Rows(rows))) => {
                    let placement = self.history.specs[table.0].shape.placement();
                    let keys = rows.positions.iter().map(|at| placement.key(types::Position(*at)).0).collect();
                    HistoryEvent::RowStateReturned { table, keys, values: reals(&rows.values), last }
                }
                (Task::Follow(table, last), Ok(TicketOutcome::Rows(rows))) => {
                    let spec = &self.history.specs[table.0];
                    let follower = actor.followers.get_mut(&table).zip(rows.page);
                    match follower.and_then(|(follower, page)| follower.take(table, last, &page, spec)) {
                        Some(event) => event,
                        None => continue,
                    }
                }
                (Task::Pull(..) | Task::Ask(..) | Task::RowState(..) | Task::Follow(..), Err((_, failure))) => {
                    HistoryEvent::PullFailed { ticket, refusal: failure.refusal }
                }
                (Task::Pull(..) | Task::Ask(..) | Task::RowState(..) | Task::Follow(..), Ok(TicketOutcome::Done))
                | (Task::Tune, _) => continue,
            };
            events.push(event);
        }
        events.into_iter().for_each(|event| self.note(worker as u32, event));
    }
}
