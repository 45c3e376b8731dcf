//! What the program says about itself while it works: on standard error, for people or for
//! programs.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// The variables that choose what is said, the first that is set first.
const VARIABLES: [&str; 2] = ["SLACKWATER_LOG", "RUST_LOG"];

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

/// Starts logging. Without a variable, what is at least as grave as `default` is said.
pub(crate) fn start(form: Form, default: &str) -> anyhow::Result<()> {
    let set = VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match set {
        Some((name, value)) => {
            EnvFilter::try_new(&value).with_context(|| format!("{name}={value} is no log filter"))?
        }
        None => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match form {
        Form::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        Form::Json => builder.json().init(),
    }
    Ok(())
}
