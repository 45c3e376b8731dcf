//! How this process gets access to etcd: the authority that it trusts, its client certificate, and
//! the user that it logs in as.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// The environment variable with user and password, `NAME:PASSWORD`.
pub const ETCD_USER_VARIABLE: &str = "SLACKWATER_ETCD_USER";
/// Largest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Files by which a coordinator gets access to etcd. Without any it speaks to an etcd that asks for
/// nothing.
///
/// ```
/// use node::registry::EtcdAccess;
///
/// let access = EtcdAccess { user_file: Some("/nonexistent".into()), ..EtcdAccess::default() };
/// let location: node::registry::EtcdLocation = "etcds://10.0.0.1/slackwater/clicks-17".parse()?;
/// let candidate = node::registry::Candidate::new("clicks-17", "10.0.0.5:7070");
/// let error = location.stand(candidate, &access).err().expect("no such file");
/// assert!(error.to_string().contains("/nonexistent"));
/// # Ok::<(), node::registry::EtcdLocationError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdAccess {
    /// Certificates (PEM) of the authorities that sign etcd's certificate. `etcds://` needs it.
    pub ca_file: Option<PathBuf>,
    /// This process's certificate (PEM), for an etcd that asks for one.
    pub certificate_file: Option<PathBuf>,
    /// The key (PEM) of the certificate.
    pub key_file: Option<PathBuf>,
    /// A file with one line, `NAME:PASSWORD`. Without it, the environment variable
    /// `SLACKWATER_ETCD_USER` may hold the same.
    pub user_file: Option<PathBuf>,
}

/// Why there is no access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdAccessError {
    /// A file cannot be used.
    #[error("cannot use {} for etcd: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, in words.
        reason: String,
    },
    /// Settings that do not fit together.
    #[error("{0}")]
    Settings(&'static str),
}

/// The user that a process logs in as.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EtcdUser {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({})", self.name)
    }
}

/// What the files hold.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadedAccess {
    /// `None` without TLS.
    pub tls: Option<TlsConfig>,
    pub user: Option<EtcdUser>,
}

impl EtcdAccess {
    /// Reads the files, for an etcd that speaks TLS or not.
    pub(super) fn load(&self, tls: bool) -> Result<LoadedAccess, EtcdAccessError> {
        let Self { ca_file, certificate_file, key_file, user_file } = self;
        let user = match user_file {
            Some(path) => Some(user(&read(path)?).ok_or_else(|| file(path, "it is not one line NAME:PASSWORD"))?),
            None => match std::env::var(ETCD_USER_VARIABLE) {
                Ok(line) => Some(user(&line).ok_or(EtcdAccessError::Settings(
                    "SLACKWATER_ETCD_USER is not NAME:PASSWORD: correct it, or give a file (--etcd-user-file)",
                ))?),
                Err(_) => None,
            },
        };
        if !tls {
            if ca_file.is_some() || certificate_file.is_some() || key_file.is_some() {
                let reason = "certificates are of use to an etcd with TLS only: write --registry etcds://…";
                return Err(EtcdAccessError::Settings(reason));
            }
            return Ok(LoadedAccess { tls: None, user });
        }
        let Some(ca_file) = ca_file else {
            let reason = "etcds:// needs the certificate of the authority that signed etcd's: give --etcd-cacert FILE";
            return Err(EtcdAccessError::Settings(reason));
        };
        let roots = certificates(ca_file)?;
        let own = match (certificate_file, key_file) {
            (Some(certificate_file), Some(key_file)) => {
                let text = read(key_file)?;
                let key = PrivateKey::from_pem(text.as_bytes());
                let key = key.map_err(|error| file(key_file, &format!("it holds no private key ({error})")))?;
                Some(ClientCert::new_with_certs(&certificates(certificate_file)?, key))
            }
            (None, None) => None,
            _ => {
                return Err(EtcdAccessError::Settings(
                    "a certificate and its key belong together: give both --etcd-cert and --etcd-key",
                ));
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(own)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        Ok(LoadedAccess { tls: Some(tls), user })
    }
}

fn file(path: &Path, reason: &str) -> EtcdAccessError {
    EtcdAccessError::File { path: path.to_owned(), reason: reason.to_owned() }
}

fn read(path: &Path) -> Result<String, EtcdAccessError> {
    let bytes = std::fs::metadata(path).map_err(|error| file(path, &error.to_string()))?.len();
    if bytes > MOST_BYTES {
        return Err(file(path, &format!("it has {bytes} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| file(path, &error.to_string()))
}

/// All certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, EtcdAccessError> {
    let text = read(path)?;
    let mut found = Vec::new();
    for item in parse_pem(text.as_bytes()) {
        // A file may hold the key, too.
        if let PemItem::Certificate(certificate) = item.map_err(|error| file(path, &error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(file(path, "it holds no certificate in PEM")) } else { Ok(found) }
}

/// Reads `NAME:PASSWORD`. A password may have colons.
fn user(text: &str) -> Option<EtcdUser> {
    let mut lines = text.lines();
    let (name, password) = lines.next()?.split_once(':')?;
    let is_one = lines.all(str::is_empty) && !name.is_empty() && !password.is_empty();
    is_one.then(|| EtcdUser { name: name.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_one_line_with_a_password() {
        for (text, name, password) in [("a:b", "a", "b"), ("a:b:c\n", "a", "b:c"), ("a: b \n\n", "a", " b ")] {
            let user = user(text).expect(text);
            assert_eq!((&user.name[..], &user.password[..]), (name, password));
            assert!(!format!("{user:?}").contains(&format!("{password})")), "the password is printed");
        }
        for text in ["", "a", "a:", ":b", "a:b\nc:d", "\na:b"] {
            assert_eq!(user(text), None, "{text:?}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_with_a_next_step() {
        let some = |path: &str| Some(PathBuf::from(path));
        let none = EtcdAccess::default;
        for (access, tls, words) in [
            (none(), true, "--etcd-cacert FILE"),
            (EtcdAccess { ca_file: some("/x"), ..none() }, false, "etcds://"),
            (EtcdAccess { key_file: some("/x"), ..none() }, false, "etcds://"),
            (EtcdAccess { ca_file: some("/nonexistent"), ..none() }, true, "/nonexistent"),
            (EtcdAccess { ca_file: some("/etc/hostname"), ..none() }, true, "no certificate in PEM"),
            (EtcdAccess { user_file: some("/etc/hostname"), ..none() }, false, "NAME:PASSWORD"),
        ] {
            let error = access.load(tls).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(none().load(false).is_ok_and(|loaded| loaded.tls.is_none()));
    }
}
