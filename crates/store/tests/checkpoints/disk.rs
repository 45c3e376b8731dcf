//! Faults of a folder: a full disk, no permission, a file in the way.

use crate::support::namespace::{Inside, inside, mount};
use crate::support::{Folder, JOB, assert_holds, files, manifest, publish, shard, skipped, table};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use store::{Store, StoreError};

#[test]
fn a_full_disk_is_reported_and_older_checkpoints_stay_whole() {
    const TEST: &str = "disk::a_full_disk_is_reported_and_older_checkpoints_stay_whole";
    if !inside(TEST, Inside::Mounts) {
        return;
    }
    let folder = Folder::new();
    if let Err(why) = mount(folder.path(), "size=24m") {
        return skipped(TEST, &why);
    }
    let store = folder.store();
    publish(&store, 1).unwrap();
    let before = files(folder.path());

    // The disk fills in the middle of a file of many parts, and then at a small file.
    let writing = store.begin(JOB).unwrap();
    let error = table("weights", &[shard("weights", 0, 2_000_000, 2)], &writing).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("write checkpoint-00000002") && text.contains(&folder.path().display().to_string()),
        "{text}"
    );
    assert!(text.contains("the disk is full") && text.contains("keep fewer checkpoints"), "{text}");
    writing.abandon().unwrap();
    assert_eq!(files(folder.path()), before, "something was left over");

    let writing = store.begin(JOB).unwrap();
    table("weights", &[shard("weights", 0, 1_400_000, 2)], &writing).unwrap();
    let error = table("other", &[shard("other", 0, 400_000, 2)], &writing).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    // The run is killed, and the next run removes the remains before it writes.
    assert_eq!(store.remove_unfinished().unwrap(), [writing.name()]);
    assert_eq!(files(folder.path()), before, "something was left over");
    assert_holds(&store.newest(Some(JOB)).unwrap(), 1);
    publish(&store, 2).unwrap();
    assert_holds(&store.newest(Some(JOB)).unwrap(), 2);
}

#[test]
fn a_manifest_on_a_full_disk_publishes_nothing() {
    const TEST: &str = "disk::a_manifest_on_a_full_disk_publishes_nothing";
    if !inside(TEST, Inside::Mounts) {
        return;
    }
    let folder = Folder::new();
    if let Err(why) = mount(folder.path(), "size=2m") {
        return skipped(TEST, &why);
    }
    let store = folder.store();
    let first = publish(&store, 1).unwrap();
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("weights", &[shard("weights", 0, 5, 2)], &writing).unwrap()];
    // Fill the rest of the disk.
    let rest = fs::write(folder.path().join("rest"), vec![1; 4 << 20]).unwrap_err();
    assert_eq!(rest.kind(), std::io::ErrorKind::StorageFull);
    let error = writing.publish(&manifest(2, tables.clone())).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(matches!(store.probe().unwrap_err(), StoreError::Full { .. }));
    let newest = store.newest(None).unwrap();
    assert_eq!((newest.name(), newest.unfinished()), (first, &[writing.name()][..]));
    fs::remove_file(folder.path().join("rest")).unwrap();
    writing.publish(&manifest(2, tables)).unwrap();
    store.newest(None).unwrap().verify().unwrap();
}

#[test]
fn a_read_only_folder_can_be_read_and_refuses_writes() {
    const TEST: &str = "disk::a_read_only_folder_can_be_read_and_refuses_writes";
    if !inside(TEST, Inside::Mounts) {
        return;
    }
    let folder = Folder::new();
    if let Err(why) = mount(folder.path(), "size=8m") {
        return skipped(TEST, &why);
    }
    let store = folder.store();
    publish(&store, 1).unwrap();
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("weights", &[shard("weights", 0, 5, 2)], &writing).unwrap()];
    mount(folder.path(), "remount,ro").unwrap();
    let errors = [
        publish(&store, 2).unwrap_err(),
        writing.shard(&shard("weights", 0, 600_000, 2)).unwrap_err(),
        writing.publish(&manifest(2, tables)).unwrap_err(),
        store.probe().unwrap_err(),
        store.remove_unfinished().unwrap_err(),
        Store::open(&format!("{}/new", folder.path().display())).unwrap().probe().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
        assert!(error.to_string().contains("is mounted read-only"), "{error}");
    }
    assert_holds(&store.newest(Some(JOB)).unwrap(), 1);
}

#[test]
fn a_folder_without_permission_is_reported() {
    const TEST: &str = "disk::a_folder_without_permission_is_reported";
    if !inside(TEST, Inside::Unprivileged) {
        return;
    }
    let folder = Folder::new();
    let store = folder.store();
    publish(&store, 1).unwrap();
    let allow = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    let written = [publish(&store, 2).unwrap_err(), store.probe().unwrap_err()];
    assert_holds(&store.newest(None).unwrap(), 1);
    allow(0o000);
    let read = [store.newest(None).unwrap_err(), store.begin(JOB).unwrap_err()];
    let below = Store::open(&format!("{}/below", folder.path().display())).unwrap_err();
    allow(0o755);
    for error in written.into_iter().chain(read).chain([below]) {
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
        assert!(error.to_string().contains("not permitted"), "{error}");
    }
}

#[test]
fn a_file_where_a_folder_should_be_is_named() {
    let folder = Folder::new();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for location in [format!("{}", file.display()), format!("{}/a/b", file.display())] {
        let error = Store::open(&location).unwrap_err();
        assert!(matches!(error, StoreError::NotAFolder { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{} is a file", file.display())), "{error}");
    }
    // A file lies where the checkpoint's folder would be.
    let store = folder.store();
    let writing = store.begin(JOB).unwrap();
    fs::write(folder.path().join(writing.name().to_string()), "").unwrap();
    let error = writing.shard(&shard("weights", 0, 5, 1)).unwrap_err();
    assert!(matches!(error, StoreError::NotAFolder { .. }), "{error}");
    assert!(error.to_string().contains("is a file, not a folder"), "{error}");
}

#[test]
fn a_folder_is_made_when_it_is_written_and_not_before() {
    let folder = Folder::new();
    let below = folder.path().join("runs/a run");
    let store = Store::open(below.to_str().unwrap()).unwrap();
    assert!(matches!(store.newest(None), Err(StoreError::Empty { .. })));
    assert!(!folder.path().join("runs").exists());
    publish(&store, 1).unwrap();
    assert!(files(&below).len() == 3, "{:?}", files(folder.path()));
    // Now that it exists, other spellings of its name open it.
    for spelling in ["runs/a run", "runs/./a run/", "runs//a run", "other/../runs/a run"] {
        fs::create_dir_all(folder.path().join("other")).unwrap();
        let store = Store::open(&format!("{}/{spelling}", folder.path().display())).unwrap();
        assert_holds(&store.newest(None).unwrap(), 1);
    }
    // A path through a missing folder is refused.
    let error = Store::open(&format!("{}/missing/../new", folder.path().display())).unwrap_err();
    assert!(matches!(error, StoreError::Location { .. }), "{error}");
}

#[test]
fn other_things_in_the_folder_are_left_alone() {
    let folder = Folder::new();
    let others = ["model.safetensors", "checkpoint-1/manifest.json", "checkpoint-00000001-00000001.bak/x"];
    for other in others {
        let path = folder.path().join(other);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "mine").unwrap();
    }
    let store = folder.store();
    assert_eq!(store.list().unwrap(), []);
    for clock in 1..=3 {
        publish(&store, clock).unwrap();
    }
    store.prune(std::num::NonZeroUsize::MIN).unwrap();
    store.remove_unfinished().unwrap();
    for other in others {
        assert_eq!(fs::read_to_string(folder.path().join(other)).unwrap(), "mine");
    }
}

#[test]
fn open_refuses_wrong_locations() {
    for (location, words) in [
        ("", "it is empty"),
        ("s3://", "names no bucket"),
        ("s3:///folder", "names no bucket"),
        ("s3://bucket/a//b", "empty"),
        ("gs://bucket/folder", "it should be a folder, file:///PATH, s3://BUCKET/FOLDER or memory:"),
        ("file://elsewhere/folder", "no folder of this machine"),
    ] {
        let error = Store::open(location).unwrap_err();
        assert!(matches!(error, StoreError::Location { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
