//! The values of all settings, and where each comes from: a flag, the job file, a default, the
//! data, the run, or a model.

use super::setting::{Of, Preset, SETTINGS, Setting, find};
use super::value::Value;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fmt;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File,
    Flag,
    /// The names and the first lines of the data files.
    Data,
    /// The run of processes.
    Run,
    /// The model that was trained with it.
    Model,
}

/// The values of all settings that are set, and where each comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings(BTreeMap<&'static str, (Value, Origin)>);

impl Settings {
    /// The default settings.
    pub(crate) fn defaults() -> Self {
        let mut settings = Self::default();
        for setting in &SETTINGS {
            if let Preset::Is(words) = setting.default {
                let value = setting.kind.read(words).expect("a default is what the setting can be");
                settings.set(setting.name, value, Origin::Default);
            }
        }
        settings
    }

    /// The settings that a model keeps, without defaults.
    pub(crate) fn of_model(kept: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut settings = Self::default();
        for (name, text) in kept {
            // A model also holds facts that are no settings, such as `learnt-rows`.
            let Some(setting) = find(name) else { continue };
            let value = setting.kind.read_kept(text);
            let value = value.map_err(|problem| anyhow::anyhow!("the model's setting `{name}`: {problem}"))?;
            settings.set(setting.name, value, Origin::Model);
        }
        Ok(settings)
    }

    /// The settings that a model keeps.
    pub(crate) fn kept(&self) -> BTreeMap<String, String> {
        let kept = self.iter().filter(|(setting, ..)| setting.is_kept());
        kept.map(|(setting, value, _)| (setting.name.to_owned(), value.kept())).collect()
    }

    /// The settings that are set, in the order of the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Setting, &Value, Origin)> {
        SETTINGS.iter().filter_map(|setting| {
            let (value, origin) = self.0.get(setting.name)?;
            Some((setting, value, *origin))
        })
    }

    /// Sets a setting.
    ///
    /// # Panics
    /// If the list has no setting of that name.
    pub(crate) fn set(&mut self, name: &str, value: Value, origin: Origin) {
        let setting = find(name).unwrap_or_else(|| panic!("`{name}` is in the list of settings"));
        self.0.insert(setting.name, (value, origin));
    }

    /// The value of a setting, if it is set.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).map(|(value, _)| value)
    }

    /// Refuses settings that were given for another program, and drops the defaults of other
    /// programs' settings.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let program = self.text("program").context("the job file names no `program`")?.to_owned();
        self.refuse_others("program")?;
        for setting in &SETTINGS {
            if matches!(setting.of, Of::Programs(its) if !its.contains(&program.as_str())) {
                self.0.remove(setting.name);
            }
        }
        Ok(())
    }

    /// Refuses settings that were given and would be ignored: those of other programs, formats or
    /// updaters. `what` says which of the three.
    pub(crate) fn refuse_others(&self, what: &str) -> anyhow::Result<()> {
        let Some(chosen) = self.text(what) else { return Ok(()) };
        for (setting, value, origin) in self.iter().filter(|(.., origin)| matches!(origin, Origin::Flag | Origin::File))
        {
            // Setting a default explicitly is allowed.
            let is_default =
                matches!(setting.default, Preset::Is(words) if setting.kind.read(words).as_ref() == Ok(value));
            if let Some((kind, its)) = setting.owners()
                && kind == what
                && !is_default
                && !its.contains(&chosen)
            {
                let name = setting.name;
                let its = its.join(", ");
                bail!(
                    "`{name}` is a setting of the {what} {its}, and this is {chosen}: leave it out ({})",
                    origin.in_words()
                );
            }
        }
        Ok(())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Value::Texts(texts)) => texts,
            _ => &[],
        }
    }

    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Count(count)) => Some(*count),
            _ => None,
        }
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn switch(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Switch(true))
    }
}

/// Writes a job file with a comment on each line that says where the value comes from.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.text("program");
        for setting in &SETTINGS {
            if matches!(setting.of, Of::Programs(its) if !program.is_some_and(|program| its.contains(&program))) {
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
