//! Has cargo-deny check the dependencies, and installs it where that is possible.
//!
//! Without it, or without the database of advisories, a line that begins with SKIPPED says what is
//! not checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Failure, cargo, succeed};

/// The release that is installed where there is none.
const VERSION: &str = "0.20.2";
/// Where it is installed.
const TOOLS: &str = "target/tools";
/// Building it takes minutes on a small machine; fetching the database of advisories takes seconds.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);
const FETCH_LIMIT: Duration = Duration::from_secs(2 * 60);
/// How often a program is checked for its end.
const LOOK: Duration = Duration::from_millis(100);

/// Checks licences, duplicates and sources, and advisories if their database can be had.
pub fn run(root: &Path) -> Result<(), Failure> {
    let Some(program) = program(root) else {
        println!("SKIPPED: cargo-deny is not installed and cannot be: advisories are not checked");
        return Ok(());
    };
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(root);
        command
    };
    succeed(deny(&["--all-features", "check", "bans", "licenses", "sources"]))?;
    if !ends_well(deny(&["fetch", "db"]), FETCH_LIMIT) {
        println!("SKIPPED: the database of advisories cannot be fetched: advisories are not checked");
        return Ok(());
    }
    succeed(deny(&["--all-features", "check", "--disable-fetch", "advisories"]))
}

/// The installed cargo-deny, or the one that this installs. None if it cannot be installed.
fn program(root: &Path) -> Option<PathBuf> {
    let on_path = PathBuf::from("cargo-deny");
    let own = root.join(TOOLS).join("bin/cargo-deny");
    let is_there = |program: &PathBuf| {
        let mut asks = Command::new(program);
        asks.arg("--version").stdout(Stdio::null());
        ends_well(asks, FETCH_LIMIT)
    };
    let known = [on_path, own.clone()].into_iter().find(is_there);
    known.or_else(|| {
        println!("cargo-deny is not installed; installing {VERSION} under {TOOLS}, which takes minutes");
        let mut install = cargo(root);
        install.args(["install", "cargo-deny", "--locked", "--version", VERSION, "--root", TOOLS]);
        ends_well(install, INSTALL_LIMIT).then_some(own)
    })
}

/// Runs a command for at most `limit`. Returns whether it succeeded.
fn ends_well(mut command: Command, limit: Duration) -> bool {
    let Ok(mut child) = command.stdin(Stdio::null()).spawn() else { return false };
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if begin.elapsed() < limit => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => {
                child.kill().ok();
                child.wait().ok();
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_fails_if_it_cannot_start_fails_or_takes_too_long() {
        let run = |program: &str, arguments: &[&str], limit: Duration| {
            let mut command = Command::new(program);
            command.args(arguments);
            ends_well(command, limit)
        };
        assert!(run("true", &[], INSTALL_LIMIT));
        assert!(!run("false", &[], INSTALL_LIMIT));
        assert!(!run("no-such-program", &[], INSTALL_LIMIT));
        assert!(!run("sleep", &["600"], Duration::ZERO));
    }
}
