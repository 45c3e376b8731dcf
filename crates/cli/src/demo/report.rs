//! The report of both runs: a table for people, JSON for programs, and a chart.

use std::fmt;

use serde_json::{Value, json};
use slackwater::RunSize;

use super::clicks::Clicks;
use super::train::Run;
use super::{HELD_OUT_ROWS, Training};
use crate::totals::{Ranks, Totals, Waiting, bytes_in_words, grouped};
use observe::chart::{Chart, Curve};

const COLOURS: [&str; 2] = ["#c2410c", "#0f766e"];
/// The loss at which the runs are compared is rounded up to a multiple of this.
const LOSS_STEP: f64 = 0.001;
/// If the work took longer than scheduled by more than this factor, the report says that the
/// machine was busy.
const BUSY: f64 = 1.05;

/// Both runs, and the figures that they are compared with.
pub(crate) struct Report<'a> {
    training: &'a Training,
    size: RunSize,
    runs: Vec<Run>,
    /// The held-out loss of the true model.
    floor_loss: f64,
    /// The held-out loss of always predicting the click rate.
    untaught_loss: f64,
    ideal_gain: f64,
    /// How many seconds all workers together compute, by the schedule.
    scheduled_seconds: f64,
}

impl<'a> Report<'a> {
    /// Reports on a run in lock-step and one with slack.
    pub(crate) fn new(training: &'a Training, size: RunSize, clicks: &Clicks, runs: Vec<Run>) -> Self {
        let held_out = clicks.rows() - HELD_OUT_ROWS..clicks.rows();
        let floor_loss = clicks.floor_loss(held_out.clone());
        let untaught_loss = clicks.click_rate_loss(held_out);
        let schedule = training.schedule(size.workers);
        let ideal_gain = schedule.ideal_gain(training.slack as usize);
        let scheduled_seconds = schedule.work().as_secs_f64();
        Self { training, size, runs, floor_loss, untaught_loss, ideal_gain, scheduled_seconds }
    }

    /// The lowest loss that both runs reached, rounded up to a multiple of `LOSS_STEP`.
    fn target(&self) -> f64 {
        let lowest = |run: &Run| run.curve.iter().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
        (self.runs.iter().map(lowest).fold(0.0, f64::max) / LOSS_STEP).ceil() * LOSS_STEP
    }

    /// How many times as long the first run takes as the last.
    fn gain(&self, seconds: impl Fn(&Run) -> f64) -> f64 {
        let of = |run: Option<&Run>| run.map_or(f64::NAN, &seconds);
        of(self.runs.first()) / of(self.runs.last())
    }

    fn seconds_to_target(&self, run: &Run) -> f64 {
        curve(run, "").reaches(self.target()).unwrap_or(f64::NAN)
    }

    /// Both loss curves.
    pub(crate) fn chart(&self) -> Chart {
        let gain = self.gain(|run| self.seconds_to_target(run));
        let slack = self.training.slack;
        let title = match gain >= 1.05 {
            true => format!("Slack {slack} reaches the same loss {gain:.1}× sooner than lock-step"),
            false => format!("Loss in lock-step and with slack {slack}"),
        };
        let RunSize { servers, workers } = self.size;
        let Training { factor, .. } = self.training;
        let subtitle = format!(
            "Held-out log-loss of logistic regression on {workers} workers and {servers} servers; in each clock a random \
             worker is {factor}× slower"
        );
        let curves = self.runs.iter().zip(COLOURS).map(|(run, colour)| self.learning(curve(run, colour))).collect();
        Chart { title, subtitle, curves, target: Some(self.target()), ..Chart::default() }
    }

    /// The part of a curve from where it is below the loss of predicting the click rate. The steep
    /// fall before that would flatten the rest of the chart.
    fn learning(&self, mut curve: Curve) -> Curve {
        let first = curve.points.iter().position(|(_, loss)| *loss < self.untaught_loss).unwrap_or(0);
        curve.points.drain(..first);
        curve
    }

    /// Every figure and both curves.
    pub(crate) fn to_json(&self) -> Value {
        let Training { slack, clocks, minibatch, seed, base_ms, factor, rows, features, .. } = self.training;
        let run = |run: &Run| {
            let figures = Totals::of(&run.workers);
            json!({
                "name": run.label(),
                "slack": run.slack,
                "seconds": figures.seconds,
                "clocks_per_second": *clocks as f64 / figures.seconds,
                "seconds_to_target_loss": self.seconds_to_target(run),
                "final_loss": final_loss(run),
                "share_waiting_for_workers": figures.waiting,
                "share_waiting_for_network": figures.network,
                "share_waiting_at_barriers": figures.barrier,
                "own_time_over_scheduled": figures.own_seconds / self.scheduled_seconds,
                "staleness_mean": figures.staleness_mean(),
                "reads_by_staleness": figures.staleness,
                "bytes_sent_by_workers": figures.bytes_sent,
                "bytes_received_by_workers": figures.bytes_received,
                "seconds_waited_by_worker_for_worker":
                    run.workers.iter().map(|worker| &worker.waited_for).collect::<Vec<_>>(),
                "seconds_and_held_out_loss": run.curve,
            })
        };
        json!({
            "program": "demo",
            "servers": self.size.servers,
            "workers": self.size.workers,
            "rows": rows,
            "held_out_rows": HELD_OUT_ROWS,
            "features": features,
            "slack": slack,
            "clocks": clocks,
            "minibatch": minibatch,
            "seed": seed,
            "base_ms": base_ms,
            "factor": factor,
            "floor_loss": self.floor_loss,
            "click_rate_loss": self.untaught_loss,
            "target_loss": self.target(),
            "gain_in_clocks_per_second": self.gain(|run| Totals::of(&run.workers).seconds),
            "gain_in_seconds_to_target_loss": self.gain(|run| self.seconds_to_target(run)),
            "ideal_gain": self.ideal_gain,
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "picture": self.training.out,
        })
    }
}

fn curve(run: &Run, colour: &str) -> Curve {
    Curve { label: run.label(), colour: colour.to_owned(), points: run.curve.clone() }
}

fn final_loss(run: &Run) -> f64 {
    run.curve.last().map_or(f64::NAN, |(_, loss)| *loss)
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_setting(f)?;
        self.write_table(f)?;
        self.write_gain(f)?;
        self.write_waiting(f)
    }
}

impl Report<'_> {
    fn write_setting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Training { clocks, minibatch, base_ms, factor, rows, features, .. } = self.training;
        let RunSize { servers, workers } = self.size;
        let rows = grouped(*rows);
        let features = grouped(*features);
        let data = format!("{rows} made-up clicks with {features} features");
        writeln!(f, "\nLogistic regression on {data}: {servers} servers, {workers} workers,")?;
        write!(f, "{clocks} clocks of {minibatch} rows and {base_ms} ms. ")?;
        writeln!(f, "In each clock one worker, drawn at random, takes {factor} times as long.")?;
        let held_out = grouped(HELD_OUT_ROWS as u64);
        let floor = self.floor_loss;
        let untaught = self.untaught_loss;
        writeln!(f, "Loss is the mean log-loss of the weights that worker 0 reads, on {held_out} held-out rows:")?;
        writeln!(
            f,
            "{untaught:.3} for always predicting the click rate, {floor:.3} for the model that made the rows.\n"
        )
    }

    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals: Vec<Totals> = self.runs.iter().map(|run| Totals::of(&run.workers)).collect();
        let mut line = |name: &str, cells: &dyn Fn(usize) -> String| {
            write!(f, "{name:<46}")?;
            (0..self.runs.len()).try_for_each(|run| write!(f, "  {:>14}", cells(run)))?;
            writeln!(f)
        };
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        line("", &|run| self.runs[run].label())?;
        line("clocks per second", &|run| format!("{:.2}", self.training.clocks as f64 / totals[run].seconds))?;
        line("seconds in all", &|run| format!("{:.2}", totals[run].seconds))?;
        let to_target = format!("seconds to a loss of {:.3}", self.target());
        line(&to_target, &|run| format!("{:.2}", self.seconds_to_target(&self.runs[run])))?;
        line("loss in the end", &|run| format!("{:.4}", final_loss(&self.runs[run])))?;
        line("time spent waiting for other workers", &|run| percent(totals[run].waiting))?;
        line("time spent waiting for the network", &|run| percent(totals[run].network))?;
        line("time at work, over the time scheduled", &|run| {
            format!("{:.2}", totals[run].own_seconds / self.scheduled_seconds)
        })?;
        line("clocks behind when reading, mean", &|run| format!("{:.2}", totals[run].staleness_mean()))?;
        line("reads 0/1/2/… clocks behind, in %", &|run| totals[run].staleness_shares())?;
        line("sent by workers", &|run| bytes_in_words(totals[run].bytes_sent))?;
        line("received, the loss curve's with it", &|run| bytes_in_words(totals[run].bytes_received))
    }

    fn write_gain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slack = self.training.slack;
        let clocks = self.gain(|run| Totals::of(&run.workers).seconds);
        let loss = self.gain(|run| self.seconds_to_target(run));
        let ideal = self.ideal_gain;
        let reached = 100.0 * clocks / ideal;
        write!(f, "\nGain of slack {slack}: {clocks:.2} times the clocks per second; ")?;
        writeln!(f, "the same loss {loss:.2} times sooner.")?;
        write!(f, "Ideal gain of this slack with these stragglers, if computing took all the time: {ideal:.2}; ")?;
        writeln!(f, "{reached:.0} % of it is reached.")?;
        let own = self.runs.iter().map(|run| Totals::of(&run.workers).own_seconds).fold(0.0, f64::max)
            / self.scheduled_seconds;
        if own > BUSY {
            writeln!(
                f,
                "This machine was busy with other programs: the work took up to {own:.2} times as long as scheduled."
            )?;
        }
        Ok(())
    }

    fn write_waiting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.runs.iter().try_for_each(|run| {
            let ranks = &Ranks::first(run.workers.len() as u32);
            let heading = &format!("{}, seconds waited", run.label());
            let waiting = Waiting { heading, workers: &run.workers, ranks };
            write!(f, "\n{waiting}")
        })
    }
}
