//! Builds, installs and tests the Python package, in a virtual environment under target/.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Failure, cargo, succeed};

/// How much to build and test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Builds the module like the other crates, and tests it with NumPy and PyTorch, also for
    /// equality with DistributedDataParallel. If these packages cannot be fetched, skips tests that
    /// need them. Takes two minutes once the packages are there.
    Core,
    /// Installs the package from its wheel, also into an environment that has only Python. Runs all
    /// tests, the examples to their end, and the benchmark.
    Whole,
}

/// A program that uses the package without NumPy and PyTorch.
const USE: &str = "
import array, sys, slackwater
with slackwater.init():
    table = slackwater.Table('t', rows=2, updater='sum', slack=0)
    table.push(array.array('f', [1, 2]))
    out = array.array('f', [0, 0])
    table.pull(out=out)
assert out.tolist() == [1, 2], out
assert not {'numpy', 'torch'} & set(sys.modules)
";

/// The arguments of cargo that build the module. They also build the examples, which `xtask ci` has
/// already built with the features of all crates, so nothing is built a second time.
const BUILD: &str = "build --workspace --lib --examples";

/// The packages that all tests need.
const BASE: [&str; 2] = ["numpy", "pytest"];
const TORCH: &str = "torch";

/// The virtual environment of the tests.
const ENVIRONMENT: &str = "target/python";

/// The command that fetches the tests' packages into their environment, unless they are there. It
/// takes a minute or two, most of it waiting.
pub fn fetch(root: &Path) -> Command {
    let needs = [&BASE[..], &[TORCH]].concat();
    let imports = needs.join(", ");
    let packages = needs.join(" ");
    // --no-compile: Python compiles a module when it is first imported, and most are never
    // imported.
    let script = format!(
        "test -x {ENVIRONMENT}/bin/python || python3 -m venv {ENVIRONMENT}; {ENVIRONMENT}/bin/python -c 'import {imports}' || \
         {ENVIRONMENT}/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --retries=1 --timeout=20 {packages}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(root);
    command
}

/// Builds, installs and tests.
pub fn run(root: &Path, part: Part) -> Result<(), Failure> {
    let folder = root.join(ENVIRONMENT);
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&folder).current_dir(root);
        succeed(make)?;
    }
    match part {
        Part::Core => test_core(root, &folder, &python),
        Part::Whole => test_whole(root, &folder, &python),
    }
}

fn test_core(root: &Path, folder: &Path, python: &Path) -> Result<(), Failure> {
    let mut build = cargo(root);
    build.args(BUILD.split(' '));
    succeed(build)?;
    let package = lay_out(root, folder)?;
    // Few retries and a short time-out, so that a machine without a network does not wait long.
    let without_torch = [&["--retries=1", "--timeout=20"][..], &BASE].concat();
    if !imports(python, &[&BASE[..], &[TORCH]].concat())
        && succeed(fetch(root)).is_err()
        && succeed(pip(python, root, &without_torch)).is_err()
    {
        println!("    SKIPPED: python/tests: cannot fetch NumPy and pytest; only a short program without them is run");
        let mut usage = Command::new(python);
        usage.args(["-c", USE]).env("PYTHONPATH", package);
        return succeed(usage);
    }
    if !imports(python, &[TORCH]) {
        println!("    SKIPPED: tests of slackwater.torch: cannot fetch PyTorch");
    }
    let mut test = pytest(python, root);
    test.args(["-m", "not slow"]).env("PYTHONPATH", package);
    succeed(test)
}

fn test_whole(root: &Path, folder: &Path, python: &Path) -> Result<(), Failure> {
    succeed(fetch(root))?;
    let wheel = build_wheel(root, python, folder)?;
    succeed(pip(python, root, &["--force-reinstall", "--no-deps", &wheel]))?;
    install_bare(root, &folder.join("bare"), &wheel)?;
    succeed(pytest(python, root))?;
    let mut bench = Command::new(python);
    bench.args(["-m", "slackwater.bench", "--json"]).current_dir(folder);
    succeed(bench)
}

fn pytest(python: &Path, root: &Path) -> Command {
    let mut test = Command::new(python);
    test.args(["-m", "pytest", "-q", "--durations=5", "python/tests"]).current_dir(root);
    test
}

/// Whether Python can import these modules.
fn imports(python: &Path, modules: &[&str]) -> bool {
    let imports = format!("import {}", modules.join(", "));
    Command::new(python).args(["-c", &imports]).output().is_ok_and(|done| done.status.success())
}

/// Builds the wheel in an empty folder, and returns its path.
fn build_wheel(root: &Path, python: &Path, folder: &Path) -> Result<String, Failure> {
    let into = folder.join("wheel");
    let at = |error| Failure::File { path: into.display().to_string(), error };
    if into.exists() {
        std::fs::remove_dir_all(&into).map_err(at)?;
    }
    let mut make = Command::new(python);
    make.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir"]);
    make.arg(&into).arg(".").current_dir(root);
    succeed(make)?;
    let mut made = std::fs::read_dir(&into).map_err(at)?;
    let wheel = made.next().unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into())).map_err(at)?;
    Ok(wheel.path().display().to_string())
}

/// Installs and uses the wheel in a new environment, with no compiler and no other command in its
/// path.
fn install_bare(root: &Path, folder: &Path, wheel: &str) -> Result<(), Failure> {
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(folder).current_dir(root);
    succeed(make)?;
    let commands = folder.join("bin");
    let bare = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(commands.join(name));
        command.args(arguments).env_clear().env("PATH", &commands).current_dir(folder);
        succeed(command)
    };
    bare("python", &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel])?;
    bare("slackwater", &["--version"])?;
    bare("python", &["-c", USE])
}

fn pip(python: &Path, root: &Path, what: &[&str]) -> Command {
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(what).current_dir(root);
    install
}

/// Lays out the package as a wheel would, with the module that cargo has just built. Returns the
/// folder to import it from.
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
        let path = entry.path();
        let name = entry.file_name();
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
