//! Benchmark: how fast LibSVM text is parsed on one core, beside counting the lines of the same
//! bytes.
//!
//! `cargo run --release -p slackwater-data --example parse_speed -- FILE…`: files are plain, .gz or
//! .zst. They are decompressed in memory first, so that the parser alone is measured. Without a
//! file, the text is made up.

use data::{Labels, Minibatch, TextParser};
use std::error::Error;
use std::hint::black_box;
use std::io::Read;
use std::time::{Duration, Instant};

/// Rows of a minibatch, which is then cleared, as in a training loop.
const MINIBATCH_ROWS: usize = 1000;
/// About how many bytes are timed at once.
const PIECE_BYTES: usize = 128 * 1024;
/// How long each measurement lasts.
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
        measure("made up: as f32 is printed", &made_up(|n| format!("{}", (n % 999_983) as f32 / 98_765_431.0)))?;
    }
    Ok(())
}

/// Measures the parser on a text and prints a line.
fn measure(name: &str, text: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut rows = Minibatch::new();
    let mut parser = TextParser::libsvm(Labels::Real);
    let pieces = pieces(text);
    let mut row_count = 0;
    let mut features = 0;
    let parsing = best(&pieces, |piece| {
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            parser.line(&rest[..end], &mut rows)?;
            rest = &rest[end + 1..];
            if rows.rows() == MINIBATCH_ROWS {
                row_count += rows.rows();
                features += rows.features();
                black_box(&mut rows).clear();
            }
        }
        row_count += rows.rows();
        features += rows.features();
        black_box(&mut rows).clear();
        Ok(())
    })?;
    let counting = best(&pieces, |piece| {
        black_box(memchr::memchr_iter(b'\n', black_box(piece)).count());
        Ok(())
    })?;
    let bytes = text.len() as f64;
    let passes = parsing.passes;
    let shown: String = name.chars().rev().take(32).collect::<Vec<_>>().into_iter().rev().collect();
    println!(
        "{shown:32} {:>9.1} {:>11} {:>9.3} {:>9.2} {:>12.1}",
        bytes / 1e6,
        features / passes,
        bytes / parsing.seconds / 1e9,
        (row_count / passes) as f64 / parsing.seconds / 1e6,
        bytes / counting.seconds / 1e9,
    );
    Ok(())
}

/// The text in small pieces of whole lines.
fn pieces(text: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let from = rest.len().min(PIECE_BYTES);
        let end = memchr::memchr(b'\n', &rest[from..]).map_or(rest.len(), |length| from + length + 1);
        pieces.push(&rest[..end]);
        rest = &rest[end..];
    }
    pieces
}

struct Best {
    seconds: f64,
    passes: usize,
}

/// Goes over all pieces again and again, and adds up the best time of each. So other work of the
/// machine hardly counts.
fn best(pieces: &[&[u8]], mut work: impl FnMut(&[u8]) -> Result<(), data::RowFault>) -> Result<Best, data::RowFault> {
    let started = Instant::now();
    let mut times = vec![Duration::MAX; pieces.len()];
    let mut passes = 0;
    while started.elapsed() < MEASURED {
        for (piece, best) in pieces.iter().zip(&mut times) {
            let from = Instant::now();
            work(piece)?;
            *best = from.elapsed().min(*best);
        }
        passes += 1;
    }
    Ok(Best { seconds: times.iter().sum::<Duration>().as_secs_f64(), passes })
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

/// Makes 100,000 rows of 40 features each, sorted by index, with values from `value`.
fn made_up(value: impl Fn(u64) -> String) -> Vec<u8> {
    let mut text = String::new();
    let mut state = 1_u64;
    let mut indices = [0; 40];
    for _ in 0..100_000 {
        text += if state & 1 == 0 { "-1" } else { "+1" };
        for index in &mut indices {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Small indices are common, as in a vocabulary sorted by frequency: half are below
            // 2,024, all below 600,000.
            *index = (1_u64 << ((state >> 40) % 20)) + state % 1000;
        }
        indices.sort_unstable();
        for index in indices {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text += &format!(" {index}:{}", value(state >> 33));
        }
        text.push('\n');
    }
    text.into_bytes()
}
