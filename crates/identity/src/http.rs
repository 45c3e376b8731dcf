//! Who may read the HTTP pages of a process, and the certificate with which it serves them.
//!
//! With tokens, a reader sends a *bearer*: 32 bytes that HKDF derives from the job token under the
//! label `http-reader`. A process compares SHA-256 of the bearer that it gets with the digest that
//! it knows. With certificates of the operator's own, a reader has a client certificate of the role
//! reader instead, and the pages are shown under the process's own certificate.

use crate::authority::{Authority, Lifetime};
use crate::credentials::provider;
use crate::token::{HttpBearer, HttpPart, Token, TokenError};
use crate::{Credentials, PeerIdentity};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::version::TLS13;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::Role;

/// What a reader of the HTTP pages must show.
#[derive(Default)]
pub struct HttpReaders(Proof);

#[derive(Default)]
enum Proof {
    #[default]
    Nothing,
    Bearer {
        digest: [u8; 32],
        /// Signs the certificate of the pages. A restricted token has none.
        authority: Option<Box<Authority>>,
    },
    /// The certificate files of this process may change, so each connection asks for them.
    Certificate(Credentials),
}

impl fmt::Debug for HttpReaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Proof::Nothing => "HttpReaders(anyone)",
            Proof::Bearer { .. } => "HttpReaders(bearer)",
            Proof::Certificate(_) => "HttpReaders(client certificate)",
        })
    }
}

impl HttpReaders {
    /// Anyone who can reach the port: for insecure runs.
    #[must_use]
    pub fn anyone() -> Self {
        Self(Proof::Nothing)
    }

    /// Readers with the bearer of the job of this token.
    pub fn of_token(token: &Token) -> Result<Self, TokenError> {
        let (digest, authority) = match token {
            Token::Job(token) => (token.http_bearer().digest(), Some(Box::new(token.authority()?))),
            Token::Restricted(token) => match &token.http {
                Some(HttpPart::Digest(digest)) => (*digest, None),
                Some(HttpPart::Bearer(bearer)) => (bearer.digest(), None),
                None => {
                    let why = "the token was made by an earlier release and does not say who may read metrics; make \
                               another with `slackwater token create --role`";
                    return Err(TokenError::Signing(why.to_owned()));
                }
            },
        };
        Ok(Self(Proof::Bearer { digest, authority }))
    }

    /// Readers with a client certificate of the role reader that these credentials accept.
    #[must_use]
    pub fn of_certificates(credentials: Credentials) -> Self {
        Self(Proof::Certificate(credentials))
    }

    /// Whether a reader must send a bearer.
    #[must_use]
    pub fn ask_for_bearer(&self) -> bool {
        matches!(self.0, Proof::Bearer { .. })
    }

    /// Whether a reader must have a client certificate.
    #[must_use]
    pub fn ask_for_certificate(&self) -> bool {
        matches!(self.0, Proof::Certificate(_))
    }

    /// Whether a request with this bearer may read, on a connection whose client has this
    /// certificate, which the handshake has verified. The comparison takes the same time wherever
    /// the bearers differ.
    #[must_use]
    pub fn admit(&self, bearer: Option<&str>, certificate: Option<&CertificateDer<'_>>) -> bool {
        match &self.0 {
            Proof::Nothing => true,
            Proof::Certificate(_) => certificate
                .and_then(|certificate| PeerIdentity::of(certificate).ok())
                .is_some_and(|reader| reader.role() == Role::Reader),
            Proof::Bearer { digest, .. } => bearer.and_then(HttpBearer::parse).is_some_and(|theirs| {
                let pairs = theirs.digest().into_iter().zip(digest);
                pairs.fold(0, |differences, (theirs, ours)| differences | (theirs ^ ours)) == 0
            }),
        }
    }

    /// Whether pages at this address are served over TLS: always where a certificate is asked for,
    /// and everywhere but on loopback where a bearer is.
    #[must_use]
    pub fn use_tls(&self, listen: SocketAddr) -> bool {
        match &self.0 {
            Proof::Nothing => false,
            Proof::Bearer { .. } => !listen.ip().is_loopback(),
            Proof::Certificate(_) => true,
        }
    }

    /// The TLS settings for connections to this address of the host. A certificate that is signed
    /// here is for the address and for `hosts`.
    pub fn tls(&self, address: IpAddr, hosts: &[String]) -> Result<Arc<ServerConfig>, String> {
        match &self.0 {
            Proof::Nothing => Err("there is no token to sign a certificate with".to_owned()),
            Proof::Bearer { authority: None, .. } => {
                Err("a restricted token signs no certificate: serve at 127.0.0.1, or give this process the job token"
                    .to_owned())
            }
            Proof::Bearer { authority: Some(authority), .. } => sign(authority, address, hosts),
            Proof::Certificate(credentials) => Ok(credentials.server()),
        }
    }
}

fn sign(authority: &Authority, address: IpAddr, hosts: &[String]) -> Result<Arc<ServerConfig>, String> {
    let signed = authority.sign_for_http(&[address], hosts, Lifetime::of_process(UnixTime::now()))?;
    let text = |error: rustls::Error| error.to_string();
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(text)?
        .with_no_client_auth()
        .with_single_cert(signed.chain, signed.key)
        .map_err(text)?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobToken;
    use std::time::Duration;

    fn address() -> IpAddr {
        [10, 0, 0, 7].into()
    }

    #[test]
    fn readers_are_admitted_by_the_bearer_of_their_job() {
        let token = JobToken::create().expect("random bytes");
        let other = JobToken::create().expect("random bytes").http_bearer().text();
        let bearer = token.http_bearer().text();
        let length = Duration::from_secs(60);
        let server = token.restrict(Role::Server, "s", Lifetime::from_now(length)).expect("signed");
        assert!(!server.text().contains(&bearer), "a server's token holds the bearer itself");
        let server = Token::parse(&server.text()).expect("a token");
        for readers in [HttpReaders::of_token(&server), HttpReaders::of_token(&Token::Job(token))] {
            let readers = readers.expect("a digest");
            assert!(readers.ask_for_bearer() && readers.admit(Some(&bearer), None));
            let digest = crate::token::HttpBearer::parse(&bearer).expect("a bearer").digest();
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            for wrong in [None, Some(&other[..]), Some(""), Some(&bearer[..62]), Some(&digest)] {
                assert!(!readers.admit(wrong, None), "{wrong:?}");
            }
        }
        assert!(HttpReaders::anyone().admit(None, None));
    }

    #[test]
    fn pages_are_encrypted_except_on_loopback() {
        let token = Token::Job(JobToken::create().expect("random bytes"));
        let readers = HttpReaders::of_token(&token).expect("a digest");
        for (listen, tls) in [("127.0.0.1:1", false), ("[::1]:1", false), ("0.0.0.0:1", true), ("10.0.0.7:1", true)] {
            let listen = listen.parse().expect("an address");
            assert_eq!(readers.use_tls(listen), tls, "{listen}");
            assert!(!HttpReaders::anyone().use_tls(listen));
        }
    }

    #[test]
    fn certificate_of_the_pages_is_no_nodes() {
        let token = JobToken::create().expect("random bytes");
        let authority = token.authority().expect("an authority");
        let lifetime = Lifetime::of_process(UnixTime::now());
        let signed = authority.sign_for_http(&[address()], &["host.example".to_owned()], lifetime).expect("signed");
        let error = PeerIdentity::of(signed.certificate()).expect_err("no URI");
        assert!(error.contains("exactly one URI"), "{error}");
        assert!(authority.sign_for_http(&[], &["h\u{f6}st".to_owned()], lifetime).is_err());
    }

    #[test]
    fn readers_with_certificates_need_the_role_reader() {
        let token = JobToken::create().expect("random bytes");
        let authority = token.authority().expect("an authority");
        let lifetime = Lifetime::of_process(UnixTime::now());
        let credentials = Credentials::of_token(&Token::Job(token.clone()), Role::Server, "s", UnixTime::now());
        let readers = HttpReaders::of_certificates(credentials.expect("signed"));
        let bearer = token.http_bearer().text();
        assert!(!readers.admit(None, None) && !readers.admit(Some(&bearer), None), "no certificate");
        for role in Role::ALL {
            let signed = authority.sign(role, "r", lifetime).expect("signed");
            assert_eq!(readers.admit(None, Some(signed.certificate())), role == Role::Reader, "{role}");
        }
        let pages = authority.sign_for_http(&[address()], &[], lifetime).expect("signed");
        assert!(!readers.admit(None, Some(pages.certificate())), "a certificate without a role");
        assert!(readers.use_tls("127.0.0.1:1".parse().expect("an address")), "on loopback, too");
    }

    #[test]
    fn restricted_token_serves_no_pages_over_tls() {
        let token = JobToken::create().expect("random bytes");
        let length = Duration::from_secs(60);
        let server = token.restrict(Role::Server, "s", Lifetime::from_now(length)).expect("signed");
        let readers = HttpReaders::of_token(&Token::Restricted(Box::new(server))).expect("a digest");
        assert!(readers.tls(address(), &[]).expect_err("no key").contains("give this process the job token"));
        assert!(HttpReaders::of_token(&Token::Job(token)).expect("a key").tls(address(), &[]).is_ok());
    }
}
