//! Measurements of [`Rows`] in the release profile: pauses, and keys a second.

use super::*;
use std::time::{Duration, Instant};
use types::{UpdaterSpec, mix};
use wire::{KeyPart, Signature};

fn rows_of(spec: &TableSpec) -> Rows<f32> {
    Rows::new(spec, PositionRange::ALL, &Updaters::builtin(), 256 << 20).expect("they fit")
}

/// The longest steps while a sparse shard grows, is laid out, loses most of its rows and forgets
/// the rest: `cargo test --release -p slackwater-shard --lib -- --ignored --nocapture
/// pauses_by_bytes`.
#[test]
#[ignore = "a measurement, for the release profile"]
fn pauses_by_bytes() {
    // A row state of 32 bytes: four weights and four numbers of the updater.
    const ROW_BYTES: u64 = 32;
    const BATCH: u64 = 1 << 16;
    // As in `Server::work`.
    const PIECE_ROWS: usize = (64 << 10) / ROW_BYTES as usize;
    // Pieces between two batches.
    const PIECES: usize = 64;
    const STEPS: [&str; 6] = ["make a batch", "piece", "end a layout", "remove a batch", "begin a copy", "forget all"];
    let spec = TableSpec::sparse("t", 4).updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 });
    for gibibytes in [1, 4] {
        let rows = (gibibytes << 30) / ROW_BYTES;
        let mut table = rows_of(&spec);
        let mut longest = [Duration::ZERO; STEPS.len()];
        let mut total = [Duration::ZERO; STEPS.len()];
        let mut timed = |what: usize, begin: Instant| {
            let took = begin.elapsed();
            longest[what] = longest[what].max(took);
            total[what] += took;
        };
        let mut layouts = 0;
        let mut lay_out = |table: &mut Rows<f32>, timed: &mut dyn FnMut(usize, Instant), most: usize| {
            for _ in 0..most {
                let begin = Instant::now();
                let piece = table.lay_out(PIECE_ROWS);
                timed(1, begin);
                match piece {
                    LayoutPiece::Nothing => return,
                    LayoutPiece::Moved(_) => {}
                    LayoutPiece::AllMoved => {
                        layouts += 1;
                        let begin = Instant::now();
                        let left = table.end_layout();
                        timed(2, begin);
                        // On another thread, in a server.
                        drop(left);
                    }
                }
            }
        };
        let batch = |first: u64| {
            let mut positions: Vec<u64> = (first..rows.min(first + BATCH)).map(mix).collect();
            positions.sort_unstable();
            positions
        };
        for first in (0..rows).step_by(BATCH as usize) {
            let positions = batch(first);
            let begin = Instant::now();
            drop(table.make_rows(&positions));
            timed(0, begin);
            lay_out(&mut table, &mut timed, PIECES);
        }
        assert_eq!(table.len() as u64, rows);
        lay_out(&mut table, &mut timed, usize::MAX);
        for first in (0..rows).step_by(BATCH as usize).filter(|first| first / BATCH % 8 < 5) {
            let positions = batch(first);
            let begin = Instant::now();
            drop(table.remove(&positions));
            timed(3, begin);
            lay_out(&mut table, &mut timed, PIECES);
        }
        lay_out(&mut table, &mut timed, usize::MAX);
        let begin = Instant::now();
        table.begin_copy();
        timed(4, begin);
        drop(table.drop_copy());
        let left = table.len();
        let begin = Instant::now();
        let cleared = table.clear(&spec);
        timed(5, begin);
        drop(cleared);
        println!("{gibibytes} GiB, {rows} rows, laid out {layouts} times, {left} rows left");
        for ((what, longest), total) in STEPS.iter().zip(longest).zip(total) {
            println!("  {what}: at most {:.1} ms, {:.2} s in all", longest.as_secs_f64() * 1e3, total.as_secs_f64());
        }
    }
}

/// Keys a second of pushes and reads with lists that come back and with new ones, at width 1:
/// `cargo test --release -p slackwater-shard --lib -- --ignored --nocapture keys_per_second`.
#[test]
#[ignore = "a measurement, for the release profile"]
fn keys_per_second() {
    const ROWS: u64 = 4_000_000;
    const KEYS_OF_A_LIST: usize = 128 << 10;
    const LISTS: usize = 30;
    const ROUNDS: usize = 15;
    let mut rows = rows_of(&TableSpec::sparse("t", 1));
    for first in (0..ROWS).step_by(100_000) {
        let mut positions: Vec<u64> = (first..first + 100_000).map(mix).collect();
        positions.sort_unstable();
        rows.make_rows(&positions).expect("there is room");
    }
    lay_out_now(&mut rows);
    let lists: Vec<Vec<u64>> = (0..LISTS as u64)
        .map(|list| {
            let mut positions: Vec<u64> =
                (0..KEYS_OF_A_LIST as u64).map(|key| mix(mix(list << 32 | key) % ROWS)).collect();
            positions.sort_unstable();
            positions.dedup();
            positions
        })
        .collect();
    let keys: usize = lists.iter().map(Vec::len).sum();
    let gradients = vec![1.0; KEYS_OF_A_LIST];
    let mut values = vec![0.0; KEYS_OF_A_LIST];
    let mut signature = LISTS as u128;
    let rounds = (0..ROUNDS).map(|_| {
        let mut took = [0.0; 4];
        let mut timed = |what: usize, rows: &mut Rows<f32>, part: &KeyPart| {
            let begin = Instant::now();
            let found = rows.resolve(part, true).or_else(|_| rows.resolve(part, true));
            let Ok(found) = found else { panic!("the shard knows the list") };
            let count = found.slots.slots().count();
            match what % 2 {
                0 => rows.apply(Clock(0), found.slots.slots(), &gradients[..count]),
                _ => rows.read(Clock(0), found.slots.slots(), &mut values[..count]),
            }
            took[what] += begin.elapsed().as_secs_f64();
        };
        for (number, positions) in lists.iter().enumerate() {
            let known =
                KeyPart::Known { signature: Signature(number as u128), start: 0, count: positions.len() as u32 };
            let all = list(number as u128, positions);
            drop(rows.resolve(&all, true));
            timed(0, &mut rows, &known);
            timed(1, &mut rows, &known);
        }
        for positions in &lists {
            signature += 1;
            timed(2, &mut rows, &list(signature, positions));
            signature += 1;
            timed(3, &mut rows, &list(signature, positions));
        }
        took.map(|took| keys as f64 / took / 1e6)
    });
    let rounds: Vec<[f64; 4]> = rounds.collect();
    for (what, name) in ["push, known list", "read, known list", "push, new list", "read, new list"].iter().enumerate()
    {
        let mut speeds: Vec<f64> = rounds.iter().map(|round| round[what]).collect();
        speeds.sort_by(f64::total_cmp);
        println!("{name}: median {:.1} M keys/s, best {:.1}", speeds[ROUNDS / 2], speeds[ROUNDS - 1]);
    }
}

fn list(signature: u128, positions: &[u64]) -> KeyPart {
    KeyPart::List { signature: Signature(signature), start: 0, positions: Payload::new(positions.to_vec()) }
}

fn lay_out_now(rows: &mut Rows<f32>) {
    loop {
        match rows.lay_out(1 << 16) {
            LayoutPiece::Nothing => return,
            LayoutPiece::Moved(_) => {}
            LayoutPiece::AllMoved => drop(rows.end_layout()),
        }
    }
}
