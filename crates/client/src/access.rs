//! How a process of a run proves who it is: with a token, with a certificate of the operator's, or
//! not at all if the program says so.

use crate::Error;
use crate::session::token as random_number;
use identity::{CertificateFiles, Credentials, JobToken, Token};
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

/// The environment variables that name the files of the process's own certificate.
pub const CERTIFICATE_VARIABLES: [&str; 3] = ["SLACKWATER_TLS_CERT", "SLACKWATER_TLS_KEY", "SLACKWATER_TLS_CA"];

/// How a process proves who it is, and what it asks of its peers. Every process of a run needs a
/// token of the same job, or every process has a certificate of the operator's.
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
    /// With the token file that the environment variable `SLACKWATER_TOKEN_FILE` names, or with the
    /// certificate of `SLACKWATER_TLS_CERT`, `SLACKWATER_TLS_KEY` and `SLACKWATER_TLS_CA`. If none
    /// is set, the process neither listens nor calls ([`Error::Access`]), unless
    /// `SLACKWATER_INSECURE` is 1.
    #[default]
    FromEnvironment,
    /// With this token file.
    TokenFile(PathBuf),
    /// With this job token, which the program has from elsewhere than a file.
    Job(JobToken),
    /// With a certificate of the operator's. Its files are read again when they change.
    Certificates(CertificateFiles),
    /// Without a token: any process that can reach this one may control the run.
    Insecure,
}

/// What the environment says, where the program leaves it to that. `None` if it says nothing.
fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Access>, String> {
    let path = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let [certificate, key, authorities] = CERTIFICATE_VARIABLES;
    let certificates = match [certificate, key, authorities].map(path) {
        [None, None, None] => None,
        [Some(certificate), Some(key), Some(authorities)] => {
            Some(Access::Certificates(CertificateFiles { certificate, key, authorities }))
        }
        _ => return Err(format!("a certificate needs three files: set {certificate}, {key} and {authorities}")),
    };
    match (path(TOKEN_FILE_VARIABLE), certificates) {
        (Some(_), Some(_)) => Err(format!(
            "this process has a token ({TOKEN_FILE_VARIABLE}) and a certificate ({certificate}): all processes of a run \
             have one or the other; unset one of them"
        )),
        (Some(path), None) => Ok(Some(Access::TokenFile(path))),
        (None, Some(certificates)) => Ok(Some(certificates)),
        (None, None) => Ok(variable(INSECURE_VARIABLE).filter(|word| word == "1").map(|_| Access::Insecure)),
    }
}

impl Access {
    /// This access, or what the environment says. `None` if nothing says how.
    pub(crate) fn resolved(&self) -> Result<Option<Self>, String> {
        match self {
            Self::FromEnvironment => of_environment(|name| std::env::var_os(name)),
            Self::TokenFile(_) | Self::Job(_) | Self::Certificates(_) | Self::Insecure => Ok(Some(self.clone())),
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
        self.resolved() == Ok(Some(Self::Insecure))
    }

    /// How connections of a process in this role are secured. Fails if nothing says how.
    pub(crate) fn security(&self, role: Role) -> Result<Security, Error> {
        match self.resolved().map_err(|problem| Error::Access { problem })? {
            Some(Self::TokenFile(path)) => with_token(&Token::read(&path)?, role),
            Some(Self::Job(token)) => with_token(&Token::Job(token), role),
            Some(Self::Certificates(files)) => Ok(Security::Tls(Credentials::of_files(&files, role)?)),
            Some(Self::Insecure) => {
                warn_once(role);
                Ok(Security::Insecure)
            }
            Some(Self::FromEnvironment) | None => Err(Error::Access {
                problem: format!(
                    "this {role} has no token, so it neither listens nor calls: any process that could reach it would \
                     control the run. Make a token with `slackwater token create > job.token`, and give the file to \
                     every process of the run (--token-file, {TOKEN_FILE_VARIABLE}); or give each a certificate of your own \
                     (--tls-cert, --tls-key, --tls-ca). To run without protection, say so \
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
    tracing::debug!(identity = %credentials.name(), "this process has a certificate");
    Ok(Security::Tls(credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_gives_a_token_or_a_certificate_or_says_that_the_run_is_insecure() {
        let token = Access::TokenFile("job.token".into());
        let files = CertificateFiles { certificate: "c".into(), key: "k".into(), authorities: "a".into() };
        let [cert, key, ca] = CERTIFICATE_VARIABLES;
        let certificate = [(cert, "c"), (key, "k"), (ca, "a")];
        let with = |more: (&'static str, &'static str)| [&certificate[..], &[more]].concat();
        for (set, expected) in [
            (vec![(TOKEN_FILE_VARIABLE, "job.token")], Ok(Some(token.clone()))),
            (vec![(TOKEN_FILE_VARIABLE, "job.token"), (INSECURE_VARIABLE, "1")], Ok(Some(token))),
            (vec![(TOKEN_FILE_VARIABLE, ""), (INSECURE_VARIABLE, "1")], Ok(Some(Access::Insecure))),
            (vec![(INSECURE_VARIABLE, "0")], Ok(None)),
            (vec![(INSECURE_VARIABLE, "yes")], Ok(None)),
            (vec![], Ok(None)),
            (with((INSECURE_VARIABLE, "1")), Ok(Some(Access::Certificates(files)))),
            (with((TOKEN_FILE_VARIABLE, "job.token")), Err("unset one of them")),
            (certificate[..2].to_vec(), Err("needs three files")),
        ] {
            let found = of_environment(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()));
            match (&found, &expected) {
                (Err(problem), Err(words)) => assert!(problem.contains(words), "{set:?}: {problem}"),
                _ => assert_eq!(found.as_ref().ok(), expected.as_ref().ok(), "{set:?}"),
            }
        }
    }
}
