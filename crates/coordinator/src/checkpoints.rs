//! Checkpoints of a run: at which clock each is made, which files nodes have written for it, and
//! the checkpoint that the run resumed from.
//!
//! The coordinator picks a clock a little ahead of the furthest frontier that it knows, so that
//! every shard can copy itself when its frontier gets there. If a shard has passed that clock
//! already, the checkpoint is given up, and the next clock lies twice as far ahead.

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

/// How many clocks ahead of the furthest frontier the first checkpoint lies.
const AHEAD: u64 = 2;
/// How many clocks ahead a checkpoint lies at most.
const MOST_AHEAD: u64 = 1 << 20;

/// The most shards that a run resumed from a saved memory may have.
const MOST_SHARDS: u32 = 1 << 24;

/// The checkpoint that a run resumes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// Where its store is.
    pub location: String,
    /// Its name in the store.
    pub name: String,
    /// The clock with which the run begins.
    pub clock: Clock,
    /// The number of shards that tables are cut into.
    pub shards: u32,
    /// The specs of its tables.
    pub tables: Vec<TableSpec>,
    /// Its data sets, in the order of the numbers that shards know them by, and which of their
    /// leases are done.
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
        let location = Field::get(input)?;
        let name = Field::get(input)?;
        let (clock, shards) = Field::get(input)?;
        Ok(Self { location, name, clock, shards, tables: Field::get(input)?, leases: Field::get(input)? })
    }
}

/// How a checkpoint has ended. The shell publishes a whole one.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointOutcome {
    /// Every shard is in the store, so the shell can publish the manifest.
    Whole(WrittenCheckpoint),
    /// The run had passed the clock before every node knew of it. The shell may try again at once.
    Missed {
        /// Why, for people.
        reason: String,
    },
    /// A node could not write its files, or was lost before it had.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

/// What nodes have written for a whole checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenCheckpoint {
    /// The checkpoint's number in the run, from 1.
    pub number: u64,
    /// Its name in the store.
    pub name: String,
    /// The clock at which every shard was copied.
    pub clock: Clock,
    /// The number of shards that tables are cut into.
    pub shards: u32,
    /// Each table, and the manifest entry of each of its shards, in order. A small table may have
    /// fewer shards.
    pub tables: Vec<(TableSpec, Vec<String>)>,
    /// The data sets, in the order of their numbers. A lease counts as done only if it was
    /// committed in a clock before the checkpoint's: then every shard's copy holds all of it.
    pub leases: Vec<SavedLeases>,
    /// The manifest entry of each worker's residuals.
    pub residuals: Vec<String>,
}

/// Whether one more checkpoint is made after every worker has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    /// It is not made.
    #[default]
    Unwanted,
    /// It will be made. Servers stay until it is written.
    Wanted,
    /// It was made, or cannot be made.
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
    /// The manifest entry of each shard that a server has written.
    written: BTreeMap<(TableId, ShardId), String>,
    /// The workers that have answered, and the manifest entry of each worker's residuals, if it had
    /// any.
    residuals: BTreeMap<NodeId, Option<String>>,
    /// When nodes were last asked.
    asked: Time,
}

impl RunningCheckpoint {
    /// Asks every server for its shards. Asks the workers that have not answered for their
    /// residuals.
    fn say(&self, members: &Members, out: &mut Outbox) {
        let workers = members.live_workers().map(NodeId::from);
        let workers = workers.filter(|worker| !self.residuals.contains_key(worker));
        for node in members.live_servers().chain(workers) {
            let Self { number, clock, last, .. } = *self;
            let location = self.location.clone();
            let name = self.name.clone();
            say(node, Control::Checkpoint { number, clock, last, location, name }, out);
        }
    }

    /// The outcome, once every shard of every table is written and every worker has answered.
    fn gather(&self, run: &RunView<'_>) -> Option<CheckpointOutcome> {
        // Waits while a table is being made: it may get pushes of clocks before the checkpoint's.
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
            let reason = format!("the leases committed before clock {} are no longer known apart", self.clock.0);
            return Some(CheckpointOutcome::Missed { reason });
        };
        let residuals = self.residuals.values().flatten().cloned().collect();
        Some(CheckpointOutcome::Whole(WrittenCheckpoint {
            number: self.number,
            name: self.name.clone(),
            clock: self.clock,
            shards: run.shards as u32,
            tables,
            leases,
            residuals,
        }))
    }
}

/// What [`Checkpoints`] reads of the other parts.
pub(crate) struct RunView<'a> {
    pub members: &'a Members,
    pub tables: &'a Tables,
    pub leases: &'a Leases,
    /// How many shards the run has.
    pub shards: usize,
    pub is_lost: bool,
}

/// The checkpoint that the run resumed from, the one under way, and the outcome of the last one.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The checkpoint that the run resumed from.
    resume: Option<Resume>,
    /// How many checkpoints were begun: the number of the last.
    begun: u64,
    /// The furthest frontier that a server has reported.
    furthest: Clock,
    /// How many clocks ahead of `furthest` the next checkpoint lies.
    ahead: u64,
    underway: Option<RunningCheckpoint>,
    /// The outcome of the last checkpoint, until the shell takes it.
    ended: Option<CheckpointOutcome>,
    last: Last,
    /// Where the run reads and writes checkpoints.
    locations: Vec<String>,
}

/// Resuming from a checkpoint.
impl Checkpoints {
    /// Makes the run resume from a checkpoint.
    pub fn resume(&mut self, resume: Resume) {
        self.resume = Some(resume);
    }

    /// Sets where the run reads and writes checkpoints.
    pub fn set_locations(&mut self, locations: Vec<String>) {
        self.locations = locations;
    }

    /// Where the run reads and writes checkpoints.
    pub fn locations(&self) -> &[String] {
        &self.locations
    }

    /// The clock with which the run begins.
    pub fn first_clock(&self) -> Clock {
        self.resume.as_ref().map_or(Clock(0), |resume| resume.clock)
    }

    /// The number of shards that tables are cut into, if the run resumed from a checkpoint: it
    /// decides that.
    pub fn resumed_shards(&self) -> Option<u32> {
        self.resume.as_ref().map(|resume| resume.shards)
    }

    /// What servers are told about a new table: to make it empty, or to restore it from the
    /// checkpoint. Fails, in words, if the checkpoint's table of that name has another spec.
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
                "table '{}' of checkpoint {name} in {location} has another spec: {difference} (the checkpoint's first); \
                 resume with the program and the settings that wrote it",
                spec.name
            ));
        }
        Ok(Control::Restore {
            table,
            spec: spec.clone(),
            clock: *clock,
            location: location.clone(),
            name: name.clone(),
        })
    }
}

/// Making a checkpoint.
impl Checkpoints {
    /// Whether a checkpoint can be begun now: none is under way, there are tables to write, and
    /// either workers are in the run or it waits for its last checkpoint.
    pub fn may_begin(&self, run: &RunView<'_>) -> bool {
        let idle = self.underway.is_none() && self.ended.is_none();
        let in_time = !run.members.is_over() || self.awaits_last(run);
        let has_tables = run.tables.checkpointed().is_some_and(|made| !made.is_empty());
        idle && in_time && !run.is_lost && has_tables
    }

    /// Sets whether the end of the run waits for a last checkpoint. The shell takes that back if it
    /// cannot begin the checkpoint.
    pub fn want_last(&mut self, wanted: bool) {
        self.last = match (self.last, wanted) {
            (Last::Unwanted, true) => Last::Wanted,
            (Last::Wanted, false) => Last::Over,
            (last, _) => last,
        };
    }

    /// Whether every worker has left, and servers stay for the last checkpoint only.
    pub fn awaits_last(&self, run: &RunView<'_>) -> bool {
        // Without a table there is nothing to wait for.
        let has_tables = || run.tables.checkpointed().is_none_or(|made| !made.is_empty());
        self.last == Last::Wanted && !run.is_lost && run.members.is_over() && has_tables()
    }

    /// The clock of the checkpoint that is under way.
    pub fn underway(&self) -> Option<Clock> {
        self.underway.as_ref().map(|underway| underway.clock)
    }

    /// Picks the clock of a checkpoint that the shell has begun in this store under this name, and
    /// asks all nodes for their files.
    pub fn begin(&mut self, now: Time, (location, name): (String, String), run: &RunView<'_>, out: &mut Outbox) {
        self.begun += 1;
        self.ahead = self.ahead.clamp(AHEAD, MOST_AHEAD);
        let last = run.members.is_over();
        let furthest = self.furthest.max(self.first_clock());
        let clock = match last {
            // All pushes and commits of all workers lie before this clock.
            true => furthest.max(run.members.furthest_clock()).max(run.leases.committed_until()),
            false => Clock(furthest.0.saturating_add(self.ahead)),
        };
        let begun = RunningCheckpoint {
            number: self.begun,
            clock,
            last,
            location,
            name,
            written: BTreeMap::new(),
            residuals: BTreeMap::new(),
            asked: now,
        };
        begun.say(run.members, out);
        self.underway = Some(begun);
    }

    /// Asks nodes again once this long has passed since they were last asked.
    pub fn ask_again(&mut self, now: Time, after: Span, members: &Members, out: &mut Outbox) {
        if let Some(underway) = self.underway.as_mut().filter(|underway| now.since(underway.asked) >= after) {
            underway.asked = now;
            underway.say(members, out);
        }
    }

    /// Notes a shard's frontier that a server has reported.
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

    /// Gives up the checkpoint because its clock was too near: the next one lies twice as far
    /// ahead.
    fn miss(&mut self, reason: String) {
        self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        self.end(CheckpointOutcome::Missed { reason });
    }

    /// Notes that a shard had passed the clock before its head knew of the checkpoint.
    pub fn shard_missed(&mut self, number: u64, shard: (TableId, ShardId), frontier: Clock) {
        if self.underway.is_none() {
            return;
        }
        self.hear_frontier(frontier);
        // An earlier head may have written the shard already: then nothing is missed.
        if let Some(underway) = self.underway_as(number).filter(|underway| !underway.written.contains_key(&shard)) {
            let reason = format!("a shard had passed clock {} before its server knew of it", underway.clock.0);
            self.miss(reason);
        }
    }

    /// Notes that a worker had passed the clock before it knew of the checkpoint.
    pub fn worker_passed(&mut self, number: u64, from: NodeId, clock: Clock) {
        if let Some(underway) = self.underway_as(number) {
            let reason = format!("{from} had passed clock {} before it knew of it", underway.clock.0);
            self.hear_frontier(clock);
            self.miss(reason);
        }
    }

    /// Fails the checkpoint: a node could not write its files.
    pub fn unwritten(&mut self, number: u64, from: NodeId, reason: &str) {
        if let Some(underway) = self.underway_as(number) {
            if underway.last {
                self.last = Last::Over;
            }
            self.end(CheckpointOutcome::Failed { reason: format!("{from}: {reason}") });
        }
    }

    /// Notes a worker's answer: the manifest entry of its residuals, if it had any.
    pub fn residuals_written(&mut self, number: u64, from: NodeId, entry: Option<String>) {
        if let Some(underway) = self.underway_as(number) {
            underway.residuals.entry(from).or_insert(entry);
        }
    }

    /// Notes that a server has written a shard, with its manifest entry.
    pub fn written(&mut self, number: u64, shard: (TableId, ShardId), entry: String) {
        if let Some(underway) = self.underway_as(number) {
            underway.written.entry(shard).or_insert(entry);
        }
    }

    /// Ends the checkpoint under way if every node has written its files, or if the run ended
    /// before its clock. Returns whether the run's last checkpoint ended by this.
    pub fn gather(&mut self, run: &RunView<'_>) -> bool {
        let Some(underway) = &self.underway else { return false };
        let last = underway.last;
        if !last && self.awaits_last(run) {
            self.end(CheckpointOutcome::Missed { reason: "the run ended before the checkpoint's clock".to_owned() });
            return false;
        }
        let Some(outcome) = underway.gather(run) else { return false };
        if last {
            self.last = Last::Over;
        }
        self.end(outcome);
        last
    }

    /// Fails the last checkpoint if a server is lost after every worker has left: no plan is made
    /// then, so no replica takes its place.
    pub fn lose_last(&mut self, node: NodeId, run: &RunView<'_>) {
        if self.awaits_last(run) {
            self.end(CheckpointOutcome::Failed { reason: format!("{node} was lost before it had written its shards") });
            self.last = Last::Over;
        }
    }

    /// Takes the outcome of the checkpoint that was under way: each outcome is returned once.
    pub fn take_end(&mut self) -> Option<CheckpointOutcome> {
        self.ended.take()
    }
}

/// What a successor must know: the checkpoint that the run resumed from, and how many were begun. A
/// checkpoint under way is not saved: it ends with the coordinator that would publish it.
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
        saved::check(&[(
            begun < MOST_COUNT && shards <= MOST_SHARDS,
            "a checkpoint's number or its shards, too large",
        )])?;
        Ok(Self { resume, begun, last, ..Self::default() })
    }
}
