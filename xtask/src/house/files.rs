//! Reads the files that the rules apply to: those that git tracks, and new files that git does not
//! ignore.

use std::{fs, io, path::Path, process::Command};

use super::File;

/// The text files under `root`, sorted by path. An error comes with the path that caused it.
///
/// Files that are not UTF-8 are left out, because no rule applies to them. Without git, or outside
/// a clone, walks the folder, without build products and hidden folders.
pub fn read(root: &Path) -> Result<Vec<File>, (String, io::Error)> {
    let mut paths = match known_to_git(root) {
        Some(paths) => paths,
        None => walk(root)?,
    };
    paths.sort();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        match fs::read(root.join(&path)) {
            Ok(bytes) => files.extend(String::from_utf8(bytes).ok().map(|text| File { path, text })),
            // The file is deleted, and the deletion is not committed yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err((path, error)),
        }
    }
    Ok(files)
}

/// The files that git tracks or would add; none if git fails.
fn known_to_git(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| paths.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(root: &Path) -> Result<Vec<String>, (String, io::Error)> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let at = |error| (folder.display().to_string(), error);
        for entry in fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            let path = entry.path();
            let kind = entry.file_type().map_err(at)?;
            if kind.is_dir() && !is_generated(&path) {
                folders.push(path);
            } else if kind.is_file() {
                let inside = path.strip_prefix(root).unwrap_or(&path);
                paths.push(inside.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    Ok(paths)
}

/// Whether a folder holds build products, inputs that the fuzzer found, or a tool's own files.
fn is_generated(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let kept = name == ".cargo" || name == ".ci" || name == ".github";
    let generated = ["target", "node_modules", "__pycache__", "corpus", "artifacts"];
    !kept && (generated.contains(&&*name) || name.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the repository")
    }

    #[test]
    fn read_finds_files_with_git_and_without() {
        for path in ["xtask/src/house/files.rs", ".cargo/config.toml", "README.md"] {
            assert!(walk(root()).expect("the repository can be read").contains(&path.to_owned()), "{path}");
            let read = read(root()).expect("the repository can be read");
            assert!(read.iter().any(|file| file.path == path), "{path}");
        }
    }

    #[test]
    fn walk_leaves_out_build_products() {
        assert!(is_generated(Path::new("/repository/target")));
        assert!(is_generated(Path::new("/repository/.git")));
        assert!(!is_generated(Path::new("/repository/.github")));
        assert!(!is_generated(Path::new("/repository/crates")));
    }
}
