//! `bench codec`: what each codec saves, loses and costs on one core, beside copying memory in the
//! same run.
//!
//! A copy of the same size precedes every encoding and every decoding. It is the reference, and it
//! evicts all buffers from the caches. Each figure is the median of the rounds; a ratio divides two
//! medians.

mod work;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Instant;

use anyhow::bail;
use indicatif::ProgressBar;
use rustix::time::{ClockId, clock_gettime};

use super::cold::ColdCopy;
use super::measure::{Format, Report, median};
use work::{Input, Output, Work};

/// The settings of `bench codec`.
#[derive(clap::Args)]
pub struct CodecBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// MiB of f32 to encode. Choose more than the processor's caches hold, or the figures look
    /// better than they are.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    mib: u32,
    /// Measure the thread's processor time instead of wall-clock time: for a machine that is in
    /// use.
    #[arg(long)]
    processor_time: bool,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
    /// Measure only these codecs and pipelines: bf16, topk=1%, fixed12+lz4, keys, …
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// The measured pipelines: names of codecs, joined by `+`.
///
/// Byte codecs alone, and `zeros`, encode values of which nine in ten are zero. The others encode
/// values like gradients: most are small, a few large.
const PIPELINES: [&str; 22] = [
    "bf16",
    "f16",
    "fixed1",
    "fixed4",
    "fixed8",
    "fixed12",
    "fixed16",
    "1bit",
    "2bit",
    "topk=1%",
    "topk=10%",
    "threshold=1",
    "zeros",
    "lz4",
    "zstd",
    "keys",
    "bf16+zstd",
    "fixed12+lz4",
    "fixed4+zstd",
    "1bit+lz4",
    "topk=1%+zstd",
    "zeros+lz4",
];

/// The speed that a codec should reach, in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    OverMemcpy(f64),
    GigabytesASecond(f64),
    MillionKeysASecond(f64),
}

/// The target of a single codec. Pipelines have none: they cost what their codecs cost together.
fn target(name: &str) -> Option<Target> {
    match name {
        "bf16" | "f16" => Some(Target::OverMemcpy(0.7)),
        "1bit" => Some(Target::GigabytesASecond(3.0)),
        "fixed1" | "fixed4" | "fixed8" | "fixed12" | "fixed16" => Some(Target::GigabytesASecond(2.0)),
        "topk=1%" => Some(Target::GigabytesASecond(1.0)),
        "keys" => Some(Target::MillionKeysASecond(400.0)),
        _ => None,
    }
}

/// The command `bench codec`.
pub(crate) fn run(options: &CodecBench) -> anyhow::Result<()> {
    let pipelines: Vec<&str> =
        if options.only.is_empty() { PIPELINES.to_vec() } else { options.only.iter().map(String::as_str).collect() };
    let input = Input::new(options.mib as usize);
    let mut output = Output::new(&input);
    let mut measured = pipelines
        .iter()
        .map(|name| Ok(Measured::new(name, Work::parse(name, &input)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut copy = ColdCopy::new((options.mib as usize) << 20);
    let mut copies = Vec::new();
    let time = if options.processor_time { processor_seconds } else { clock_seconds };
    let progress = ProgressBar::new((u64::from(options.rounds) + 1) * measured.len() as u64);
    for round in 0..=options.rounds {
        for Measured { work, encode, decode, .. } in &mut measured {
            let seconds = [
                seconds(time, || Ok(copy.once()))?,
                seconds(time, || Ok(work.encode(&input, &mut output)))?,
                seconds(time, || Ok(copy.once()))?,
                seconds(time, || work.decode(&mut output))?,
            ];
            // The first round is a warm-up and does not count. No residual is left from an earlier
            // encoding, so this is the round in which errors are measured.
            if round == 0 {
                work.compare(&input, &output)?;
            } else {
                copies.extend([seconds[0], seconds[2]]);
                encode.push(seconds[1]);
                decode.push(seconds[3]);
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let memcpy = f64::from(options.mib) * (1 << 20) as f64 / median(&mut copies) / 1e9;
    let lines: Vec<Line> = measured.iter_mut().map(|measured| measured.line(memcpy)).collect();
    match if options.json { Format::Json } else { Format::Table } {
        Format::Json => report(memcpy, &lines).print(Format::Json)?,
        Format::Table => write!(io::stdout(), "{}", table(memcpy, &lines))?,
    }
    Ok(())
}

/// A pipeline and its measurements, in seconds per round.
struct Measured {
    name: String,
    work: Work,
    encode: Vec<f64>,
    decode: Vec<f64>,
}

impl Measured {
    fn new(name: &str, work: Work) -> Self {
        Self { name: name.to_owned(), work, encode: Vec::new(), decode: Vec::new() }
    }

    fn line(&mut self, memcpy: f64) -> Line {
        let bytes = self.work.bytes_in() as f64;
        let keys = self.work.keys().map(|keys| keys as f64);
        let speed = |seconds: &mut Vec<f64>| {
            let seconds = median(seconds);
            Speed { gbs: bytes / seconds / 1e9, mkeys: keys.map(|keys| keys / seconds / 1e6) }
        };
        let encode = speed(&mut self.encode);
        let decode = speed(&mut self.decode);
        let verdict = target(&self.name).map(|target| {
            let reached = [encode, decode].iter().all(|speed| speed.reaches(target, memcpy));
            (target, if reached { Verdict::Ok } else { Verdict::Missed })
        });
        let ratio = bytes / self.work.bytes_out() as f64;
        let error = self.work.relative_error();
        Line { name: self.name.clone(), ratio, error, encode, decode, verdict }
    }
}

/// The figures of a pipeline, a line of the report.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    ratio: f64,
    /// ‖x − decoded‖ / ‖x‖; none for keys.
    error: Option<f64>,
    encode: Speed,
    decode: Speed,
    verdict: Option<(Target, Verdict)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Speed {
    gbs: f64,
    mkeys: Option<f64>,
}

impl Speed {
    fn reaches(self, target: Target, memcpy: f64) -> bool {
        match target {
            Target::OverMemcpy(least) => self.gbs / memcpy >= least,
            Target::GigabytesASecond(least) => self.gbs >= least,
            Target::MillionKeysASecond(least) => self.mkeys.is_some_and(|mkeys| mkeys >= least),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Missed,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missed => "missed",
        }
    }
}

impl Target {
    fn text(self) -> String {
        match self {
            Self::OverMemcpy(least) => format!("{least} of memcpy"),
            Self::GigabytesASecond(least) => format!("{least} GB/s"),
            Self::MillionKeysASecond(least) => format!("{least} M keys/s"),
        }
    }
}

/// The report for programs: a flat list of figures, each with its codec's name in front.
fn report(memcpy: f64, lines: &[Line]) -> Report {
    let mut report = Report::default();
    report.number("memcpy_gbs", memcpy);
    for Line { name, ratio, error, encode, decode, verdict } in lines {
        let name = name.replace(['=', '+'], "_").replace('%', "");
        report.number(&format!("{name}_ratio"), *ratio);
        error.iter().for_each(|error| report.number(&format!("{name}_relative_error"), *error));
        for (way, speed) in [("encode", encode), ("decode", decode)] {
            report.number(&format!("{name}_{way}_gbs"), speed.gbs);
            report.number(&format!("{name}_{way}_over_memcpy"), speed.gbs / memcpy);
            speed.mkeys.iter().for_each(|mkeys| report.number(&format!("{name}_{way}_mkeys"), *mkeys));
        }
        verdict.iter().for_each(|(_, verdict)| report.text(&format!("{name}_target"), verdict.text()));
    }
    report
}

/// The report for people: a line for each pipeline.
fn table(memcpy: f64, lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0).max("memcpy".len());
    let mut text = format!("{:<width$}   ratio    error   encode   decode  GB/s   of memcpy    target each way\n", "",);
    let _ = writeln!(text, "{:<width$}                    {memcpy:7.2}", "memcpy");
    for Line { name, ratio, error, encode, decode, verdict } in lines {
        let error = error.map_or(String::new(), |error| format!("{error:.5}"));
        let _ = write!(text, "{name:<width$} {ratio:7.2} {error:>8} {:8.2} {:8.2}", encode.gbs, decode.gbs);
        let _ = write!(text, "      {:5.2} {:5.2}", encode.gbs / memcpy, decode.gbs / memcpy);
        if let (Some(encode), Some(decode)) = (encode.mkeys, decode.mkeys) {
            let _ = write!(text, "  {encode:.0}, {decode:.0} M keys/s;");
        }
        if let Some((target, verdict)) = verdict {
            let _ = write!(text, "  {}: {}", target.text(), verdict.text());
        }
        text.push('\n');
    }
    text
}

fn clock_seconds() -> f64 {
    thread_local!(static START: Instant = Instant::now());
    START.with(|start| start.elapsed().as_secs_f64())
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn seconds<R>(time: fn() -> f64, work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<f64> {
    let start = time();
    work()?;
    let seconds = time() - start;
    if seconds > 0.0 {
        Ok(seconds)
    } else {
        bail!("one measurement is shorter than the clock can resolve: give it more to encode with --mib")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, encode: f64, decode: f64, mkeys: Option<f64>) -> Line {
        let work = Work::parse(name, &Input::new(1)).expect("a pipeline");
        let mut measured = Measured::new(name, work);
        let bytes = measured.work.bytes_in() as f64;
        let keys = measured.work.keys().unwrap_or_default() as f64;
        let seconds = |gbs: f64| mkeys.map_or(bytes / gbs / 1e9, |mkeys| keys / mkeys / 1e6);
        measured.encode = vec![seconds(encode)];
        measured.decode = vec![seconds(decode)];
        measured.line(10.0)
    }

    #[test]
    fn target_is_missed_if_either_direction_is_too_slow() {
        let verdict = |line: Line| line.verdict.map(|(_, verdict)| verdict);
        let table = [
            ("bf16", 7.1, 7.1, None, Some(Verdict::Ok)),
            ("f16", 6.9, 9.0, None, Some(Verdict::Missed)),
            ("1bit", 3.1, 2.9, None, Some(Verdict::Missed)),
            ("fixed4", 2.1, 2.1, None, Some(Verdict::Ok)),
            ("topk=1%", 1.1, 9.9, None, Some(Verdict::Ok)),
            ("2bit", 0.1, 0.1, None, None),
            ("fixed12+lz4", 0.1, 0.1, None, None),
            ("keys", 0.0, 0.0, Some(401.0), Some(Verdict::Ok)),
            ("keys", 0.0, 0.0, Some(399.0), Some(Verdict::Missed)),
        ];
        for (name, encode, decode, mkeys, expected) in table {
            assert_eq!(verdict(line(name, encode, decode, mkeys)), expected, "{name}");
        }
    }

    #[test]
    fn every_listed_pipeline_can_be_measured() {
        let input = Input::new(1);
        let mut output = Output::new(&input);
        for name in PIPELINES {
            let mut work = Work::parse(name, &input).expect(name);
            work.encode(&input, &mut output);
            work.decode(&mut output).expect(name);
            work.compare(&input, &output).expect(name);
            let ratio = work.bytes_in() as f64 / work.bytes_out() as f64;
            assert!(ratio > 1.2, "{name}: {ratio}");
            match work.relative_error() {
                None => assert_eq!(name, "keys"),
                Some(error) if ["zeros", "lz4", "zstd", "zeros+lz4"].contains(&name) => {
                    assert_eq!(error, 0.0, "{name}")
                }
                // fixed1 rounds each value to an end of its block's range. That is unbiased, but
                // the error can exceed that of sending zeros.
                Some(error) => assert!(error > 0.0 && (error < 1.0 || name == "fixed1"), "{name}: {error}"),
            }
        }
    }

    #[test]
    fn parse_refuses_a_wrong_pipeline_with_the_reason() {
        let refused =
            |name| Work::parse(name, &Input::new(1)).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(refused("bf61").contains("there is no codec 'bf61'"));
        assert!(refused("lz4+bf16").contains("bf16 cannot come after lz4"));
        assert!(refused("keys+bf16").contains("or keys alone"));
    }
}
