//! How fast LibSVM text is parsed on one core, beside counting the lines of the same bytes.
//!
//! `cargo run --release -p slackwater-data --example parse_speed -- FILE…`: plain, .gz or .zst; decompressed in memory
//! first, so that the parser alone is measured. Without a file, on made-up text.

use data::{Labels, Minibatch, TextParser};
use std::error::Error;
use std::hint::black_box;
use std::io::Read;
use std::time::{Duration, Instant};

/// Rows that are kept before the minibatch is cleared, as a learning loop would.
const MINIBATCH_ROWS: usize = 1000;
/// Each figure is the best of passes over this long.
const MEASURED: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:32} {:>9} {:>11} {:>9} {:>9} {:>12}", "text", "MB", "features", "GB/s", "M rows/s", "lines GB/s");
    let files: Vec<String> = std::env::args().skip(1).collect();
    for file in &files {
        measure(file, &decompressed(file)?)?;
    }
    if files.is_empty() {
        measure("made up: whole numbers", &made_up(|n| format!("{}", n % 9 + 1)))?;
        measure("made up: six decimals", &made_up(|n| format!("0.{:06}", n % 1_000_000)))?;
        measure("made up: nine digits", &made_up(|n| format!("{}", f64::from((n % 999_983) as u32) / 98_765_431.0)))?;
    }
    Ok(())
}

fn measure(name: &str, text: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut rows = Minibatch::new();
    let mut parser = TextParser::libsvm(Labels::Real);
    let (mut row_count, mut features) = (0, 0);
    let parsing = best(|| {
        (row_count, features) = (0, 0);
        let mut rest = text;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            parser.line(&rest[..end], &mut rows)?;
            rest = &rest[end + 1..];
            if rows.rows() == MINIBATCH_ROWS || rest.is_empty() {
                (row_count, features) = (row_count + rows.rows(), features + rows.features());
                black_box(&rows).values();
                rows.clear();
            }
        }
        Ok(())
    })?;
    let counting = best(|| {
        black_box(memchr::memchr_iter(b'\n', black_box(text)).count());
        Ok(())
    })?;
    let bytes = text.len() as f64;
    let shown: String = name.chars().rev().take(32).collect::<Vec<_>>().into_iter().rev().collect();
    println!(
        "{shown:32} {:>9.1} {features:>11} {:>9.3} {:>9.2} {:>12.1}",
        bytes / 1e6,
        bytes / parsing.as_secs_f64() / 1e9,
        row_count as f64 / parsing.as_secs_f64() / 1e6,
        bytes / counting.as_secs_f64() / 1e9,
    );
    Ok(())
}

fn best(mut pass: impl FnMut() -> Result<(), data::Fault>) -> Result<Duration, data::Fault> {
    let started = Instant::now();
    let mut best = Duration::MAX;
    while started.elapsed() < MEASURED {
        let from = Instant::now();
        pass()?;
        best = best.min(from.elapsed());
    }
    Ok(best)
}

fn decompressed(file: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let bytes = std::fs::read(file)?;
    let mut text = Vec::new();
    match &bytes[..] {
        [0x1F, 0x8B, ..] => {
            flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut text)?;
        }
        [0x28, 0xB5, 0x2F, 0xFD, ..] => {
            zstd::Decoder::new(&bytes[..])?.read_to_end(&mut text)?;
        }
        _ => text = bytes,
    }
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    Ok(text)
}

/// 100,000 rows of 40 features each, with these values.
fn made_up(value: impl Fn(u64) -> String) -> Vec<u8> {
    let (mut text, mut state) = (String::new(), 1_u64);
    for _ in 0..100_000 {
        text += if state & 1 == 0 { "-1" } else { "+1" };
        for _ in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Small numbers are common, as in a vocabulary by frequency.
            let index = (1 << ((state >> 58) % 20)) + (state >> 40) % 1000;
            text += &format!(" {index}:{}", value(state >> 33));
        }
        text.push('\n');
    }
    text.into_bytes()
}
