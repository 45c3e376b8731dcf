//! Certificates of the operator's own: three PEM files, read again when they change.
//!
//! A process looks at its files when it makes or accepts a connection, at most once in
//! [`LOOK_EVERY`]. If the files have changed and are sound, new connections use the new
//! certificate; connections that exist go on. If they are not sound, the process keeps the
//! certificate that it has, and logs one warning for each change.

use crate::PeerIdentity;
use crate::authority::SignedKey;
use crate::credentials::{Credentials, TlsSettings};
use crate::private_file::{self, PrivateFileError};
use crate::verify::{End, JobVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{CertificateError, Error, InconsistentKeys};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use types::{CertificateName, Role};

/// How long a process uses its certificate before it looks whether the files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What stands for the role in a path.
const ROLE: &str = "{role}";
/// Largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The files of a process's own certificate. The text `{role}` in a path stands for the role:
/// worker, server, coordinator or reader. A process that is several nodes has a certificate for
/// each.
///
/// ```
/// use identity::CertificateFiles;
///
/// let files = CertificateFiles {
///     certificate: "certs/{role}.pem".into(),
///     key: "certs/{role}.key".into(),
///     authorities: "certs/ca.pem".into(),
/// };
/// assert_eq!(files.of(types::Role::Server).key, std::path::Path::new("certs/server.key"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by intermediate ones if there are any. It has exactly one URI as
    /// its subject alternative name (SAN): `slackwater://job/role/name`.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that peers' certificates must come from: while the
    /// authority is replaced, the old one and the new one.
    pub authorities: PathBuf,
}

/// Why certificate files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}; give its path by {option}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
        /// The option that names the file.
        option: &'static str,
    },
    /// Users other than this process's can read the key.
    #[error(transparent)]
    NotPrivate(#[from] PrivateFileError),
    /// The content cannot be used.
    #[error("cannot use {}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl CertificateFiles {
    /// The files for one role.
    #[must_use]
    pub fn of(&self, role: Role) -> Self {
        let of_role = |path: &Path| match path.to_str() {
            Some(text) => PathBuf::from(text.replace(ROLE, &role.to_string())),
            None => path.to_owned(),
        };
        Self {
            certificate: of_role(&self.certificate),
            key: of_role(&self.key),
            authorities: of_role(&self.authorities),
        }
    }

    fn each(&self) -> [&Path; 3] {
        [&self.certificate, &self.key, &self.authorities]
    }

    /// Reads and checks the files, at the time `now`.
    fn read(&self, role: Role, now: UnixTime) -> Result<TlsSettings, CertificateFileError> {
        let chain = certificates(&self.certificate, "--tls-cert")?;
        let authorities = certificates(&self.authorities, "--tls-ca")?;
        let text = content(&self.key, "--tls-key")?;
        private_file::check(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|_| unusable(&self.key, "it holds no private key in PEM form; give one by --tls-key"))?;
        let own = PeerIdentity::of(&chain[0]).map_err(|why| {
            let form = format!("slackwater://JOB/{role}/NAME");
            unusable(&self.certificate, &format!("{why}; sign one with the single URI SAN {form}"))
        })?;
        if own.role() != role {
            let why = format!(
                "it is the certificate of a {} ({}), and this process is a {role}; give a {role}'s. For a process that is \
                 both, write {ROLE} in the paths",
                own.role(),
                own.name
            );
            return Err(unusable(&self.certificate, &why));
        }
        let verifier =
            JobVerifier::new(own.name.job(), &authorities).map_err(|why| unusable(&self.authorities, &why))?;
        // Peers check the same. A reader is never called.
        let ends = [End::Caller, End::Called];
        let ends = ends.into_iter().filter(|end| *end == End::Caller || role != Role::Reader);
        for end in ends {
            let verified = verifier.verify(&chain[0], &chain[1..], now, end);
            verified.map_err(|error| unusable(&self.certificate, &self.in_words(&error)))?;
        }
        let signed = SignedKey { chain, key };
        TlsSettings::new(own, signed, verifier).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let certificate = self.certificate.display();
                unusable(
                    &self.key,
                    &format!("the key does not belong to the certificate in {certificate}; give its own by --tls-key"),
                )
            }
            error => unusable(&self.key, &format!("{error}; give an Ed25519, ECDSA or RSA key by --tls-key")),
        })
    }

    /// Why peers would refuse the certificate.
    fn in_words(&self, error: &Error) -> String {
        match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                let authorities = self.authorities.display();
                format!(
                    "no authority in {authorities} has signed it; give the certificate of its authority by --tls-ca"
                )
            }
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                "the certificate has expired; renew it, and compare this host's clock".to_owned()
            }
            Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                "the certificate is not valid yet; compare this host's clock".to_owned()
            }
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                format!("{other}; sign one that is for client and for server authentication (extended key usage)")
            }
            error => format!("{error}; sign another one"),
        }
    }
}

fn unusable(path: &Path, why: &str) -> CertificateFileError {
    CertificateFileError::Unusable { path: path.to_owned(), why: why.to_owned() }
}

fn content(path: &Path, option: &'static str) -> Result<zeroize::Zeroizing<Vec<u8>>, CertificateFileError> {
    let unreadable = |error| CertificateFileError::Unreadable { path: path.to_owned(), error, option };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MOST_BYTES {
        return Err(unusable(
            path,
            &format!("it has {bytes} bytes, and no PEM file has; give another one by {option}"),
        ));
    }
    std::fs::read(path).map(Into::into).map_err(unreadable)
}

/// The certificates of a PEM file: at least one.
fn certificates(path: &Path, option: &'static str) -> Result<Vec<CertificateDer<'static>>, CertificateFileError> {
    let text = content(path, option)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found =
        found.map_err(|error| unusable(path, &format!("a certificate in it is damaged ({error:?}); copy it again")))?;
    if found.is_empty() {
        return Err(unusable(path, &format!("it holds no certificate in PEM form; give one by {option}")));
    }
    Ok(found)
}

/// What tells one version of a file from another, without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let of = |found: Metadata| Self {
            inode: found.ino(),
            bytes: found.len(),
            changed: (found.ctime(), found.ctime_nsec()),
        };
        std::fs::metadata(path).ok().map(of)
    }
}

type Stamps = [Option<Stamp>; 3];

/// The certificate of a process, and when its files were last looked at.
struct Loaded {
    settings: Arc<TlsSettings>,
    stamps: Stamps,
    looked: Instant,
}

/// Certificate files that are read again when they change.
pub(crate) struct WatchedFiles {
    files: CertificateFiles,
    name: CertificateName,
    loaded: Mutex<Loaded>,
}

impl WatchedFiles {
    fn open(files: CertificateFiles, role: Role, now: Instant) -> Result<Self, CertificateFileError> {
        let stamps = files.each().map(Stamp::of);
        let settings = files.read(role, UnixTime::now())?;
        let name = settings.own.name.clone();
        Ok(Self { files, name, loaded: Mutex::new(Loaded { settings: Arc::new(settings), stamps, looked: now }) })
    }

    /// The settings of a new connection.
    pub fn current(&self, now: Instant) -> Arc<TlsSettings> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(loaded.looked) < LOOK_EVERY {
            return loaded.settings.clone();
        }
        loaded.looked = now;
        let stamps = self.files.each().map(Stamp::of);
        if stamps != loaded.stamps {
            // Taken before the files are read: a change meanwhile is seen at the next look.
            loaded.stamps = stamps;
            match self.read_again() {
                Ok(settings) => {
                    tracing::info!(identity = %self.name, "read the changed certificate files; new connections use them");
                    loaded.settings = Arc::new(settings);
                }
                Err(error) => tracing::warn!(
                    identity = %self.name,
                    %error,
                    "the certificate files have changed and cannot be used; this process keeps the certificate that it has"
                ),
            }
        }
        loaded.settings.clone()
    }

    fn read_again(&self) -> Result<TlsSettings, CertificateFileError> {
        let settings = self.files.read(self.name.role(), UnixTime::now())?;
        if settings.own.name == self.name {
            return Ok(settings);
        }
        let why = format!(
            "the certificate is for {}, and this process is {}; sign one with that SAN, or start the process again",
            settings.own.name, self.name
        );
        Err(unusable(&self.files.certificate, &why))
    }
}

impl Credentials {
    /// Credentials from the operator's own certificate files, for a process in this role.
    pub fn of_files(files: &CertificateFiles, role: Role) -> Result<Self, CertificateFileError> {
        let watched = WatchedFiles::open(files.of(role), role, Instant::now())?;
        let name = watched.name.clone();
        Ok(Self::watching(name, watched))
    }
}

#[cfg(test)]
mod tests;
