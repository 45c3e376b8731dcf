//! A hostile peer's connection: blocking TLS with any certificate, or none, and any bytes in it.
//!
//! The peer accepts every node, also a stranger, so that a refusal is always the node's.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rcgen::{CertificateParams, DistinguishedName, Issuer, KeyPair, PKCS_ED25519, SanType};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use wire::{Frame, HEADER_BYTES, Header, Pool, decode, encode_unchecked};

/// How long the peer waits for a connection, or for room to write.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// Frames that are read while the peer looks for an answer.
const FRAMES: usize = 1_000;

/// Accepts every certificate.
#[derive(Debug)]
struct AcceptAll(CryptoProvider);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What a hostile peer shows of itself.
#[derive(Clone)]
pub(super) struct Mask(Arc<ClientConfig>);

impl Mask {
    fn new(shown: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>) -> anyhow::Result<Self> {
        let provider = ring::default_provider();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll(provider)));
        let mut config = match shown {
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key)?,
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = false;
        Ok(Self(Arc::new(config)))
    }

    /// No certificate.
    pub(super) fn bare() -> anyhow::Result<Self> {
        Self::new(None)
    }

    /// The certificate of a restricted token, from its text.
    pub(super) fn of_token(text: &str) -> anyhow::Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).context("the token has no key")?;
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).context("the token has no certificate")?;
        Self::new(Some((certificate, key)))
    }

    /// A certificate with this name in it, signed by an authority that the peer has made itself.
    pub(super) fn self_made(name: &str) -> anyhow::Result<Self> {
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate_for(&PKCS_ED25519)?);
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
        let certificate = params.signed_by(&key, &issuer)?.der().clone();
        Self::new(Some((certificate, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))))
    }
}

/// Connects, without a handshake.
pub(super) fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(stream)
}

/// The bytes of a handshake's first message.
pub(super) fn client_hello() -> anyhow::Result<Vec<u8>> {
    let mut connection = ClientConnection::new(Mask::bare()?.0, ServerName::try_from("slackwater")?)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a frame, with its payloads.
pub(super) fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_unchecked(frame, &mut bytes);
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

/// A connection after its handshake, as far as this end knows.
pub(super) struct Line {
    stream: StreamOwned<ClientConnection, TcpStream>,
    arrived: Vec<u8>,
}

impl Line {
    /// Connects and does this end's part of the handshake.
    pub(super) fn call(address: SocketAddr, mask: &Mask) -> std::io::Result<Self> {
        let mut socket = connect(address)?;
        let name = ServerName::try_from("slackwater").map_err(std::io::Error::other)?;
        let mut connection = ClientConnection::new(mask.0.clone(), name).map_err(std::io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(Self { stream: StreamOwned::new(connection, socket), arrived: Vec::new() })
    }

    /// Sends bytes.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, frame: &Frame) -> std::io::Result<()> {
        self.send_bytes(&bytes_of(frame))
    }

    /// The next frame that arrives within `limit`; `None` if there is none. Fails if the node
    /// closes the connection.
    pub(super) fn next(&mut self, limit: Duration) -> std::io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.cut()? {
                return Ok(Some(frame));
            }
            let mut piece = [0; 16 << 10];
            self.stream.sock.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.arrived.extend_from_slice(&piece[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The first frame that `wanted` accepts.
    pub(super) fn find<T>(&mut self, limit: Duration, wanted: impl Fn(&Frame) -> Option<T>) -> Option<T> {
        for _ in 0..FRAMES {
            let frame = self.next(limit).ok()??;
            if let Some(found) = wanted(&frame) {
                return Some(found);
            }
        }
        None
    }

    fn cut(&mut self) -> std::io::Result<Option<Frame>> {
        let malformed = |error: wire::WireError| std::io::Error::new(ErrorKind::InvalidData, error);
        let Some((header, rest)) = self.arrived.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::parse(header).map_err(malformed)?;
        let [positions, values] = header.payloads;
        let Some((body, rest)) = rest.split_at_checked(header.body) else { return Ok(None) };
        let Some((positions, rest)) = rest.split_at_checked(positions) else { return Ok(None) };
        let Some((values, _)) = rest.split_at_checked(values) else { return Ok(None) };
        let pool = Pool::new();
        let payloads = [pool.copy(positions), pool.copy(values)];
        let length = HEADER_BYTES + body.len() + positions.len() + values.len();
        let frame = decode(&header, body, payloads).map_err(malformed)?;
        self.arrived.drain(..length);
        Ok(Some(frame))
    }
}
