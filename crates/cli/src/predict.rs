//! `predict`: predicts the rows of files with a model, and says how good the predictions are where
//! the rows have labels.

use crate::train::{self, Settings};
use anyhow::{Context, bail};
use apps::figures::Fit;
use apps::logistic::sigmoid;
use apps::model::Model;
use apps::program::Task;
use data::{DataError, DataReader, Labels, Minibatch};
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// The settings of `predict`.
#[derive(clap::Args)]
pub(crate) struct PredictOptions {
    /// The model that `train` wrote.
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Files to predict, or patterns of files, in the format of the training data.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    data: Vec<String>,
    /// Write the predictions to this file, one a line: a probability, a number, or for softmax and
    /// mlp a class and its probability. The default is standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Read the rows as rows without labels. By default, the first row decides.
    #[arg(long)]
    no_labels: bool,
    /// Print the figures as JSON on standard output. Predictions are then written only with --out.
    #[arg(long)]
    json: bool,
}

/// The command `predict`.
pub(crate) fn run(options: &PredictOptions) -> anyhow::Result<()> {
    let model = Model::read(&options.model)?;
    let shown = || options.model.display().to_string();
    let settings = Settings::of_model(&model.settings).with_context(shown)?;
    let method = train::method(&settings, &slackwater::policy::Codecs::default()).with_context(shown)?;
    let needed = [&data::files(&options.data)?[..], std::slice::from_ref(&options.model)].concat();
    train::check_output("out", options.out.as_deref(), &needed)?;
    let (reader, labelled) = open(&settings, options)?;
    let mut out: Option<Box<dyn Write>> = match &options.out {
        Some(path) => {
            let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Some(Box::new(BufWriter::new(file)))
        }
        None if options.json => None,
        None => Some(Box::new(BufWriter::new(std::io::stdout().lock()))),
    };
    let mut predictor = method.predictor(&model, !settings.switch("no-bias"))?;
    let task = method.task();
    let first_class = settings.count("first-class").unwrap_or(0);
    let mut fit = Fit::new(task);
    let mut rows = 0u64;
    let mut predictions = Vec::new();
    let mut batches = reader.batches()?;
    for batch in &mut batches {
        let batch = batch?;
        predictions.clear();
        predictor.predict(&batch, &mut predictions);
        rows += batch.rows() as u64;
        for (row, prediction) in batch.iter().zip(predictions.chunks_exact(task.outputs())) {
            if let Some(label) = row.label {
                fit.add(label, row.importance, prediction);
            }
            if let Some(out) = &mut out {
                write_prediction(out, task, first_class, prediction)?;
            }
        }
    }
    out.as_mut().map_or(Ok(()), |out| out.flush())?;
    if rows > 0 && predictor.known_features() == 0 {
        eprintln!(
            "warning: no feature of these rows is in the model, so all predictions are the same: is this the right file?"
        );
    }
    drop(out);
    let quality = fit.quality().filter(|_| labelled);
    let bad_rows = batches.progress().bad_rows;
    if options.json {
        let figures = quality.as_ref().map(train::quality_json);
        writeln!(std::io::stdout(), "{}", json!({ "rows": rows, "bad_rows": bad_rows, "figures": figures }))?;
    } else {
        let figures = quality.as_ref().map_or("no labels, so no figures".to_owned(), train::quality_line);
        let skipped = if bad_rows > 0 { format!(", {bad_rows} malformed lines skipped") } else { String::new() };
        let line = format!("{rows} rows{skipped}: {figures}");
        // Standard output holds the predictions alone.
        match options.out {
            Some(_) => writeln!(std::io::stdout(), "{line}")?,
            None => eprintln!("{line}"),
        }
    }
    Ok(())
}

fn write_prediction(out: &mut impl Write, task: Task, first_class: u64, prediction: &[f32]) -> std::io::Result<()> {
    match task {
        Task::Binary => writeln!(out, "{}", sigmoid(f64::from(prediction[0])) as f32),
        Task::Regression => writeln!(out, "{}", prediction[0]),
        Task::Classes { .. } => {
            let likeliest = (0..prediction.len()).max_by(|a, b| prediction[*a].total_cmp(&prediction[*b]));
            let class = likeliest.unwrap_or_default();
            writeln!(out, "{} {}", class as u64 + first_class, prediction[class])
        }
    }
}

/// Opens the files, with labels if their first row has one.
fn open(settings: &Settings, options: &PredictOptions) -> anyhow::Result<(DataReader, bool)> {
    let labels = train::labels(settings)?;
    let without = || train::open_alike(settings, &options.data, Labels::Ignored);
    if options.no_labels {
        return Ok((without()?, false));
    }
    let first_row = |reader: &DataReader| {
        let settings = data::ReaderSettings { minibatch_rows: 1, ..reader.settings().clone() };
        DataReader::open(&options.data, settings).and_then(|one| one.source().fill(&mut Minibatch::new()))
    };
    let with = train::open_alike(settings, &options.data, labels);
    match with.and_then(|reader| Ok(first_row(&reader).map(|_| reader)?)) {
        Ok(reader) => Ok((reader, true)),
        // The file has no label column: read it without labels.
        Err(error) if matches!(error.downcast_ref(), Some(DataError::Columns { .. })) => Ok((without()?, false)),
        // The user corrects a wrong label, or ignores labels on purpose.
        Err(error) if has_bad_label(&error) => bail!("{error:#}; if the rows have no labels, give --no-labels"),
        // If the row cannot be read without a label either, report the first error.
        Err(error) => match without() {
            Ok(reader) if first_row(&reader).is_ok() => Ok((reader, false)),
            _ => Err(error),
        },
    }
}

/// Whether the error is about a wrong label. If nothing or a feature stands in the label's place,
/// there is no label.
fn has_bad_label(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(DataError::Malformed { fault, .. }) => {
            let of_label = fault.expected.contains("label") || fault.expected.contains("class");
            of_label && fault.found != "nothing" && !fault.found.contains([':', '|'])
        }
        _ => false,
    }
}
