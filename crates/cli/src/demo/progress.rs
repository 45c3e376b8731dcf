//! The progress of a run on standard error: a bar on a terminal, otherwise a few lines.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How many lines report a run without a terminal.
const LINES: u64 = 5;

/// The display of one run.
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { label: String, clocks: u64, printed: u64 },
}

impl Progress {
    /// Begins a run of this many clocks.
    pub(crate) fn start(label: &str, clocks: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { label: label.to_owned(), clocks, printed: 0 };
        }
        let bar = ProgressBar::new(clocks).with_prefix(label.to_owned());
        let template = "{prefix:>10} {wide_bar:.cyan/blue} {pos:>4}/{len} clocks  {elapsed:>4}  {msg}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    /// Shows that the run has reached a clock, after this time, with this held-out loss.
    pub(crate) fn reach(&mut self, clock: u64, time: Duration, loss: f64) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(clock);
                bar.set_message(format!("held-out loss {loss:.4}"));
            }
            Self::Lines { label, clocks, printed } => {
                let line = clock * LINES / *clocks;
                if line > *printed {
                    *printed = line;
                    let seconds = time.as_secs_f64();
                    eprintln!("{label}: {clock} of {clocks} clocks in {seconds:.1} s, held-out loss {loss:.4}");
                }
            }
        }
    }

    /// Ends the display. What it shows stays on the terminal.
    pub(crate) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}
