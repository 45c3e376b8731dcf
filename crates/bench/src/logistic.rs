//! `bench logistic`: logistic regression from text, beside a hand-written loop in the same run, and
//! beside Vowpal Wabbit where it is installed.
//!
//! Slackwater and the loop read the same file with the same parser in the same minibatches, and use
//! the same updater (ftrl). The loop is one thread with its weights in an array.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use apps::logistic::sigmoid;
use data::{DataReader, Labels, Minibatch, TextParser};
use indicatif::ProgressBar;
use launch::{OutputTarget, Start};

use super::clicks::clicks;
use super::learning::{BETA, RATE, Scratch, embedded, open};
use super::measure::{Columns, Format, Report, gbs, timed};
use types::SplitMix64;

/// The settings of `bench logistic`.
#[derive(clap::Args)]
pub struct LogisticBench {
    /// LibSVM text to learn from, plain, .gz or .zst, repeated until there are 100,000 rows.
    /// Without this option, text is made up: up to 130 features a row among 30,000.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows of a minibatch.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    minibatch: u32,
    /// Rows of a made-up click log that is streamed from a .zst file; 0 skips this part.
    #[arg(long, default_value_t = 10_000_000)]
    clicks: u64,
    /// A Python that has the package vowpalwabbit, to measure its ftrl over the same rows.
    #[arg(long, default_value = "python3")]
    python: String,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The least number of rows to learn from.
const FEWEST_ROWS: usize = 100_000;

/// The command `bench logistic`.
pub(crate) fn run(options: &LogisticBench) -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let text = scratch.path("rows.libsvm");
    prepare(options.data.as_deref(), &text)?;
    let bytes = repeat(&text)?;
    let reader = open(&text, options.minibatch as usize)?;
    let rows = bytes.iter().filter(|byte| **byte == b'\n').count() as f64;
    let vw = VowpalWabbit::prepare(options, &bytes, &scratch)?;
    let mut columns = Columns::default();
    let progress = ProgressBar::new(u64::from(options.rounds) + 1);
    for round in 0..=options.rounds {
        // The first round is a warm-up and does not count.
        let mut put = |name, value| {
            if round > 0 {
                columns.put(name, value);
            }
        };
        put("parse", gbs(bytes.len(), timed(|| parse(&bytes))?.0));
        put("plain", rows / timed(|| plain(&reader))?.0);
        put("apart", rows / timed(|| apart(&reader))?.0);
        put("one", rows / timed(|| embedded(&reader, 1))?.0);
        put("two", rows / timed(|| embedded(&reader, 2))?.0);
        put("processes", processes(&text, options.minibatch)?);
        if let Some(vw) = &vw {
            put("vw", rows / vw.seconds()?);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    drop(bytes);
    let mut report = Report::default();
    report.number("libsvm_parse_gbs", columns.median("parse"));
    report.number("plain_rows_per_s", columns.median("plain"));
    let plain = columns.median("plain");
    for (name, figure) in
        [("apart", "two_plain_loops"), ("one", "one_worker"), ("two", "two_workers"), ("processes", "two_processes")]
    {
        report.number(&format!("{figure}_rows_per_s"), columns.median(name));
        report.number(&format!("{figure}_over_plain"), columns.median(name) / plain);
    }
    report.number("vw_rows_per_s", columns.median("vw"));
    report.number("one_worker_over_vw", columns.median("one") / columns.median("vw"));
    report.number("two_workers_over_vw", columns.median("two") / columns.median("vw"));
    if options.clicks > 0 {
        clicks(options.clicks, &scratch, &mut report)?;
    }
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

/// Writes plain LibSVM text to learn from: the rows of a file, or made-up ones.
fn prepare(data: Option<&Path>, text: &Path) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(text)?);
    if let Some(data) = data {
        for batch in open(data, 1000)?.batches()? {
            for row in batch?.iter() {
                write!(out, "{}", if row.label == Some(1.0) { "+1" } else { "-1" })?;
                for (key, value) in row.keys.iter().zip(row.values) {
                    write!(out, " {key}:{value}")?;
                }
                writeln!(out)?;
            }
        }
    } else {
        let mut random = SplitMix64::new(1);
        for _ in 0..25_000 {
            // A long tail: the square of a uniform number favours small indices.
            let mut keys: Vec<u64> = (0..130).map(|_| 1 + (random.unit().powi(2) * 30_000.0) as u64).collect();
            keys.sort_unstable();
            keys.dedup();
            write!(out, "{}", if keys[0].is_multiple_of(2) { "+1" } else { "-1" })?;
            keys.iter().try_for_each(|key| write!(out, " {key}:{}", 1 + key % 3))?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

/// Repeats the text until it has [`FEWEST_ROWS`], so that starting and ending a run hardly matter.
/// Returns the text.
fn repeat(text: &Path) -> anyhow::Result<Vec<u8>> {
    let once = std::fs::read(text)?;
    let rows = once.iter().filter(|byte| **byte == b'\n').count();
    let all = once.repeat(FEWEST_ROWS.div_ceil(rows.max(1)));
    std::fs::write(text, &all)?;
    Ok(all)
}

/// Runs the parser alone, over text in memory.
fn parse(bytes: &[u8]) -> anyhow::Result<()> {
    let mut parser = TextParser::libsvm(Labels::Binary);
    let mut batch = Minibatch::new();
    // Lines are cut as file readers cut them.
    let ends = memchr::memchr_iter(b'\n', bytes).chain([bytes.len()]);
    let mut start = 0;
    for end in ends {
        if batch.rows() == 1000 {
            batch.clear();
        }
        if let Err(fault) = parser.line(&bytes[start..end], &mut batch) {
            bail!("the parser refuses a row of the benchmark's text: {fault:?}");
        }
        start = (end + 1).min(bytes.len());
    }
    Ok(())
}

/// The hand-written loop: one thread, weights in an array, one ftrl step per minibatch.
fn plain(reader: &DataReader) -> anyhow::Result<()> {
    let mut source = reader.source();
    let mut batch = Minibatch::new();
    let mut weights = Vec::new();
    let mut sums = Vec::new();
    let mut squares = Vec::new();
    let mut gradients = Vec::new();
    let mut touched: Vec<usize> = Vec::new();
    while source.fill(&mut batch)? {
        let most = batch.keys().iter().max().map_or(0, |key| *key as usize + 1);
        for array in [&mut weights, &mut sums, &mut squares, &mut gradients] {
            if array.len() < most {
                array.resize(most, 0f32);
            }
        }
        for row in batch.iter() {
            let score = score(&weights, row.keys, row.values);
            let slope = (sigmoid(score) - f64::from(row.label.unwrap_or(0.0))) as f32;
            for (key, value) in row.keys.iter().zip(row.values) {
                let gradient = &mut gradients[*key as usize];
                if *gradient == 0.0 {
                    touched.push(*key as usize);
                }
                *gradient += slope * value;
            }
        }
        for key in touched.drain(..) {
            let g = f64::from(std::mem::take(&mut gradients[key]));
            let n = f64::from(squares[key]);
            if g == 0.0 {
                continue;
            }
            let after = n + g * g;
            let sigma = (after.sqrt() - n.sqrt()) / RATE;
            let z = f64::from(sums[key]) + g - sigma * f64::from(weights[key]);
            sums[key] = z as f32;
            squares[key] = after as f32;
            weights[key] = (-z * RATE / (BETA + after.sqrt())) as f32;
        }
    }
    std::hint::black_box(weights);
    Ok(())
}

/// Σ w x, as four independent sums, which the processor computes in parallel.
fn score(weights: &[f32], keys: &[u64], values: &[f32]) -> f64 {
    let term = |(key, value): (&u64, &f32)| f64::from(weights[*key as usize]) * f64::from(*value);
    let mut keys = keys.chunks_exact(4);
    let mut values = values.chunks_exact(4);
    let mut sums = [0.0; 4];
    for (keys, values) in (&mut keys).zip(&mut values) {
        sums.iter_mut().zip(keys.iter().zip(values).map(term)).for_each(|(sum, term)| *sum += term);
    }
    sums.iter().sum::<f64>() + keys.remainder().iter().zip(values.remainder()).map(term).sum::<f64>()
}

/// Two hand-written loops side by side, each with half of the rows and its own weights: the upper
/// limit for two cores, because they share nothing.
fn apart(reader: &DataReader) -> anyhow::Result<()> {
    let halves = [reader.for_worker(0, 2)?, reader.for_worker(1, 2)?];
    std::thread::scope(|scope| {
        let threads = halves.each_ref().map(|half| scope.spawn(|| plain(half)));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Trains with a server and a worker in processes of their own, which talk through shared memory.
/// Returns the rows per second that they report.
fn processes(text: &Path, minibatch: u32) -> anyhow::Result<f64> {
    let mut process = Start::this_program("the processes")?
        .args(["launch", "--servers", "1", "--workers", "1", "--", "train", "logistic", "--json", "--no-bias"])
        .args(["--shuffle", "off", "--minibatch", &minibatch.to_string(), "--data"])
        .args([text])
        .stdout(OutputTarget::Capture)
        .spawn()?;
    process.wait()?;
    let printed = process.stdout();
    let report: serde_json::Value = serde_json::from_str(printed.trim())
        .with_context(|| format!("`slackwater launch` printed no JSON report: {printed}"))?;
    report["rows_per_second"].as_f64().context("the report of `slackwater launch` has no rows_per_second")
}

/// Measures Vowpal Wabbit's ftrl, where it is installed.
struct VowpalWabbit {
    python: String,
    text: PathBuf,
}

/// A Python program that prints how many seconds one pass over a file takes. It exits with status 3
/// if the package is missing.
const PASS: &str = "
import sys, time
try:
    from vowpalwabbit import Workspace
except ImportError:
    sys.exit(3)
if len(sys.argv) > 1:
    start = time.perf_counter()
    Workspace('--ftrl --loss_function logistic --noconstant -b 18 --quiet -d ' + sys.argv[1]).finish()
    print(time.perf_counter() - start)
";

impl VowpalWabbit {
    /// Writes the rows in Vowpal Wabbit's format. `None` if the package is missing.
    fn prepare(options: &LogisticBench, text: &[u8], scratch: &Scratch) -> anyhow::Result<Option<Self>> {
        let known = Start::program("python", &options.python).args(["-c", PASS]).spawn().and_then(|mut it| it.wait());
        if !known.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: vowpalwabbit: `{}` cannot import it; name another with --python", options.python);
            return Ok(None);
        }
        let path = scratch.path("rows.vw");
        let mut out = BufWriter::new(File::create(&path)?);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
            out.write_all(if line[0] == b'-' { b"-1 |" } else { b"1 |" })?;
            out.write_all(&line[end..])?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(Some(Self { python: options.python.clone(), text: path }))
    }

    /// Seconds of one pass over the rows.
    fn seconds(&self) -> anyhow::Result<f64> {
        let start = Start::program("vowpalwabbit", &self.python).args(["-c", PASS]).args([&self.text]);
        let mut process = start.stdout(OutputTarget::Capture).spawn()?;
        process.wait()?;
        let printed = process.stdout();
        printed.trim().parse().with_context(|| format!("vowpalwabbit printed no number of seconds: {printed}"))
    }
}
