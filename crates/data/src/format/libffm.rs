//! libffm text: `label field:index:value field:index:value …`.

use super::{RESERVED, is_blank, row_of_words};
use crate::number::{number, unsigned};
use crate::{Labels, Minibatch, RowFault};

/// Parses lines. Indices are the keys, unchanged. A word that starts with `#` ends the line.
#[derive(Clone, Debug)]
pub struct LibFfm {
    pub labels: Labels,
}

const FEATURE: &str = "`field:index:value`";

impl LibFfm {
    pub fn row(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        row_of_words(line, self.labels, rows, |at, rows| {
            let (field, index, start) = names(line, at).ok_or_else(|| RowFault::word(line, at, FEATURE))?;
            let (value, end) = number(line, start, is_blank)
                .map_err(|_| RowFault::word(line, start, "a finite number after `field:index:`"))?;
            rows.push_in_field(field, index, value);
            Ok(end)
        })
    }
}

/// The field, the index, and where the value begins.
#[inline]
fn names(line: &[u8], at: usize) -> Option<(u32, u64, usize)> {
    let (field, end) = unsigned(line, at)?;
    let field = u32::try_from(field).ok()?;
    let start = after_colon(line, end)?;
    let (index, end) = unsigned(line, start).filter(|(index, _)| *index < RESERVED)?;
    Some((field, index, after_colon(line, end)?))
}

#[inline]
fn after_colon(line: &[u8], at: usize) -> Option<usize> {
    (line.get(at) == Some(&b':')).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use crate::format::testing::check;
    use crate::{Labels, Minibatch, TextParser};
    use proptest::prelude::*;

    #[test]
    fn libffm_parses_rows_and_names_faults() {
        check(
            &mut TextParser::libffm(Labels::Binary),
            &[
                ("1 0:3:1 1:11:0.5", "1 0:3:1 1:11:0.5"),
                ("0 4294967295:18446744073709551613:-1 \r", "0 4294967295:18446744073709551613:-1"),
                ("0 1:18446744073709551614:1", "3: expected `field:index:value`, found `1:18446744073709551614:1`"),
                ("1", "1"),
                ("", ""),
                ("1 2:3:4 # comment", "1 2:3:4"),
                ("5 0:3:1", "1: expected a label of -1, 0 or 1, found `5`"),
                ("1 3:1", "3: expected `field:index:value`, found `3:1`"),
                ("1 3", "3: expected `field:index:value`, found `3`"),
                ("1 a:3:1", "3: expected `field:index:value`, found `a:3:1`"),
                ("1 0:b:1", "3: expected `field:index:value`, found `0:b:1`"),
                ("1 4294967296:3:1", "3: expected `field:index:value`, found `4294967296:3:1`"),
                ("1 0:3:", "7: expected a finite number after `field:index:`, found nothing"),
                ("1 0:3:x", "7: expected a finite number after `field:index:`, found `x`"),
                ("1 0:3:1 1:4:-inf", "13: expected a finite number after `field:index:`, found `-inf`"),
            ],
        );
    }

    proptest! {
        #[test]
        fn libffm_reads_back_written_rows(features in prop::collection::vec((any::<u32>(), 0..u64::MAX - 2, -1e30f32..1e30), 1..20)) {
            let mut line = String::from("1");
            for (field, index, value) in &features {
                line += &format!(" {field}:{index}:{value}");
            }
            let mut rows = Minibatch::new();
            TextParser::libffm(Labels::Binary).line(line.as_bytes(), &mut rows).unwrap();
            let row = rows.row(0);
            let back: Vec<(u32, u64, f32)> =
                row.fields.iter().zip(row.keys).zip(row.values).map(|((&field, &key), &value)| (field, key, value)).collect();
            prop_assert_eq!(back, features);
        }
    }
}
