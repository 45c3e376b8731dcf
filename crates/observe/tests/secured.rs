//! Metrics of a secured run: who reads them, on loopback and over TLS. With the real `curl` where
//! there is one; without it, that is said.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use identity::{HttpReaders, JobToken, Token};
use observe::{Exporter, ExporterSettings, Metrics};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn serve(token: &JobToken, address: &str, hosts: &[&str]) -> Exporter {
    let readers = HttpReaders::of_token(&Token::Job(token.clone())).unwrap();
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    Exporter::start(address, Metrics::new(), ExporterSettings { readers, hosts, ..ExporterSettings::default() })
        .unwrap()
}

fn ask(exporter: &Exporter, headers: &str) -> String {
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_on_loopback_need_the_bearer_and_a_known_host() {
    let token = JobToken::create().unwrap();
    let bearer = token.http_bearer().text();
    let other = JobToken::create().unwrap().http_bearer().text();
    let exporter = serve(&token, "127.0.0.1:0", &["node7.example.org"]);
    assert!(exporter.url().starts_with("http://127.0.0.1:"), "{}", exporter.url());
    for (headers, status, words) in [
        (format!("Host: localhost\r\nAuthorization: Bearer {bearer}\r\n"), "200", "# EOF"),
        (format!("Host: node7.example.org:9100\r\nAuthorization: bearer {bearer}\r\n"), "200", "# EOF"),
        ("Host: localhost\r\n".to_owned(), "401", "slackwater token http-bearer --token-file"),
        (format!("Host: localhost\r\nAuthorization: Basic {bearer}\r\n"), "401", "Bearer BEARER"),
        (format!("Host: localhost\r\nAuthorization: Bearer {other}\r\n"), "403", "not of this job"),
        ("Host: localhost\r\nAuthorization: Bearer \r\n".to_owned(), "401", "Bearer"),
        (format!("Host: evil.example\r\nAuthorization: Bearer {bearer}\r\n"), "421", "--metrics-host NAME"),
    ] {
        let answer = ask(&exporter, &headers);
        let is_right = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(words);
        assert!(is_right, "{headers}: {answer}");
        assert_eq!(answer.contains("WWW-Authenticate: Bearer"), status == "401", "{answer}");
    }
    // Who may not read does not learn which pages there are.
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.write_all(b"GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[test]
fn metrics_beyond_loopback_are_served_over_tls_only() {
    let exporter = serve(&JobToken::create().unwrap(), "0.0.0.0:0", &[]);
    assert!(exporter.url().starts_with("https://"), "{}", exporter.url());
    let answer = ask(&exporter, "Host: localhost\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("slackwater token ca"), "{answer}");
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// What `curl` prints of the metrics at this URL, or its error. `None` without a `curl`.
fn curl(url: &str, ca: &Path, more: &[&str]) -> Option<Result<String, String>> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "20", "--cacert"]).arg(ca);
    match command.args(more).arg(url).output() {
        Ok(output) if output.status.success() => Some(Ok(String::from_utf8(output.stdout).unwrap())),
        Ok(output) => Some(Err(String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) => {
            let notice = format!("\nSKIPPED: `curl` cannot be run ({error}): HTTPS was not tried with it\n");
            std::io::stderr().write_all(notice.as_bytes()).ok();
            None
        }
    }
}

#[test]
fn curl_trusts_the_certificate_of_the_job_and_no_other() {
    let token = JobToken::create().unwrap();
    let folder = Folder::new("curl");
    let ca = folder.file("ca.pem", &Token::Job(token.clone()).authority_pem().unwrap());
    let other = Token::Job(JobToken::create().unwrap()).authority_pem().unwrap();
    let other = folder.file("other.pem", &other);
    let exporter = serve(&token, "0.0.0.0:0", &["node7.example.org"]);
    let port = exporter.address().port();
    let header = format!("Authorization: Bearer {}", token.http_bearer().text());
    let resolve = |name: &str| format!("{name}:{port}:127.0.0.1");
    for host in ["127.0.0.1", "localhost", "node7.example.org"] {
        let resolved = resolve(host);
        let answer = curl(&format!("https://{host}:{port}/metrics"), &ca, &["-H", &header, "--resolve", &resolved]);
        let Some(answer) = answer else { return };
        assert!(answer.as_ref().is_ok_and(|text| text.contains("# EOF")), "{host}: {answer:?}");
    }
    let url = format!("https://127.0.0.1:{port}/metrics");
    let answer = curl(&url, &ca, &[]).unwrap().unwrap();
    assert!(answer.contains("need the header"), "{answer}");
    let error = curl(&url, &other, &["-H", &header]).unwrap().unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    let resolved = resolve("evil.example");
    let error = curl(&format!("https://evil.example:{port}/metrics"), &ca, &["--resolve", &resolved]).unwrap();
    assert!(error.as_ref().is_err_and(|error| error.contains("evil.example")), "{error:?}");
}
