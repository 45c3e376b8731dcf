//! Signatures of key lists: a sender's record of the lists that a receiver holds. It sends such a
//! list as its signature instead of its keys.

use std::collections::BTreeSet;
use std::ops::Range;

/// Lists in the record, at most. When it is full, the sender forgets all and sends lists in full
/// again.
const KNOWN_LISTS: usize = 1 << 16;

/// The lists that one sender has sent to one receiver. An entry is the signature of the whole list,
/// the index of its first key sent, and the number of keys sent.
///
/// ```
/// let mut signatures = codec::Signatures::default();
/// assert!(signatures.is_new(7, 0, 100), "send it in full");
/// assert!(!signatures.is_new(7, 0, 100), "send the signature");
/// signatures.forget(7);
/// assert!(signatures.is_new(7, 0, 100));
/// ```
#[derive(Debug, Default)]
pub struct Signatures {
    known: BTreeSet<(u128, u64, u32)>,
}

impl Signatures {
    /// Whether the sender must send this piece of a list in full. Records it as sent.
    pub fn is_new(&mut self, signature: u128, start: u64, count: u32) -> bool {
        if self.known.len() >= KNOWN_LISTS {
            self.known.clear();
        }
        self.known.insert((signature, start, count))
    }

    /// The piece of a list that the receiver knows and that contains the keys with these indices:
    /// the index of its first key, and its number of keys.
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

    /// Removes a list that the receiver says it does not know.
    pub fn forget(&mut self, signature: u128) {
        self.known.retain(|(known, _, _)| *known != signature);
    }
}
