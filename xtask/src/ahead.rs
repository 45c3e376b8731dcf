//! Builds what later steps need while one runs that mostly waits, as tests of processes and
//! time-outs do.
//!
//! At the lowest priority, so that those tests hardly notice, and without a word: the step that
//! needs it says what is wrong with it.

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

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Builds that are under way.
pub struct Ahead {
    /// No other is begun.
    enough: Arc<AtomicBool>,
    /// The one under way is given up, too.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Begins to build, one after another, what these steps will ask for.
    pub fn of(root: &Path, later: &[Step]) -> Self {
        let (enough, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let commands: Vec<Command> = arguments(later).into_iter().filter_map(|build| build.command(root)).collect();
        let (no_more, end) = (Arc::clone(&enough), Arc::clone(&stop));
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

    /// The step that left room is over: the build that is under way is the next thing to be done
    /// anyway.
    pub fn finish(mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.join();
    }

    fn join(&mut self) {
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Nobody wants any of it any more.
impl Drop for Ahead {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

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
    /// What the Python package is tested with.
    Python,
    Fuzz,
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

/// What can be built ahead of these steps: what the Python package needs, which is mostly waited
/// for, then all fuzz targets at once, and what clippy looks at.
fn arguments(later: &[Step]) -> Vec<Build> {
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
    fn each_thing_is_built_once() {
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
        assert_eq!(arguments(&later), [Build::Python, Build::Fuzz, Build::Cargo("clippy --workspace")]);
    }

    #[test]
    fn what_is_under_way_is_seen_through_or_given_up() {
        let sleep = |seconds: &str| Command::new("sleep").arg(seconds).spawn().expect("sleep is everywhere");
        see_through(sleep("0"), &AtomicBool::new(false));
        see_through(sleep("600"), &AtomicBool::new(true));
    }
}
