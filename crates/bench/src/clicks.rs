//! Part of `bench logistic`: training on a made-up click log that is streamed from a .zst file. It
//! reports rows per second, resident memory, and where the time goes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use apps::logistic::{Logistic, sigmoid};
use apps::train::{Go, train};
use indicatif::ProgressBar;
use slackwater::{RunSize, Session};

use super::learning::{Scratch, open, training};
use super::measure::{Report, timed};
use super::resident::resident_bytes;
use types::SplitMix64;

/// Bits of a key, which is a hash.
const BITS: u32 = 24;
/// Features of a row, one from each field.
const FIELDS: usize = 20;

/// Writes a log of `rows` rows, learns from it, and reports.
pub(crate) fn clicks(rows: u64, scratch: &Scratch, report: &mut Report) -> anyhow::Result<()> {
    let path = scratch.path("clicks.libsvm.zst");
    let features = write_clicks(&path, rows)?;
    report.number("clicks_file_bytes", std::fs::metadata(&path)?.len() as f64);
    let reader = open(&path, 2000)?;
    let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    let progress = ProgressBar::new(rows);
    let mut seen = 0;
    let mut at_marks = Vec::new();
    let (seconds, _) = timed(|| {
        Ok(train(&session, &Logistic { l2: 0.0 }, &training(true), None, &reader, |learnt| {
            let before = seen;
            seen += learnt.examples;
            progress.set_position(seen);
            let passed = marks(rows).into_iter().filter(|mark| before < *mark && seen >= *mark);
            at_marks.extend(passed.map(|mark| (mark, resident_mb())));
            Go::On
        })?)
    })?;
    progress.finish_and_clear();
    report.number("clicks_rows_per_s", rows as f64 / seconds);
    for ((mark, megabytes), features) in at_marks.into_iter().zip(features) {
        report.number(&format!("clicks_features_at_{mark}_rows"), features as f64);
        report.number(&format!("clicks_resident_mb_at_{mark}_rows"), megabytes);
    }
    let times = session.time_breakdown();
    report.number("clicks_share_computing", times.compute().as_secs_f64() / times.total.as_secs_f64());
    report.number("clicks_share_network", times.network.as_secs_f64() / times.total.as_secs_f64());
    let reading = timed(|| {
        for batch in reader.batches()? {
            batch?;
        }
        Ok(())
    })?;
    report.number("clicks_reading_alone_rows_per_s", rows as f64 / reading.0);
    Ok(session.close()?)
}

/// The numbers of rows after which memory is measured.
fn marks(rows: u64) -> [u64; 3] {
    [rows / 10, rows / 2, rows]
}

/// Writes rows with one value of each field, as a hashed key. Fields have 4, 8, 16, … values; the
/// frequency of the k-th is proportional to 1 / k. Returns how many distinct keys have been written
/// at each mark.
fn write_clicks(path: &Path, rows: u64) -> anyhow::Result<Vec<u64>> {
    let mut out = zstd::Encoder::new(BufWriter::new(File::create(path)?), 1)?;
    let mut random = SplitMix64::new(2);
    let mut line = String::new();
    let progress = ProgressBar::new(rows);
    let mut written = vec![false; 1 << BITS];
    let mut features = 0;
    let mut at_marks = Vec::new();
    for row in 1..=rows {
        use std::fmt::Write as _;
        let mut score = -1.0;
        let mut keys = [0; FIELDS];
        for (field, key) in keys.iter_mut().enumerate() {
            let values = f64::from(4u32 << field);
            let value = (random.unit() * values.ln()).exp() as u64;
            let hash = (value ^ (field as u64) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            *key = hash >> (64 - BITS);
            score += if *key % 7 == 0 { 0.4 } else { -0.05 };
            features += u64::from(!std::mem::replace(&mut written[*key as usize], true));
        }
        line.clear();
        line.push(if random.unit() < sigmoid(score) { '1' } else { '0' });
        keys.iter().try_for_each(|key| write!(line, " {key}"))?;
        line.push('\n');
        out.write_all(line.as_bytes())?;
        if marks(rows).contains(&row) {
            at_marks.push(features);
        }
        if row.is_multiple_of(100_000) {
            progress.set_position(row);
        }
    }
    progress.finish_and_clear();
    out.finish()?.flush()?;
    Ok(at_marks)
}

/// Resident memory of this process, in MB.
fn resident_mb() -> f64 {
    resident_bytes("self").map_or(f64::NAN, |bytes| bytes as f64 / 1e6)
}
