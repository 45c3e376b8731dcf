//! The coordinator's memory as bytes: everything that its successor has to know, and nothing that
//! it can find out by itself. The memory is a version and the saved forms of the parts, in order.
//!
//! What is not saved: when a node was last heard of, which servers have adopted the plan, which
//! nodes were told of it and which replicas are backfilled. A successor takes every node to be
//! about to call, says the plan again to all, and is told the rest again by nodes that wait for an
//! answer.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use super::Coordinator;
use crate::barriers::Barriers;
use crate::checkpoints::Checkpoints;
use crate::leases::Leases;
use crate::members::Members;
use crate::placement::Placement;
use crate::plans::Plans;
use crate::saved;
use crate::settings::{Membership, Settings};
use crate::tables::Tables;
use std::fmt;
use types::{RunSize, Span, Time};
use wire::{Field, Reader, WireError};

/// The version of what is written here.
const VERSION: u32 = 3;

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

impl Coordinator {
    /// Everything that a successor has to know, as bytes. A coordinator saves a decision here
    /// before it tells any node of it.
    #[must_use]
    pub fn memory(&self) -> Vec<u8> {
        let mut out = Vec::new();
        VERSION.put(&mut out);
        self.settings.put(&mut out);
        self.members.put(&mut out);
        self.plans.put(&mut out);
        self.placement.put(&mut out);
        self.tables.put(&mut out);
        self.barriers.put(&mut out);
        self.lost.put(&mut out);
        self.leases.put(&mut out);
        self.checkpoints.put(&mut out);
        out
    }

    /// Goes on from the memory of a coordinator that is no more. No node is given up before it had
    /// time to find this coordinator and a whole failure timeout has passed, and no server before
    /// its serving lease has ended. The plan is said again.
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
        let mut coordinator = Self::new(size, membership, failure_timeout);
        if let Some(difference) = coordinator.settings.difference(&Settings::get(input)?) {
            return Err(RecallError::OtherRun { difference });
        }
        coordinator.members = Members::get(input)?;
        coordinator.plans = Plans::get(input)?;
        coordinator.placement = Placement::get(input)?;
        coordinator.tables = Tables::get(input)?;
        coordinator.barriers = Barriers::get(input)?;
        coordinator.lost = Field::get(input)?;
        coordinator.leases = Leases::get(input, now)?;
        coordinator.checkpoints = Checkpoints::get(input)?;
        if !input.0.is_empty() {
            return Err(WireError::Malformed("a memory that goes on after its end").into());
        }
        coordinator.take_over(now)?;
        Ok(coordinator)
    }

    /// Checks what the parts take for granted of each other, and begins to lead at this time:
    /// every node is about to be heard of, and none is known to go by the plan.
    fn take_over(&mut self, now: Time) -> Result<(), WireError> {
        let shards = self.placement.chains().len();
        saved::check(&[
            ((shards > 0) == self.members.has_begun(), "a run without shards"),
            (self.plans.plan().chains.len() == shards, "shards that were joined or split"),
            (self.barriers.all_are_there(&self.members), "somebody at a barrier who is not there"),
        ])?;
        self.members.take_over(now + self.timeouts.finding());
        self.tables.take_over(now);
        self.barriers.take_over(now);
        if self.members.has_begun() {
            self.plans.await_adoption(now, &self.members);
        }
        Ok(())
    }
}
