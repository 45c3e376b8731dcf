//! Runs the steps of a command in order, times each, and stops at the first that fails. Beside a
//! step that leaves room, builds what later steps need.

use std::{
    fmt, io,
    path::Path,
    process::{self, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use crate::{
    ahead::Ahead,
    dependencies, fuzz,
    graph::{self, Violation},
    house,
    metadata::{self, MetadataError},
    python,
    steps::{Step, Work},
};

/// Why a step did not pass.
#[derive(Debug)]
pub enum Failure {
    /// The program could not be started.
    NotStarted { program: String, error: io::Error },
    /// The program failed.
    Status(ExitStatus),
    /// The fuzzer found an input that breaks the target, and wrote it to this folder.
    BadInput { folder: String },
    /// There is no C++ compiler, which the fuzzer's runtime needs.
    NoCxxCompiler { tried: String },
    /// A file of the repository could not be read or made.
    File { path: String, error: io::Error },
    /// The output of `cargo metadata` could not be read.
    Metadata(MetadataError),
    /// The crate graph breaks its rules.
    Graph(Vec<Violation>),
    /// The policy for dependencies cannot be used.
    Policy { path: &'static str, reason: String },
    /// Dependencies break the policy.
    Dependencies(Vec<dependencies::Violation>),
    /// Texts break the house rules.
    House(Vec<house::Violation>),
}

#[derive(Clone, Copy)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

/// Runs `steps` in the folder `root`, and reports under the command's `name`.
pub fn run(root: &Path, name: &str, steps: &[Step]) -> ExitCode {
    let begun = Instant::now();
    let mut outcomes = Vec::with_capacity(steps.len());
    let mut failure = None;
    for (place, step) in steps.iter().enumerate() {
        println!("\n==> {}: {}", step.name, step.work);
        let step_begun = Instant::now();
        let ahead = step.leaves_room.then(|| Ahead::of(root, &steps[place + 1..]));
        let result = perform(root, &step.work);
        ahead.into_iter().filter(|_| result.is_ok()).for_each(Ahead::finish);
        let taken = step_begun.elapsed();
        match result {
            Ok(()) => {
                println!("    {} passed in {}", step.name, seconds(taken));
                outcomes.push(Outcome::Passed(taken));
            }
            Err(error) => {
                outcomes.push(Outcome::Failed(taken));
                failure = Some((step, error));
                break;
            }
        }
    }
    outcomes.resize(steps.len(), Outcome::NotRun);
    print!("\n{}", table(steps, &outcomes));
    let total = seconds(begun.elapsed());
    match failure {
        None => {
            println!("xtask {name}: {} passed in {total}", count(steps.len(), "step"));
            ExitCode::SUCCESS
        }
        Some((step, error)) => {
            println!("xtask {name}: failed at `{}` after {total}", step.name);
            eprintln!("\n{error}\nTo run this step alone:\n    {}", step.work);
            ExitCode::FAILURE
        }
    }
}

fn perform(root: &Path, work: &Work) -> Result<(), Failure> {
    match work {
        Work::Cargo { variable, arguments } => {
            let mut command = cargo(root);
            command.args(arguments.split(' ')).envs(*variable);
            succeed(command)
        }
        Work::Graph => {
            let packages = metadata::packages(root).map_err(Failure::Metadata)?;
            let violations = graph::check(&packages);
            if violations.is_empty() { Ok(()) } else { Err(Failure::Graph(violations)) }
        }
        Work::Fuzz { target, runs } => fuzz::run(root, target, *runs),
        Work::Python(part) => python::run(root, *part),
        Work::Dependencies(checker) => dependencies::run(root, *checker),
        Work::House => {
            let files = house::read(root).map_err(|(path, error)| Failure::File { path, error })?;
            let violations = house::check(&files);
            if violations.is_empty() { Ok(()) } else { Err(Failure::House(violations)) }
        }
    }
}

/// The cargo that runs this program, in the folder `root`.
pub fn cargo(root: &Path) -> process::Command {
    let mut command = process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Runs a command to its end; any status but success is a failure.
pub fn succeed(mut command: process::Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| Failure::NotStarted { program, error })?;
    if status.success() { Ok(()) } else { Err(Failure::Status(status)) }
}

fn table(steps: &[Step], outcomes: &[Outcome]) -> String {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    let row = |(step, outcome): (&Step, &Outcome)| {
        let (word, duration) = match outcome {
            Outcome::Passed(taken) => ("passed", seconds(*taken)),
            Outcome::Failed(taken) => ("FAILED", seconds(*taken)),
            Outcome::NotRun => ("not run", String::new()),
        };
        format!("{:width$}  {word:7}  {duration:>9}", step.name).trim_end().to_owned() + "\n"
    };
    steps.iter().zip(outcomes).map(row).collect()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { program, error } => write!(f, "cannot start `{program}`: {error}"),
            Self::Status(status) => write!(f, "the step failed with {status}; its output is above"),
            Self::BadInput { folder } => {
                write!(f, "an input breaks the target. It is kept in {folder}, and the next run begins with it")
            }
            Self::NoCxxCompiler { tried } => write!(
                f,
                "cannot start `{tried}`: the fuzzer needs a C++ compiler. Install g++ (Debian and Ubuntu: \
                 `apt install g++`; Fedora: `dnf install gcc-c++`) or clang++, or name yours in the variable CXX"
            ),
            Self::File { path, error } => write!(f, "{path}: {error}"),
            Self::Metadata(error) => error.fmt(f),
            Self::Graph(violations) => {
                writeln!(f, "the crate graph breaks its rules (`cargo xtask help graph`):")?;
                violations.iter().try_for_each(|violation| writeln!(f, "  - {violation}"))
            }
            Self::Policy { path, reason } => write!(f, "cannot use {path}: {reason}"),
            Self::Dependencies(violations) => {
                writeln!(f, "dependencies break the policy in deny.toml (`cargo xtask help dependencies`):")?;
                violations.iter().try_for_each(|violation| writeln!(f, "  - {violation}"))
            }
            Self::House(violations) => {
                writeln!(f, "the house rules are broken (`cargo xtask help house`):")?;
                violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))?;
                writeln!(f, "{}: {}", count(violations.len(), "violation"), house::summary(violations))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_what_passed_what_failed_and_what_was_not_run() {
        let step = |name: &str| Step { name: name.to_owned(), work: Work::Graph, leaves_room: false };
        let steps = [step("tests"), step("crate graph"), step("lints")];
        let outcomes =
            [Outcome::Passed(Duration::from_millis(1_250)), Outcome::Failed(Duration::from_secs(61)), Outcome::NotRun];
        assert_eq!(
            table(&steps, &outcomes),
            "tests        passed       1.2 s\ncrate graph  FAILED      61.0 s\nlints        not run\n"
        );
    }
}
