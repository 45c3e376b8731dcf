//! The coordinator's memory as bytes: everything that its successor must know, and nothing that the
//! successor can find out by itself. The memory is a version and the saved forms of the parts, in
//! order.
//!
//! Not saved: when each node was last heard, which servers have adopted the plan, which nodes know
//! of it, and which replicas are backfilled. A successor counts the silence of nodes anew and sends
//! the plan to all again. Nodes that wait for an answer repeat their requests.

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

/// The version of the memory's format.
const VERSION: u32 = 5;

/// Why a coordinator cannot resume from a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallError {
    /// Another version of Slackwater wrote the memory.
    Version {
        /// The version found.
        found: u32,
    },
    /// The memory is damaged, or the bytes are something else.
    Malformed(WireError),
    /// The memory is of a run of another size or membership.
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
                "the previous coordinator saved its memory in version {found}, and this one reads version {VERSION}: run one release everywhere"
            ),
            Self::Malformed(error) => write!(
                f,
                "the memory of the previous coordinator cannot be read ({error}): give the job another place, or remove the memory there"
            ),
            Self::OtherRun { difference } => write!(
                f,
                "the previous coordinator led another kind of run: {difference}; give every coordinator of a job the same settings"
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
    /// Everything that a successor must know, as bytes. The shell saves it before it sends any
    /// message that follows from it.
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

    /// A coordinator that takes over from the memory of an earlier one, and sends the plan again.
    /// It counts no node as lost before the node had time to find it and a whole failure timeout
    /// has passed, and no server before its serving lease has ended.
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
            return Err(WireError::Malformed("bytes after the end of a memory").into());
        }
        coordinator.take_over(now)?;
        Ok(coordinator)
    }

    /// Checks what the parts assume of each other, and begins to lead at this time: counts the
    /// silence of every node anew, and waits for every server to adopt the plan.
    fn take_over(&mut self, now: Time) -> Result<(), WireError> {
        let shards = self.placement.chains().len();
        saved::check(&[
            ((shards > 0) == self.members.has_begun(), "a run that has begun without shards, or has shards before"),
            (self.plans.plan().chains.len() == shards, "a plan and a placement with unlike numbers of shards"),
            (self.barriers.all_are_there(&self.members), "a worker at a barrier that is not in the run"),
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
