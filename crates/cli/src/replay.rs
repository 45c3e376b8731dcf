//! `replay`: feeds recorded inputs to fresh machines, and checks that they send the same bytes.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use slackwater::recording::{Replayed, replay_file};
use slackwater::updaters::Updaters;

/// The extension of a recording's file name.
const EXTENSION: &str = "recording";

/// The settings of `replay`.
#[derive(clap::Args)]
pub(crate) struct ReplayOptions {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "FILE|FOLDER")]
    files: Vec<PathBuf>,
    /// Print a JSON object for each recording, rather than text.
    #[arg(long)]
    json: bool,
}

/// The command `replay`: prints the result of each recording, and fails if any differs or cannot be
/// read.
pub(crate) fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for file in &options.files {
        if file.is_dir() {
            let found = recordings_in(file)?;
            if found.is_empty() {
                bail!("there are no recordings in {}; name the folder that was given to --record", file.display());
            }
            files.extend(found);
        } else {
            files.push(file.clone());
        }
    }
    let mut differing = 0;
    let mut unread = 0;
    let mut out = std::io::stdout().lock();
    for file in &files {
        let outcome = replay_file(file, &Updaters::builtin()).map_err(|error| error.to_string());
        match &outcome {
            Ok(replayed) => differing += usize::from(replayed.first_difference.is_some()),
            Err(_) => unread += 1,
        }
        let name = file.display();
        match (options.json, outcome) {
            (false, Ok(replayed)) => writeln!(out, "{name}: {}", in_words(replayed))?,
            (false, Err(reason)) => writeln!(out, "{name} {reason}")?,
            (true, Ok(Replayed { inputs, frames, first_difference, cut })) => writeln!(
                out,
                "{}",
                serde_json::json!({
                    "file": file, "inputs": inputs, "frames": frames, "first_difference": first_difference, "cut": cut
                })
            )?,
            (true, Err(reason)) => writeln!(out, "{}", serde_json::json!({ "file": file, "error": reason }))?,
        }
    }
    let all = files.len();
    match (differing, unread) {
        (0, 0) => Ok(()),
        (0, _) => bail!("{unread} of {all} recordings could not be replayed"),
        (_, 0) => bail!("{differing} of {all} recordings did not give the same bytes again"),
        _ => bail!(
            "{differing} of {all} recordings did not give the same bytes again, and {unread} could not be replayed"
        ),
    }
}

fn in_words(replayed: Replayed) -> String {
    let Replayed { inputs, frames, first_difference, cut } = replayed;
    let verdict = match first_difference {
        None => "identical".to_owned(),
        Some(frame) => format!("frame {} is the first that differs", frame + 1),
    };
    let extent = if cut { ", and the recording ends before the run did" } else { "" };
    format!("{inputs} inputs, {frames} frames, {verdict}{extent}")
}

/// The recordings in a folder, sorted by name.
fn recordings_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || format!("cannot read the folder {}", folder.display());
    let mut found = Vec::new();
    for entry in folder.read_dir().with_context(read)? {
        let path = entry.with_context(read)?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Refuses a folder that holds recordings already. Call it before any process of a run starts.
pub(crate) fn check_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.is_dir()
        && let Some(found) = recordings_in(folder)?.first()
    {
        bail!("--record would add to {}: name a folder without recordings", found.display());
    }
    Ok(())
}
