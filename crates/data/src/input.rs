//! One input file as a stream of bytes, decompressed if it is gzip or Zstandard. The file's first
//! bytes decide which, not its name. Also finds the files that names and patterns stand for, and
//! reads small text files.

use crate::DataError;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of a compressed file that are read at a time.
const PACKED_BYTES: usize = 64 * 1024;

const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
/// The end of the magic number of a Zstandard skippable frame, which some writers begin with. The
/// first byte is 0x50 to 0x5F.
const ZSTD_SKIPPABLE: &[u8] = &[0x2A, 0x4D, 0x18];
/// The first bytes of a Parquet file.
pub const PARQUET: &[u8] = b"PAR1";

/// A file that is read from front to back.
pub struct InputFile {
    path: PathBuf,
    size: u64,
    bytes: Bytes,
}

enum Bytes {
    Plain { file: File, position: u64 },
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<File>>>),
}

impl InputFile {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let failed = |error| failure(path, 0, error);
        let mut file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut start = Vec::new();
        (&mut file).take(4).read_to_end(&mut start).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let bytes = if start.starts_with(GZIP) {
            Bytes::Gzip(Box::new(MultiGzDecoder::new(BufReader::with_capacity(PACKED_BYTES, file))))
        } else if start.starts_with(ZSTD) || (start.ends_with(ZSTD_SKIPPABLE) && start[0] & 0xF0 == 0x50) {
            let decoder = zstd::Decoder::with_buffer(BufReader::with_capacity(PACKED_BYTES, file)).map_err(failed)?;
            Bytes::Zstd(Box::new(decoder))
        } else if start == PARQUET {
            let problem = "is a Parquet file, but is opened as another format; read it as Parquet".to_owned();
            return Err(DataError::Kind { file: path.display().to_string(), problem });
        } else {
            Bytes::Plain { file, position: 0 }
        };
        Ok(Self { path: path.to_path_buf(), size, bytes })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length in bytes, as it is stored (compressed, if it is).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes of the file have been read, as they are stored.
    pub fn position(&mut self) -> u64 {
        let read = |reader: &mut BufReader<File>| reader.stream_position().unwrap_or_default();
        match &mut self.bytes {
            // `leap` may have gone past the end.
            Bytes::Plain { position, .. } => self.size.min(*position),
            Bytes::Gzip(decoder) => read(decoder.get_mut()),
            Bytes::Zstd(decoder) => read(decoder.get_mut()),
        }
    }

    /// Reads the next bytes, and returns how many; 0 at the end.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, DataError> {
        let result = loop {
            let result = match &mut self.bytes {
                Bytes::Plain { file, position } => file.read(into).inspect(|count| *position += *count as u64),
                Bytes::Gzip(decoder) => decoder.read(into),
                Bytes::Zstd(decoder) => decoder.read(into),
            };
            if !matches!(&result, Err(error) if error.kind() == ErrorKind::Interrupted) {
                break result;
            }
        };
        result.map_err(|error| {
            let offset = self.position();
            let packing = match self.bytes {
                Bytes::Gzip(_) => "gzip",
                Bytes::Zstd(_) => "zstd",
                Bytes::Plain { .. } => return failure(&self.path, offset, error),
            };
            match error.kind() {
                ErrorKind::UnexpectedEof => {
                    DataError::Truncated { file: self.path.display().to_string(), packing, offset }
                }
                _ => failure(&self.path, offset, error),
            }
        })
    }

    /// Whether [`leap`](Self::leap) works: only in files that are not compressed.
    pub fn can_leap(&self) -> bool {
        matches!(self.bytes, Bytes::Plain { .. })
    }

    /// Skips `count` bytes without reading them. Does nothing if [`can_leap`](Self::can_leap) is
    /// false.
    pub fn leap(&mut self, count: u64) -> Result<(), DataError> {
        if let Bytes::Plain { file, position } = &mut self.bytes {
            let target = position.saturating_add(count);
            *position = file.seek(SeekFrom::Start(target)).map_err(|error| failure(&self.path, *position, error))?;
        }
        Ok(())
    }
}

/// The error for a system call on a file that failed at `offset`.
pub fn failure(path: &Path, offset: u64, error: io::Error) -> DataError {
    DataError::Read { file: path.display().to_string(), offset, error }
}

/// The files of these names and patterns, in this order; a pattern's files in alphabetical order.
pub fn files(patterns: &[impl AsRef<str>]) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for pattern in patterns {
        let pattern = pattern.as_ref();
        // A file's name may contain characters that are special in a pattern.
        if Path::new(pattern).is_file() {
            files.push(PathBuf::from(pattern));
            continue;
        }
        let wrong = |reason: String| DataError::Pattern { pattern: pattern.to_owned(), reason };
        let before = files.len();
        for path in glob::glob(pattern).map_err(|error| wrong(error.to_string()))? {
            let path = path.map_err(|error| failure(error.path(), 0, io::Error::from(error.error().kind())))?;
            if path.is_file() {
                files.push(path);
            }
        }
        if Path::new(pattern).is_dir() {
            return Err(wrong(format!("it is a folder; `{}/*` names all its files", pattern.trim_end_matches('/'))));
        }
        if files.len() == before {
            return Err(DataError::NoFile { pattern: pattern.to_owned() });
        }
    }
    Ok(files)
}

/// Reads a whole small text file, such as a list of names. It may be compressed. Bytes that are not
/// UTF-8 become the replacement character.
pub fn read_text(path: &Path) -> Result<String, DataError> {
    let mut input = InputFile::open(path)?;
    let mut text = Vec::new();
    let mut piece = vec![0; PACKED_BYTES];
    loop {
        match input.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            count => text.extend_from_slice(&piece[..count]),
        }
    }
}
