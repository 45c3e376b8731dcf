//! Nodes that a worker waits for and does not hear: when to reconnect to them, and when to give up.

use crate::NodeError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use types::NodeId;

/// A node that does not answer is named after this long, and again each time it has passed.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// A broken connection is tried again after this long.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct SilentNodes {
    retry_at: BTreeMap<NodeId, Instant>,
    /// Nodes that were asked for a sign of life, or that a connection broke to, and that have not
    /// been heard since.
    silent: BTreeMap<NodeId, Silence>,
}

#[derive(Clone, Copy)]
struct Silence {
    since: Instant,
    /// When people were last told.
    told: Instant,
}

impl SilentNodes {
    /// The connection to a node broke.
    pub fn disconnected(&mut self, node: NodeId) {
        let now = Instant::now();
        self.retry_at.entry(node).or_insert_with(|| now + RETRY);
        self.asked(now, node);
    }

    /// A node was asked for a sign of life.
    pub fn asked(&mut self, now: Instant, node: NodeId) {
        self.silent.entry(node).or_insert(Silence { since: now, told: now });
    }

    /// A frame of a node arrived.
    pub fn heard(&mut self, node: NodeId) {
        if !self.silent.is_empty() {
            self.silent.remove(&node);
        }
    }

    /// The nodes whose connections are due to be tried again.
    pub fn take_due(&mut self) -> Vec<NodeId> {
        let is_due = |at: &Instant| *at <= Instant::now();
        let due: Vec<NodeId> = self.retry_at.iter().filter(|(_, at)| is_due(at)).map(|(node, _)| *node).collect();
        self.retry_at.retain(|node, _| !due.contains(node));
        due
    }

    /// Forgets the nodes that are not waited for, and logs those that stay silent. Where a node is
    /// not done without, returns the loss of one that has been silent for longer than `limit`.
    pub fn check(
        &mut self,
        waits_for: impl Fn(NodeId) -> bool,
        limit: Duration,
        done_without: bool,
    ) -> Option<NodeError> {
        self.silent.retain(|node, _| waits_for(*node));
        let mut lost = None;
        for (node, Silence { since, told }) in &mut self.silent {
            let seconds = since.elapsed().as_secs_f64();
            if since.elapsed() > limit && !done_without {
                let reason = format!("this worker has heard nothing from it for {seconds:.1} s");
                lost.get_or_insert(NodeError::Lost { node: *node, reason });
            } else if told.elapsed() > TELL_AFTER {
                *told = Instant::now();
                tracing::warn!(%node, seconds, "does not answer; still trying");
            }
        }
        lost
    }
}
