//! Exponential backoff of deltas: where they take more than the rows that are wanted again and
//! again, as with few rows of many, they are asked for less and less often.

/// Whole rows are asked for at once for up to two to the power of this pulls.
const LONGEST_PAUSE: u32 = 8;

/// Whether the pulls of a table may ask for deltas.
#[derive(Debug, Default)]
pub(crate) struct DeltaBackoff {
    /// How often in a row deltas would have taken more than the rows.
    declined: u32,
    /// Until this pull, whole rows are asked for at once.
    whole_until: u64,
}

impl DeltaBackoff {
    /// Whether a pull may ask for deltas.
    pub fn allows(&self, pull: u64) -> bool {
        pull >= self.whole_until
    }

    /// Deltas took more than the rows that were wanted, or did not. `pull` is the last one so far.
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
