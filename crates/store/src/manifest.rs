//! The manifest: lists a checkpoint's tables and files, its clock, and the data leases that are
//! done. It is written last, so a checkpoint exists exactly when its manifest does.
//!
//! The file is JSON. Its last field is the checksum of everything else in the file, so the reader
//! rejects a manifest that was truncated or changed.

use crate::{Problem, shard};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::HashSet, fmt};
use types::NumberType;
use xxhash_rust::xxh3::Xxh3;

/// The version of the format that this release writes and reads.
pub(crate) const VERSION: u64 = 2;
/// The manifest's name in its checkpoint's folder.
pub(crate) const FILE: &str = "manifest.json";
const FORMAT: &str = "slackwater checkpoint";
/// The bytes that follow the checksum's digits.
const END: &[u8] = b"\"\n}\n";

/// The files of a checkpoint, and how far its run was.
///
/// ```
/// use store::Manifest;
///
/// let manifest = Manifest { job: "clicks".into(), clock: 40, shards: 8, ..Manifest::default() };
/// assert_eq!(Manifest::from_bytes(&manifest.to_bytes())?, manifest);
/// # Ok::<(), store::Problem>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The job that it belongs to. A store holds checkpoints of one job.
    pub job: String,
    /// The clock at which every shard was copied.
    pub clock: u64,
    /// How many shards each table has.
    pub shards: u32,
    /// The tables, in the order in which to create them again.
    pub tables: Vec<TableEntry>,
    /// Which data leases are done, in a form that only the caller reads.
    pub leases: Value,
    /// The files of the codecs' residuals.
    pub residuals: Vec<ResidualsEntry>,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// Its name.
    pub name: String,
    /// Its spec, in a form that only the caller reads.
    pub spec: Value,
    /// The type of its numbers.
    #[serde(with = "number")]
    pub number: NumberType,
    /// How many numbers a row has, its updater's state included.
    pub stride: u64,
    /// Its shards, 0 to P − 1, in order.
    pub shards: Vec<ShardEntry>,
}

/// A shard of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// Its index in the table: 0 to P − 1.
    pub index: u32,
    /// How many rows it has.
    pub rows: u64,
    /// Its file.
    pub file: FileEntry,
}

/// Residuals of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualsEntry {
    /// The worker's name.
    pub worker: String,
    /// Their file.
    pub file: FileEntry,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The checksum of its bytes.
    pub checksum: Checksum,
}

/// The checksum of a file: 64-bit XXH3. It shows accidental damage, but no deliberate forgery.
///
/// ```
/// use store::Checksum;
///
/// let checksum = Checksum(0xfeed);
/// assert_eq!(checksum.to_string(), "000000000000feed");
/// assert_eq!(Checksum::parse("000000000000feed"), Some(checksum));
/// assert_eq!(Checksum::parse("feed"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Checksum(pub u64);

impl Manifest {
    /// The manifest as the bytes of its file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut document = Map::new();
        document.insert("format".into(), FORMAT.into());
        document.insert("version".into(), VERSION.into());
        document.insert("release".into(), env!("CARGO_PKG_VERSION").into());
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            document.extend(fields);
        }
        document.insert("checksum".into(), Checksum(0).to_string().into());
        let mut bytes = format!("{:#}\n", Value::Object(document)).into_bytes();
        let digits = bytes.len() - END.len() - Checksum::DIGITS;
        let checksum = checksum_around(&bytes, digits).to_string();
        bytes[digits..digits + Checksum::DIGITS].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// Parses the file, and checks its checksum and that its entries are consistent.
    ///
    /// # Errors
    /// [`Problem::Manifest`] or [`Problem::OtherVersion`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        let damaged = |problem: &str| Problem::Manifest { problem: problem.to_owned() };
        let whole = is_whole(bytes);
        let mut document = match serde_json::from_slice(bytes) {
            Ok(Value::Object(document)) => document,
            Ok(_) => return Err(damaged("it is not a JSON object")),
            Err(error) if whole => return Err(damaged(&format!("it is not JSON: {error}"))),
            Err(_) => return Err(damaged("it is cut off or was changed")),
        };
        if document.shift_remove("format").as_ref().and_then(Value::as_str) != Some(FORMAT) {
            return Err(damaged("it is not the manifest of a checkpoint"));
        }
        // Another version may have its checksum elsewhere, so the version is judged first.
        match document.shift_remove("version").as_ref().and_then(Value::as_u64) {
            Some(VERSION) if whole => {}
            Some(found) if found != VERSION => return Err(Problem::OtherVersion { found }),
            _ => return Err(damaged("it is cut off or was changed: its checksum does not match")),
        }
        document.shift_remove("release");
        document.shift_remove("checksum");
        let manifest: Self =
            serde_json::from_value(Value::Object(document)).map_err(|error| damaged(&error.to_string()))?;
        manifest.check().map_err(|problem| damaged(&problem))?;
        Ok(manifest)
    }

    /// Every file, and in words what it holds.
    pub fn files(&self) -> impl Iterator<Item = (&FileEntry, String)> {
        let shards = self
            .tables
            .iter()
            .flat_map(|table| table.shards.iter().map(|entry| (&entry.file, shard::holds(&table.name, entry.index))));
        shards.chain(self.residuals.iter().map(|entry| (&entry.file, crate::residuals::holds(&entry.worker))))
    }

    /// Checks that each table has each of its shards once, and that all names differ.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut tables = HashSet::new();
        for table in &self.tables {
            let name = &table.name;
            if !tables.insert(name) {
                return Err(format!("it has two tables `{name}`"));
            }
            if table.shards.len() as u64 != u64::from(self.shards) {
                return Err(format!("table `{name}` has {} shards of {}", table.shards.len(), self.shards));
            }
            if let Some((at, _)) = table.shards.iter().enumerate().find(|(at, entry)| entry.index as usize != *at) {
                return Err(format!("table `{name}` has another shard in place of shard {at}"));
            }
        }
        let mut names = HashSet::new();
        for (file, holds) in self.files() {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            // The name becomes part of a path.
            if file.name.is_empty() || file.name.starts_with('.') || !file.name.bytes().all(plain) {
                return Err(format!("`{}` cannot be the name of a file (of {holds})", file.name));
            }
            if file.name == FILE || !names.insert(&file.name) {
                return Err(format!("the file {} is listed twice", file.name));
            }
        }
        let mut workers = HashSet::new();
        match self.residuals.iter().find(|entry| !workers.insert(&entry.worker)) {
            Some(entry) => Err(format!("it has two files of residuals of worker `{}`", entry.worker)),
            None => Ok(()),
        }
    }
}

/// Whether the file's checksum is that of all its other bytes.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(digits) = bytes.len().checked_sub(END.len() + Checksum::DIGITS) else { return false };
    let written = std::str::from_utf8(&bytes[digits..digits + Checksum::DIGITS]).ok().and_then(Checksum::parse);
    written == Some(checksum_around(bytes, digits))
}

/// The checksum of everything but the digits that begin at byte `digits`.
fn checksum_around(bytes: &[u8], digits: usize) -> Checksum {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..digits]);
    hash.update(&bytes[digits + Checksum::DIGITS..]);
    Checksum(hash.digest())
}

impl Checksum {
    const DIGITS: usize = 16;

    /// Parses 16 hexadecimal digits.
    #[must_use]
    pub fn parse(digits: &str) -> Option<Self> {
        let checksum = Self(u64::from_str_radix(digits, 16).ok()?);
        (checksum.to_string() == digits).then_some(checksum)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> Self {
        checksum.to_string()
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(digits: String) -> Result<Self, String> {
        Self::parse(&digits).ok_or_else(|| format!("`{digits}` is not a checksum of 16 hexadecimal digits"))
    }
}

/// Writes and reads a type of numbers by its name.
mod number {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use types::NumberType;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub fn serialize<S: Serializer>(number: &NumberType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NumberType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = [NumberType::F32, NumberType::F64, NumberType::I64];
        let number = known.into_iter().find(|number| number.to_string() == name);
        number.ok_or_else(|| Error::custom(format!("`{name}` is not a type of numbers (f32, f64, i64)")))
    }
}
