//! Tracks nodes that a worker waits for and that are silent: when to reconnect to them, when to log
//! their silence, and when they count as lost.

use crate::NodeError;
use crate::contact::CALL_AGAIN;
use crate::reminder::Reminder;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use types::NodeId;

#[derive(Default)]
pub(super) struct SilentNodes {
    retry_at: BTreeMap<NodeId, Instant>,
    /// Nodes that were sent a heartbeat, or whose connection broke, and that have not been heard
    /// since.
    silent: BTreeMap<NodeId, Silence>,
    /// When they were last checked.
    checked: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Silence {
    since: Instant,
    reminder: Reminder,
}

impl SilentNodes {
    /// Takes in that the connection to a node broke.
    pub fn disconnected(&mut self, node: NodeId) {
        let now = Instant::now();
        self.retry_at.entry(node).or_insert_with(|| now + CALL_AGAIN);
        self.asked(now, node);
    }

    /// Takes in that a node was sent a heartbeat.
    pub fn asked(&mut self, now: Instant, node: NodeId) {
        self.silent.entry(node).or_insert(Silence { since: now, reminder: Reminder::default() });
    }

    /// Takes in that a frame of a node arrived.
    pub fn heard(&mut self, node: NodeId) {
        if !self.silent.is_empty() {
            self.silent.remove(&node);
        }
    }

    /// Removes and returns the nodes that are due for a reconnect.
    pub fn take_due(&mut self) -> Vec<NodeId> {
        let is_due = |at: &Instant| *at <= Instant::now();
        let due: Vec<NodeId> = self.retry_at.iter().filter(|(_, at)| is_due(at)).map(|(node, _)| *node).collect();
        self.retry_at.retain(|node, _| !due.contains(node));
        due
    }

    /// Forgets the nodes that the worker does not wait for, and logs those that stay silent. Unless
    /// the run goes on without a lost node (`done_without`), returns the loss of a node that has
    /// been silent for longer than `limit`.
    ///
    /// If this process has not run for more than half of `limit`, no node is to blame for that
    /// time, and frames that arrived meanwhile may be unread.
    pub fn check(
        &mut self,
        now: Instant,
        waits_for: impl Fn(NodeId) -> bool,
        limit: Duration,
        done_without: bool,
    ) -> Option<NodeError> {
        self.silent.retain(|node, _| waits_for(*node));
        let slept = self.checked.replace(now).map(|checked| now.saturating_duration_since(checked));
        if let Some(slept) = slept.filter(|slept| *slept > limit / 2) {
            self.silent.values_mut().for_each(|silence| silence.since = now.min(silence.since + slept));
        }
        let mut lost = None;
        for (node, Silence { since, reminder }) in &mut self.silent {
            let silent = now.saturating_duration_since(*since);
            let seconds = silent.as_secs_f64();
            if silent > limit && !done_without {
                let reason = format!("this worker has heard nothing from it for {seconds:.1} s");
                lost.get_or_insert(NodeError::Lost { node: *node, reason });
            } else if reminder.is_due(silent) {
                tracing::warn!("no answer from {node} for {seconds:.0} s; still trying");
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_only_while_the_worker_runs() {
        const LIMIT: Duration = Duration::from_secs(2);
        let start = Instant::now();
        let server = NodeId::Server(0);
        let at = |millis| start + Duration::from_millis(millis);
        // (when the worker checks, in milliseconds after it asked; whether it gives the server up)
        for (checks, lost) in [
            (&[500, 1_000, 1_500, 1_990][..], false),
            (&[500, 1_000, 1_500, 2_010][..], true),
            (&[500, 9_000, 9_900][..], false),
            (&[500, 9_000, 9_900, 10_600][..], true),
        ] {
            let mut silent = SilentNodes::default();
            silent.asked(start, server);
            silent.check(start, |_| true, LIMIT, false);
            let found = checks.iter().any(|millis| silent.check(at(*millis), |_| true, LIMIT, false).is_some());
            assert_eq!(found, lost, "{checks:?}");
        }
    }
}
