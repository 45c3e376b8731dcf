//! Builds and runs one libFuzzer target on the stable toolchain.
//!
//! cargo-fuzz asks for a nightly compiler because of its sanitizers. Coverage, which is what steers
//! the fuzzer, is an LLVM pass that stable can be told to run; a decoder in safe Rust shows its
//! faults as panics, without a sanitizer.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::run::{Failure, cargo, succeed};

/// One input's length: beyond the largest header, short enough to try many.
const MAX_INPUT_BYTES: u32 = 4096;

/// Counters per edge and a table of their places guide the fuzzer; traced comparisons let it guess
/// magic numbers. One codegen unit, or the pass sees the code in pieces.
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

/// What cargo puts between flags in CARGO_ENCODED_RUSTFLAGS, which goes before any RUSTFLAGS of the
/// caller's.
const FLAG_SEPARATOR: &str = "\u{1f}";

/// Exit statuses with which libFuzzer says that it wrote an input: too slow, too much memory,
/// crash.
const BAD_INPUT: [i32; 3] = [70, 71, 77];

/// Tries `runs` inputs, after those kept from earlier runs.
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
        // New inputs go to the first folder; the others are read only: what broke once is tried
        // again, and a format that nobody guesses begins with a file of it.
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

/// Builds every target.
pub fn build(root: &Path) -> Result<Command, Failure> {
    instrumented(root, "build")
}

/// Cargo doing this with fuzz targets.
fn instrumented(root: &Path, verb: &str) -> Result<Command, Failure> {
    let mut command = cargo(root);
    command
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join(FLAG_SEPARATOR))
        .args([verb, "--release", "--manifest-path", "fuzz/Cargo.toml"])
        // Naming the target, even when it is the host, keeps the flags off build scripts.
        .args(["--target", &host_triple()?]);
    Ok(command)
}

fn require_cxx_compiler() -> Result<(), Failure> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // CXX may carry a wrapper or flags: only its first word is a program.
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
