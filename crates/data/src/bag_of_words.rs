//! Converts UCI bags of words to LibSVM text, with counts or TF-IDF as values.
//!
//! - `docword` has three heading lines (numbers of documents, words and entries). Then each line is
//!   `doc word count`, in the order of documents; documents and words count from 1.
//! - The labels are lines `doc TAB part TAB class …`, one for each document in order.

use crate::input::InputFile;
use crate::lines::{Next, TextLines};
use crate::number::unsigned;
use crate::{DataError, RowFault};
use std::io::Write;
use std::path::Path;

/// What the value of a word in a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// How often it occurs.
    Counts,
    /// (1 + ln count) · (ln((1 + n) / (1 + df)) + 1), then each row is scaled to length 1. n is the
    /// number of documents in the part `train`; df is how many of them have the word.
    TfIdf,
}

/// A longer line is malformed.
const LINE_LIMIT_BYTES: usize = 1 << 16;
/// More words or documents are refused, because they are counted in memory.
const COUNT_LIMIT: u64 = 1 << 28;

/// Writes one row to `out` for each document of `part`: its class and its words. The files may be
/// compressed.
pub fn bag_of_words(
    docword: &Path,
    labels: &Path,
    part: &str,
    weighting: Weighting,
    out: &mut impl Write,
) -> Result<(), DataError> {
    let idf = match weighting {
        Weighting::Counts => None,
        Weighting::TfIdf => Some(inverse_frequencies(docword, labels)?),
    };
    let mut labels = Documents::open(labels)?;
    let mut entries = Entries::open(docword)?;
    let mut row: Vec<(u64, f64)> = Vec::new();
    while let Some(document) = labels.next()? {
        entries.of_document(labels.number, &mut row)?;
        if document.part != part.as_bytes() {
            continue;
        }
        if let Some(idf) = &idf {
            let idf = |word: u64| usize::try_from(word).ok().and_then(|word| idf.get(word)).copied().unwrap_or(1.0);
            row.iter_mut().for_each(|(word, value)| *value = (1.0 + value.ln()) * idf(*word));
            let length = row.iter().map(|(_, value)| value * value).sum::<f64>().sqrt();
            row.iter_mut().for_each(|(_, value)| *value = f64::from((*value / length) as f32));
        }
        let mut line = document.class;
        for (word, value) in &row {
            line += &format!(" {word}:{}", *value as f32);
        }
        writeln!(out, "{line}").map_err(|error| DataError::Write { error })?;
    }
    Ok(())
}

/// The inverse document frequency of each word among the documents of the part `train`.
fn inverse_frequencies(docword: &Path, labels: &Path) -> Result<Vec<f64>, DataError> {
    let mut labels = Documents::open(labels)?;
    let mut entries = Entries::open(docword)?;
    let mut frequencies = vec![0_u64; entries.words as usize + 1];
    let mut row = Vec::new();
    let mut documents = 0_u64;
    while let Some(document) = labels.next()? {
        entries.of_document(labels.number, &mut row)?;
        if document.part == b"train" {
            documents += 1;
            row.iter().for_each(|(word, _)| frequencies[*word as usize] += 1);
        }
    }
    let idf = |frequency: u64| ((1 + documents) as f64 / (1 + frequency) as f64).ln() + 1.0;
    Ok(frequencies.into_iter().map(idf).collect())
}

struct Document {
    part: Vec<u8>,
    class: String,
}

struct Documents {
    lines: TextLines,
    number: u64,
}

impl Documents {
    fn open(path: &Path) -> Result<Self, DataError> {
        Ok(Self { lines: TextLines::new(InputFile::open(path)?, LINE_LIMIT_BYTES), number: 0 })
    }

    fn next(&mut self) -> Result<Option<Document>, DataError> {
        self.number += 1;
        let line = match self.lines.next()? {
            Next::Line(line) => line.to_vec(),
            Next::TooLong => Vec::new(),
            Next::End => return Ok(None),
        };
        let mut words = line.split(|&byte| byte == b'\t');
        let [number, part, class] = [(); 3].map(|()| words.next().unwrap_or_default());
        match (unsigned(number, 0), unsigned(class, 0)) {
            (Some((number, _)), Some((class, _))) if number == self.number => {
                Ok(Some(Document { part: part.to_vec(), class: class.to_string() }))
            }
            _ => Err(malformed(&self.lines, &line, format!("`{} TAB part TAB class`", self.number))),
        }
    }
}

struct Entries {
    lines: TextLines,
    words: u64,
    documents: u64,
    /// An entry that was read already and belongs to a later document.
    waiting: Option<(u64, u64, f64)>,
}

impl Entries {
    fn open(path: &Path) -> Result<Self, DataError> {
        let mut entries = Self {
            lines: TextLines::new(InputFile::open(path)?, LINE_LIMIT_BYTES),
            words: 0,
            documents: 0,
            waiting: None,
        };
        for place in 0..3 {
            let line = entries.line()?.unwrap_or_default();
            let number = unsigned(&line, 0).filter(|(number, end)| *end == line.len() && *number < COUNT_LIMIT);
            let (number, _) =
                number.ok_or_else(|| malformed(&entries.lines, &line, "a number of documents, words or entries"))?;
            match place {
                0 => entries.documents = number,
                1 => entries.words = number,
                _ => {}
            }
        }
        Ok(entries)
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        Ok(match self.lines.next()? {
            Next::Line(line) => Some(line.trim_ascii().to_vec()),
            Next::TooLong => Some(Vec::new()),
            Next::End => None,
        })
    }

    /// Replaces `row` with the words of document `number`, in the file's order.
    fn of_document(&mut self, number: u64, row: &mut Vec<(u64, f64)>) -> Result<(), DataError> {
        row.clear();
        loop {
            let (document, word, count) = match self.waiting.take() {
                Some(entry) => entry,
                None => match self.entry()? {
                    Some(entry) => entry,
                    None => return Ok(()),
                },
            };
            if document > number {
                self.waiting = Some((document, word, count));
                return Ok(());
            }
            row.push((word, count));
        }
    }

    fn entry(&mut self) -> Result<Option<(u64, u64, f64)>, DataError> {
        let Some(line) = self.line()? else { return Ok(None) };
        let mut numbers = line.split(|&byte| byte == b' ').map(|number| match unsigned(number, 0) {
            Some((value, end)) if end == number.len() => value,
            _ => 0,
        });
        match [(); 4].map(|()| numbers.next()) {
            [Some(document @ 1..), Some(word @ 1..), Some(count @ 1..), None]
                if document <= self.documents && word <= self.words =>
            {
                Ok(Some((document, word, count as f64)))
            }
            _ => Err(malformed(&self.lines, &line, "`document word count`")),
        }
    }
}

fn malformed(lines: &TextLines, line: &[u8], expected: impl Into<std::borrow::Cow<'static, str>>) -> DataError {
    let fault = RowFault::text(line, 0, expected);
    match lines.number_of_last() {
        Ok(number) => {
            DataError::Malformed { file: lines.path().display().to_string(), line: number, fault, skipped: 0 }
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    fn convert(docword: &str, labels: &str, part: &str, weighting: Weighting) -> Result<String, String> {
        let folder = Folder::new(&format!("bag-{part}-{weighting:?}-{}", docword.len()));
        let words = folder.path("docword");
        let documents = folder.path("labels");
        std::fs::write(&words, docword).unwrap();
        std::fs::write(&documents, labels).unwrap();
        let mut out = Vec::new();
        match bag_of_words(&words, &documents, part, weighting, &mut out) {
            Ok(()) => Ok(String::from_utf8(out).unwrap()),
            Err(error) => Err(error.to_string().rsplit('/').next().unwrap().to_owned()),
        }
    }

    const WORDS: &str = "3\n4\n4\n1 2 3\n1 4 1\n3 2 1\n3 3 2\n";
    const LABELS: &str = "1\ttrain\t0\n2\ttrain\t7\n3\ttest\t1\n";

    #[test]
    fn every_document_becomes_a_row_even_without_words() {
        assert_eq!(convert(WORDS, LABELS, "train", Weighting::Counts).unwrap(), "0 2:3 4:1\n7\n");
        assert_eq!(convert(WORDS, LABELS, "test", Weighting::Counts).unwrap(), "1 2:1 3:2\n");
    }

    #[test]
    fn tf_idf_weighs_rare_words_more_and_scales_rows_to_length_1() {
        // n = 2. Word 2 is in one document of `train`, word 3 in none: their idf are ln(3/2) + 1
        // and ln(3) + 1.
        let two = 1.5_f64.ln() + 1.0;
        let three = (1.0 + 2_f64.ln()) * (3_f64.ln() + 1.0);
        let length = (two * two + three * three).sqrt();
        let expected = format!("1 2:{} 3:{}\n", (two / length) as f32, (three / length) as f32);
        assert_eq!(convert(WORDS, LABELS, "test", Weighting::TfIdf).unwrap(), expected);
    }

    #[test]
    fn a_malformed_line_is_named_with_its_place() {
        for (words, labels, problem) in [
            ("3\n4\n", LABELS, "docword:2:1: expected a number of documents, words or entries, found nothing"),
            ("3\n4\n1\n1 5 1\n", LABELS, "docword:4:1: expected `document word count`, found `1 5 1`"),
            ("3\n4\n1\n1 2\n", LABELS, "docword:4:1: expected `document word count`, found `1 2`"),
            (WORDS, "1\ttrain\t0\n3\ttest\t1\n", "labels:2:1: expected `2 TAB part TAB class`, found `3\ttest\t1`"),
        ] {
            assert_eq!(convert(words, labels, "train", Weighting::Counts), Err(problem.to_owned()));
        }
    }
}
