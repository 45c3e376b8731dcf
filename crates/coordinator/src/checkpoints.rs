//! Checkpoints of a run: at which clock, what has been written of it, and a run that goes on from
//! one.
//!
//! The clock lies a little ahead of the furthest frontier that was heard of, so that every shard
//! comes by it. One that has passed it says so; then the checkpoint is given up, and the next is
//! decided further ahead.

use super::{Coordinator, Membership};
use lease::SavedLeases;
use std::collections::BTreeMap;
use types::{Clock, NodeId, ShardId, TableId, TableSpec, Time};
use wire::{Control, Field, Outbox, Reader, WireError};

/// Clocks that the first checkpoint is ahead.
const AHEAD: u64 = 2;
/// And the most that any is.
const MOST_AHEAD: u64 = 1 << 20;

/// And the most shards that a memory of one is believed to have.
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
    /// What was leased, by the numbers that shards know it by, and what of it is done.
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

/// How a checkpoint has ended, for whoever keeps the store.
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
pub(super) struct RunningCheckpoint {
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

/// Everything that a coordinator knows of checkpoints.
#[derive(Default)]
pub(super) struct Checkpoints {
    resume: Option<Resume>,
    begun: u64,
    /// The furthest frontier that was heard of.
    furthest: Clock,
    ahead: u64,
    underway: Option<RunningCheckpoint>,
    ended: Option<CheckpointOutcome>,
    last: Last,
}

impl Checkpoints {
    /// Appends what a successor has to know: what the run came from, and which numbers are used. A
    /// checkpoint under way ends with whoever asked for it.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.resume.put(out);
        self.begun.put(out);
        (self.last == Last::Over).put(out);
    }

    /// Reads what [`put`](Self::put) has written.
    pub fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let resume: Option<Resume> = Field::get(input)?;
        let begun = Field::get(input)?;
        let last = if bool::get(input)? { Last::Over } else { Last::Unwanted };
        if begun > u64::MAX / 2 || resume.as_ref().is_some_and(|resume| resume.shards > MOST_SHARDS) {
            return Err(WireError::Malformed("checkpoints without end"));
        }
        Ok(Self { resume, begun, last, ..Self::default() })
    }
}

impl Coordinator {
    /// The run goes on from a checkpoint. To be said before anybody joins.
    pub fn resume(&mut self, resume: Resume) {
        self.keep_leases(&resume.leases, resume.clock);
        (self.checkpoints.resume, self.touched) = (Some(resume), true);
    }

    /// The clock with which the run begins.
    pub(super) fn first_clock(&self) -> Clock {
        self.checkpoints.resume.as_ref().map_or(Clock(0), |resume| resume.clock)
    }

    /// Into how many shards tables are cut. A checkpoint says so for ever.
    pub(super) fn shards(&self) -> u32 {
        let servers = self.size.servers;
        match (&self.checkpoints.resume, self.membership) {
            (Some(resume), _) => resume.shards,
            (None, Membership::Static) => servers,
            (None, Membership::Elastic { shards_per_server, .. }) => servers * shards_per_server.max(1),
        }
    }

    /// What a server is told to hold a table: as it is, or as a checkpoint has it. Fails in words
    /// if the checkpoint has another one of that name.
    pub(super) fn adding(&self, table: TableId, spec: &TableSpec) -> Result<Control, String> {
        let found = self.checkpoints.resume.as_ref().and_then(|resume| {
            let kept = resume.tables.iter().find(|kept| kept.name == spec.name && kept.is_checkpointed())?;
            Some((resume, kept))
        });
        let Some((Resume { location, name, clock, .. }, kept)) = found else {
            return Ok(Control::AddTable { table, spec: spec.clone() });
        };
        if let Some(difference) = kept.difference(spec) {
            return Err(format!(
                "table '{}' of {name} in {location} has another spec: {difference} (the checkpoint's first); resume with the program and \
                 the settings that wrote it",
                spec.name
            ));
        }
        let (spec, clock) = (spec.clone(), *clock);
        Ok(Control::Restore { table, spec, clock, location: location.clone(), name: name.clone() })
    }

    /// Whether a checkpoint would make sense now: workers work on tables, or the last one is waited
    /// for, and none is under way.
    #[must_use]
    pub fn may_checkpoint(&self) -> bool {
        // Until every server has said how far it is, nobody knows what the last clock is.
        let idle = self.checkpoints.underway.is_none() && self.checkpoints.ended.is_none() && self.adoption.is_none();
        let tables = self.checkpointed_tables();
        let in_time = !self.is_over() || self.awaits_last_checkpoint();
        idle && self.begun && in_time && self.lost.is_none() && tables.is_some_and(|made| !made.is_empty())
    }

    /// Whether the end of the run waits for a last checkpoint, which has yet to be written. One
    /// that is wanted is told so in the beginning, and that it is not if it cannot be begun.
    pub fn last_checkpoint(&mut self, wanted: bool) {
        self.touched = true;
        self.checkpoints.last = match (self.checkpoints.last, wanted) {
            (Last::Unwanted, true) => Last::Wanted,
            (Last::Wanted, false) => Last::Over,
            (last, _) => last,
        };
    }

    /// Whether every worker has left, and servers stay for the last checkpoint alone.
    #[must_use]
    pub fn awaits_last_checkpoint(&self) -> bool {
        // Without a table there is nothing to wait for.
        let kept = self.checkpointed_tables().is_none_or(|made| !made.is_empty());
        self.checkpoints.last == Last::Wanted && self.lost.is_none() && kept && self.is_over()
    }

    /// Whether a checkpoint is under way.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.underway.is_some()
    }

    /// The clock of the checkpoint that is under way.
    pub(super) fn checkpoint_underway(&self) -> Option<Clock> {
        self.checkpoints.underway.as_ref().map(|underway| underway.clock)
    }

    /// The tables that checkpoints keep; none while one is being made.
    fn checkpointed_tables(&self) -> Option<Vec<(TableId, TableSpec)>> {
        let made = self.made_tables()?;
        Some(made.into_iter().filter(|(_, spec)| spec.is_checkpointed()).collect())
    }

    /// Decides at which clock a checkpoint is made, which was begun in a store under a name, and
    /// tells the servers.
    pub fn checkpoint(&mut self, now: Time, location: String, name: String, out: &mut Outbox) {
        let last = self.is_over();
        self.touched = true;
        let known = &mut self.checkpoints;
        known.begun += 1;
        known.ahead = known.ahead.clamp(AHEAD, MOST_AHEAD);
        let (number, written, residuals) = (known.begun, BTreeMap::new(), BTreeMap::new());
        let clock = match last {
            // Whatever anybody has pushed or committed is before it.
            true => {
                let members = self.members.values().map(|member| member.clock).max().unwrap_or_default();
                members.max(self.checkpoints.furthest).max(self.committed_until()).max(self.first_clock())
            }
            false => Clock(self.checkpoints.furthest.max(self.first_clock()).0.saturating_add(self.checkpoints.ahead)),
        };
        self.checkpoints.underway =
            Some(RunningCheckpoint { number, clock, last, location, name, written, residuals, asked: now });
        self.say_checkpoint(out);
    }

    fn say_checkpoint(&self, out: &mut Outbox) {
        let Some(RunningCheckpoint { number, clock, last, location, name, residuals, .. }) = &self.checkpoints.underway
        else {
            return;
        };
        let workers = self.live_workers().map(NodeId::from).filter(|worker| !residuals.contains_key(worker));
        for node in self.live_servers().chain(workers) {
            let (number, clock, last, location, name) = (*number, *clock, *last, location.clone(), name.clone());
            Self::say(node, Control::Checkpoint { number, clock, last, location, name }, out);
        }
    }

    /// Says it again to servers that may not have heard of it, or whose answer was lost.
    pub(super) fn ask_for_checkpoint_again(&mut self, now: Time, out: &mut Outbox) {
        let after = self.ask_again_after();
        // Somebody may have left who was waited for.
        self.gather();
        if let Some(underway) = &mut self.checkpoints.underway
            && now.since(underway.asked) >= after
        {
            underway.asked = now;
            self.say_checkpoint(out);
        }
    }

    /// A server's frontier, by its heartbeat.
    pub(super) fn heard_frontier(&mut self, frontier: Clock) {
        self.checkpoints.furthest = self.checkpoints.furthest.max(frontier);
    }

    /// A server or a worker speaks of a checkpoint.
    pub(super) fn checkpointed(&mut self, from: NodeId, control: Control) {
        let known = &mut self.checkpoints;
        let Some(underway) = &mut known.underway else { return };
        #[expect(clippy::wildcard_enum_match_arm, reason = "the dispatcher lists every message")]
        match control {
            Control::Missed { number, table, shard, frontier } => {
                known.furthest = known.furthest.max(frontier);
                // Whoever answered for the shard before may have written it.
                if number == underway.number && !underway.written.contains_key(&(table, shard)) {
                    known.ahead = (known.ahead * 2).min(MOST_AHEAD);
                    let reason = format!("clock {} had passed before every server knew of it", underway.clock.0);
                    known.ended = Some(CheckpointOutcome::Missed { reason });
                    known.underway = None;
                }
            }
            Control::Passed { number, clock } if number == underway.number => {
                known.furthest = known.furthest.max(clock);
                known.ahead = (known.ahead * 2).min(MOST_AHEAD);
                let reason = format!("{from} had passed clock {} before it knew of it", underway.clock.0);
                known.ended = Some(CheckpointOutcome::Missed { reason });
                known.underway = None;
            }
            Control::Unwritten { number, reason } if number == underway.number => {
                known.last = if underway.last { Last::Over } else { known.last };
                known.ended = Some(CheckpointOutcome::Failed { reason: format!("{from}: {reason}") });
                known.underway = None;
            }
            Control::ResidualsWritten { number, entry } if number == underway.number => {
                underway.residuals.entry(from).or_insert(entry);
            }
            Control::Written { number, table, shard, entry } if number == underway.number => {
                underway.written.entry((table, shard)).or_insert(entry);
            }
            _ => {}
        }
        self.gather();
    }

    /// Ends the checkpoint that is under way if everything is there: every shard of every table,
    /// and a word of every worker.
    fn gather(&mut self) {
        let Some(RunningCheckpoint { number, clock, last, name, written, residuals, .. }) = &self.checkpoints.underway
        else {
            return;
        };
        if !last && self.awaits_last_checkpoint() {
            let reason = "the run has ended before it".to_owned();
            (self.checkpoints.ended, self.checkpoints.underway) = (Some(CheckpointOutcome::Missed { reason }), None);
            return;
        }
        // A table that is being made may have something of earlier clocks, too.
        let Some(made) = self.checkpointed_tables() else { return };
        if !self.live_workers().all(|worker| residuals.contains_key(&worker.into())) {
            return;
        }
        let shards = self.chains.len();
        let mut tables = Vec::new();
        for (table, spec) in made {
            let count = spec.shape.extent().split(shards).len() as u32;
            let entry = |shard| written.get(&(table, ShardId(shard))).cloned();
            let Some(entries) = (0..count).map(entry).collect::<Option<Vec<_>>>() else { return };
            tables.push((spec, entries));
        }
        let ended = match self.leases_before(*clock) {
            Some(leases) => {
                let (residuals, shards) = (residuals.values().flatten().cloned().collect(), shards as u32);
                let (number, clock, name) = (*number, *clock, name.clone());
                CheckpointOutcome::Whole(WrittenCheckpoint { number, name, clock, shards, tables, leases, residuals })
            }
            None => {
                let reason = format!("what was leased before clock {} is not told apart any more", clock.0);
                CheckpointOutcome::Missed { reason }
            }
        };
        if *last {
            (self.checkpoints.last, self.touched) = (Last::Over, true);
        }
        (self.checkpoints.ended, self.checkpoints.underway) = (Some(ended), None);
    }

    /// A server is lost when every worker has left: what it held is in no copy any more that will
    /// be made.
    pub(super) fn lose_last_checkpoint(&mut self, node: NodeId) {
        if self.awaits_last_checkpoint() {
            let reason = format!("{node} was lost before it had written what it held");
            (self.checkpoints.ended, self.checkpoints.underway) = (Some(CheckpointOutcome::Failed { reason }), None);
            self.checkpoints.last = Last::Over;
        }
    }

    /// How the checkpoint that was under way has ended, once.
    pub fn take_checkpoint_end(&mut self) -> Option<CheckpointOutcome> {
        self.checkpoints.ended.take()
    }
}
