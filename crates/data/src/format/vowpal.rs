//! Vowpal Wabbit text: `label importance 'tag |namespace:weight name:value name … |namespace …`.

use super::{end_row, is_blank, skip_blanks};
use crate::number::{finite, number};
use crate::{FeatureHash, Labels, Minibatch, RowFault};

/// Parses lines. A feature's key is the hash of its name in the space of its namespace. Names that
/// are numbers are hashed, too.
#[derive(Clone, Debug)]
pub struct VowpalWabbit {
    pub labels: Labels,
    pub hash: FeatureHash,
}

fn ends_name(byte: u8) -> bool {
    is_blank(byte) || matches!(byte, b':' | b'|')
}

fn ends_value(byte: u8) -> bool {
    is_blank(byte) || byte == b'|'
}

impl VowpalWabbit {
    pub fn row(&mut self, line: &[u8], rows: &mut Minibatch) -> Result<(), RowFault> {
        let start = skip_blanks(line, 0);
        if start == line.len() {
            return Ok(());
        }
        let Some(bar) = memchr::memchr(b'|', line) else {
            return Err(RowFault::text(b"", line.len(), "`|` before the features"));
        };
        let (label, importance) = self.head(&line[..bar])?;
        let mut at = bar;
        while at < line.len() {
            at = self.namespace(line, at, rows)?;
        }
        end_row(rows, self.labels, label);
        rows.set_importance(importance);
        Ok(())
    }

    /// The label and the importance, from the text before the first bar. A tag is dropped.
    fn head(&self, head: &[u8]) -> Result<(f32, f32), RowFault> {
        if self.labels == Labels::Ignored {
            return Ok((0.0, 1.0));
        }
        // As in Vowpal Wabbit, the last word is the tag if it starts with ' or touches the bar.
        let last = head.iter().rposition(|&byte| is_blank(byte)).map_or(0, |blank| blank + 1);
        let words = if head[last..].is_empty() { head } else { &head[..last] };
        let mut at = 0;
        let mut numbers = [0.0, 1.0];
        let mut count = 0;
        loop {
            at = skip_blanks(words, at);
            let word = words[at..].split(|&byte| is_blank(byte)).next().unwrap_or_default();
            if word.is_empty() || word[0] == b'\'' {
                break;
            }
            numbers[match count {
                0 => 0,
                1 => 1,
                _ => return Err(RowFault::text(word, at, "no more than label, importance and tag before `|`")),
            }] = match (count, finite(word)) {
                (0, number) => number
                    .and_then(|number| self.labels.read(number))
                    .ok_or_else(|| RowFault::text(word, at, self.labels.expected()))?,
                (_, Some(importance)) if importance >= 0.0 => importance,
                _ => return Err(RowFault::text(word, at, "an importance of 0 or more")),
            };
            count += 1;
            at += word.len();
        }
        if count == 0 {
            return Err(RowFault::text(b"", at, self.labels.expected()));
        }
        Ok((numbers[0], numbers[1]))
    }

    /// Adds the features of the namespace whose bar is at `bar`. Returns the place of the next bar,
    /// or the line's end.
    fn namespace(&self, line: &[u8], bar: usize, rows: &mut Minibatch) -> Result<usize, RowFault> {
        let (name, mut at) = name(line, bar + 1);
        let space = self.hash.space(name);
        let mut weight = 1.0;
        if line.get(at) == Some(&b':') {
            (weight, at) = number(line, at + 1, ends_value)
                .map_err(|end| RowFault::text(&line[at + 1..end], at + 1, "a finite weight after the namespace"))?;
        }
        loop {
            at = skip_blanks(line, at);
            if matches!(line.get(at), None | Some(b'|')) {
                return Ok(at);
            }
            let (name, end) = self::name(line, at);
            if name.is_empty() {
                return Err(RowFault::word(line, at, "a feature's name"));
            }
            let mut value = 1.0;
            at = end;
            if line.get(end) == Some(&b':') {
                (value, at) = number(line, end + 1, ends_value)
                    .map_err(|stop| RowFault::text(&line[end + 1..stop], end + 1, "a finite number after `name:`"))?;
            }
            value *= weight;
            if !value.is_finite() {
                return Err(RowFault::text(
                    &line[end + 1..at],
                    end + 1,
                    "a value that is finite with its namespace's weight",
                ));
            }
            rows.push(self.hash.key(space, name), value);
        }
    }
}

/// The name at `at`, and where it ends.
fn name(line: &[u8], at: usize) -> (&[u8], usize) {
    let rest = &line[at..];
    let length = rest.iter().position(|&byte| ends_name(byte)).unwrap_or(rest.len());
    (&rest[..length], at + length)
}

#[cfg(test)]
mod tests {
    use crate::format::testing::check;
    use crate::{FeatureHash, Labels, Minibatch, TextParser};
    use proptest::prelude::*;

    /// Short keys: of `a` and `b` without a namespace, and of `a` in the namespace `x`.
    fn keys() -> [String; 3] {
        let hash = FeatureHash::new(0, 16).unwrap();
        [("", "a"), ("", "b"), ("x", "a")]
            .map(|(space, name)| hash.key(hash.space(space.as_bytes()), name.as_bytes()).to_string())
    }

    /// Puts the keys into `text`, for A, B and xA.
    fn expect(text: &str) -> String {
        let [a, b, xa] = keys();
        text.replace("xA", &xa).replace('A', &a).replace('B', &b)
    }

    #[test]
    fn vowpal_wabbit_parses_rows_and_names_faults() {
        let hash = FeatureHash::new(0, 16).unwrap();
        let table: Vec<(&str, String)> = [
            ("1 | a b", "1 A:1 B:1"),
            ("-1 | a:2 b:-0.5\r", "0 A:2 B:-0.5"),
            ("1 2.5 | a", "1*2.5 A:1"),
            ("1 0 | a", "1*0 A:1"),
            ("1 2.5 'tag| a", "1*2.5 A:1"),
            ("1 2.5 'tag | a", "1*2.5 A:1"),
            ("1 2.5 tag| a", "1*2.5 A:1"),
            ("1 'tag| a", "1 A:1"),
            ("1 |x a", "1 xA:1"),
            ("1 |x:0.5 a:4 | b", "1 xA:2 B:1"),
            ("1 |x a| a|x a", "1 xA:1 A:1 xA:1"),
            ("1 |", "1"),
            ("1 |x", "1"),
            ("1 || a", "1 A:1"),
            ("", ""),
            ("  ", ""),
            ("1 a b", "6: expected `|` before the features, found nothing"),
            ("| a", "1: expected a label of -1, 0 or 1, found nothing"),
            ("1| a", "1: expected a label of -1, 0 or 1, found nothing"),
            ("'tag | a", "1: expected a label of -1, 0 or 1, found nothing"),
            ("3 | a", "1: expected a label of -1, 0 or 1, found `3`"),
            ("1:0.5 2:1 | a", "1: expected a label of -1, 0 or 1, found `1:0.5`"),
            ("1 -1 | a", "3: expected an importance of 0 or more, found `-1`"),
            ("1 x | a", "3: expected an importance of 0 or more, found `x`"),
            ("1 1 0.5 | a", "5: expected no more than label, importance and tag before `|`, found `0.5`"),
            ("1 |x:y a", "6: expected a finite weight after the namespace, found `y`"),
            ("1 | a:", "7: expected a finite number after `name:`, found nothing"),
            ("1 | a:x|", "7: expected a finite number after `name:`, found `x`"),
            ("1 | a:inf", "7: expected a finite number after `name:`, found `inf`"),
            ("1 | :1", "5: expected a feature's name, found `:1`"),
            ("1 |x:1e30 a:1e30", "13: expected a value that is finite with its namespace's weight, found `1e30`"),
        ]
        .map(|(line, expected)| {
            (line, if expected.contains("expected") { expected.to_owned() } else { expect(expected) })
        })
        .into();
        let table: Vec<(&str, &str)> = table.iter().map(|(line, expected)| (*line, expected.as_str())).collect();
        check(&mut TextParser::vowpal_wabbit(Labels::Binary, hash), &table);
        let a = format!("- {}:1", keys()[0]);
        let unlabelled = [("| a", a.as_str()), ("what ever| a", &a), ("1 1 1 1 | a", &a)];
        check(&mut TextParser::vowpal_wabbit(Labels::Ignored, hash), &unlabelled);
    }

    proptest! {
        #[test]
        fn vowpal_wabbit_reads_back_written_rows(
            spaces in prop::collection::vec(("[a-z]{0,3}", prop::collection::vec(("[a-z0-9_]{1,9}", -1e9f32..1e9), 0..5)), 1..4),
            importance in 0f32..1e9,
        ) {
            let hash = FeatureHash::new(9, 64).unwrap();
            let mut line = format!("1 {importance} 'tag");
            let mut keys = Vec::new();
            let mut values = Vec::new();
            for (space, features) in &spaces {
                line += &format!("|{space}");
                for (name, value) in features {
                    line += &format!(" {name}:{value}");
                    keys.push(hash.key(hash.space(space.as_bytes()), name.as_bytes()));
                    values.push(*value);
                }
            }
            let mut rows = Minibatch::new();
            TextParser::vowpal_wabbit(Labels::Binary, hash).line(line.as_bytes(), &mut rows).unwrap();
            prop_assert_eq!(rows.keys(), keys);
            prop_assert_eq!(rows.values(), values);
            prop_assert_eq!(rows.row(0).importance, importance);
        }
    }
}
