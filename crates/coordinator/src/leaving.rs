//! When a server that was told to leave may: other servers take over what it holds first. It leaves
//! with too few replicas if no server joins for too long.

use types::Span;

/// A server that asks to leave.
pub(crate) struct LeaveRequest {
    /// Servers that stay without it.
    pub others: usize,
    /// Servers that are to hold each shard.
    pub replicas: usize,
    /// How long ago it asked first.
    pub waited: Span,
    /// How long it waits for another server to join.
    pub limit: Span,
}

impl LeaveRequest {
    /// Why the server cannot leave yet, if that is so.
    pub fn refusal(&self, is_elastic: bool) -> Option<String> {
        if !is_elastic {
            return Some("nobody can take its place in a run that nodes do not come to and go from".to_owned());
        }
        if self.others == 0 {
            let reason = "no other server is there to take over what it holds; start one, or tell the workers to leave";
            return Some(reason.to_owned());
        }
        (self.others < self.replicas && self.waited < self.limit).then(|| {
            format!(
                "there would be fewer than {} replicas without it; start another server, or it leaves after {} s all the same",
                self.replicas,
                self.limit.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (elastic, other servers, replicas, seconds waited of 8; a word of the refusal)
    #[test]
    fn a_server_leaves_when_enough_others_are_there_or_none_has_come_for_long() {
        let cases = [
            (false, 3, 1, 0, Some("nobody can take its place")),
            (true, 0, 1, 100, Some("no other server is there")),
            (true, 1, 1, 0, None),
            (true, 1, 2, 0, Some("fewer than 2 replicas")),
            (true, 1, 2, 7, Some("after 8 s all the same")),
            (true, 1, 2, 8, None),
            (true, 2, 2, 0, None),
        ];
        for (is_elastic, others, replicas, seconds, words) in cases {
            let (waited, limit) = (Span::from_secs(seconds), Span::from_secs(8));
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
