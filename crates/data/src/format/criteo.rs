//! Parses Criteo's click logs: a label, 13 whole numbers I1…I13 and 26 categories C1…C26, separated
//! by tabs. Each column after the label becomes one hashed categorical feature. An empty line is no
//! row.

use super::end_row;
use crate::hash::Space;
use crate::number::finite;
use crate::{FeatureHash, Labels, Minibatch, RowFault};

const INTEGERS: usize = 13;
/// Columns of features.
const COLUMNS: usize = 39;

/// Parses lines. Every column gives one feature of value 1 in a field of its own; an empty cell is
/// a category like any other. A whole number is a category, too: itself up to 2, and above that 2 +
/// ⌊ln(x)²⌋, so that large numbers share categories. If labels are ignored, the first column may be
/// missing.
#[derive(Clone, Debug)]
pub struct Criteo {
    labels: Labels,
    hash: FeatureHash,
    spaces: [Space; COLUMNS],
}

/// The column's name in Criteo's own description.
fn name(column: usize) -> String {
    if column < INTEGERS { format!("I{}", column + 1) } else { format!("C{}", column - INTEGERS + 1) }
}

/// The category of a number.
fn bucket(number: i64) -> i64 {
    if number > 2 { 2 + (number as f64).ln().powi(2).floor() as i64 } else { number }
}

impl Criteo {
    pub fn new(labels: Labels, hash: FeatureHash) -> Self {
        Self { labels, hash, spaces: std::array::from_fn(|column| hash.space(name(column).as_bytes())) }
    }

    pub fn row(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        if line.is_empty() {
            return Ok(());
        }
        let mut cells = line.split(|&byte| byte == b'\t');
        let tabs = memchr::memchr_iter(b'\t', line).count();
        let labelled = match (self.labels, tabs + 1) {
            // Files without labels lack the first column.
            (Labels::Ignored, COLUMNS) => false,
            (_, 40) => true,
            (_, found) => {
                let expected = match self.labels {
                    Labels::Ignored => "39 or 40 columns with tabs between them",
                    _ => "40 columns with tabs between them",
                };
                return Err(RowFault { column: 1, expected: expected.into(), found: format!("{found} columns") });
            }
        };
        let mut at = 0;
        let mut label = 0.0;
        if labelled {
            let cell = cells.next().unwrap_or_default();
            if self.labels != Labels::Ignored {
                label = finite(cell)
                    .and_then(|label| self.labels.read(label))
                    .ok_or_else(|| RowFault::text(cell, at, self.labels.expected()))?;
            }
            at += cell.len() + 1;
        }
        for ((column, cell), &space) in cells.enumerate().zip(&self.spaces) {
            let key = if column < INTEGERS && !cell.is_empty() {
                let number = std::str::from_utf8(cell).ok().and_then(|cell| cell.parse::<i64>().ok());
                let expected = || format!("a whole number or nothing in column {}", name(column));
                let number = number.ok_or_else(|| RowFault::text(cell, at, expected()))?;
                self.hash.key(space, &bucket(number).to_le_bytes())
            } else {
                self.hash.key(space, cell)
            };
            rows.push_in_field(column as u32, key, 1.0);
            at += cell.len() + 1;
        }
        end_row(rows, self.labels, label);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextParser;
    use crate::format::testing::{check, read};

    fn line(label: &str, integers: [&str; 13], categories: [&str; 26]) -> String {
        std::iter::once(label).chain(integers).chain(categories).collect::<Vec<_>>().join("\t")
    }

    #[test]
    fn criteo_makes_each_column_a_feature_in_its_field() {
        let hash = FeatureHash::new(1, 20).unwrap();
        let key = |column: &str, name: &[u8]| hash.key(hash.space(column.as_bytes()), name);
        let integers = ["", "-1", "0", "2", "3", "1000", "", "", "", "", "", "", "5"];
        let mut categories = [""; 26];
        categories[0] = "68fd1e64";
        categories[25] = "x";
        let mut expected = "1".to_owned();
        // ln(3)² = 1.2, ln(1000)² = 47.7, ln(5)² = 2.6
        let buckets =
            [None, Some(-1_i64), Some(0), Some(2), Some(3), Some(49), None, None, None, None, None, None, Some(4)];
        for (column, bucket) in buckets.into_iter().enumerate() {
            let text = bucket.map(i64::to_le_bytes);
            let key = key(&format!("I{}", column + 1), text.as_ref().map_or(&[], |text| &text[..]));
            expected += &format!(" {column}:{key}:1");
        }
        for (column, category) in categories.into_iter().enumerate() {
            let key = key(&format!("C{}", column + 1), category.as_bytes());
            expected += &format!(" {}:{key}:1", column + 13);
        }
        let mut parser = TextParser::criteo(Labels::Binary, hash);
        assert_eq!(read(&mut parser, &line("1", integers, categories)), expected);
        let mut unlabelled = TextParser::criteo(Labels::Ignored, hash);
        let (_, without) = expected.split_at(1);
        assert_eq!(read(&mut unlabelled, &line("1", integers, categories)), format!("-{without}"));
        assert_eq!(read(&mut unlabelled, &line("1", integers, categories)[2..]), format!("-{without}"));
    }

    #[test]
    fn criteo_rejects_malformed_lines() {
        let letter = line("0", ["1", "x", "", "", "", "", "", "", "", "", "", "", ""], [""; 26]);
        let fraction = line("0", ["", "", "1.5", "", "", "", "", "", "", "", "", "", ""], [""; 26]);
        let label = line("7", [""; 13], [""; 26]);
        check(
            &mut TextParser::criteo(Labels::Binary, FeatureHash::default()),
            &[
                ("", ""),
                ("1\t2", "1: expected 40 columns with tabs between them, found 2 columns"),
                (&label[2..], "1: expected 40 columns with tabs between them, found 39 columns"),
                (&label, "1: expected a label of -1, 0 or 1, found `7`"),
                (&label[1..], "1: expected a label of -1, 0 or 1, found nothing"),
                (&letter, "5: expected a whole number or nothing in column I2, found `x`"),
                (&fraction, "5: expected a whole number or nothing in column I3, found `1.5`"),
            ],
        );
        check(
            &mut TextParser::criteo(Labels::Ignored, FeatureHash::default()),
            &[("1\t2", "1: expected 39 or 40 columns with tabs between them, found 2 columns")],
        );
    }
}
