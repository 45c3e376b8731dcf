//! The command line of `cargo xtask`: its commands and options, and the help texts.

use std::fmt;

use crate::dependencies::Checker;
use crate::python::Part;

/// Default number of inputs per target in `cargo xtask fuzz`: some seconds for each target.
pub const FUZZ_RUNS: u64 = 100_000;

/// A command with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Test,
    Ci,
    Graph,
    House,
    Dependencies(Checker),
    /// Without `target`, fuzzes every target.
    Fuzz {
        runs: u64,
        target: Option<String>,
    },
    Python(Part),
    Nightly,
    Help(Topic),
}

/// What a help text is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    All,
    Test,
    Ci,
    Graph,
    House,
    Dependencies,
    Fuzz,
    Python,
    Nightly,
}

/// Why a command line cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub enum UsageError {
    UnknownCommand(String),
    UnknownArgument { command: &'static str, argument: String },
    MissingValue { option: &'static str },
    NotANumber { option: &'static str, value: String },
}

impl Command {
    /// Parses the arguments that follow `cargo xtask`.
    pub fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let Some((first, rest)) = arguments.split_first() else {
            return Ok(Self::Help(Topic::All));
        };
        if matches!(first.as_str(), "help" | "--help" | "-h") {
            return rest.first().map_or(Ok(Topic::All), |name| Topic::named(name)).map(Self::Help);
        }
        let topic = Topic::named(first)?;
        if rest.iter().any(|argument| argument == "--help" || argument == "-h") {
            return Ok(Self::Help(topic));
        }
        let command = match topic {
            Topic::All => Self::Help(Topic::All),
            Topic::Test => Self::Test,
            Topic::Ci => Self::Ci,
            Topic::Graph => Self::Graph,
            Topic::Nightly => Self::Nightly,
            Topic::House => Self::House,
            Topic::Dependencies => {
                let (checker, rest) = match rest.split_first() {
                    Some((word, rest)) if word == "--cargo-deny" => (Checker::CargoDeny, rest),
                    _ => (Checker::Own, rest),
                };
                return no_more(Self::Dependencies(checker), rest);
            }
            Topic::Fuzz => return parse_fuzz(rest),
            Topic::Python => {
                let (part, rest) = match rest.split_first() {
                    Some((word, rest)) if word == "--core" => (Part::Core, rest),
                    _ => (Part::Whole, rest),
                };
                return no_more(Self::Python(part), rest);
            }
        };
        no_more(command, rest)
    }

    /// The command's name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Ci => "ci",
            Self::Graph => "graph",
            Self::House => "house",
            Self::Dependencies(_) => "dependencies",
            Self::Fuzz { .. } => "fuzz",
            Self::Python(_) => "python",
            Self::Nightly => "nightly",
            Self::Help(_) => "help",
        }
    }
}

/// The command, if `rest` is empty.
fn no_more(command: Command, rest: &[String]) -> Result<Command, UsageError> {
    match rest.first() {
        None => Ok(command),
        Some(argument) => Err(UsageError::UnknownArgument { command: command.name(), argument: argument.clone() }),
    }
}

fn parse_fuzz(arguments: &[String]) -> Result<Command, UsageError> {
    let mut runs = FUZZ_RUNS;
    let mut target = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--runs" => {
                let value = words.next().ok_or(UsageError::MissingValue { option: "--runs" })?;
                runs = value
                    .replace('_', "")
                    .parse()
                    .map_err(|_| UsageError::NotANumber { option: "--runs", value: value.clone() })?;
            }
            "--target" => {
                target = Some(words.next().ok_or(UsageError::MissingValue { option: "--target" })?.clone());
            }
            _ => return Err(UsageError::UnknownArgument { command: "fuzz", argument: word.clone() }),
        }
    }
    Ok(Command::Fuzz { runs, target })
}

impl Topic {
    fn named(name: &str) -> Result<Self, UsageError> {
        match name {
            "test" => Ok(Self::Test),
            "ci" => Ok(Self::Ci),
            "graph" => Ok(Self::Graph),
            "house" => Ok(Self::House),
            "dependencies" => Ok(Self::Dependencies),
            "fuzz" => Ok(Self::Fuzz),
            "python" => Ok(Self::Python),
            "nightly" => Ok(Self::Nightly),
            "help" => Ok(Self::All),
            _ => Err(UsageError::UnknownCommand(name.to_owned())),
        }
    }

    /// The help text.
    pub fn text(self) -> &'static str {
        match self {
            Self::All => ALL,
            Self::Test => TEST,
            Self::Ci => CI,
            Self::Graph => GRAPH,
            Self::House => HOUSE,
            Self::Dependencies => DEPENDENCIES,
            Self::Fuzz => FUZZ,
            Self::Python => PYTHON,
            Self::Nightly => NIGHTLY,
        }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCommand(name) => {
                write!(f, "there is no command `{name}`; `cargo xtask help` lists all commands")
            }
            Self::UnknownArgument { command, argument } => {
                write!(f, "`{command}` does not take `{argument}`; see `cargo xtask help {command}`")
            }
            Self::MissingValue { option } => {
                write!(f, "`{option}` needs a value after it; see `cargo xtask help fuzz`")
            }
            Self::NotANumber { option, value } => {
                write!(f, "`{value}` is not a whole number; write `{option}` as in `{option} 100_000`")
            }
        }
    }
}

const ALL: &str = "\
Builds, tests and checks Slackwater. Every command prints its steps with their durations, stops at
the first step that fails, and prints how to run that step alone.

    cargo xtask test       all tests: run it before and after a change
    cargo xtask ci         test, then formatting, lints, documentation, the crate graph, the policy for
                           dependencies and the house rules: every change must pass it
    cargo xtask graph      the crate graph alone: which crate may depend on which
    cargo xtask house      the house rules alone: words, names, line widths, file lengths
    cargo xtask dependencies
                           licences, duplicates and sources of the crates of others [--cargo-deny]
    cargo xtask fuzz       feeds generated bytes to every decoder of outside bytes
                           [--runs N] [--target NAME]
    cargo xtask python     the Python package: installed from its wheel, tested with PyTorch, and
                           benchmarked [--core]
    cargo xtask nightly    ci in release, many more seeds and inputs, and the benchmarks
    cargo xtask help NAME  more about one command

You need the Rust toolchain, a C++ compiler for the fuzzer, and Python 3.10 or later with venv. The
tests of the Python package install their packages under target/, and nightly installs cargo-deny
there. Nothing else is installed.
";

const TEST: &str = "\
cargo xtask test

Runs all tests, in this order:
    1. unit and integration tests      cargo test --workspace --all-targets
    2. examples in the documentation   cargo test --workspace --doc
    3. the programs in examples/       built, not run
    4. each fuzz target                a short, fixed number of inputs, from a fixed seed

To work on one crate, use cargo itself: `cargo test -p slackwater-types`. To run one test by name:
`cargo test -p slackwater-types slack`.
";

const CI: &str = "\
cargo xtask ci

Every change must pass this. It runs everything in `cargo xtask test`, then:
    Python package   cargo xtask python --core; tests whose packages cannot be installed are skipped
                     with a notice
    formatting       cargo fmt --all --check, and the same for fuzz/; `cargo fmt --all` fixes it
    lints            cargo clippy, where a warning is an error
    documentation    cargo doc, where a broken link is an error
    crate graph      see `cargo xtask help graph`
    dependencies     see `cargo xtask help dependencies`
    house rules      see `cargo xtask help house`

.ci/run does the same, from any folder.
";

const GRAPH: &str = "\
cargo xtask graph

Checks which crate depends on which:
    - a crate under crates/ depends only on crates above it in this order:
        types, wire, codec, update, net, store, observe, lease, shard, worker, coordinator, route,
        sim, node, client (package slackwater), schedule, data, apps, launch, bench, gpu, forecast,
        inference, cli, python
    - lease, shard, worker, coordinator and route reach no I/O (net, store, mio, tokio, socket2),
      directly or through another crate, so that a simulator can drive them in virtual time
    - of Slackwater's crates, apps depends on client, data and schedule only: a learning program
      needs no more
    - every crate is in this list
Dependencies that only tests use ([dev-dependencies]) are not checked.

Add a new crate to ORDER in xtask/src/graph.rs, as far down as its dependents allow.
";

const HOUSE: &str = "\
cargo xtask house

Checks every text that git knows or would add, and prints each violation as
`path:line: what is wrong; what to do`:
    line width        comments and Markdown prose have at most 100 columns. Tables, code blocks, links
                      and words that cannot be broken are exempt
    retired words     no name or phrase that docs/GLOSSARY.md has replaced. The rules, each with the
                      word to use instead, are in xtask/house/retired_words.txt, whose head explains them
    public types      no two library crates have public types of one name, except Error and Result
    file length       no .rs or .py file has more than 600 lines
    module style      foo.rs beside foo/; no mod.rs outside folders called tests
    exhaustive lists  files that match on operations, messages or settings deny
                      clippy::wildcard_enum_match_arm; the list of them is in xtask/src/house/layout.rs
    glossary          docs/GLOSSARY.md has at most 60 words, and none twice
";

const DEPENDENCIES: &str = "\
cargo xtask dependencies [--cargo-deny]

Checks all crates that the workspace depends on, tests' and optional ones too, against deny.toml:
    licences     each crate's licence can be met by licences that are listed there
    duplicates   no crate is built in two versions, except those listed there with the reason
    sources      every crate comes from crates.io

    --cargo-deny    then has cargo-deny check the same, and advisories. If it is not installed,
                    installs it under target/tools from source, which takes minutes. Where it cannot be
                    installed, or the database of advisories cannot be fetched, a line that begins with
                    SKIPPED says so
";

const FUZZ: &str = "\
cargo xtask fuzz [--runs N] [--target NAME]

Feeds generated bytes to the targets in fuzz/fuzz_targets/ and keeps inputs that reach new code. It
uses libFuzzer on the stable toolchain: no cargo-fuzz, no nightly compiler.

    --runs N        inputs per target (default 100_000, some seconds each); 0 only replays the inputs
                    that earlier runs kept
    --target NAME   fuzz one target instead of all

Inputs that reach new code are kept in fuzz/corpus/NAME. An input that breaks a target is written to
fuzz/artifacts/NAME, and every later run begins with it. So run the command again to check a fix, and
then make the input a row of a test beside the decoder.

A new target is one file in fuzz/fuzz_targets/ and one [[bin]] in fuzz/Cargo.toml. Files in
fuzz/seeds/NAME are its first inputs.
";

const PYTHON: &str = "\
cargo xtask python [--core]

Makes a virtual environment in target/python with NumPy, pytest and PyTorch, and installs the package
into it from its wheel (in release). Runs the tests in python/tests/ and prints the figures of
`python -m slackwater.bench`. Also installs and uses the wheel in an environment that has nothing
else, with no compiler in its path.

    --core    use the module as `cargo build` makes it, and skip tests that are marked slow; tests
              whose packages cannot be fetched are skipped with a notice
";

const NIGHTLY: &str = "\
cargo xtask nightly

Runs the checks that take too long for every change; expect hours:
    1. everything in `cargo xtask ci`, with the tests built in release
    2. cargo-deny                        cargo xtask dependencies --cargo-deny
    3. the simulator over 2,000 seeds    SLACKWATER_SEEDS=2000 cargo test --release -p slackwater-sim -- --include-ignored
    4. right answers in every way        cargo test --release -p slackwater-apps --test answers -- --ignored
    5. the Python package                cargo xtask python
    6. each fuzz target                  2,000,000 inputs
    7. the benchmarks                    slackwater bench wire | embedded | logistic | codec | bytes | cluster | chaos | siege | scale
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, UsageError> {
        Command::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn command_line_is_parsed_or_refused_with_the_wrong_argument() {
        let fuzz = |runs, target: Option<&str>| Ok(Command::Fuzz { runs, target: target.map(str::to_owned) });
        let table = [
            ("", Ok(Command::Help(Topic::All))),
            ("help", Ok(Command::Help(Topic::All))),
            ("help fuzz", Ok(Command::Help(Topic::Fuzz))),
            ("fuzz --runs 3 --help", Ok(Command::Help(Topic::Fuzz))),
            ("test", Ok(Command::Test)),
            ("ci", Ok(Command::Ci)),
            ("graph", Ok(Command::Graph)),
            ("house", Ok(Command::House)),
            ("house --all", Err(UsageError::UnknownArgument { command: "house", argument: "--all".into() })),
            ("dependencies", Ok(Command::Dependencies(Checker::Own))),
            ("dependencies --cargo-deny", Ok(Command::Dependencies(Checker::CargoDeny))),
            ("nightly", Ok(Command::Nightly)),
            ("python", Ok(Command::Python(Part::Whole))),
            ("python --core", Ok(Command::Python(Part::Core))),
            ("python --torch", Err(UsageError::UnknownArgument { command: "python", argument: "--torch".into() })),
            ("fuzz", fuzz(FUZZ_RUNS, None)),
            ("fuzz --runs 2_000", fuzz(2_000, None)),
            ("fuzz --target node_name --runs 7", fuzz(7, Some("node_name"))),
            ("tests", Err(UsageError::UnknownCommand("tests".into()))),
            ("help tests", Err(UsageError::UnknownCommand("tests".into()))),
            ("test -v", Err(UsageError::UnknownArgument { command: "test", argument: "-v".into() })),
            ("fuzz frame", Err(UsageError::UnknownArgument { command: "fuzz", argument: "frame".into() })),
            ("fuzz --runs", Err(UsageError::MissingValue { option: "--runs" })),
            ("fuzz --runs -1", Err(UsageError::NotANumber { option: "--runs", value: "-1".into() })),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), expected, "cargo xtask {line}");
        }
    }
}
