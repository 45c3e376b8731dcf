//! The crate graph: which crate may depend on which. [`check`] is a pure function from packages to
//! violations, each with its reason.

use std::fmt;

/// A package of the workspace, as far as the check needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    /// The package's folder, relative to the root of the repository.
    pub folder: String,
    /// Package names of the dependencies of its code and build script.
    pub dependencies: Vec<String>,
}

/// A place where the graph breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// [`ORDER`] has no crate of this name in this folder.
    Unlisted { package: String, folder: String },
    /// A crate depends on one that is not above it in [`ORDER`].
    OutOfOrder { package: String, dependency: String },
    /// The first crate depends on something.
    TypesDepends { dependency: String },
    /// A machine depends on I/O. The path goes from the machine to the crate that does I/O.
    MachineReachesIo { path: Vec<String> },
    /// The crate of learning programs depends on more than it should need.
    AppsSees { dependency: String },
}

const TYPES: &str = "slackwater-types";
const LEASE: &str = "slackwater-lease";
const SHARD: &str = "slackwater-shard";
const WORKER: &str = "slackwater-worker";
const COORDINATOR: &str = "slackwater-coordinator";
const ROUTE: &str = "slackwater-route";
const APPS: &str = "slackwater-apps";
const XTASK: &str = "xtask";

/// Every crate, as (folder under crates/, package). A crate depends only on crates above it. Some
/// names are reserved for crates that do not exist yet.
const ORDER: [(&str, &str); 26] = [
    ("types", TYPES),
    ("wire", "slackwater-wire"),
    ("codec", "slackwater-codec"),
    ("update", "slackwater-update"),
    ("identity", "slackwater-identity"),
    ("net", "slackwater-net"),
    ("store", "slackwater-store"),
    ("observe", "slackwater-observe"),
    ("lease", LEASE),
    ("shard", SHARD),
    ("worker", WORKER),
    ("coordinator", COORDINATOR),
    ("route", ROUTE),
    ("sim", "slackwater-sim"),
    ("node", "slackwater-node"),
    ("client", "slackwater"),
    ("schedule", "slackwater-schedule"),
    ("data", "slackwater-data"),
    ("apps", APPS),
    ("launch", "slackwater-launch"),
    ("bench", "slackwater-bench"),
    ("gpu", "slackwater-gpu"),
    ("forecast", "slackwater-forecast"),
    ("inference", "slackwater-inference"),
    ("cli", "slackwater-cli"),
    ("python", "slackwater-python"),
];

/// The sans-I/O machines: a simulator drives them, so they must not depend on I/O.
const MACHINES: [&str; 5] = [LEASE, SHARD, WORKER, COORDINATOR, ROUTE];

/// The crates that do I/O, on which no machine may depend, directly or through another crate.
const IO: [&str; 5] = ["slackwater-net", "slackwater-store", "mio", "tokio", "socket2"];

/// The only crates of Slackwater on which learning programs may depend.
const SEEN_BY_APPS: [&str; 3] = ["slackwater", "slackwater-data", "slackwater-schedule"];

/// All violations in the graph of `packages`.
pub fn check(packages: &[Package]) -> Vec<Violation> {
    let mut violations: Vec<Violation> = packages.iter().flat_map(check_package).collect();
    for machine in packages.iter().filter(|package| MACHINES.contains(&package.name.as_str())) {
        reach_io(packages, machine, &mut vec![machine.name.clone()], &mut violations);
    }
    violations
}

fn check_package(package: &Package) -> Vec<Violation> {
    let Package { name, folder, dependencies } = package;
    if name == XTASK && folder == XTASK {
        return Vec::new();
    }
    let listed = place(name).is_some_and(|place| *folder == format!("crates/{}", ORDER[place].0));
    let unlisted = || Violation::Unlisted { package: name.clone(), folder: folder.clone() };
    let mut violations: Vec<Violation> = if listed { Vec::new() } else { vec![unlisted()] };
    for dependency in dependencies {
        violations.extend(check_dependency(name, dependency));
    }
    violations
}

/// The violation by this dependency, by the most specific rule. [`reach_io`] finds I/O of machines.
fn check_dependency(package: &str, dependency: &str) -> Option<Violation> {
    let ours = place(dependency);
    if package == TYPES {
        return Some(Violation::TypesDepends { dependency: dependency.to_owned() });
    }
    if MACHINES.contains(&package) && IO.contains(&dependency) {
        return None;
    }
    if package == APPS && ours.is_some() && !SEEN_BY_APPS.contains(&dependency) {
        return Some(Violation::AppsSees { dependency: dependency.to_owned() });
    }
    (place(package)? <= ours?)
        .then(|| Violation::OutOfOrder { package: package.to_owned(), dependency: dependency.to_owned() })
}

/// Follows dependencies inside the workspace from `package`, and adds a violation for each that
/// does I/O. `path` leads from a machine to `package`.
fn reach_io(packages: &[Package], package: &Package, path: &mut Vec<String>, violations: &mut Vec<Violation>) {
    for dependency in &package.dependencies {
        if path.contains(dependency) {
            continue;
        }
        path.push(dependency.clone());
        if IO.contains(&dependency.as_str()) {
            violations.push(Violation::MachineReachesIo { path: path.clone() });
        } else if let Some(next) = packages.iter().find(|package| package.name == *dependency) {
            reach_io(packages, next, path, violations);
        }
        path.pop();
    }
}

/// The package's index in [`ORDER`].
fn place(package: &str) -> Option<usize> {
    ORDER.iter().position(|(_, name)| *name == package)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted { package, folder } => write!(
                f,
                "{package} in {folder}/ is not in the list of crates: add it to ORDER in xtask/src/graph.rs, or move its \
                 code to an existing crate"
            ),
            Self::OutOfOrder { package, dependency } => {
                write!(f, "{package} depends on {dependency}, which is not above it in ORDER in xtask/src/graph.rs")
            }
            Self::TypesDepends { dependency } => {
                write!(
                    f,
                    "{TYPES} depends on {dependency}: it must depend on nothing, because every crate depends on it"
                )
            }
            Self::MachineReachesIo { path } => {
                write!(f, "{}: machines must not depend on I/O, so that a simulator can drive them", path.join(" -> "))
            }
            Self::AppsSees { dependency } => {
                write!(
                    f,
                    "{APPS} depends on {dependency}: of Slackwater's crates, it may depend on {} only",
                    SEEN_BY_APPS.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|&name| name.to_owned()).collect();
        Package { name: name.to_owned(), folder: folder.to_owned(), dependencies }
    }

    fn good() -> Vec<Package> {
        vec![
            package("crates/types", TYPES, &[]),
            package("crates/wire", "slackwater-wire", &[TYPES, "bytemuck"]),
            package("crates/lease", LEASE, &[TYPES]),
            package("crates/shard", SHARD, &[TYPES, LEASE, "slackwater-wire", "thiserror"]),
            package("crates/net", "slackwater-net", &["slackwater-wire", "mio", "socket2"]),
            package("crates/node", "slackwater-node", &[SHARD, "slackwater-net"]),
            package("crates/client", "slackwater", &[TYPES, "slackwater-node"]),
            package("crates/data", "slackwater-data", &["slackwater"]),
            package("crates/apps", APPS, &["slackwater", "slackwater-data", "rand"]),
            package("crates/cli", "slackwater-cli", &["slackwater", APPS, "anyhow", "clap"]),
            package("xtask", XTASK, &["serde_json"]),
        ]
    }

    #[test]
    fn check_accepts_a_graph_in_order() {
        assert_eq!(check(&good()), []);
    }

    #[test]
    fn check_names_each_wrong_dependency_once() {
        let out_of_order = |package: &str, dependency: &str| Violation::OutOfOrder {
            package: package.to_owned(),
            dependency: dependency.to_owned(),
        };
        let reaches =
            |path: &[&str]| Violation::MachineReachesIo { path: path.iter().map(|&name| name.to_owned()).collect() };
        let apps_sees = |dependency: &str| Violation::AppsSees { dependency: dependency.to_owned() };
        let types_depends = |dependency: &str| Violation::TypesDepends { dependency: dependency.to_owned() };
        let table = [
            ("slackwater-wire", SHARD, out_of_order("slackwater-wire", SHARD)),
            (LEASE, SHARD, out_of_order(LEASE, SHARD)),
            ("slackwater-net", "slackwater-net", out_of_order("slackwater-net", "slackwater-net")),
            ("slackwater-node", "slackwater", out_of_order("slackwater-node", "slackwater")),
            ("slackwater-data", APPS, out_of_order("slackwater-data", APPS)),
            (TYPES, "serde", types_depends("serde")),
            (TYPES, "slackwater-wire", types_depends("slackwater-wire")),
            (SHARD, "slackwater-net", reaches(&[SHARD, "slackwater-net"])),
            (SHARD, "slackwater-store", reaches(&[SHARD, "slackwater-store"])),
            (SHARD, "mio", reaches(&[SHARD, "mio"])),
            (SHARD, "socket2", reaches(&[SHARD, "socket2"])),
            (SHARD, "tokio", reaches(&[SHARD, "tokio"])),
            ("slackwater-wire", "tokio", reaches(&[SHARD, "slackwater-wire", "tokio"])),
            (APPS, TYPES, apps_sees(TYPES)),
            (APPS, "slackwater-net", apps_sees("slackwater-net")),
            (APPS, "slackwater-cli", apps_sees("slackwater-cli")),
        ];
        for (from, to, expected) in table {
            let mut packages = good();
            let package = packages.iter_mut().find(|package| package.name == from).unwrap();
            package.dependencies.push(to.to_owned());
            assert_eq!(check(&packages), [expected], "{from} -> {to}");
        }
    }

    #[test]
    fn check_names_a_crate_with_an_unlisted_name_or_folder() {
        for (folder, name) in [
            ("crates/common", "slackwater-common"),
            ("crates/common", "slackwater-codec"),
            ("crates/codec", "codec"),
            ("tools", "tools"),
            ("crates/xtask", XTASK),
        ] {
            let mut packages = good();
            packages.push(package(folder, name, &[]));
            let expected = Violation::Unlisted { package: name.to_owned(), folder: folder.to_owned() };
            assert_eq!(check(&packages), [expected], "{name} in {folder}");
        }
    }

    #[test]
    fn check_ends_on_a_cycle_and_names_it() {
        let packages =
            [package("crates/wire", "slackwater-wire", &[SHARD]), package("crates/shard", SHARD, &["slackwater-wire"])];
        let expected = Violation::OutOfOrder { package: "slackwater-wire".into(), dependency: SHARD.into() };
        assert_eq!(check(&packages), [expected]);
    }
}
