//! Metrics of a run with certificates of the operator's: only a client certificate of a reader
//! opens them, and they are shown under the process's own certificate, also after it has changed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use identity::{CertificateFiles, Credentials, HttpReaders};
use observe::{Exporter, ExporterSettings, Metrics};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use types::Role;

const NAME: &str = "node7.example.org";
/// How often a reader tries until the process has looked at its files again.
const TRIES: u32 = 200;

/// An authority of the operator's.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes the files of a process in this role, which also has the host name.
    fn issue(&self, folder: &Folder, job: &str, role: Role) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = format!("slackwater://{job}/{role}/one");
        params.subject_alt_names =
            vec![SanType::URI(uri.try_into().unwrap()), SanType::DnsName(NAME.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        CertificateFiles {
            certificate: folder.write(&format!("{job}-{role}.pem"), &certificate.pem()),
            key: folder.write(&format!("{job}-{role}.key"), &key.serialize_pem()),
            authorities: folder.write("ca.pem", &self.pem),
        }
    }

    /// Settings of a client that knows the process by its host name, with the certificate of these
    /// files if there are any.
    fn web_client(&self, files: Option<&CertificateFiles>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let Some(files) = files else { return Arc::new(config.with_no_client_auth()) };
        let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        Arc::new(config.with_client_auth_cert(chain, key).unwrap())
    }
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-readers-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        let new = self.0.join("new");
        std::fs::remove_file(&new).ok();
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn serve(files: &CertificateFiles) -> Exporter {
    let readers = HttpReaders::of_certificates(Credentials::of_files(files, Role::Server).unwrap());
    let settings = ExporterSettings { readers, hosts: vec![NAME.to_owned()], ..ExporterSettings::default() };
    Exporter::start("127.0.0.1:0", Metrics::new(), settings).unwrap()
}

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The answer over TLS with this certificate, or why there is none.
fn ask(exporter: &Exporter, config: Arc<ClientConfig>, name: &str) -> std::io::Result<String> {
    let stream = TcpStream::connect(exporter.address())?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let connection = ClientConnection::new(config, ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(REQUEST)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn client(files: &CertificateFiles, role: Role) -> Arc<ClientConfig> {
    Credentials::of_files(files, role).unwrap().client()
}

#[test]
fn metrics_of_a_run_with_certificates_are_a_readers_only() {
    let folder = Folder::new("roles");
    let authority = Authority::new();
    let exporter = serve(&authority.issue(&folder, "clicks", Role::Server));
    assert!(exporter.url().starts_with("https://127.0.0.1:"), "on loopback, too: {}", exporter.url());
    for role in Role::ALL {
        let files = authority.issue(&folder, "clicks", role);
        let answer = ask(&exporter, client(&files, role), NAME).unwrap();
        let expected = if role == Role::Reader { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " };
        assert!(answer.starts_with(expected), "{role}: {answer}");
        assert_eq!(answer.contains("# EOF"), role == Role::Reader, "{role}: {answer}");
        assert_eq!(answer.contains("slackwater://JOB/reader/NAME"), role != Role::Reader, "{role}: {answer}");
    }
    // No handshake: another job's reader, another authority's, and a browser.
    let other_job = authority.issue(&folder, "views", Role::Reader);
    let strangers = Folder::new("strangers");
    let stranger = Authority::new().issue(&strangers, "clicks", Role::Reader);
    let own = authority.issue(&folder, "clicks", Role::Reader);
    assert!(
        ask(&exporter, authority.web_client(Some(&own)), NAME).unwrap().contains("# EOF"),
        "by host name, as Prometheus calls"
    );
    for (what, config) in [
        ("another job", authority.web_client(Some(&other_job))),
        ("another authority", authority.web_client(Some(&stranger))),
        ("no certificate", authority.web_client(None)),
    ] {
        assert!(ask(&exporter, config, NAME).is_err(), "{what} has an answer");
    }
    let mut plain = TcpStream::connect(exporter.address()).unwrap();
    plain.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("speaks HTTPS"), "{answer}");
}

#[test]
fn metrics_have_the_new_certificate_after_the_files_have_changed() {
    let folder = Folder::new("changed");
    let exporter = serve(&Authority::new().issue(&folder, "clicks", Role::Server));
    let new = Authority::new();
    new.issue(&folder, "clicks", Role::Server);
    let reader = new.issue(&folder, "clicks", Role::Reader);
    // The process looks at its files at most once a second.
    let read = (0..TRIES).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        ask(&exporter, client(&reader, Role::Reader), NAME).ok()
    });
    assert!(read.is_some_and(|answer| answer.contains("# EOF")), "the process has its old certificate");
}
