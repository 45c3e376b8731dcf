//! Certificates for tests: an authority, and what it signs, as files of a folder of their own.

#![allow(dead_code, reason = "each test uses a part of it")]

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An authority, its certificate in `ca.pem`. Dropping it removes the folder.
pub struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate and its key, as files.
pub struct SignedFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TestAuthority {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("slackwater-authority-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed");
        std::fs::write(folder.join("ca.pem"), issuer.pem()).expect("written");
        Self { issuer, folder }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Signs a certificate for these names, for both ends of a connection. It has no CommonName:
    /// etcd's gateway refuses clients that have one when it asks for a login.
    pub fn sign(&self, name: &str, names: &[&str]) -> SignedFiles {
        self.sign_as(name, names, DistinguishedName::new())
    }

    /// The same, with a CommonName.
    pub fn sign_with_common_name(&self, name: &str, names: &[&str]) -> SignedFiles {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        self.sign_as(name, names, subject)
    }

    fn sign_as(&self, name: &str, names: &[&str], subject: DistinguishedName) -> SignedFiles {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = subject;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let files = SignedFiles {
            certificate: self.folder.join(format!("{name}.pem")),
            key: self.folder.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).expect("written");
        std::fs::write(&files.key, key.serialize_pem()).expect("written");
        files
    }
}

impl Drop for TestAuthority {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
