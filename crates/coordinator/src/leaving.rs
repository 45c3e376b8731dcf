//! Whether the run can go on without a node, and when a server that was told to leave may leave:
//! other servers must take over its shards first. If no server joins for too long, it leaves
//! although shards will have too few replicas.

use crate::members::Members;
use crate::placement::Placement;
use crate::settings::Settings;
use types::{NodeId, Span};

/// A server that asks to leave.
pub(crate) struct LeaveRequest {
    /// How many other servers stay.
    pub others: usize,
    /// How many servers hold each shard.
    pub replicas: usize,
    /// How long ago it first asked.
    pub waited: Span,
    /// How long it waits for another server to join.
    pub limit: Span,
}

/// Whether the run can go on without a node.
pub(crate) fn can_spare(node: NodeId, settings: &Settings, members: &Members, placement: &Placement) -> bool {
    let can_do_without = match node {
        // At least one worker must be left.
        NodeId::Worker(_) => members.first_clock(node).is_none() || members.present() > 1,
        NodeId::Server(index) => placement.has_replicas(index),
        NodeId::Coordinator => false,
    };
    can_do_without && members.has_begun() && settings.is_elastic()
}

impl LeaveRequest {
    /// Why the server cannot leave yet. None if it can.
    pub fn refusal(&self, is_elastic: bool) -> Option<String> {
        if !is_elastic {
            return Some("no other server can take its place in a static run".to_owned());
        }
        if self.others == 0 {
            let reason = "no other server is there to take over its shards; start one, or tell the workers to leave";
            return Some(reason.to_owned());
        }
        (self.others < self.replicas && self.waited < self.limit).then(|| {
            format!(
                "there would be fewer than {} replicas without it; start another server, or it leaves anyway after {} s",
                self.replicas,
                self.limit.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_leaves_when_enough_others_stay_or_none_joins_in_time() {
        // (elastic, other servers, replicas, seconds waited of 8; words of the refusal)
        let cases = [
            (false, 3, 1, 0, Some("no other server can take its place")),
            (true, 0, 1, 100, Some("no other server is there")),
            (true, 1, 1, 0, None),
            (true, 1, 2, 0, Some("fewer than 2 replicas")),
            (true, 1, 2, 7, Some("leaves anyway after 8 s")),
            (true, 1, 2, 8, None),
            (true, 2, 2, 0, None),
        ];
        for (is_elastic, others, replicas, seconds, words) in cases {
            let waited = Span::from_secs(seconds);
            let limit = Span::from_secs(8);
            let refusal = LeaveRequest { others, replicas, waited, limit }.refusal(is_elastic);
            let as_expected = match (&refusal, words) {
                (None, None) => true,
                (Some(refusal), Some(words)) => refusal.contains(words),
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(as_expected, "{others} others, {replicas} replicas, {seconds} s: {refusal:?}");
        }
    }
}
