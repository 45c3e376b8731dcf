//! Line width: comment lines and Markdown prose have at most [`COLUMNS`] characters.
//!
//! Tables, code blocks, links and words that cannot be broken may be wider. So may code, which
//! rustfmt wraps.

use super::{
    Check, File, Violation,
    scan::{Kind, Language, classify},
};

const COLUMNS: usize = 100;

/// A line of prose.
struct Line<'a> {
    number: usize,
    /// The whole line, whose width counts.
    full: &'a str,
    /// The line without its indentation and comment sign.
    body: &'a str,
}

/// Lines of prose that are too wide.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        for (line, columns) in wide_lines(file) {
            let message = format!("prose of {columns} columns; wrap it at {COLUMNS}");
            violations.push(Violation::new(Check::LineWidth, &file.path, line, message));
        }
    }
    violations
}

/// The lines of prose that are too wide, as (number, width).
fn wide_lines(file: &File) -> Vec<(usize, usize)> {
    let Some(language) = Language::of(&file.path, &file.text) else {
        return Vec::new();
    };
    let wide = prose(language, &file.text).into_iter().filter(|line| is_wide(line.full) && !is_licence(line.body));
    wide.map(|line| (line.number, line.full.chars().count())).collect()
}

/// The lines of prose of a text, without tables and code blocks.
fn prose(language: Language, text: &str) -> Vec<Line<'_>> {
    let kinds = classify(language, text);
    let mut blocks = Blocks::default();
    let mut lines = Vec::new();
    let mut at = 0;
    for (index, whole) in text.split_inclusive('\n').enumerate() {
        let full = whole.trim_end();
        let first = at + (full.len() - full.trim_start().len());
        let is_prose = !full.trim().is_empty() && kinds[first] == Kind::Prose;
        let body = if language == Language::Markdown { full } else { without_leader(full) };
        if !is_prose && language != Language::Markdown {
            blocks = Blocks::default();
        } else if blocks.is_text(body) {
            lines.push(Line { number: index + 1, full, body });
        }
        at += whole.len();
    }
    lines
}

/// A comment's text, without indentation, without `//`, `///`, `//!` or `#`, and without one blank
/// after that.
fn without_leader(line: &str) -> &str {
    let line = line.trim_start();
    let body = ["///", "//!", "//", "#"].iter().find_map(|leader| line.strip_prefix(leader)).unwrap_or(line);
    body.strip_prefix(' ').unwrap_or(body)
}

/// Which Markdown block the current line is in.
#[derive(Default)]
struct Blocks {
    fenced: bool,
    /// Whether in an indented block of code, which begins after a blank line outside lists.
    indented: bool,
    in_list: bool,
    /// Whether the line before was text.
    in_paragraph: bool,
}

impl Blocks {
    /// Whether the next line is text, rather than code or a table.
    fn is_text(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        if text.starts_with("```") || text.starts_with("~~~") {
            self.fenced = !self.fenced;
            return false;
        }
        if self.fenced {
            return false;
        }
        if text.is_empty() {
            self.in_paragraph = false;
            return false;
        }
        let is_deep = line.starts_with("    ") || line.starts_with('\t');
        self.indented = is_deep && !self.in_list && (self.indented || !self.in_paragraph);
        if !line.starts_with(' ') {
            self.in_list = is_list_item(text);
        } else if is_list_item(text) && !self.indented {
            self.in_list = true;
        }
        self.in_paragraph = !self.indented;
        !self.indented && !text.starts_with('|')
    }
}

fn is_list_item(text: &str) -> bool {
    let number = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let numbered = number.len() < text.len() && number.starts_with(". ");
    numbered || ["- ", "* ", "+ "].iter().any(|bullet| text.starts_with(bullet))
}

/// Whether the line is too wide and wrapping can help. Links do not count, nor does a word that
/// would be too wide on a line of its own.
fn is_wide(line: &str) -> bool {
    if line.chars().count() <= COLUMNS {
        return false;
    }
    let indentation = line.chars().take_while(|character| character.is_whitespace()).count();
    let mut end = 0;
    line.split(' ').any(|word| {
        let width = word.chars().count();
        end += width + 1;
        let is_link = word.contains("](") || word.contains("://");
        end - 1 > COLUMNS && !is_link && indentation + width <= COLUMNS
    })
}

fn is_licence(body: &str) -> bool {
    ["SPDX-", "Copyright ", "Licensed under "].iter().any(|head| body.starts_with(head))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::files, *};

    /// A line of `columns` columns: `head`, and then words.
    fn line(head: &str, columns: usize) -> String {
        let mut line = head.to_owned();
        while line.chars().count() < columns {
            line.push(if line.chars().count() % 5 == 4 && line.chars().count() + 1 < columns { ' ' } else { 'é' });
        }
        line
    }

    fn wide(path: &str, text: &str) -> Vec<usize> {
        let file = &files(&[(path, text)])[0];
        wide_lines(file).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn comments_and_prose_of_more_than_100_columns_are_wide() {
        let table = [
            ("a.rs", "/// "),
            ("a.rs", "//! "),
            ("a.rs", "    // "),
            ("a.py", "    # "),
            ("a.py", "\"\"\""),
            ("a.toml", "# "),
            ("a.yml", "  # "),
            ("a.sh", "# "),
            ("a.md", ""),
            ("a.md", "- "),
            ("a.md", "# "),
        ];
        for (path, head) in table {
            let closing = if head == "\"\"\"" { "\n\"\"\"\n" } else { "\n" };
            assert_eq!(wide(path, &(line(head, COLUMNS) + closing)), [0; 0], "{path} {head}");
            assert_eq!(wide(path, &(line(head, COLUMNS + 1) + closing)), [1], "{path} {head}");
        }
    }

    #[test]
    fn code_tables_links_and_unbreakable_words_are_exempt() {
        let long = line("", 140);
        let table = [
            ("a.rs", format!("let a = \"{long}\";\n")),
            ("a.rs", format!("/// ```\n/// {long}\n/// ```\n")),
            ("a.rs", format!("//! Head:\n//!\n//!     {long}\n")),
            ("a.rs", format!("/// | {long} |\n")),
            ("a.rs", format!("// SPDX-License-Identifier: {long}\n")),
            ("a.py", format!("a = \"\"\"\n{long}\n\"\"\"\n")),
            ("a.toml", format!("a = \"{long}\"\n")),
            ("a.md", format!("```sh\n{long}\n```\n")),
            ("a.md", format!("Head:\n\n    {long}\n    {long}\n")),
            ("a.md", format!("| {long} |\n")),
            ("a.md", line("", 90) + " [it](decisions/0001-a-long-name.md).\n"),
            ("a.md", line("", 90) + " https://example.org/a-long-address\n"),
            ("a.md", "x".repeat(120)),
            ("a.svg", long.clone()),
        ];
        for (path, text) in table {
            assert_eq!(wide(path, &text), [0; 0], "{path} {text}");
        }
        let link_then_words = format!("{} [it](a.md) {}\n", line("", 90), line("", 20));
        assert_eq!(wide("a.md", &link_then_words), [1]);
        assert_eq!(wide("a.md", &format!("- item\n\n    {long}\n")), [3], "text of a list item is text");
        assert_eq!(wide("a.md", &format!("```\n```\n\n{long}\n")), [4], "a fence that is closed is over");
    }
}
