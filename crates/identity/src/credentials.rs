//! The TLS settings of a process: from its token, the same as long as it runs, or from certificate
//! files, read again when they change.

use crate::PeerIdentity;
use crate::authority::{Lifetime, SignedKey};
use crate::certificate_files::WatchedFiles;
use crate::token::{JobToken, RestrictedToken, Token, TokenError};
use crate::verify::JobVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use types::{Binding, CertificateName, Role};

/// How a process proves who it is and checks its peers, in one role.
#[derive(Clone)]
pub struct Credentials {
    name: CertificateName,
    source: Source,
}

/// Where the settings of a connection come from.
#[derive(Clone)]
enum Source {
    /// A token.
    Token(Arc<TlsSettings>),
    /// Certificate files of the operator's.
    Files(Arc<WatchedFiles>),
}

/// The settings of new connections.
pub(crate) struct TlsSettings {
    pub own: PeerIdentity,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsSettings {
    /// Settings of a process that shows this certificate and checks peers by `verifier`.
    pub fn new(own: PeerIdentity, signed: SignedKey, verifier: JobVerifier) -> Result<Self, rustls::Error> {
        let provider = Arc::new(provider());
        let verifier = Arc::new(verifier);
        let SignedKey { chain, key } = signed;
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        Ok(Self { own, client: Arc::new(client), server: Arc::new(server) })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.name)
    }
}

impl Credentials {
    /// Credentials from a token. From a job token, the process makes a key pair and a certificate
    /// for `role`. A restricted token has its own, and must be for that role.
    pub fn of_token(token: &Token, role: Role, name: &str, now: UnixTime) -> Result<Self, TokenError> {
        match token {
            Token::Job(token) => Self::of_job(token, role, name, now),
            Token::Restricted(token) => Self::of_restricted(token, role),
        }
    }

    fn of_job(token: &JobToken, role: Role, name: &str, now: UnixTime) -> Result<Self, TokenError> {
        let authority = token.authority()?;
        let signed = authority.sign(role, name, Lifetime::of_process(now)).map_err(TokenError::Signing)?;
        Self::new(signed, authority.certificate()).map_err(TokenError::Signing)
    }

    fn of_restricted(token: &RestrictedToken, role: Role) -> Result<Self, TokenError> {
        let identity = token.identity().map_err(TokenError::Signing)?;
        if identity.role() != role {
            let theirs = identity.role();
            return Err(TokenError::Signing(format!(
                "the token is a {theirs}'s and this process is a {role}; give it a {role}'s token or the job token"
            )));
        }
        let signed = SignedKey { chain: vec![token.certificate.clone()], key: token.key.clone_key() };
        Self::new(signed, &token.authority).map_err(TokenError::Signing)
    }

    fn new(signed: SignedKey, authority: &CertificateDer<'_>) -> Result<Self, String> {
        let own = PeerIdentity::of(signed.certificate())?;
        let name = own.name.clone();
        let verifier = JobVerifier::new(name.job(), std::slice::from_ref(authority))?;
        let settings = TlsSettings::new(own, signed, verifier).map_err(|error| error.to_string())?;
        Ok(Self { name, source: Source::Token(Arc::new(settings)) })
    }

    /// Credentials from certificate files.
    pub(crate) fn watching(name: CertificateName, files: WatchedFiles) -> Self {
        Self { name, source: Source::Files(Arc::new(files)) }
    }

    fn current(&self) -> Arc<TlsSettings> {
        match &self.source {
            Source::Token(settings) => settings.clone(),
            Source::Files(files) => files.current(Instant::now()),
        }
    }

    /// The job, role and name of this process.
    #[must_use]
    pub fn name(&self) -> &CertificateName {
        &self.name
    }

    /// Who this process is, by its certificate of now.
    #[must_use]
    pub fn own(&self) -> PeerIdentity {
        self.current().own.clone()
    }

    /// What the name of the node at the other end of a connection is bound to. All processes of a
    /// job have tokens, or all have certificates of the operator's.
    #[must_use]
    pub fn binding_of(&self, peer: &PeerIdentity) -> Binding {
        match self.source {
            Source::Token(_) => Binding::Key(peer.key),
            Source::Files(_) => Binding::Certificate(peer.name.clone()),
        }
    }

    /// Settings of the ends of new connections that it calls.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        self.current().client.clone()
    }

    /// Settings of the ends of new connections that it accepts.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.current().server.clone()
    }
}

/// The crypto library, with AES-128-GCM first: the fastest where the processor has AES
/// instructions, which all machines of the last decade do.
pub(crate) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

#[cfg(test)]
mod tests;
