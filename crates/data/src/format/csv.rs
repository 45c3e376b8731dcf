//! CSV: cells in named columns, whose roles are given or guessed from the first lines. A cell may
//! be quoted (RFC 4180), but a line end always ends the row, even within quotes.

use super::{ColumnError, ColumnRole, ColumnRoles, ColumnRules, end_row, without_return};
use crate::number::finite;
use crate::{FeatureHash, Labels, Minibatch, RowFault};
use std::borrow::Cow;

/// At most so many lines are read to guess what a column is.
const SAMPLE_LINES: usize = 1000;

/// How to read CSV files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csv {
    /// The byte between cells: a comma, a tab, …
    pub separator: u8,
    /// Where the columns' names are.
    pub header: CsvHeader,
    /// What the columns are.
    pub columns: ColumnRules,
}

/// Where the columns' names are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvHeader {
    /// In the first line of every file. All files must have the same heading.
    FirstLine,
    /// Given here. If the first line of a file has exactly these names, it is still taken as a
    /// heading.
    Names(Vec<String>),
}

impl Csv {
    /// CSV with commas, a heading in the first line, labels in the column `label`, and all other
    /// columns guessed.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { separator: b',', header: CsvHeader::FirstLine, columns: ColumnRules::new(label) }
    }
}

/// Parses the lines of CSV files, with settled columns.
#[derive(Clone, Debug)]
pub struct CsvLines {
    separator: u8,
    labels: Labels,
    hash: FeatureHash,
    columns: ColumnRoles,
    heading_in_each_file: bool,
}

impl CsvLines {
    pub fn new(csv: &Csv, labels: Labels, hash: FeatureHash, head: &[u8]) -> Result<Self, ColumnError> {
        let mut lines =
            head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head).split(|&byte| byte == b'\n').map(without_return);
        let separator = csv.separator;
        let (names, heading_in_each_file) = match &csv.header {
            CsvHeader::Names(names) => (names.clone(), false),
            CsvHeader::FirstLine => (names(lines.next().unwrap_or_default(), separator)?, true),
        };
        let mut looks = vec![Look::Empty; names.len()];
        for line in lines.filter(|line| !line.is_empty()).take(SAMPLE_LINES) {
            if !heading_in_each_file && spells(line, separator, &names) {
                continue;
            }
            for (look, cell) in looks.iter_mut().zip(Cells { line, separator, at: Some(0) }.flatten()) {
                *look = look.and(&cell.text);
            }
        }
        let guess = |place: usize| looks.get(place) == Some(&Look::Numbers);
        let columns = ColumnRoles::settle(&csv.columns, names, hash, labels != Labels::Ignored, guess)?;
        Ok(Self { separator, labels, hash, columns, heading_in_each_file })
    }

    pub fn columns(&self) -> &ColumnRoles {
        &self.columns
    }

    pub fn is_heading(&self, line: &[u8]) -> Result<bool, RowFault> {
        let same = spells(line, self.separator, &self.columns.names);
        if self.heading_in_each_file && !same {
            let expected = format!("the heading `{}`, as in the first file", self.columns.names.join(","));
            return Err(RowFault::text(line, 0, expected));
        }
        Ok(same)
    }

    pub fn row(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        if line.is_empty() {
            return Ok(());
        }
        let mut label = 0.0;
        let mut cells = Cells { line, separator: self.separator, at: Some(0) };
        for (place, role) in self.columns.roles.iter().enumerate() {
            let Some(cell) = cells.next() else { return Err(self.wrong_count(place)) };
            let Cell { at, text } = cell?;
            match *role {
                ColumnRole::Ignored => {}
                ColumnRole::Label if self.labels == Labels::Ignored => {}
                ColumnRole::Label => {
                    label = finite(text.trim_ascii())
                        .and_then(|label| self.labels.read(label))
                        .ok_or_else(|| RowFault::text(&text, at, self.labels.expected()))?;
                }
                ColumnRole::Number { .. } if text.trim_ascii().is_empty() => {}
                ColumnRole::Number { key } => {
                    let expected = || format!("a finite number in column `{}`", self.columns.names[place]);
                    let value = finite(text.trim_ascii()).ok_or_else(|| RowFault::text(&text, at, expected()))?;
                    rows.push_in_field(place as u32, key, value);
                }
                ColumnRole::Category { space } => rows.push_in_field(place as u32, self.hash.key(space, &text), 1.0),
            }
        }
        let more = cells.count();
        if more > 0 {
            return Err(self.wrong_count(self.columns.roles.len() + more));
        }
        end_row(rows, self.labels, label);
        Ok(())
    }

    fn wrong_count(&self, found: usize) -> RowFault {
        let expected = format!("{} columns", self.columns.roles.len());
        RowFault { column: 1, expected: expected.into(), found: found.to_string() }
    }
}

fn names(heading: &[u8], separator: u8) -> Result<Vec<String>, ColumnError> {
    if heading.is_empty() {
        return Err(ColumnError::Heading { problem: "it is empty".to_owned() });
    }
    let name = |cell: Result<Cell<'_>, RowFault>| match cell {
        Ok(cell) => String::from_utf8(cell.text.into_owned())
            .map_err(|_| ColumnError::Heading { problem: "it is not UTF-8".to_owned() }),
        Err(fault) => Err(ColumnError::Heading { problem: fault.to_string() }),
    };
    Cells { line: heading, separator, at: Some(0) }.map(name).collect()
}

/// Whether the cells of `line` are exactly `names`.
fn spells(line: &[u8], separator: u8, names: &[String]) -> bool {
    let mut cells = Cells { line, separator, at: Some(0) };
    names.iter().all(|name| matches!(cells.next(), Some(Ok(cell)) if *cell.text == *name.as_bytes()))
        && cells.next().is_none()
}

/// What all cells of a column looked like so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Empty,
    Numbers,
    Other,
}

impl Look {
    fn and(self, cell: &[u8]) -> Self {
        let cell = cell.trim_ascii();
        match self {
            _ if cell.is_empty() => self,
            Self::Empty | Self::Numbers if finite(cell).is_some() => Self::Numbers,
            _ => Self::Other,
        }
    }
}

struct Cell<'a> {
    /// Where the cell starts in its line.
    at: usize,
    /// Its text, without the quotes.
    text: Cow<'a, [u8]>,
}

/// The cells of a line.
struct Cells<'a> {
    line: &'a [u8],
    separator: u8,
    /// Where the next cell starts, if there is one.
    at: Option<usize>,
}

impl<'a> Iterator for Cells<'a> {
    type Item = Result<Cell<'a>, RowFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        let rest = &self.line[at..];
        if rest.first() == Some(&b'"') {
            return Some(self.quoted(at));
        }
        let end = memchr::memchr(self.separator, rest);
        self.at = end.map(|end| at + end + 1);
        Some(Ok(Cell { at, text: Cow::Borrowed(&rest[..end.unwrap_or(rest.len())]) }))
    }
}

impl<'a> Cells<'a> {
    /// The quoted cell at `at`. A quote within it is written twice.
    fn quoted(&mut self, at: usize) -> Result<Cell<'a>, RowFault> {
        let mut text: Cow<'a, [u8]> = Cow::Borrowed(&[]);
        let mut from = at + 1;
        loop {
            let Some(length) = memchr::memchr(b'"', &self.line[from..]) else {
                return Err(RowFault::text(b"", self.line.len(), "`\"` at the end of a quoted cell"));
            };
            let piece = &self.line[from..from + length];
            match &mut text {
                Cow::Borrowed([]) => text = Cow::Borrowed(piece),
                text => text.to_mut().extend_from_slice(piece),
            }
            let end = from + length + 1;
            match self.line.get(end) {
                None => return Ok(Cell { at, text }),
                Some(&byte) if byte == self.separator => {
                    self.at = Some(end + 1);
                    return Ok(Cell { at, text });
                }
                Some(b'"') => text.to_mut().push(b'"'),
                Some(_) => {
                    return Err(RowFault::text(&self.line[end..=end], end, "the end of the cell after its `\"`"));
                }
            }
            from = end + 1;
        }
    }
}

#[cfg(test)]
mod tests;
