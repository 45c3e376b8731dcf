//! The house rules: checks of words, names, line widths and file lengths over all texts of the
//! repository.
//!
//! Every check is a function from files to violations, without I/O; [`files`] reads the files. The
//! lists that people edit are in xtask/house/, and `cargo xtask help house` explains them.

mod files;
mod glob;
mod glossary;
mod layout;
mod public_types;
mod retired;
mod scan;
mod width;

use std::{collections::BTreeMap, fmt};

pub use files::read;

/// A text file of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Relative to the root of the repository, with `/` between folders.
    pub path: String,
    pub text: String,
}

/// The rules, in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    LineWidth,
    RetiredWords,
    PublicTypes,
    FileLength,
    ModuleStyle,
    ExhaustiveLists,
    Glossary,
}

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub check: Check,
    pub path: String,
    /// Counted from 1. A violation by a whole file is reported at its first line.
    pub line: usize,
    /// What is wrong; what to do.
    pub message: String,
}

impl Violation {
    fn new(check: Check, path: &str, line: usize, message: String) -> Self {
        Self { check, path: path.to_owned(), line, message }
    }
}

/// All violations in `files`, sorted by rule and then by place.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = [
        width::check(files),
        retired::check(files),
        public_types::check(files),
        layout::check(files),
        glossary::check(files),
    ]
    .concat();
    violations.sort_by(|a, b| (a.check, &a.path, a.line).cmp(&(b.check, &b.path, b.line)));
    violations
}

/// How many violations there are of each rule that is broken.
pub fn summary(violations: &[Violation]) -> String {
    let mut counts = BTreeMap::new();
    for violation in violations {
        *counts.entry(violation.check).or_insert(0_usize) += 1;
    }
    counts.iter().map(|(check, count)| format!("{check} {count}")).collect::<Vec<_>>().join(", ")
}

/// The file at `path`, if there is one.
fn find<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    files.iter().find(|file| file.path == path)
}

/// The lines of a list that people edit, with their numbers: no blank lines, no comments.
fn entries(list: &File) -> impl Iterator<Item = (usize, &str)> {
    let numbered = list.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LineWidth => "line width",
            Self::RetiredWords => "retired words",
            Self::PublicTypes => "public types",
            Self::FileLength => "file length",
            Self::ModuleStyle => "module style",
            Self::ExhaustiveLists => "exhaustive lists",
            Self::Glossary => "glossary",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, message, .. } = self;
        write!(f, "{path}:{line}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of these (path, text) pairs.
    pub fn files(texts: &[(&str, &str)]) -> Vec<File> {
        texts.iter().map(|(path, text)| File { path: (*path).to_owned(), text: (*text).to_owned() }).collect()
    }

    #[test]
    fn violation_shows_its_place_and_summary_counts_by_rule() {
        let violations = [
            Violation::new(Check::FileLength, "a.rs", 1, "too long; split it".into()),
            Violation::new(Check::LineWidth, "b.md", 7, "too wide; wrap it".into()),
            Violation::new(Check::FileLength, "c.rs", 1, "too long; split it".into()),
        ];
        assert_eq!(violations[1].to_string(), "b.md:7: too wide; wrap it");
        assert_eq!(summary(&violations), "line width 1, file length 2");
    }

    #[test]
    fn entries_leave_out_comments_and_blank_lines() {
        let list = File { path: "list.txt".into(), text: "# head\n\none\n  two\n".into() };
        assert_eq!(entries(&list).collect::<Vec<_>>(), [(3, "one"), (4, "two")]);
    }
}
