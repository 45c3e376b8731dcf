//! `cargo xtask`: builds, tests and checks the repository. `cargo xtask help` lists the commands.
//!
//! A command becomes a list of steps ([`steps`]), which are data. [`run`] performs them in order,
//! times them, stops at the first that fails, and prints how to run that step alone.

mod ahead;
mod command;
mod dependencies;
mod fuzz;
mod graph;
mod house;
mod metadata;
mod python;
mod run;
mod steps;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use command::Command;

/// Exit status for a command line that cannot be understood. A failed step has another.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let command = match Command::parse(&arguments) {
        Ok(Command::Help(topic)) => {
            print!("{}", topic.text());
            return ExitCode::SUCCESS;
        }
        Ok(command) => command,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let root = repository_root();
    let targets = match metadata::fuzz_targets(&root) {
        Ok(targets) => targets,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    match steps::steps(&command, &targets) {
        Ok(steps) => run::run(&root, command.name(), &steps),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(USAGE)
        }
    }
}

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the repository").to_path_buf()
}
