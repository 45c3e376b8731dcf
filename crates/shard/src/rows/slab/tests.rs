//! Tests of [`Slab`]: which memory it lends, and how many rows it takes.

use super::*;

const FOUR: Slots<'_> = Slots::Run { first: 0, count: 4 };

fn rows(updater: UpdaterSpec) -> Slab<f32> {
    let spec = TableSpec::dense("t", 4, 2).updater(updater);
    let range = PositionRange { first: Position(0), last: Position(3) };
    Slab::new(&spec, range, &Updaters::builtin()).expect("they fit")
}

fn set(rows: &mut Slab<f32>, slots: Slots<'_>, values: Vec<f32>) {
    rows.apply(Clock(0), slots, &values);
    rows.keep_applied(slots, values);
}

#[test]
fn slab_lends_what_a_read_returns_and_keeps_it_when_rows_change() {
    let mut rows = rows(UpdaterSpec::Assign);
    set(&mut rows, FOUR, (0..8).map(|number| number as f32).collect());
    for (first, count) in [(0, 4), (1, 2), (3, 1), (2, 0)] {
        let resolved = Resolved::Run { first, count };
        let mut read = vec![0.0; count * 2];
        rows.read(Clock(0), resolved.slots(), &mut read);
        let lent = rows.lend(&resolved).expect("they were set together");
        assert_eq!(lent.numbers::<f32>(), Some(&read[..]));
    }
    assert!(rows.lend(&Resolved::List(vec![1, 2])).is_none(), "only a run is lent");
    let before = rows.lend(&Resolved::Run { first: 1, count: 1 }).expect("it was set");
    set(&mut rows, Slots::Run { first: 1, count: 2 }, vec![9.0; 4]);
    assert_eq!(before.numbers::<f32>(), Some(&[2.0, 3.0][..]));
    // (first, count, whether it is lent: all of it was assigned last)
    for (first, count, is_lent) in [(0, 1, false), (0, 4, false), (1, 2, true), (2, 1, true), (2, 2, false)] {
        assert_eq!(rows.lend(&Resolved::Run { first, count }).is_some(), is_lent, "{count} from {first}");
    }
    rows.put_row_state(&Resolved::Run { first: 3, count: 1 }, &[5.0; 2]).expect("a row");
    assert!(rows.lend(&Resolved::Run { first: 1, count: 1 }).is_none(), "row state was replaced");
}

#[test]
fn slab_refuses_more_rows_than_slots_have_numbers() {
    let rows = MOST_ROWS + 1;
    let spec = TableSpec::dense("t", rows, 1);
    let range = PositionRange { first: Position(0), last: Position(rows - 1) };
    let refused = Slab::<f32>::new(&spec, range, &Updaters::builtin()).err();
    assert!(matches!(refused, Some(RowsError::TooMany { rows: refused }) if refused == rows));
}

#[test]
fn slab_reuses_lent_memory_once_readers_have_dropped_it() {
    let mut rows = rows(UpdaterSpec::Assign);
    set(&mut rows, FOUR, vec![1.0; 8]);
    let held = rows.lend(&Resolved::Run { first: 0, count: 4 });
    set(&mut rows, FOUR, vec![2.0; 8]);
    assert_eq!(rows.take_spare().capacity(), 0, "a reader still uses it");
    drop(held);
    set(&mut rows, FOUR, vec![3.0; 8]);
    assert!(rows.take_spare().capacity() >= 8);
}

#[test]
fn slab_lends_only_rows_of_the_assign_updater() {
    let mut rows = rows(UpdaterSpec::Sum);
    set(&mut rows, FOUR, vec![1.0; 8]);
    set(&mut rows, FOUR, vec![1.0; 8]);
    assert!(rows.lend(&Resolved::Run { first: 0, count: 4 }).is_none());
}
