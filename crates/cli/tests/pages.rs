//! The examples of the documentation: a shell runs each block of a page that is marked `sh run`, in
//! a folder of its own, with this build of the command.

#![expect(clippy::unwrap_used, reason = "a test says so by falling over")]

mod process;

use launch::Start;
use process::{Folder, PROGRAM, start_as};
use std::path::Path;
use std::process::Command;

/// The blocks of a page in Markdown that are marked so.
fn blocks(page: &str, mark: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in page.lines() {
        match &mut block {
            None if line == format!("```{mark}") => block = Some(String::new()),
            None => {}
            Some(_) if line == "```" => blocks.extend(block.take()),
            Some(lines) => *lines += &format!("{line}\n"),
        }
    }
    blocks
}

/// Runs a block as a script, and fails if one of its commands does.
fn run_block(name: &str, script: &str) {
    let folder = Folder::new(&format!("page-{name}"));
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).env("PATH", path).current_dir(&folder.0);
    let mut process = start_as(Start::command(name, bash), &[]);
    assert!(process.end(), "{script}\n{}\n{}", process.stdout(), process.stderr());
}

#[test]
fn pages_have_examples_that_run() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for name in ["ARCHITECTURE", "checkpoints", "cluster", "codecs", "formats", "performance", "security", "training"] {
        let page = std::fs::read_to_string(docs.join(format!("{name}.md"))).unwrap();
        let examples = blocks(&page, "sh run");
        assert!(!examples.is_empty(), "docs/{name}.md has no block marked `sh run`");
        for example in examples {
            run_block(name, &example);
        }
    }
}

#[test]
#[should_panic(expected = "no-such-file")]
fn a_block_that_fails_is_noticed() {
    run_block("broken", "slackwater inspect no-such-file\necho done");
}
