//! Exponential backoff of deltas: while deltas take more bytes than the wanted rows, as when a
//! program reads few rows of many, pulls ask for deltas less and less often.

/// The longest pause without deltas, as a power of two: 2⁸ pulls.
const LONGEST_PAUSE: u32 = 8;

/// Whether the pulls of a table may ask for deltas.
#[derive(Debug, Default)]
pub(crate) struct DeltaBackoff {
    /// How often in a row deltas would have taken more bytes than the rows, at most
    /// [`LONGEST_PAUSE`].
    declined: u32,
    /// Pulls before this one ask for whole rows at once.
    whole_until: u64,
}

impl DeltaBackoff {
    /// Whether a pull may ask for deltas.
    pub fn allows(&self, pull: u64) -> bool {
        pull >= self.whole_until
    }

    /// Notes whether the shard declined to send deltas, because they would take more bytes than the
    /// wanted rows. `pull` is the number of the last pull.
    pub fn declined(&mut self, pull: u64, declined: bool) {
        self.declined = if declined { (self.declined + 1).min(LONGEST_PAUSE) } else { 0 };
        if declined {
            self.whole_until = pull + (1 << self.declined);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_backoff_doubles_up_to_its_bound_and_ends_when_deltas_pay() {
        let mut backoff = DeltaBackoff::default();
        let mut pull = 1;
        for pause in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(backoff.allows(pull), "pull {pull}");
            backoff.declined(pull, true);
            assert!(!backoff.allows(pull + pause - 1) && backoff.allows(pull + pause), "a pause of {pause}");
            pull += pause;
        }
        backoff.declined(pull, false);
        assert!(backoff.allows(pull));
        backoff.declined(pull, true);
        assert!(!backoff.allows(pull + 1) && backoff.allows(pull + 2), "begins anew");
    }
}
