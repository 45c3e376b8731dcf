//! Shared by tests: starts processes of the program, reads their output, and kills them at the end
//! of the test. Also folders, addresses and data sets.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

pub use launch::Signal;
use launch::{OutputTarget, Start};
use serde_json::Value;

/// The program itself.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_slackwater");
/// A wait that takes longer has failed. Most waits take a tenth of it.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A training that lasts until a process is killed.
pub const ENDLESS: [&str; 9] = [
    "demo",
    "--rows",
    "600",
    "--features",
    "500",
    "--minibatch=1",
    "--base-ms=20",
    "--clocks=10000",
    "--out=/dev/null",
];

/// Reports a skipped test on the standard error, which the test runner does not hide.
pub fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").ok();
}

/// A process of the program, killed if the test ends before it does.
pub struct Process {
    pub name: String,
    process: launch::Process,
}

/// Starts the program.
pub fn start(name: &str, arguments: &[&str]) -> Process {
    start_as(Start::program(name, PROGRAM), arguments)
}

/// Starts the process that `start` describes, with these arguments. Without a token it is insecure:
/// most tests are about something else.
pub fn start_as(start: Start, arguments: &[&str]) -> Process {
    let process = (start
        .args(arguments)
        .env("SLACKWATER_LOG", "info")
        .env("SLACKWATER_INSECURE", "1")
        .env("RUST_BACKTRACE", "0"))
    .stdout(OutputTarget::Capture)
    .stderr(OutputTarget::Capture)
    .spawn()
    .unwrap();
    Process { name: process.name().to_owned(), process }
}

/// Runs the program to its end, and returns what it printed.
pub fn run(arguments: &[&str]) -> String {
    let mut process = start(&arguments.join(" "), arguments);
    assert!(process.end(), "{} failed:\n{}", process.name, process.stderr());
    process.stdout()
}

/// Runs the program with --json to its end, and returns the JSON that it printed.
pub fn run_json(arguments: &[&str]) -> Value {
    json(&run(&[arguments, &["--json"]].concat()))
}

/// Parses printed JSON.
pub fn json(printed: &str) -> Value {
    serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"))
}

/// Runs a benchmark, and returns its figures and its standard error.
pub fn bench(arguments: &[&str]) -> (Value, String) {
    let mut process = start(&arguments.join(" "), &[&["bench"], arguments, &["--json"]].concat());
    assert!(process.end_within(20 * LIMIT), "{} failed:\n{}", process.name, process.stderr());
    (json(&process.stdout()), process.stderr())
}

/// Runs the program, and checks that it fails with these words on its standard error.
pub fn fails(arguments: &[&str], words: &str) {
    start(&arguments.join(" "), arguments).fails_saying(words);
}

impl Process {
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until `found` finds something in its standard error.
    pub fn hear<T>(&mut self, what: &str, found: impl Fn(&str) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = found(&self.stderr()) {
                return found;
            }
            let ended = self.ended();
            let name = &self.name;
            let said = self.stderr();
            assert!(ended.is_none() && begin.elapsed() < LIMIT, "{name} never said {what}; {ended:?}\n{said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until its standard error contains these words.
    pub fn says(&mut self, words: &str) {
        self.hear(words, |said| said.contains(words).then_some(()));
    }

    /// Waits until `launch` has logged the process id that it started under a name.
    pub fn started(&mut self, name: &str) -> u32 {
        self.hear(&format!("which process is {name}"), |said| {
            let line = said.lines().find(|line| line.contains(&format!("started {name} process=")))?;
            line.rsplit("process=").next()?.trim().parse().ok()
        })
    }

    /// Waits until it has ended and all its output is read. Returns whether it succeeded.
    pub fn end(&mut self) -> bool {
        self.end_within(LIMIT)
    }

    /// The same, with another limit.
    pub fn end_within(&mut self, limit: Duration) -> bool {
        let status = self.process.wait_for(limit).unwrap();
        status.unwrap_or_else(|| panic!("{} does not end; it said\n{}", self.name, self.stderr())).success()
    }

    /// Waits for its end, and checks that it failed with these words on its standard error.
    pub fn fails_saying(&mut self, words: &str) {
        let succeeded = self.end();
        let name = &self.name;
        let said = self.stderr();
        assert!(!succeeded && said.contains(words), "{name} should fail saying '{words}', and said\n{said}");
    }
}

/// Sends a signal to a process that another process of the test started.
pub fn signal(id: u32, signal: Signal) {
    launch::signal_process(id, signal).unwrap();
}

/// Whether a process is running, by its id.
pub fn is_alive(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A free address: no process listens there.
pub fn free_address() -> String {
    launch::free_address().unwrap().to_string()
}

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a tool of the system to its end; returns whether it succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The folder of a data set. If it is missing, prints that the test is skipped.
pub fn data_set(name: &str) -> Option<PathBuf> {
    data::data_set(name).inspect_err(|why| skipped(why)).ok()
}

/// A folder for a test's files. Dropping it removes it.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder. The name is unique within its test program.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
