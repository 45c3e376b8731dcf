//! Who may read the HTTP pages of a process, by how the process proves who it is.

use crate::Error;
use crate::access::Access;
use identity::{Credentials, HttpReaders, Token};
use types::Role;

impl Access {
    /// What readers of the HTTP pages of such a process in this role must show: with a token, the
    /// bearer of its job; with a certificate, one of a reader; without both, nothing.
    ///
    /// ```
    /// use slackwater::security::{Access, Role};
    ///
    /// let readers = Access::Insecure.http_readers(Role::Server)?;
    /// assert!(readers.admit(None, None), "anyone may read");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn http_readers(&self, role: Role) -> Result<HttpReaders, Error> {
        Ok(match self.resolved().map_err(|problem| Error::Access { problem })? {
            Some(Self::TokenFile(path)) => HttpReaders::of_token(&Token::read(&path)?)?,
            Some(Self::Job(token)) => HttpReaders::of_token(&Token::Job(token))?,
            Some(Self::Certificates(files)) => HttpReaders::of_certificates(Credentials::of_files(&files, role)?),
            // A process that neither listens nor calls has no run that could be secured.
            Some(Self::Insecure | Self::FromEnvironment) | None => HttpReaders::anyone(),
        })
    }
}
