//! Rules for whole files: their length, their name, and the lints that they turn on.

use super::{Check, File, Violation, find};

/// A source file may have this many lines.
const MOST_LINES: usize = 600;

/// Files that match on the lists of operations, messages and settings. A new entry of such a list
/// must fail to compile wherever it is not handled, so these files refuse a wildcard arm.
const EXHAUSTIVE: [&str; 18] = [
    "crates/cli/src/train/setting.rs",
    "crates/cli/src/train/value.rs",
    "crates/coordinator/src/input.rs",
    "crates/coordinator/src/coordinator.rs",
    "crates/node/src/lib.rs",
    "crates/shard/src/input.rs",
    "crates/shard/src/server.rs",
    "crates/sim/src/cluster/actor.rs",
    "crates/wire/src/field.rs",
    "crates/wire/src/message.rs",
    "crates/wire/src/message/control.rs",
    "crates/worker/src/input.rs",
    "crates/worker/src/op.rs",
    "crates/worker/src/worker/submit.rs",
    "crates/worker/src/worker/receive.rs",
    "crates/worker/src/worker/receive/answers.rs",
    "crates/worker/src/worker/receive/control.rs",
    "crates/worker/src/worker/receive/deltas.rs",
];

const DENY: &str = "#![deny(clippy::wildcard_enum_match_arm)]";

/// Source files that are too long, modules in a `mod.rs`, and files without the lint they need.
pub fn check(files: &[File]) -> Vec<Violation> {
    [lengths(files), module_style(files), exhaustive(files, &EXHAUSTIVE)].concat()
}

fn lengths(files: &[File]) -> Vec<Violation> {
    let sources = files.iter().filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".py"));
    let long = sources.map(|file| (file, file.text.lines().count())).filter(|(_, lines)| *lines > MOST_LINES);
    long.map(|(file, lines)| {
        let message = format!("{lines} lines, and a source file may have at most {MOST_LINES}; split it");
        Violation::new(Check::FileLength, &file.path, 1, message)
    })
    .collect()
}

/// Modules in a `mod.rs`. Folders of tests may have one: cargo would build `tests/foo.rs` as a
/// test.
fn module_style(files: &[File]) -> Vec<Violation> {
    let style = |file: &File| {
        let folder = file.path.strip_suffix("/mod.rs")?;
        if folder.split('/').any(|name| name == "tests") {
            return None;
        }
        let message = format!("a module in a mod.rs; move it to {folder}.rs, beside its folder");
        Some(Violation::new(Check::ModuleStyle, &file.path, 1, message))
    };
    files.iter().filter_map(style).collect()
}

/// Listed files that are missing or do not deny wildcard arms.
fn exhaustive(files: &[File], listed: &[&str]) -> Vec<Violation> {
    let lacks = |path: &&str| {
        let message = match find(files, path) {
            None => "no such file; correct its path in EXHAUSTIVE in xtask/src/house/layout.rs".to_owned(),
            Some(file) if file.text.lines().any(|line| line.trim() == DENY) => return None,
            Some(_) => format!("matches on a list that grows; put `{DENY}` after its head comment"),
        };
        Some(Violation::new(Check::ExhaustiveLists, path, 1, message))
    };
    listed.iter().filter_map(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tests::files, *};

    fn paths(violations: &[Violation]) -> Vec<&str> {
        violations.iter().map(|violation| violation.path.as_str()).collect()
    }

    #[test]
    fn length_is_limited_for_source_files_only() {
        let fits = "x\n".repeat(MOST_LINES);
        let long = "x\n".repeat(MOST_LINES + 1);
        let files = files(&[("fits.rs", &fits), ("long.rs", &long), ("long.py", &long), ("long.md", &long)]);
        assert_eq!(paths(&lengths(&files)), ["long.rs", "long.py"]);
    }

    #[test]
    fn module_files_are_refused_outside_tests() {
        let files = files(&[
            ("crates/net/src/socket/mod.rs", ""),
            ("crates/net/src/shared.rs", ""),
            ("crates/net/src/mode.rs", ""),
            ("crates/net/tests/peer/mod.rs", ""),
        ]);
        let violations = module_style(&files);
        assert_eq!(paths(&violations), ["crates/net/src/socket/mod.rs"]);
        assert!(violations[0].message.contains("crates/net/src/socket.rs"), "{}", violations[0]);
    }

    #[test]
    fn exhaustive_files_must_exist_and_deny_wildcard_arms() {
        let good = format!("//! Head.\n{DENY}\n\nuse std::fmt;\n");
        let files = files(&[("good.rs", &good), ("bad.rs", "//! Head.\n")]);
        let violations = exhaustive(&files, &["good.rs", "bad.rs", "gone.rs"]);
        assert_eq!(paths(&violations), ["bad.rs", "gone.rs"]);
        assert!(violations[1].message.contains("no such file"));
    }
}
