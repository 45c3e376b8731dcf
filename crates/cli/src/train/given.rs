//! What the user gave: flags and a job file, both made from the one list of settings, and what they come to.

use super::setting::{ASYNC, Kind, Of, PROGRAMS, Preset, SETTINGS, Setting, find};
use super::value::Value;
use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The positional argument, and the flags that are no settings.
const WHAT: &str = "what";
const SHOW: &str = "show-settings";
/// A flag of its own for one value of a setting: in a job file it is `slack = "async"`.
const SHORTHAND: (&str, &str, &str) = (ASYNC, "slack", ASYNC);

/// What stands on the command line of `train`.
#[derive(Clone, Debug)]
pub struct Given {
    /// A program, or a job file.
    what: String,
    flags: BTreeMap<&'static str, Value>,
    /// Only show what the settings come to.
    pub show: bool,
}

/// `train` in one process, which is told how many servers and workers there are.
pub struct InProcess(pub Given);

/// `train` in a run of processes, whose shape the run says.
pub struct InRun(pub Given);

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File,
    Flag,
    /// The names and the first lines of the files.
    Data,
    /// The run of processes that this is a part of.
    Run,
    /// The model that was learnt with it.
    Model,
}

/// What every setting is, and where from. Settings that are not set are not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(BTreeMap<&'static str, (Value, Origin)>);

impl Given {
    fn arguments(command: clap::Command, with_shape: bool) -> clap::Command {
        let what = Arg::new(WHAT).required(true).value_name("PROGRAM|JOB.toml");
        let programs = PROGRAMS.join(", ");
        let what = what.help(format!("What to learn ({programs}), or a job file that says so and any other setting"));
        let show = Arg::new(SHOW).long(SHOW).action(ArgAction::SetTrue);
        let show = show.help("Print each setting and where it comes from, as a job file, and do nothing else");
        let (shorthand, of, value) = SHORTHAND;
        let shorthand = Arg::new(shorthand).long(shorthand).action(ArgAction::SetTrue).conflicts_with(of);
        let shorthand = shorthand.help(format!("The same as --{of} {value}"));
        let shown = SETTINGS[1..].iter().filter(|setting| with_shape || setting.of != Of::Shape);
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

    /// What the settings come to: flags win over the job file, and that over what they are if nobody says.
    pub fn settle(&self) -> anyhow::Result<Settings> {
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
        if settings.get("rate").is_none() {
            let rate = if settings.text("updater") == Some("adam") { 0.01 } else { 0.1 };
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
        let help = match (self.default_in_words(), self.kind) {
            ("", _) | (_, Kind::Switch) => help,
            (default, _) => format!("{help} [default: {default}]"),
        };
        let kind = self.kind;
        let argument = Arg::new(self.name).long(self.name).help(help);
        let argument = argument.value_parser(move |text: &str| kind.read(text));
        match self.kind {
            Kind::Switch => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .hide_possible_values(true)
                .value_name("true|false"),
            Kind::Texts(name) => argument.num_args(1..).action(ArgAction::Append).value_name(name),
            Kind::Text(name) | Kind::Count(name, ..) => argument.value_name(name),
            Kind::CountOr(name, _) => argument.value_name(name),
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
        let (name, value) = match find(name) {
            Some(setting) => (setting.name, setting.kind.read_toml(value.get_ref())),
            None => bail!("line {line}: there is no setting `{name}`; did you mean `{}`?", nearest(name)),
        };
        given.push((name, value.map_err(|problem| anyhow::anyhow!("line {line}: `{name}`: {problem}"))?));
    }
    Ok(given)
}

/// The name of a setting that is most like this one.
fn nearest(name: &str) -> &'static str {
    let name = name.replace('_', "-");
    let likeness = |setting: &&Setting| strsim::jaro_winkler(setting.name, &name);
    SETTINGS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map_or("", |setting| setting.name)
}

impl Settings {
    /// What settings are if nobody says.
    fn defaults() -> Self {
        let mut settings = Self::default();
        for setting in &SETTINGS {
            if let Preset::Is(words) = setting.default {
                let value = setting.kind.read(words).expect("a default is what the setting can be");
                settings.set(setting.name, value, Origin::Default);
            }
        }
        settings
    }

    /// The settings that a model keeps. What they are if nobody says does not matter to it.
    pub fn of_model(kept: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut settings = Self::default();
        for (name, text) in kept {
            // A model may say more about itself than how it was learnt.
            let Some(setting) = find(name) else { continue };
            let value = setting.kind.read_kept(text);
            let value = value.map_err(|problem| anyhow::anyhow!("the model's setting `{name}`: {problem}"))?;
            settings.set(setting.name, value, Origin::Model);
        }
        Ok(settings)
    }

    /// What a model keeps of them.
    pub fn kept(&self) -> BTreeMap<String, String> {
        let kept = self.iter().filter(|(setting, ..)| setting.is_kept());
        kept.map(|(setting, value, _)| (setting.name.to_owned(), value.kept())).collect()
    }

    /// Those that are set, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Setting, &Value, Origin)> {
        SETTINGS.iter().filter_map(|setting| {
            let (value, origin) = self.0.get(setting.name)?;
            Some((setting, value, *origin))
        })
    }

    /// Sets one.
    ///
    /// # Panics
    /// If the list has no setting of that name.
    pub fn set(&mut self, name: &str, value: Value, origin: Origin) {
        let setting = find(name).unwrap_or_else(|| panic!("`{name}` is in the list of settings"));
        self.0.insert(setting.name, (value, origin));
    }

    /// One that is set.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).map(|(value, _)| value)
    }

    /// Refuses a setting of one program that was given to another, and leaves out what such settings are by default.
    fn check(&mut self) -> anyhow::Result<()> {
        let program = self.text("program").context("the job file names no `program`")?.to_owned();
        for (setting, _, origin) in self.iter() {
            match setting.of {
                Of::Program(its) if its != program && origin != Origin::Default => {
                    bail!("`{}` is a setting of {its}, and this is {program}", setting.name)
                }
                _ => {}
            }
        }
        for setting in &SETTINGS {
            if matches!(setting.of, Of::Program(its) if its != program) {
                self.0.remove(setting.name);
            }
        }
        Ok(())
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn texts(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Value::Texts(texts)) => texts,
            _ => &[],
        }
    }

    pub fn count(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Count(count)) => Some(*count),
            _ => None,
        }
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn switch(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Switch(true))
    }
}

/// As a job file, with where each value came from.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.text("program");
        for setting in &SETTINGS {
            if matches!(setting.of, Of::Program(its) if Some(its) != program) {
                continue;
            }
            let line = match (self.0.get(setting.name), setting.default) {
                (Some((value, origin)), _) => (format!("{} = {value}", setting.name), origin.in_words().to_owned()),
                (None, Preset::Depends(words)) => (format!("# {} =", setting.name), format!("by default, {words}")),
                (None, _) => (format!("# {} =", setting.name), "not set".to_owned()),
            };
            writeln!(f, "{:<40} # {}", line.0, line.1)?;
        }
        Ok(())
    }
}

impl Origin {
    fn in_words(self) -> &'static str {
        match self {
            Self::Default => "by default",
            Self::File => "from the job file",
            Self::Flag => "from the command line",
            Self::Data => "from the data",
            Self::Run => "from the run",
            Self::Model => "from the model",
        }
    }
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
