//! Tests of [`Rows`]: rows that are removed and made again, compared with a sorted map (the model).

use super::*;
use crate::rows::initial::initial;
use crate::rows::resolve::NotApplied;
use crate::rows::slot::{Move, index_of, slot_at};
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::{Initial, Placement, UpdaterSpec, mix};
use update::{ABSENT, UpdateStep, Updater};
use wire::{KeyPart, Pool, Signature};

/// Lists have keys below this number.
const KEYS: u64 = 6000;
const SEEDED: Initial = Initial::Uniform { seed: 7, scale: 0.5 };

fn spec(placement: Placement, width: u32, updater: UpdaterSpec) -> TableSpec {
    let spec = TableSpec::sparse("t", width).updater(updater);
    match placement {
        Placement::Ordered => spec.ordered(),
        Placement::Spread => spec,
    }
}

fn position(placement: Placement, number: u64) -> u64 {
    match placement {
        Placement::Ordered => number * 3 + 1,
        Placement::Spread => mix(number),
    }
}

fn rows_of(spec: &TableSpec) -> Rows<f32> {
    Rows::new(spec, PositionRange::ALL, &Updaters::builtin(), 1 << 19).expect("they fit")
}

fn list(signature: u128, positions: &[u64]) -> KeyPart {
    KeyPart::List { signature: Signature(signature), start: 0, positions: Payload::new(positions.to_vec()) }
}

/// A table's rows, beside a model of them.
struct Checked {
    rows: Rows<f32>,
    rule: Initial,
    placement: Placement,
    updater: Box<dyn Updater<f32>>,
    model: BTreeMap<u64, Vec<f32>>,
    /// Every list that was ever used; its index is its signature.
    lists: Vec<Vec<u64>>,
    /// The most rows since all rows were last laid out: the bound on the slots of the slab.
    most: usize,
    /// The rows that were to be laid out, and those that were made since.
    laid_out: usize,
}

impl Checked {
    fn new(spec: &TableSpec, names_rows: bool) -> Self {
        let mut rows = rows_of(spec);
        rows.name_rows(names_rows);
        let updater = Updaters::builtin().make(&spec.updater).expect("a built-in one");
        Self {
            rows,
            rule: spec.initial,
            placement: spec.shape.placement(),
            updater,
            model: BTreeMap::new(),
            lists: Vec::new(),
            most: 0,
            laid_out: 0,
        }
    }

    /// Positions of `count` keys from `first` on, `step` apart, sorted. Keys wrap around at `KEYS`.
    fn positions(&self, first: u64, count: u64, step: u64) -> Vec<u64> {
        let numbers = (0..count).map(|index| (first + index * step) % KEYS);
        let positions: BTreeSet<u64> = numbers.map(|number| position(self.placement, number)).collect();
        positions.into_iter().collect()
    }

    fn fresh(&self, position: u64) -> Vec<f32> {
        let key = self.placement.key(Position(position));
        let mut row = vec![0.0; self.rows.row_state_width()];
        row[..self.rows.width()]
            .iter_mut()
            .enumerate()
            .for_each(|(column, weight)| *weight = initial(self.rule, key, column) as f32);
        row
    }

    /// The slots of a list that was used before: sends its signature and, if the shard asks for
    /// them, its keys.
    fn resolve(&mut self, signature: usize, create: bool) -> Vec<u32> {
        let positions = &self.lists[signature];
        let count = positions.len() as u32;
        let by_signature = KeyPart::Known { signature: Signature(signature as u128), start: 0, count };
        let found = match self.rows.resolve(&by_signature, create) {
            Err(NotApplied::UnknownKeys(_)) => self.rows.resolve(&list(signature as u128, positions), create),
            found => found,
        };
        let Ok(found) = found else { panic!("the keys were sent in full") };
        match &*found.slots {
            Resolved::List(slots) => slots.clone(),
            Resolved::Run { .. } => panic!("no run in a sparse table"),
        }
    }

    /// Pushes to a list, which makes its absent rows.
    fn push(&mut self, signature: usize, gradient: f32) {
        let positions = self.lists[signature].clone();
        let slots = self.resolve(signature, true);
        let width = self.rows.width();
        let gradients: Vec<f32> = (0..slots.len() * width).map(|index| gradient + (index % 7) as f32 / 8.0).collect();
        self.rows.apply(Clock(0), Slots::List(&slots), &gradients);
        let before = self.model.len();
        for (position, gradient) in positions.into_iter().zip(gradients.chunks_exact(width)) {
            let fresh = self.fresh(position);
            let row = self.model.entry(position).or_insert(fresh);
            self.updater.update(&UpdateStep::default(), width, row, gradient);
        }
        self.most = self.most.max(self.model.len());
        self.laid_out += self.model.len() - before;
    }

    fn remove(&mut self, positions: &[u64]) {
        let (found, _) = self.rows.slab.find_list(positions).expect("they are in the range");
        let expected: Vec<u32> = found.into_iter().filter(|slot| *slot != ABSENT).collect();
        assert_eq!(self.rows.remove(positions), expected);
        positions.iter().for_each(|position| {
            self.model.remove(position);
        });
    }

    fn reset(&mut self, positions: &[u64]) {
        let rows: Vec<u64> = positions.iter().copied().filter(|position| self.model.contains_key(position)).collect();
        let slots: Vec<u32> = self.rows.find_rows(&rows).expect("they are in the range").each().collect();
        self.rows.reset(&slots, &rows);
        for position in rows {
            let fresh = self.fresh(position);
            self.model.insert(position, fresh);
        }
    }

    /// Does a piece of laying rows out. Returns whether there was one.
    fn lay_out(&mut self, most: usize) -> bool {
        let before = self.rows.positions();
        let is_new = self.rows.forwarding().is_none();
        let piece = self.rows.lay_out(most);
        if is_new {
            self.laid_out = self.model.len();
        }
        match &piece {
            LayoutPiece::Nothing => {}
            LayoutPiece::Moved(moves) => {
                assert!(moves.len() <= most);
                let after = self.rows.positions();
                assert!(moves.iter().all(|moved| before.get(moved.from) == after.get(moved.to)));
            }
            LayoutPiece::AllMoved => {
                drop(self.rows.end_layout());
                self.most = self.laid_out;
            }
        }
        piece != LayoutPiece::Nothing
    }

    /// Lays the rows out, if it is time. Nothing happens meanwhile, so they are in order without
    /// gaps.
    fn lay_out_all(&mut self) {
        let is_new = self.rows.forwarding().is_none();
        let mut pieces = 0;
        while self.lay_out(700) {
            pieces += 1;
        }
        if is_new && pieces > 0 {
            let (_, resolved, _) = self.rows.scan(PositionRange::ALL, usize::MAX);
            assert!(resolved.each().map(index_of).eq(0..self.model.len()), "in order, without gaps");
            assert_eq!(self.rows.slot_count(), self.model.len());
        }
    }

    fn check(&mut self) {
        assert_eq!(self.rows.len(), self.model.len());
        let most = if self.rows.forwarding().is_some() { self.most + self.laid_out } else { self.most };
        assert!((self.rows.len()..=most).contains(&self.rows.slot_count()), "slots are reused");
        let (found, resolved, more) = self.rows.scan(PositionRange::ALL, usize::MAX);
        assert!(more.is_none() && found.iter().eq(self.model.keys()), "a scan shows the rows that exist");
        let slots: Vec<u32> = resolved.each().collect();
        assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len(), "each row has its slot");
        self.check_rows(&found, &slots);
        let by_slot = self.rows.positions();
        assert!(slots.iter().zip(&found).all(|(slot, position)| by_slot.get(*slot) == Some(*position)));
        self.rows.begin_copy();
        while self.rows.work(usize::MAX) == PieceOfWork::Piece {}
        let copied = self.rows.take_copy().expect("it is whole");
        let positions = copied.positions.expect("a sparse table");
        let values = copied.rows;
        assert_eq!(positions.len(), self.model.len());
        for (position, row) in positions.iter().zip(values.chunks_exact(self.rows.row_state_width())) {
            assert_eq!(self.model.get(position).map(Vec::as_slice), Some(row), "a copy holds the rows that exist");
        }
        assert_eq!(values.len(), positions.len() * self.rows.row_state_width());
    }

    fn check_rows(&self, positions: &[u64], slots: &[u32]) {
        let width = self.rows.row_state_width();
        let states = self.rows.row_states(slots.iter().copied(), &Pool::new());
        let states = states.numbers::<f32>().expect("they are f32");
        for ((position, slot), row) in positions.iter().zip(slots).zip(states.chunks_exact(width)) {
            let expected = self.model.get(position);
            assert_eq!(expected.is_none(), *slot == ABSENT, "position {position}");
            assert_eq!(row, expected.cloned().unwrap_or(vec![0.0; width]), "position {position}");
        }
    }

    fn check_list(&mut self, signature: usize) {
        self.check_choice(signature);
        let slots = self.resolve(signature, false);
        self.check_rows(&self.lists[signature].clone(), &slots);
        self.check_choice(signature);
    }

    /// Checks every third key of a list, chosen from it, if the shard knows the list.
    fn check_choice(&mut self, signature: usize) {
        let list = self.lists[signature].clone();
        let mut bits = Bits::none(list.len());
        (0..list.len()).step_by(3).for_each(|index| bits.set(index));
        let bits = Payload::new(bits.bytes().to_vec());
        let count = list.len() as u32;
        let chosen = KeyPart::Chosen { signature: Signature(signature as u128), start: 0, count, bits };
        match self.rows.resolve(&chosen, false).map(|found| found.slots) {
            Ok(slots) => {
                let Resolved::List(slots) = &*slots else { panic!("no run in a sparse table") };
                self.check_rows(&list.into_iter().step_by(3).collect::<Vec<_>>(), slots);
            }
            Err(NotApplied::UnknownKeys(_)) => {}
            Err(NotApplied::Refuse(refusal)) => panic!("{refusal:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { first: u64, count: u64, step: u64 },
    PushAgain(usize),
    ReadAgain(usize),
    Remove { first: u64, count: u64, step: u64 },
    Reset { first: u64, count: u64, step: u64 },
    LayOut { most: usize, pieces: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Few or many keys, consecutive or far apart.
    let some = || (0..KEYS, prop_oneof![1..40u64, 1..KEYS], prop::sample::select(vec![1u64, 2, 7, 1013]));
    prop_oneof![
        3 => some().prop_map(|(first, count, step)| Step::Push { first, count, step }),
        2 => any::<usize>().prop_map(Step::PushAgain),
        3 => any::<usize>().prop_map(Step::ReadAgain),
        4 => some().prop_map(|(first, count, step)| Step::Remove { first, count, step }),
        1 => some().prop_map(|(first, count, step)| Step::Reset { first, count, step }),
        5 => (1..2000usize, 1..6usize).prop_map(|(most, pieces)| Step::LayOut { most, pieces }),
    ]
}

fn updaters() -> Vec<UpdaterSpec> {
    vec![
        UpdaterSpec::Sum,
        UpdaterSpec::Assign,
        UpdaterSpec::Sgd { rate: 0.5 },
        UpdaterSpec::Momentum { rate: 0.5, momentum: 0.5 },
        UpdaterSpec::Adagrad { rate: 0.5, epsilon: 0.1 },
        UpdaterSpec::Adam { rate: 0.5, beta1: 0.9, beta2: 0.9, epsilon: 0.1 },
        UpdaterSpec::Ftrl { rate: 0.5, beta: 1.0, l1: 0.01, l2: 0.01 },
        UpdaterSpec::Proximal { rate: 0.5, l1: 0.01 },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rows_match_a_sorted_map_after_removals(
        steps in prop::collection::vec(step(), 1..24),
        placement in prop::sample::select(vec![Placement::Spread, Placement::Ordered]),
        width in prop::sample::select(vec![2u32, 6, 24]),
        updater in prop::sample::select(updaters()),
        rule in prop::sample::select(vec![Initial::Zero, SEEDED]),
        names_rows in any::<bool>(),
    ) {
        let spec = spec(placement, width, updater).initial(rule);
        let mut checked = Checked::new(&spec, names_rows);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push { first, count, step } => {
                    checked.lists.push(checked.positions(first, count, step));
                    checked.push(checked.lists.len() - 1, number as f32 / 4.0);
                }
                Step::PushAgain(_) | Step::ReadAgain(_) if checked.lists.is_empty() => {}
                Step::PushAgain(index) => checked.push(index % checked.lists.len(), number as f32 / 4.0),
                Step::ReadAgain(index) => checked.check_list(index % checked.lists.len()),
                Step::Remove { first, count, step } => checked.remove(&checked.positions(first, count, step)),
                Step::Reset { first, count, step } => checked.reset(&checked.positions(first, count, step)),
                Step::LayOut { most, pieces } => (0..pieces).for_each(|_| {
                    checked.lay_out(most);
                }),
            }
            checked.check();
        }
        (0..checked.lists.len()).for_each(|signature| checked.check_list(signature));
    }
}

/// The tables that the test below runs on.
fn tables() -> impl Iterator<Item = TableSpec> {
    let placements = [Placement::Spread, Placement::Ordered].into_iter();
    let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 0.1 };
    placements.flat_map(move |placement| [1, 24].map(|width| spec(placement, width, adagrad.clone()).initial(SEEDED)))
}

#[test]
fn slab_reuses_freed_slots_as_fresh_rows() {
    // (rows that are removed out of twenty, by number; rows that are pushed then)
    let cases: [(&[u64], &[u64]); 6] = [
        (&[3], &[3]),
        (&[0, 19], &[19, 40, 0]),
        (&[4, 5, 6], &[30, 5]),
        (&[1, 2, 50, 60], &[2, 1, 50, 60, 3]),
        (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], &[19, 0, 7, 21]),
        (&[], &[20, 21]),
    ];
    for spec in tables() {
        for (removed, pushed) in cases {
            let mut checked = Checked::new(&spec, false);
            let sorted = |numbers: &[u64]| {
                let mut positions: Vec<u64> =
                    numbers.iter().map(|number| position(checked.placement, *number)).collect();
                positions.sort_unstable();
                positions
            };
            let all = sorted(&(0..20).collect::<Vec<_>>());
            let removed = sorted(removed);
            // One after the other, so that rows are made again in another order.
            let pushed: Vec<Vec<u64>> = pushed.iter().map(|number| sorted(&[*number])).collect();
            checked.lists.push(all);
            checked.lists.extend(pushed);
            checked.push(0, 1.0);
            checked.remove(&removed);
            checked.check();
            checked.check_list(0);
            for signature in 1..checked.lists.len() {
                checked.push(signature, 0.5);
                checked.check();
            }
            checked.check_list(0);
            checked.lay_out_all();
            checked.check();
            checked.check_list(0);
        }
    }
}

#[test]
fn slab_reuses_slots_and_frees_memory_when_it_is_compacted() {
    const ROWS: u64 = 100_000;
    for placement in [Placement::Spread, Placement::Ordered] {
        for width in [1, 24] {
            let mut rows = rows_of(&spec(placement, width, UpdaterSpec::Sum));
            for round in 0..10 {
                // Other keys in every round, or the same ones.
                let first = if round % 2 == 0 { 0 } else { round * ROWS };
                let mut positions: Vec<u64> = (first..first + ROWS).map(|key| position(placement, key)).collect();
                positions.chunks_mut(7_000).for_each(|chunk| {
                    chunk.sort_unstable();
                    rows.make_rows(chunk).expect("there is room");
                });
                assert_eq!((rows.len(), rows.slot_count()), (ROWS as usize, ROWS as usize), "round {round}");
                positions.sort_unstable();
                let freed: usize = positions.chunks(9_000).map(|chunk| rows.remove(chunk).len()).sum();
                assert_eq!((freed, rows.len(), rows.slot_count()), (ROWS as usize, 0, ROWS as usize));
            }
            assert!(rows.needs_layout(), "all slots are free");
            assert_eq!(rows.lay_out(1), LayoutPiece::Moved(vec![]));
            assert_eq!(rows.lay_out(1), LayoutPiece::AllMoved);
            drop(rows.end_layout());
            assert_eq!((rows.len(), rows.slot_count(), rows.slab.capacity()), (0, 0, 0));
            rows.make_rows(&[1, 2]).expect("there is room");
            assert_eq!((rows.len(), rows.slot_count()), (2, 2));
        }
    }
}

#[test]
fn rows_are_bounded_by_those_that_exist() {
    let mut rows = rows_of(&TableSpec::sparse("t", 1).max_rows(3));
    rows.make_rows(&[1, 2, 3]).expect("there is room");
    let refusal = wire::Refusal::TooManyRows { max_rows: 3 };
    assert_eq!(rows.make_rows(&[4]), Err(refusal.clone()));
    assert_eq!(rows.remove(&[0, 2, 9]).len(), 1);
    rows.make_rows(&[4]).expect("there is room again");
    assert_eq!(rows.make_rows(&[5]), Err(refusal));
}

#[test]
fn rows_that_are_removed_and_made_again_are_laid_out() {
    let mut rows = rows_of(&TableSpec::sparse("t", 1));
    rows.make_rows(&(0..100).collect::<Vec<_>>()).expect("there is room");
    assert!(!rows.needs_layout(), "they are in order");
    rows.remove(&(0..60).collect::<Vec<_>>());
    assert!(!rows.needs_layout(), "they are still in order, and few slots are free");
    rows.make_rows(&(200..260).collect::<Vec<_>>()).expect("there is room");
    assert!(rows.needs_layout(), "sixty rows reuse slots before those of lower positions");
    let LayoutPiece::Moved(moves) = rows.lay_out(99) else { panic!("they move") };
    let expected = (60..100).chain(0..59).zip(0..).map(|(from, index)| Move { from, to: slot_at(1, index) });
    assert!(moves.into_iter().eq(expected));
    rows.make_rows(&[7]).expect("there is room");
    assert_eq!(rows.lay_out(99), LayoutPiece::Moved(vec![Move { from: 59, to: slot_at(1, 100) }]));
    assert_eq!(rows.lay_out(99), LayoutPiece::AllMoved);
    drop(rows.end_layout());
    assert_eq!(rows.lay_out(99), LayoutPiece::Nothing);
}

#[test]
fn removed_rows_are_active_again() {
    let updater = UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 };
    let spec = TableSpec::sparse("w", 2).updater(updater).codecs(types::Codecs::up(["kkt"]));
    let mut rows = rows_of(&spec);
    let active = |rows: &Rows<f32>| [0, 1].map(|slot| rows.active_bits(&[slot]).get(0));
    rows.make_rows(&[1, 2]).expect("there is room");
    let inactive = |rows: &mut Rows<f32>| (0..2).for_each(|_| rows.apply_clock(Clock(0), &[0, 1], vec![0.0; 4]));
    inactive(&mut rows);
    assert_eq!(active(&rows), [false, false]);
    rows.remove(&[1]);
    rows.make_rows(&[7]).expect("there is room");
    assert_eq!(active(&rows), [true, false], "another row has the slot");
    inactive(&mut rows);
    rows.reset(&[1], &[2]);
    assert_eq!(active(&rows), [false, true]);
}

#[test]
fn rows_that_move_stay_active_or_inactive() {
    let updater = UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 };
    let spec = TableSpec::sparse("w", 2).updater(updater).codecs(types::Codecs::up(["kkt"]));
    let mut rows = rows_of(&spec);
    for position in [30, 20, 10] {
        rows.make_rows(&[position]).expect("there is room");
    }
    // Row 20 violates the optimality condition. Rows 10 and 30 do not.
    for _ in 0..2 {
        rows.apply_clock(Clock(0), &[0, 1, 2], vec![0.0, 1.0, 9.0, 1.0, 0.0, 1.0]);
    }
    let active = |rows: &Rows<f32>| {
        let slots: Vec<u32> = rows.find_rows(&[10, 20, 30]).expect("they are in the range").each().collect();
        let bits = rows.active_bits(&slots);
        [0, 1, 2].map(|row| bits.get(row))
    };
    let before = active(&rows);
    assert_eq!(before, [false, true, false]);
    let mut pieces = 0;
    while rows.lay_out(1) != LayoutPiece::AllMoved {
        assert_eq!(active(&rows), before);
        pieces += 1;
    }
    assert!(pieces >= 3, "a row moves in each piece");
}

#[test]
fn removed_rows_are_no_longer_pending() {
    let combine = types::Combine::Clock(types::Reduce::Sum);
    let mut rows = rows_of(&TableSpec::sparse("t", 1).ordered().combine(combine));
    rows.make_rows(&[1, 2, 3]).expect("there is room");
    rows.make_pending(Clock(0), &[1, 2]);
    rows.make_pending(Clock(1), &[1, 3]);
    rows.end_clock(Clock(0), false);
    rows.remove(&[1]);
    assert_eq!(rows.save().pending, (vec![2, 3], vec![(Clock(1), vec![3])]));
}

#[test]
fn cleared_rows_are_gone_from_every_part() {
    let updater = UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 };
    let kkt = TableSpec::sparse("w", 2).updater(updater).codecs(types::Codecs::up(["kkt"]));
    let combine = types::Combine::Clock(types::Reduce::Sum);
    for spec in [kkt.combine(combine), TableSpec::sparse("t", 2).ordered().combine(combine)] {
        let mut rows = rows_of(&spec);
        rows.name_rows(true);
        let positions: Vec<u64> = (1..100).collect();
        rows.make_rows(&positions).expect("there is room");
        rows.make_pending(Clock(0), &[1, 2]);
        rows.tune(Clock(0), Setting::Rate(0.5));
        rows.count_examples(7);
        assert!(rows.resolve(&list(5, &positions), true).is_ok());
        (0..2).for_each(|_| rows.apply_clock(Clock(0), &[0, 1], vec![1e-3; 4]));
        rows.begin_copy();
        let rates = rows.save().rates;
        drop(rows.clear(&spec));
        assert_eq!((rows.len(), rows.slot_count(), rows.slab.capacity()), (0, 0, 0));
        let SavedRows { rates: kept, examples, pending } = rows.save();
        assert_eq!((kept, examples, pending), (rates, 7, (vec![], vec![])));
        assert!(!rows.is_being_copied());
        let known = KeyPart::Known { signature: Signature(5), start: 0, count: 99 };
        assert!(matches!(rows.resolve(&known, false), Err(NotApplied::UnknownKeys(5))), "no list names slots");
        assert_eq!(rows.scan(PositionRange::ALL, usize::MAX).0, []);
        rows.make_rows(&[50, 60]).expect("there is room");
        assert_eq!(rows.scan(PositionRange::ALL, usize::MAX).0, [50, 60]);
        assert!(rows.active_bits(&[0, 1]).get(0) && rows.active_bits(&[0, 1]).get(1));
        let mut read = [1.0; 4];
        rows.read(Clock(1), as_slots(&[0, 1]), &mut read);
        assert_eq!(read, [0.0; 4]);
    }
}
