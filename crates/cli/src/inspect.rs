//! `inspect`: prints a model's settings and heaviest features, or the contents of a checkpoint.

use anyhow::{Context, bail};
use apps::gather::BIAS;
use apps::model::{Model, ModelTable};
use data::FeatureHash;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The settings of `inspect`.
#[derive(clap::Args)]
pub(crate) struct InspectOptions {
    /// A model that `train` wrote, a checkpoint's folder, or a location of checkpoints, of which
    /// the newest is shown.
    model: PathBuf,
    /// How many features to list, the heaviest first.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    top: usize,
    /// A file with one feature name a line, plain or compressed. For libsvm and libffm, line i
    /// names index i, or a line is `index TAB name`. For vw, a line is `namespace=name`. For the
    /// other formats, a line is `column` or `column=value`.
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
    /// Print JSON rather than text (of a model only).
    #[arg(long)]
    json: bool,
}

/// A feature and its weight.
struct Heavy {
    key: u64,
    /// The weight's index in a row of several numbers. `None` for a row of one number, and where
    /// `weight` is the length of the row.
    place: Option<usize>,
    weight: f32,
}

/// The command `inspect`.
pub(crate) fn run(options: &InspectOptions) -> anyhow::Result<()> {
    let location = options.model.to_string_lossy();
    if options.model.is_dir() || location.starts_with("s3://") {
        return Ok(write!(std::io::stdout().lock(), "{}", slackwater::cluster::describe_checkpoint(&location)?)?);
    }
    let model = Model::read(&options.model)?;
    let names = match &options.names {
        Some(path) => read_names(path, &model)?,
        None => HashMap::new(),
    };
    let name = |key: u64| match names.get(&key) {
        _ if key == BIAS => "(constant term)".to_owned(),
        Some(name) => name.clone(),
        None => key.to_string(),
    };
    let first_class = model.settings.get("first-class").and_then(|text| text.parse().ok()).unwrap_or(0usize);
    let mut out = std::io::stdout().lock();
    if options.json {
        let heavy = |heavy: Heavy| json!({ "feature": name(heavy.key), "key": heavy.key, "class": heavy.place.map(|place| place + first_class), "weight": heavy.weight });
        let table = |(table_name, table): (&String, &ModelTable)| {
            let heaviest: Vec<Value> = heaviest(table, table_name, options.top).into_iter().map(heavy).collect();
            (table_name.clone(), json!({ "features": table.keys.len(), "width": table.width, "heaviest": heaviest }))
        };
        let tables: serde_json::Map<String, Value> = model.tables.iter().map(table).collect();
        return Ok(writeln!(out, "{}", json!({ "settings": model.settings, "tables": tables }))?);
    }
    for (name, value) in &model.settings {
        writeln!(out, "{name:<20} {value}")?;
    }
    for (table_name, table) in &model.tables {
        let is_layer = table_name.starts_with("layer");
        let rows = if is_layer { "neurons" } else { "features" };
        writeln!(out, "\n{table_name}: {} {rows}, {} numbers each; the heaviest are", table.keys.len(), table.width)?;
        for heavy in heaviest(table, table_name, options.top) {
            let class = match heavy.place {
                Some(place) if is_layer && place + 1 == table.width => "  bias".to_owned(),
                Some(place) if is_layer => format!("  input {place}"),
                Some(place) => format!("  class {}", place + first_class),
                None => String::new(),
            };
            writeln!(out, "{:>12.5}  {}{class}", heavy.weight, name(heavy.key))?;
        }
    }
    Ok(())
}

/// The weights that are furthest from zero. A single factor has no meaning, so a feature's factors
/// count by their length as a vector.
fn heaviest(table: &ModelTable, name: &str, top: usize) -> Vec<Heavy> {
    let rows = table.keys.iter().zip(table.values.chunks_exact(table.width.max(1)));
    let mut heavy: Vec<Heavy> = match (name, table.width) {
        ("factors", _) => {
            let length = |row: &[f32]| row.iter().map(|number| number * number).sum::<f32>().sqrt();
            rows.map(|(key, row)| Heavy { key: *key, place: None, weight: length(row) }).collect()
        }
        (_, 1) => rows.map(|(key, row)| Heavy { key: *key, place: None, weight: row[0] }).collect(),
        _ => rows
            .flat_map(|(key, row)| {
                row.iter().enumerate().map(|(place, weight)| Heavy { key: *key, place: Some(place), weight: *weight })
            })
            .collect(),
    };
    heavy.sort_by(|a, b| b.weight.abs().total_cmp(&a.weight.abs()).then(a.key.cmp(&b.key)));
    heavy.truncate(top);
    heavy
}

fn read_names(path: &Path, model: &Model) -> anyhow::Result<HashMap<u64, String>> {
    let text = data::read_text(path)?;
    let format = model.settings.get("format").map_or("", String::as_str);
    let bits = model.settings.get("hash-bits").and_then(|bits| bits.parse().ok()).unwrap_or(64);
    let hash = FeatureHash::new(0, bits).with_context(|| format!("the model's keys cannot have {bits} bits"))?;
    let mut names = HashMap::new();
    for (line, number) in text.lines().zip(1u64..) {
        let (key, name) = match (format, line.split_once('\t'), line.split_once('=')) {
            ("libsvm" | "libffm", Some((index, name)), _) => match index.parse() {
                Ok(index) => (index, name),
                Err(_) => bail!("{}:{number}: expected `index TAB name`, found `{line}`", path.display()),
            },
            ("libsvm" | "libffm", None, _) => (number, line),
            (_, _, Some((space, name))) => (hash.key(hash.space(space.as_bytes()), name.as_bytes()), line),
            (_, _, None) => (hash.key_of_space(hash.space(line.as_bytes())), line),
        };
        names.insert(key, name.to_owned());
    }
    Ok(names)
}
