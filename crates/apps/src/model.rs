//! Models: the tables that a program has learnt, without rows that are all zeros. A model is a file
//! in the safetensors format, with the settings of the training in its header. The same model gives
//! the same file, byte for byte.

use crate::output::write_whole;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use slackwater::Table;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The tables that a program has learnt, and its settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// The settings of the training, by name.
    pub settings: BTreeMap<String, String>,
    /// The tables, by name.
    pub tables: BTreeMap<String, ModelTable>,
}

/// One table of a model. Keys that it lacks have weights of zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelTable {
    /// The keys, rising.
    pub keys: Vec<u64>,
    /// How many numbers a key has.
    pub width: usize,
    /// The rows, one after another.
    pub values: Vec<f32>,
}

/// Why a model cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// There is no such file.
    #[error("there is no model {path}: no such file")]
    NoFile {
        /// The file's path.
        path: String,
    },
    /// The file cannot be read.
    #[error("the model {path} cannot be read: {error}")]
    Unreadable {
        /// The file's path.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file cannot be written.
    #[error("the model {path} cannot be written: {error}")]
    NotWritten {
        /// The file's path.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file is not a model that this program wrote.
    #[error("{path} is not a model that `slackwater train` wrote: {problem}")]
    NotAModel {
        /// The file's path.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model lacks a table of the program, or the table has another width.
    #[error(
        "the model has no table '{table}' of the width that the program {program} needs: another program or other settings made it"
    )]
    NoTable {
        /// The table's name.
        table: String,
        /// The program that needs it.
        program: String,
    },
}

impl ModelTable {
    /// Reads a whole table of the cluster, without rows that are all zeros.
    pub fn pull(table: &Table<f32>) -> Result<Self, slackwater::Error> {
        let rows = table.scan(..)?.wait()?;
        let width = table.spec().width as usize;
        let mut order: Vec<usize> = (0..rows.ids().len()).collect();
        order.sort_unstable_by_key(|row| rows.ids()[*row]);
        let mut pulled = Self { keys: Vec::new(), width, values: Vec::new() };
        for row in order {
            let values = &rows.values()[row * width..][..width];
            if values.iter().any(|value| *value != 0.0) {
                pulled.keys.push(rows.ids()[row]);
                pulled.values.extend_from_slice(values);
            }
        }
        Ok(pulled)
    }

    /// The place of each key among the rows.
    #[must_use]
    pub fn index(&self) -> HashMap<u64, u32> {
        self.keys.iter().copied().zip(0..).collect()
    }
}

impl Model {
    /// Writes the file, so that it is complete or as it was before.
    pub fn write(&self, path: &Path) -> Result<(), ModelError> {
        let file = |error| ModelError::NotWritten { path: path.display().to_string(), error };
        let mut bytes: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, table) in &self.tables {
            let keys = table.keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            bytes.push((format!("{name}.keys"), Dtype::U64, vec![table.keys.len()], keys));
            let values = table.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            bytes.push((name.clone(), Dtype::F32, vec![table.keys.len(), table.width], values));
        }
        let views = bytes.iter().map(|(name, dtype, shape, bytes)| {
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        let views: Vec<_> = views.collect::<Result<_, _>>().map_err(|error| file(std::io::Error::other(error)))?;
        let whole = safetensors::serialize(views, None).map_err(|error| file(std::io::Error::other(error)))?;
        let whole = with_settings(&whole, &self.settings).map_err(file)?;
        write_whole(path, &whole).map_err(file)
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let shown = || path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ModelError::NoFile { path: shown() },
            _ => ModelError::Unreadable { path: shown(), error },
        })?;
        Self::from_bytes(&bytes).map_err(|problem| ModelError::NotAModel { path: shown(), problem })
    }

    /// Reads a model from a file's bytes. The error says what is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let settings = header.metadata().clone().unwrap_or_default().into_iter().collect();
        let mut tables = BTreeMap::new();
        for (name, keys) in tensors.iter() {
            let Some(name) = name.strip_suffix(".keys") else { continue };
            let values = tensors.tensor(name).map_err(|error| error.to_string())?;
            let ([rows], [count, width]) = (keys.shape(), values.shape()) else {
                return Err(format!("table '{name}' is not a list of keys with a row for each"));
            };
            if keys.dtype() != Dtype::U64 || values.dtype() != Dtype::F32 || rows != count {
                return Err(format!("table '{name}' is not u64 keys with a row of f32 each"));
            }
            let numbers =
                |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let ids: Vec<u64> = keys
                .data()
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect();
            if *width == 0 || ids.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(format!("table '{name}' has rows without numbers, or keys that do not rise"));
            }
            tables.insert(name.to_owned(), ModelTable { keys: ids, width: *width, values: numbers(values.data()) });
        }
        if tables.is_empty() {
            return Err("it has no table of keys and rows".to_owned());
        }
        Ok(Self { settings, tables })
    }
}

/// Puts the settings into the header of a file that has none, in alphabetical order. The library
/// would write them in any order, so the same model would not give the same file.
///
/// A file is: the length of its header in eight bytes, lowest first; the header, a JSON object
/// padded with blanks to a multiple of eight; and the tensors.
fn with_settings(file: &[u8], settings: &BTreeMap<String, String>) -> std::io::Result<Vec<u8>> {
    let cut_off = || std::io::Error::other("the file was encoded without a header");
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(cut_off)?;
    let (header, tensors) = rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or_else(cut_off)?;
    let entries = header.trim_ascii().strip_prefix(b"{").ok_or_else(cut_off)?;
    let mut header = b"{\"__metadata__\":".to_vec();
    serde_json::to_writer(&mut header, settings)?;
    header.extend_from_slice(if entries == b"}" { b"" } else { b"," });
    header.extend_from_slice(entries);
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes()[..], &header, tensors].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_model_is_read_back_and_a_truncated_one_rejected() {
        let path = std::env::temp_dir().join(format!("slackwater-model-{}.safetensors", std::process::id()));
        let table = ModelTable { keys: vec![3, u64::MAX], width: 2, values: vec![1.0, -2.0, 0.5, 0.0] };
        let model = Model {
            settings: ["program", "a \"quoted\" name", "seed", "é", ""]
                .map(|name| (name.to_owned(), name.repeat(2)))
                .into(),
            tables: BTreeMap::from([("weights".to_owned(), table.clone()), ("factors".to_owned(), table)]),
        };
        model.write(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        assert_eq!(Model::read(&path).unwrap(), model);
        for _ in 0..8 {
            model.write(&path).unwrap();
            assert!(std::fs::read(&path).unwrap() == first, "the same model is the same file");
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 7, 8, 40, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(Model::read(&path), Err(ModelError::NotAModel { .. })), "cut at {cut}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Model::read(&path), Err(ModelError::NoFile { .. })));
        assert!(matches!(Model::read(&std::env::temp_dir()), Err(ModelError::Unreadable { .. })));
    }
}
