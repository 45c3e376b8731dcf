//! The formats of input files, and the parsers of the text formats: each parses one line and adds
//! one row.

mod columns;
mod criteo;
mod csv;
mod libffm;
mod libsvm;
mod vowpal;

pub use columns::{ColumnError, ColumnRule, ColumnRules};
pub(crate) use columns::{ColumnRole, ColumnRoles};
pub use csv::{Csv, CsvHeader};

use crate::number::number;
use crate::{FeatureHash, Labels, Minibatch, RowFault};

/// Keys from here on are reserved: programs use them for weights that belong to no feature, such as
/// a constant term.
pub const RESERVED: u64 = u64::MAX - 1;

/// The format of input files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// `label index:value …`
    LibSvm,
    /// `label field:index:value …`
    LibFfm,
    /// `label importance 'tag |namespace name:value …`
    VowpalWabbit,
    /// A label, 13 whole numbers and 26 categories, separated by tabs.
    Criteo,
    /// Cells in named columns.
    Csv(Csv),
    /// Columns with names and types.
    Parquet(ColumnRules),
    /// Images whose pixels are bytes, with their labels in a file beside them.
    Idx,
}

/// Turns lines of one format into rows.
///
/// ```
/// use data::{Labels, Minibatch, TextParser};
///
/// let mut parser = TextParser::libsvm(Labels::Binary);
/// let mut rows = Minibatch::new();
/// parser.line(b"-1 3:1 11:0.5", &mut rows)?;
/// assert_eq!((rows.keys(), rows.values(), rows.labels()), (&[3, 11][..], &[1.0, 0.5][..], &[0.0][..]));
/// let fault = parser.line(b"-1 3:1 abc", &mut rows).unwrap_err();
/// assert_eq!(fault.to_string(), "expected `index:value`, found `abc`");
/// # Ok::<(), data::RowFault>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextParser(Kind);

#[derive(Clone, Debug)]
enum Kind {
    LibSvm(libsvm::LibSvm),
    LibFfm(libffm::LibFfm),
    VowpalWabbit(vowpal::VowpalWabbit),
    Criteo(Box<criteo::Criteo>),
    Csv(csv::CsvLines),
}

impl TextParser {
    /// A parser of LibSVM text.
    #[must_use]
    pub fn libsvm(labels: Labels) -> Self {
        Self(Kind::LibSvm(libsvm::LibSvm { labels }))
    }

    /// A parser of libffm text.
    #[must_use]
    pub fn libffm(labels: Labels) -> Self {
        Self(Kind::LibFfm(libffm::LibFfm { labels }))
    }

    /// A parser of Vowpal Wabbit text.
    #[must_use]
    pub fn vowpal_wabbit(labels: Labels, hash: FeatureHash) -> Self {
        Self(Kind::VowpalWabbit(vowpal::VowpalWabbit { labels, hash }))
    }

    /// A parser of Criteo's tab-separated lines.
    #[must_use]
    pub fn criteo(labels: Labels, hash: FeatureHash) -> Self {
        Self(Kind::Criteo(Box::new(criteo::Criteo::new(labels, hash))))
    }

    /// A parser of CSV. `head` is the beginning of the file, in whole lines. It gives the heading,
    /// if the file has one, and is used to guess which columns are numeric.
    pub fn csv(csv: &Csv, labels: Labels, hash: FeatureHash, head: &[u8]) -> Result<Self, ColumnError> {
        Ok(Self(Kind::Csv(csv::CsvLines::new(csv, labels, hash, head)?)))
    }

    /// Adds the row that `line` describes. `line` has no line end, but may end in a carriage
    /// return. An empty line, or a comment if the format has them, adds no row. After a fault
    /// `rows` is as before.
    pub fn line(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        let line = without_return(line);
        let done = match &mut self.0 {
            Kind::LibSvm(format) => format.row(line, rows),
            Kind::LibFfm(format) => format.row(line, rows),
            Kind::VowpalWabbit(format) => format.row(line, rows),
            Kind::Criteo(format) => format.row(line, rows),
            Kind::Csv(format) => format.row(line, rows),
        };
        done.inspect_err(|_| rows.abandon_row())
    }

    /// The columns, if the format has them.
    pub(crate) fn columns(&self) -> Option<&ColumnRoles> {
        match &self.0 {
            Kind::Csv(format) => Some(format.columns()),
            _ => None,
        }
    }

    /// Whether the first line of a file is a heading, rather than a row.
    pub(crate) fn is_heading(&self, line: &[u8]) -> Result<bool, RowFault> {
        match &self.0 {
            Kind::Csv(format) => format.is_heading(without_return(line)),
            _ => Ok(false),
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether a byte separates the words of a line.
#[inline(always)]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The first place from `at` on that is not a blank.
#[inline(always)]
fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).copied().is_some_and(is_blank) {
        at += 1;
    }
    at
}

/// Adds a row of words: the label, then what `feature` adds for each word. `feature` gets the place
/// of a word and returns where it ends. A word that starts with `#` ends the line; a line without
/// words adds no row.
#[inline(always)]
fn row_of_words(
    line: &[u8],
    labels: Labels,
    rows: &mut Minibatch,
    feature: impl Fn(usize, &mut Minibatch) -> Result<usize, RowFault>,
) -> Result<(), RowFault> {
    let is_over = |at| matches!(line.get(at), None | Some(b'#'));
    let start = skip_blanks(line, 0);
    if is_over(start) {
        return Ok(());
    }
    let (label, end) = leading_label(line, start, labels)?;
    let mut at = skip_blanks(line, end);
    while !is_over(at) {
        at = skip_blanks(line, feature(at, rows)?);
    }
    end_row(rows, labels, label);
    Ok(())
}

/// The label at the start of a line of words, and where it ends.
fn leading_label(line: &[u8], at: usize, labels: Labels) -> Result<(f32, usize), RowFault> {
    if labels == Labels::Ignored {
        let word = line[at..].split(|&byte| is_blank(byte)).next().unwrap_or_default();
        // A first word with a colon is a feature, not a label.
        return Ok((0.0, if word.contains(&b':') { at } else { at + word.len() }));
    }
    match number(line, at, is_blank).map(|(number, end)| (labels.read(number), end)) {
        Ok((Some(label), end)) => Ok((label, end)),
        _ => Err(RowFault::word(line, at, labels.expected())),
    }
}

pub(crate) fn end_row(rows: &mut Minibatch, labels: Labels, label: f32) {
    match labels {
        Labels::Ignored => rows.end_row_without_label(),
        _ => rows.end_row(label),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Checks a table of lines: what row each becomes, as text.

    use crate::{Minibatch, TextParser};
    use std::fmt::Write;

    /// Parses a line. Returns `label*importance field:key:value …`, or the column and the fault.
    pub fn read(parser: &mut TextParser, line: &str) -> String {
        let mut rows = Minibatch::new();
        if let Err(fault) = parser.line(line.as_bytes(), &mut rows) {
            assert_eq!(rows, Minibatch::new(), "a fault leaves nothing behind");
            return format!("{}: {fault}", fault.column);
        }
        let mut text = String::new();
        for row in rows.iter() {
            match row.label {
                Some(label) => write!(text, "{label}").unwrap(),
                None => text.push('-'),
            }
            if row.importance != 1.0 {
                write!(text, "*{}", row.importance).unwrap();
            }
            for (index, (key, value)) in row.keys.iter().zip(row.values).enumerate() {
                match row.fields.get(index) {
                    Some(field) => write!(text, " {field}:{key}:{value}").unwrap(),
                    None => write!(text, " {key}:{value}").unwrap(),
                }
            }
        }
        text
    }

    /// Checks that each line of the table becomes the text beside it.
    pub fn check(parser: &mut TextParser, table: &[(&str, &str)]) {
        for (line, expected) in table {
            assert_eq!(read(parser, line), *expected, "{line:?}");
        }
    }
}
