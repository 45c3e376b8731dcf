//! Processes of the program, for tests: started, listened to, and never left behind.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The program itself.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_slackwater");
/// Tells done from hung: what is awaited here usually takes a tenth of it.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A training that lasts until somebody dies.
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

/// Says that something cannot be tested on this machine, also where the output of tests that pass is not shown.
pub fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").ok();
}

/// A process of the program, killed if the test ends before it does.
pub struct Process {
    pub name: String,
    pub child: Child,
    stdout: Heard,
    stderr: Heard,
}

/// What a process says, as a thread hears it.
struct Heard {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the program.
pub fn start(name: &str, arguments: &[&str]) -> Process {
    start_as(name, Command::new(PROGRAM), arguments)
}

/// Starts `command`, which runs the program, with these arguments for the program.
pub fn start_as(name: &str, mut command: Command, arguments: &[&str]) -> Process {
    command.args(arguments).env("SLACKWATER_LOG", "info").env_remove("RUST_BACKTRACE");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (listen(child.stdout.take().unwrap()), listen(child.stderr.take().unwrap()));
    Process { name: name.to_owned(), child, stdout, stderr }
}

fn listen(mut said: impl Read + Send + 'static) -> Heard {
    let text = Arc::new(Mutex::new(Vec::new()));
    let to = text.clone();
    let thread = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length) = said.read(&mut piece)
            && length > 0
        {
            to.lock().unwrap().extend_from_slice(&piece[..length]);
        }
    });
    Heard { text, thread: Some(thread) }
}

impl Process {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.text.lock().unwrap()).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.text.lock().unwrap()).into_owned()
    }

    /// Waits until it has said something that `found` finds.
    pub fn hear<T>(&mut self, what: &str, found: impl Fn(&str) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = found(&self.stderr()) {
                return found;
            }
            let ended = self.child.try_wait().unwrap();
            let (name, said) = (&self.name, self.stderr());
            assert!(ended.is_none() && begin.elapsed() < LIMIT, "{name} never said {what}; {ended:?}\n{said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it has ended and everything it said is heard; returns whether it succeeded.
    pub fn end(&mut self) -> bool {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                for heard in [&mut self.stdout, &mut self.stderr] {
                    heard.thread.take().unwrap().join().unwrap();
                }
                return status.success();
            }
            assert!(begin.elapsed() < LIMIT, "{} does not end; it said\n{}", self.name, self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends, in failure, having said these words.
    pub fn fails_saying(&mut self, words: &str) {
        let succeeded = self.end();
        let (name, said) = (&self.name, self.stderr());
        assert!(!succeeded && said.contains(words), "{name} should fail saying '{words}', and said\n{said}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
