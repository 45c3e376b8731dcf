//! What is wrong with a line: where in it, what should stand there, and what does.

use std::borrow::Cow;
use std::fmt;

/// How much of what was found is shown.
const SHOWN_BYTES: usize = 40;

/// A line that is no row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Counted in bytes, from 1.
    pub column: u64,
    /// In words.
    pub expected: Cow<'static, str>,
    /// In words, or quoted from the line.
    pub found: String,
}

impl RowFault {
    /// At `at` stands something else: what is shown of it goes to the next blank.
    #[cold]
    pub(crate) fn word(line: &[u8], at: usize, expected: impl Into<Cow<'static, str>>) -> Self {
        let rest = line.get(at..).unwrap_or_default();
        let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(rest.len());
        Self::text(&rest[..length], at, expected)
    }

    /// At `at` stands `text` and should not.
    #[cold]
    pub(crate) fn text(text: &[u8], at: usize, expected: impl Into<Cow<'static, str>>) -> Self {
        let found = match text {
            [] => "nothing".to_owned(),
            shown if shown.len() <= SHOWN_BYTES => format!("`{}`", String::from_utf8_lossy(shown)),
            shown => format!("`{}…`", String::from_utf8_lossy(&shown[..SHOWN_BYTES])),
        };
        Self { column: at as u64 + 1, expected: expected.into(), found }
    }
}

impl fmt::Display for RowFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

impl std::error::Error for RowFault {}
