//! Reads `cargo metadata`: the packages of the workspace and the fuzz targets, as far as the checks
//! need them.

use std::{fmt, io, path::Path};

use serde_json::Value;

use crate::{dependencies::Dependency, graph::Package, run::cargo};

/// Why `cargo metadata` could not be read.
#[derive(Debug)]
pub enum MetadataError {
    /// Cargo could not be started.
    NotStarted(io::Error),
    /// Cargo failed, with this error message.
    Refused(String),
    /// This part of the output is not the JSON that cargo documents.
    Unreadable(&'static str),
}

/// The packages of the workspace at `root`.
pub fn packages(root: &Path) -> Result<Vec<Package>, MetadataError> {
    let metadata = metadata(root, &["--no-deps", "--manifest-path", "Cargo.toml"])?;
    let root = string(&metadata["workspace_root"], "workspace_root")?;
    array(&metadata["packages"], "packages")?.iter().map(|package| read_package(package, root)).collect()
}

/// The names of the fuzz targets, in the order of fuzz/Cargo.toml.
pub fn fuzz_targets(root: &Path) -> Result<Vec<String>, MetadataError> {
    let metadata = metadata(root, &["--no-deps", "--manifest-path", "fuzz/Cargo.toml"])?;
    let mut names = Vec::new();
    for package in array(&metadata["packages"], "packages")? {
        for target in array(&package["targets"], "targets")? {
            if array(&target["kind"], "kind")?.iter().any(|kind| kind == "bin") {
                names.push(string(&target["name"], "name")?.to_owned());
            }
        }
    }
    Ok(names)
}

/// The crates of the workspace and all that they depend on, for this target and all features.
pub fn dependencies(root: &Path, target: &str) -> Result<Vec<Dependency>, MetadataError> {
    let metadata = metadata(root, &["--locked", "--all-features", "--filter-platform", target])?;
    array(&metadata["packages"], "packages")?.iter().map(read_dependency).collect()
}

fn metadata(root: &Path, arguments: &[&str]) -> Result<Value, MetadataError> {
    let output = cargo(root)
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .output()
        .map_err(MetadataError::NotStarted)?;
    if !output.status.success() {
        return Err(MetadataError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|_| MetadataError::Unreadable("document"))
}

fn read_package(package: &Value, root: &str) -> Result<Package, MetadataError> {
    let manifest = Path::new(string(&package["manifest_path"], "manifest_path")?);
    let folder = manifest.parent().unwrap_or(manifest);
    let mut dependencies = Vec::new();
    for dependency in array(&package["dependencies"], "dependencies")? {
        // Dependencies of a build script count like ordinary ones; those of tests do not count.
        if dependency["kind"] != "dev" {
            dependencies.push(string(&dependency["name"], "name")?.to_owned());
        }
    }
    Ok(Package {
        name: string(&package["name"], "name")?.to_owned(),
        folder: folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().replace('\\', "/"),
        dependencies,
    })
}

fn read_dependency(package: &Value) -> Result<Dependency, MetadataError> {
    let text = |field: &str| package[field].as_str().map(str::to_owned);
    Ok(Dependency {
        name: string(&package["name"], "name")?.to_owned(),
        version: string(&package["version"], "version")?.to_owned(),
        licence: text("license"),
        source: text("source"),
    })
}

fn array<'a>(value: &'a Value, field: &'static str) -> Result<&'a [Value], MetadataError> {
    value.as_array().map(Vec::as_slice).ok_or(MetadataError::Unreadable(field))
}

fn string<'a>(value: &'a Value, field: &'static str) -> Result<&'a str, MetadataError> {
    value.as_str().ok_or(MetadataError::Unreadable(field))
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(error) => write!(f, "cannot start cargo: {error}"),
            Self::Refused(words) => write!(f, "cargo metadata failed: {words}"),
            Self::Unreadable(field) => {
                write!(f, "cannot read `{field}` in the output of `cargo metadata`; its format may have changed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_package_keeps_dependencies_under_their_own_names_without_those_of_tests() {
        let package = serde_json::json!({
            "name": "slackwater-shard",
            "manifest_path": "/home/someone/slackwater/crates/shard/Cargo.toml",
            "dependencies": [
                { "name": "slackwater-types", "rename": "types", "kind": null },
                { "name": "cc", "rename": null, "kind": "build" },
                { "name": "proptest", "rename": null, "kind": "dev" },
            ],
        });
        let package = read_package(&package, "/home/someone/slackwater").unwrap();
        assert_eq!(package.name, "slackwater-shard");
        assert_eq!(package.folder, "crates/shard");
        assert_eq!(package.dependencies, ["slackwater-types", "cc"]);
    }
}
