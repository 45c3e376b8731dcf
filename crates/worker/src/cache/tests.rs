use super::*;
use types::{Codecs, Consistency, Reduce, WorkerId};
use wire::Refusal;

const ROWS: u64 = 8;

/// The caches of a table of eight rows of one number that combines by clock.
fn cache(codecs: Codecs, kept: bool) -> TableCache {
    let spec = TableSpec::dense("t", ROWS, 1).codecs(codecs).consistency(Consistency::slack(0)).cached(ROWS);
    let spec = spec.combine(Combine::Clock(Reduce::Sum));
    let mut cache = TableCache::new(&spec, &TableCodecs::of(&spec).expect("fit"), Source(1));
    if kept {
        cache.make(&spec, 1);
    }
    cache
}

fn with_deltas() -> TableCache {
    cache(Codecs::default().down(["keys", "fixed8"]), true)
}

fn failed(clock: u64) -> FailedClock {
    FailedClock { clock: Clock(clock), worker: WorkerId(1), refusal: Refusal::PastClock }
}

/// An answer brings ones for all rows below `end`, at `frontier`.
fn store(cache: &mut TableCache, end: u64, frontier: u64, at: Option<(u64, u64)>, asked_deltas: bool) {
    let keys = Keys::run(0..end);
    let keys = keys.slice(0..keys.len());
    let values = Payload::new(vec![1f32; end as usize]);
    let rows = ShardRows { shard: 0, frontier: Clock(frontier), keys: &keys, values: &values };
    cache.store(rows, at, asked_deltas, || Some(Vec::new()));
}

fn read(cache: &mut TableCache, reader: u64) -> CacheAnswer {
    let mut values = vec![0f32; ROWS as usize];
    let target = bytemuck::cast_slice_mut(&mut values);
    cache.read(&Keys::run(0..ROWS), Clock(reader), &Pipeline::default(), target)
}

#[test]
fn table_cache_lists_a_few_misses_and_requests_all_rows_after_many() {
    // (rows that are cached, the misses)
    for (end, expected) in [(0, None), (5, None), (6, Some(vec![6, 7])), (8, Some(vec![]))] {
        let mut cache = cache(Codecs::default(), true);
        store(&mut cache, end, 2, None, false);
        cache.note_failed(&[failed(1)]);
        let answer = read(&mut cache, 2);
        let used = expected.is_some();
        assert_eq!((answer.misses, answer.clock), (expected, Clock(if used { 2 } else { u64::MAX })), "{end} rows");
        assert_eq!(answer.failed.len(), usize::from(used), "cached rows come with the clocks that failed");
    }
}

#[test]
fn table_cache_keeps_nothing_until_caches_are_made() {
    let mut cache = cache(Codecs::default().down(["keys", "fixed8"]), false);
    store(&mut cache, ROWS, 2, Some((1, 4)), true);
    cache.pushed(&Keys::run(0..1).slice(0..1), &Payload::new(vec![1f32]));
    let answer = read(&mut cache, 2);
    assert!(answer.misses.is_none() && !answer.asks_deltas && !cache.adds_own_pushes() && !cache.has_rows());
    assert_eq!(cache.caught_up(0, Clock(2), Some((1, 4)), None), CaughtUp::ReadWhole);
}

#[test]
fn table_cache_adds_own_pushes_where_each_is_applied_by_itself() {
    for (combine, adds) in [(Combine::Each, true), (Combine::Clock(Reduce::Sum), false)] {
        let spec = TableSpec::dense("t", 1, 1).combine(combine).consistency(Consistency::slack(0)).cached(1);
        let mut cache = TableCache::new(&spec, &TableCodecs::none(), Source(1));
        cache.make(&spec, 1);
        store(&mut cache, 1, 0, None, false);
        let key = Keys::run(0..1).slice(0..1);
        cache.pushed(&key, &Payload::new(vec![2f32]));
        assert_eq!((cache.adds_own_pushes(), cache.squares(&key)), (adds, Some(if adds { 9.0 } else { 1.0 })));
    }
}

#[test]
fn table_cache_asks_for_lost_deltas_again_and_reads_rows_whole_otherwise() {
    // (what the shard has sent, how far the reader was when it asked, what follows)
    for (at, had, expected) in [
        (Some((1, 5)), Some(4), CaughtUp::Fresh),
        (Some((1, 7)), Some(4), CaughtUp::AskAgain { last: 5 }),
        (Some((1, 7)), Some(5), CaughtUp::ReadWhole),
        (Some((2, 5)), Some(4), CaughtUp::ReadWhole),
        (Some(READ_WHOLE), Some(4), CaughtUp::ReadWhole),
        (None, Some(4), CaughtUp::ReadWhole),
    ] {
        let mut cache = with_deltas();
        store(&mut cache, ROWS, 0, Some((1, 4)), true);
        let delta = |to: u64| wire::ChangeChunk { from: to - 1, to, chunk: 0, ends: true };
        assert!(cache.follows(0, 1, delta(5)) && !cache.follows(0, 1, delta(6)));
        cache.add_delta(0, delta(5), vec![0], vec![0.5], Clock(0));
        assert_eq!(cache.cached(&[0, 7, 8]), 2);
        assert_eq!(read(&mut cache, 1).stale.len(), 8, "{at:?}: they wait for the deltas of clock 0");
        assert_eq!(cache.caught_up(0, Clock(1), at, had), expected, "{at:?} after {had:?}");
        // Rows stay while deltas may still bring other rows of the shard up to date.
        let kept = at.is_some_and(|at| at == READ_WHOLE || at.0 == 1) && (expected != CaughtUp::ReadWhole)
            || at == Some(READ_WHOLE);
        assert_eq!(cache.cached(&[0]), usize::from(kept), "{at:?} after {had:?}");
        let fresh = expected == CaughtUp::Fresh;
        assert_eq!(read(&mut cache, 1).clock, Clock(if fresh { 1 } else { u64::MAX }), "{at:?} after {had:?}");
    }
}

#[test]
fn table_cache_asks_for_deltas_less_often_where_they_do_not_pay() {
    let mut cache = with_deltas();
    assert!(read(&mut cache, 0).asks_deltas);
    cache.caught_up(0, Clock(0), Some(READ_WHOLE), None);
    let asks: Vec<bool> = (0..3).map(|_| read(&mut cache, 0).asks_deltas).collect();
    assert_eq!(asks, [false, true, true], "one pull without");
}

#[test]
fn table_cache_with_auto_codecs_asks_for_deltas_only_while_the_link_is_slow() {
    let mut cache = cache(Codecs::auto(), true);
    let one_bit = Pipeline::parse(["1bit"]).expect("a pipeline");
    for (pushes, asks) in [(&Pipeline::default(), false), (&one_bit, true)] {
        let mut values = vec![0f32; ROWS as usize];
        let target = bytemuck::cast_slice_mut(&mut values);
        let answer = cache.read(&Keys::run(0..ROWS), Clock(0), pushes, target);
        assert_eq!(answer.asks_deltas, asks, "while pushes are encoded by {pushes}");
    }
}
