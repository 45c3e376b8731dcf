//! Opens input files by the settings: their format, columns and labels.

use super::setting::{FORMATS, Of};
use super::settings::{Origin, Settings};
use super::value::Value;
use anyhow::{Context, bail};
use data::{ColumnRule, ColumnRules, Csv, CsvHeader, DataReader, FeatureHash, Format, Labels, Shuffle};
use std::path::Path;

/// File name endings and their formats.
const ENDINGS: [(&str, &str); 11] = [
    ("libsvm", "libsvm"),
    ("svm", "libsvm"),
    ("svmlight", "libsvm"),
    ("libffm", "libffm"),
    ("ffm", "libffm"),
    ("vw", "vw"),
    ("criteo", "criteo"),
    ("csv", "csv"),
    ("parquet", "parquet"),
    ("pq", "parquet"),
    ("idx3-ubyte", "idx"),
];

/// Opens the training files, and fills in the settings that were left open, by the files' names and
/// contents. Other files can then be read in the same way.
pub(crate) fn open_training_data(settings: &mut Settings) -> anyhow::Result<DataReader> {
    let files = settings.texts("data").to_vec();
    if files.is_empty() {
        bail!("there is nothing to learn from: name files with --data");
    }
    settle_format(settings, &files)?;
    settings.refuse_others("format")?;
    settle_images(settings, &files)?;
    let epochs = settings.count("epochs").unwrap_or(1) as u32;
    let shuffle = match settings.get("shuffle") {
        Some(Value::Count(minibatches)) => Some(Shuffle { minibatches: *minibatches as usize }),
        _ => None,
    };
    let reader =
        DataReader::open(&files, data::ReaderSettings { epochs, shuffle, ..reading(settings, labels(settings)?)? })?;
    if let Some(columns) = reader.columns()? {
        for (name, rule) in [
            ("numeric", ColumnRule::Numeric),
            ("categorical", ColumnRule::Categorical),
            ("ignore", ColumnRule::Ignored),
        ] {
            let of_rule = columns.named.iter().filter(|(_, its)| *its == rule).map(|(column, _)| column.clone());
            let of_rule: Vec<String> = of_rule.collect();
            if of_rule != settings.texts(name) {
                settings.set(name, Value::Texts(of_rule), Origin::Data);
            }
        }
    }
    Ok(reader)
}

/// Fills in the numbers of inputs and classes from image files.
fn settle_images(settings: &mut Settings, files: &[String]) -> anyhow::Result<()> {
    let program = settings.text("program").unwrap_or_default().to_owned();
    let unknown = |setting: &&str| {
        let of = super::setting::find(setting).map(|setting| setting.of);
        let is_its = matches!(of, Some(Of::Programs(programs)) if programs.contains(&program.as_str()));
        is_its && settings.get(setting).is_none()
    };
    let unknown: Vec<&str> = ["inputs", "classes"].into_iter().filter(unknown).collect();
    if settings.text("format") != Some("idx") || unknown.is_empty() {
        return Ok(());
    }
    let mut pixels = 0;
    let mut labels = 0;
    for file in data::files(files)? {
        let shape = data::image_shape(&file)?;
        pixels = shape.pixels.max(pixels);
        labels = shape.largest_label.max(labels);
    }
    for setting in unknown {
        let first = settings.count("first-class").unwrap_or(0);
        let count = if setting == "inputs" { pixels } else { (u64::from(labels) + 1).saturating_sub(first).max(2) };
        settings.set(setting, Value::Count(count), Origin::Data);
    }
    Ok(())
}

/// Opens other files as the training data was read, for one pass in order. Columns that the
/// training data did not have are ignored.
pub(crate) fn open_alike(settings: &Settings, files: &[String], labels: Labels) -> anyhow::Result<DataReader> {
    let mut reading = reading(settings, labels)?;
    if let Format::Csv(Csv { columns, .. }) | Format::Parquet(columns) = &mut reading.format {
        columns.others = ColumnRule::Ignored;
        // Columns to ignore may be missing.
        columns.named.retain(|(_, rule)| *rule != ColumnRule::Ignored);
    }
    Ok(DataReader::open(files, reading)?)
}

/// The kind of labels that the program needs.
pub(crate) fn labels(settings: &Settings) -> anyhow::Result<Labels> {
    Ok(match settings.text("program") {
        Some("linear") => Labels::Real,
        Some(program @ ("softmax" | "mlp")) => {
            let needed = || format!("{program} needs to know how many --classes there are: give their number");
            let count = settings.count("classes").with_context(needed)?;
            Labels::Classes { first: settings.count("first-class").unwrap_or(0) as u32, count: count as u32 }
        }
        _ => Labels::Binary,
    })
}

/// Replaces the format `auto` by the one that the files' names tell.
fn settle_format(settings: &mut Settings, files: &[String]) -> anyhow::Result<()> {
    if settings.text("format") != Some(FORMATS[0]) {
        return Ok(());
    }
    let with_columns = settings.text("label").is_some();
    let mut found: Option<(&'static str, String)> = None;
    for path in data::files(files)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let format =
            guess(&name, with_columns).with_context(|| format!("cannot tell the format of {}", path.display()))?;
        match &found {
            Some((other, other_name)) if *other != format => {
                bail!("{other_name} looks like {other} and {name} like {format}: all files must have one format")
            }
            _ => found = Some((format, name)),
        }
    }
    if let Some((format, name)) = found {
        settings.set("format", Value::Text(format.to_owned()), Origin::Data);
        if settings.get("separator").is_none() && unpacked(&name).ends_with(".tsv") {
            settings.set("separator", Value::Text("tab".to_owned()), Origin::Data);
        }
    }
    Ok(())
}

fn unpacked(name: &str) -> &str {
    name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name)
}

/// The format that a file's name tells. A `.tsv` file has named columns if --label is given.
fn guess(name: &str, with_columns: bool) -> anyhow::Result<&'static str> {
    let ending = Path::new(unpacked(name)).extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let formats = FORMATS[1..].join(", ");
    let images = unpacked(name).ends_with("-idx3-ubyte");
    match ENDINGS.iter().find(|(known, _)| *known == ending || images && *known == "idx3-ubyte") {
        Some((_, format)) => Ok(format),
        None if ending == "tsv" && with_columns => Ok("csv"),
        None if ending == "tsv" => bail!("give --format criteo, or name the labels' column with --label"),
        None => bail!("its name has no known ending; give --format, one of {formats}"),
    }
}

/// The settings of a reader for one epoch in the files' order.
fn reading(settings: &Settings, labels: Labels) -> anyhow::Result<data::ReaderSettings> {
    let bits = settings.count("hash-bits").unwrap_or(64) as u32;
    let format = match settings.text("format") {
        Some("libffm") => Format::LibFfm,
        Some("vw") => Format::VowpalWabbit,
        Some("criteo") => Format::Criteo,
        Some("csv") => Format::Csv(Csv {
            separator: separator(settings)?,
            header: match settings.texts("names") {
                [] => CsvHeader::FirstLine,
                names => CsvHeader::Names(names.to_vec()),
            },
            columns: columns(settings)?,
        }),
        Some("parquet") => Format::Parquet(columns(settings)?),
        Some("idx") => Format::Idx,
        _ => Format::LibSvm,
    };
    Ok(data::ReaderSettings {
        hash: FeatureHash::new(0, bits).with_context(|| format!("a key cannot have {bits} bits"))?,
        minibatch_rows: settings.count("minibatch").unwrap_or(500) as usize,
        skip_bad: settings.count("skip-bad").unwrap_or(0),
        seed: settings.count("seed").unwrap_or(0),
        ..data::ReaderSettings::new(format, labels)
    })
}

fn separator(settings: &Settings) -> anyhow::Result<u8> {
    match settings.text("separator").map(str::as_bytes) {
        None => Ok(b','),
        Some(b"tab" | b"\\t") => Ok(b'\t'),
        Some([character]) if !b"\"\r\n".contains(character) => Ok(*character),
        Some(other) => bail!("`{}` cannot separate cells: give one character", String::from_utf8_lossy(other)),
    }
}

fn columns(settings: &Settings) -> anyhow::Result<ColumnRules> {
    let label = settings.text("label").context("name the column that holds the labels with --label")?;
    let mut columns = ColumnRules::new(label);
    for (name, rule) in
        [("numeric", ColumnRule::Numeric), ("categorical", ColumnRule::Categorical), ("ignore", ColumnRule::Ignored)]
    {
        for column in settings.texts(name) {
            if columns.named.iter().any(|(named, _)| named == column) {
                bail!("column `{column}` is named twice among numeric, categorical and ignore");
            }
            columns.named.push((column.clone(), rule));
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guess_knows_formats_by_file_names() {
        for (name, with_columns, expected) in [
            ("a.libsvm", false, "libsvm"),
            ("a.b.SVM.gz", false, "libsvm"),
            ("a.ffm.zst", false, "libffm"),
            ("a.vw", false, "vw"),
            ("day_0.criteo.gz", false, "criteo"),
            ("a.csv.gz", true, "csv"),
            ("a.tsv.gz", true, "csv"),
            ("a.parquet", true, "parquet"),
        ] {
            assert_eq!(guess(name, with_columns).unwrap(), expected, "{name}");
        }
        for name in ["a9a.gz", "a9a", "a9a.t", "gz", "csv", "a.txt", ".gz"] {
            assert!(guess(name, true).unwrap_err().to_string().contains("one of libsvm, libffm"), "{name}");
        }
        assert!(guess("a.tsv", false).unwrap_err().to_string().contains("--label"));
    }
}
