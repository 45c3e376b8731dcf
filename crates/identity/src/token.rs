//! Tokens: what a process is given to prove that it belongs to a job.
//!
//! A *job token* is 32 random bytes. HKDF-SHA-256 (RFC 5869) derives from them, each with its own
//! label: the key of the job's certificate authority, the job's id, and the bearer of HTTP readers.
//! A process with the job token signs its own certificate, in any role: it is a full member.
//!
//! A *restricted token* is a certificate of one role with its key and the authority's certificate.
//! It holds nothing from which another certificate could be made.

use crate::PeerIdentity;
use crate::authority::{Authority, Lifetime};
use crate::private_file::{self, PrivateFileError};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use types::Role;
use zeroize::Zeroizing;

/// What the line of a job token begins with. The number is the version of the format.
const JOB_TOKEN: &str = "slackwater-job-1:";
/// What the line of an HTTP bearer begins with.
const BEARER: &str = "slackwater-http-reader-1:";
/// What the line of a bearer's digest begins with.
const BEARER_DIGEST: &str = "slackwater-http-check-1:";
const SALT: &[u8] = b"slackwater job token 1";
/// Largest file that is read as a token.
const MOST_BYTES: u64 = 64 << 10;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {error}{}", path.display(), hint(error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Other users can read the file.
    #[error(transparent)]
    NotPrivate(#[from] PrivateFileError),
    /// The file holds something else.
    #[error("{} is not a token file: {why}; make one with `slackwater token create > job.token`", path.display())]
    NotAToken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system gave no random bytes.
    #[error("the system gives no random bytes for a token")]
    NoRandomness,
    /// A certificate could not be made.
    #[error("cannot sign a certificate: {0}")]
    Signing(String),
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "; make one with `slackwater token create > job.token`, the same for every process",
        ErrorKind::PermissionDenied => "; it must belong to the user of this process",
        _ => "",
    }
}

/// The secret by which HTTP readers, such as Prometheus, prove that they may read.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpBearer(Zeroizing<[u8; 32]>);

impl HttpBearer {
    /// The words of the `Authorization` header after `Bearer `.
    #[must_use]
    pub fn text(&self) -> String {
        hex(&self.0[..])
    }

    /// The bearer that a request brought, if it has the form of one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        unhex(text).map(|bytes| Self(Zeroizing::new(bytes)))
    }

    /// Its SHA-256, by which a node knows it again and from which it cannot be computed.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, &self.0[..]).as_ref());
        out
    }
}

impl fmt::Debug for HttpBearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpBearer(..)")
    }
}

/// The secret of a job. A process that has it is a full member of the job.
#[derive(Clone, PartialEq, Eq)]
pub struct JobToken(Zeroizing<[u8; 32]>);

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobToken(job {})", self.job())
    }
}

/// 32 bytes of output keying material.
struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

impl JobToken {
    /// A new token, of random bytes of the system.
    pub fn create() -> Result<Self, TokenError> {
        let mut secret = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(&mut secret[..]).map_err(|_| TokenError::NoRandomness)?;
        Ok(Self(secret))
    }

    fn derive(&self, label: &str) -> Zeroizing<[u8; 32]> {
        let key: Prk = Salt::new(HKDF_SHA256, SALT).extract(&self.0[..]);
        let mut out = Zeroizing::new([0; 32]);
        let info = [label.as_bytes()];
        // Fails for more than 255 blocks only, and 32 bytes are one.
        let filled = key.expand(&info, Bytes32).and_then(|material| material.fill(&mut out[..]));
        debug_assert!(filled.is_ok(), "one block of output");
        out
    }

    /// The id of the job: it names the job in certificates and log lines, and is no secret.
    #[must_use]
    pub fn job(&self) -> String {
        hex(&self.derive("job-id")[..8])
    }

    /// The bearer of HTTP readers.
    #[must_use]
    pub fn http_bearer(&self) -> HttpBearer {
        HttpBearer(self.derive("http-reader"))
    }

    pub(crate) fn authority(&self) -> Result<Authority, TokenError> {
        Authority::new(&self.job(), &self.derive("job-ca")).map_err(|error| TokenError::Signing(error.to_string()))
    }

    /// Makes a token of one role, valid for a limited time, that does not hold the secret.
    pub fn restrict(&self, role: Role, name: &str, lifetime: Lifetime) -> Result<RestrictedToken, TokenError> {
        let authority = self.authority()?;
        let signed = authority.sign(role, name, lifetime).map_err(TokenError::Signing)?;
        Ok(RestrictedToken {
            certificate: signed.certificate().clone(),
            key: signed.key,
            authority: authority.certificate().clone(),
            http: match role {
                Role::Reader => Some(HttpPart::Bearer(self.http_bearer())),
                Role::Worker | Role::Server | Role::Coordinator => Some(HttpPart::Digest(self.http_bearer().digest())),
            },
        })
    }

    /// The text of the token file.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let job = self.job();
        Zeroizing::new(format!(
            "# Slackwater job token of job {job}. A process that reads it is a full member of the job: keep it secret.\n\
             {JOB_TOKEN}{}:{}\n",
            hex(&self.0[..]),
            &job[..8],
        ))
    }
}

/// A certificate of one role, with its key and the authority's certificate.
pub struct RestrictedToken {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) http: Option<HttpPart>,
}

/// What a restricted token holds for HTTP: a reader the bearer, a node only its digest. Tokens of
/// nodes that an earlier release made hold nothing.
pub(crate) enum HttpPart {
    Bearer(HttpBearer),
    Digest([u8; 32]),
}

impl fmt::Debug for RestrictedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RestrictedToken({:?})", self.identity())
    }
}

impl RestrictedToken {
    /// The job, role and name that its certificate is for.
    pub fn identity(&self) -> Result<PeerIdentity, String> {
        PeerIdentity::of(&self.certificate)
    }

    /// The bearer of HTTP readers, if this token is a reader's.
    #[must_use]
    pub fn http_bearer(&self) -> Option<HttpBearer> {
        match &self.http {
            Some(HttpPart::Bearer(bearer)) => Some(bearer.clone()),
            Some(HttpPart::Digest(_)) | None => None,
        }
    }

    /// The text of the token file: PEM, and a line with the bearer.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let name = self.identity().map(|identity| identity.name.to_string()).unwrap_or_default();
        let mut text = format!("# Slackwater token for {name}. Keep it secret.\n");
        let _ = match &self.http {
            Some(HttpPart::Bearer(bearer)) => writeln!(text, "{BEARER}{}", bearer.text()),
            Some(HttpPart::Digest(digest)) => writeln!(text, "{BEARER_DIGEST}{}", hex(digest)),
            None => Ok(()),
        };
        text.push_str(&pem("PRIVATE KEY", self.key.secret_der()));
        text.push_str(&pem("CERTIFICATE", &self.certificate));
        text.push_str(&pem("CERTIFICATE", &self.authority));
        Zeroizing::new(text)
    }
}

/// The content of a token file.
#[derive(Debug)]
pub enum Token {
    /// The job's secret: full membership.
    Job(JobToken),
    /// One role, for a limited time.
    Restricted(Box<RestrictedToken>),
}

impl Token {
    /// Reads a token file. Refuses one that users other than its owner can read.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |error| TokenError::Unreadable { path: path.to_owned(), error };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        let not = |why: String| TokenError::NotAToken { path: path.to_owned(), why };
        if bytes > MOST_BYTES {
            return Err(not(format!("it has {bytes} bytes")));
        }
        private_file::check(path)?;
        let text = Zeroizing::new(std::fs::read(path).map_err(unreadable)?);
        let text = std::str::from_utf8(&text).map_err(|_| not("it is not text".to_owned()))?;
        Self::parse(text).map_err(not)
    }

    /// Reads the text of a token file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim);
        if let Some(line) = lines.clone().find_map(|line| line.strip_prefix(JOB_TOKEN)) {
            return Self::parse_job(line).map(Self::Job);
        }
        let bearer = lines.clone().find_map(|line| line.strip_prefix(BEARER));
        let bearer = bearer.map(|line| HttpBearer::parse(line).ok_or("its bearer is not 64 hexadecimal digits"));
        let digest = lines.find_map(|line| line.strip_prefix(BEARER_DIGEST));
        let digest = digest.map(|line| unhex(line).ok_or("its bearer's digest is not 64 hexadecimal digits"));
        let http = bearer.transpose()?.map(HttpPart::Bearer);
        let http = http.or(digest.transpose()?.map(HttpPart::Digest));
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes());
        let key = key.map_err(|_| "it holds neither a job token nor a private key")?;
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(|error| format!("one of its certificates is damaged: {error:?}"))?;
        let [certificate, authority] = &certificates[..] else {
            return Err(format!("it holds {} certificates, where two belong", certificates.len()));
        };
        PeerIdentity::of(certificate).map_err(|why| format!("its certificate: {why}"))?;
        Ok(Self::Restricted(Box::new(RestrictedToken {
            certificate: certificate.clone(),
            key,
            authority: authority.clone(),
            http,
        })))
    }

    /// The bearer of HTTP readers: of a job token or of a reader's token.
    #[must_use]
    pub fn http_bearer(&self) -> Option<HttpBearer> {
        match self {
            Self::Job(token) => Some(token.http_bearer()),
            Self::Restricted(token) => token.http_bearer(),
        }
    }

    /// The certificate of the job's authority as PEM. It is no secret.
    pub fn authority_pem(&self) -> Result<String, TokenError> {
        let certificate = match self {
            Self::Job(token) => token.authority()?.certificate().clone(),
            Self::Restricted(token) => token.authority.clone(),
        };
        Ok(pem("CERTIFICATE", &certificate))
    }

    fn parse_job(line: &str) -> Result<JobToken, String> {
        let (secret, check) = line.split_once(':').ok_or("its line is cut off")?;
        let secret = unhex(secret).ok_or("its line does not hold 64 hexadecimal digits")?;
        let token = JobToken(Zeroizing::new(secret));
        if token.job()[..8] == *check {
            Ok(token)
        } else {
            Err("its check does not match: a digit is wrong".to_owned())
        }
    }
}

pub(crate) fn pem(what: &str, bytes: &[u8]) -> String {
    use base64::Engine;
    let text = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(bytes));
    let mut out = format!("-----BEGIN {what}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    let _ = writeln!(out, "-----END {what}-----");
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::UnixTime;
    use std::time::Duration;

    fn lifetime() -> Lifetime {
        Lifetime {
            now: UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000)),
            length: Duration::from_secs(60),
        }
    }

    #[test]
    fn job_token_is_read_as_written_and_derives_the_same_authority() {
        let token = JobToken::create().expect("random bytes");
        let Ok(Token::Job(again)) = Token::parse(&token.text()) else { panic!("a job token") };
        assert!(again == token);
        assert_eq!(again.job(), token.job());
        assert_eq!(again.http_bearer().text(), token.http_bearer().text());
        let other = JobToken::create().expect("random bytes");
        assert_ne!(other.job(), token.job());
        assert_ne!(other.http_bearer().digest(), token.http_bearer().digest());
        assert!(HttpBearer::parse(&token.http_bearer().text()) == Some(token.http_bearer()));
    }

    #[test]
    fn derived_values_do_not_change_between_releases() {
        // Two releases, and other programs, must derive the same from one token.
        let token = JobToken(Zeroizing::new([7; 32]));
        assert_eq!((token.job().as_str(), token.http_bearer().text().as_str()), DERIVED_OF_SEVENS);
    }

    /// As computed by another implementation of RFC 5869.
    const DERIVED_OF_SEVENS: (&str, &str) =
        ("64c7723871aa745f", "4f01a23714ddf1c6a3414bf7a2eaaebb0fc64d6673d2691b1426cf156dd0b2c5");

    #[test]
    fn restricted_token_is_read_as_written_and_does_not_hold_the_secret() {
        let token = JobToken::create().expect("random bytes");
        for role in Role::ALL {
            let restricted = token.restrict(role, "host-1", lifetime()).expect("signed");
            let text = restricted.text();
            assert!(!text.contains(&hex(&token.0[..])) && !text.contains(JOB_TOKEN));
            let Ok(Token::Restricted(again)) = Token::parse(&text) else { panic!("a restricted token: {}", *text) };
            let identity = again.identity().expect("a name");
            assert_eq!(identity, restricted.identity().expect("a name"));
            assert_eq!(
                (identity.role(), identity.name.job(), identity.name.name()),
                (role, &token.job()[..], "host-1")
            );
            let bearer = again.http_bearer().map(|bearer| bearer.text());
            assert_eq!(bearer, (role == Role::Reader).then(|| token.http_bearer().text()), "{role}");
        }
    }

    #[test]
    fn damaged_tokens_are_refused_with_a_reason() {
        let token = JobToken::create().expect("random bytes");
        let line = token.text().lines().nth(1).expect("the second line").to_owned();
        let mut flipped = line.clone();
        let last = if flipped.ends_with('0') { '1' } else { '0' };
        flipped.pop();
        flipped.push(last);
        let reader = token.restrict(Role::Reader, "r", lifetime()).expect("signed").text().to_string();
        let without_authority = reader.rsplit_once("-----BEGIN CERTIFICATE").expect("two certificates").0.to_owned();
        for (text, words) in [
            (String::new(), "neither"),
            ("hello".to_owned(), "neither"),
            (line[..40].to_owned(), "cut off"),
            (format!("{JOB_TOKEN}{}:00", "x".repeat(64)), "hexadecimal"),
            (flipped, "a digit is wrong"),
            (without_authority, "1 certificates"),
            (reader.replace(BEARER, &format!("{BEARER}zz")), "bearer"),
        ] {
            let error = Token::parse(&text).expect_err("damaged");
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn unreadable_files_are_refused_with_a_next_step() {
        let error = Token::read(Path::new("/nonexistent/job.token")).expect_err("no such file").to_string();
        assert!(error.contains("/nonexistent/job.token") && error.contains("slackwater token create"), "{error}");
        let error = Token::read(Path::new("/proc/self/exe")).expect_err("a program").to_string();
        assert!(error.contains("is not a token file"), "{error}");
    }
}
