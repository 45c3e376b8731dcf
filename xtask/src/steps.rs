//! The steps of each command, as data. Each step can be run alone.

use std::fmt;

use crate::command::Command;
use crate::dependencies::Checker;
use crate::python::Part;

/// Inputs per fuzz target in `test`: a second or two, enough to notice a badly broken decoder.
const TEST_FUZZ_RUNS: u64 = 5_000;
/// Inputs per fuzz target in `nightly`.
const NIGHTLY_FUZZ_RUNS: u64 = 2_000_000;

/// A step, which is run and timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    pub work: Work,
    /// Whether the step mostly waits, so that later steps may be built beside it.
    pub leaves_room: bool,
}

impl Step {
    fn new(name: &str, work: Work) -> Self {
        Self { name: name.to_owned(), work, leaves_room: false }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs cargo with these arguments, and with at most one environment variable set.
    Cargo { variable: Option<(&'static str, &'static str)>, arguments: &'static str },
    /// The crate-graph check.
    Graph,
    /// One fuzz target.
    Fuzz { target: String, runs: u64 },
    /// The Python package and its tests.
    Python(Part),
    /// The policy for dependencies.
    Dependencies(Checker),
    /// The house rules.
    House,
}

/// The named fuzz target does not exist.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownTarget {
    name: String,
    known: Vec<String>,
}

/// The steps of `command`; `targets` are all fuzz targets.
pub fn steps(command: &Command, targets: &[String]) -> Result<Vec<Step>, UnknownTarget> {
    Ok(match command {
        Command::Test => [tests(Profile::Dev), fuzz(targets, TEST_FUZZ_RUNS)].concat(),
        Command::Ci => {
            [tests(Profile::Dev), fuzz(targets, TEST_FUZZ_RUNS), vec![python(Part::Core)], checks()].concat()
        }
        Command::Graph => vec![graph()],
        Command::House => vec![house()],
        Command::Dependencies(checker) => vec![dependencies(*checker)],
        Command::Python(part) => vec![python(*part)],
        Command::Fuzz { runs, target: None } => fuzz(targets, *runs),
        Command::Fuzz { runs, target: Some(name) } if targets.contains(name) => fuzz(std::slice::from_ref(name), *runs),
        Command::Fuzz { target: Some(name), .. } => {
            return Err(UnknownTarget { name: name.clone(), known: targets.to_vec() });
        }
        Command::Nightly => [
            tests(Profile::Release),
            checks(),
            vec![dependencies(Checker::CargoDeny), many_seeds(), answers(), python(Part::Whole)],
            fuzz(targets, NIGHTLY_FUZZ_RUNS),
            benchmarks(),
        ]
        .concat(),
        Command::Help(_) => Vec::new(),
    })
}

#[derive(Clone, Copy)]
enum Profile {
    Dev,
    Release,
}

fn cargo(name: &str, arguments: &'static str) -> Step {
    Step::new(name, Work::Cargo { variable: None, arguments })
}

fn cargo_with(name: &str, variable: (&'static str, &'static str), arguments: &'static str) -> Step {
    Step::new(name, Work::Cargo { variable: Some(variable), arguments })
}

fn tests(profile: Profile) -> Vec<Step> {
    let [build, all, doc, examples] = match profile {
        Profile::Dev => [
            "test --workspace --all-targets --no-run",
            "test --workspace --all-targets --no-fail-fast",
            "test --workspace --doc",
            "build --workspace --examples",
        ],
        Profile::Release => [
            "test --release --workspace --all-targets --no-run",
            "test --release --workspace --all-targets --no-fail-fast",
            "test --release --workspace --doc",
            "build --release --workspace --examples",
        ],
    };
    let all = Step { leaves_room: true, ..cargo("tests", all) };
    vec![cargo("build of tests", build), all, cargo("documentation examples", doc), cargo("examples", examples)]
}

fn checks() -> Vec<Step> {
    vec![
        cargo("formatting", "fmt --all --check"),
        cargo("formatting of fuzz", "fmt --manifest-path fuzz/Cargo.toml --check"),
        cargo("lints", "clippy --workspace --all-targets -- -D warnings"),
        cargo_with("documentation", ("RUSTDOCFLAGS", "-D warnings"), "doc --workspace --no-deps"),
        graph(),
        dependencies(Checker::Own),
        house(),
    ]
}

fn python(part: Part) -> Step {
    Step::new("Python package", Work::Python(part))
}

fn graph() -> Step {
    Step::new("crate graph", Work::Graph)
}

fn dependencies(checker: Checker) -> Step {
    Step::new("dependencies", Work::Dependencies(checker))
}

fn house() -> Step {
    Step::new("house rules", Work::House)
}

fn fuzz(targets: &[String], runs: u64) -> Vec<Step> {
    let step = |target: &String| Step::new(&format!("fuzz {target}"), Work::Fuzz { target: target.clone(), runs });
    targets.iter().map(step).collect()
}

fn many_seeds() -> Step {
    cargo_with(
        "simulator, 2000 seeds",
        ("SLACKWATER_SEEDS", "2000"),
        "test --release -p slackwater-sim -- --include-ignored",
    )
}

fn answers() -> Step {
    cargo(
        "right answers in every way",
        "test --release -p slackwater-apps --test answers --test filter -- --ignored --nocapture",
    )
}

fn benchmarks() -> Vec<Step> {
    vec![
        cargo("bench wire", "run --release -p slackwater-cli -- bench wire --json"),
        cargo("bench embedded", "run --release -p slackwater-cli -- bench embedded --json"),
        cargo("bench logistic", "run --release -p slackwater-cli -- bench logistic --json"),
        cargo("bench codec", "run --release -p slackwater-cli -- bench codec --json"),
        cargo("bench bytes", "run --release -p slackwater-cli -- bench bytes --json"),
        cargo("bench cluster", "run --release -p slackwater-cli -- bench cluster --json"),
        cargo("bench chaos", "run --release -p slackwater-cli -- bench chaos --seconds 180 --json"),
        cargo("bench chaos, leases", "run --release -p slackwater-cli -- bench chaos --seconds 60 --leases --json"),
        cargo("bench siege", "run --release -p slackwater-cli -- bench siege --json"),
        cargo("bench scale", "run --release -p slackwater-cli -- bench scale --json"),
    ]
}

/// Shows the command line that runs this step alone.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cargo { variable: None, arguments } => write!(f, "cargo {arguments}"),
            Self::Cargo { variable: Some((name, value)), arguments } => {
                write!(f, "{name}=\"{value}\" cargo {arguments}")
            }
            Self::Graph => write!(f, "cargo xtask graph"),
            Self::Fuzz { target, runs } => write!(f, "cargo xtask fuzz --target {target} --runs {runs}"),
            Self::Python(Part::Core) => write!(f, "cargo xtask python --core"),
            Self::Python(Part::Whole) => write!(f, "cargo xtask python"),
            Self::Dependencies(Checker::Own) => write!(f, "cargo xtask dependencies"),
            Self::Dependencies(Checker::CargoDeny) => write!(f, "cargo xtask dependencies --cargo-deny"),
            Self::House => write!(f, "cargo xtask house"),
        }
    }
}

impl fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, known } = self;
        write!(f, "there is no fuzz target `{name}`; fuzz/Cargo.toml has: {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(command: &Command) -> Vec<String> {
        let targets = ["frame".to_owned(), "message".to_owned()];
        steps(command, &targets).expect("a known target").iter().map(|step| step.work.to_string()).collect()
    }

    #[test]
    fn ci_is_test_then_the_python_package_and_then_the_checks() {
        let test = lines(&Command::Test);
        let ci = lines(&Command::Ci);
        assert_eq!(ci[..test.len()], test);
        assert_eq!(
            ci[test.len()..],
            [
                "cargo xtask python --core",
                "cargo fmt --all --check",
                "cargo fmt --manifest-path fuzz/Cargo.toml --check",
                "cargo clippy --workspace --all-targets -- -D warnings",
                "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps",
                "cargo xtask graph",
                "cargo xtask dependencies",
                "cargo xtask house",
            ]
        );
    }

    #[test]
    fn nightly_tests_in_release_and_fuzzes_each_target_once_with_many_inputs() {
        let nightly = lines(&Command::Nightly);
        let of = |word: &str| nightly.iter().filter(|line| line.contains(word)).cloned().collect::<Vec<_>>();
        assert_eq!(of("cargo test").len(), of("test --release").len());
        assert_eq!(
            of("xtask fuzz"),
            ["cargo xtask fuzz --target frame --runs 2000000", "cargo xtask fuzz --target message --runs 2000000"]
        );
        assert_eq!(
            of("SLACKWATER_SEEDS"),
            ["SLACKWATER_SEEDS=\"2000\" cargo test --release -p slackwater-sim -- --include-ignored"]
        );
        assert_eq!(of("xtask dependencies"), ["cargo xtask dependencies", "cargo xtask dependencies --cargo-deny"]);
        assert_eq!(of("bench ").len(), 10);
        assert_eq!((of("bench chaos --seconds").len(), of("bench cluster").len()), (2, 1));
    }

    #[test]
    fn fuzz_runs_the_named_target_only_and_refuses_an_unknown_one() {
        let fuzz = |name: &str| Command::Fuzz { runs: 5, target: Some(name.to_owned()) };
        assert_eq!(lines(&fuzz("message")), ["cargo xtask fuzz --target message --runs 5"]);
        let error = steps(&fuzz("massage"), &["message".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "there is no fuzz target `massage`; fuzz/Cargo.toml has: message");
    }
}
