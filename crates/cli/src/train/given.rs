//! The command line of `train`: flags and a job file, both defined by the one list of settings.

use super::setting::{ASYNC, Group, Kind, Of, PROGRAMS, SETTINGS, Setting, find};
use super::settings::{Origin, Settings};
use super::value::Value;
use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use std::collections::BTreeMap;
use std::path::Path;

/// The positional argument, and the flags that are not in the list of settings.
const WHAT: &str = "what";
const SHOW: &str = "show-settings";
/// A flag that stands for a setting and its value: `--async` is `--slack async`.
const SHORTHAND: (&str, &str, &str) = (ASYNC, "slack", ASYNC);

/// The command line of `train`.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// A program, or a job file.
    what: String,
    flags: BTreeMap<&'static str, Value>,
    /// Whether to print the settings and exit.
    pub(crate) show: bool,
}

/// `train` in one process. Its command line has the numbers of servers and workers.
pub(crate) struct InProcess(pub Given);

/// `train` in a run of processes. The run sets the numbers of servers and workers.
pub(crate) struct InRun(pub Given);

impl Given {
    fn arguments(command: clap::Command, with_size: bool) -> clap::Command {
        let what = Arg::new(WHAT).required(true).value_name("PROGRAM|JOB.toml");
        let programs = PROGRAMS.join(", ");
        let what = what.help(format!("What to learn ({programs}), or a job file with this and other settings"));
        let show = Arg::new(SHOW).long(SHOW).action(ArgAction::SetTrue);
        let show = show
            .help_heading(Group::Output.heading())
            .help("Print each setting and where it comes from, as a job file, and exit");
        let (shorthand, of, value) = SHORTHAND;
        let shorthand = Arg::new(shorthand).long(shorthand).action(ArgAction::SetTrue).conflicts_with(of);
        let shorthand = shorthand.help_heading(Group::Cluster.heading()).help(format!("The same as --{of} {value}"));
        let shown =
            SETTINGS[1..].iter().filter(|setting| with_size || !matches!(setting.of, Of::RunSize | Of::Process));
        let command = shown.fold(command.arg(what), |command, setting| command.arg(setting.argument()));
        command.arg(shorthand).arg(show)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = BTreeMap::new();
        for setting in &SETTINGS[1..] {
            let given = matches.try_get_many::<Value>(setting.name).ok().flatten();
            for value in given.into_iter().flatten().cloned() {
                match (flags.get_mut(setting.name), value) {
                    (Some(Value::Texts(all)), Value::Texts(more)) => all.extend(more),
                    (_, value) => drop(flags.insert(setting.name, value)),
                }
            }
        }
        if matches.get_flag(SHORTHAND.0) {
            flags.insert(SHORTHAND.1, Value::Text(SHORTHAND.2.to_owned()));
        }
        let what = matches.get_one::<String>(WHAT).cloned().unwrap_or_default();
        Ok(Self { what, flags, show: matches.get_flag(SHOW) })
    }

    /// The settings: flags override the job file, and the job file overrides defaults.
    pub(crate) fn settle(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::defaults();
        if PROGRAMS.contains(&self.what.as_str()) {
            settings.set("program", Value::Text(self.what.clone()), Origin::Flag);
        } else if self.what.ends_with(".toml") || Path::new(&self.what).is_file() {
            let text = std::fs::read_to_string(&self.what).with_context(|| format!("cannot read {}", self.what))?;
            for (name, value) in read_job(&text).with_context(|| self.what.clone())? {
                settings.set(name, value, Origin::File);
            }
        } else {
            let programs = PROGRAMS.join(", ");
            bail!("there is no program `{}`: there are {programs}, and job files whose names end in .toml", self.what);
        }
        for (name, value) in &self.flags {
            settings.set(name, value.clone(), Origin::Flag);
        }
        settings.check()?;
        let dense = settings.text("program") == Some("mlp");
        if settings.get("updater").is_none() {
            let updater = if dense { "adam" } else { "ftrl" };
            settings.set("updater", Value::Text(updater.to_owned()), Origin::Default);
        }
        settings.refuse_others("updater")?;
        if settings.get("rate").is_none() && settings.text("updater") != Some("proximal") {
            let rate = match (settings.text("updater") == Some("adam"), dense) {
                (false, false) => 0.1,
                (true, false) | (false, true) => 0.01,
                (true, true) => 0.001,
            };
            settings.set("rate", Value::Number(rate), Origin::Default);
        }
        Ok(settings)
    }
}

impl Setting {
    /// Its flag.
    fn argument(&self) -> Arg {
        let help = match self.kind {
            Kind::Word(words) => format!("{} ({})", self.help.trim_end_matches('.'), words.join(", ")),
            _ => self.help.trim_end_matches('.').to_owned(),
        };
        let help = match self.owners() {
            Some((_, these)) => format!("{help} ({} only)", these.join(", ")),
            None => help,
        };
        let help = match (self.default_in_words(), self.kind) {
            ("", _) | (_, Kind::Switch) => help,
            (default, _) => format!("{help} [default: {default}]"),
        };
        let kind = self.kind;
        let argument = Arg::new(self.name).long(self.name).help(help).help_heading(self.group.heading());
        let argument = argument.value_parser(move |text: &str| kind.read(text));
        match self.kind {
            Kind::Switch => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .hide_possible_values(true)
                .value_name("true|false"),
            Kind::Texts(name) => argument.num_args(1..).action(ArgAction::Append).value_name(name),
            Kind::Text(name) => argument.value_name(name),
            // So that a negative number gets our error message, rather than be taken for a flag.
            Kind::Count(name, ..) | Kind::CountOr(name, _) => argument.value_name(name).allow_negative_numbers(true),
            Kind::Word(_) => argument.value_name("WHICH"),
            Kind::Number(_) => argument.value_name("X").allow_negative_numbers(true),
        }
    }
}

/// The settings in a job file.
fn read_job(text: &str) -> anyhow::Result<Vec<(&'static str, Value)>> {
    let table = toml::de::DeTable::parse(text)?;
    let mut given = Vec::new();
    for (key, value) in table.get_ref() {
        let line = 1 + text[..key.span().start].matches('\n').count();
        let name = key.get_ref().as_ref();
        // A job file lists `codecs`, as a table's spec does.
        let name = if name == "codecs" { "codec" } else { name };
        let (name, value) = match find(name) {
            Some(setting) => (setting.name, setting.kind.read_toml(value.get_ref())),
            None => bail!("line {line}: there is no setting `{name}`; did you mean `{}`?", nearest(name)),
        };
        given.push((name, value.map_err(|problem| anyhow::anyhow!("line {line}: `{name}`: {problem}"))?));
    }
    Ok(given)
}

/// The name of the setting that is most similar to this one.
fn nearest(name: &str) -> &'static str {
    let name = name.replace('_', "-");
    let likeness = |setting: &&Setting| strsim::jaro_winkler(setting.name, &name);
    SETTINGS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map_or("", |setting| setting.name)
}

impl Args for InProcess {
    fn augment_args(command: clap::Command) -> clap::Command {
        Given::arguments(command, true)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for InProcess {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Given::from_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for InRun {
    fn augment_args(command: clap::Command) -> clap::Command {
        Given::arguments(command, false)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for InRun {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Given::from_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
