//! Which coordinator a node heeds: of several that led one after the other, only the last that it
//! has heard of.

use crate::Head;
use types::NodeId;

/// The newest leader that a node has heard of, by its term. A coordinator says its term as the
/// source of what it sends; it is 0 where there never is another.
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
    /// Whether a frame is to be taken: it is not a coordinator's, or not one's that led before
    /// another that was heard of.
    pub fn heeds(&mut self, head: &Head) -> bool {
        if head.from != NodeId::Coordinator {
            return true;
        }
        let is_last = head.source.0 >= self.term;
        self.term = self.term.max(head.source.0);
        is_last
    }

    /// Whether there may be another after it.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.term > 0
    }
}
