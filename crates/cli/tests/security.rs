//! Tokens with real processes: a run of members works, and strangers are refused with a next step.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{Process, fails, free_address, run, run_json, start, until};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const RUN: [&str; 4] = ["--coordinate", "--servers=1", "--workers=1", "--join-limit=100"];
const TRAINING: [&str; 6] = ["--", "demo", "--rows=200", "--clocks=5", "--base-ms=1", "--out=/dev/null"];

/// A folder of its own for token files, removed at the end.
struct Tokens(PathBuf);

impl Tokens {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("slackwater-tokens-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Makes a token as a user does: standard output goes into a file.
    fn create(&self, name: &str, options: &[&str]) -> String {
        self.print(name, "create", options, 0o600)
    }

    /// Runs `token WHAT` with standard output into a file, which must have this mode then.
    fn print(&self, name: &str, what: &str, options: &[&str], mode: u32) -> String {
        let path = self.0.join(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).unwrap();
        let arguments = [&["token", what], options].concat();
        let status = Command::new(process::PROGRAM).args(arguments).stdout(file).stdin(Stdio::null()).status().unwrap();
        assert!(status.success(), "{options:?}");
        let found = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "the mode of {name}");
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn server(listen: &str, more: &[&str]) -> Process {
    let listen = format!("--listen={listen}");
    let mut server = start("server", &[&["server", &listen], &RUN[..], more].concat());
    server.hear("its address", |log| log.contains("the coordinator listens").then_some(()));
    server
}

#[test]
fn members_train_and_readers_look_over_tcp_and_through_shared_memory() {
    let tokens = Tokens::new("members");
    let job = tokens.create("job", &[]);
    let reader = tokens.create("reader", &["--role=reader", "--ttl=8h", "--token-file", &job]);
    for same_host in ["--same-host=tcp", "--same-host=shared-memory"] {
        let address = free_address();
        let coordinator = format!("--coordinator={address}");
        let mut server = server(&address, &["--token-file", &job, same_host]);
        for token in [&job, &reader] {
            let status = run(&["status", &coordinator, "--token-file", token]);
            assert!(status.contains("server 0"), "{status}");
        }
        let worker = ["worker", &coordinator, "--join-limit=100", "--token-file"];
        fails(&[&worker[..], &[&reader], &TRAINING[..]].concat(), "the token is a reader's");
        let mut worker = start("worker", &[&worker[..], &[&job, same_host], &TRAINING[..]].concat());
        assert!(worker.end(), "{}", worker.stderr());
        assert!(server.end(), "{}", server.stderr());
        assert!(!server.stderr().contains("refused a connection"), "{}", server.stderr());
    }
}

#[test]
fn strangers_are_refused_and_told_why() {
    let tokens = Tokens::new("strangers");
    let job = tokens.create("job", &[]);
    let other = tokens.create("other", &[]);
    let expired = tokens.create("expired", &["--role=reader", "--ttl=1s", "--token-file", &job]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let address = free_address();
    let coordinator = format!("--coordinator={address}");
    let mut secured = server(&address, &["--token-file", &job]);
    let status = ["status", &coordinator, "--limit=30"];
    for (access, words) in [
        (&["--token-file", &other][..], "of another job"),
        (&["--token-file", &expired], "has expired"),
        (&["--insecure"], "the peer speaks TLS"),
        (&["--token-file", "/nonexistent"], "slackwater token create"),
    ] {
        fails(&[&status[..], access].concat(), words);
    }
    secured.hear("a refusal", |log| log.contains("refused a connection").then_some(()));
    assert!(run(&[&status[..], &["--token-file", &job]].concat()).contains("server 0"), "the run still answers");
    secured.kill();

    let address = free_address();
    let coordinator = format!("--coordinator={address}");
    let mut insecure = server(&address, &["--insecure"]);
    let status = ["status", &coordinator, "--limit=30"];
    fails(&[&status[..], &["--token-file", &job]].concat(), "does not speak TLS");
    assert!(run(&[&status[..], &["--insecure"]].concat()).contains("server 0"));
    insecure.kill();
}

#[test]
fn node_without_a_token_refuses_to_start_and_insecure_nodes_say_so() {
    let address = free_address();
    let coordinator = format!("--coordinator={address}");
    let listen = format!("--listen={address}");
    let coordinates = [&["server", &listen], &RUN[..]].concat();
    let works = [&["worker", &coordinator], &TRAINING[..]].concat();
    let commands = [
        (&coordinates[..], "this coordinator has no token"),
        (&["server", &coordinator], "this server has no token"),
        (&["coordinator", &listen, "--servers=1", "--workers=1"], "this coordinator has no token"),
        (&works, "this worker has no token"),
        (&["status", &coordinator], "this reader has no token"),
        (&["tail", "weights", &coordinator], "this reader has no token"),
    ];
    for (arguments, words) in commands {
        let mut command = Command::new(process::PROGRAM);
        command.args(arguments).env_remove("SLACKWATER_TOKEN_FILE").env("SLACKWATER_INSECURE", "0");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        for words in [words, "slackwater token create > job.token", "--insecure"] {
            assert!(said.contains(words), "{arguments:?} should say '{words}': {said}");
        }
        assert!(!said.contains("the coordinator listens"), "{arguments:?}: {said}");
    }
    const INSECURE: &str = "this process is insecure";
    let tokens = Tokens::new("says");
    let job = tokens.create("job", &[]);
    for (access, is_insecure) in [(&["--insecure"][..], true), (&["--token-file", &job], false)] {
        let address = free_address();
        let mut server = server(&address, &[access, &["--threads=1"]].concat());
        let coordinator = format!("--coordinator={address}");
        let status = [&["status", &coordinator], access].concat();
        // Both of its nodes have begun: the server has joined.
        until("server 0", || run_json(&status)["members"].as_array().unwrap().len() == 1);
        assert_eq!(server.stderr().matches(INSECURE).count(), usize::from(is_insecure), "{}", server.stderr());
        assert_eq!(run(&status).contains("this run is insecure"), is_insecure);
        assert_eq!(run_json(&status)["insecure"], is_insecure);
        server.kill();
    }
}

#[test]
fn launch_makes_a_token_for_its_run_and_removes_it() {
    let tokens = Tokens::new("launch");
    let folder = tokens.0.to_str().unwrap().to_owned();
    let arguments = [&["launch", "--servers=1", "--workers=2"], &TRAINING[..]].concat();
    let launch = launch::Start::program("launch", process::PROGRAM).env("TMPDIR", &folder);
    let mut launch = process::start_as(launch, &arguments);
    assert!(launch.end(), "{}", launch.stderr());
    assert!(!launch.stderr().contains("is insecure"), "{}", launch.stderr());
    let left: Vec<_> = std::fs::read_dir(&tokens.0).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn metrics_of_a_secured_server_are_read_with_the_bearer_and_the_jobs_certificate() {
    let tokens = Tokens::new("metrics");
    let job = tokens.create("job", &[]);
    let reader = tokens.create("reader", &["--role=reader", "--ttl=8h", "--token-file", &job]);
    let node = tokens.create("node", &["--role=server", "--ttl=8h", "--token-file", &job]);
    let bearer = tokens.print("bearer", "http-bearer", &["--token-file", &reader], 0o600);
    let ca = tokens.print("ca.pem", "ca", &["--token-file", &reader], 0o644);
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    assert_eq!(run(&["token", "http-bearer", "--token-file", &job]), read(&bearer));
    assert_eq!(run(&["token", "ca", "--token-file", &job]), read(&ca));
    fails(&["token", "http-bearer", "--token-file", &node], "which has no bearer");
    fails(
        &["server", "--coordinator=127.0.0.1:1", "--metrics=0.0.0.0:0", "--token-file", &node],
        "serve at 127.0.0.1, or give this process the job token",
    );

    let mut server =
        server(&free_address(), &["--token-file", &job, "--metrics=0.0.0.0:0", "--metrics-host=a.example"]);
    let port = server.hear("where its metrics are", |log| {
        Some(log.split_once("metrics are at https://0.0.0.0:")?.1.split_once("/metrics")?.0.to_owned())
    });
    let bearer = format!("Authorization: Bearer {}", read(&bearer).trim());
    for (host, header, words) in [
        ("127.0.0.1", &bearer[..], "# EOF"),
        ("a.example", &bearer, "# EOF"),
        ("127.0.0.1", "X: y", "slackwater token http-bearer --token-file"),
    ] {
        let resolve = format!("{host}:{port}:127.0.0.1");
        let curl = Command::new("curl")
            .args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"])
            .args(["--cacert", &ca, "--resolve", &resolve, "-H", header])
            .arg(format!("https://{host}:{port}/metrics"))
            .output();
        match curl {
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                assert!(String::from_utf8_lossy(&said).contains(words), "{}", String::from_utf8_lossy(&said));
            }
            Err(error) => {
                let notice = format!("\nSKIPPED: `curl` cannot be run ({error}): HTTPS was not tried with it\n");
                std::io::stderr().write_all(notice.as_bytes()).ok();
            }
        }
    }
    server.kill();
}

/// The modes of everything in a folder, by path.
fn modes(folder: &std::path::Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        found.push((path.clone(), metadata.permissions().mode() & 0o777));
        if metadata.is_dir() {
            modes(&path, found);
        }
    }
}

#[test]
fn servers_keep_checkpoints_only_where_their_own_settings_allow_and_for_their_user() {
    let tokens = Tokens::new("locations");
    let job = tokens.create("job", &[]);
    let runs = tokens.0.join("runs");
    let place = runs.join("clicks");
    let elsewhere = tokens.0.join("elsewhere");
    let secured = ["--token-file", &job, "--join-limit=100"];
    let run = |allowed: &std::path::Path| {
        let address = free_address();
        let coordinator = format!("--coordinator={address}");
        let checkpoint = format!("--checkpoint={}", place.display());
        let allowed = format!("--checkpoint-location={}", allowed.display());
        let listen = format!("--listen={address}");
        let size = ["--servers=1", "--workers=1", &checkpoint];
        let mut leader = start("coordinator", &[&["coordinator", &listen], &size[..], &secured].concat());
        leader.hear("its address", |log| log.contains("the coordinator listens").then_some(()));
        let server = start("server", &[&["server", &coordinator, &allowed], &secured[..]].concat());
        let worker = start("worker", &[&["worker", &coordinator], &secured[..], &TRAINING].concat());
        [leader, server, worker]
    };
    let [mut leader, mut server, mut worker] = run(&elsewhere);
    let option = format!("--checkpoint-location {}", place.display());
    server.fails_saying(&option);
    // The coordinator names the cause when the run begins, not at the first checkpoint.
    leader.fails_saying("server 0");
    assert!(leader.stderr().contains(&option), "{}", leader.stderr());
    assert!(!worker.end(), "{}", worker.stderr());

    for mut process in run(&runs) {
        assert!(process.end(), "{}: {}", process.name, process.stderr());
    }
    let mut found = Vec::new();
    modes(&runs, &mut found);
    assert!(found.iter().any(|(path, _)| path.ends_with("manifest.json")), "{found:?}");
    for (path, mode) in found {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}", path.display());
    }
    assert!(!elsewhere.exists());
}
