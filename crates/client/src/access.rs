//! How a process of a run proves who it is: with a token, or not at all if the program says so.

use crate::Error;
use crate::session::token as random_number;
use identity::{Credentials, JobToken, Token};
use net::Security;
use rustls::pki_types::UnixTime;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Once;
use types::Role;

/// The environment variable that names the token file.
pub const TOKEN_FILE_VARIABLE: &str = "SLACKWATER_TOKEN_FILE";
/// The environment variable that, set to 1, lets a process without a token run insecurely.
pub const INSECURE_VARIABLE: &str = "SLACKWATER_INSECURE";

/// How a process proves who it is, and what it asks of its peers. Every process of a run needs a
/// token of the same job.
///
/// ```
/// use slackwater::Connect;
/// use slackwater::security::Access;
///
/// let access = Access::TokenFile("job.token".into());
/// let connect = Connect { access, ..Connect::to("head:7000") };
/// # let _ = connect;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// With the token file that the environment variable `SLACKWATER_TOKEN_FILE` names. If it is
    /// not set, the process neither listens nor calls ([`Error::Access`]), unless
    /// `SLACKWATER_INSECURE` is 1.
    #[default]
    FromEnvironment,
    /// With this token file.
    TokenFile(PathBuf),
    /// With this job token, which the program has from elsewhere than a file.
    Job(JobToken),
    /// Without a token: any process that can reach this one may control the run.
    Insecure,
}

/// What the environment says, where the program leaves it to that.
fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Access> {
    match variable(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => Some(Access::TokenFile(path.into())),
        None => variable(INSECURE_VARIABLE).filter(|word| word == "1").map(|_| Access::Insecure),
    }
}

impl Access {
    /// This access, or what the environment says. `None` if nothing says how.
    pub(crate) fn resolved(&self) -> Option<Self> {
        match self {
            Self::FromEnvironment => of_environment(|name| std::env::var_os(name)),
            Self::TokenFile(_) | Self::Job(_) | Self::Insecure => Some(self.clone()),
        }
    }

    /// Whether a process with this access takes part in an insecure run.
    ///
    /// ```
    /// use slackwater::security::Access;
    ///
    /// assert!(Access::Insecure.is_insecure());
    /// assert!(!Access::TokenFile("job.token".into()).is_insecure());
    /// ```
    #[must_use]
    pub fn is_insecure(&self) -> bool {
        self.resolved() == Some(Self::Insecure)
    }

    /// How connections of a process in this role are secured. Fails if nothing says how.
    pub(crate) fn security(&self, role: Role) -> Result<Security, Error> {
        match self.resolved() {
            Some(Self::TokenFile(path)) => with_token(&Token::read(&path)?, role),
            Some(Self::Job(token)) => with_token(&Token::Job(token), role),
            Some(Self::Insecure) => {
                warn_once(role);
                Ok(Security::Insecure)
            }
            Some(Self::FromEnvironment) | None => Err(Error::Access {
                problem: format!(
                    "this {role} has no token, so it neither listens nor calls: any process that could reach it would \
                     control the run. Make a token with `slackwater token create > job.token`, and give the file to \
                     every process of the run (--token-file, {TOKEN_FILE_VARIABLE}). To run without protection, say so \
                     for every process (--insecure, {INSECURE_VARIABLE}=1)"
                ),
            }),
        }
    }
}

/// Logs that this process is insecure: once, however many nodes it runs. A reader endangers
/// nothing.
fn warn_once(role: Role) {
    static SAID: Once = Once::new();
    if role != Role::Reader {
        SAID.call_once(|| {
            tracing::warn!("this process is insecure: any process that can reach it may control the run");
        });
    }
}

fn with_token(token: &Token, role: Role) -> Result<Security, Error> {
    // Names this process in log lines of its peers.
    let name = format!("{:08x}", random_number() as u32);
    let credentials = Credentials::of_token(token, role, &name, UnixTime::now())?;
    tracing::debug!(identity = %credentials.own().name, "this process has a certificate");
    Ok(Security::Tls(credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(token_file: &str, insecure: &str) -> Option<Access> {
        of_environment(|name| match name {
            TOKEN_FILE_VARIABLE => Some(token_file.into()),
            INSECURE_VARIABLE => Some(insecure.into()),
            _ => None,
        })
    }

    #[test]
    fn environment_gives_a_token_or_says_that_the_run_is_insecure_or_says_nothing() {
        let token = Some(Access::TokenFile("job.token".into()));
        for (token_file, insecure, expected) in [
            ("job.token", "", token.clone()),
            ("job.token", "1", token),
            ("", "1", Some(Access::Insecure)),
            ("", "", None),
            ("", "0", None),
            ("", "yes", None),
        ] {
            assert_eq!(environment(token_file, insecure), expected, "{token_file:?} {insecure:?}");
        }
        assert_eq!(of_environment(|_| None), None);
    }
}
