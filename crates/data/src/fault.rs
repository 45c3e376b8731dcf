//! [`RowFault`]: what is wrong with a line. It says where in the line, what was expected there, and
//! what was found.

use std::borrow::Cow;
use std::fmt;

/// At most so many bytes of the text that was found are shown.
const SHOWN_BYTES: usize = 40;

/// What is wrong with a line that is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Where in the line, counted in bytes from 1.
    pub column: u64,
    /// What was expected there, in words.
    pub expected: Cow<'static, str>,
    /// What was found there: in words, or quoted from the line.
    pub found: String,
}

impl RowFault {
    /// The fault that the word at `at` is not what was expected. A word ends at the next blank.
    #[cold]
    pub(crate) fn word(line: &[u8], at: usize, expected: impl Into<Cow<'static, str>>) -> Self {
        let rest = line.get(at..).unwrap_or_default();
        let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(rest.len());
        Self::text(&rest[..length], at, expected)
    }

    /// The fault that `text`, at `at`, is not what was expected.
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
