//! The progress of a training on standard error: a bar on a terminal, otherwise a few lines.

use crate::totals::grouped;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// The bound on the number of lines that are printed without a terminal.
const LINES: f64 = 5.0;
/// The bar's length, in steps.
const LENGTH: f64 = 10_000.0;

/// The display of a training's progress.
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { printed: f64 },
}

/// The figures to display.
pub(crate) struct Now {
    /// The share of the rows of all epochs that were learnt from.
    pub(crate) share: f64,
    pub(crate) time: Duration,
    pub(crate) loss: f64,
    pub(crate) rows_per_second: f64,
    pub(crate) staleness: f64,
}

impl Progress {
    /// Begins the display of a program.
    pub(crate) fn start(program: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { printed: 0.0 };
        }
        let bar = ProgressBar::new(LENGTH as u64).with_prefix(program.to_owned());
        let template = "{prefix} {wide_bar:.cyan/blue} {percent:>3} %  {msg}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    /// Shows new figures.
    pub(crate) fn show(&mut self, now: &Now) {
        match self {
            Self::Bar(bar) => {
                bar.set_position((now.share * LENGTH) as u64);
                bar.set_message(now.to_string());
            }
            Self::Lines { printed } => {
                let line = (now.share * LINES).floor();
                if line > *printed && line < LINES {
                    *printed = line;
                    eprintln!("{:.0} %: {now}", 100.0 * now.share);
                }
            }
        }
    }

    /// Prints a line beside the display.
    pub(crate) fn say(&self, words: &str) {
        match self {
            Self::Bar(bar) => bar.println(words),
            Self::Lines { .. } => eprintln!("{words}"),
        }
    }

    /// Ends the display. What it shows stays on the terminal.
    pub(crate) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

impl std::fmt::Display for Now {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { share, time, loss, rows_per_second, staleness } = self;
        let rows = grouped(*rows_per_second as u64);
        write!(f, "loss {loss:.4}, {rows} rows/s, {staleness:.1} clocks behind")?;
        let left = time.as_secs_f64() * (1.0 - share) / share;
        if left.is_finite() { write!(f, ", {left:.0} s left") } else { Ok(()) }
    }
}
