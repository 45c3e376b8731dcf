//! Verification of a peer's certificate, the same for both ends of a connection: signed by the
//! job's authority, valid now, for this job.

use crate::PeerIdentity;
use crate::credentials::provider;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use std::fmt;
use std::sync::Arc;
use types::Role;
use webpki::{EndEntityCert, KeyUsage};

/// Why a certificate that the authority signed is refused.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refused(why: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Refused(why)))))
}

/// Accepts certificates of one job.
#[derive(Debug)]
pub(crate) struct JobVerifier {
    job: String,
    authorities: Vec<TrustAnchor<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Which end of the connection has the certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Caller,
    Called,
}

impl JobVerifier {
    /// Accepts what one of these authorities has signed for this job.
    pub fn new(job: &str, authorities: &[CertificateDer<'_>]) -> Result<Self, String> {
        let algorithms = provider().signature_verification_algorithms;
        let anchor = |certificate: &CertificateDer<'_>| {
            webpki::anchor_from_trusted_cert(certificate).map(|anchor| anchor.to_owned())
        };
        let authorities = authorities.iter().map(anchor).collect::<Result<_, _>>();
        let authorities =
            authorities.map_err(|error| format!("the certificate of an authority is malformed: {error}"))?;
        Ok(Self { job: job.to_owned(), authorities, algorithms })
    }

    /// Verifies the certificate of one end of a connection.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        end: End,
    ) -> Result<(), Error> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|error| translate(&error))?;
        let usage = match end {
            End::Caller => KeyUsage::client_auth(),
            End::Called => KeyUsage::server_auth(),
        };
        parsed
            .verify_for_usage(self.algorithms.all, &self.authorities, intermediates, now, usage, None, None)
            .map_err(|error| translate(&error))?;
        let peer = PeerIdentity::of(certificate).map_err(|why| refused(format!("the peer's certificate: {why}")))?;
        if peer.name.job() != self.job {
            let why = format!("the peer's certificate is for job {}, and this is job {}", peer.name.job(), self.job);
            return Err(refused(why));
        }
        match (end, peer.role()) {
            (End::Called, Role::Worker | Role::Server | Role::Coordinator) | (End::Caller, _) => Ok(()),
            (End::Called, Role::Reader) => Err(refused("a reader cannot be called".to_owned())),
        }
    }
}

fn translate(error: &webpki::Error) -> Error {
    let error = match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => CertificateError::UnknownIssuer,
        _ => return refused(format!("the peer's certificate is not acceptable: {error}")),
    };
    Error::InvalidCertificate(error)
}

impl ServerCertVerifier for JobVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(certificate, intermediates, now, End::Called).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refused("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for JobVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(certificate, intermediates, now, End::Caller).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refused("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
