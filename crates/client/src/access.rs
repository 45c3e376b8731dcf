//! How a process of a run proves who it is: with a token, or not at all.

use crate::Error;
use crate::session::token as random_number;
use identity::{Credentials, Token};
use net::Security;
use rustls::pki_types::UnixTime;
use std::path::{Path, PathBuf};
use types::Role;

/// The environment variable that names the token file.
pub const TOKEN_FILE_VARIABLE: &str = "SLACKWATER_TOKEN_FILE";

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
    /// not set, the process is insecure, and logs a warning.
    #[default]
    FromEnvironment,
    /// With this token file.
    TokenFile(PathBuf),
    /// Without a token: any process that can reach this one may control the run.
    Insecure,
}

impl Access {
    /// How connections of a process in this role are secured.
    pub(crate) fn security(&self, role: Role) -> Result<Security, Error> {
        match self {
            Self::TokenFile(path) => with_token(path, role),
            Self::Insecure => Ok(Security::Insecure),
            Self::FromEnvironment => match std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()) {
                Some(path) => with_token(Path::new(&path), role),
                None => {
                    tracing::warn!(
                        %role,
                        "this process has no token: any process that can reach it may control the run. Make a token \
                         with `slackwater token create > job.token`, and give its file to every process of the run \
                         ({TOKEN_FILE_VARIABLE}, --token-file)"
                    );
                    Ok(Security::Insecure)
                }
            },
        }
    }
}

fn with_token(path: &Path, role: Role) -> Result<Security, Error> {
    let problem = |error: identity::TokenError| Error::Token { problem: error.to_string() };
    let token = Token::read(path).map_err(problem)?;
    // Names this process in log lines of its peers.
    let name = format!("{:08x}", random_number() as u32);
    let credentials = Credentials::of_token(&token, role, &name, UnixTime::now()).map_err(problem)?;
    tracing::debug!(identity = %credentials.own().name, "this process has a certificate");
    Ok(Security::Tls(credentials))
}
