//! Builds ahead: while a step runs that mostly waits (tests of processes and time-outs), builds
//! what later steps need.
//!
//! The builds run at the lowest priority, so that the tests hardly notice. They print nothing: the
//! step that needs a build reports its errors.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    fuzz, python,
    run::cargo,
    steps::{Step, Work},
};

/// How often a build is checked: whether it has ended, or should stop.
const LOOK: Duration = Duration::from_millis(100);

/// Builds under way, on a thread. Dropping this kills the current build and starts no other.
pub struct Ahead {
    /// Set when no further build should start.
    enough: Arc<AtomicBool>,
    /// Set when the current build should be killed, too.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to build what the steps `later` need, one build after another.
    pub fn of(root: &Path, later: &[Step]) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let commands: Vec<Command> = builds(later).into_iter().filter_map(|build| build.command(root)).collect();
        let no_more = Arc::clone(&enough);
        let end = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for mut command in commands {
                if no_more.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
                    see_through(child, &end);
                }
            }
        });
        Self { enough, stop, thread: Some(thread) }
    }

    /// Waits for the current build and starts no other. Called when the step that left room is
    /// over: the next step needs the build anyway.
    pub fn finish(mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.join();
    }

    fn join(&mut self) {
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

/// Waits for a build; kills it when `end` is set.
fn see_through(mut child: Child, end: &AtomicBool) {
    while matches!(child.try_wait(), Ok(None)) {
        if end.load(Ordering::Relaxed) {
            child.kill().ok();
            child.wait().ok();
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// A build that a later step begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    /// Fetches the packages that tests of the Python package need.
    Python,
    /// All fuzz targets.
    Fuzz,
    /// Cargo with these arguments.
    Cargo(&'static str),
}

impl Build {
    fn command(self, root: &Path) -> Option<Command> {
        let inner = match self {
            Self::Python => python::fetch(root),
            Self::Fuzz => fuzz::build(root).ok()?,
            Self::Cargo(arguments) => {
                let mut command = cargo(root);
                command.args(arguments.split(' '));
                command
            }
        };
        let mut command = Command::new("nice");
        command.current_dir(root).args(["-n", "19"]).arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Some(command)
    }
}

/// The builds that these steps need: first the Python packages, which are mostly downloads, then
/// all fuzz targets at once, and clippy.
fn builds(later: &[Step]) -> Vec<Build> {
    let is_python = |step: &&Step| matches!(step.work, Work::Python(_));
    let mut builds: Vec<Build> = later.iter().filter(is_python).map(|_| Build::Python).collect();
    for step in later {
        let build = match &step.work {
            Work::Fuzz { .. } => Build::Fuzz,
            Work::Cargo { variable: None, arguments } if arguments.starts_with("clippy ") => Build::Cargo(arguments),
            _ => continue,
        };
        if !builds.contains(&build) {
            builds.push(build);
        }
    }
    builds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::Part;

    fn step(work: Work) -> Step {
        Step { name: String::new(), work, leaves_room: false }
    }

    #[test]
    fn builds_lists_each_build_once() {
        let fuzz = |target: &str| step(Work::Fuzz { target: target.to_owned(), runs: 1 });
        let cargo = |arguments| step(Work::Cargo { variable: None, arguments });
        let later = [
            fuzz("frame"),
            fuzz("message"),
            step(Work::Python(Part::Core)),
            cargo("fmt --check"),
            cargo("clippy --workspace"),
            step(Work::Graph),
        ];
        assert_eq!(builds(&later), [Build::Python, Build::Fuzz, Build::Cargo("clippy --workspace")]);
    }

    #[test]
    fn see_through_waits_for_a_build_or_kills_it() {
        let sleep = |seconds: &str| Command::new("sleep").arg(seconds).spawn().expect("sleep is everywhere");
        see_through(sleep("0"), &AtomicBool::new(false));
        see_through(sleep("600"), &AtomicBool::new(true));
    }
}
