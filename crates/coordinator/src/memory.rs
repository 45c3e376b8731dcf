//! The coordinator's memory as bytes: everything that whoever leads next has to know, and nothing
//! that it can find out by itself.
//!
//! What is not kept: when a node was last heard of, who has adopted the plan, who was told of it
//! and which replicas are backfilled. A successor takes everybody to be about to call, says the
//! plan again to all, and is told the rest again by those who wait for an answer.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use super::checkpoints::Checkpoints;
use super::plans::Adoption;
use super::tables::Table;
use super::{Coordinator, MemberRecord, Membership, RunSize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use types::{Chain, NodeId, Source, Span, Time, WorkerId};
use wire::{Field, Reader, WireError};

/// The version of what is written here.
const VERSION: u32 = 2;
/// Names are below this: whoever asks for a larger one would have a plan grow without bound.
pub(super) const MOST_NODES: u32 = 1 << 20;
/// Counters of a memory that was kept are below this, and have room to grow.
const MOST_COUNT: u64 = u64::MAX / 2;

/// Why bytes are no memory that this coordinator can go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallError {
    /// Another version of Slackwater wrote them.
    Version {
        /// The version found.
        found: u32,
    },
    /// They are damaged, or something else.
    Malformed(WireError),
    /// They are of a run with other parties, or other rules.
    OtherRun {
        /// What differs, in words.
        difference: String,
    },
}

impl fmt::Display for RecallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { found } => write!(
                f,
                "the memory of the coordinator before is of version {found}, and this one knows {VERSION}: run one release everywhere"
            ),
            Self::Malformed(error) => write!(
                f,
                "the memory of the coordinator before cannot be read ({error}): give the job another place, or remove what is there"
            ),
            Self::OtherRun { difference } => write!(
                f,
                "the coordinator before led another kind of run: {difference}; give every coordinator of a job the same settings"
            ),
        }
    }
}

impl std::error::Error for RecallError {}

impl From<WireError> for RecallError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

impl Field for MemberRecord {
    fn put(&self, out: &mut Vec<u8>) {
        self.address.put(out);
        self.source.put(out);
        self.ready.put(out);
        self.since.put(out);
        self.gone.put(out);
        self.expelled.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut member = Self::new(Field::get(input)?, Field::get(input)?, Time(0));
        member.ready = Field::get(input)?;
        member.since = Field::get(input)?;
        member.gone = Field::get(input)?;
        member.expelled = Field::get(input)?;
        Ok(member)
    }
}

fn put_map<K: Field, V: Field>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    (map.len() as u32).put(out);
    for (key, value) in map {
        key.put(out);
        value.put(out);
    }
}

fn get_map<K: Field + Ord, V: Field>(input: &mut Reader<'_>) -> Result<BTreeMap<K, V>, WireError> {
    let entries: Vec<(K, V)> = Field::get(input)?;
    let count = entries.len();
    let map: BTreeMap<K, V> = entries.into_iter().collect();
    if map.len() == count { Ok(map) } else { Err(WireError::Malformed("something that is there twice")) }
}

impl Coordinator {
    /// Everything that a successor has to know, as bytes. Whatever a coordinator says must be in
    /// the memory that a successor would go on from before it is said.
    #[must_use]
    pub fn memory(&self) -> Vec<u8> {
        let mut out = Vec::new();
        VERSION.put(&mut out);
        put_settings(self.size, self.membership, &mut out);
        put_map(&self.members, &mut out);
        put_map(&self.tokens, &mut out);
        self.given.put(&mut out);
        self.begun.put(&mut out);
        self.plan.put(&mut out);
        self.chains.put(&mut out);
        self.changed.put(&mut out);
        put_map(&self.tables, &mut out);
        let barriers: Vec<(WorkerId, u64)> =
            self.barriers.iter().map(|(worker, (number, _))| (*worker, *number)).collect();
        barriers.put(&mut out);
        self.passed.put(&mut out);
        self.lost.put(&mut out);
        self.put_leases(&mut out);
        self.checkpoints.put(&mut out);
        out
    }

    /// Whether [`memory`](Self::memory) may say something else than when this was last asked: most
    /// of what arrives says only that somebody lives, and it need not be made anew for that.
    pub fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// Goes on from the memory of a coordinator that is no more. Nobody is given up before it had
    /// time to find this one and a whole failure timeout has passed, and no server before its
    /// serving lease has ended. The plan is said again.
    pub fn recall(
        now: Time,
        memory: &[u8],
        size: RunSize,
        membership: Membership,
        failure_timeout: Span,
    ) -> Result<Self, RecallError> {
        let input = &mut Reader(memory);
        let found = u32::get(input)?;
        if found != VERSION {
            return Err(RecallError::Version { found });
        }
        let mut settings = Vec::new();
        put_settings(size, membership, &mut settings);
        let theirs = input.take(settings.len())?;
        if theirs != settings {
            return Err(RecallError::OtherRun { difference: difference(theirs, size, membership)? });
        }
        let mut coordinator = Self::new(size, membership, failure_timeout);
        coordinator.members = get_map(input)?;
        coordinator.tokens = get_map(input)?;
        coordinator.given = Field::get(input)?;
        coordinator.begun = Field::get(input)?;
        coordinator.plan = Field::get(input)?;
        coordinator.chains = Field::get(input)?;
        coordinator.changed = Field::get(input)?;
        coordinator.tables = get_map(input)?;
        let barriers: Vec<(WorkerId, u64)> = Field::get(input)?;
        coordinator.barriers = barriers.into_iter().map(|(worker, number)| (worker, (number, now))).collect();
        coordinator.passed = Field::get(input)?;
        coordinator.lost = Field::get(input)?;
        coordinator.get_leases(input, now)?;
        coordinator.checkpoints = Checkpoints::get(input)?;
        if !input.0.is_empty() {
            return Err(WireError::Malformed("a memory that goes on after its end").into());
        }
        coordinator.make_sense().map_err(WireError::Malformed)?;
        coordinator.take_up(now);
        Ok(coordinator)
    }

    /// What the rest of this machine takes for granted of itself.
    fn make_sense(&self) -> Result<(), &'static str> {
        let index = |node: &NodeId| match node {
            NodeId::Coordinator => None,
            NodeId::Server(index) | NodeId::Worker(index) => Some(*index),
        };
        let is_name = |node: &NodeId| index(node).is_some_and(|index| index < MOST_NODES);
        let is_small =
            |chain: &Chain| chain.replicas.iter().chain(&chain.backfilling).all(|server| *server < MOST_NODES);
        let is_kept = |node: &NodeId| self.members.contains_key(node);
        let sources: BTreeSet<Source> = self.members.values().map(|member| member.source).collect();
        let demands: [(bool, &str); 9] = [
            (self.members.keys().all(is_name), "a member without a name"),
            (self.tokens.values().all(is_kept), "a process without a place"),
            (sources.len() == self.members.len(), "an incarnation with two places"),
            (sources.last().is_none_or(|last| last.0 <= self.given), "an incarnation that was never given"),
            (self.chains.iter().chain(&self.plan.chains).all(is_small), "a server without a name"),
            (self.plan.workers.len() <= MOST_NODES as usize, "too many workers"),
            (self.chains.is_empty() != self.begun, "a run without shards"),
            (self.plan.chains.len() == self.chains.len(), "shards that were joined or split"),
            (self.given.max(self.plan.number.0).max(self.passed) < MOST_COUNT, "a count without end"),
        ];
        demands.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(*what))?;
        let is_there = |worker: &WorkerId| self.members.get(&(*worker).into()).is_some_and(|member| !member.gone);
        if !self.barriers.keys().all(is_there) {
            return Err("somebody at a barrier who is not there");
        }
        Table::all_make_sense(&self.tables)
    }

    /// What is not kept: everybody is about to be heard of, and nobody is known to go by the plan.
    fn take_up(&mut self, now: Time) {
        let found = now + self.finding();
        self.members.values_mut().for_each(|member| member.heard = found);
        self.tables.values_mut().for_each(|table| table.asked_at(now));
        self.present = self.live_workers().count();
        if self.begun {
            let waiting = self.live_servers().collect();
            self.adoption = Some(Adoption::new(waiting, now));
        }
    }
}

fn put_settings(size: RunSize, membership: Membership, out: &mut Vec<u8>) {
    size.servers.put(out);
    size.workers.put(out);
    let (elastic, replicas, shards_per_server) = match membership {
        Membership::Static => (false, 0, 0),
        Membership::Elastic { replicas, shards_per_server } => (true, replicas, shards_per_server),
    };
    elastic.put(out);
    replicas.put(out);
    shards_per_server.put(out);
}

fn difference(theirs: &[u8], size: RunSize, membership: Membership) -> Result<String, WireError> {
    let input = &mut Reader(theirs);
    let found = RunSize { servers: Field::get(input)?, workers: Field::get(input)? };
    let (elastic, replicas, shards_per_server) = (bool::get(input)?, Field::get(input)?, Field::get(input)?);
    let kept = if elastic { Membership::Elastic { replicas, shards_per_server } } else { Membership::Static };
    let words = |size: RunSize, membership: Membership| {
        let RunSize { servers, workers } = size;
        let rule = match membership {
            Membership::Static => "that nobody joins later".to_owned(),
            Membership::Elastic { replicas, shards_per_server } => {
                format!("of {replicas} replicas and {shards_per_server} shards a server")
            }
        };
        format!("{servers} servers and {workers} workers, {rule}")
    };
    Ok(format!("it had {}, and this is for {}", words(found, kept), words(size, membership)))
}
