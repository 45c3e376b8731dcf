//! The TLS settings of a process, made from its token.

use crate::PeerIdentity;
use crate::authority::{Lifetime, SignedKey};
use crate::token::{JobToken, RestrictedToken, Token, TokenError};
use crate::verify::JobVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::sync::Arc;
use types::Role;

/// How a process proves who it is and checks its peers, in one role.
#[derive(Clone)]
pub struct Credentials {
    own: PeerIdentity,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.own.name)
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
        let authorities = [authority.certificate().clone()];
        Self::new(signed, &authorities).map_err(TokenError::Signing)
    }

    fn of_restricted(token: &RestrictedToken, role: Role) -> Result<Self, TokenError> {
        let identity = token.identity().map_err(TokenError::Signing)?;
        if identity.role() != role {
            let theirs = identity.role();
            return Err(TokenError::Signing(format!(
                "the token is a {theirs}'s and this process is a {role}; give it a {role}'s token or the job token"
            )));
        }
        let signed = SignedKey { certificate: token.certificate.clone(), key: token.key.clone_key() };
        let authorities = [token.authority.clone()];
        Self::new(signed, &authorities).map_err(TokenError::Signing)
    }

    fn new(signed: SignedKey, authorities: &[CertificateDer<'_>]) -> Result<Self, String> {
        let own = PeerIdentity::of(&signed.certificate)?;
        let provider = Arc::new(provider());
        let verifier = JobVerifier::new(own.name.job(), authorities, provider.signature_verification_algorithms)?;
        let verifier = Arc::new(verifier);
        let chain = vec![signed.certificate];
        let text = |error: rustls::Error| error.to_string();
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(text)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_auth_cert(chain.clone(), signed.key.clone_key())
            .map_err(text)?;
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(text)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, signed.key)
            .map_err(text)?;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        Ok(Self { own, client: Arc::new(client), server: Arc::new(server) })
    }

    /// Who this process is.
    #[must_use]
    pub fn own(&self) -> &PeerIdentity {
        &self.own
    }

    /// Settings of the ends of connections that it calls.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    /// Settings of the ends of connections that it accepts.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
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
