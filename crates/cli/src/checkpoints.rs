//! The settings of checkpoints, which `server`, `coordinator` and `launch` share.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::value_parser;
use slackwater::cluster::{CheckpointSettings, ResumeFrom};

/// The settings of checkpoints.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Checkpoints")]
#[group(skip)]
pub(crate) struct CheckpointOptions {
    /// Write checkpoints here while the run goes on: a folder that all servers can write, or
    /// s3://BUCKET/PATH.
    #[arg(long, value_name = "LOCATION")]
    checkpoint: Option<String>,
    /// How many seconds lie between the beginnings of two checkpoints. If a checkpoint takes
    /// longer, the next begins when it is finished.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds, requires = "checkpoint")]
    checkpoint_every: f64,
    /// How many checkpoints to keep. Older ones are removed.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = value_parser!(u32).range(1..=1_000_000), requires = "checkpoint")]
    keep: u32,
    /// Resume from a checkpoint: the newest at this location, or the one in this folder. Without a
    /// location, from the newest at that of --checkpoint. The numbers of servers and workers may
    /// differ from those before.
    #[arg(long, value_name = "LOCATION", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// The job's name. A location holds checkpoints of one job, and the coordinator turns away
    /// servers and workers of another job.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
}

/// The name of a job without --job.
const UNNAMED: &str = "slackwater";

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.01..=1e6).contains(&seconds) { Ok(seconds) } else { Err("from 0.01 to 1000000 seconds".to_owned()) }
}

impl CheckpointOptions {
    /// The settings without any of these flags.
    pub(crate) fn none() -> Self {
        Self { checkpoint: None, checkpoint_every: 60.0, keep: 3, resume: None, job: None }
    }

    /// The job's name, if one was given.
    pub(crate) fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// The job that the checkpoints belong to.
    fn checkpointed_job(&self) -> &str {
        self.job().unwrap_or(UNNAMED)
    }

    /// Where and how often to write checkpoints, if at all.
    pub(crate) fn settings(&self) -> Option<CheckpointSettings> {
        let every = Duration::from_secs_f64(self.checkpoint_every);
        let keep = NonZeroUsize::new(self.keep as usize).unwrap_or(NonZeroUsize::MIN);
        let location = self.checkpoint.as_deref();
        location.map(|location| CheckpointSettings {
            every,
            keep,
            ..CheckpointSettings::new(location, self.checkpointed_job())
        })
    }

    /// The checkpoint to resume from, if any.
    pub(crate) fn resumed(&self) -> anyhow::Result<Option<ResumeFrom>> {
        let Some(location) = &self.resume else { return Ok(None) };
        let location = match (&location[..], &self.checkpoint) {
            ("", Some(kept)) => kept.clone(),
            ("", None) => anyhow::bail!("--resume has no location: give it one, or give --checkpoint LOCATION"),
            (location, _) => location.to_owned(),
        };
        Ok(Some(ResumeFrom { location, job: self.checkpointed_job().to_owned() }))
    }

    /// The words of a command line that allow a process to use the locations of these settings.
    pub(crate) fn permissions(&self) -> Vec<OsString> {
        let locations = self.checkpoint.iter().chain(&self.resume).filter(|location| !location.is_empty());
        locations.map(|location| format!("--checkpoint-location={location}").into()).collect()
    }

    /// These settings as the words of a command line, for a process that coordinates.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(location) = &self.checkpoint {
            arguments.push(format!("--checkpoint={location}"));
            arguments
                .extend([format!("--checkpoint-every={}", self.checkpoint_every), format!("--keep={}", self.keep)]);
        }
        arguments.extend(self.resume.as_ref().map(|location| match &location[..] {
            "" => "--resume".to_owned(),
            location => format!("--resume={location}"),
        }));
        arguments.extend(self.job.as_ref().map(|job| format!("--job={job}")));
        arguments.into_iter().map(OsString::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: CheckpointOptions,
    }

    fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> CheckpointOptions {
        Line::parse_from(std::iter::once("").chain(words)).options
    }

    #[test]
    fn arguments_parse_back_to_the_same_options() {
        for words in [
            &[][..],
            &["--checkpoint=/runs/a b", "--keep=7", "--checkpoint-every=0.5", "--job=clicks"],
            &["--checkpoint=/runs/a", "--resume"],
            &["--resume=/runs/a"],
        ] {
            let options = line(words.iter().copied());
            let arguments = options.arguments();
            let again = line(arguments.iter().map(|word| word.to_str().expect("text")));
            assert_eq!((again.settings(), again.job()), (options.settings(), options.job()));
            assert_eq!(again.resumed().expect("somewhere"), options.resumed().expect("somewhere"));
        }
        assert!(line(["--resume"]).resumed().is_err(), "from nowhere");
    }
}
