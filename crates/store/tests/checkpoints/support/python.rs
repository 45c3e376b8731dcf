//! A Python environment with the packages that the tests need. It is made once, under the build
//! folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// An S3 server, and the Python reader of safetensors files.
const PACKAGES: [&str; 5] = ["moto[s3]>=5.1,<6", "flask>=3,<4", "flask-cors>=5", "safetensors>=0.5", "numpy>=1.26"];
/// Ten times what installing takes over an ordinary network.
const LIMIT: Duration = Duration::from_secs(300);

/// The interpreter, or why there is none.
pub fn interpreter() -> Result<&'static Path, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(make).as_deref().map_err(Clone::clone)
}

fn make() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-for-store");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    // Of two test runs at once, one makes it and the other waits.
    let lock = File::create(folder.join("lock")).map_err(|error| error.to_string())?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    let environment = folder.join("environment");
    let ready = folder.join("ready");
    let interpreter = environment.join("bin/python");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&ready).is_ok_and(|made| made == wanted) && interpreter.exists() {
        return Ok(interpreter);
    }
    fs::remove_dir_all(&environment).ok();
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"];
    run(Command::new(&interpreter).args(quiet).args(PACKAGES))?;
    fs::write(&ready, wanted).map_err(|error| error.to_string())?;
    Ok(interpreter)
}

/// Runs a command to its end, but kills it after [`LIMIT`].
pub fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("{program} cannot be started: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{program}: {status}: {}", errors(child))),
            None if begun.elapsed() > LIMIT => {
                child.kill().ok();
                child.wait().ok();
                return Err(format!("{program} was not done after {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn errors(child: Child) -> String {
    let output = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
