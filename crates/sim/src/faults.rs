//! What goes wrong on the way, and how often it did.

use crate::Moment;
use std::fmt;
use std::ops::AddAssign;
use types::Span;

/// What may happen to frames. Without reordering, frames between two nodes arrive in the order they
/// were sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The shortest way.
    pub least_delay: Span,
    /// The longest ordinary way.
    pub most_delay: Span,
    /// How often a frame never arrives.
    pub loss: f64,
    /// How often a frame arrives twice.
    pub duplication: f64,
    /// How often a frame lets later ones overtake it.
    pub reordering: f64,
    /// How often, when it is looked at (every 20 ms), some connection breaks: what is under way on
    /// it is gone, and both sides learn of the next one.
    pub disconnection: f64,
    /// How often a key list that travels as a signature meets a shard that has forgotten it.
    pub forgetting: f64,
    /// Bytes a second that a node sends, if that is bounded.
    pub bytes_per_second: Option<u64>,
}

impl Faults {
    /// A perfect network: 1 ms each way.
    pub const NONE: Self = Self {
        least_delay: Span::from_millis(1),
        most_delay: Span::from_millis(1),
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        disconnection: 0.0,
        forgetting: 0.0,
        bytes_per_second: None,
    };

    /// Everything at once.
    pub const ALL: Self = Self {
        least_delay: Span(100_000),
        most_delay: Span::from_millis(4),
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.1,
        disconnection: 0.3,
        forgetting: 0.05,
        bytes_per_second: None,
    };

    /// What a connection of the ordinary kind does: it delays, keeps the order, and sometimes
    /// breaks.
    pub const CONNECTIONS: Self =
        Self { loss: 0.0, duplication: 0.0, reordering: 0.0, disconnection: 0.5, forgetting: 0.0, ..Self::ALL };

    /// Whether every kind of fault asked for here has happened.
    #[must_use]
    pub fn fired(&self, counts: &FaultCounts) -> bool {
        let kinds = [
            (self.most_delay > self.least_delay, counts.delayed),
            (self.loss > 0.0, counts.lost),
            (self.duplication > 0.0, counts.duplicated),
            (self.reordering > 0.0, counts.reordered),
            (self.disconnection > 0.0, counts.disconnected),
        ];
        kinds.into_iter().all(|(asked, count)| !asked || count > 0)
    }
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames that took longer than the shortest way.
    pub delayed: u64,
    /// Frames that a later one overtook.
    pub reordered: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that never arrived, those on broken connections not among them.
    pub lost: u64,
    /// Connections that broke.
    pub disconnected: u64,
    /// Signatures that a shard had forgotten.
    pub forgotten: u64,
    /// Nodes that were gone without a word.
    pub crashed: u64,
    /// Nodes that came in the middle of the run.
    pub joined: u64,
    /// Nodes that left in the middle of the run, by order.
    pub left: u64,
    /// Nodes that were there, and taken to be gone.
    pub expelled: u64,
    /// Nodes that were cut off for a while, and missed something.
    pub isolated: u64,
    /// Coordinators that were gone without a word.
    pub unled: u64,
    /// Links between two nodes that were cut for a while, when there was something to carry.
    pub cut: u64,
    /// Links between two nodes that were slow for a while, when there was something to carry.
    pub slowed: u64,
    /// Runs in which every node went by a clock of its own.
    pub skewed: u64,
    /// Clocks that were set back while somebody went by them.
    pub set_back: u64,
    /// Nodes of any kind that were gone in the middle of a checkpoint.
    pub amid_checkpoint: u64,
    /// In the middle of a backfill.
    pub amid_migration: u64,
    /// When servers were about to go by a plan without one that was lost.
    pub amid_failover: u64,
    /// When a worker committed a lease.
    pub amid_commit: u64,
}

impl FaultCounts {
    /// Whether everything that can be planned has happened as often as was planned, or more often.
    pub(crate) fn reach(&self, planned: &Self) -> bool {
        let kinds = [
            (self.crashed, planned.crashed),
            (self.joined, planned.joined),
            (self.left, planned.left),
            (self.isolated, planned.isolated),
            (self.unled, planned.unled),
            (self.cut, planned.cut),
            (self.slowed, planned.slowed),
            (self.set_back, planned.set_back),
            (self.amid_checkpoint, planned.amid_checkpoint),
            (self.amid_migration, planned.amid_migration),
            (self.amid_failover, planned.amid_failover),
            (self.amid_commit, planned.amid_commit),
        ];
        kinds.into_iter().all(|(happened, planned)| happened >= planned)
    }

    /// Where those are counted that are lost in the middle of something.
    pub(crate) fn amid(&mut self, moment: Moment) -> &mut u64 {
        match moment {
            Moment::Checkpoint => &mut self.amid_checkpoint,
            Moment::Migration => &mut self.amid_migration,
            Moment::Failover => &mut self.amid_failover,
            Moment::Commit => &mut self.amid_commit,
        }
    }
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.delayed += other.delayed;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.lost += other.lost;
        self.disconnected += other.disconnected;
        self.forgotten += other.forgotten;
        self.crashed += other.crashed;
        self.joined += other.joined;
        self.left += other.left;
        self.expelled += other.expelled;
        self.isolated += other.isolated;
        self.unled += other.unled;
        self.cut += other.cut;
        self.slowed += other.slowed;
        self.skewed += other.skewed;
        self.set_back += other.set_back;
        self.amid_checkpoint += other.amid_checkpoint;
        self.amid_migration += other.amid_migration;
        self.amid_failover += other.amid_failover;
        self.amid_commit += other.amid_commit;
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delayed, reordered, duplicated, lost, disconnected, forgotten, .. } = self;
        let Self { crashed, joined, left, expelled, isolated, unled, cut, slowed, skewed, set_back, .. } = self;
        let Self { amid_checkpoint, amid_migration, amid_failover, amid_commit, .. } = self;
        write!(f, "delayed {delayed}, reordered {reordered}, duplicated {duplicated}, lost {lost}, ")?;
        write!(f, "disconnected {disconnected}, forgotten {forgotten}, crashed {crashed}, joined {joined}, ")?;
        write!(
            f,
            "left {left}, expelled {expelled}, isolated {isolated}, unled {unled}, cut {cut}, slowed {slowed}, "
        )?;
        write!(f, "skewed {skewed}, set back {set_back}, lost amid checkpoints {amid_checkpoint}, ")?;
        write!(f, "migrations {amid_migration}, failovers {amid_failover}, commits {amid_commit}")
    }
}
