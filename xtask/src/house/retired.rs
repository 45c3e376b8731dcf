//! Retired words: names and phrases that words of docs/GLOSSARY.md have replaced.
//!
//! The rules are lines of [`LIST`], whose head explains them. A rule is one of two kinds:
//! - a name, which matches whole words of identifiers (`old_name` matches `OldName` and
//!   `the_old_name`, and does not match `bold_names`);
//! - literal text between word boundaries, which matches across the line breaks of a paragraph.

mod rule;

use std::ops::Range;

use super::{
    Check, File, Violation, entries, find, glob,
    scan::{Language, code_only, is_word},
};
use rule::{Pattern, Rule, segments};

const LIST: &str = "xtask/house/retired_words.txt";

/// The content of the list.
#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    /// Patterns of paths that no rule applies to.
    excluded: Vec<String>,
    /// Markdown files whose headings may quote old names.
    excluded_headings: Vec<String>,
}

/// Violations: every use of a retired word, and every line of the list that cannot be read.
pub fn check(files: &[File]) -> Vec<Violation> {
    let Some(list) = find(files, LIST) else {
        let message = "the list of retired words is missing; restore it".to_owned();
        return vec![Violation::new(Check::RetiredWords, LIST, 1, message)];
    };
    let (rules, mut violations) = parse(list);
    let applies = |path: &str| path != LIST && !rules.excluded.iter().any(|pattern| glob::matches(pattern, path));
    for file in files.iter().filter(|file| applies(&file.path)) {
        if let Some(language) = Language::of(&file.path, &file.text) {
            violations.extend(check_file(&rules, file, language));
        }
    }
    violations
}

fn parse(list: &File) -> (Rules, Vec<Violation>) {
    let mut rules = Rules::default();
    let mut violations = Vec::new();
    for (line, entry) in entries(list) {
        if let Some(pattern) = entry.strip_prefix("exclude headings ") {
            rules.excluded_headings.push(pattern.trim().to_owned());
        } else if let Some(pattern) = entry.strip_prefix("exclude ") {
            rules.excluded.push(pattern.trim().to_owned());
        } else if let Some(rule) = Rule::parse(entry) {
            rules.rules.push(rule);
        } else {
            let message = "not a rule; write `pattern | use instead | scope`, as the head of the file says".to_owned();
            violations.push(Violation::new(Check::RetiredWords, LIST, line, message));
        }
    }
    (rules, violations)
}

fn check_file(rules: &Rules, file: &File, language: Language) -> Vec<Violation> {
    let mut text = file.text.clone();
    if rules.excluded_headings.iter().any(|pattern| glob::matches(pattern, &file.path)) {
        text = without_headings(&text);
    }
    let in_scope: Vec<&Rule> = rules.rules.iter().filter(|rule| rule.applies_to(&file.path)).collect();
    let (in_code, anywhere): (Vec<&Rule>, Vec<&Rule>) = in_scope.into_iter().partition(|rule| rule.code_only);
    let code = Flow::of(&code_only(language, &text));
    let all = Flow::of(&text);
    let found = in_code.into_iter().map(|rule| (rule, &code)).chain(anywhere.into_iter().map(|rule| (rule, &all)));
    let mut violations = Vec::new();
    for (rule, flow) in found {
        for line in flow.find(&rule.pattern) {
            let message = format!("`{}` is retired; use {}", rule.shown, rule.instead);
            violations.push(Violation::new(Check::RetiredWords, &file.path, line, message));
        }
    }
    violations
}

/// The text with empty lines in place of its headings.
fn without_headings(text: &str) -> String {
    text.split_inclusive('\n').map(|line| if line.starts_with('#') { "\n" } else { line }).collect()
}

/// A text as one line, so that phrases are found across line breaks. It has no comment signs and no
/// indentation, and single blanks. A line without words ends a paragraph.
struct Flow {
    text: String,
    /// The offset in `text` at which each line of the file begins.
    starts: Vec<usize>,
    /// The ranges of the words in `text`.
    words: Vec<Range<usize>>,
}

/// Separates paragraphs, so that no phrase is found across two of them.
const BREAK: char = '\u{1}';

impl Flow {
    fn of(text: &str) -> Self {
        let mut flow = String::with_capacity(text.len());
        let mut starts = Vec::new();
        for line in text.lines() {
            starts.push(flow.len());
            let line = line.trim_start().trim_start_matches(['/', '!', '#', '>']);
            let line = line.strip_suffix('\\').unwrap_or(line);
            let mut words = line.split_whitespace().peekable();
            if words.peek().is_none() {
                flow.push(BREAK);
            }
            for word in words {
                flow.push_str(word);
                flow.push(' ');
            }
        }
        let words = words(&flow);
        Self { text: flow, starts, words }
    }

    /// The lines on which the pattern is found, each once.
    fn find(&self, pattern: &Pattern) -> Vec<usize> {
        let mut lines: Vec<usize> = match pattern {
            Pattern::Whole(name) => self.named(|word, in_flag| word == name && !in_flag),
            Pattern::Name { parts, any_case } => self.named(|word, _| contains(&segments(word), parts, *any_case)),
            Pattern::Literal { text, any_case } => self.literal(text, *any_case),
        };
        lines.dedup();
        lines
    }

    /// The lines of the words that `is_meant` accepts. It gets each word, and whether the word is
    /// part of a flag such as `--one-word`.
    fn named(&self, is_meant: impl Fn(&str, bool) -> bool) -> Vec<usize> {
        let bytes = self.text.as_bytes();
        let in_flag = |word: &Range<usize>| word.start > 0 && bytes[word.start - 1] == b'-';
        let found = self.words.iter().filter(|word| is_meant(&self.text[(*word).clone()], in_flag(word)));
        found.map(|word| self.line(word.start)).collect()
    }

    fn literal(&self, pattern: &str, any_case: bool) -> Vec<usize> {
        let lowered;
        let text = if any_case {
            lowered = self.text.to_ascii_lowercase();
            &lowered
        } else {
            &self.text
        };
        let bounded = |at: usize| is_bounded(text.as_bytes(), pattern.as_bytes(), at);
        text.match_indices(pattern).filter(|(at, _)| bounded(*at)).map(|(at, _)| self.line(at)).collect()
    }

    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at)
    }
}

/// Runs of letters, digits and underscores.
fn words(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut begun = None;
    for at in 0..=bytes.len() {
        match (bytes.get(at).is_some_and(|&byte| is_word(byte)), begun) {
            (true, None) => begun = Some(at),
            (false, Some(start)) => {
                words.push(start..at);
                begun = None;
            }
            _ => {}
        }
    }
    words
}

/// Whether a word contains the parts of a pattern one after another. The last may be a plural.
fn contains(word: &[&str], parts: &[String], any_case: bool) -> bool {
    let same = |segment: &str, part: &str| if any_case { segment.eq_ignore_ascii_case(part) } else { segment == part };
    let same_or_plural = |segment: &str, part: &str| {
        same(segment, part) || segment.strip_suffix(['s', 'S']).is_some_and(|singular| same(singular, part))
    };
    let Some((last, before)) = parts.split_last() else {
        return false;
    };
    word.windows(parts.len()).any(|run| {
        run.iter().zip(before).all(|(segment, part)| same(segment, part)) && same_or_plural(run[before.len()], last)
    })
}

/// Whether a match at `at` is a whole word or flag, not a piece of a longer one. A plural counts as
/// the word.
fn is_bounded(text: &[u8], pattern: &[u8], at: usize) -> bool {
    let joins = |byte: &u8| is_word(*byte) || *byte == b'-';
    let before = at.checked_sub(1).map(|before| text[before]);
    let after = &text[at + pattern.len()..];
    let after = if after.first() == Some(&b's') { &after[1..] } else { after };
    let begins = !joins(&pattern[0]) || !before.as_ref().is_some_and(joins);
    let ends = !pattern.last().is_some_and(joins) || !after.first().is_some_and(joins);
    begins && ends
}

#[cfg(test)]
mod tests {
    use super::{super::tests::files, *};

    /// The lines of `text`, in the file `path`, that the rules refuse.
    fn refused(rules: &str, path: &str, text: &str) -> Vec<usize> {
        let found = check(&files(&[(LIST, rules), (path, text)]));
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn check_reports_a_missing_list() {
        assert_eq!(check(&files(&[("README.md", "text")])).len(), 1);
    }

    #[test]
    fn names_match_whole_words_of_identifiers() {
        let table = [
            ("old_name", "old_name", true),
            ("old_name", "the_old_name_here()", true),
            ("old_name", "OldName", true),
            ("old_name", "OLD_NAME", true),
            ("old_name", "old_names", true),
            ("old_name", "bold_name", false),
            ("old_name", "old_named", false),
            ("old_name", "an old name", false),
            ("lode", "lode_ms", true),
            ("lode", "a Lode.", true),
            ("lode", "explode, loden", false),
            ("OldName", "OldNameError", true),
            ("OldName", "old_name", false),
            ("OldName", "BoldName", false),
            ("=Old", "Old::new()", true),
            ("=Old", "OldName, old", false),
            ("=old", "--old 3, --not-old", false),
            ("Old::Name", "crate::Old::Name { .. }", true),
            ("Old::Name", "Bold::Name, Old::Named", false),
            ("old::", "use old::name;", true),
            ("old::", "use bold::name;", false),
            ("old-name", "package = \"old-name\"", true),
            ("old-name", "old-name-here", false),
            ("--old", "cargo run --old 3", true),
            ("--old", "`--old=3`", true),
            ("--old", "--older --old-one", false),
            ("OLD_NAME", "SET_OLD_NAME=1", true),
        ];
        for (pattern, text, expected) in table {
            let lines = refused(&format!("{pattern} | new\n"), "a.rs", text);
            assert_eq!(lines == [1], expected, "{pattern} in {text}");
        }
    }

    #[test]
    fn phrases_match_across_lines_and_not_across_paragraphs() {
        let table = [
            ("an old phrase", &[1][..]),
            ("Old  phrases", &[1]),
            ("a bold phrase, old phrased", &[]),
            ("// an old\n    // phrase", &[1]),
            ("/// an old\n///\n/// phrase", &[]),
            ("\n\"an old \\\n phrase\"", &[2]),
            ("old phrase, old phrase\nold phrase", &[1, 2]),
        ];
        for (text, lines) in table {
            assert_eq!(refused("old phrase | new phrase\n", "a.rs", text), lines, "{text}");
        }
    }

    #[test]
    fn code_rules_ignore_prose_and_strings() {
        let rule = "lode | new | @code\n";
        let table = [
            ("a.rs", "let lode = 1;", true),
            ("a.rs", "// a lode\nlet a = \"lode\";", false),
            ("a.rs", "// the `lode` of it", true),
            ("a.md", "a lode", false),
            ("a.md", "the `lode_ms`", true),
            ("a.py", "lode = 1", true),
        ];
        for (path, text, expected) in table {
            assert_eq!(!refused(rule, path, text).is_empty(), expected, "{path}: {text}");
        }
    }

    #[test]
    fn rules_apply_within_their_scopes_and_outside_exclusions() {
        let rules = "exclude CHANGELOG.md\nexclude headings docs/decisions/*.md\n\
                     lode | new | crates/** !crates/sim/**\nold phrase | new\n";
        let table = [
            ("crates/net/src/lib.rs", "lode", true),
            ("crates/sim/src/lib.rs", "lode", false),
            ("docs/cluster.md", "lode", false),
            ("docs/cluster.md", "# An old phrase", true),
            ("CHANGELOG.md", "an old phrase", false),
            ("docs/decisions/0001.md", "# An old phrase", false),
            ("docs/decisions/0001.md", "an old phrase", true),
            ("docs/demo.svg", "an old phrase", false),
        ];
        for (path, text, expected) in table {
            assert_eq!(!refused(rules, path, text).is_empty(), expected, "{path}: {text}");
        }
    }

    #[test]
    fn check_reports_lines_that_are_no_rules() {
        assert_eq!(refused("# head\n\nlode\n| new\nlode | new | a | b\nlode | \n", "a.rs", ""), [3, 4, 5, 6]);
    }

    #[test]
    fn the_list_of_the_repository_can_be_read() {
        let text = include_str!("../../house/retired_words.txt");
        let (rules, wrong) = parse(&files(&[(LIST, text)])[0]);
        assert_eq!(wrong, []);
        assert!(!rules.rules.is_empty());
    }
}
