//! When a wait is logged: after 3 s, after 30 s, and then each time it has doubled, so a long wait
//! takes few lines of the log.

use std::time::Duration;

/// A wait that is shorter is not logged.
const FIRST: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(30);

/// The reminders of one wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reminder {
    next: Duration,
}

impl Default for Reminder {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Reminder {
    /// Whether a line was due before, so that the end of the wait is worth a line, too.
    pub fn was_due(&self) -> bool {
        self.next > FIRST
    }

    /// Whether a line is due, now that the wait has lasted `waited`. Each line is due once.
    pub fn is_due(&mut self, waited: Duration) -> bool {
        if waited < self.next {
            return false;
        }
        while self.next <= waited {
            self.next = (self.next * 2).max(SECOND);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminder_is_due_after_3_s_30_s_and_each_doubling() {
        let mut reminder = Reminder::default();
        let due: Vec<u64> = (0..=300).filter(|second| reminder.is_due(Duration::from_secs(*second))).collect();
        assert_eq!(due, [3, 30, 60, 120, 240]);
        assert!(reminder.was_due() && !Reminder::default().was_due());
    }

    #[test]
    fn reminder_that_was_not_asked_for_long_is_due_once() {
        let mut reminder = Reminder::default();
        let asked = [100, 101, 119, 120].map(|second| reminder.is_due(Duration::from_secs(second)));
        assert_eq!(asked, [true, false, false, true]);
    }
}
