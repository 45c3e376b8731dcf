//! The KKT filter: most passes leave out weights that stay at zero, and training reaches the same
//! optimum with fewer bytes.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::proximal::{Gap, Proximal, ProximalState};
use apps::train::{Go, TrainError};
use common::{Scratch, folder, lib_svm, on_workers, open};
use data::{DataReader, Labels};
use slackwater::Consistency;
use slackwater::policy::Codecs;
use std::fmt::Write;

/// Rows whose label depends on eight of four thousand features, and on chance.
fn rows(scratch: &Scratch) -> DataReader {
    let mut state = 7u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % bound
    };
    let mut text = String::new();
    for _ in 0..2_000 {
        let mut keys: Vec<u64> = (0..33).map(|nth| below(if nth < 30 { 4_000 } else { 8 })).collect();
        keys.sort_unstable();
        keys.dedup();
        let say: i64 = keys.iter().filter(|key| **key < 8).map(|key| if key % 2 == 0 { 4 } else { -4 }).sum();
        let label = i64::from(say + below(11) as i64 > 5);
        write!(text, "{label}").expect("a string grows");
        keys.iter().for_each(|key| write!(text, " {}:1", key + 1).expect("a string grows"));
        text.push('\n');
    }
    let path = scratch.path("rows.libsvm");
    std::fs::write(&path, text).expect("a file can be written");
    open(&path, lib_svm(Labels::Binary))
}

/// The result of a run.
struct Run {
    gap: Gap,
    /// The keys of the weights that are not zero.
    non_zeros: Vec<u64>,
    /// Bytes that one worker sent and received in the last pass but one, which takes only active
    /// features.
    late_bytes: u64,
}

fn run(reader: &DataReader, workers: u32, proximal: &Proximal) -> Run {
    let runs = on_workers(reader, workers, |session, share| {
        let mut clocks = 0;
        let mut bytes = Vec::new();
        let watch = |state: Option<ProximalState>| {
            if state.is_none() {
                clocks += 1;
                if clocks % proximal.blocks == 0 {
                    bytes.push(session.traffic().bytes_in + session.traffic().bytes_out);
                }
            }
            Go::On
        };
        let solved = apps::proximal::train(session, proximal, share, watch).expect("it trains");
        let weights = apps::proximal::weights(&solved.table).expect("they can be read");
        // The last of ten passes is not in `bytes`: after its last clock comes a check, not a call
        // without a state.
        let late_bytes = bytes[bytes.len() - 1] - bytes[bytes.len() - 2];
        let mut non_zeros = weights.keys;
        non_zeros.sort_unstable();
        Run { gap: solved.gap, non_zeros, late_bytes }
    });
    runs.into_iter().next().expect("there is a worker")
}

fn proximal(l1: f64, blocks: usize, slack: u64, tolerance: f64) -> Proximal {
    let codecs = Codecs::up(["kkt"]);
    Proximal { l1, blocks, consistency: Consistency::slack(slack), passes: 2_000, tolerance, codecs }
}

/// Checks that the filter gives the same objective to a ten-thousandth and the same weights at
/// zero, with at most `most_bytes` times the bytes.
fn assert_same_optimum(reader: &DataReader, workers: u32, proximal: &Proximal, most_bytes: f64) {
    let filtered = run(reader, workers, proximal);
    let plain = run(reader, workers, &Proximal { codecs: Codecs::default(), ..proximal.clone() });
    let off = (filtered.gap.objective / plain.gap.objective - 1.0).abs();
    let bytes = filtered.late_bytes as f64 / plain.late_bytes as f64;
    let weights = plain.non_zeros.len();
    let others = filtered.non_zeros.len();
    println!(
        "{}: objective off by {off:.1e}, {weights} and {others} weights, {bytes:.2} of the bytes",
        proximal.consistency
    );
    assert!(off <= 1e-4, "{} is not {}", filtered.gap.objective, plain.gap.objective);
    assert_eq!(filtered.non_zeros, plain.non_zeros);
    assert!(bytes <= most_bytes, "{bytes} of the bytes late in the run");
}

#[test]
fn kkt_filter_reaches_the_same_optimum_with_a_fraction_of_the_bytes() {
    let scratch = Scratch::new("filter");
    let reader = rows(&scratch);
    for (workers, slack) in [(1, 0), (3, 0), (3, 3)] {
        assert_same_optimum(&reader, workers, &proximal(4e-3, 4, slack, 1e-6), 0.4);
    }
}

#[test]
#[ignore = "real data: a minute"]
fn kkt_filter_reaches_the_same_optimum_on_imdb() {
    let Some(folder) = folder("imdb") else { return };
    let reader = open(&folder.join("imdb.train.libsvm.zst"), lib_svm(Labels::Binary));
    assert_same_optimum(&reader, 2, &proximal(4e-4, 8, 0, 1e-5), 0.25);
}

#[test]
fn kkt_filter_refuses_settings_under_which_workers_may_disagree() {
    let scratch = Scratch::new("filter-refused");
    let reader = rows(&scratch);
    for consistency in [Consistency::Unbounded, Consistency::slack(4)] {
        let proximal = Proximal { consistency, ..proximal(4e-3, 4, 0, 1e-6) };
        let said = on_workers(&reader, 1, |session, share| {
            apps::proximal::train(session, &proximal, share, |_| Go::On).map(drop).map_err(|error| match error {
                TrainError::Data(error) => error.to_string(),
                other => panic!("{other}"),
            })
        });
        let said = said[0].clone().expect_err("it is refused");
        assert!(said.contains("give a `slack` below the number of blocks"), "{said}");
    }
}
