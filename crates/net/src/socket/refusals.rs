//! Log lines about refused connections, bounded in number: a stranger that calls again and again
//! must not fill the log.

use std::time::{Duration, Instant};

/// Lines are counted over this long.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines in a window, at most.
const LINES: u32 = 30;

/// Decides which refusals are logged.
#[derive(Default)]
pub(super) struct RefusalLog {
    /// When the window began, and how many refusals it had.
    window: Option<(Instant, u32)>,
}

impl RefusalLog {
    /// Notes a refusal at this time. Returns how many refusals were not logged since the last line
    /// if this one is to be logged, `None` if not.
    pub fn note(&mut self, now: Instant) -> Option<u32> {
        match &mut self.window {
            Some((began, count)) if now.saturating_duration_since(*began) < WINDOW => {
                *count = count.saturating_add(1);
                (*count <= LINES).then_some(0)
            }
            window => {
                let unlogged = window.map_or(0, |(_, count)| count.saturating_sub(LINES));
                *window = Some((now, 1));
                Some(unlogged)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_bound_are_counted_with_the_next_line() {
        let start = Instant::now();
        let mut log = RefusalLog::default();
        let logged = (0..1000).filter(|_| log.note(start).is_some()).count();
        assert_eq!(logged, LINES as usize);
        assert_eq!(log.note(start + WINDOW), Some(1000 - LINES));
        assert_eq!(log.note(start + WINDOW), Some(0));
    }
}
