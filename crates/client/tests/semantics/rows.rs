//! Rows: ranges, scans, number types, initial rows and custom updaters.

use crate::{alone, counts, done, run};
use slackwater::policy::{Codecs, Combine, Initial, NumberType, Reduce};
use slackwater::table::ScanOptions;
use slackwater::updaters::{Number, Updaters};
use slackwater::{Consistency, Keys, Rows, RunSize, Session, TableSpec, UpdaterSpec};
use std::sync::Arc;

#[test]
fn ranges_read_dense_and_ordered_tables() {
    alone(|session| {
        let dense = session.table::<i64>(counts("dense", 100)).expect("made");
        done(dense.push(&Keys::run(45..55), (45..55).collect::<Vec<_>>()));
        assert_eq!(read!(dense.pull(&Keys::run(44..47))).values(), [0, 45, 46], "across shards");
        assert_eq!(read!(dense.pull(&Keys::run(0..100))).values().iter().sum::<i64>(), (45..55).sum::<i64>());
        assert!(read!(dense.pull(&Keys::run(7..7))).values().is_empty());
        let spec = TableSpec::sparse("ordered", 1).number(NumberType::I64).ordered();
        let ordered = session.table::<i64>(spec).expect("made");
        let half = u64::MAX / 2;
        done(ordered.push(&ordered.keys(&[3, 5, half - 1, half + 2]), vec![30, 50, 60, 70]));
        let rows = read!(ordered.scan(4..u64::MAX));
        assert_eq!((rows.ids(), rows.values()), (&[5, half - 1, half + 2][..], &[50, 60, 70][..]));
        let rows = read!(ordered.scan(6..7));
        assert!(rows.ids().is_empty() && rows.values().is_empty());
        done(ordered.push(&Keys::run(5..7), vec![1, 2]));
        let rows = read!(ordered.scan(0..10));
        assert_eq!((rows.ids(), rows.values()), (&[3, 5, 6][..], &[30, 51, 2][..]));
        assert_eq!(read!(ordered.scan(..=5)).ids(), [3, 5]);
        assert_eq!(read!(ordered.scan(half..)).ids(), [half + 2]);
        assert!(read!(ordered.scan(5..5)).ids().is_empty());
        let with_state = ScanOptions { row_state: true, ..ScanOptions::default() };
        let rows = read!(ordered.scan_opts(4..6, with_state));
        assert_eq!((rows.ids(), rows.values()), (&[5][..], &[51][..]));
        let rows = read!(dense.scan(53..56));
        assert_eq!((rows.ids(), rows.values()), (&[53, 54, 55][..], &[53, 54, 0][..]));
    });
}

#[test]
fn scan_of_more_than_a_part_returns_all_rows() {
    const ROWS: u64 = 60_000;
    alone(|session| {
        let ordered =
            session.table::<f64>(TableSpec::sparse("long", 4).number(NumberType::F64).ordered()).expect("made");
        let ids: Vec<u64> = (0..ROWS).map(|id| id * 300_000_000_000_000).collect();
        let values: Vec<f64> = (0..ROWS * 4).map(|n| n as f64).collect();
        assert!(values.len() * 8 > 1 << 20);
        done(ordered.push(&ordered.keys(&ids), values.clone()));
        let rows = read!(ordered.scan(0..u64::MAX));
        assert!(rows.ids() == ids && rows.values() == values);
        // A pull of the same keys returns the same values.
        assert!(read!(ordered.pull(&ordered.keys(&ids))).values() == values);
    });
}

#[test]
fn every_number_type_adds_up() {
    fn check<T: Number>(sum: Rows<T>, expected: &[T]) {
        assert_eq!(sum.values(), expected);
    }
    alone(|session| {
        let spec = |number| TableSpec::dense(&format!("{number}"), 2, 2).number(number);
        let keys = Keys::run(0..2);
        let large = 1i64 << 60;
        let table = session.table::<i64>(spec(NumberType::I64)).expect("made");
        done(table.push(&keys, vec![large, -1, i64::MIN, 7]));
        check(read!(table.push_pull(&keys, vec![1, -1, 5, 0])), &[large + 1, -2, i64::MIN + 5, 7]);
        let table = session.table::<f64>(spec(NumberType::F64)).expect("made");
        done(table.push(&keys, vec![1e-300, 0.1, 1e300, -0.0]));
        check(read!(table.push_pull(&keys, vec![1e-300, 0.2, 0.0, 0.0])), &[2e-300, 0.1 + 0.2, 1e300, 0.0]);
        let table = session.table::<f32>(spec(NumberType::F32)).expect("made");
        done(table.push(&keys, &[1.5f32, 2.5, 3.5, 4.5][..]));
        check(read!(table.push_pull(&keys, Arc::<[f32]>::from([1.0, 1.0, 1.0, 1.0]))), &[2.5, 3.5, 4.5, 5.5]);
    });
}

#[test]
fn initial_rows_are_equal_on_any_number_of_servers() {
    let starts = [Initial::Uniform { seed: 9, scale: 0.1 }, Initial::Normal { seed: 9, scale: 0.1 }];
    for initial in starts {
        let on = |servers: u32| {
            run(servers, 1, |session| {
                let ids: Vec<u64> = (0..500).collect();
                let sparse = session.table::<f32>(TableSpec::sparse("sparse", 3).initial(initial)).expect("made");
                let keys = sparse.keys(&ids);
                let ordered = session.table::<f32>(TableSpec::sparse("o", 3).ordered().initial(initial)).expect("made");
                let dense = session.table::<f32>(TableSpec::dense("dense", 500, 3).initial(initial)).expect("made");
                let spread = read!(sparse.pull(&keys)).into_values();
                let in_order = read!(ordered.pull(&ordered.keys(&ids))).into_values();
                let rows = read!(dense.pull(&Keys::run(0..500))).into_values();
                assert_eq!(in_order, rows, "a function of seed, key and column");
                for (id, row) in keys.ids().zip(spread.chunks(3)) {
                    assert_eq!(row, &rows[id as usize * 3..][..3], "the same in any placement");
                }
                rows
            })
            .remove(0)
        };
        let one = on(1);
        assert!(one.iter().any(|value| *value != one[0]));
        assert!([2, 3, 5].into_iter().all(|servers| on(servers) == one), "{initial:?}");
    }
}

#[test]
fn custom_updater_runs_on_the_servers() {
    struct Highest;
    impl slackwater::updaters::Updater<f64> for Highest {
        fn state(&self, _width: usize) -> usize {
            0
        }
        fn update(&self, _: &slackwater::updaters::UpdateStep, _width: usize, row: &mut [f64], gradient: &[f64]) {
            row.iter_mut().zip(gradient).for_each(|(highest, value)| *highest = highest.max(*value));
        }
    }
    let mut registry = Updaters::builtin();
    registry.register::<f64>("highest", |_| Box::new(Highest));
    let size = RunSize { servers: 2, workers: 1 };
    let session =
        Session::embedded_with(size, registry, slackwater::cluster::WaitPolicy::BLOCKING).expect("a run").remove(0);
    let highest = UpdaterSpec::Custom { name: "highest".into(), settings: vec![] };
    let spec = TableSpec::sparse("highest", 1).number(NumberType::F64).updater(highest);
    let table = session.table::<f64>(spec).expect("made");
    let keys = table.keys(&[1, 2, 3]);
    for value in [3.0, 9.0, 4.0] {
        drop(table.push(&keys, vec![value; 3]).expect("sent"));
    }
    assert_eq!(read!(table.pull(&keys)).values(), [9.0; 3]);
    session.close().expect("left");
}

#[test]
fn rows_that_one_worker_deletes_are_gone_for_the_other_until_a_push() {
    let plain = |name: &str| TableSpec::sparse(name, 8).ordered().consistency(Consistency::LOCK_STEP).cached(10);
    let by_clock = |name: &str| plain(name).combine(Combine::Clock(Reduce::Sum));
    let specs = [plain("each"), by_clock("clock"), by_clock("lossy reads").codecs(Codecs::default().down(["1bit"]))];
    run(2, 2, |session| {
        for spec in &specs {
            let table = session.table::<f32>(spec.clone()).expect("made");
            // A key in each shard.
            let (low, high) = (7, u64::MAX - 7);
            let both = table.keys(&[low, high]);
            let deleted = table.keys(&[low]);
            let numbers: Vec<f32> = (0..16).map(|place| (place * 5 % 7) as f32).collect();
            for _ in 0..3 {
                done(table.push(&both, numbers.clone()));
                session.clock().expect("ended");
                read!(table.pull(&both));
            }
            session.barrier().expect("passed");
            if session.rank() == 0 {
                done(table.delete(&deleted));
            }
            session.clock().expect("ended");
            session.barrier().expect("passed");
            assert_eq!(read!(table.pull(&deleted)).values(), [0.0; 8], "{}", spec.name);
            let rows = read!(table.scan(..));
            assert_eq!(rows.ids(), [high], "{}", spec.name);
            assert!(rows.values().iter().zip(&numbers[8..]).all(|(value, number)| *value == 6.0 * number));
            session.barrier().expect("passed");
            if session.rank() == 1 {
                done(table.push(&deleted, vec![2.5; 8]));
            }
            session.clock().expect("ended");
            session.barrier().expect("passed");
            assert_eq!(read!(table.pull(&deleted)).values(), [2.5; 8], "{}", spec.name);
            assert_eq!(read!(table.scan(..)).ids(), [low, high], "{}", spec.name);
            session.barrier().expect("passed");
        }
    });
}
