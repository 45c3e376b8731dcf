//! The store notices and names every kind of damage, and names the whole checkpoint before it.

use crate::support::{Folder, JOB, assert_holds, files, manifest, publish, shards, table};
use std::fs;
use std::path::PathBuf;
use store::{CheckpointName, Opened, Problem, Store, StoreError, StoreSettings};

/// A store of two checkpoints. The newer one also has residuals.
struct Two {
    folder: Folder,
    store: Store,
    first: CheckpointName,
    second: CheckpointName,
}

impl Two {
    fn new() -> Self {
        let folder = Folder::new();
        let store = folder.store();
        let first = publish(&store, 1).unwrap();
        let writing = store.begin(JOB).unwrap();
        let mut manifest = manifest(2, vec![table("weights", &shards(2), &writing).unwrap()]);
        manifest.residuals = vec![writing.residuals("3", &[("weights", b"not sent yet")]).unwrap()];
        writing.publish(&manifest).unwrap();
        Self { folder, store, first, second: writing.name() }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(self.second.to_string()).join(file)
    }

    /// Opens the newest checkpoint and reads all of it.
    fn verify(&self) -> Result<(), StoreError> {
        self.store.newest(Some(JOB))?.verify()
    }

    /// The problem of the second checkpoint. Checks that the error names the first one.
    fn problem(&self) -> Problem {
        let error = self.verify().expect_err("damage was not noticed");
        let text = error.to_string();
        let StoreError::Damaged { name, problem, previous, .. } = error else { panic!("{text}") };
        assert_eq!((name, previous), (self.second, Some(self.first)), "{text}");
        assert!(
            text.contains(&self.second.to_string()) && text.contains(&format!("before it is {}", self.first)),
            "{text}"
        );
        *problem
    }
}

#[test]
fn a_change_of_any_byte_of_any_file_is_noticed() {
    let two = Two::new();
    two.verify().unwrap();
    let paths = files(&two.folder.path().join(two.second.to_string()));
    assert_eq!(paths.len(), 4);
    for path in paths {
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            // Flip each bit in turn, and change whitespace, which JSON ignores.
            changed[at] = if whole[at] == b'\n' { b' ' } else { whole[at] ^ (1 << (at % 8)) };
            fs::write(&path, &changed).unwrap();
            let problem = two.problem();
            let manifest = path.ends_with("manifest.json");
            let named = match problem {
                Problem::Manifest { .. } | Problem::OtherVersion { .. } => manifest,
                Problem::Checksum { file, .. } => path.ends_with(file),
                other => panic!("byte {at} of {}: {other}", path.display()),
            };
            assert!(named, "byte {at} of {}", path.display());
        }
        fs::write(&path, &whole).unwrap();
    }
    two.verify().unwrap();
}

#[test]
fn a_file_that_ends_early_or_late_is_noticed() {
    let two = Two::new();
    for path in files(&two.folder.path().join(two.second.to_string())) {
        let whole = fs::read(&path).unwrap();
        let longer = [&whole[..], b"\n"].concat();
        for bytes in (0..whole.len()).map(|end| &whole[..end]).chain([&longer[..]]) {
            fs::write(&path, bytes).unwrap();
            match two.problem() {
                Problem::Manifest { .. } => assert!(path.ends_with("manifest.json")),
                Problem::Length { file, found, wanted, .. } => {
                    assert!(path.ends_with(file));
                    assert_eq!((found, wanted), (bytes.len() as u64, whole.len() as u64));
                }
                other => panic!("{} of {} bytes: {other}", bytes.len(), path.display()),
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    two.verify().unwrap();
}

#[test]
fn a_manifest_that_names_a_missing_shard_says_which() {
    let two = Two::new();
    let opened = two.store.newest(None).unwrap();
    let file = &opened.manifest().tables[0].shards[1].file.name;
    fs::remove_file(two.path(file)).unwrap();
    assert_eq!(two.problem(), Problem::Missing { file: file.clone(), holds: "shard 1 of table `weights`".into() });
    // A reader that had opened it before notices as well.
    let error = opened.shard("weights", 1).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { previous: Some(_), .. }) && error.to_string().contains("is missing")
    );
    assert_eq!(opened.shard("weights", 0).unwrap(), shards(2)[0]);
}

#[test]
fn a_checkpoint_without_its_manifest_is_unfinished() {
    let two = Two::new();
    fs::remove_file(two.path("manifest.json")).unwrap();
    let newest = two.store.newest(Some(JOB)).unwrap();
    assert_eq!((newest.name(), newest.unfinished()), (two.first, &[two.second][..]));
    assert_holds(&newest, 1);
}

#[test]
fn other_versions_and_other_kinds_of_manifest_are_told_apart() {
    let two = Two::new();
    let path = two.path("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"version\": 2", "\"version\": 7")).unwrap();
    assert_eq!(two.problem(), Problem::OtherVersion { found: 7 });
    assert!(two.verify().unwrap_err().to_string().contains("use the release that wrote it"));
    for (text, words) in [
        ("[]", "not a JSON object"),
        ("", "cut off"),
        ("{}", "not the manifest of a checkpoint"),
        ("{\"format\": \"slackwater checkpoint\"}", "checksum does not match"),
        ("{\"format\": \"slackwater checkpoint\", \"version\": -1}", "checksum does not match"),
    ] {
        fs::write(&path, text).unwrap();
        assert!(two.problem().to_string().contains(words), "{text}: {}", two.problem());
    }
}

#[test]
fn a_damaged_checkpoint_names_the_newest_whole_one() {
    let two = Two::new();
    let third = publish(&two.store, 3).unwrap();
    fs::write(two.path("manifest.json"), "").unwrap();
    fs::write(two.folder.path().join(third.to_string()).join("manifest.json"), "").unwrap();
    let error = two.verify().unwrap_err();
    assert!(
        matches!(error, StoreError::Damaged { name, previous, .. } if name == third && previous == Some(two.first))
    );
}

#[test]
fn swapped_files_are_noticed() {
    let two = Two::new();
    let opened = two.store.newest(None).unwrap();
    let entries = &opened.manifest().tables[0].shards;
    fs::copy(two.path(&entries[0].file.name), two.path("other")).unwrap();
    fs::rename(two.path(&entries[1].file.name), two.path(&entries[0].file.name)).unwrap();
    fs::rename(two.path("other"), two.path(&entries[1].file.name)).unwrap();
    assert!(matches!(two.problem(), Problem::Length { .. } | Problem::Checksum { .. }));
}

#[test]
fn a_checkpoint_opens_by_its_folder_or_its_stores() {
    let two = Two::new();
    let settings = StoreSettings::from_environment();
    let folder = two.folder.path().display();
    let open = |location: String| Opened::at(&location, &settings).unwrap().name();
    assert_eq!(open(format!("{folder}")), two.second);
    assert_eq!(open(format!("{folder}/{}/", two.first)), two.first);
    assert_eq!(open(format!("file://{folder}/{}", two.first)), two.first);
}
