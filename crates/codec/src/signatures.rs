//! Which key lists a receiver has been sent in full: the next time, their signature will do.

use std::collections::BTreeSet;
use std::ops::Range;

/// Lists that a receiver is believed to remember. Past this all are forgotten, and spelt out again.
const KNOWN_LISTS: usize = 1 << 16;

/// What one sender has told one receiver, by the signature of the whole list, the first key and the
/// number of keys.
///
/// ```
/// let mut signatures = codec::Signatures::default();
/// assert!(signatures.is_new(7, 0, 100), "to be spelt out");
/// assert!(!signatures.is_new(7, 0, 100), "the signature will do");
/// signatures.forget(7);
/// assert!(signatures.is_new(7, 0, 100));
/// ```
#[derive(Debug, Default)]
pub struct Signatures {
    known: BTreeSet<(u128, u64, u32)>,
}

impl Signatures {
    /// Whether this piece of a list has to be spelt out; from now on it has been.
    pub fn is_new(&mut self, signature: u128, start: u64, count: u32) -> bool {
        if self.known.len() >= KNOWN_LISTS {
            self.known.clear();
        }
        self.known.insert((signature, start, count))
    }

    /// The piece of a list that the receiver knows and that holds these of its keys: its first key
    /// and the number of keys.
    ///
    /// ```
    /// let mut signatures = codec::Signatures::default();
    /// signatures.is_new(7, 100, 50);
    /// assert_eq!(signatures.piece(7, 120..150), Some((100, 50)));
    /// assert_eq!(signatures.piece(7, 120..151), None);
    /// ```
    #[must_use]
    pub fn piece(&self, signature: u128, keys: Range<u64>) -> Option<(u64, u32)> {
        let last = (signature, keys.start, u32::MAX);
        let (_, start, count) = *self.known.range((signature, 0, 0)..=last).next_back()?;
        (keys.end <= start.saturating_add(count.into())).then_some((start, count))
    }

    /// The receiver has forgotten a list.
    pub fn forget(&mut self, signature: u128) {
        self.known.retain(|(known, _, _)| *known != signature);
    }
}
