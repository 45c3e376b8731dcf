//! Cuts a file into lines, and skips to a line further on without reading the text between. The
//! buffer grows with the longest line, and a line above the limit is reported instead of read.

use crate::DataError;
use crate::input::InputFile;
use std::path::Path;

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 * 1024;
/// Bytes that are read at a time to reach the end of a line past the horizon: what follows it may
/// be skipped.
const TAIL_BYTES: usize = 4 * 1024;

/// The lines of a file, one after another.
pub struct TextLines {
    input: InputFile,
    buffer: Vec<u8>,
    /// `start..end` of the buffer has been read from the file and not been given out yet.
    start: usize,
    end: usize,
    /// The file has no more bytes.
    ended: bool,
    /// The place in the text of `buffer[start]`.
    offset: u64,
    /// The place in the text where the last given line starts.
    last_start: u64,
    /// How many lines end before `offset`, if none was skipped.
    ended_lines: u64,
    /// Lines were skipped unread, so `ended_lines` is too small.
    leapt: bool,
    /// The place in the text from which on reading ahead is useless, because the text may be
    /// skipped.
    horizon: u64,
    /// The longest line that is given out.
    limit_bytes: usize,
}

/// The next thing in a file.
pub enum Next<'a> {
    /// A line, without its line end.
    Line(&'a [u8]),
    /// A line longer than the limit, which has been skipped.
    TooLong,
    /// The end of the file.
    End,
}

impl TextLines {
    pub fn new(input: InputFile, limit_bytes: usize) -> Self {
        let buffer = vec![0; READ_BYTES];
        Self {
            input,
            buffer,
            start: 0,
            end: 0,
            ended: false,
            offset: 0,
            last_start: 0,
            ended_lines: 0,
            leapt: false,
            horizon: u64::MAX,
            limit_bytes,
        }
    }

    /// The place in the text where the next line starts.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether there are no more lines.
    pub fn is_at_end(&self) -> bool {
        self.ended && self.start == self.end
    }

    /// Tells it that text from `offset` on may be skipped later.
    pub fn set_horizon(&mut self, offset: u64) {
        self.horizon = offset;
    }

    /// How many bytes of the file have been read.
    pub fn position(&mut self) -> u64 {
        self.input.position()
    }

    pub fn path(&self) -> &Path {
        self.input.path()
    }

    /// The number of the last given line, from 1. Reads the file again if lines were skipped.
    pub fn number_of_last(&self) -> Result<u64, DataError> {
        if !self.leapt {
            return Ok(self.ended_lines);
        }
        // Only a plain file has lines that were skipped unread. It is read again from its start to
        // count them, which happens only once, for an error.
        let mut lines = Self::new(InputFile::open(self.path())?, self.limit_bytes);
        lines.drop_until(self.last_start)?;
        Ok(lines.ended_lines + 1)
    }

    /// The next line, a line that is too long, or the end.
    #[inline]
    pub fn next(&mut self) -> Result<Next<'_>, DataError> {
        let mut searched = 0;
        loop {
            let waiting = &self.buffer[self.start..self.end];
            if let Some(length) = memchr::memchr(b'\n', &waiting[searched..]) {
                return Ok(self.give(searched + length, 1));
            }
            searched = waiting.len();
            if self.ended {
                return Ok(if searched == 0 { Next::End } else { self.give(searched, 0) });
            }
            if searched > self.limit_bytes {
                let number = self.ended_lines + 1;
                self.last_start = self.offset;
                self.drop_line()?;
                self.ended_lines = number;
                return Ok(Next::TooLong);
            }
            self.fill()?;
        }
    }

    /// Gives out `length` bytes, and drops the `line_end` bytes after them.
    #[inline]
    fn give(&mut self, length: usize, line_end: usize) -> Next<'_> {
        let from = self.start;
        self.last_start = self.offset;
        self.start += length + line_end;
        self.offset += (length + line_end) as u64;
        self.ended_lines += 1;
        if length > self.limit_bytes { Next::TooLong } else { Next::Line(&self.buffer[from..from + length]) }
    }

    /// Makes room in the buffer, and reads once.
    fn fill(&mut self) -> Result<(), DataError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() - self.end < READ_BYTES / 2 {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let room = self.buffer.len() - self.end;
        let wanted = match self.horizon.saturating_sub(self.offset + self.end as u64) {
            _ if !self.input.can_leap() => room,
            0 => TAIL_BYTES,
            ahead => usize::try_from(ahead).unwrap_or(room).min(room),
        };
        let count = self.input.read(&mut self.buffer[self.end..self.end + wanted])?;
        self.end += count;
        self.ended = count == 0;
        Ok(())
    }

    /// Goes to the first line that starts at `offset` or later.
    pub fn skip_to_line_at(&mut self, offset: u64) -> Result<(), DataError> {
        // A line starts at `offset` if the byte before `offset` is a line end.
        let target = offset.saturating_sub(1);
        let waiting = (self.end - self.start) as u64;
        if target > self.offset + waiting && !self.ended {
            let far = target - self.offset - waiting;
            if self.input.can_leap() {
                self.input.leap(far)?;
                self.start = 0;
                self.end = 0;
                self.offset = target;
                self.leapt = true;
            }
        }
        self.drop_until(target)?;
        self.drop_line()
    }

    /// Drops the text before `offset`, and counts its lines.
    fn drop_until(&mut self, offset: u64) -> Result<(), DataError> {
        while self.offset < offset {
            if self.start == self.end {
                if self.ended {
                    return Ok(());
                }
                self.fill()?;
            }
            let waiting = self.end - self.start;
            self.drop_bytes(waiting.min(usize::try_from(offset - self.offset).unwrap_or(usize::MAX)));
        }
        Ok(())
    }

    /// Drops the text up to and including the next line end.
    fn drop_line(&mut self) -> Result<(), DataError> {
        loop {
            let waiting = &self.buffer[self.start..self.end];
            if let Some(length) = memchr::memchr(b'\n', waiting) {
                self.drop_bytes(length + 1);
                return Ok(());
            }
            self.drop_bytes(waiting.len());
            if self.ended {
                return Ok(());
            }
            self.fill()?;
        }
    }

    fn drop_bytes(&mut self, count: usize) {
        let dropped = &self.buffer[self.start..self.start + count];
        self.ended_lines += memchr::memchr_iter(b'\n', dropped).count() as u64;
        self.start += count;
        self.offset += count as u64;
    }
}
