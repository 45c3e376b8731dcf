//! Log lines that peers can provoke, bounded in number: a stranger that calls again and again must
//! not fill the log.

use std::time::{Duration, Instant};
use types::limits::{LOG_LINES, LOG_WINDOW};

/// Lines are counted over this long.
const WINDOW: Duration = Duration::from_nanos(LOG_WINDOW.0);

/// Decides which events are logged.
#[derive(Default)]
pub(super) struct LogBudget {
    /// When the window began, and how many events it had.
    window: Option<(Instant, usize)>,
}

impl LogBudget {
    /// Notes an event at this time. Returns how many events were not logged since the last line if
    /// this one is to be logged, `None` if not.
    pub fn note(&mut self, now: Instant) -> Option<usize> {
        match &mut self.window {
            Some((began, count)) if now.saturating_duration_since(*began) < WINDOW => {
                *count = count.saturating_add(1);
                (*count <= LOG_LINES).then_some(0)
            }
            window => {
                let unlogged = window.map_or(0, |(_, count)| count.saturating_sub(LOG_LINES));
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
    fn events_beyond_the_bound_are_counted_with_the_next_line() {
        let start = Instant::now();
        let mut log = LogBudget::default();
        let logged = (0..1000).filter(|_| log.note(start).is_some()).count();
        assert_eq!(logged, LOG_LINES);
        assert_eq!(log.note(start + WINDOW), Some(1000 - LOG_LINES));
        assert_eq!(log.note(start + WINDOW), Some(0));
    }
}
