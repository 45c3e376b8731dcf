//! Faults of the network, and counts of all faults that happened in a run.

use crate::Moment;
use std::fmt;
use std::ops::AddAssign;
use types::Span;

/// What the network does to frames, with probabilities from 0 to 1. Without reordering, frames
/// between two nodes arrive in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The network delays every frame by at least this.
    pub least_delay: Span,
    /// The network delays every frame by at most this, unless the frame is reordered.
    pub most_delay: Span,
    /// The probability that the network loses a frame.
    pub loss: f64,
    /// The probability that the network delivers a frame twice.
    pub duplication: f64,
    /// The probability that the network delays a frame further, so that later ones overtake it.
    pub reordering: f64,
    /// The probability, every 20 ms, that a random connection breaks. Frames under way on it are
    /// lost. Both nodes notice when they are connected again.
    pub disconnection: f64,
    /// The probability that a shard has forgotten a key list that a worker names by its signature.
    pub forgetting: f64,
    /// The bandwidth of each node, in bytes a second. None for no bound.
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

    /// All faults of the network at once.
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

    /// Connections like TCP: they delay frames, keep their order, and sometimes break.
    pub const CONNECTIONS: Self =
        Self { loss: 0.0, duplication: 0.0, reordering: 0.0, disconnection: 0.5, forgetting: 0.0, ..Self::ALL };

    /// Whether every kind of fault with a probability above zero has happened.
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
    /// Frames that took longer than the least delay.
    pub delayed: u64,
    /// Frames that a later one overtook.
    pub reordered: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that the network lost. Frames on broken connections do not count.
    pub lost: u64,
    /// Connections that broke.
    pub disconnected: u64,
    /// Key lists that a shard had forgotten.
    pub forgotten: u64,
    /// Servers and workers that crashed.
    pub crashed: u64,
    /// Nodes that joined while the run lasted.
    pub joined: u64,
    /// Nodes that were told to leave while the run lasted, and left.
    pub left: u64,
    /// Nodes that the coordinator expelled although they lived.
    pub expelled: u64,
    /// Nodes that were cut off for a while, with at least one frame lost by that.
    pub isolated: u64,
    /// Coordinators that crashed.
    pub unled: u64,
    /// Links between two nodes that were cut for a while, with at least one frame lost by that.
    pub cut: u64,
    /// Links that were cut in one direction for good, with at least one frame lost by that.
    pub one_way: u64,
    /// Servers that no longer adopt plans, with at least one plan that they ignored.
    pub stubborn: u64,
    /// Links between two nodes that were slow for a while, with at least one frame delayed by that.
    pub slowed: u64,
    /// Runs in which every node had a skewed clock of its own.
    pub skewed: u64,
    /// Nodes whose process did not run for a while, with at least one frame that arrived meanwhile.
    pub stopped: u64,
    /// Clocks that were set back while their node was in the run.
    pub set_back: u64,
    /// Nodes, the coordinator included, that crashed in the middle of a checkpoint.
    pub amid_checkpoint: u64,
    /// Nodes that crashed in the middle of a backfill.
    pub amid_migration: u64,
    /// Nodes that crashed while servers adopted a plan without a lost server.
    pub amid_failover: u64,
    /// Nodes that crashed while a worker committed a lease.
    pub amid_commit: u64,
}

impl FaultCounts {
    /// Whether every fault that can be planned has happened at least as often as planned.
    pub(crate) fn reach(&self, planned: &Self) -> bool {
        let kinds = [
            (self.crashed, planned.crashed),
            (self.joined, planned.joined),
            (self.left, planned.left),
            (self.isolated, planned.isolated),
            (self.unled, planned.unled),
            (self.cut, planned.cut),
            (self.slowed, planned.slowed),
            (self.stopped, planned.stopped),
            (self.one_way, planned.one_way),
            (self.stubborn, planned.stubborn),
            (self.set_back, planned.set_back),
            (self.amid_checkpoint, planned.amid_checkpoint),
            (self.amid_migration, planned.amid_migration),
            (self.amid_failover, planned.amid_failover),
            (self.amid_commit, planned.amid_commit),
        ];
        kinds.into_iter().all(|(happened, planned)| happened >= planned)
    }

    /// The count of crashes in the middle of this moment.
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
        self.one_way += other.one_way;
        self.stubborn += other.stubborn;
        self.skewed += other.skewed;
        self.stopped += other.stopped;
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
        let Self { crashed, joined, left, expelled, isolated, unled, cut, slowed, skewed, stopped, set_back, .. } =
            self;
        let Self { one_way, stubborn, .. } = self;
        let Self { amid_checkpoint, amid_migration, amid_failover, amid_commit, .. } = self;
        write!(f, "delayed {delayed}, reordered {reordered}, duplicated {duplicated}, lost {lost}, ")?;
        write!(f, "disconnected {disconnected}, forgotten {forgotten}, crashed {crashed}, joined {joined}, ")?;
        write!(
            f,
            "left {left}, expelled {expelled}, isolated {isolated}, unled {unled}, cut {cut}, slowed {slowed}, "
        )?;
        write!(f, "cut one way {one_way}, stubborn {stubborn}, ")?;
        write!(
            f,
            "skewed {skewed}, stopped {stopped}, set back {set_back}, lost amid checkpoints {amid_checkpoint}, "
        )?;
        write!(f, "migrations {amid_migration}, failovers {amid_failover}, commits {amid_commit}")
    }
}
