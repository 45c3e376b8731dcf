//! The certificate authority of a job: an Ed25519 key that HKDF derives from the secret of the job
//! token, so every process with the token has the same authority.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use std::net::IpAddr;
use std::time::Duration;
use time::OffsetDateTime;
use types::{CertificateName, Role};
use zeroize::Zeroizing;

/// A certificate is valid from this long before it is made, because clocks of hosts differ.
const EARLIER: Duration = Duration::from_secs(24 * 3600);
/// PKCS #8 of an Ed25519 key is these bytes, then the 32 bytes of the seed (RFC 8410).
const PKCS8_OF_ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// For how long a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The time at which it is made.
    pub now: UnixTime,
    /// How long it is valid after that.
    pub length: Duration,
}

impl Lifetime {
    /// The lifetime of the certificate that a process makes for itself: it is renewed with the
    /// process, and a run may last long.
    #[must_use]
    pub fn of_process(now: UnixTime) -> Self {
        Self { now, length: Duration::from_secs(400 * 24 * 3600) }
    }

    /// A lifetime that begins now.
    #[must_use]
    pub fn from_now(length: Duration) -> Self {
        Self { now: UnixTime::now(), length }
    }

    fn bounds(self) -> Option<(OffsetDateTime, OffsetDateTime)> {
        let at = |seconds: u64| OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok();
        let now = self.now.as_secs();
        Some((at(now.saturating_sub(EARLIER.as_secs()))?, at(now.saturating_add(self.length.as_secs()))?))
    }
}

/// A certificate with its private key.
pub(crate) struct SignedKey {
    /// The certificate, and intermediate ones up to the authority's, without that.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl SignedKey {
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }
}

/// The authority of a job.
pub(crate) struct Authority {
    job: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    /// The authority with the key of this seed, for this job.
    pub fn new(job: &str, seed: &[u8; 32]) -> Result<Self, rcgen::Error> {
        let pkcs8 = Zeroizing::new([&PKCS8_OF_ED25519[..], seed].concat());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(&pkcs8[..]), &PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("Slackwater job {job}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { job: job.to_owned(), issuer: Issuer::new(params, key), certificate })
    }

    /// Its own certificate, by which others verify what it signs.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Makes a key pair and signs a certificate for it, by which a node proves its role.
    pub fn sign(&self, role: Role, name: &str, lifetime: Lifetime) -> Result<SignedKey, String> {
        let name = CertificateName::new(&self.job, role, name).map_err(|error| error.to_string())?;
        let uri = name.to_string().try_into().map_err(|error: rcgen::Error| error.to_string())?;
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign_names(format!("{role} {}", name.name()), vec![SanType::URI(uri)], usages, lifetime)
    }

    /// Makes a key pair and signs a certificate for it, by which HTTP clients know a server at
    /// these addresses and host names. It has no URI, so no node takes it for a peer's.
    pub fn sign_for_http(
        &self,
        addresses: &[IpAddr],
        hosts: &[String],
        lifetime: Lifetime,
    ) -> Result<SignedKey, String> {
        let mut names: Vec<SanType> = addresses.iter().copied().map(SanType::IpAddress).collect();
        for host in hosts {
            let host = host.as_str().try_into().map_err(|_| format!("'{host}' is not the name of a host"))?;
            names.push(SanType::DnsName(host));
        }
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign_names("Slackwater HTTP".to_owned(), names, usages, lifetime)
    }

    fn sign_names(
        &self,
        subject: String,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        lifetime: Lifetime,
    ) -> Result<SignedKey, String> {
        let (from, until) = lifetime.bounds().ok_or("the certificate would expire after the year 9999")?;
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|error| error.to_string())?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        params.not_before = from;
        params.not_after = until;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(SignedKey { chain: vec![certificate.der().clone()], key })
    }
}
