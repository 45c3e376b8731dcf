//! Finds source files that have grown long enough to ask whether they still do one thing.

use std::{fs, io, path::Path};

/// Past this, a file deserves a second look.
pub const COMFORTABLE_LINES: usize = 500;

const SOURCE_EXTENSIONS: [&str; 2] = ["rs", "py"];

/// The source files under `root` of more than [`COMFORTABLE_LINES`] lines, longest first, with their lengths.
/// An error comes with the path that caused it.
pub fn long_files(root: &Path) -> Result<Vec<(String, usize)>, (String, io::Error)> {
    let mut long = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let at = |error| (folder.display().to_string(), error);
        for entry in fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            let path = entry.path();
            if entry.file_type().map_err(at)?.is_dir() {
                if !is_generated(&path) {
                    folders.push(path);
                }
            } else if is_source(&path) {
                let text = fs::read(&path).map_err(|error| (path.display().to_string(), error))?;
                let lines = text.iter().filter(|&&byte| byte == b'\n').count();
                if lines > COMFORTABLE_LINES {
                    long.push((path.strip_prefix(root).unwrap_or(&path).display().to_string(), lines));
                }
            }
        }
    }
    long.sort_by(|(a, a_lines), (b, b_lines)| b_lines.cmp(a_lines).then_with(|| a.cmp(b)));
    Ok(long)
}

/// Build products, and folders that tools keep for themselves.
fn is_generated(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name == "target" || name == "node_modules" || name.starts_with('.')
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| SOURCE_EXTENSIONS.iter().any(|known| extension == *known))
}
