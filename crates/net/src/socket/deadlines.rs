//! Deadlines of connections: what a peer is doing now, and for how long.
//!
//! There is no timer for each frame. About once a second the transport looks at all connections and
//! compares what each peer is doing with what it was doing at the look before. So the work for a
//! frame is none, and a peer may be a second late. After a pause of this process all deadlines
//! begin anew: what arrived meanwhile has not been read.

use super::limits::Limits;
use std::time::{Duration, Instant};
use types::RefusalReason;
use types::limits::FRAME_BYTES_PER_SECOND;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// After so long without a look, this process was not running.
const PAUSED: Duration = Duration::from_secs(5);

/// What a peer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Proves who it is, and sends its first frame, which has so many bytes as far as is known.
    Introduces {
        /// Bytes of the frame.
        bytes: usize,
    },
    /// Sends a frame.
    Sends {
        /// The number of the frame on this connection.
        frame: u64,
        /// Bytes of the frame.
        bytes: usize,
    },
    /// Has no place, and reads its answers. It was sent so many bytes before.
    Reads {
        /// Bytes written so far.
        written: u64,
    },
    /// Has no place, and says nothing after so many frames.
    IsIdle {
        /// Frames received so far.
        frames: u64,
    },
}

impl Activity {
    /// Whether it is the same as `before`, and goes on.
    fn continues(self, before: Self) -> bool {
        match (self, before) {
            (Self::Introduces { .. }, Self::Introduces { .. }) => true,
            (now, before) => now == before,
        }
    }

    /// How long it may last, and the reason to count if it lasts longer.
    fn limit(self, limits: &Limits) -> (Duration, RefusalReason) {
        let at_pace = |bytes: usize| Duration::from_secs((bytes / FRAME_BYTES_PER_SECOND) as u64);
        match self {
            Self::Introduces { bytes } => (limits.handshake_timeout + at_pace(bytes), RefusalReason::HandshakeTimeout),
            Self::Sends { bytes, .. } => (limits.frame_timeout + at_pace(bytes), RefusalReason::FrameTimeout),
            Self::Reads { .. } => (limits.idle_timeout, RefusalReason::Outbox),
            Self::IsIdle { .. } => (limits.idle_timeout, RefusalReason::Idle),
        }
    }
}

/// Decides when to look at connections.
#[derive(Default)]
pub(super) struct Looks {
    last: Option<Instant>,
}

/// A look at all connections that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Connections may have missed their deadlines.
    Judges,
    /// This process was not running: all deadlines begin anew.
    Forgives,
}

impl Looks {
    /// The look that is due at this time, if one is.
    pub fn due(&mut self, now: Instant) -> Option<Look> {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        if since.is_some_and(|since| since < LOOK) {
            return None;
        }
        self.last = Some(now);
        Some(if since.is_some_and(|since| since > PAUSED) { Look::Forgives } else { Look::Judges })
    }
}

/// How long the peer of a connection has been doing the same.
#[derive(Default)]
pub(super) struct Deadline {
    activity: Option<(Activity, Instant)>,
}

impl Deadline {
    /// Notes what the peer does now; `None` if that has no limit. Returns why its time is over, if
    /// it is, and how long it was.
    pub fn note(
        &mut self,
        activity: Option<Activity>,
        look: Look,
        now: Instant,
        limits: &Limits,
    ) -> Option<(RefusalReason, Duration)> {
        let before = self.activity.filter(|_| look == Look::Judges);
        let begun = match (activity, before) {
            (Some(activity), Some((before, begun))) if activity.continues(before) => begun,
            _ => now,
        };
        self.activity = activity.map(|activity| (activity, begun));
        let (limit, reason) = activity?.limit(limits);
        (now.saturating_duration_since(begun) >= limit).then_some((reason, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        let [handshake_timeout, frame_timeout, idle_timeout] = [10, 30, 100].map(Duration::from_secs);
        Limits { handshake_timeout, frame_timeout, idle_timeout, ..Limits::default() }
    }

    /// After how many seconds a peer that goes on doing this is refused, and why.
    fn refused(activity: Activity) -> (u32, RefusalReason) {
        let start = Instant::now();
        let mut deadline = Deadline::default();
        let mut at = |second: u32| deadline.note(Some(activity), Look::Judges, start + second * SECOND, &limits());
        let found = (0..1000).find_map(|second| at(second).map(|(reason, _)| (second, reason)));
        found.expect("refused")
    }

    #[test]
    fn each_activity_has_its_limit() {
        let mebibyte = 1 << 20;
        let cases = [
            (Activity::Introduces { bytes: 0 }, 10, RefusalReason::HandshakeTimeout),
            (Activity::Introduces { bytes: mebibyte }, 26, RefusalReason::HandshakeTimeout),
            (Activity::Sends { frame: 3, bytes: 0 }, 30, RefusalReason::FrameTimeout),
            (Activity::Sends { frame: 3, bytes: mebibyte }, 46, RefusalReason::FrameTimeout),
            (Activity::Reads { written: 0 }, 100, RefusalReason::Outbox),
            (Activity::IsIdle { frames: 2 }, 100, RefusalReason::Idle),
        ];
        for (activity, second, reason) in cases {
            assert_eq!(refused(activity), (second, reason), "{activity:?}");
        }
    }

    #[test]
    fn progress_begins_a_new_deadline_and_a_longer_first_frame_does_not() {
        let start = Instant::now();
        let mut deadline = Deadline::default();
        let mut note = |second: u32, activity| {
            deadline.note(Some(activity), Look::Judges, start + second * SECOND, &limits()).map(|(reason, _)| reason)
        };
        for frame in 0..20 {
            assert_eq!(note(frame * 29, Activity::Sends { frame: u64::from(frame), bytes: 0 }), None);
        }
        assert_eq!(note(1000, Activity::Introduces { bytes: 0 }), None);
        assert_eq!(note(1010, Activity::Introduces { bytes: 1 << 20 }), None);
        assert_eq!(note(1025, Activity::Introduces { bytes: 1 << 20 }), None);
        assert_eq!(note(1026, Activity::Introduces { bytes: 1 << 20 }), Some(RefusalReason::HandshakeTimeout));
    }

    #[test]
    fn a_pause_of_the_process_begins_all_deadlines_anew() {
        let start = Instant::now();
        let mut looks = Looks::default();
        assert_eq!(looks.due(start), Some(Look::Judges));
        assert_eq!(looks.due(start + SECOND / 2), None);
        assert_eq!(looks.due(start + SECOND), Some(Look::Judges));
        assert_eq!(looks.due(start + 60 * SECOND), Some(Look::Forgives));
        let mut deadline = Deadline::default();
        let activity = Some(Activity::IsIdle { frames: 1 });
        assert_eq!(deadline.note(activity, Look::Judges, start, &limits()), None);
        assert_eq!(deadline.note(activity, Look::Forgives, start + 1000 * SECOND, &limits()), None);
        assert_eq!(deadline.note(activity, Look::Judges, start + 1099 * SECOND, &limits()), None);
        assert!(deadline.note(activity, Look::Judges, start + 1100 * SECOND, &limits()).is_some());
    }
}
