//! Writing and reading a shard take a bounded amount of memory beside it, however large it is.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use store::{CheckpointShard, Manifest, Positions, RowNumbers, Store, TableEntry};

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of the bytes that are held.
struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `run` holds at a time, beside those that were held before it.
fn most<R>(run: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = run();
    (result, MOST.load(Ordering::Relaxed) - before)
}

#[test]
fn a_shard_is_written_and_read_part_by_part() {
    const ROWS: usize = 10_000_000;
    /// As documented: four parts of 8 MiB, and 1 MiB for everything small.
    const BESIDE: usize = (32 << 20) + (1 << 20);
    let folder = std::env::temp_dir().join(format!("slackwater-store-memory-{}", std::process::id()));
    let store = Store::open(folder.to_str().unwrap()).unwrap();
    let numbers: Vec<f32> = (0..ROWS).map(|at| at as f32).collect();
    let positions: Vec<u64> = (0..ROWS as u64).collect();
    let shard = CheckpointShard {
        table: "weights".into(),
        index: 0,
        positions: Positions::List(positions.into()),
        stride: 1,
        rows: RowNumbers::F32(numbers.into()),
        metadata: vec![1; 1000].into(),
    };
    let shard_bytes = 12 * ROWS;
    let writing = store.begin("job").unwrap();
    let (entry, beside) = most(|| writing.shard(&shard).unwrap());
    assert!(beside <= BESIDE, "writing {shard_bytes} bytes took {beside} beside them");
    let number = shard.rows.number();
    let spec = serde_json::Value::Null;
    let table = TableEntry { name: "weights".into(), spec, number, stride: 1, shards: vec![entry] };
    let manifest = Manifest { job: "job".into(), shards: 1, tables: vec![table], ..Manifest::default() };
    writing.publish(&manifest).unwrap();

    let opened = store.newest(None).unwrap();
    let (read, beside) = most(|| opened.shard("weights", 0).unwrap());
    assert!(read == shard);
    assert!(beside <= shard_bytes + BESIDE, "reading {shard_bytes} bytes took {beside}");
    drop(read);
    let (verified, beside) = most(|| opened.verify());
    verified.unwrap();
    assert!(beside <= BESIDE, "verifying {shard_bytes} bytes took {beside}");
    std::fs::remove_dir_all(folder).unwrap();
}
