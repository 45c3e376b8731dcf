//! Decoding errors: why bytes cannot be decoded.

use std::fmt;

/// Why bytes could not be decoded. The sender or the network is at fault. The content of the output
/// is then unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The number of bytes does not fit the number of values.
    Length {
        /// The bytes that this many values take.
        expected: usize,
        /// The bytes that arrived.
        found: usize,
    },
    /// The bytes end in the middle of an item.
    Truncated,
    /// Bytes follow the last value.
    Trailing,
    /// A tag that no encoder writes.
    Tag(u8),
    /// An index, key or count exceeds what the caller declared, or keys do not rise.
    OutOfRange,
    /// The declared unpacked length exceeds what the receiver allows.
    TooLong {
        /// The declared length in bytes.
        length: usize,
        /// The allowed length in bytes.
        most: usize,
    },
    /// The compressed bytes contradict themselves.
    Damaged,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => write!(f, "{found} encoded bytes, expected {expected}"),
            Self::Truncated => write!(f, "encoded bytes are truncated"),
            Self::Trailing => write!(f, "bytes follow the last encoded value"),
            Self::Tag(tag) => write!(f, "unknown tag {tag} in encoded bytes"),
            Self::OutOfRange => write!(f, "an encoded key, index or count is out of range"),
            Self::TooLong { length, most } => {
                write!(f, "encoded bytes declare {length} unpacked bytes, at most {most} are allowed")
            }
            Self::Damaged => write!(f, "compressed bytes are damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Checks that there are exactly as many bytes as expected.
pub(crate) fn expect_length(expected: usize, found: usize) -> Result<(), DecodeError> {
    if expected == found { Ok(()) } else { Err(DecodeError::Length { expected, found }) }
}
