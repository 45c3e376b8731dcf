//! The formats of text: each reads one line and adds one row.

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

/// Keys from here on are no features': programs use them for what they learn besides, such as a
/// constant term.
pub const RESERVED: u64 = u64::MAX - 1;

/// How files are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// `label index:value …`
    LibSvm,
    /// `label field:index:value …`
    LibFfm,
    /// `label importance 'tag |namespace name:value …`
    VowpalWabbit,
    /// A label, 13 whole numbers and 26 categories, with tabs between them.
    Criteo,
    /// Cells in columns that have names.
    Csv(Csv),
    /// Columns that have names and types.
    Parquet(ColumnRules),
    /// Images of bytes, with their labels in a file beside them.
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
    /// Of LibSVM text.
    #[must_use]
    pub fn libsvm(labels: Labels) -> Self {
        Self(Kind::LibSvm(libsvm::LibSvm { labels }))
    }

    /// Of libffm text.
    #[must_use]
    pub fn libffm(labels: Labels) -> Self {
        Self(Kind::LibFfm(libffm::LibFfm { labels }))
    }

    /// Of Vowpal Wabbit text.
    #[must_use]
    pub fn vowpal_wabbit(labels: Labels, hash: FeatureHash) -> Self {
        Self(Kind::VowpalWabbit(vowpal::VowpalWabbit { labels, hash }))
    }

    /// Of Criteo's tab-separated lines.
    #[must_use]
    pub fn criteo(labels: Labels, hash: FeatureHash) -> Self {
        Self(Kind::Criteo(Box::new(criteo::Criteo::new(labels, hash))))
    }

    /// Of CSV. `head` is the beginning of the file, whole lines, from which come the heading, where
    /// it has one, and the kinds of columns that are to be guessed.
    pub fn csv(csv: &Csv, labels: Labels, hash: FeatureHash, head: &[u8]) -> Result<Self, ColumnError> {
        Ok(Self(Kind::Csv(csv::CsvLines::new(csv, labels, hash, head)?)))
    }

    /// Adds the row that `line` spells, which has no line end but may have a carriage return. A
    /// line may be no row: empty, or a comment where the format has them. After a fault the rows
    /// are as before.
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

    /// The columns, where the format has them.
    pub(crate) fn columns(&self) -> Option<&ColumnRoles> {
        match &self.0 {
            Kind::Csv(format) => Some(format.columns()),
            _ => None,
        }
    }

    /// Whether the first line of a file is a heading and no row.
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

/// What stands between the words of a line.
#[inline(always)]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The first place from `at` on that is no blank.
#[inline(always)]
fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).copied().is_some_and(is_blank) {
        at += 1;
    }
    at
}

/// A row of words: the label, then what `feature` adds for each word, which it is given the place
/// of and returns the end of. A word that starts with `#` ends the line; one without words is no
/// row.
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
        // A first word that can only be a feature is one.
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
    //! A table of lines: what each becomes, in words.

    use crate::{Minibatch, TextParser};
    use std::fmt::Write;

    /// `label*importance field:key:value …`, or the column and the fault.
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

    /// Checks a row of the table after another.
    pub fn check(parser: &mut TextParser, table: &[(&str, &str)]) {
        for (line, expected) in table {
            assert_eq!(read(parser, line), *expected, "{line:?}");
        }
    }
}
