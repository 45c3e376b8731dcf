//! Reads text files, one after another, line by line: the lines of this worker's share or of one
//! range.

use crate::bad_rows::BadRows;
use crate::input::InputFile;
use crate::lines::{Next, TextLines};
use crate::selection::Selection;
use crate::{DataError, Minibatch, RowFault, TextParser};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// One pass over some files.
pub struct TextPass {
    files: Arc<[PathBuf]>,
    parser: TextParser,
    part: Selection,
    line_limit_bytes: usize,
    bad: BadRows,
    /// The number of the file to be opened next.
    next_file: usize,
    open: Option<OpenFile>,
    /// Bytes of the files that have been read to their end.
    bytes_before: u64,
}

struct OpenFile {
    lines: TextLines,
    number: usize,
    block_bytes: u64,
    /// The run of bytes to read: its lines are those that start in it.
    ours: Range<u64>,
}

impl TextPass {
    pub fn new(
        files: Arc<[PathBuf]>,
        parser: TextParser,
        part: Selection,
        line_limit_bytes: usize,
        bad: BadRows,
    ) -> Self {
        Self { files, parser, part, line_limit_bytes, bad, next_file: 0, open: None, bytes_before: 0 }
    }

    /// How many bytes of the files have been read.
    pub fn position(&mut self) -> u64 {
        self.bytes_before + self.open.as_mut().map_or(0, |file| file.lines.position())
    }

    pub fn bad_rows(&self) -> u64 {
        self.bad.skipped()
    }

    /// Adds rows to `rows` until it has `limit`, or until the files have no more.
    pub fn fill(&mut self, rows: &mut Minibatch, limit: usize) -> Result<(), DataError> {
        while rows.rows() < limit {
            if self.open.is_none() && !self.open_next()? {
                return Ok(());
            }
            let Some(file) = &mut self.open else { return Ok(()) };
            if !file.fill(rows, limit, &mut self.parser, self.part, &mut self.bad, self.line_limit_bytes)? {
                self.bytes_before += file.lines.position();
                self.open = None;
            }
        }
        Ok(())
    }

    fn open_next(&mut self) -> Result<bool, DataError> {
        let number = self.next_file;
        let Some(path) = self.files.get(number) else { return Ok(false) };
        let input = InputFile::open(path)?;
        let block_bytes = self.part.block_bytes(input.size());
        self.open =
            Some(OpenFile { lines: TextLines::new(input, self.line_limit_bytes), number, block_bytes, ours: 0..0 });
        self.next_file += 1;
        Ok(true)
    }
}

impl OpenFile {
    /// Adds rows to `rows` until it has `limit`. Returns false when the file has no more.
    fn fill(
        &mut self,
        rows: &mut Minibatch,
        limit: usize,
        parser: &mut TextParser,
        part: Selection,
        bad: &mut BadRows,
        line_limit_bytes: usize,
    ) -> Result<bool, DataError> {
        while rows.rows() < limit {
            let offset = self.lines.offset();
            if !self.ours.contains(&offset) {
                let Some(run) = part.next_run(self.number, offset, self.block_bytes) else { return Ok(false) };
                self.ours = run;
                self.lines.set_horizon(self.ours.end);
                if offset < self.ours.start {
                    self.lines.skip_to_line_at(self.ours.start)?;
                    if self.lines.is_at_end() {
                        return Ok(false);
                    }
                    // That line may start after this run, where it belongs to another worker again.
                    continue;
                }
            }
            let fault = match self.lines.next()? {
                Next::End => return Ok(false),
                Next::Line(line) if offset == 0 => first_line(parser, line, rows),
                Next::Line(line) => parser.line(line, rows),
                Next::TooLong => {
                    let expected = format!("a line of at most {line_limit_bytes} bytes");
                    Err(RowFault { column: 1, expected: expected.into(), found: "a longer one".to_owned() })
                }
            };
            if let Err(fault) = fault {
                let lines = &self.lines;
                let path = lines.path();
                bad.skip(path, || lines.number_of_last(), fault)?;
            }
        }
        Ok(true)
    }
}

/// Reads a file's first line: it may be a heading, and may begin with a byte order mark.
fn first_line(parser: &mut TextParser, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    if parser.is_heading(line)? { Ok(()) } else { parser.line(line, rows) }
}
