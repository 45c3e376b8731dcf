//! The check for the newest coordinator: a node accepts messages only from the coordinator with the
//! highest term it has seen.

use crate::Head;
use types::NodeId;

/// The highest term that a node has seen. A coordinator sends its term as the source in the head.
/// The term is 0 in a run that only ever has one coordinator.
///
/// ```
/// use wire::Leader;
/// use types::{NodeId, Source};
/// use wire::Head;
///
/// let said_in = |term| Head { source: Source(term), ..Head::plain(NodeId::Coordinator, NodeId::Worker(0)) };
/// let mut leader = Leader::default();
/// assert!(leader.heeds(&said_in(3)) && leader.heeds(&said_in(3)) && !leader.heeds(&said_in(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    term: u64,
}

impl Leader {
    /// Whether the node accepts a frame: all frames of other nodes, and those of a coordinator with
    /// the highest term seen so far.
    pub fn heeds(&mut self, head: &Head) -> bool {
        if head.from != NodeId::Coordinator {
            return true;
        }
        let is_last = head.source.0 >= self.term;
        self.term = self.term.max(head.source.0);
        is_last
    }

    /// Whether another coordinator may follow.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.term > 0
    }
}
