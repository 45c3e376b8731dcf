//! Runs a test again in a process and a Linux namespace of its own, where it may mount file systems
//! or has no special rights. The namespace leaves nothing behind.

use super::skipped;
use std::process::Command;

const INSIDE: &str = "SLACKWATER_TEST_INSIDE";

/// The kind of namespace.
#[derive(Clone, Copy)]
pub enum Inside {
    /// Has mounts of its own.
    Mounts,
    /// Its user has no special rights, root or not.
    Unprivileged,
}

/// Whether this is the process inside the namespace, which runs the test. Called outside, it starts
/// that process and waits for its end.
pub fn inside(test: &str, kind: Inside) -> bool {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        return true;
    }
    let ways: &[&[&str]] = match kind {
        Inside::Mounts => &[&["--mount"], &["--user", "--map-root-user", "--mount"]],
        Inside::Unprivileged => &[&["--user"]],
    };
    let possible =
        |way: &&&[&str]| Command::new("unshare").args(**way).arg("true").output().is_ok_and(|it| it.status.success());
    let Some(way) = ways.iter().find(possible) else {
        skipped(test, "this machine does not allow namespaces (unshare)");
        return false;
    };
    let output = Command::new("unshare")
        .args(*way)
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    // Repeat the skips that were reported inside.
    text.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| skipped(test, line));
    false
}

/// Mounts a file system in memory with these options. Only this process's namespace sees it.
pub fn mount(folder: &std::path::Path, options: &str) -> Result<(), String> {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder).output();
    let mount = mount.map_err(|error| error.to_string())?;
    if mount.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&mount.stderr).into_owned()) }
}
