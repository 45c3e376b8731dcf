//! Why bytes are not what an encoder writes.

use std::fmt;

/// Why bytes could not be decoded. Whoever sent them is at fault; what the output holds then is
/// unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// They are not as many as the count of values needs.
    Length {
        /// How many it needs.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// They end in the middle of something.
    Truncated,
    /// They go on after the last value.
    Trailing,
    /// A tag that no encoder writes.
    Tag(u8),
    /// An index, a key or a count beyond what was declared outside, or keys that do not rise.
    OutOfRange,
    /// They say that they unpack to more bytes than the receiver allows.
    TooLong {
        /// What they say.
        length: usize,
        /// What is allowed.
        most: usize,
    },
    /// The compressed bytes contradict themselves.
    Damaged,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => write!(f, "{found} encoded bytes where {expected} are needed"),
            Self::Truncated => write!(f, "encoded bytes end too early"),
            Self::Trailing => write!(f, "encoded bytes go on after the last value"),
            Self::Tag(tag) => write!(f, "unknown tag {tag} in encoded bytes"),
            Self::OutOfRange => write!(f, "an encoded key, index or count is out of range"),
            Self::TooLong { length, most } => write!(f, "encoded bytes unpack to {length} bytes, of at most {most}"),
            Self::Damaged => write!(f, "compressed bytes are damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// `Ok` where `found` bytes are as many as needed.
pub(crate) fn expect_length(expected: usize, found: usize) -> Result<(), DecodeError> {
    if expected == found { Ok(()) } else { Err(DecodeError::Length { expected, found }) }
}
