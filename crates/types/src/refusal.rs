//! Why a node refuses connections: the reasons that metrics count, as one list.

/// Why a node refused a connection or closed it.
///
/// ```
/// use types::RefusalReason;
///
/// assert_eq!(RefusalReason::FrameTimeout.name(), "frame_timeout");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// The peer sent bytes that are no frame, or broke the rules of shared memory.
    BadFrame,
    /// The peer did not prove who it is.
    NotAuthenticated,
    /// The peer's certificate is of another job.
    WrongJob,
    /// The peer's certificate has expired, or is not valid yet.
    Expired,
    /// The peer's role may not send what it sent, or is not that of the node that was called.
    Role,
    /// Another process with another key has the name that the peer uses.
    NameTaken,
    /// The node has as many connections as it may have, in all or of this kind of peer.
    TooManyConnections,
    /// The first frame did not arrive in time.
    HandshakeTimeout,
    /// A frame did not arrive in time.
    FrameTimeout,
    /// A peer without a place in the run said nothing for too long.
    Idle,
    /// Too many bytes waited for the peer.
    Outbox,
}

impl RefusalReason {
    /// Every reason, in the order of the list.
    pub const ALL: [Self; 11] = [
        Self::BadFrame,
        Self::NotAuthenticated,
        Self::WrongJob,
        Self::Expired,
        Self::Role,
        Self::NameTaken,
        Self::TooManyConnections,
        Self::HandshakeTimeout,
        Self::FrameTimeout,
        Self::Idle,
        Self::Outbox,
    ];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BadFrame => "bad_frame",
            Self::NotAuthenticated => "not_authenticated",
            Self::WrongJob => "wrong_job",
            Self::Expired => "expired",
            Self::Role => "role",
            Self::NameTaken => "name_taken",
            Self::TooManyConnections => "too_many_connections",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::FrameTimeout => "frame_timeout",
            Self::Idle => "idle",
            Self::Outbox => "outbox",
        }
    }
}

/// Counts of refused connections, by reason.
///
/// ```
/// use types::{RefusalReason, Refusals};
///
/// let mut refusals = Refusals::default();
/// refusals.count(RefusalReason::Idle);
/// assert_eq!((refusals.of(RefusalReason::Idle), refusals.total()), (1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; RefusalReason::ALL.len()]);

impl Refusals {
    /// Counts one refusal.
    pub fn count(&mut self, reason: RefusalReason) {
        self.0[reason as usize] += 1;
    }

    /// The refusals for this reason.
    #[must_use]
    pub fn of(&self, reason: RefusalReason) -> u64 {
        self.0[reason as usize]
    }

    /// All refusals.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason's name in metrics, with its count.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        RefusalReason::ALL.into_iter().map(|reason| (reason.name(), self.of(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_listed_once_and_in_order() {
        for (index, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{reason:?}");
        }
    }
}
