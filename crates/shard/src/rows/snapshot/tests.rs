//! Tests of copies of rows: while rows are pushed, set, removed, reset and laid out, a copy
//! holds every row as it was when the copy began. A dropped copy changes nothing.

use super::CopiedRows;
use crate::rows::{LayoutPiece, PieceOfWork, Rows};
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::{Clock, Position, PositionRange, TableSpec, UpdaterSpec};
use update::Updaters;
use wire::Pool;

const KEYS: u64 = 300;

/// What changes rows while they are copied.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Adds 1 to these rows, and makes those that are missing.
    Push {
        first: u64,
        stride: u64,
        count: u64,
    },
    /// Writes row state.
    Set {
        first: u64,
        stride: u64,
        count: u64,
    },
    Remove {
        first: u64,
        stride: u64,
        count: u64,
    },
    /// Gives rows their initial values, where they lie.
    Reset {
        first: u64,
        stride: u64,
        count: u64,
    },
    /// Moves some rows, if it is time.
    LayOut {
        rows: usize,
    },
    /// Copies some rows.
    Copy {
        rows: usize,
    },
}

/// Sorted positions, each once.
fn positions(first: u64, stride: u64, count: u64) -> Vec<u64> {
    let mut positions: Vec<u64> = (0..count).map(|index| (first + index * stride) % KEYS).collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

fn take(rows: &mut Rows<f64>, step: Step) {
    match step {
        Step::Push { first, stride, count } => {
            let positions = positions(first, stride, count);
            let resolved = rows.make_rows(&positions).expect("there is room");
            rows.apply(Clock(0), resolved.slots(), &vec![1.0; positions.len() * 2]);
        }
        Step::Set { first, stride, count } => {
            let positions = positions(first, stride, count);
            let resolved = rows.make_rows(&positions).expect("there is room");
            let values = vec![first as f64 + 0.5; positions.len() * rows.row_state_width()];
            rows.put_row_state(&resolved, &values).expect("as many as rows");
        }
        Step::Remove { first, stride, count } if !rows.is_dense() => {
            rows.remove(&positions(first, stride, count));
        }
        Step::Reset { first, stride, count } if !rows.is_dense() => {
            let positions = positions(first, stride, count);
            let resolved = rows.make_rows(&positions).expect("there is room");
            rows.reset(&resolved.each().collect::<Vec<u32>>(), &positions);
        }
        Step::Remove { .. } | Step::Reset { .. } => {}
        Step::LayOut { rows: most } => {
            if rows.lay_out(most) == LayoutPiece::AllMoved {
                drop(rows.end_layout());
            }
        }
        Step::Copy { rows: most } => {
            rows.work(most);
        }
    }
}

/// Every row's state by position.
fn held(rows: &Rows<f64>) -> BTreeMap<u64, Vec<f64>> {
    let (positions, resolved, _) = rows.scan(PositionRange::ALL, usize::MAX - 1);
    let slots: Vec<u32> = resolved.each().collect();
    let states = rows.row_states(slots.into_iter(), &Pool::new());
    let each = states.numbers::<f64>().expect("f64").chunks_exact(rows.row_state_width());
    positions.into_iter().zip(each.map(<[f64]>::to_vec)).collect()
}

fn check(spec: &TableSpec, before: &[Step], during: &[Step]) {
    let range = PositionRange { first: Position(0), last: Position(KEYS - 1) };
    let mut rows = Rows::new(spec, range, &Updaters::builtin(), 0).expect("a known updater");
    while rows.work(64) != PieceOfWork::Nothing {}
    before.iter().for_each(|step| take(&mut rows, *step));
    let expected = held(&rows);
    rows.begin_copy();
    during.iter().for_each(|step| take(&mut rows, *step));
    while rows.work(7) != PieceOfWork::Nothing {}
    let CopiedRows { rows: values, positions } = rows.take_copy().expect("it is whole");
    let positions = positions.unwrap_or_else(|| (0..KEYS).collect());
    let each = values.chunks_exact(rows.row_state_width()).map(<[f64]>::to_vec);
    assert_eq!(values.len(), positions.len() * rows.row_state_width());
    assert_eq!(positions.into_iter().zip(each).collect::<BTreeMap<_, _>>(), expected);
    assert!(rows.take_copy().is_none(), "it is taken once");
}

fn step() -> impl Strategy<Value = Step> {
    let batch = || (0..KEYS, 1..KEYS, 1u64..60);
    prop_oneof![
        4 => batch().prop_map(|(first, stride, count)| Step::Push { first, stride, count }),
        2 => batch().prop_map(|(first, stride, count)| Step::Set { first, stride, count }),
        2 => batch().prop_map(|(first, stride, count)| Step::Remove { first, stride, count }),
        1 => batch().prop_map(|(first, stride, count)| Step::Reset { first, stride, count }),
        4 => (1usize..120).prop_map(|rows| Step::LayOut { rows }),
        6 => (1usize..50).prop_map(|rows| Step::Copy { rows }),
    ]
}

proptest! {
    #[test]
    fn copy_holds_every_row_as_it_was_when_it_began(
        before in proptest::collection::vec(step(), 0..12),
        during in proptest::collection::vec(step(), 0..24),
    ) {
        let updater = UpdaterSpec::Momentum { rate: -1.0, momentum: 0.5 };
        for spec in [TableSpec::dense("t", KEYS, 2), TableSpec::sparse("t", 2), TableSpec::sparse("t", 2).ordered()] {
            check(&spec.updater(updater.clone()), &before, &during);
        }
    }
}

/// Once positions were known, a removed row overwrote the position of another one.
#[test]
fn copy_keeps_positions_when_rows_are_removed_while_it_is_compacted() {
    let made = Step::Push { first: 55, stride: 1, count: 44 };
    let removed = Step::Remove { first: 55, stride: 3, count: 1 };
    let copied = [13, 31, 26, 17, 28].map(|rows| Step::Copy { rows });
    let during = [&copied[..], &[Step::Remove { first: 0, stride: 56, count: 2 }]].concat();
    check(&TableSpec::sparse("t", 2), &[made, removed], &during);
}

#[test]
fn copy_that_is_dropped_leaves_the_rows_as_they_are() {
    let spec = TableSpec::sparse("t", 2);
    let mut rows = Rows::<f64>::new(&spec, PositionRange::ALL, &Updaters::builtin(), 0).expect("a known updater");
    take(&mut rows, Step::Push { first: 0, stride: 1, count: 50 });
    let before = held(&rows);
    rows.begin_copy();
    rows.work(7);
    rows.drop_copy();
    assert_eq!((rows.work(7), held(&rows)), (PieceOfWork::Nothing, before));
    assert!(rows.take_copy().is_none());
}
