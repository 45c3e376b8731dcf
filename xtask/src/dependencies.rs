//! Which crates of others the workspace may use: their licences, sources and duplicates, by the
//! policy in deny.toml.
//!
//! The own check reads `cargo metadata`, needs no other program and takes a second. cargo-deny
//! reads the same policy and checks advisories, too ([`deny`]).

mod deny;
mod licence;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use toml::Table;

use crate::metadata;
use crate::run::Failure;

/// The policy's file.
const POLICY: &str = "deny.toml";
/// What `cargo metadata` writes before the address of a registry.
const REGISTRY: &str = "registry+";

/// Who checks the dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checker {
    /// The check of this file.
    Own,
    /// That, and then cargo-deny.
    CargoDeny,
}

/// A crate that the workspace consists of or depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: Option<String>,
    /// None for crates of the workspace.
    pub source: Option<String>,
}

/// What deny.toml allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    target: String,
    licences: BTreeSet<String>,
    /// Crates, as `name@version`, that are allowed beside another version.
    duplicates: BTreeSet<String>,
    registries: BTreeSet<String>,
}

/// A dependency that breaks the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    Licence {
        dependency: String,
        licence: Option<String>,
    },
    Source {
        dependency: String,
        source: String,
    },
    Duplicate {
        name: String,
        versions: Vec<String>,
    },
    /// deny.toml allows a duplicate that there is not.
    NoDuplicate {
        dependency: String,
    },
}

/// Runs a check of the dependencies.
pub fn run(root: &Path, checker: Checker) -> Result<(), Failure> {
    let text =
        std::fs::read_to_string(root.join(POLICY)).map_err(|error| Failure::File { path: POLICY.to_owned(), error })?;
    let policy = Policy::read(&text).map_err(|reason| Failure::Policy { path: POLICY, reason })?;
    let dependencies = metadata::dependencies(root, &policy.target).map_err(Failure::Metadata)?;
    let violations = check(&dependencies, &policy);
    if !violations.is_empty() {
        return Err(Failure::Dependencies(violations));
    }
    println!("{} crates: licences, duplicates and sources are as {POLICY} allows", dependencies.len());
    match checker {
        Checker::Own => Ok(()),
        Checker::CargoDeny => deny::run(root),
    }
}

impl Policy {
    /// Reads deny.toml, as far as the own check needs it.
    fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let list = |section: &str, name: &str| {
            let list = table.get(section).and_then(|section| section.get(name)).and_then(toml::Value::as_array);
            list.ok_or_else(|| format!("there is no list `{name}` in [{section}]"))
        };
        let texts = |section: &str, name: &str| -> Result<Vec<String>, String> {
            let text = |value: &toml::Value| value.as_str().map(str::to_owned);
            let texts: Option<Vec<String>> = list(section, name)?.iter().map(text).collect();
            texts.ok_or_else(|| format!("`{name}` in [{section}] has an entry that is no text"))
        };
        let name_of = |skip: &toml::Value| skip.get("crate").and_then(toml::Value::as_str).map(str::to_owned);
        let duplicates: Option<BTreeSet<String>> = list("bans", "skip")?.iter().map(name_of).collect();
        Ok(Self {
            target: texts("graph", "targets")?.into_iter().next().ok_or("`targets` in [graph] is empty")?,
            licences: texts("licenses", "allow")?.into_iter().collect(),
            duplicates: duplicates.ok_or("`skip` in [bans] has an entry without `crate`")?,
            registries: texts("sources", "allow-registry")?.into_iter().collect(),
        })
    }
}

/// All violations of the policy.
fn check(dependencies: &[Dependency], policy: &Policy) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Dependency { name, version, licence, source } in dependencies {
        let dependency = format!("{name} {version}");
        versions.entry(name).or_default().insert(version);
        let is_allowed = |licence: &String| licence::is_allowed(licence, &policy.licences);
        if !licence.as_ref().is_some_and(is_allowed) {
            violations.push(Violation::Licence { dependency: dependency.clone(), licence: licence.clone() });
        }
        let registry = |source: &String| source.strip_prefix(REGISTRY).map(str::to_owned);
        if let Some(source) = source
            && !registry(source).is_some_and(|registry| policy.registries.contains(&registry))
        {
            violations.push(Violation::Source { dependency, source: source.clone() });
        }
    }
    let is_skipped = |name: &str, version: &str| policy.duplicates.contains(&format!("{name}@{version}"));
    for (name, versions) in &versions {
        let rest: Vec<&str> = versions.iter().copied().filter(|version| !is_skipped(name, version)).collect();
        if rest.len() > 1 {
            let versions = rest.into_iter().map(str::to_owned).collect();
            violations.push(Violation::Duplicate { name: (*name).to_owned(), versions });
        }
    }
    let is_there = |dependency: &String| {
        let (name, version) = dependency.split_once('@').unwrap_or((dependency, ""));
        versions.get(name).is_some_and(|versions| versions.len() > 1 && versions.contains(version))
    };
    let needless = policy.duplicates.iter().filter(|dependency| !is_there(dependency));
    violations.extend(needless.map(|dependency| Violation::NoDuplicate { dependency: dependency.clone() }));
    violations
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Licence { dependency, licence: Some(licence) } => write!(
                f,
                "{dependency} has the licence `{licence}`; use another crate, or add the licence to [licenses] if it \
                 asks no more than those there"
            ),
            Self::Licence { dependency, licence: None } => {
                write!(f, "{dependency} names no licence; use another crate")
            }
            Self::Source { dependency, source } => {
                write!(f, "{dependency} comes from {source}; use a release from crates.io")
            }
            Self::Duplicate { name, versions } => write!(
                f,
                "{name} is built in {} versions ({}); `cargo tree --invert {name}@{}` shows which crate needs which. \
                 Update one of them, or add the older version to `skip` in [bans] with the reason",
                versions.len(),
                versions.join(", "),
                versions[0],
            ),
            Self::NoDuplicate { dependency } => {
                write!(f, "{dependency} is no duplicate any more; remove it from `skip` in [bans]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "https://index.example/";

    fn dependency(name: &str, version: &str, licence: &str, source: Option<&str>) -> Dependency {
        Dependency {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: Some(licence.to_owned()).filter(|licence| !licence.is_empty()),
            source: source.map(str::to_owned),
        }
    }

    fn policy(skip: &[&str]) -> Policy {
        let skip: Vec<String> = skip.iter().map(|name| format!("{{ crate = \"{name}\" }}")).collect();
        let text = format!(
            "[graph]\ntargets = [\"t\"]\n[licenses]\nallow = [\"MIT\"]\n[bans]\nskip = [{}]\n\
             [sources]\nallow-registry = [\"{INDEX}\"]\n",
            skip.join(", ")
        );
        Policy::read(&text).expect("a policy")
    }

    #[test]
    fn dependency_without_an_allowed_licence_or_source_is_named() {
        let index = format!("registry+{INDEX}");
        let from_git = "git+https://git.example/crate";
        for (given, expected) in [
            (dependency("own", "1.0.0", "MIT", None), vec![]),
            (dependency("good", "1.0.0", "MIT", Some(&index)), vec![]),
            (dependency("viral", "1.0.0", "GPL-3.0", Some(&index)), vec!["viral 1.0.0 has the licence `GPL-3.0`"]),
            (dependency("silent", "1.0.0", "", Some(&index)), vec!["silent 1.0.0 names no licence"]),
            (dependency("fork", "1.0.0", "MIT", Some(from_git)), vec!["fork 1.0.0 comes from git+https"]),
            (dependency("other", "1.0.0", "MIT", Some("registry+https://else/")), vec!["other 1.0.0 comes from"]),
        ] {
            let found: Vec<String> =
                check(std::slice::from_ref(&given), &policy(&[])).iter().map(Violation::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{given:?}: {found:?}");
            found.iter().zip(expected).for_each(|(found, words)| assert!(found.starts_with(words), "{found}"));
        }
    }

    #[test]
    fn duplicate_is_named_unless_all_but_one_version_is_skipped() {
        let twice = ["1.0.0", "2.0.0"].map(|version| dependency("twice", version, "MIT", None));
        let thrice = [&twice[..], &[dependency("twice", "3.0.0", "MIT", None)]].concat();
        let versions = |versions: &[&str]| Violation::Duplicate {
            name: "twice".to_owned(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        };
        let needless = |dependency: &str| Violation::NoDuplicate { dependency: dependency.to_owned() };
        for (dependencies, skip, expected) in [
            (&twice[..], &[][..], vec![versions(&["1.0.0", "2.0.0"])]),
            (&twice, &["twice@1.0.0"], vec![]),
            (&thrice, &["twice@1.0.0"], vec![versions(&["2.0.0", "3.0.0"])]),
            (&twice[..1], &["twice@1.0.0"], vec![needless("twice@1.0.0")]),
            (&twice, &["twice@1.0.0", "twice@1.5.0"], vec![needless("twice@1.5.0")]),
        ] {
            assert_eq!(check(dependencies, &policy(skip)), expected, "{skip:?}");
        }
    }

    #[test]
    fn policy_that_lacks_a_list_is_refused_with_its_name() {
        let error = Policy::read("[graph]\ntargets = []\n[bans]\nskip = []").expect_err("a list lacks");
        assert_eq!(error, "`targets` in [graph] is empty");
        let error =
            Policy::read("[bans]\nskip = [{ name = \"x\" }]\n[graph]\ntargets = [\"t\"]\n[licenses]\nallow = []")
                .expect_err("no name of a crate");
        assert!(error.contains("without `crate`"), "{error}");
    }
}
