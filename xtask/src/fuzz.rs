//! Builds and runs one libFuzzer target on the stable toolchain.
//!
//! cargo-fuzz needs a nightly compiler for its sanitizers. This does without: coverage, which
//! guides the fuzzer, is an LLVM pass that the stable compiler can run, and a decoder in safe Rust
//! shows its faults as panics.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::run::{Failure, cargo, succeed};

/// The longest input: longer than the largest header, and short enough to try many.
const MAX_INPUT_BYTES: u32 = 4096;

/// Compiler flags for coverage. Counters for each edge and a table of their places guide the
/// fuzzer; traced comparisons let it guess magic numbers. With one codegen unit, the pass sees all
/// code.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg",
    "fuzzing",
];

/// The separator of flags in CARGO_ENCODED_RUSTFLAGS, a variable that takes precedence over the
/// caller's RUSTFLAGS.
const FLAG_SEPARATOR: &str = "\u{1f}";

/// Exit statuses of libFuzzer after it wrote an input that was too slow, took too much memory or
/// crashed.
const BAD_INPUT: [i32; 3] = [70, 71, 77];

/// Tries `runs` new inputs, after the inputs that earlier runs kept.
pub fn run(root: &Path, target: &str, runs: u64) -> Result<(), Failure> {
    require_cxx_compiler()?;
    let corpus = format!("fuzz/corpus/{target}");
    let artifacts = format!("fuzz/artifacts/{target}");
    for path in [&corpus, &artifacts] {
        fs::create_dir_all(root.join(path)).map_err(|error| Failure::File { path: path.clone(), error })?;
    }
    let mut command = instrumented(root, "run")?;
    command
        .args(["--bin", target])
        .arg("--")
        .args([format!("-runs={runs}"), "-seed=1".to_owned(), format!("-max_len={MAX_INPUT_BYTES}")])
        .arg(format!("-artifact_prefix={artifacts}/"))
        // New inputs go to the first folder. The others are only read: inputs that once broke the
        // target, and files of formats that the fuzzer would not guess.
        .args([&corpus, &artifacts]);
    let seeds = format!("fuzz/seeds/{target}");
    if root.join(&seeds).is_dir() {
        command.arg(seeds);
    }
    succeed(command).map_err(|failure| match failure {
        Failure::Status(status) if status.code().is_some_and(|code| BAD_INPUT.contains(&code)) => {
            Failure::BadInput { folder: artifacts }
        }
        other => other,
    })
}

/// The command that builds every target.
pub fn build(root: &Path) -> Result<Command, Failure> {
    instrumented(root, "build")
}

/// Cargo's `verb` for the fuzz targets, with coverage.
fn instrumented(root: &Path, verb: &str) -> Result<Command, Failure> {
    let mut command = cargo(root);
    command
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join(FLAG_SEPARATOR))
        .args([verb, "--release", "--manifest-path", "fuzz/Cargo.toml"])
        // With an explicit target, even the host's, cargo does not apply the flags to build
        // scripts.
        .args(["--target", &host_triple()?]);
    Ok(command)
}

fn require_cxx_compiler() -> Result<(), Failure> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // CXX may hold a wrapper or flags after the program, so only its first word is started.
    let program = compiler.split_whitespace().next().unwrap_or("c++").to_owned();
    match Command::new(&program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::NoCxxCompiler { tried: program }),
    }
}

fn host_triple() -> Result<String, Failure> {
    let program = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(&program)
        .arg("-vV")
        .output()
        .map_err(|error| Failure::NotStarted { program: program.clone(), error })?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).ok_or(Failure::Status(output.status))
}
