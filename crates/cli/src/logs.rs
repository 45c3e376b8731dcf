//! Logging: sets up `tracing` to write log lines to the standard error, as text or as JSON.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// The variables that may hold the log filter. The first one that is set wins.
const VARIABLES: [&str; 2] = ["SLACKWATER_LOG", "RUST_LOG"];

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

/// Starts logging. If no variable is set, lines of the level `default` and above are written.
pub(crate) fn start(form: Form, default: &str) -> anyhow::Result<()> {
    let set = VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match set {
        Some((name, value)) => EnvFilter::try_new(&value)
            .with_context(|| format!("{name}={value} is not a log filter; set it to warn, info or debug"))?,
        None => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match form {
        Form::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        Form::Json => builder.json().init(),
    }
    Ok(())
}
