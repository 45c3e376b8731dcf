//! A file cut into lines, through a buffer that is as long as the longest line needs, and no longer
//! than the limit.

use crate::DataError;
use crate::input::InputFile;
use std::path::Path;

/// How much is read at a time.
const READ_BYTES: usize = 256 * 1024;
/// How much is read at a time to get to the end of a line, where what follows may be leapt over.
const TAIL_BYTES: usize = 4 * 1024;

/// The lines of a file, one after another.
pub struct TextLines {
    input: InputFile,
    buffer: Vec<u8>,
    /// What of the buffer is read and not yet given out.
    start: usize,
    end: usize,
    ended: bool,
    /// Where in the text `start` is.
    offset: u64,
    /// Where in the text the line given out last starts.
    last_start: u64,
    /// How many lines end before `offset`.
    ended_lines: u64,
    /// Lines were leapt over, so `ended_lines` is too small.
    leapt: bool,
    /// Where in the text reading ahead is of no use: what follows may be leapt over.
    horizon: u64,
    limit_bytes: usize,
}

/// What comes next in a file.
pub enum Next<'a> {
    /// A line without its end.
    Line(&'a [u8]),
    /// A line longer than the limit; it is past.
    TooLong,
    /// Nothing.
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

    /// Where in the text the next line starts.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the last line is past.
    pub fn is_at_end(&self) -> bool {
        self.ended && self.start == self.end
    }

    /// Says that text from `offset` on may be leapt over.
    pub fn set_horizon(&mut self, offset: u64) {
        self.horizon = offset;
    }

    /// How much of the file has been read.
    pub fn position(&mut self) -> u64 {
        self.input.position()
    }

    pub fn path(&self) -> &Path {
        self.input.path()
    }

    /// The number of the line given out last, from 1.
    pub fn number_of_last(&self) -> Result<u64, DataError> {
        if !self.leapt {
            return Ok(self.ended_lines);
        }
        // Only a plain file can be leapt in. It is read again from its start: this is wanted once,
        // for an error.
        let mut lines = Self::new(InputFile::open(self.path())?, self.limit_bytes);
        lines.drop_until(self.last_start)?;
        Ok(lines.ended_lines + 1)
    }

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

    /// Gives out `length` bytes and drops the line end after them.
    #[inline]
    fn give(&mut self, length: usize, line_end: usize) -> Next<'_> {
        let from = self.start;
        self.last_start = self.offset;
        self.start += length + line_end;
        self.offset += (length + line_end) as u64;
        self.ended_lines += 1;
        if length > self.limit_bytes { Next::TooLong } else { Next::Line(&self.buffer[from..from + length]) }
    }

    /// Makes room and reads once.
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
        // The line end before `offset` may be that of the line before.
        let target = offset.saturating_sub(1);
        let waiting = (self.end - self.start) as u64;
        if target > self.offset + waiting && !self.ended {
            let far = target - self.offset - waiting;
            if self.input.can_leap() {
                self.input.leap(far)?;
                (self.start, self.end, self.offset, self.leapt) = (0, 0, target, true);
            }
        }
        self.drop_until(target)?;
        self.drop_line()
    }

    /// Drops text up to `offset`, and counts its lines.
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

    /// Drops text up to the next line end, and that.
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
