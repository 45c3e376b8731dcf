//! Measurements and reports: medians of rounds, and reports printed as a table or as JSON.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use serde_json::{Map, Value, json};

/// The median of some measurements. Unlike the mean, it hardly changes with rounds in which the
/// machine was busy with other work.
///
/// # Panics
/// If `measurements` is empty.
pub(crate) fn median(measurements: &mut [f64]) -> f64 {
    measurements.sort_unstable_by(f64::total_cmp);
    let middle = measurements.len() / 2;
    if measurements.len() % 2 == 1 {
        measurements[middle]
    } else {
        (measurements[middle - 1] + measurements[middle]) / 2.0
    }
}

/// Named columns of measurements.
#[derive(Default)]
pub(crate) struct Columns(Vec<(&'static str, Vec<f64>)>);

impl Columns {
    /// Adds a measurement to a column.
    pub(crate) fn put(&mut self, name: &'static str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }

    /// The median of a column; not a number if the column is empty.
    pub(crate) fn median(&self, name: &str) -> f64 {
        self.0.iter().find(|(known, _)| *known == name).map_or(f64::NAN, |(_, values)| median(&mut values.clone()))
    }
}

/// The seconds that `work` takes, and its result.
pub(crate) fn timed<R>(work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<(f64, R)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed().as_secs_f64(), result))
}

/// 10⁹ bytes per second.
pub(crate) fn gbs(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// An aligned table, for people.
    Table,
    /// One JSON object, for programs.
    Json,
}

/// Named figures in the order they were added. A name is lower case with underscores, and its unit
/// comes last.
#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: Map<String, Value>,
}

impl Report {
    /// Adds a number. One that is not finite (a ratio to nothing) is reported as absent.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// Adds a text.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// Prints the report to standard output.
    pub(crate) fn print(&self, format: Format) -> io::Result<()> {
        // Not `print!`, which panics when the reader has closed the pipe.
        match format {
            Format::Table => write!(io::stdout(), "{self}"),
            Format::Json => writeln!(io::stdout(), "{}", Value::Object(self.figures.clone())),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<(String, String)> =
            self.figures.iter().map(|(name, value)| (name.replace('_', " "), cell(value))).collect();
        let width = |side: fn(&(String, String)) -> &String| {
            cells.iter().map(|pair| side(pair).chars().count()).max().unwrap_or_default()
        };
        let name_width = width(|pair| &pair.0);
        let value_width = width(|pair| &pair.1);
        for (name, value) in &cells {
            writeln!(f, "{name:<name_width$}  {value:>value_width$}")?;
        }
        Ok(())
    }
}

/// A value as people read it: a number to four digits, a text as it is, an absent one as a dash.
fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) => four_digits(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.clone(),
        _ => "-".to_owned(),
    }
}

fn four_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-6..=9).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    format!("{value:.*}", usize::try_from(3 - magnitude).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_one_or_the_mean_of_the_two_middle_ones() {
        assert_eq!(median(&mut [3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 100.0, 2.0]), 3.0);
    }

    #[test]
    fn report_prints_figures_in_order_in_two_aligned_columns() {
        let mut report = Report::default();
        report.number("raw_send_gb_per_s", 2.5678);
        report.number("rows", 1_000_000.0);
        report.number("ratio_to_nothing", f64::NAN);
        report.text("verdict", "good");
        let expected = "raw send gb per s    2.568\n\
                        rows               1000000\n\
                        ratio to nothing         -\n\
                        verdict               good\n";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn four_digits_are_shown_of_numbers() {
        for (value, shown) in
            [(0.0, "0"), (0.012_345, "0.01235"), (9.999_96, "10.000"), (123.456, "123.5"), (1e-9, "1.000e-9")]
        {
            assert_eq!(four_digits(value), shown);
        }
    }
}
