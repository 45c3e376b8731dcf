//! What a verified certificate says of a peer.

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use types::{Binding, CertificateName, CertificateNameError, KeyFingerprint, Role};
use webpki::EndEntityCert;

/// Who is at the other end of a connection, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The name in the certificate.
    pub name: CertificateName,
    /// The key of the certificate.
    pub key: KeyFingerprint,
}

impl PeerIdentity {
    /// Reads a certificate. The caller has verified who signed it and until when it is valid.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|error| format!("a malformed one: {error}"))?;
        let mut names = certificate.valid_uri_names();
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err("it does not have exactly one URI as its subject alternative name".to_owned());
        };
        let name = name.parse().map_err(|error: CertificateNameError| error.to_string())?;
        let key = digest(&SHA256, certificate.subject_public_key_info().as_ref());
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(key.as_ref());
        Ok(Self { name, key: KeyFingerprint(fingerprint) })
    }

    /// Whether it is the process that a node's name is bound to.
    #[must_use]
    pub fn is(&self, binding: &Binding) -> bool {
        match binding {
            Binding::Key(key) => self.key == *key,
            Binding::Certificate(name) => self.name == *name,
        }
    }

    /// The role in the certificate.
    #[must_use]
    pub fn role(&self) -> Role {
        self.name.role()
    }
}
