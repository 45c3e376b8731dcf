//! One name for one thing: no two library crates have public types of the same name.
//!
//! A type counts if its definition says `pub` without a scope; `pub(crate)` and `pub(super)` do not
//! count. Types in test modules do not count, and neither do those of the command, which is not a
//! library.

use std::collections::BTreeMap;

use super::{
    Check, File, Violation,
    scan::{Language, code_only},
};

/// Names that every crate may use.
const CONVENTIONAL: [&str; 2] = ["Error", "Result"];

/// Names that two crates may share: (name, why).
const ALLOWED: [(&str, &str); 0] = [];

/// Crates on which no other crate depends.
const BINARIES: [&str; 1] = ["cli"];

const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Where a type is defined.
struct Definition<'a> {
    krate: &'a str,
    path: &'a str,
    line: usize,
}

/// Violations: every definition of a name that another crate defines, too.
pub fn check(files: &[File]) -> Vec<Violation> {
    let sources = || files.iter().filter_map(|file| Some((library(&file.path)?, file)));
    let test_modules: Vec<String> = sources().flat_map(|(_, file)| test_modules(file)).collect();
    let in_tests = |path: &str| {
        let inside = |module: &String| path.strip_prefix(module).is_some_and(|rest| rest.starts_with(['.', '/']));
        path.contains("/tests/") || test_modules.iter().any(inside)
    };
    let mut names: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    for (krate, file) in sources().filter(|(_, file)| !in_tests(&file.path)) {
        for (line, name) in public_types(&file.text) {
            names.entry(name).or_default().push(Definition { krate, path: &file.path, line });
        }
    }
    let allowed = |name: &str| CONVENTIONAL.contains(&name) || ALLOWED.iter().any(|(known, _)| *known == name);
    let twice = names.iter().filter(|(name, _)| !allowed(name)).flat_map(|(name, places)| clashes(name, places));
    twice.collect()
}

fn clashes(name: &str, places: &[Definition]) -> Vec<Violation> {
    let clash = |place: &Definition| {
        let other = places.iter().find(|other| other.krate != place.krate)?;
        let message = format!(
            "`{name}` is also a public type at {}:{}; rename one, or make it `pub(crate)`",
            other.path, other.line
        );
        Some(Violation::new(Check::PublicTypes, place.path, place.line, message))
    };
    places.iter().filter_map(clash).collect()
}

/// The library crate that the source file at `path` belongs to.
fn library(path: &str) -> Option<&str> {
    let (krate, inside) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_source = inside.ends_with(".rs") && inside != "main.rs" && !inside.starts_with("bin/");
    (is_source && !krate.contains('/') && !BINARIES.contains(&krate)).then_some(krate)
}

/// The paths, without `.rs`, of the modules that `file` declares for tests alone.
fn test_modules(file: &File) -> Vec<String> {
    let folder = match file.path.rsplit_once('/') {
        Some((folder, "lib.rs" | "mod.rs")) => folder,
        _ => file.path.trim_end_matches(".rs"),
    };
    let code = code_only(Language::Rust, &file.text);
    let words: Vec<&str> = code.split_whitespace().collect();
    let declared = |three: &[&str]| match three {
        [attribute, "mod", name] if is_test(attribute) => Some(format!("{folder}/{}", name.strip_suffix(';')?)),
        _ => None,
    };
    words.windows(3).filter_map(declared).collect()
}

fn is_test(attribute: &str) -> bool {
    attribute.ends_with("#[cfg(test)]") || attribute.starts_with("#[cfg(all(test")
}

/// The types that a Rust text defines as public, outside its modules for tests, with their lines.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let code = code_only(Language::Rust, text);
    let mut types = Vec::new();
    let mut depth = 0_usize;
    // The depth at which the current test module was opened.
    let mut test_depth = None;
    let mut after_attribute = false;
    for (index, line) in code.lines().enumerate() {
        let words: Vec<&str> =
            line.split(|character: char| !is_name(character)).filter(|word| !word.is_empty()).collect();
        let outside = test_depth.is_none();
        if let Some(name) = defined(line).filter(|_| outside) {
            types.push((index + 1, name.to_owned()));
        }
        let begins_tests = after_attribute && words.contains(&"mod") && line.contains('{');
        if outside && begins_tests {
            test_depth = Some(depth);
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        if test_depth.is_some_and(|opened| depth <= opened) {
            test_depth = None;
        }
        let trimmed = line.trim();
        after_attribute = trimmed.starts_with("#[cfg(test)]")
            || trimmed.starts_with("#[cfg(all(test")
            || (after_attribute && (trimmed.is_empty() || trimmed.starts_with("#[")));
    }
    types
}

/// The name that a line of code defines as a public type.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "pub").skip(1);
    let keyword = words.by_ref().find(|word| *word != "unsafe" && *word != "auto")?;
    let name = words.next().filter(|_| KEYWORDS.contains(&keyword))?;
    let end = name.find(|character: char| !is_name(character)).unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::{super::tests::files, *};

    #[test]
    fn public_types_finds_public_types_and_no_others() {
        let table = [
            ("pub struct Row;", &["Row"][..]),
            ("pub enum Row<T> {}", &["Row"]),
            ("pub trait Row: Copy {}", &["Row"]),
            ("pub unsafe trait Row {}", &["Row"]),
            ("pub type Row = u8;", &["Row"]),
            ("pub union Row { a: u8 }", &["Row"]),
            ("#[derive(Debug)] pub struct Row(u8);", &["Row"]),
            ("mod inner {\n    pub struct Row;\n}", &["Row"]),
            ("pub(crate) struct Row;", &[]),
            ("pub(super) enum Row {}", &[]),
            ("struct Row;", &[]),
            ("pub fn row() {}", &[]),
            ("pub use other::Row;", &[]),
            ("// pub struct Row;", &[]),
            ("\"\npub struct Row;\n\"", &[]),
            ("#[cfg(test)]\nmod tests {\n    pub struct Row;\n}\npub struct Key;", &["Key"]),
            ("#[cfg(test)]\n#[allow(unused)]\nmod tests {\n    fn a() {\n    }\n    pub struct Row;\n}", &[]),
            ("#[cfg(test)]\nmod tests;\npub struct Row {\n}", &["Row"]),
        ];
        for (text, expected) in table {
            let found: Vec<String> = public_types(text).into_iter().map(|(_, name)| name).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn check_refuses_a_name_in_two_libraries_and_allows_it_elsewhere() {
        let row = "pub struct Row;\n";
        let table = [
            (&["crates/a/src/lib.rs", "crates/b/src/rows.rs"][..], 2),
            (&["crates/a/src/lib.rs", "crates/a/src/rows.rs"], 0),
            (&["crates/a/src/lib.rs", "crates/cli/src/rows.rs"], 0),
            (&["crates/a/src/lib.rs", "crates/b/tests/rows.rs"], 0),
            (&["crates/a/src/lib.rs", "crates/b/src/main.rs"], 0),
            (&["crates/a/src/lib.rs", "crates/b/src/bin/tool.rs"], 0),
            (&["crates/a/src/lib.rs", "xtask/src/rows.rs"], 0),
        ];
        for (paths, expected) in table {
            let texts: Vec<(&str, &str)> = paths.iter().map(|path| (*path, row)).collect();
            assert_eq!(check(&files(&texts)).len(), expected, "{paths:?}");
        }
        let errors = [("crates/a/src/lib.rs", "pub enum Error {}\n"), ("crates/b/src/lib.rs", "pub enum Error {}\n")];
        assert_eq!(check(&files(&errors)), []);
    }

    #[test]
    fn check_ignores_files_of_test_modules() {
        let tree = files(&[
            ("crates/a/src/lib.rs", "pub struct Row;\n"),
            ("crates/b/src/lib.rs", "#[cfg(test)]\nmod support;\nmod rows;\n"),
            ("crates/b/src/rows.rs", "#[cfg(test)]\nmod cases;\n"),
            ("crates/b/src/support.rs", "pub struct Row;\n"),
            ("crates/b/src/rows/cases.rs", "pub struct Row;\n"),
            ("crates/b/src/supporter.rs", "pub struct Other;\n"),
        ]);
        assert_eq!(check(&tree), []);
    }
}
