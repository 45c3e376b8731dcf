//! The list of settings of `train`: the name of each as a flag, in a job file, in a model and in
//! docs/training.md, its values and its default.

#![deny(clippy::wildcard_enum_match_arm)]

/// One setting.
pub(crate) struct Setting {
    /// Its flag without the dashes, and its key in a job file and in a model.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Its default, as it would be written after the flag.
    pub(crate) default: Preset,
    /// What the setting belongs to.
    pub(crate) of: Of,
    /// Its heading in the help.
    pub(crate) group: Group,
    pub(crate) help: &'static str,
}

/// The values that a setting can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// True or false.
    Switch,
    /// Any text. The help calls it by this name.
    Text(&'static str),
    /// Any number of texts. The help calls each by this name.
    Texts(&'static str),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number: its name in the help, the least and the largest value.
    Count(&'static str, u64, u64),
    /// A whole number, with this name in the help, or this word.
    CountOr(&'static str, &'static str),
    /// A finite number of at least this.
    Number(f64),
}

/// The default of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Preset {
    /// There is no default: the setting is not set.
    Absent,
    /// This value.
    Is(&'static str),
    /// The default depends on other settings or on the data, in these words.
    Depends(&'static str),
}

/// What a setting belongs to. It decides where the setting may be given and whether a model keeps
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The model, for every program.
    Model,
    /// The model, for these programs only.
    Programs(&'static [&'static str]),
    /// The model, for files of these formats only.
    Formats(&'static [&'static str]),
    /// The model, for these updaters only.
    Updaters(&'static [&'static str]),
    /// The size of a run in one process. In a run of processes, the run sets it.
    RunSize,
    /// The report. It does not change the model, and the model does not keep it.
    Report,
    /// A run in one process. The model does not keep it. In a run of processes, it is given to
    /// `launch`, `server` and `worker`.
    Process,
}

/// A heading of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Input,
    Model,
    Optimisation,
    Cluster,
    Output,
}

impl Group {
    /// Its text in the help.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Input => "Input",
            Self::Model => "Model",
            Self::Optimisation => "Optimisation",
            Self::Cluster => "Cluster",
            Self::Output => "Output",
        }
    }
}

pub(crate) const PROGRAMS: [&str; 5] = ["logistic", "linear", "softmax", "fm", "mlp"];
pub(crate) const FORMATS: [&str; 8] = ["auto", "libsvm", "libffm", "vw", "criteo", "csv", "parquet", "idx"];
pub(crate) const UPDATERS: [&str; 5] = ["ftrl", "adagrad", "adam", "sgd", "proximal"];
pub(crate) const DECAYS: [&str; 2] = ["none", "linear"];
/// Words that some settings take in place of a number.
pub(crate) const ASYNC: &str = "async";
pub(crate) const OFF: &str = "off";

const ANY: u64 = u64::MAX >> 1;

use Kind::{Count, CountOr, Number, Switch, Text, Texts, Word};
use Of::{Formats, Model, Process, Programs, Report, RunSize, Updaters};
use Preset::{Absent, Depends, Is};

const WITH_COLUMNS: Of = Formats(&["csv", "parquet"]);
const BY_MINIBATCHES: Of = Updaters(&["ftrl", "adagrad", "adam", "sgd"]);

const fn setting(name: &'static str, kind: Kind, default: Preset, of: Of, group: Group, help: &'static str) -> Setting {
    Setting { name, kind, default, of, group, help }
}

/// Every setting, group by group, in the order of the help. The first is the program, which is a
/// positional argument.
#[rustfmt::skip]
pub(crate) const SETTINGS: [Setting; 46] = [
    setting("program", Word(&PROGRAMS), Absent, Model, Group::Model, "What to learn."),
    setting("data", Texts("FILE"), Absent, Model, Group::Input, "Files to learn from, or patterns of files: plain, .gz or .zst."),
    setting("test", Texts("FILE"), Absent, Model, Group::Input, "Files to test the model on after training."),
    setting("format", Word(&FORMATS), Is("auto"), Model, Group::Input, "The format of the files; auto goes by their names."),
    setting("label", Text("COLUMN"), Absent, WITH_COLUMNS, Group::Input, "The column that holds the labels."),
    setting("separator", Text("CHARACTER"), Depends("a tab for .tsv, else a comma"), Formats(&["csv"]), Group::Input, "The character between cells; `tab` is a tab."),
    setting("names", Texts("COLUMN"), Absent, Formats(&["csv"]), Group::Input, "The names of the columns, if the first line of the file does not hold them."),
    setting("numeric", Texts("COLUMN"), Absent, WITH_COLUMNS, Group::Input, "Columns to read as numbers."),
    setting("categorical", Texts("COLUMN"), Absent, WITH_COLUMNS, Group::Input, "Columns to read as names, such as ids."),
    setting("ignore", Texts("COLUMN"), Absent, WITH_COLUMNS, Group::Input, "Columns to leave out."),
    setting("hash-bits", Count("BITS", 1, 64), Is("64"), Formats(&["vw", "criteo", "csv", "parquet"]), Group::Input, "Hash names to keys of this many bits: at most 2^BITS features."),
    setting("skip-bad", Count("LINES", 0, ANY), Is("0"), Model, Group::Input, "How many malformed lines to skip in an epoch before training fails."),
    setting("no-bias", Switch, Is("false"), Model, Group::Model, "Learn no constant term."),
    setting("standardise", Switch, Is("false"), Model, Group::Model, "Scale every feature to mean 0 and variance 1 first."),
    setting("classes", Count("COUNT", 2, 1 << 20), Depends("for images, what their labels say"), Programs(&["softmax", "mlp"]), Group::Model, "How many classes there are."),
    setting("first-class", Count("LABEL", 0, 1 << 24), Is("0"), Programs(&["softmax", "mlp"]), Group::Model, "The label of the first class: 1 if labels count from 1."),
    setting("factors", Count("COUNT", 1, 4096), Is("8"), Programs(&["fm"]), Group::Model, "How many factors a feature has."),
    setting("factor-l2", Number(0.0), Is("0"), Programs(&["fm"]), Group::Model, "λ2 of the factors."),
    setting("factor-spread", Number(0.0), Is("0.05"), Programs(&["fm"]), Group::Model, "The standard deviation of the initial factors."),
    setting("hidden", Text("NEURONS,…"), Is("256,128"), Programs(&["mlp"]), Group::Model, "How many neurons each hidden layer has; `none` for no hidden layer."),
    setting("inputs", Count("COUNT", 1, 1 << 24), Depends("for images, their pixels"), Programs(&["mlp"]), Group::Model, "How many features there are, with keys from 0."),
    setting("updater", Word(&UPDATERS), Depends("ftrl, mlp adam"), Model, Group::Optimisation, "The rule by which servers apply gradients."),
    setting("rate", Number(0.0), Depends("adam 0.01, others 0.1, for mlp a tenth"), BY_MINIBATCHES, Group::Optimisation, "The learning rate."),
    setting("decay", Word(&DECAYS), Is("none"), Updaters(&["adagrad", "adam", "sgd"]), Group::Optimisation, "How the rate falls from epoch to epoch; `linear`: by equal steps to 0 after the last epoch."),
    setting("beta", Number(0.0), Is("1"), Updaters(&["ftrl"]), Group::Optimisation, "β of FTRL: larger values make the first steps smaller."),
    setting("l1", Number(0.0), Is("0"), Updaters(&["ftrl", "proximal"]), Group::Optimisation, "λ1 of mean loss + λ1 |w| + λ2 w²/2."),
    setting("l2", Number(0.0), Is("0"), Model, Group::Optimisation, "λ2 of mean loss + λ1 |w| + λ2 w²/2."),
    setting("epochs", Count("COUNT", 1, u32::MAX as u64), Is("1"), Model, Group::Optimisation, "How many passes over the input to make."),
    setting("minibatch", Count("ROWS", 1, 1 << 30), Is("500"), BY_MINIBATCHES, Group::Optimisation, "How many rows a worker computes a gradient from."),
    setting("per-clock", Count("COUNT", 1, 1 << 16), Is("4"), BY_MINIBATCHES, Group::Optimisation, "How many minibatches a worker of average speed puts into a clock, in a run with --replicas; faster workers put more. In other runs a clock is one minibatch."),
    setting("shuffle", CountOr("MINIBATCHES", OFF), Is("64"), BY_MINIBATCHES, Group::Optimisation, "Shuffle rows within this many minibatches; `off` keeps the files' order."),
    setting("seed", Count("NUMBER", 0, ANY), Is("1"), Model, Group::Optimisation, "Seed of the assignment of rows to workers, of their order, and of initial factors."),
    setting("blocks", Count("COUNT", 1, 1 << 20), Is("64"), Updaters(&["proximal"]), Group::Optimisation, "How many blocks to cut the features into; a clock updates one block."),
    setting("tolerance", Number(0.0), Is("0.001"), Updaters(&["proximal"]), Group::Optimisation, "Stop when the objective is within this fraction of the optimum."),
    setting("workers", Count("COUNT", 1, 256), Is("1"), RunSize, Group::Cluster, "How many workers train."),
    setting("servers", Count("COUNT", 1, 256), Is("1"), RunSize, Group::Cluster, "How many servers hold the weights."),
    setting("slack", CountOr("CLOCKS", ASYNC), Is("0"), Model, Group::Cluster, "How many clocks a worker may be ahead of the slowest; `async` sets no bound within an epoch."),
    setting("codec", Texts("CODEC"), Absent, Model, Group::Cluster, "Codecs for messages both ways, in order, as in `keys,bf16,lz4`; `auto` goes by the measured link."),
    setting("codec-down", Texts("CODEC"), Depends("as upward"), Model, Group::Cluster, "Codecs for what workers read, if others than upward; `none` for no codec."),
    setting("bandwidth", Text("RATE"), Absent, Model, Group::Cluster, "The most that each worker sends, as in 100mbit; the largest changes are sent first."),
    setting("out", Text("MODEL"), Absent, Report, Group::Output, "Write the model to this file (safetensors)."),
    setting("plot", Text("SVG"), Absent, Report, Group::Output, "Draw the loss over time into this file."),
    setting("metrics", Text("ADDRESS:PORT"), Absent, Report, Group::Output, "Serve metrics for Prometheus at this address; in a run of processes, at this port + the worker's number."),
    setting("metrics-host", Texts("NAME"), Absent, Report, Group::Output, "Names, beside this host's, by which readers of the metrics call this process."),
    setting("record", Text("FOLDER"), Absent, Process, Group::Output, "Record all inputs and messages of servers and workers into this folder, for `slackwater replay`."),
    setting("json", Switch, Is("false"), Report, Group::Output, "Print every figure as JSON, rather than a table."),
];

/// The setting of that name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

impl Setting {
    /// Whether a model keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.of, Report | Process)
    }

    /// If only some programs, formats or updaters have the setting: which of the three kinds, and
    /// their names.
    pub(crate) fn owners(&self) -> Option<(&'static str, &'static [&'static str])> {
        match self.of {
            Programs(these) => Some(("program", these)),
            Formats(these) => Some(("format", these)),
            Updaters(these) => Some(("updater", these)),
            Model | RunSize | Report | Process => None,
        }
    }

    /// Its default, in words.
    pub(crate) fn default_in_words(&self) -> &'static str {
        match self.default {
            Absent => "",
            Is(words) | Depends(words) => words,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of settings in docs/training.md.
    fn table() -> String {
        let mut table =
            "| setting | what it can be | by default | what it says |\n| --- | --- | --- | --- |\n".to_owned();
        for Setting { name, kind, of, help, .. } in &SETTINGS {
            let kind = match kind {
                Switch => "true or false".to_owned(),
                Text(name) => (*name).to_owned(),
                Texts(name) => format!("{name} …"),
                Word(words) => words.join(", "),
                Count(_, least, ANY) => format!("a whole number from {least}"),
                Count(_, least, most) => format!("a whole number from {least} to {most}"),
                CountOr(_, word) => format!("a whole number or `{word}`"),
                Number(least) => format!("a number from {least}"),
            };
            let whose = match of {
                Programs(these) | Formats(these) | Updaters(these) => format!(" ({} only)", these.join(", ")),
                Model | RunSize | Report | Process => String::new(),
            };
            let default = find(name).map_or("", Setting::default_in_words);
            table += &format!("| `{name}` | {kind} | {default} | {}{whose} |\n", help.replace('|', "\\|"));
        }
        table
    }

    #[test]
    fn the_documentation_lists_every_setting_as_it_is() {
        let documentation = include_str!("../../../../docs/training.md");
        assert!(documentation.contains(&table()), "docs/training.md should have this table:\n{}", table());
    }

    #[test]
    fn defaults_are_valid_and_names_are_unique() {
        for (place, setting) in SETTINGS.iter().enumerate() {
            if let Is(words) = setting.default {
                assert!(setting.kind.read(words).is_ok(), "{}", setting.name);
            }
            assert!(SETTINGS[..place].iter().all(|other| other.name != setting.name), "{}", setting.name);
        }
    }
}
