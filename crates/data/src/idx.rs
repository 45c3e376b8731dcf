//! Reads IDX images (MNIST and the like): those of this worker's share or of one range. An image is
//! a row; a pixel that is not zero is a feature, with its number as the key and a value up to 1.
//! Labels are in a file of their own, found by its name.

use crate::bad_rows::BadRows;
use crate::cuts::Layout;
use crate::format::end_row;
use crate::input::InputFile;
use crate::selection::Selection;
use crate::share::BLOCK_ROWS;
use crate::{DataError, Labels, Minibatch, RowFault};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pixels of the largest image that is accepted.
const MOST_PIXELS: u64 = 1 << 24;
/// The type code, in an IDX header, of files whose numbers are bytes. No other type is accepted.
const BYTES: u8 = 0x08;

/// One pass over some files.
pub struct IdxPass {
    files: Arc<[PathBuf]>,
    labels: Labels,
    part: Selection,
    bad: BadRows,
    /// The number of the file to be opened next.
    next_file: usize,
    open: Option<Images>,
    /// Bytes of the files that have been read to their end.
    bytes_before: u64,
}

impl IdxPass {
    pub fn new(files: Arc<[PathBuf]>, labels: Labels, part: Selection, bad: BadRows) -> Self {
        Self { files, labels, part, bad, next_file: 0, open: None, bytes_before: 0 }
    }

    /// How many bytes of the files have been read.
    pub fn position(&mut self) -> u64 {
        self.bytes_before + self.open.as_mut().map_or(0, |open| open.images.input.position())
    }

    pub fn bad_rows(&self) -> u64 {
        self.bad.skipped()
    }

    /// Adds rows to `rows` until it has `limit`, or until the files have no more.
    pub fn fill(&mut self, rows: &mut Minibatch, limit: usize) -> Result<(), DataError> {
        while rows.rows() < limit {
            let images = match &mut self.open {
                Some(images) => images,
                None => match self.files.get(self.next_file) {
                    Some(path) => {
                        let images = Images::open(path, self.next_file, self.labels)?;
                        self.next_file += 1;
                        self.open.insert(images)
                    }
                    None => return Ok(()),
                },
            };
            if !images.fill(rows, limit, self.part, &mut self.bad)? {
                self.bytes_before += images.images.input.position();
                self.open = None;
            }
        }
        Ok(())
    }
}

/// Checks the header of a file of images, and of its label file unless labels are ignored.
pub fn check(path: &Path, labels: Labels) -> Result<(), DataError> {
    Images::open(path, 0, labels).map(drop)
}

/// The sizes that a file of IDX images and its label file need of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Pixels of an image.
    pub pixels: u64,
    /// The largest label; labels are bytes.
    pub largest_label: u8,
}

/// Reads the header of a file of images, and all labels of its label file.
pub fn image_shape(path: &Path) -> Result<ImageShape, DataError> {
    let images = Items::open(path)?;
    let mut labels = open_labels(path, images.count)?;
    let mut largest_label = 0;
    for _ in 0..labels.count {
        let mut label = [0];
        labels.read(&mut label)?;
        largest_label = label[0].max(largest_label);
    }
    Ok(ImageShape { pixels: images.item_bytes, largest_label })
}

/// A file of images, open, and its label file.
struct Images {
    images: Items,
    labels: Option<Items>,
    kind: Labels,
    number: usize,
    /// The number of the next image.
    row: u64,
    /// The run of images to read that `row` is in, or was in last.
    ours: Range<u64>,
    pixels: Vec<u8>,
}

impl Images {
    fn open(path: &Path, number: usize, kind: Labels) -> Result<Self, DataError> {
        let images = Items::open(path)?;
        let labels = match kind {
            Labels::Ignored => None,
            _ => Some(open_labels(path, images.count)?),
        };
        let pixels = vec![0; images.item_bytes as usize];
        Ok(Self { images, labels, kind, number, row: 0, ours: 0..0, pixels })
    }

    /// Adds rows to `rows` until it has `limit`. Returns false when the file has no more.
    fn fill(
        &mut self,
        rows: &mut Minibatch,
        limit: usize,
        part: Selection,
        bad: &mut BadRows,
    ) -> Result<bool, DataError> {
        while rows.rows() < limit {
            if self.row == self.images.count {
                return Ok(false);
            }
            if !self.ours.contains(&self.row) {
                let Some(run) = part.next_run(self.number, self.row, BLOCK_ROWS) else { return Ok(false) };
                self.ours = run;
                let next = self.ours.start.clamp(self.row, self.images.count);
                self.images.skip(next - self.row)?;
                self.labels.as_mut().map_or(Ok(()), |labels| labels.skip(next - self.row))?;
                self.row = next;
                continue;
            }
            self.images.read(&mut self.pixels)?;
            let mut label = [0];
            self.labels.as_mut().map_or(Ok(()), |labels| labels.read(&mut label))?;
            self.row += 1;
            let Some(value) = self.kind.read(f32::from(label[0])) else {
                let path = self.labels.as_ref().map_or(self.images.input.path(), |labels| labels.input.path());
                let fault =
                    RowFault { column: 1, expected: self.kind.expected().into(), found: format!("`{}`", label[0]) };
                bad.skip(path, || Ok(self.row), fault)?;
                continue;
            };
            for (key, pixel) in self.pixels.iter().enumerate().filter(|(_, pixel)| **pixel != 0) {
                rows.push(key as u64, f32::from(*pixel) / 255.0);
            }
            end_row(rows, self.kind, value);
        }
        Ok(true)
    }
}

/// Where a file of images can be cut into ranges.
pub fn layout(path: &Path) -> Result<Layout, DataError> {
    let Items { mut input, count, item_bytes, .. } = Items::open(path)?;
    Ok(match input.can_leap() {
        true => Layout::Images { count, image_bytes: item_bytes, head_bytes: input.position() },
        false => Layout::Whole,
    })
}

/// The length in bytes of the label file of a file of images.
pub fn bytes_of_labels(path: &Path) -> Result<u64, DataError> {
    let images = Items::open(path)?;
    Ok(open_labels(path, images.count)?.input.size())
}

/// Opens the label file of a file of images, which must have `count` labels. Its name is that of
/// the images, with `labels` for `images` and `idx1` for `idx3`.
fn open_labels(images: &Path, count: u64) -> Result<Items, DataError> {
    let wrong = |problem: String| DataError::Kind { file: images.display().to_string(), problem };
    let name = images.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let other = name.replace("images", "labels").replace("idx3", "idx1");
    if other == name {
        return Err(wrong(format!(
            "has no label file: the name `{name}` needs `images` or `idx3`, for which label files have `labels` or `idx1`"
        )));
    }
    let path = images.with_file_name(&other);
    if !path.is_file() {
        return Err(wrong(format!("needs its labels in `{other}`, which is not in the same folder")));
    }
    let labels = Items::open(&path)?;
    match labels {
        Items { item_bytes: 1, .. } if labels.count == count => Ok(labels),
        Items { item_bytes: 1, .. } => {
            Err(wrong(format!("has {count} images, but `{other}` has {} labels", labels.count)))
        }
        _ => Err(wrong(format!("needs its labels in `{other}`, but the items of that file are not single bytes"))),
    }
}

/// An IDX file, open: `count` items of `item_bytes` each.
struct Items {
    input: InputFile,
    count: u64,
    item_bytes: u64,
    /// Items that have been read or skipped.
    past: u64,
}

impl Items {
    fn open(path: &Path) -> Result<Self, DataError> {
        let wrong = |problem: String| DataError::Kind { file: path.display().to_string(), problem };
        let mut input = InputFile::open(path)?;
        let mut magic = [0; 4];
        if read_up_to(&mut input, &mut magic)? < 4 || magic[..2] != [0, 0] {
            return Err(wrong("is not an IDX file: an IDX file begins with two zero bytes".to_owned()));
        }
        let [_, _, kind, dimensions] = magic;
        if kind != BYTES || dimensions == 0 {
            let problem = format!(
                "is an IDX file of type 0x{kind:02X} in {dimensions} dimensions; only bytes (type 0x08) can be read"
            );
            return Err(wrong(problem));
        }
        let mut sizes = vec![0; usize::from(dimensions) * 4];
        if read_up_to(&mut input, &mut sizes)? < sizes.len() {
            return Err(wrong("is truncated within its header".to_owned()));
        }
        let mut sizes =
            sizes.chunks_exact(4).map(|size| u64::from(u32::from_be_bytes([size[0], size[1], size[2], size[3]])));
        let count = sizes.next().unwrap_or(0);
        let item_bytes =
            sizes.try_fold(1u64, |bytes, size| bytes.checked_mul(size).filter(|bytes| *bytes <= MOST_PIXELS));
        let item_bytes = item_bytes.filter(|bytes| *bytes > 0);
        let item_bytes =
            item_bytes.ok_or_else(|| wrong(format!("has images of 0 or of more than {MOST_PIXELS} pixels")))?;
        let bytes = 4 + u64::from(dimensions) * 4 + count * item_bytes;
        // The length of compressed data is known only after reading it.
        if input.can_leap() && input.size() < bytes {
            let problem = format!(
                "is truncated: its header says {count} items, which take {bytes} bytes, but it has {}",
                input.size()
            );
            return Err(wrong(problem));
        }
        Ok(Self { input, count, item_bytes, past: 0 })
    }

    /// Reads the next item into `item`.
    fn read(&mut self, item: &mut [u8]) -> Result<(), DataError> {
        if read_up_to(&mut self.input, item)? < item.len() {
            let problem = format!(
                "is truncated: its header says {} items, but it ends within item {}",
                self.count,
                self.past + 1
            );
            return Err(DataError::Kind { file: self.input.path().display().to_string(), problem });
        }
        self.past += 1;
        Ok(())
    }

    fn skip(&mut self, count: u64) -> Result<(), DataError> {
        if self.input.can_leap() {
            self.past += count;
            return self.input.leap(count * self.item_bytes);
        }
        let mut item = vec![0; self.item_bytes as usize];
        (0..count).try_for_each(|_| self.read(&mut item))
    }
}

/// Reads until `into` is full or the file ends. Returns how many bytes that was.
fn read_up_to(input: &mut InputFile, into: &mut [u8]) -> Result<usize, DataError> {
    let mut filled = 0;
    while filled < into.len() {
        match input.read(&mut into[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use crate::{DataReader, Format, ReaderSettings};
    use std::io::Write;

    /// A file of images of 2 × 2 pixels: image i has i in its first pixel and 255 in its last.
    fn images(count: u8) -> Vec<u8> {
        let head = [&[0, 0, 8, 3][..], &[0, 0, 0, count], &[0, 0, 0, 2], &[0, 0, 0, 2]].concat();
        (0..count).fold(head, |file, image| [&file[..], &[image, 0, 0, 255]].concat())
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        [&[0, 0, 8, 1, 0, 0, 0, labels.len() as u8][..], labels].concat()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    /// Keys, values and label.
    type Image = (Vec<u64>, Vec<f32>, Option<f32>);

    fn read(images: &Path, labels: Labels) -> Result<Vec<Image>, DataError> {
        let reader = DataReader::open(&[images.to_str().unwrap()], ReaderSettings::new(Format::Idx, labels))?;
        let mut rows = Vec::new();
        for batch in reader.batches()? {
            rows.extend(batch?.iter().map(|row| (row.keys.to_vec(), row.values.to_vec(), row.label)));
        }
        Ok(rows)
    }

    const CLASSES: Labels = Labels::Classes { first: 0, count: 10 };

    #[test]
    fn images_become_rows_from_plain_and_compressed_files() {
        let folder = Folder::new("idx");
        let plain = folder.path("some-images-idx3-ubyte");
        let gz = folder.path("more-images-idx3-ubyte.gz");
        for (path, pack) in [(&plain, false), (&gz, true)] {
            let put = |bytes: Vec<u8>| if pack { packed(&bytes) } else { bytes };
            std::fs::write(path, put(images(2))).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().replace("images-idx3", "labels-idx1");
            std::fs::write(folder.path(&name), put(labels(&[7, 3]))).unwrap();
            let expected = [(vec![3], vec![1.0], Some(7.0)), (vec![0, 3], vec![1.0 / 255.0, 1.0], Some(3.0))];
            assert_eq!(read(path, CLASSES).unwrap(), expected);
            assert_eq!(image_shape(path).unwrap(), ImageShape { pixels: 4, largest_label: 7 });
            assert_eq!(read(path, Labels::Ignored).unwrap()[1], (vec![0, 3], vec![1.0 / 255.0, 1.0], None));
        }
    }

    #[test]
    fn every_image_goes_to_exactly_one_worker() {
        let folder = Folder::new("idx-shares");
        let path = folder.path("images-idx3-ubyte");
        let head = [&[0, 0, 8, 2][..], &2000u32.to_be_bytes(), &2u32.to_be_bytes()].concat();
        let image = |image: u32| [1 + (image / 250) as u8, 1 + (image % 250) as u8];
        std::fs::write(&path, (0..2000).fold(head, |file, number| [&file[..], &image(number)].concat())).unwrap();
        let whole =
            DataReader::open(&[path.to_str().unwrap()], ReaderSettings::new(Format::Idx, Labels::Ignored)).unwrap();
        let mut seen: Vec<[u32; 2]> = Vec::new();
        for rank in 0..3 {
            for batch in whole.for_worker(rank, 3).unwrap().batches().unwrap() {
                let bytes =
                    |row: crate::MinibatchRow<'_>| [0, 1].map(|pixel| (row.values[pixel] * 255.0).round() as u32);
                seen.extend(batch.unwrap().iter().map(bytes));
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..2000).map(|number| image(number).map(u32::from)).collect::<Vec<_>>());
    }

    #[test]
    fn malformed_image_and_label_files_are_refused_with_the_cause() {
        let folder = Folder::new("idx-bad");
        let path = folder.path("a-images-idx3-ubyte");
        let cases: [(Vec<u8>, Vec<u8>, &str); 9] = [
            (b"P6 28 28".to_vec(), labels(&[]), "is not an IDX file"),
            (vec![], labels(&[]), "is not an IDX file"),
            (vec![0, 0, 13, 3], labels(&[]), "of type 0x0D"),
            (vec![0, 0, 8, 3, 0, 0], labels(&[]), "is truncated within its header"),
            ([&[0, 0, 8, 3][..], &[255; 12]].concat(), labels(&[]), "has images of 0 or of more than"),
            (images(3)[..25].to_vec(), labels(&[1, 2, 3]), "says 3 items, which take 28 bytes, but it has 25"),
            (packed(&images(3)[..25]), labels(&[1, 2, 3]), "says 3 items, but it ends within item 3"),
            (images(3), labels(&[1, 2]), "has 3 images, but `a-labels-idx1-ubyte` has 2 labels"),
            (images(3), labels(&[1, 2, 10]), "a-labels-idx1-ubyte:3:1: expected a class from 0 to 9, found `10`"),
        ];
        for (images, labels, expected) in cases {
            std::fs::write(&path, images).unwrap();
            std::fs::write(folder.path("a-labels-idx1-ubyte"), labels).unwrap();
            let error = read(&path, CLASSES).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::remove_file(folder.path("a-labels-idx1-ubyte")).unwrap();
        let error = read(&path, CLASSES).unwrap_err().to_string();
        assert!(
            error.contains("needs its labels in `a-labels-idx1-ubyte`, which is not in the same folder"),
            "{error}"
        );
        let half = packed(&images(200));
        std::fs::write(&path, &half[..half.len() / 2]).unwrap();
        let error = read(&path, Labels::Ignored).unwrap_err().to_string();
        assert!(error.contains("is truncated: its gzip data is incomplete"), "{error}");
    }
}
