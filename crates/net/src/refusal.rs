//! A refusal of a connection: its reason, and what to log.

use std::fmt;
use std::io::{Error, ErrorKind};
use types::RefusalReason;

/// A refusal with its words. As the source of an [`Error`] it keeps its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub reason: RefusalReason,
    /// What is wrong, and what to do about it.
    pub words: String,
}

impl Refusal {
    pub fn new(reason: RefusalReason, words: impl Into<String>) -> Self {
        Self { reason, words: words.into() }
    }

    /// The refusal in an error; `otherwise` if the error names no reason.
    pub fn of(error: &Error, otherwise: RefusalReason) -> Self {
        let known = error.get_ref().and_then(|source| source.downcast_ref::<Self>());
        known.cloned().unwrap_or_else(|| Self::new(otherwise, error.to_string()))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::InvalidData, refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_the_reason_of_a_refusal() {
        let refusal = Refusal::new(RefusalReason::Expired, "the certificate has expired");
        let error = Error::from(refusal.clone());
        assert_eq!(Refusal::of(&error, RefusalReason::BadFrame), refusal);
        let other = Refusal::of(&Error::other("no more"), RefusalReason::BadFrame);
        assert_eq!(other, Refusal::new(RefusalReason::BadFrame, "no more"));
    }
}
