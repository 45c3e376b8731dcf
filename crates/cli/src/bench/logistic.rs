//! `bench logistic`: logistic regression from text, beside a plain loop in the same run that a person might write by hand.
//!
//! Everybody reads the same file with the same parser in the same minibatches and follows the same rule (ftrl). The plain loop
//! is one thread with its weights in an array.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use apps::logistic::{Logistic, sigmoid};
use apps::train::{Go, Rule, Training, train};
use data::{Format as DataFormat, Labels, Minibatch, Reader, Settings, TextParser};
use indicatif::ProgressBar;
use slackwater::{Consistency, Session, Shape};

use super::measure::{Columns, Format, Report, gbs, timed};
use crate::demo::random::Random;

/// The settings of `bench logistic`.
#[derive(clap::Args)]
pub struct Options {
    /// LibSVM text to learn from, plain, .gz or .zst, repeated until there are 100,000 rows; made up when not given: 130 features a row among 30,000.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows of a minibatch.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    minibatch: u32,
    /// Rows of the made-up click log that is streamed from a .zst file; 0 leaves it out.
    #[arg(long, default_value_t = 10_000_000)]
    clicks: u64,
    /// A Python that has vowpalwabbit, to measure its ftrl over the same rows.
    #[arg(long, default_value = "python3")]
    python: String,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

const RATE: f64 = 0.1;
const BETA: f64 = 1.0;
/// Rows that everybody learns from, at least.
const FEWEST_ROWS: usize = 100_000;
/// Features of the click log.
const CLICK_BITS: u32 = 24;
const CLICK_FIELDS: usize = 20;

/// The command `bench logistic`.
pub fn run(options: &Options) -> anyhow::Result<()> {
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
        // The first round warms everything up and does not count.
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

/// A folder for the files of one run, removed with them.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("slackwater-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn open(file: &Path, minibatch_rows: usize) -> anyhow::Result<Reader> {
    let settings = Settings { minibatch_rows, ..Settings::new(DataFormat::LibSvm, Labels::Binary) };
    Ok(Reader::open(&[file.to_str().context("a path in UTF-8")?], settings)?)
}

/// Writes the rows as plain LibSVM text: those of a file, or made-up ones.
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
        let mut random = Random::new(1);
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

/// Repeats the text until it has enough rows for starting and ending a run not to count, and returns it.
fn repeat(text: &Path) -> anyhow::Result<Vec<u8>> {
    let once = std::fs::read(text)?;
    let rows = once.iter().filter(|byte| **byte == b'\n').count();
    let all = once.repeat(FEWEST_ROWS.div_ceil(rows.max(1)));
    std::fs::write(text, &all)?;
    Ok(all)
}

/// The parser alone, over text in memory.
fn parse(bytes: &[u8]) -> anyhow::Result<()> {
    let mut parser = TextParser::libsvm(Labels::Binary);
    let mut batch = Minibatch::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if batch.rows() == 1000 {
            batch.clear();
        }
        if let Err(fault) = parser.line(line, &mut batch) {
            bail!("{fault:?}");
        }
    }
    Ok(())
}

/// What somebody might write by hand: one thread, weights in an array, ftrl once a minibatch.
fn plain(reader: &Reader) -> anyhow::Result<()> {
    let mut source = reader.source();
    let mut batch = Minibatch::new();
    let (mut weights, mut sums, mut squares, mut gradients) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut touched: Vec<usize> = Vec::new();
    while source.fill(&mut batch)? {
        let most = batch.keys().iter().max().map_or(0, |key| *key as usize + 1);
        for array in [&mut weights, &mut sums, &mut squares, &mut gradients] {
            if array.len() < most {
                array.resize(most, 0f32);
            }
        }
        for row in batch.iter() {
            let score: f64 =
                row.keys.iter().zip(row.values).map(|(k, x)| f64::from(weights[*k as usize]) * f64::from(*x)).sum();
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
            let (g, n) = (f64::from(std::mem::take(&mut gradients[key])), f64::from(squares[key]));
            if g == 0.0 {
                continue;
            }
            let after = n + g * g;
            let sigma = (after.sqrt() - n.sqrt()) / RATE;
            let z = f64::from(sums[key]) + g - sigma * f64::from(weights[key]);
            (sums[key], squares[key]) = (z as f32, after as f32);
            weights[key] = (-z * RATE / (BETA + after.sqrt())) as f32;
        }
    }
    std::hint::black_box(weights);
    Ok(())
}

/// Two plain loops side by side, each with half of the rows and weights of its own: what two cores could do if nothing had to
/// be shared.
fn apart(reader: &Reader) -> anyhow::Result<()> {
    let halves = [reader.for_worker(0, 2)?, reader.for_worker(1, 2)?];
    std::thread::scope(|scope| {
        let threads = halves.each_ref().map(|half| scope.spawn(|| plain(half)));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The same through sessions and tables, in this process.
fn embedded(reader: &Reader, workers: u32) -> anyhow::Result<()> {
    let sessions = Session::embedded(Shape { servers: 1, workers })?;
    let rule = Rule::Ftrl { rate: RATE, beta: BETA };
    let training = Training { rule, l1: 0.0, consistency: Consistency::slack(3), bias: false };
    let work = |session: Session| -> anyhow::Result<()> {
        let share = reader.for_worker(session.rank(), workers)?;
        train(&session, &Logistic { l2: 0.0 }, &training, None, &share, |_| Go::On)?;
        Ok(session.close()?)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| work(session))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The same as a server and a worker in processes of their own, which share memory; rows per second by their own account.
fn processes(text: &Path, minibatch: u32) -> anyhow::Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(["launch", "--servers", "1", "--workers", "1", "--", "train", "logistic", "--json", "--no-bias"])
        .args(["--shuffle", "off", "--minibatch", &minibatch.to_string(), "--data"])
        .arg(text)
        .stderr(Stdio::null())
        .output()
        .context("cannot start the processes")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let figures: serde_json::Value = serde_json::from_str(said.trim()).with_context(|| format!("they said: {said}"))?;
    figures["rows_per_second"].as_f64().context("they said nothing of rows per second")
}

/// Vowpal Wabbit's ftrl, where it is installed.
struct VowpalWabbit {
    python: String,
    text: PathBuf,
}

/// Says how long one pass over a file takes, or nothing where the package is not there.
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
    fn prepare(options: &Options, text: &[u8], scratch: &Scratch) -> anyhow::Result<Option<Self>> {
        let known = Command::new(&options.python).args(["-c", PASS]).stderr(Stdio::null()).status();
        if !known.is_ok_and(|status| status.success()) {
            eprintln!("vowpalwabbit is not measured: `{}` has no such package", options.python);
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

    fn seconds(&self) -> anyhow::Result<f64> {
        let output = Command::new(&self.python).args(["-c", PASS]).arg(&self.text).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        said.trim().parse().with_context(|| format!("vowpalwabbit said: {said}"))
    }
}

/// A made-up click log, streamed from a .zst file: how fast, in how much memory, and where the time goes.
fn clicks(rows: u64, scratch: &Scratch, report: &mut Report) -> anyhow::Result<()> {
    let path = scratch.path("clicks.libsvm.zst");
    let features = write_clicks(&path, rows)?;
    report.number("clicks_file_bytes", std::fs::metadata(&path)?.len() as f64);
    let reader = open(&path, 2000)?;
    let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    let rule = Rule::Ftrl { rate: RATE, beta: BETA };
    let training = Training { rule, l1: 0.0, consistency: Consistency::slack(3), bias: true };
    let progress = ProgressBar::new(rows);
    let (mut seen, mut at_marks) = (0, Vec::new());
    let (seconds, _) = timed(|| {
        Ok(train(&session, &Logistic { l2: 0.0 }, &training, None, &reader, |learnt| {
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
    let ledger = session.ledger();
    report.number("clicks_share_computing", ledger.compute().as_secs_f64() / ledger.total.as_secs_f64());
    report.number("clicks_share_network", ledger.network.as_secs_f64() / ledger.total.as_secs_f64());
    let reading = timed(|| {
        for batch in reader.batches()? {
            batch?;
        }
        Ok(())
    })?;
    report.number("clicks_reading_alone_rows_per_s", rows as f64 / reading.0);
    Ok(session.close()?)
}

/// The rows at which memory is looked at.
fn marks(rows: u64) -> [u64; 3] {
    [rows / 10, rows / 2, rows]
}

/// Writes rows of one value from each field. Fields have 4, 8, 16, … values, of which the k-th comes as often as 1 / k says;
/// its key is a hash. Returns how many keys have been written at each mark.
fn write_clicks(path: &Path, rows: u64) -> anyhow::Result<Vec<u64>> {
    let mut out = zstd::Encoder::new(BufWriter::new(File::create(path)?), 1)?;
    let mut random = Random::new(2);
    let mut line = String::new();
    let progress = ProgressBar::new(rows);
    let mut written = vec![false; 1 << CLICK_BITS];
    let (mut features, mut at_marks) = (0, Vec::new());
    for row in 1..=rows {
        use std::fmt::Write as _;
        let mut score = -1.0;
        let mut keys = [0; CLICK_FIELDS];
        for (field, key) in keys.iter_mut().enumerate() {
            let values = f64::from(4u32 << field);
            let value = (random.unit() * values.ln()).exp() as u64;
            let hash = (value ^ (field as u64) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            *key = hash >> (64 - CLICK_BITS);
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

/// Memory of this process that is in use.
fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0 / 1e6
}
