//! LibSVM text: `label index:value index:value …`.

use super::{RESERVED, is_blank, row_of_words};
use crate::number::{number, unsigned};
use crate::{Labels, Minibatch, RowFault};

/// Parses lines. Indices are the keys, unchanged. `index` alone means `index:1`. A word that starts
/// with `#` ends the line.
#[derive(Clone, Debug)]
pub struct LibSvm {
    pub labels: Labels,
}

impl LibSvm {
    pub fn row(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        row_of_words(line, self.labels, rows, |at, rows| {
            let Some((index, end)) = unsigned(line, at).filter(|(index, _)| *index < RESERVED) else {
                return Err(RowFault::word(line, at, "`index:value`"));
            };
            let (value, end) = match line.get(end).copied() {
                Some(b':') => number(line, end + 1, is_blank)
                    .map_err(|_| RowFault::word(line, end + 1, "a finite number after `index:`"))?,
                None | Some(b' ' | b'\t') => (1.0, end),
                Some(_) => return Err(RowFault::word(line, at, "`index:value`")),
            };
            rows.push(index, value);
            Ok(end)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::format::testing::{check, read};
    use crate::{Labels, Minibatch, TextParser};
    use proptest::prelude::*;

    #[test]
    fn libsvm_parses_rows_and_names_faults() {
        check(
            &mut TextParser::libsvm(Labels::Binary),
            &[
                ("+1 3:1 11:0.5", "1 3:1 11:0.5"),
                ("-1 3:1 11:1 ", "0 3:1 11:1"),
                ("0\t3:-2.5e-1\r", "0 3:-0.25"),
                ("  1   2:3  ", "1 2:3"),
                ("1", "1"),
                ("1 5 7:2 0", "1 5:1 7:2 0:1"),
                ("1 9:1 3:1 9:2 4:0", "1 9:1 3:1 9:2 4:0"),
                ("1 18446744073709551613:1", "1 18446744073709551613:1"),
                ("1 18446744073709551614:1", "3: expected `index:value`, found `18446744073709551614:1`"),
                ("1 3:1 # a comment 4:x", "1 3:1"),
                ("# only a comment", ""),
                ("", ""),
                (" \t\r", ""),
                ("2 3:1", "1: expected a label of -1, 0 or 1, found `2`"),
                ("x 3:1", "1: expected a label of -1, 0 or 1, found `x`"),
                ("3:1 4:1", "1: expected a label of -1, 0 or 1, found `3:1`"),
                ("1,0 3:1", "1: expected a label of -1, 0 or 1, found `1,0`"),
                ("+1 3:1 abc", "8: expected `index:value`, found `abc`"),
                ("+1 qid:3 1:1", "4: expected `index:value`, found `qid:3`"),
                ("+1 -3:1", "4: expected `index:value`, found `-3:1`"),
                ("+1 3.5:1", "4: expected `index:value`, found `3.5:1`"),
                ("+1 18446744073709551616:1", "4: expected `index:value`, found `18446744073709551616:1`"),
                ("+1 3:", "6: expected a finite number after `index:`, found nothing"),
                ("+1 3: 4:1", "6: expected a finite number after `index:`, found nothing"),
                ("+1 3:x", "6: expected a finite number after `index:`, found `x`"),
                ("+1 3:1:2", "6: expected a finite number after `index:`, found `1:2`"),
                ("+1 3:inf", "6: expected a finite number after `index:`, found `inf`"),
                ("+1 3:NaN", "6: expected a finite number after `index:`, found `NaN`"),
                ("+1 3:1e39", "6: expected a finite number after `index:`, found `1e39`"),
                (
                    "+1 this-is-a-word-of-more-than-forty-letters-which-is-cut",
                    "4: expected `index:value`, found `this-is-a-word-of-more-than-forty-letter…`",
                ),
            ],
        );
        check(
            &mut TextParser::libsvm(Labels::Classes { first: 0, count: 20 }),
            &[("19 3:1", "19 3:1"), ("20 3:1", "1: expected a class from 0 to 19, found `20`")],
        );
        check(
            &mut TextParser::libsvm(Labels::Real),
            &[("-2.5 3:1", "-2.5 3:1"), ("nan 3:1", "1: expected a finite number as label, found `nan`")],
        );
        check(
            &mut TextParser::libsvm(Labels::Ignored),
            &[("7 3:1", "- 3:1"), ("3:1 4:2", "- 3:1 4:2"), ("? 4", "- 4:1")],
        );
    }

    proptest! {
        #[test]
        fn libsvm_reads_back_written_rows(features in prop::collection::vec((0..u64::MAX - 2, -1e30f32..1e30), 0..20), label in any::<bool>()) {
            let mut line = String::from(if label { "+1" } else { "-1" });
            for (index, value) in &features {
                line += &format!(" {index}:{value}");
            }
            let mut rows = Minibatch::new();
            TextParser::libsvm(Labels::Binary).line(line.as_bytes(), &mut rows).unwrap();
            let row = rows.row(0);
            prop_assert_eq!(row.label, Some(f32::from(u8::from(label))));
            let back: Vec<(u64, f32)> = row.keys.iter().copied().zip(row.values.iter().copied()).collect();
            prop_assert_eq!(back, features);
        }

        #[test]
        fn libsvm_never_panics_on_any_line(line in "[-+ 0-9:.e#x]{0,40}") {
            read(&mut TextParser::libsvm(Labels::Real), &line);
        }
    }
}
