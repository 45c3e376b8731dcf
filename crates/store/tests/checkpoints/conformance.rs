//! The conformance suite of stores: the same tests for memory, a folder, and a bucket of an S3
//! server.

use crate::support::{Folder, JOB, assert_holds, manifest, moto, publish, shard, shards, table};
use std::num::NonZeroUsize;
use std::thread;
use store::{CheckpointShard, Positions, Problem, RowNumbers, Store, StoreError};

/// An empty store, and the folder that it lies in, if any.
struct Fresh {
    store: Store,
    _folder: Option<Folder>,
}

fn memory(_: &str) -> Option<Fresh> {
    Some(Fresh { store: Store::open("memory:").unwrap(), _folder: None })
}

fn folder(_: &str) -> Option<Fresh> {
    let folder = Folder::new();
    let location = format!("file://{}/runs/one", folder.path().display());
    Some(Fresh { store: Store::open(&location).unwrap(), _folder: Some(folder) })
}

fn s3(test: &str) -> Option<Fresh> {
    let server = moto::address(test)?;
    Some(Fresh { store: moto::store(server, &moto::bucket(server)), _folder: None })
}

/// Runs each test in each kind of store.
macro_rules! conform {
    ($($test:ident),* $(,)?) => {
        conform!(@kind memory: $($test),*);
        conform!(@kind folder: $($test),*);
        conform!(@kind s3: $($test),*);
    };
    (@kind $kind:ident: $($test:ident),*) => {
        mod $kind {
            $(#[test]
            fn $test() {
                if let Some(fresh) = super::$kind(concat!(stringify!($kind), " ", stringify!($test))) {
                    super::$test(&fresh.store);
                }
            })*
        }
    };
}

conform!(
    an_empty_store_reports_that_it_is_empty,
    published_checkpoints_are_read_back,
    every_kind_of_shard_is_read_back,
    a_shard_of_many_parts_is_read_back,
    a_checkpoint_exists_exactly_when_its_manifest_does,
    threads_and_processes_write_one_checkpoint,
    a_shard_written_twice_keeps_its_first_file,
    residuals_are_read_back,
    prune_keeps_the_newest,
    prune_removes_unpublished_checkpoints,
    abandon_removes_every_file,
    publish_rejects_a_manifest_that_differs_from_the_files,
    another_jobs_checkpoints_are_refused,
    a_damaged_checkpoint_names_the_one_before_it,
    open_named_lists_the_checkpoints_there,
    a_probe_leaves_nothing,
);

fn names(store: &Store) -> Vec<store::CheckpointName> {
    store.list().unwrap().iter().map(|one| one.name).collect()
}

fn an_empty_store_reports_that_it_is_empty(store: &Store) {
    assert_eq!(store.list().unwrap(), []);
    let error = store.newest(None).unwrap_err();
    assert!(matches!(&error, StoreError::Empty { unfinished_ones, .. } if unfinished_ones.is_empty()), "{error}");
    assert!(error.to_string().contains("there is no checkpoint in "), "{error}");
    assert_eq!(store.prune(NonZeroUsize::MIN).unwrap(), store::Pruned::default());
}

fn published_checkpoints_are_read_back(store: &Store) {
    let first = publish(store, 10).unwrap();
    let second = publish(store, 20).unwrap();
    assert!(first < second && second.number() == first.number() + 1);
    let newest = store.newest(Some(JOB)).unwrap();
    assert_eq!((newest.name(), newest.unfinished()), (second, &[][..]));
    assert_holds(&newest, 20);
    assert_holds(&store.open_named(first, None).unwrap(), 10);
    assert_eq!(newest.manifest().leases, serde_json::json!({ "done": [[0, 7]] }));
    let summary = newest.summary();
    assert!(summary.contains("table `weights`: 11 rows of 2 f32"), "{summary}");
    let error = newest.shard("weights", 2).unwrap_err().to_string();
    assert!(error.contains("shard 2 of table `weights`") && error.contains("has none"), "{error}");
}

fn every_kind_of_shard_is_read_back(store: &Store) {
    let whole = |table: &'static str, positions, stride, rows, metadata: &'static [u8]| CheckpointShard {
        table: table.into(),
        index: 0,
        positions,
        stride,
        rows,
        metadata: metadata.into(),
    };
    let list = |list: &'static [u64]| Positions::List(list.into());
    let odd = [f32::NAN, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY];
    let all = [
        whole("none", list(&[]), 3, RowNumbers::F32([][..].into()), b""),
        whole("none of a run", Positions::Run { first: u64::MAX, count: 0 }, 1, RowNumbers::I64([][..].into()), b"x"),
        whole("one/with: a strange näme", list(&[u64::MAX]), 1, RowNumbers::I64([i64::MIN][..].into()), b"metadata"),
        whole("odd", Positions::Run { first: 7, count: 2 }, 2, RowNumbers::F32(odd[..].into()), b""),
        whole("doubles", list(&[2, 1]), 2, RowNumbers::F64([1e-300, f64::MAX, 0.1, -1.0][..].into()), &[0; 1000]),
        whole("last", Positions::Run { first: u64::MAX - 1, count: 2 }, 1, RowNumbers::F64([1.0, 2.0][..].into()), b""),
        whole("no width", Positions::Run { first: 0, count: 5 }, 0, RowNumbers::F64([][..].into()), b""),
    ];
    let writing = store.begin(JOB).unwrap();
    let tables = all.iter().map(|shard| table(&shard.table, std::slice::from_ref(shard), &writing).unwrap()).collect();
    writing.publish(&manifest(1, tables)).unwrap();
    let opened = store.newest(None).unwrap();
    opened.verify().unwrap();
    for shard in &all {
        let read = opened.shard(&shard.table, 0).unwrap();
        assert_eq!(read.rows.bytes(), shard.rows.bytes());
        assert_eq!((&read.positions, read.stride, &read.metadata), (&shard.positions, shard.stride, &shard.metadata));
    }
}

fn a_shard_of_many_parts_is_read_back(store: &Store) {
    // 16 bytes a row: six parts of 8 MiB, and a smaller one.
    let large = shard("large", 0, 3_000_001, 12_345);
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("large", std::slice::from_ref(&large), &writing).unwrap()];
    assert!(tables[0].shards[0].file.bytes > 48_000_000);
    writing.publish(&manifest(1, tables)).unwrap();
    let opened = store.newest(None).unwrap();
    opened.verify().unwrap();
    assert!(opened.shard("large", 0).unwrap() == large);
}

fn a_checkpoint_exists_exactly_when_its_manifest_does(store: &Store) {
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("weights", &shards(3), &writing).unwrap()];
    let listed = store.list().unwrap();
    assert_eq!(listed, [store::Listed { name: writing.name(), published: None }]);
    let error = store.newest(None).unwrap_err();
    assert!(matches!(&error, StoreError::Empty { unfinished_ones, .. } if unfinished_ones == &[writing.name()]));
    assert!(error.to_string().contains(&format!("never finished: {}", writing.name())), "{error}");
    let error = store.open_named(writing.name(), None).unwrap_err();
    let StoreError::Damaged { problem, previous: None, .. } = error else { panic!("{error}") };
    assert_eq!(*problem, Problem::Unfinished);
    writing.publish(&manifest(3, tables)).unwrap();
    assert!(store.list().unwrap()[0].published.is_some());
    assert_holds(&store.newest(None).unwrap(), 3);
    // A checkpoint that is begun after it changes nothing, and is listed as unfinished.
    let later = store.begin(JOB).unwrap();
    table("weights", &shards(4), &later).unwrap();
    let newest = store.newest(None).unwrap();
    assert_eq!((newest.name(), newest.unfinished()), (writing.name(), &[later.name()][..]));
}

fn threads_and_processes_write_one_checkpoint(store: &Store) {
    const SHARDS: u32 = 12;
    let writing = store.begin(JOB).unwrap();
    let all: Vec<CheckpointShard> = (0..SHARDS).map(|at| shard("weights", at, 100, u64::from(at))).collect();
    let mut entries = thread::scope(|scope| {
        let threads: Vec<_> = all
            .chunks(3)
            .enumerate()
            .map(|(at, chunk)| {
                // Every other chunk joins by name, as another process would.
                let writing = if at % 2 == 0 { writing.clone() } else { store.join(writing.name()) };
                scope.spawn(move || chunk.iter().map(|shard| writing.shard(shard).unwrap()).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    entries.sort_by_key(|entry| entry.index);
    let mut table = table("weights", &all[..1], &writing).unwrap();
    table.shards = entries;
    writing.publish(&manifest(1, vec![table])).unwrap();
    let opened = store.newest(None).unwrap();
    thread::scope(|scope| {
        for shard in &all {
            let opened = &opened;
            scope.spawn(move || assert_eq!(&opened.shard("weights", shard.index).unwrap(), shard));
        }
    });
}

fn a_shard_written_twice_keeps_its_first_file(store: &Store) {
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("weights", &shards(1), &writing).unwrap()];
    // The server that took over writes the shard as well, with different metadata.
    let other = store.join(writing.name());
    other.shard(&shard("weights", 0, 900, 2)).unwrap();
    writing.publish(&manifest(1, tables)).unwrap();
    assert_holds(&store.newest(None).unwrap(), 1);
}

fn residuals_are_read_back(store: &Store) {
    let writing = store.begin(JOB).unwrap();
    let residuals: [(&str, &[u8]); 3] = [("weights/0", &[1, 2, 3]), ("weights/1", b""), ("", b"no name")];
    let written = writing.residuals("3", &residuals).unwrap();
    let none = writing.residuals("4", &[]).unwrap();
    let mut manifest = manifest(1, vec![table("weights", &shards(1), &writing).unwrap()]);
    manifest.residuals = vec![written, none];
    writing.publish(&manifest).unwrap();
    let opened = store.newest(None).unwrap();
    opened.verify().unwrap();
    let expected: store::ResidualBytes =
        residuals.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
    assert_eq!(opened.residuals("3").unwrap(), expected);
    assert!(opened.residuals("4").unwrap().is_empty());
    assert!(opened.residuals("5").is_err());
    assert!(opened.summary().contains("the residuals of worker `3`"));
    for names in [["a", "a"], ["a", "__metadata__"]] {
        let error = writing.residuals("6", &names.map(|name| (name, &b"x"[..]))).unwrap_err();
        assert!(matches!(error, StoreError::Wrong { .. }), "{error}");
    }
}

fn prune_keeps_the_newest(store: &Store) {
    let all: Vec<_> = (1..=5).map(|clock| publish(store, clock).unwrap()).collect();
    let two = NonZeroUsize::new(2).unwrap();
    assert_eq!(store.prune(two).unwrap().old, all[..3]);
    assert_eq!(names(store), all[3..]);
    assert_eq!(store.prune(two).unwrap(), store::Pruned::default());
    assert_holds(&store.newest(None).unwrap(), 5);
    assert_holds(&store.open_named(all[3], None).unwrap(), 4);
    // Numbers continue after those of removed checkpoints.
    assert_eq!(store.begin(JOB).unwrap().name().number(), 6);
}

fn prune_removes_unpublished_checkpoints(store: &Store) {
    let begin = |clock| {
        let writing = store.begin(JOB).unwrap();
        table("weights", &shards(clock), &writing).unwrap();
        writing.name()
    };
    let left = begin(1);
    let kept = publish(store, 2).unwrap();
    let later = begin(3);
    let pruned = store.prune(NonZeroUsize::new(9).unwrap()).unwrap();
    assert_eq!((pruned.old, pruned.unfinished), (vec![], vec![left]));
    assert_eq!(names(store), [kept, later]);
    assert_eq!(store.remove_unfinished().unwrap(), [later]);
    assert_eq!(names(store), [kept]);
    assert_holds(&store.newest(None).unwrap(), 2);
}

fn abandon_removes_every_file(store: &Store) {
    let kept = publish(store, 1).unwrap();
    let writing = store.begin(JOB).unwrap();
    table("weights", &shards(2), &writing).unwrap();
    writing.abandon().unwrap();
    store.begin(JOB).unwrap().abandon().unwrap();
    assert_eq!(names(store), [kept]);
}

fn publish_rejects_a_manifest_that_differs_from_the_files(store: &Store) {
    let writing = store.begin(JOB).unwrap();
    let tables = vec![table("weights", &shards(1), &writing).unwrap()];
    let whole = manifest(1, tables);
    let refused = |change: &dyn Fn(&mut store::Manifest), words: &str| {
        let mut manifest = whole.clone();
        change(&mut manifest);
        let error = writing.publish(&manifest).unwrap_err();
        assert!(error.to_string().contains(words), "{error} does not say `{words}`");
        error
    };
    let missing =
        refused(&|it| it.tables[0].shards[1].file.name = "gone".into(), "gone, with shard 1 of table `weights`");
    assert!(matches!(missing, StoreError::Incomplete { problem, .. } if matches!(*problem, Problem::Missing { .. })));
    let short = refused(&|it| it.tables[0].shards[0].file.bytes += 1, "bytes instead of ");
    assert!(matches!(short, StoreError::Incomplete { problem, .. } if matches!(*problem, Problem::Length { .. })));
    refused(&|it| it.shards = 3, "table `weights` has 2 shards of 3");
    refused(&|it| it.tables[0].shards.swap(0, 1), "another shard in place of shard 0");
    refused(&|it| it.tables.push(it.tables[0].clone()), "two tables `weights`");
    refused(&|it| it.tables[0].shards[0].file.name = "../manifest".into(), "cannot be the name of a file");
    refused(&|it| it.tables[0].shards[0].file.name = "manifest.json".into(), "listed twice");
    refused(&|it| it.tables[0].shards[1].file.name = it.tables[0].shards[0].file.name.clone(), "listed twice");
    assert!(store.list().unwrap()[0].published.is_none());
    let bent = CheckpointShard { stride: 3, ..shard("weights", 0, 5, 1) };
    let error = writing.shard(&bent).unwrap_err().to_string();
    assert!(error.contains("10 numbers are not 5 rows of 3"), "{error}");
    writing.publish(&whole).unwrap();
}

fn another_jobs_checkpoints_are_refused(store: &Store) {
    let name = publish(store, 1).unwrap();
    let error = store.begin("job-2").unwrap_err();
    assert!(matches!(&error, StoreError::OtherJob { found, job, .. } if found == JOB && job == "job-2"), "{error}");
    let error = store.newest(Some("job-2")).unwrap_err();
    let StoreError::Damaged { name: named, problem, previous, .. } = &error else { panic!("{error}") };
    assert_eq!((*named, *previous), (name, None));
    assert!(matches!(**problem, Problem::OtherJob { .. }));
    assert!(error.to_string().contains("it belongs to job `job-1`, and this is job `job-2`"), "{error}");
}

fn a_damaged_checkpoint_names_the_one_before_it(store: &Store) {
    let first = publish(store, 1).unwrap();
    // The manifest says that the rows are wider than those in the shard's file.
    let writing = store.begin(JOB).unwrap();
    let mut tables = vec![table("weights", &shards(2), &writing).unwrap()];
    tables[0].stride = 7;
    writing.publish(&manifest(2, tables)).unwrap();
    let error = store.newest(None).unwrap().shard("weights", 0).unwrap_err();
    let StoreError::Damaged { name, problem, previous, .. } = &error else { panic!("{error}") };
    assert!(matches!(**problem, Problem::Contents { .. }), "{problem}");
    assert_eq!((*name, *previous), (writing.name(), Some(first)));
    assert!(error.to_string().contains(&format!("the newest whole one before it is {first}")), "{error}");
    assert_holds(&store.open_named(previous.unwrap(), Some(JOB)).unwrap(), 1);
}

fn open_named_lists_the_checkpoints_there(store: &Store) {
    let name = publish(store, 1).unwrap();
    let other = "checkpoint-00000099-0a1b2c3d".parse().unwrap();
    let error = store.open_named(other, None).unwrap_err();
    assert!(matches!(&error, StoreError::NoSuch { there, .. } if there == &[name]), "{error}");
}

fn a_probe_leaves_nothing(store: &Store) {
    store.probe().unwrap();
    let name = publish(store, 1).unwrap();
    store.probe().unwrap();
    assert_eq!(names(store), [name]);
    assert_holds(&store.newest(None).unwrap(), 1);
}
