//! Certificate files, sound and not, and what happens when they change.

use super::*;
use crate::authority::{Authority, Lifetime};
use crate::token::pem;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

const JOB: &str = "clicks";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A folder with the files of one process, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("slackwater-certificates-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn files(&self) -> CertificateFiles {
        let [certificate, key, authorities] = ["cert.pem", "key.pem", "ca.pem"].map(|name| self.0.join(name));
        CertificateFiles { certificate, key, authorities }
    }

    /// Writes a file as an operator replaces one: as another, renamed.
    fn write(&self, name: &str, text: &str) {
        let new = self.0.join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("owned");
        std::fs::rename(&new, self.0.join(name)).expect("renamed");
    }

    /// Writes the certificate and the key.
    fn install(&self, signed: &SignedKey) {
        self.write("cert.pem", &certificate_pem(signed.certificate()));
        self.write("key.pem", &key_pem(signed));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn certificate_pem(certificate: &CertificateDer<'_>) -> String {
    pem("CERTIFICATE", certificate)
}

fn key_pem(signed: &SignedKey) -> String {
    pem("PRIVATE KEY", signed.key.secret_der())
}

fn authority(number: u8) -> Authority {
    Authority::new(JOB, &[number; 32]).expect("an authority")
}

fn lifetime(ago: Duration) -> Lifetime {
    let now = Duration::from_secs(UnixTime::now().as_secs());
    Lifetime { now: UnixTime::since_unix_epoch(now - ago), length: DAY }
}

fn sign(authority: &Authority, role: Role) -> SignedKey {
    authority.sign(role, "host-1", lifetime(Duration::ZERO)).expect("signed")
}

/// A worker's folder with sound files.
fn sound() -> Folder {
    let folder = Folder::new();
    folder.install(&sign(&authority(1), Role::Worker));
    folder.write("ca.pem", &certificate_pem(authority(1).certificate()));
    folder
}

/// A certificate with these SANs, signed by an authority of its own, which is written too.
fn with_names(folder: &Folder, names: &[&str]) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    folder.write("ca.pem", &params.self_signed(&key).expect("signed").pem());
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.iter().map(|name| SanType::URI((*name).try_into().expect("a text"))).collect();
    folder.write("cert.pem", &params.signed_by(&own, &issuer).expect("signed").pem());
    folder.write("key.pem", &own.serialize_pem());
}

#[test]
fn files_that_cannot_be_used_are_refused_with_a_next_step() {
    type Spoil = fn(&Folder);
    let cases: [(&str, Spoil, &[&str]); 14] = [
        (
            "no certificate",
            |f| std::fs::remove_file(f.0.join("cert.pem")).expect("removed"),
            &["cert.pem", "--tls-cert"],
        ),
        ("no key", |f| std::fs::remove_file(f.0.join("key.pem")).expect("removed"), &["key.pem", "--tls-key"]),
        ("no authority", |f| std::fs::remove_file(f.0.join("ca.pem")).expect("removed"), &["ca.pem", "--tls-ca"]),
        ("malformed certificate", |f| f.write("cert.pem", "hello"), &["cert.pem", "no certificate in PEM form"]),
        ("damaged certificate", |f| f.write("cert.pem", &pem("CERTIFICATE", b"hello")), &["cert.pem", "malformed"]),
        ("malformed key", |f| f.write("key.pem", "hello"), &["key.pem", "no private key", "--tls-key"]),
        ("malformed authority", |f| f.write("ca.pem", &pem("CERTIFICATE", b"hello")), &["ca.pem", "malformed"]),
        (
            "another key",
            |f| f.write("key.pem", &key_pem(&sign(&authority(1), Role::Worker))),
            &["key.pem", "does not belong to the certificate", "--tls-key"],
        ),
        (
            "another authority",
            |f| f.write("ca.pem", &certificate_pem(authority(2).certificate())),
            &["cert.pem", "no authority in", "ca.pem", "--tls-ca"],
        ),
        (
            "expired",
            |f| f.install(&authority(1).sign(Role::Worker, "host-1", lifetime(3 * DAY)).expect("signed")),
            &["cert.pem", "has expired; renew it"],
        ),
        (
            "another role",
            |f| f.install(&sign(&authority(1), Role::Server)),
            &["certificate of a server", "this process is a worker", "{role}"],
        ),
        ("no name", |f| with_names(f, &[]), &["exactly one URI", "slackwater://JOB/worker/NAME"]),
        (
            "two names",
            |f| with_names(f, &["slackwater://a/worker/b", "slackwater://a/worker/c"]),
            &["exactly one URI", "slackwater://JOB/worker/NAME"],
        ),
        (
            "a key for everybody",
            |f| std::fs::set_permissions(f.0.join("key.pem"), Permissions::from_mode(0o644)).expect("changed"),
            &["key.pem", "mode 0644", "chmod 600"],
        ),
    ];
    assert!(Credentials::of_files(&sound().files(), Role::Worker).is_ok());
    for (what, spoil, words) in cases {
        let folder = sound();
        spoil(&folder);
        let refused = Credentials::of_files(&folder.files(), Role::Worker).err();
        let error = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(words.iter().all(|words| error.contains(words)), "{what}: '{error}' should say {words:?}");
    }
}

#[test]
fn changed_files_are_used_after_a_second_and_spoilt_ones_never() {
    let folder = sound();
    let begin = Instant::now();
    let files = WatchedFiles::open(folder.files(), Role::Worker, begin).expect("sound files");
    let first = files.current(begin).own.clone();
    folder.install(&sign(&authority(1), Role::Worker));
    let at = |millis: u64| files.current(begin + Duration::from_millis(millis)).own.clone();
    assert_eq!(at(999), first, "the files are not looked at yet");
    let second = at(1000);
    assert_ne!(second.key, first.key);
    assert_eq!(second.name, first.name);
    // Each change that cannot be used leaves the last certificate that could.
    folder.write("cert.pem", "hello");
    assert_eq!(at(2000), second, "a malformed certificate");
    folder.install(&authority(1).sign(Role::Worker, "host-2", lifetime(Duration::ZERO)).expect("signed"));
    assert_eq!(at(3000), second, "a certificate of another name");
    folder.install(&authority(1).sign(Role::Worker, "host-1", lifetime(3 * DAY)).expect("signed"));
    assert_eq!(at(4000), second, "an expired certificate");
    folder.install(&sign(&authority(2), Role::Worker));
    assert_eq!(at(5000), second, "a certificate of an unknown authority");
    let both = [1, 2].map(|number| certificate_pem(authority(number).certificate())).concat();
    folder.write("ca.pem", &both);
    let third = at(6000);
    assert_ne!(third.key, second.key, "both authorities are known now");
    assert_eq!(third.name, first.name);
}

#[test]
fn a_path_with_a_role_has_a_certificate_for_each_role() {
    let folder = Folder::new();
    folder.write("ca.pem", &certificate_pem(authority(1).certificate()));
    let path = |name: &str| folder.0.join(name);
    let files =
        CertificateFiles { certificate: path("{role}.pem"), key: path("{role}.key"), authorities: path("ca.pem") };
    for role in Role::ALL {
        let signed = sign(&authority(1), role);
        folder.write(&format!("{role}.pem"), &certificate_pem(signed.certificate()));
        folder.write(&format!("{role}.key"), &key_pem(&signed));
        let credentials = Credentials::of_files(&files, role).expect("sound files");
        assert_eq!((credentials.name().role(), credentials.name().job()), (role, JOB));
        let peer = credentials.own();
        assert_eq!(credentials.binding_of(&peer), types::Binding::Certificate(peer.name.clone()));
    }
}
