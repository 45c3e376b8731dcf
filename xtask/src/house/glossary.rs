//! The glossary stays short: at most [`MOST_WORDS`] words, each with one meaning.

use std::collections::BTreeMap;

use super::{Check, File, Violation, find};

const GLOSSARY: &str = "docs/GLOSSARY.md";

const MOST_WORDS: usize = 60;

/// Violations: a glossary that is missing or too long, and words with two entries.
pub fn check(files: &[File]) -> Vec<Violation> {
    let violation = |line, message: String| Violation::new(Check::Glossary, GLOSSARY, line, message);
    let Some(glossary) = find(files, GLOSSARY) else {
        return vec![violation(1, "the glossary is missing; write the project's words and meanings there".to_owned())];
    };
    let words = words(&glossary.text);
    let mut violations = Vec::new();
    if let Some((line, _)) = words.get(MOST_WORDS) {
        let message = format!("{} words, and at most {MOST_WORDS} are allowed; remove some", words.len());
        violations.push(violation(*line, message));
    }
    let mut lines = BTreeMap::new();
    for (line, word) in words {
        if let Some(first) = lines.insert(word.to_lowercase(), line) {
            violations
                .push(violation(line, format!("`{word}` already has an entry at line {first}; keep one of them")));
        }
    }
    violations
}

/// The words that the tables explain, with their lines. A row may explain several, separated by
/// commas. The head of a table does not count.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut in_body = false;
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.trim().strip_prefix('|') else {
            in_body = false;
            continue;
        };
        let first = row.split('|').next().unwrap_or(row).trim();
        if first.starts_with("---") || first.starts_with(":--") {
            in_body = true;
        } else if in_body {
            let cut = first.split(',').map(|word| word.trim().trim_matches(['*', '`']));
            words.extend(cut.filter(|word| !word.is_empty()).map(|word| (index + 1, word)));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{super::tests::files, *};

    const HEAD: &str = "# Glossary\n\n| word | meaning |\n| --- | --- |\n";

    fn lines(text: &str) -> Vec<usize> {
        check(&files(&[(GLOSSARY, text)])).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn words_are_the_first_column_of_each_table() {
        let text =
            format!("{HEAD}| key, row | a |\n| **shard** | b |\n\n| word | meaning |\n| --- | --- |\n| clock | c |\n");
        let expected = [(5, "key"), (5, "row"), (6, "shard"), (10, "clock")];
        assert_eq!(words(&text), expected);
    }

    #[test]
    fn glossary_is_refused_with_two_entries_for_one_word() {
        assert_eq!(lines(&format!("{HEAD}| key | a |\n| row | b |\n")), [0; 0]);
        assert_eq!(lines(&format!("{HEAD}| key | a |\n| row, Key | b |\n")), [6]);
    }

    #[test]
    fn glossary_is_refused_if_it_is_missing_or_too_long() {
        let of = |count: usize| (0..count).fold(HEAD.to_owned(), |text, word| text + &format!("| word {word} | a |\n"));
        assert_eq!(lines(&of(MOST_WORDS)), [0; 0]);
        assert_eq!(lines(&of(MOST_WORDS + 1)), [4 + MOST_WORDS + 1]);
        assert_eq!(check(&[]).len(), 1);
    }
}
