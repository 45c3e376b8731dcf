//! A training job, made from the settings: the program, its training method, and its data.

use super::reading::{labels, open_alike, open_training_data};
use super::settings::{Origin, Settings};
use super::value::Value;
use anyhow::{Context, bail};
use apps::fm::FactorisationMachine;
use apps::linear::Linear;
use apps::logistic::Logistic;
use apps::mlp::{Mlp, MlpPredictor};
use apps::model::{Model, ModelError};
use apps::predict::{Predict, Predictor};
use apps::program::{Program, Task};
use apps::proximal::Proximal;
use apps::softmax::Softmax;
use apps::train::{Rate, Rule, Training};
use data::DataReader;
use slackwater::cluster::Bandwidth;
use slackwater::policy::Codecs;
use slackwater::{Consistency, RunSize};

/// A training job.
pub(crate) struct Job {
    pub(crate) settings: Settings,
    pub(crate) method: Method,
    pub(crate) training: Training,
    pub(crate) data: DataReader,
    pub(crate) test: Option<DataReader>,
    /// The bound on what each worker sends in a second, if any.
    pub(crate) bandwidth: Option<Bandwidth>,
}

impl Job {
    /// Fills in what the settings leave open, and opens the files. `run` is the size of a run of
    /// processes.
    pub(crate) fn new(mut settings: Settings, run: Option<RunSize>) -> anyhow::Result<Self> {
        if let Some(RunSize { servers, workers }) = run {
            settings.set("servers", Value::Count(servers.into()), Origin::Run);
            settings.set("workers", Value::Count(workers.into()), Origin::Run);
        }
        let training = training(&settings)?;
        let data = open_training_data(&mut settings)?;
        let method = method(&settings, &training.codecs)?;
        let can_standardise =
            matches!(&method, Method::Minibatches(program) if program.name() != "fm") && training.bias;
        if settings.switch("standardise") && !can_standardise {
            bail!(
                "`standardise` is for logistic, linear and softmax, without --no-bias and without --updater=proximal"
            );
        }
        let test = match settings.texts("test") {
            [] => None,
            files => Some(open_alike(&settings, files, labels(&settings)?)?),
        };
        let bandwidth = bandwidth(&settings)?;
        Ok(Self { settings, method, training, data, test, bandwidth })
    }

    /// How many servers and workers there are.
    pub(crate) fn size(&self) -> RunSize {
        let count = |name| self.settings.count(name).unwrap_or(1) as u32;
        RunSize { servers: count("servers"), workers: count("workers") }
    }
}

/// The model and its training method.
pub(crate) enum Method {
    /// A program with sparse examples, trained by minibatches.
    Minibatches(Box<dyn Program>),
    /// The model of such a program, trained by proximal steps to the optimum.
    Proximal(Proximal, Box<dyn Program>),
    /// A multi-layer perceptron, trained by minibatches.
    Mlp(Mlp),
}

impl Method {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Minibatches(program) | Self::Proximal(_, program) => program.name(),
            Self::Mlp(_) => "mlp",
        }
    }

    pub(crate) fn task(&self) -> Task {
        match self {
            Self::Minibatches(program) | Self::Proximal(_, program) => program.task(),
            Self::Mlp(mlp) => Task::Classes { count: mlp.classes },
        }
    }

    /// A predictor for a model of this method. `bias` says whether it has a constant term.
    pub(crate) fn predictor<'a>(&'a self, model: &'a Model, bias: bool) -> Result<Box<dyn Predict + 'a>, ModelError> {
        Ok(match self {
            Self::Minibatches(program) | Self::Proximal(_, program) => {
                Box::new(Predictor::new(&**program, model, bias)?)
            }
            Self::Mlp(mlp) => Box::new(MlpPredictor::new(mlp, model)?),
        })
    }
}

/// The method that the settings choose.
pub(crate) fn method(settings: &Settings, codecs: &Codecs) -> anyhow::Result<Method> {
    let number = |name| settings.number(name).unwrap_or(0.0);
    let count = |name| settings.count(name).with_context(|| format!("say how many --{name} there are"));
    let l2 = number("l2");
    let seed = settings.count("seed").unwrap_or(0);
    let proximal = proximal(settings, codecs)?;
    let program: Box<dyn Program> = match settings.text("program") {
        Some("logistic") => Box::new(Logistic { l2 }),
        Some("linear") => Box::new(Linear { l2 }),
        Some("softmax") => Box::new(Softmax { classes: count("classes")? as usize, l2 }),
        Some("fm") => Box::new(FactorisationMachine {
            factors: count("factors")? as usize,
            seed,
            spread: number("factor-spread"),
            l2,
            factor_l2: number("factor-l2"),
        }),
        Some("mlp") => {
            if settings.text("updater") == Some("ftrl") || settings.switch("no-bias") {
                bail!("mlp cannot use ftrl, whose weights start from zero, or --no-bias: use adam, adagrad or sgd");
            }
            let hidden = hidden(settings.text("hidden").unwrap_or("none"))?;
            let inputs = count("inputs")? as usize;
            let classes = count("classes")? as usize;
            return Ok(Method::Mlp(Mlp { inputs, hidden, classes, seed, l2 }));
        }
        Some(other) => bail!("there is no program `{other}`"),
        None => bail!("the settings name no `program`"),
    };
    Ok(match proximal {
        Some(proximal) => Method::Proximal(proximal, program),
        None => Method::Minibatches(program),
    })
}

/// Parses the numbers of neurons of the hidden layers, with commas between them.
fn hidden(text: &str) -> anyhow::Result<Vec<usize>> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let neurons = |word: &str| match word.trim().parse() {
        Ok(neurons) if (1..=1 << 20).contains(&neurons) => Ok(neurons),
        _ => bail!("`{word}` in --hidden is not a number of neurons from 1 to {}; `256,128` are two layers", 1 << 20),
    };
    text.split(',').map(neurons).collect()
}

/// The proximal method, if the settings choose it.
fn proximal(settings: &Settings, codecs: &Codecs) -> anyhow::Result<Option<Proximal>> {
    if settings.text("updater") != Some("proximal") {
        return Ok(None);
    }
    if settings.text("program") != Some("logistic") {
        bail!("proximal steps are for logistic; use ftrl, which makes weights exactly zero too");
    }
    if settings.number("l2").unwrap_or(0.0) > 0.0 {
        bail!("proximal steps are for `l1` alone; use ftrl for `l2`");
    }
    let l1 = settings.number("l1").unwrap_or(0.0);
    if l1 <= 0.0 {
        bail!("proximal steps need `l1`: give --l1, or use ftrl");
    }
    Ok(Some(Proximal {
        l1,
        blocks: settings.count("blocks").unwrap_or(64) as usize,
        consistency: consistency(settings),
        passes: settings.count("epochs").unwrap_or(1) as u32,
        tolerance: settings.number("tolerance").unwrap_or(0.0),
        codecs: codecs.clone(),
    }))
}

fn training(settings: &Settings) -> anyhow::Result<Training> {
    let updater = settings.text("updater").unwrap_or_default();
    let rate = settings.number("rate").unwrap_or_default();
    if rate == 0.0 && updater != "proximal" {
        bail!("a `rate` of 0 learns nothing");
    }
    let beta = settings.number("beta").unwrap_or(1.0);
    let l1 = settings.number("l1").unwrap_or(0.0);
    let falls = settings.text("decay") == Some("linear");
    if falls && settings.count("epochs") == Some(1) {
        bail!("`decay` lowers the rate from epoch to epoch, and there is only one: set more `epochs`, or no `decay`");
    }
    let by_epoch = if falls { Rate::Falling(rate) } else { Rate::Constant(rate) };
    let rule = match updater {
        "ftrl" => Rule::Ftrl { rate, beta },
        "adagrad" => Rule::Adagrad { rate: by_epoch },
        "adam" => Rule::Adam { rate: by_epoch },
        "sgd" => Rule::Sgd { rate: by_epoch },
        // Proximal training has its own steps and does not use this rule.
        "proximal" => Rule::Sgd { rate: by_epoch },
        other => bail!("there is no updater `{other}`"),
    };
    let bias = !settings.switch("no-bias") && updater != "proximal";
    let codecs = codecs(settings, updater)?;
    Ok(Training { rule, l1, consistency: consistency(settings), bias, codecs })
}

/// The codecs of both directions. A text may list several, with commas between them.
fn codecs(settings: &Settings, updater: &str) -> anyhow::Result<Codecs> {
    let names = |setting| -> Vec<String> {
        let names = settings.texts(setting).iter().flat_map(|names| names.split(','));
        names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty() && name != "none").collect()
    };
    let both = names("codec");
    let down = names("codec-down");
    let says_down = !settings.texts("codec-down").is_empty();
    let lossy_down = slackwater::policy::is_lossy(if says_down { &down } else { &both });
    if lossy_down && (updater == "ftrl" || consistency(settings).bound().is_none()) {
        let why = if updater == "ftrl" {
            "ftrl's weights change with every example"
        } else {
            "asynchronous workers do not wait for clocks"
        };
        if says_down {
            bail!("lossy codecs cannot encode what workers read, because {why}; leave them out of `codec-down`");
        }
        eprintln!("note: lossy codecs encode only what workers push, not what they read, because {why}");
    }
    let codecs = Codecs::both(both);
    Ok(if says_down { codecs.down(down) } else { codecs })
}

/// The bound on what each worker sends in a second, if any.
pub(crate) fn bandwidth(settings: &Settings) -> anyhow::Result<Option<Bandwidth>> {
    settings.text("bandwidth").map(|rate| rate.parse().context("--bandwidth")).transpose()
}

fn consistency(settings: &Settings) -> Consistency {
    match settings.get("slack") {
        Some(Value::Count(slack)) => Consistency::slack(*slack),
        _ => Consistency::Unbounded,
    }
}
