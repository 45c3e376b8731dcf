//! Who may read the HTTP pages of a process, by how the process proves who it is.

use crate::Error;
use crate::access::Access;
use identity::{HttpReaders, Token};

impl Access {
    /// What readers of the HTTP pages of such a process must show: with a token, the bearer of its
    /// job; without one, nothing.
    ///
    /// ```
    /// use slackwater::security::Access;
    ///
    /// let readers = Access::Insecure.http_readers()?;
    /// assert!(readers.admit(None), "anyone may read");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn http_readers(&self) -> Result<HttpReaders, Error> {
        Ok(match self.resolved() {
            Some(Self::TokenFile(path)) => HttpReaders::of_token(&Token::read(&path)?)?,
            Some(Self::Job(token)) => HttpReaders::of_token(&Token::Job(token))?,
            // A process that neither listens nor calls has no run that could be secured.
            Some(Self::Insecure | Self::FromEnvironment) | None => HttpReaders::anyone(),
        })
    }
}
