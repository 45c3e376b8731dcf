//! The Python package and its tests, in a virtual environment of their own under target/.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Failure, cargo, succeed};

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Built as the other crates are, and tested with NumPy; with PyTorch, too, where the environment has it. Some seconds once it is built.
    Core,
    /// Installed from its wheel, and tested with PyTorch, which is installed if it must be.
    Whole,
}

/// Builds, installs and tests.
pub fn run(root: &Path, part: Part) -> Result<(), Failure> {
    let folder = root.join("target/python");
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&folder).current_dir(root);
        succeed(make)?;
    }
    let needs: &[&str] = match part {
        Part::Core => &["numpy", "pytest"],
        Part::Whole => &["numpy", "pytest", "torch"],
    };
    let imports = format!("import {}", needs.join(", "));
    let has_all = Command::new(&python).args(["-c", &imports]).output().is_ok_and(|done| done.status.success());
    if !has_all {
        succeed(pip(&python, root, needs))?;
    }
    let mut test = Command::new(&python);
    test.args(["-m", "pytest", "-q", "--durations=5", "python/tests"]).current_dir(root);
    match part {
        Part::Core => {
            let mut build = cargo(root);
            build.args(["build", "-p", "slackwater-python"]);
            succeed(build)?;
            let package = lay_out(root, &folder)?;
            test.args(["-m", "not slow"]).env("PYTHONPATH", package);
        }
        Part::Whole => succeed(pip(&python, root, &["--force-reinstall", "--no-deps", "."]))?,
    }
    succeed(test)
}

fn pip(python: &Path, root: &Path, what: &[&str]) -> Command {
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(what).current_dir(root);
    install
}

/// The package as a wheel would have it, around the module that cargo has just built. Returns the folder to import it from.
fn lay_out(root: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let package = folder.join("package");
    let at = |path: &Path, error| Failure::File { path: path.display().to_string(), error };
    let into = package.join("slackwater");
    if into.exists() {
        std::fs::remove_dir_all(&into).map_err(|error| at(&into, error))?;
    }
    copy_sources(&root.join("python/slackwater"), &into).map_err(|error| at(&into, error))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let built = target.join("debug/lib_slackwater.so");
    std::fs::copy(&built, into.join("_slackwater.abi3.so")).map_err(|error| at(&built, error))?;
    Ok(package)
}

fn copy_sources(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "__pycache__" {
                copy_sources(&path, &to.join(name))?;
            }
        } else if path.extension().is_none_or(|extension| extension != "so") {
            std::fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
