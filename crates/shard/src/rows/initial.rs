//! Initial values of rows: a function of seed, key and column alone, so that every server makes the
//! same row.

use types::{Initial, Key};

/// One uniform draw over u64: SplitMix64's finaliser over seed, key and column.
fn draw(seed: u64, key: Key, column: u64) -> u64 {
    let mut x = seed ^ key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ column.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Turns random bits into a number in the open interval (0, 1).
fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// The initial number at `column` of the row of `key`.
pub fn initial(rule: Initial, key: Key, column: usize) -> f64 {
    match rule {
        Initial::Zero => 0.0,
        Initial::Uniform { seed, scale } => scale * (2.0 * unit(draw(seed, key, column as u64)) - 1.0),
        Initial::Normal { seed, scale } => {
            // Box-Muller transform of two independent draws.
            let radius = (-2.0 * unit(draw(seed, key, 2 * column as u64)).ln()).sqrt();
            let angle = std::f64::consts::TAU * unit(draw(seed, key, 2 * column as u64 + 1));
            scale * radius * angle.cos()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_values_have_the_promised_mean_and_deviation() {
        for (rule, deviation) in [
            (Initial::Uniform { seed: 7, scale: 0.5 }, 0.5 / 3f64.sqrt()),
            (Initial::Normal { seed: 7, scale: 0.5 }, 0.5),
        ] {
            let draws: Vec<f64> =
                (0..2_000).flat_map(|key| (0..10).map(move |column| initial(rule, Key(key), column))).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!(mean.abs() < 0.02, "mean {mean}");
            assert!((variance.sqrt() - deviation).abs() < 0.01, "deviation {}", variance.sqrt());
        }
    }

    #[test]
    fn initial_values_differ_by_seed_key_and_column() {
        let rule = |seed| Initial::Uniform { seed, scale: 1.0 };
        let one = initial(rule(1), Key(1), 1);
        for other in [initial(rule(2), Key(1), 1), initial(rule(1), Key(2), 1), initial(rule(1), Key(1), 2)] {
            assert_ne!(one, other);
        }
    }
}
