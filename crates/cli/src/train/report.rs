//! The report of a training: figures as text or JSON, and a chart of the loss.

use super::job::Job;
use super::monitor::Account;
use super::reading::{labels, open_alike};
use crate::figures::Figures;
use crate::totals::{Ranks, Totals, Waiting, bytes_in_words, grouped};
use anyhow::Context;
use apps::figures::Quality;
use apps::model::Model;
use apps::program::Task;
use apps::proximal::Gap;
use observe::chart::{Chart, Curve};
use serde_json::{Value, json};
use slackwater::RunSize;
use slackwater::monitor::CodecUse;
use std::fmt;
use std::io::Write;

/// The most rows of the training data on which the model's fit is measured.
const TRAIN_ROWS: u64 = 1_000_000;
const COLOUR: &str = "#0f766e";

/// What the workers measured in a run.
pub(crate) struct Run {
    pub(crate) workers: Vec<Figures>,
    pub(crate) ranks: Ranks,
    /// How long the run took.
    pub(crate) seconds: f64,
    /// The counts of this run.
    pub(crate) account: Account,
    /// The counts of this run and of the runs that it was resumed from, every row of every epoch
    /// once. Known in elastic runs only.
    pub(crate) in_all: Option<Account>,
    /// Seconds and loss.
    pub(crate) curve: Vec<(f64, f64)>,
    pub(crate) stopped: bool,
    pub(crate) gap: Option<Gap>,
    /// The codecs' statistics of one worker.
    pub(crate) codecs: Vec<CodecUse>,
}

/// The report of a training.
pub(crate) struct Report<'a> {
    job: &'a Job,
    run: Run,
    train: Option<Quality>,
    test: Option<Quality>,
    /// For each table, its name and how many features have a weight other than zero.
    features: Vec<(String, usize)>,
}

impl<'a> Report<'a> {
    /// Measures how well the model fits, and collects all figures.
    pub(crate) fn new(job: &'a Job, model: &Model, run: Run) -> anyhow::Result<Self> {
        let mut predictor = job.method.predictor(model, job.training.bias)?;
        let learnt_from = open_alike(&job.settings, job.settings.texts("data"), labels(&job.settings)?)?;
        let train = predictor.evaluate(&learnt_from, TRAIN_ROWS)?;
        let test = job.test.as_ref().map(|test| predictor.evaluate(test, u64::MAX)).transpose()?.flatten();
        let features = model.tables.iter().map(|(name, table)| (name.clone(), table.keys.len())).collect();
        Ok(Self { job, run, train, test, features })
    }

    /// Prints the report, and draws the chart.
    pub(crate) fn give(&self) -> anyhow::Result<()> {
        let settings = &self.job.settings;
        // Not `print!`, which panics when the reader has closed the output.
        match settings.switch("json") {
            true => writeln!(std::io::stdout(), "{}", self.to_json())?,
            false => write!(std::io::stdout(), "{self}")?,
        }
        if let Some(plot) = settings.text("plot") {
            std::fs::write(plot, self.chart().to_svg())
                .with_context(|| format!("cannot write the chart to {plot}; name another file with --plot"))?;
        }
        Ok(())
    }

    fn rows_per_second(&self) -> f64 {
        self.run.account.rows / self.run.seconds
    }

    fn chart(&self) -> Chart {
        let RunSize { servers, .. } = self.job.size();
        let workers = self.run.workers.len() as u32;
        let name = self.job.method.name();
        let loss = if self.job.method.task() == Task::Regression { "squared loss" } else { "log-loss" };
        let slack = match self.job.training.consistency.bound() {
            Some(slack) => format!("slack {slack}"),
            None => "asynchronous".to_owned(),
        };
        let last = self.run.curve.last().map_or(f64::NAN, |(_, loss)| *loss);
        Chart {
            title: format!("{name}: {loss} {last:.4} after {} rows", grouped(self.run.account.rows as u64)),
            subtitle: format!(
                "{loss} of rows just before they are learnt from; {workers} workers, {servers} servers, {slack}"
            ),
            curves: vec![Curve { label: loss.to_owned(), colour: COLOUR.to_owned(), points: self.run.curve.clone() }],
            ..Chart::default()
        }
    }

    fn to_json(&self) -> Value {
        let totals = Totals::of(&self.run.workers);
        let settings: serde_json::Map<String, Value> =
            self.job.settings.iter().map(|(setting, value, _)| (setting.name.to_owned(), value.to_json())).collect();
        let features: serde_json::Map<String, Value> =
            self.features.iter().map(|(name, count)| (name.clone(), (*count).into())).collect();
        json!({
            "program": self.job.method.name(),
            "settings": settings,
            "stopped": self.run.stopped,
            "seconds": self.run.seconds,
            "rows": self.run.account.rows as u64,
            "rows_in_all": self.run.in_all.as_ref().map(|all| all.rows as u64),
            "rows_per_second": self.rows_per_second(),
            "minibatches": self.run.account.minibatches as u64,
            "bad_rows": self.run.account.bad_rows as u64,
            "features": features,
            "objective": self.run.gap.map(|gap| gap.objective / gap.examples),
            "optimality_gap": self.run.gap.map(|gap| gap.relative()),
            "train": self.train.as_ref().map(quality_json),
            "test": self.test.as_ref().map(quality_json),
            "share_waiting_for_workers": totals.waiting,
            "share_waiting_for_network": totals.network,
            "share_waiting_at_barriers": totals.barrier,
            "staleness_mean": totals.staleness_mean(),
            "reads_by_staleness": totals.staleness,
            "bytes_sent_by_workers": totals.bytes_sent,
            "bytes_received_by_workers": totals.bytes_received,
            "codecs": self.run.codecs.iter().map(codec_json).collect::<Vec<_>>(),
            "workers": self.run.ranks.workers,
            "waited_for_workers": self.run.ranks.waited_for,
            "seconds_waited_by_worker_for_worker":
                self.run.workers.iter().map(|worker| &worker.waited_for).collect::<Vec<_>>(),
            "seconds_and_loss": self.run.curve,
            "model": self.job.settings.text("out"),
        })
    }
}

/// The figures by name. A figure that is not a finite number is null.
pub(crate) fn quality_json(quality: &Quality) -> Value {
    quality
        .named()
        .into_iter()
        .map(|(name, figure)| (name.to_owned(), Value::from(figure)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn codec_json(used: &CodecUse) -> Value {
    json!({
        "table": used.table,
        "up": used.up,
        "ratio_up": used.upward.ratio(),
        "relative_error_up": used.upward.relative_error(),
        "encode_ns_per_megabyte": used.upward.encode_ns_per_megabyte(),
        "ratio_down": used.downward.ratio(),
        "decode_ns_per_megabyte": used.downward.decode_ns_per_megabyte(),
    })
}

/// The codecs' statistics of a table, in a line.
fn codec_line(used: &CodecUse) -> String {
    let names = if used.up.is_empty() { "none" } else { &used.up };
    let smaller = |ratio: Option<f64>| ratio.map_or("as they are".to_owned(), |ratio| format!("{ratio:.1} × smaller"));
    let error = used.upward.relative_error().map_or(String::new(), |error| format!(", off by {:.1} %", 100.0 * error));
    format!(
        "{names}: pushed values {}{error}; read ones {}",
        smaller(used.upward.ratio()),
        smaller(used.downward.ratio())
    )
}

/// The figures by name, in a line.
pub(crate) fn quality_line(quality: &Quality) -> String {
    let figure = |(name, figure): (&str, f64)| format!("{} {}", name.replace('_', "-"), with_digits(figure));
    quality.named().into_iter().map(figure).collect::<Vec<_>>().join(", ")
}

/// Four decimals, or fewer where the number is large.
fn with_digits(figure: f64) -> String {
    if figure.abs() < 1000.0 { format!("{figure:.4}") } else { format!("{figure:.1}") }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = Totals::of(&self.run.workers);
        let RunSize { servers, .. } = self.job.size();
        let workers = self.run.workers.len() as u32;
        let mut line = |name: &str, cell: String| writeln!(f, "{name:<40}  {cell}");
        let of = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let workers = of(workers, "worker");
        let servers = of(servers, "server");
        line("program", format!("{}, {workers}, {servers}", self.job.method.name()))?;
        let ended = if self.run.stopped { ", stopped early" } else { "" };
        line("rows learnt from", format!("{}{ended}", grouped(self.run.account.rows as u64)))?;
        if let Some(all) = self.run.in_all.as_ref().filter(|all| all.rows != self.run.account.rows) {
            line(
                "rows learnt from in all",
                format!("{}, with the runs that this one resumed", grouped(all.rows as u64)),
            )?;
        }
        if self.run.account.bad_rows > 0.0 {
            line("malformed lines skipped", grouped(self.run.account.bad_rows as u64))?;
        }
        line("seconds", format!("{:.2}", self.run.seconds))?;
        line("rows per second", grouped(self.rows_per_second() as u64))?;
        for (name, count) in &self.features {
            let what = if name.starts_with("layer") { "neurons of" } else { "features with" };
            line(&format!("{what} {name} that are not zero"), grouped(*count as u64))?;
        }
        if let Some(gap) = self.run.gap {
            let objective = gap.objective / gap.examples;
            let above = 100.0 * gap.relative();
            line("mean loss + λ1 |w|", format!("{objective:.6}, at most {above:.2} % above the optimum"))?;
        }
        for (name, quality) in [("on training rows", &self.train), ("on test rows", &self.test)] {
            if let Some(quality) = quality {
                line(name, quality_line(quality))?;
            }
        }
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        line("time spent waiting for other workers", percent(totals.waiting))?;
        line("time spent waiting for the network", percent(totals.network))?;
        line("time spent waiting at barriers", percent(totals.barrier))?;
        line("clocks behind when reading, mean", format!("{:.2}", totals.staleness_mean()))?;
        line("reads 0/1/2/… clocks behind, in %", totals.staleness_shares())?;
        let [sent, received] = [totals.bytes_sent, totals.bytes_received].map(bytes_in_words);
        line("sent, received by workers", format!("{sent}, {received}"))?;
        for used in &self.run.codecs {
            line(&format!("codecs of {}", used.table), codec_line(used))?;
        }
        if let Some(out) = self.job.settings.text("out") {
            line("model", out.to_owned())?;
        }
        if self.run.workers.len() > 1 {
            write!(
                f,
                "\n{}",
                Waiting { heading: "seconds waited", workers: &self.run.workers, ranks: &self.run.ranks }
            )?;
        }
        Ok(())
    }
}
