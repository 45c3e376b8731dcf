//! The name in a certificate: `slackwater://job/role/name`, a URI in the subject alternative name
//! (SAN).

use crate::Role;
use std::fmt;

const SCHEME: &str = "slackwater://";
/// Most characters of a job or of a name.
const MOST_CHARS: usize = 64;

/// The job, role and name that a certificate is for.
///
/// ```
/// use types::{CertificateName, Role};
///
/// let name: CertificateName = "slackwater://clicks/worker/host-7".parse().expect("well formed");
/// assert_eq!((name.job(), name.role(), name.name()), ("clicks", Role::Worker, "host-7"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName {
    job: String,
    role: Role,
    name: String,
}

/// Why a text is not the name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateNameError {
    /// It does not have the form of a name.
    Form(String),
    /// It has a role that does not exist.
    Role(String),
    /// The job or the name is empty, too long, or has other characters.
    Characters(String),
}

impl fmt::Display for CertificateNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(f, "'{text}' is not of the form slackwater://job/role/name"),
            Self::Role(why) => f.write_str(why),
            Self::Characters(text) => {
                write!(f, "'{text}' has a job or a name that is not 1 to 64 letters, digits, '-', '_' and '.'")
            }
        }
    }
}

impl std::error::Error for CertificateNameError {}

impl CertificateName {
    /// A name of these parts.
    pub fn new(job: &str, role: Role, name: &str) -> Result<Self, CertificateNameError> {
        let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        let is_word = |text: &str| (1..=MOST_CHARS).contains(&text.len()) && text.chars().all(is_allowed);
        let made = Self { job: job.to_owned(), role, name: name.to_owned() };
        if is_word(job) && is_word(name) { Ok(made) } else { Err(CertificateNameError::Characters(made.to_string())) }
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The name of the process among those of its role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, role, name } = self;
        write!(f, "{SCHEME}{job}/{role}/{name}")
    }
}

impl std::str::FromStr for CertificateName {
    type Err = CertificateNameError;

    fn from_str(text: &str) -> Result<Self, CertificateNameError> {
        let form = || CertificateNameError::Form(text.to_owned());
        let parts: Vec<&str> = text.strip_prefix(SCHEME).ok_or_else(form)?.split('/').collect();
        let [job, role, name] = parts[..] else { return Err(form()) };
        Self::new(job, role.parse().map_err(CertificateNameError::Role)?, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_others_are_refused() {
        for text in ["slackwater://a/worker/b", "slackwater://clicks-17/coordinator/host_1.rack"] {
            assert_eq!(text.parse::<CertificateName>().map(|name| name.to_string()), Ok(text.to_owned()));
        }
        let long = format!("slackwater://{}/worker/a", "j".repeat(65));
        for (text, words) in [
            ("", "not of the form"),
            ("https://a/worker/b", "not of the form"),
            ("slackwater://a/worker", "not of the form"),
            ("slackwater://a/worker/b/c", "not of the form"),
            ("slackwater://a/king/b", "the roles are"),
            ("slackwater://a/worker/", "1 to 64"),
            ("slackwater:///worker/b", "1 to 64"),
            ("slackwater://a/worker/b c", "1 to 64"),
            (&long, "1 to 64"),
        ] {
            let error = text.parse::<CertificateName>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
