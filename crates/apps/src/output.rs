//! Writes a file whole or not at all: writes it under another name beside it, syncs it, then
//! renames it. A symbolic link stays, and its target is replaced.
//!
//! A FIFO, a device and the missing target of a link are written directly, so a failure may leave a
//! part of the bytes there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file, so that it is complete or as it was before.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => replace(&fs::canonicalize(path)?, bytes),
        // A directory refuses to be opened.
        Ok(_) => OpenOptions::new().write(true).open(path)?.write_all(bytes),
        // A symbolic link without a target: the system makes the target.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            File::create(path)?.write_all(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(path, bytes),
        Err(error) => Err(error),
    }
}

/// Writes a regular file beside its place and renames it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    // What a killed process left behind, or a link that would lead elsewhere.
    fs::remove_file(&beside).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| {
        fs::remove_file(&beside).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// An empty folder.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("slackwater-output-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn output_replaces_a_file_and_leaves_nothing_beside_it() {
        let folder = folder("file");
        let path = folder.join("model");
        fs::write(folder.join("model.part"), "of a killed process").unwrap();
        for text in ["one", "two"] {
            write_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(names(&folder), ["model"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn output_keeps_a_link_and_replaces_its_target() {
        let folder = folder("link");
        for there in [true, false] {
            let target = folder.join(format!("target-{there}"));
            let link = folder.join(format!("link-{there}"));
            if there {
                fs::write(&target, "before").unwrap();
            }
            std::os::unix::fs::symlink(&target, &link).unwrap();
            write_whole(&link, b"after").unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), "after");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn output_writes_through_devices_and_fifos() {
        use std::os::unix::fs::FileTypeExt;
        let full = write_whole(Path::new("/dev/full"), b"model").expect_err("it takes nothing");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        write_whole(Path::new("/dev/null"), b"model").unwrap();
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        let folder = folder("fifo");
        let fifo = folder.join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read_to_string(fifo).unwrap()
        });
        write_whole(&fifo, b"model").unwrap();
        assert_eq!(reader.join().unwrap(), "model");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        write_whole(&folder, b"model").expect_err("it is a directory");
        fs::remove_dir_all(folder).unwrap();
    }
}
