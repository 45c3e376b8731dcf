//! Runs real etcd clusters of one or more members for tests: starts, pauses, kills and restarts
//! members, and removes their data at the end.
//!
//! The program is the `etcd` on the PATH. Without one, the tests download Debian's package
//! `etcd-server` once and unpack it in the build folder. They install nothing, but may update the
//! package lists. If that fails, too, tests that need etcd print a large notice and pass.

#![allow(dead_code, reason = "each test uses a part of it")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for etcd to answer.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for the download of a package of 8 MB.
const FETCH_LIMIT: Duration = Duration::from_secs(180);
/// Attempts to start etcd: a port that was free a moment ago may be taken.
const ATTEMPTS: usize = 5;

/// One member of an etcd cluster. Dropping it ends its process and removes its data.
pub struct Etcd {
    child: Child,
    member: Member,
}

/// How a member is started, the first time and again.
#[derive(Clone)]
struct Member {
    folder: PathBuf,
    name: String,
    client: u16,
    peer: u16,
    /// Names and addresses of all members of its cluster.
    cluster: String,
    flags: Vec<String>,
    /// Where it listens for clients with TLS, if it does.
    tls: Option<u16>,
}

/// The files by which a member speaks TLS with its clients, and asks them for certificates.
pub struct ServerFiles<'a> {
    pub ca: &'a Path,
    pub certificate: &'a Path,
    pub key: &'a Path,
}

impl Etcd {
    /// Starts a cluster of one member on free loopback ports. None if no etcd is available.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with more flags.
    pub fn start_with(flags: &[&str]) -> Option<Self> {
        Self::start_cluster(1, flags)?.pop()
    }

    /// Starts a cluster of one member that listens with TLS, too, and asks clients for certificates
    /// there. Tests set it up through the other port.
    pub fn start_secured(files: &ServerFiles<'_>, flags: &[&str]) -> Option<Self> {
        program()?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let secured = [
            file("trusted-ca-file", files.ca),
            file("cert-file", files.certificate),
            file("key-file", files.key),
            "--client-cert-auth".to_owned(),
        ];
        for _ in 0..ATTEMPTS {
            let flags: Vec<&str> = secured.iter().map(String::as_str).chain(flags.iter().copied()).collect();
            let mut member = Member::cluster(1, &flags).pop()?;
            member.tls = Some(net::free_address().expect("a free port").port());
            let mut etcd = Self { child: member.spawn(), member };
            if etcd.answers() {
                return Some(etcd);
            }
        }
        panic!("etcd was started {ATTEMPTS} times with TLS, and did not answer");
    }

    /// The address at which it listens for clients with TLS.
    pub fn tls_endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.member.tls.expect("it was started with TLS"))
    }

    /// Asks clients to log in from now on. The user `slackwater` with the password `pass:word` may
    /// use keys that begin with `/tests/` and `/jobs/`; the user `other` with the same password
    /// may use none.
    pub fn ask_for_login(&self) {
        let base64 = ["L3Rlc3RzLw==", "L3Rlc3RzMA==", "L2pvYnMv", "L2pvYnMw"];
        let grant = |from: &str, to: &str| {
            format!(r#"{{"name":"jobs","perm":{{"permType":"READWRITE","key":"{from}","range_end":"{to}"}}}}"#)
        };
        let user = |name: &str| format!(r#"{{"name":"{name}","password":"pass:word"}}"#);
        for (path, body) in [
            ("user/add", user("root")),
            ("role/add", r#"{"name":"root"}"#.to_owned()),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("role/add", r#"{"name":"jobs"}"#.to_owned()),
            ("role/grant", grant(base64[0], base64[1])),
            ("role/grant", grant(base64[2], base64[3])),
            ("user/add", user("slackwater")),
            ("user/grant", r#"{"user":"slackwater","role":"jobs"}"#.to_owned()),
            ("user/add", user("other")),
            ("enable", "{}".to_owned()),
        ] {
            let said = self.post(&format!("/v3/auth/{path}"), &body);
            assert!(said.contains("cluster_id"), "{path}: {said}");
        }
    }

    /// Starts a cluster of `count` members.
    pub fn start_cluster(count: usize, flags: &[&str]) -> Option<Vec<Self>> {
        program()?;
        for _ in 0..ATTEMPTS {
            let members = Member::cluster(count, flags);
            let mut cluster: Vec<Self> =
                members.into_iter().map(|member| Self { child: member.spawn(), member }).collect();
            if cluster.iter_mut().all(Self::answers) {
                return Some(cluster);
            }
        }
        panic!("etcd was started {ATTEMPTS} times, and did not answer");
    }

    /// The address at which it listens for clients.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.member.client)
    }

    /// Stops its process, with open connections, until [`go_on`](Self::go_on).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills its process.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Starts it again with its former data.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..ATTEMPTS {
            self.child = self.member.spawn();
            if self.answers() {
                return;
            }
            self.kill();
        }
        panic!("etcd did not come back on {}", self.endpoint());
    }

    /// Sends it a request without Slackwater's client, and returns the answer.
    pub fn post(&self, path: &str, body: &str) -> String {
        post(self.member.client, path, body).expect("etcd answers")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("etcd is running");
    }

    /// Waits until it answers. Returns false if its process has ended or the limit is over.
    fn answers(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < LIMIT && matches!(self.child.try_wait(), Ok(None)) {
            // Reading a key needs the whole cluster, so an answer shows that it has a leader.
            // One that asks for a login answers by that.
            if post(self.member.client, "/v3/kv/range", r#"{"key":"AA=="}"#)
                .is_ok_and(|said| said.contains("cluster_id") || said.contains("user name is empty"))
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.member.folder).ok();
    }
}

impl Member {
    fn cluster(count: usize, flags: &[&str]) -> Vec<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let ports: Vec<_> = (0..2 * count).map(|_| net::free_address().expect("a free port").port()).collect();
        let port = |index: usize| ports[index];
        let cluster: Vec<_> =
            (0..count).map(|index| format!("m{index}=http://127.0.0.1:{}", port(count + index))).collect();
        let member = |index| {
            let number = STARTED.fetch_add(1, Ordering::Relaxed);
            Self {
                folder: std::env::temp_dir().join(format!("slackwater-etcd-{}-{number}", std::process::id())),
                name: format!("m{index}"),
                client: port(index),
                peer: port(count + index),
                cluster: cluster.join(","),
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                tls: None,
            }
        };
        (0..count).map(member).collect()
    }

    fn spawn(&self) -> Child {
        let Self { folder, name, client, peer, cluster, flags, tls } = self;
        let tls = tls.map(|port| format!(",https://127.0.0.1:{port}")).unwrap_or_default();
        let client = format!("http://127.0.0.1:{client}{tls}");
        let peer = format!("http://127.0.0.1:{peer}");
        Command::new(program().expect("it was there"))
            .arg("--data-dir")
            .arg(folder)
            .args(["--name", name, "--initial-cluster", cluster])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            // With these times a cluster elects a leader in less than a second.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd can be run")
    }
}

fn post(port: u16, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// The etcd program. Looked for once.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| match on_path().map_or_else(fetched, Ok) {
        Ok(program) => Some(program),
        Err(reason) => {
            // Not by `eprintln!`: the test harness hides its output while a test passes.
            let rule = "=".repeat(100);
            let notice = format!("\n{rule}\nNO ETCD: TESTS THAT NEED IT ARE SKIPPED. {reason}\n{rule}\n");
            std::io::stderr().write_all(notice.as_bytes()).ok();
            None
        }
    });
    found.as_deref()
}

fn on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|file| file.is_file())
}

/// Debian's etcd, unpacked in the build folder.
fn fetched() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("etcd-server");
    let program = folder.join("usr/bin/etcd");
    if program.is_file() {
        return Ok(program);
    }
    // Unpacked aside and then renamed: another process may do the same.
    let aside = folder.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&aside).map_err(|error| format!("{}: {error}", aside.display()))?;
    let unpacked = download(&aside).and_then(|package| run("dpkg-deb", &["-x", &package, "."], &aside));
    if unpacked.is_ok() {
        std::fs::rename(&aside, &folder).ok();
    }
    std::fs::remove_dir_all(&aside).ok();
    unpacked
        .map_err(|reason| format!("Debian's etcd-server could not be fetched: {reason}. Put `etcd` on the PATH."))?;
    if program.is_file() { Ok(program) } else { Err(format!("there is no {}", program.display())) }
}

fn download(folder: &Path) -> Result<String, String> {
    let download = ["download", "etcd-server"];
    if run("apt-get", &download, folder).is_err() {
        // A fresh machine has no package lists; only root may fetch them.
        run("apt-get", &["update"], folder)?;
        run("apt-get", &download, folder)?;
    }
    let mut names = std::fs::read_dir(folder).map_err(|error| error.to_string())?.flatten();
    let package = names.find(|entry| entry.path().extension().is_some_and(|end| end == "deb"));
    package.map(|entry| entry.path().display().to_string()).ok_or_else(|| "apt-get left no package".to_owned())
}

/// Runs a command to its end, for at most [`FETCH_LIMIT`].
fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let line = format!("{program} {}", arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("`{line}`: {error}"))?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("`{line}` failed, {status}")),
            _ if begin.elapsed() > FETCH_LIMIT => {
                child.kill().ok();
                child.wait().ok();
                return Err(format!("`{line}` did not end within {} s", FETCH_LIMIT.as_secs()));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
