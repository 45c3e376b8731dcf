//! Checkpoints of a run: at which clock one is made, what has been written of it, and a run that
//! goes on from one.
//!
//! The clock lies a little ahead of the furthest frontier that was heard of, so that every shard
//! comes by it. A shard that has passed it says so; then the checkpoint is given up, and the next
//! lies further ahead.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::leases::Leases;
use crate::members::Members;
use crate::saved::{self, MOST_COUNT};
use crate::say::say;
use crate::tables::Tables;
use lease::SavedLeases;
use std::collections::BTreeMap;
use types::{Clock, NodeId, ShardId, Span, TableId, TableSpec, Time};
use wire::{Control, Field, Outbox, Reader, WireError};

/// How many clocks the first checkpoint lies ahead.
const AHEAD: u64 = 2;
/// How many clocks any checkpoint lies ahead, at most.
const MOST_AHEAD: u64 = 1 << 20;

/// The most shards that a saved checkpoint may have.
const MOST_SHARDS: u32 = 1 << 24;

/// What a run goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// The store.
    pub location: String,
    /// The checkpoint's name there.
    pub name: String,
    /// The clock with which the run begins.
    pub clock: Clock,
    /// Into how many shards tables are cut.
    pub shards: u32,
    /// Tables as they were made.
    pub tables: Vec<TableSpec>,
    /// Data sets, by the numbers that shards know them by, and which of their leases are done.
    pub leases: Vec<SavedLeases>,
}

impl Field for Resume {
    fn put(&self, out: &mut Vec<u8>) {
        self.location.put(out);
        self.name.put(out);
        (self.clock, self.shards).put(out);
        self.tables.put(out);
        self.leases.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (location, name) = (Field::get(input)?, Field::get(input)?);
        let (clock, shards) = Field::get(input)?;
        Ok(Self { location, name, clock, shards, tables: Field::get(input)?, leases: Field::get(input)? })
    }
}

/// How a checkpoint has ended, for the shell, which publishes it.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointOutcome {
    /// Every shard is in the store: it can be published.
    Whole(WrittenCheckpoint),
    /// A shard had passed its clock when it heard of it: worth another try at once.
    Missed {
        /// In words.
        reason: String,
    },
    /// Something could not be written.
    Failed {
        /// In words.
        reason: String,
    },
}

/// What servers have written for a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenCheckpoint {
    /// Which checkpoint of the run it is.
    pub number: u64,
    /// Its name in the store.
    pub name: String,
    /// The clock at which every shard was copied.
    pub clock: Clock,
    /// Into how many shards tables are cut.
    pub shards: u32,
    /// Each table, and what its servers' writers say of its shards, in order. A small table may
    /// have fewer.
    pub tables: Vec<(TableSpec, Vec<String>)>,
    /// What is leased, in the order of its numbers. A lease is called done only if every shard's
    /// copy holds all of it: if it was committed in a clock before the checkpoint's.
    pub leases: Vec<SavedLeases>,
    /// What workers' writers say of what their codecs had still to send.
    pub residuals: Vec<String>,
}

/// Whether one more checkpoint is made when every worker has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    /// No.
    #[default]
    Unwanted,
    /// Yes: until then servers stay.
    Wanted,
    /// It was, or cannot be.
    Over,
}

/// A checkpoint under way.
struct RunningCheckpoint {
    number: u64,
    clock: Clock,
    /// Whether every worker had left when it was begun.
    last: bool,
    location: String,
    name: String,
    written: BTreeMap<(TableId, ShardId), String>,
    /// What workers that came to the clock had still to send.
    residuals: BTreeMap<NodeId, Option<String>>,
    asked: Time,
}

impl RunningCheckpoint {
    /// Asks every server for its shards, and the workers that have not answered for their
    /// residuals.
    fn say(&self, members: &Members, out: &mut Outbox) {
        let workers = members.live_workers().map(NodeId::from);
        let workers = workers.filter(|worker| !self.residuals.contains_key(worker));
        for node in members.live_servers().chain(workers) {
            let (location, name) = (self.location.clone(), self.name.clone());
            let Self { number, clock, last, .. } = *self;
            say(node, Control::Checkpoint { number, clock, last, location, name }, out);
        }
    }

    /// What was written, if that is everything: every shard of every table, and the answer of every
    /// worker.
    fn gather(&self, run: &RunView<'_>) -> Option<CheckpointOutcome> {
        // A table that is being made may have something of earlier clocks, too.
        let made = run.tables.checkpointed()?;
        if !run.members.live_workers().all(|worker| self.residuals.contains_key(&worker.into())) {
            return None;
        }
        let mut tables = Vec::new();
        for (table, spec) in made {
            let count = spec.shape.extent().split(run.shards).len() as u32;
            let entry = |shard| self.written.get(&(table, ShardId(shard))).cloned();
            tables.push((spec, (0..count).map(entry).collect::<Option<Vec<_>>>()?));
        }
        let Some(leases) = run.leases.committed_before(self.clock) else {
            let reason = format!("what was leased before clock {} is not told apart any more", self.clock.0);
            return Some(CheckpointOutcome::Missed { reason });
        };
        let residuals = self.residuals.values().flatten().cloned().collect();
        let Self { number, clock, ref name, .. } = *self;
        let (name, shards) = (name.clone(), run.shards as u32);
        Some(CheckpointOutcome::Whole(WrittenCheckpoint { number, name, clock, shards, tables, leases, residuals }))
    }
}

/// What checkpoints need to know of the other parts.
pub(crate) struct RunView<'a> {
    pub members: &'a Members,
    pub tables: &'a Tables,
    pub leases: &'a Leases,
    /// How many shards the run has.
    pub shards: usize,
    pub is_lost: bool,
}

/// The checkpoint that the run came from, the one under way, and how the last one ended.
#[derive(Default)]
pub(crate) struct Checkpoints {
    resume: Option<Resume>,
    /// How many were begun: the number of the last.
    begun: u64,
    /// The furthest frontier that was heard of.
    furthest: Clock,
    /// How many clocks the next lies ahead of that.
    ahead: u64,
    underway: Option<RunningCheckpoint>,
    ended: Option<CheckpointOutcome>,
    last: Last,
}

/// What the run came from.
impl Checkpoints {
    /// The run goes on from a checkpoint.
    pub fn resume(&mut self, resume: Resume) {
        self.resume = Some(resume);
    }

    /// The clock with which the run begins.
    pub fn first_clock(&self) -> Clock {
        self.resume.as_ref().map_or(Clock(0), |resume| resume.clock)
    }

    /// Into how many shards tables are cut, if a checkpoint has decided that for ever.
    pub fn resumed_shards(&self) -> Option<u32> {
        self.resume.as_ref().map(|resume| resume.shards)
    }

    /// What a server is told to hold a table: as it is, or as a checkpoint has it. Fails in words
    /// if the checkpoint has another one of that name.
    pub fn adding(&self, table: TableId, spec: &TableSpec) -> Result<Control, String> {
        let found = self.resume.as_ref().and_then(|resume| {
            let saved = resume.tables.iter().find(|saved| saved.name == spec.name && saved.is_checkpointed())?;
            Some((resume, saved))
        });
        let Some((Resume { location, name, clock, .. }, saved)) = found else {
            return Ok(Control::AddTable { table, spec: spec.clone() });
        };
        if let Some(difference) = saved.difference(spec) {
            return Err(format!(
                "table '{}' of {name} in {location} has another spec: {difference} (the checkpoint's first); resume with the program and \
                 the settings that wrote it",
                spec.name
            ));
        }
        let (spec, clock) = (spec.clone(), *clock);
        Ok(Control::Restore { table, spec, clock, location: location.clone(), name: name.clone() })
    }
}

/// When a checkpoint is made, and how it ends.
impl Checkpoints {
    /// Whether a checkpoint would make sense now: workers work on tables, or the last one is waited
    /// for, and none is under way.
    pub fn may_begin(&self, run: &RunView<'_>) -> bool {
        let idle = self.underway.is_none() && self.ended.is_none();
        let in_time = !run.members.is_over() || self.awaits_last(run);
        let has_tables = run.tables.checkpointed().is_some_and(|made| !made.is_empty());
        idle && in_time && !run.is_lost && has_tables
    }

    /// Whether the end of the run is to wait for a last checkpoint. The shell takes that back if
    /// the checkpoint cannot be begun.
    pub fn want_last(&mut self, wanted: bool) {
        self.last = match (self.last, wanted) {
            (Last::Unwanted, true) => Last::Wanted,
            (Last::Wanted, false) => Last::Over,
            (last, _) => last,
        };
    }

    /// Whether every worker has left, and servers stay for the last checkpoint alone.
    pub fn awaits_last(&self, run: &RunView<'_>) -> bool {
        // Without a table there is nothing to wait for.
        let has_tables = || run.tables.checkpointed().is_none_or(|made| !made.is_empty());
        self.last == Last::Wanted && !run.is_lost && run.members.is_over() && has_tables()
    }

    /// The clock of the checkpoint that is under way.
    pub fn underway(&self) -> Option<Clock> {
        self.underway.as_ref().map(|underway| underway.clock)
    }

    /// Decides at which clock a checkpoint is made, which was begun in a store under a name, and
    /// asks for it.
    pub fn begin(&mut self, now: Time, (location, name): (String, String), run: &RunView<'_>, out: &mut Outbox) {
        self.begun += 1;
        self.ahead = self.ahead.clamp(AHEAD, MOST_AHEAD);
        let last = run.members.is_over();
        let furthest = self.furthest.max(self.first_clock());
        let clock = match last {
            // Everything that workers have pushed or committed is before it.
            true => furthest.max(run.members.furthest_clock()).max(run.leases.committed_until()),
            false => Clock(furthest.0.saturating_add(self.ahead)),
        };
        let (number, written, residuals) = (self.begun, BTreeMap::new(), BTreeMap::new());
        let begun = RunningCheckpoint { number, clock, last, location, name, written, residuals, asked: now };
        begun.say(run.members, out);
        self.underway = Some(begun);
    }

    /// Asks again those nodes that have not answered for this long.
    pub fn ask_again(&mut self, now: Time, after: Span, members: &Members, out: &mut Outbox) {
        if let Some(underway) = self.underway.as_mut().filter(|underway| now.since(underway.asked) >= after) {
            underway.asked = now;
            underway.say(members, out);
        }
    }

    /// A shard's frontier, as a server says.
    pub fn hear_frontier(&mut self, frontier: Clock) {
        self.furthest = self.furthest.max(frontier);
    }

    fn underway_as(&mut self, number: u64) -> Option<&mut RunningCheckpoint> {
        self.underway.as_mut().filter(|underway| underway.number == number)
    }

    fn end(&mut self, outcome: CheckpointOutcome) {
        self.ended = Some(outcome);
        self.underway = None;
    }

    /// A checkpoint's clock was too near: the next lies further ahead.
    fn miss(&mut self, reason: String) {
        self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        self.end(CheckpointOutcome::Missed { reason });
    }

    /// A shard had passed the clock when its head heard of it.
    pub fn shard_missed(&mut self, number: u64, shard: (TableId, ShardId), frontier: Clock) {
        if self.underway.is_none() {
            return;
        }
        self.hear_frontier(frontier);
        // The head before this one may have written it.
        if let Some(underway) = self.underway_as(number).filter(|underway| !underway.written.contains_key(&shard)) {
            let reason = format!("clock {} had passed before every server knew of it", underway.clock.0);
            self.miss(reason);
        }
    }

    /// A worker had passed the clock when it heard of it.
    pub fn worker_passed(&mut self, number: u64, from: NodeId, clock: Clock) {
        if let Some(underway) = self.underway_as(number) {
            let reason = format!("{from} had passed clock {} before it knew of it", underway.clock.0);
            self.hear_frontier(clock);
            self.miss(reason);
        }
    }

    /// A node could not write what it has.
    pub fn unwritten(&mut self, number: u64, from: NodeId, reason: &str) {
        if let Some(underway) = self.underway_as(number) {
            if underway.last {
                self.last = Last::Over;
            }
            self.end(CheckpointOutcome::Failed { reason: format!("{from}: {reason}") });
        }
    }

    /// A worker has written its residuals, if it had any.
    pub fn residuals_written(&mut self, number: u64, from: NodeId, entry: Option<String>) {
        if let Some(underway) = self.underway_as(number) {
            underway.residuals.entry(from).or_insert(entry);
        }
    }

    /// A server has written a shard.
    pub fn written(&mut self, number: u64, shard: (TableId, ShardId), entry: String) {
        if let Some(underway) = self.underway_as(number) {
            underway.written.entry(shard).or_insert(entry);
        }
    }

    /// Ends the checkpoint that is under way if everything is there, or if the run has ended before
    /// it. Returns whether that was the last one of the run.
    pub fn gather(&mut self, run: &RunView<'_>) -> bool {
        let Some(underway) = &self.underway else { return false };
        let last = underway.last;
        if !last && self.awaits_last(run) {
            self.end(CheckpointOutcome::Missed { reason: "the run has ended before it".to_owned() });
            return false;
        }
        let Some(outcome) = underway.gather(run) else { return false };
        if last {
            self.last = Last::Over;
        }
        self.end(outcome);
        last
    }

    /// A server is lost when every worker has left: no replica holds what it held, and none will.
    pub fn lose_last(&mut self, node: NodeId, run: &RunView<'_>) {
        if self.awaits_last(run) {
            self.end(CheckpointOutcome::Failed {
                reason: format!("{node} was lost before it had written what it held"),
            });
            self.last = Last::Over;
        }
    }

    /// How the checkpoint that was under way has ended, once.
    pub fn take_end(&mut self) -> Option<CheckpointOutcome> {
        self.ended.take()
    }
}

/// What a successor has to know: what the run came from, and which numbers are used. A checkpoint
/// under way is left out: it ends with the coordinator that publishes it.
impl Field for Checkpoints {
    fn put(&self, out: &mut Vec<u8>) {
        self.resume.put(out);
        self.begun.put(out);
        (self.last == Last::Over).put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let resume: Option<Resume> = Field::get(input)?;
        let begun = Field::get(input)?;
        let last = if bool::get(input)? { Last::Over } else { Last::Unwanted };
        let shards = resume.as_ref().map_or(0, |resume| resume.shards);
        saved::check(&[(begun < MOST_COUNT && shards <= MOST_SHARDS, "checkpoints without end")])?;
        Ok(Self { resume, begun, last, ..Self::default() })
    }
}
