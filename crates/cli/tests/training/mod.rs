//! Shared by tests: rows to learn from, and a training that does not end by itself.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::fmt::Write as _;

/// Rows whose label is 1 if most features have low numbers. One row in twenty is mislabelled.
pub fn made_up(rows: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    for row in rows {
        let mut mixed = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678;
        let mut next = || {
            mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed >> 33
        };
        let mut features: Vec<u64> = (0..5).map(|_| 1 + next() % 40).collect();
        features.sort_unstable();
        features.dedup();
        let weight: i64 = features.iter().map(|feature| if *feature <= 20 { 1 } else { -1 }).sum();
        let label = (weight > 0) != (next() % 20 == 0);
        write!(text, "{}", if label { "+1" } else { "-1" }).unwrap();
        features.iter().for_each(|feature| write!(text, " {feature}:1").unwrap());
        text.push('\n');
    }
    text
}

/// The arguments of a training that lasts until it is interrupted.
pub fn endless<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    vec!["train", "logistic", "--data", data, "--epochs=4000000", "--minibatch=100", "--slack=1", "--out", out]
}
