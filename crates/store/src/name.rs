//! Names of checkpoints. They sort in the order in which the checkpoints were begun, and no name is
//! used twice.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    str::FromStr,
};

const PREFIX: &str = "checkpoint-";
/// Digits of the number, zero-padded so that names also sort as text.
const DIGITS: usize = 8;
const UNIQUE_DIGITS: usize = 8;

/// A checkpoint's name: a number and a random part.
///
/// The number is one more than the highest in the store. The random part keeps two processes apart
/// that begin a checkpoint at the same moment.
///
/// ```
/// use store::CheckpointName;
///
/// let name: CheckpointName = "checkpoint-00000012-0a1b2c3d".parse()?;
/// assert_eq!(name.number(), 12);
/// assert_eq!(name.to_string(), "checkpoint-00000012-0a1b2c3d");
/// assert!("checkpoint-12".parse::<CheckpointName>().is_err());
/// # Ok::<(), store::NotAName>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointName {
    number: u64,
    unique: u32,
}

/// A text is not the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of a checkpoint: names look like checkpoint-00000012-0a1b2c3d")]
pub struct NotAName {
    /// As given.
    pub text: String,
}

impl CheckpointName {
    /// A name with this number and a fresh random part.
    pub(crate) fn new(number: u64) -> Self {
        Self { number, unique: random() }
    }

    /// Its number: one more than the highest number in the store when it was begun.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

/// 32 bits that differ from call to call and from process to process: a hasher's keys come from the
/// system's randomness.
pub(crate) fn random() -> u32 {
    let bits = RandomState::new().hash_one(0);
    (bits ^ bits >> 32) as u32
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, unique } = self;
        write!(f, "{PREFIX}{number:0DIGITS$}-{unique:0UNIQUE_DIGITS$x}")
    }
}

impl FromStr for CheckpointName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let parse = || {
            let (number, unique) = text.strip_prefix(PREFIX)?.split_once('-')?;
            Some(Self { number: number.parse().ok()?, unique: u32::from_str_radix(unique, 16).ok()? })
        };
        // Accept only the spelling that `Display` writes: a name is also a folder's.
        parse().filter(|name| name.to_string() == text).ok_or_else(|| NotAName { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_number_and_have_one_spelling() {
        let name = |text: &str| text.parse::<CheckpointName>().ok();
        assert!(name("checkpoint-00000002-ffffffff") < name("checkpoint-00000010-00000000"));
        assert_eq!(name("checkpoint-123456789012-00000001").map(CheckpointName::number), Some(123_456_789_012));
        for text in [
            "",
            "checkpoint-",
            "checkpoint-2-00000001",
            "checkpoint-+0000002-00000001",
            "checkpoint-00000002-0000001",
            "checkpoint-00000002-0000000A",
            "checkpoint-00000002-00000001/",
            "Checkpoint-00000002-00000001",
        ] {
            assert!(name(text).is_none(), "{text}");
        }
    }

    #[test]
    fn two_names_of_one_number_differ() {
        assert_ne!(CheckpointName::new(7), CheckpointName::new(7));
    }
}
