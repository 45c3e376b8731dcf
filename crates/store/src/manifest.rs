//! The manifest: what a checkpoint consists of. It is written last, so a checkpoint exists exactly
//! when its manifest does.
//!
//! It is JSON, and its last field is the checksum of everything else in the file, so that a
//! manifest that was cut off or changed is not believed.

use crate::{Problem, shard};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::HashSet, fmt};
use types::NumberType;
use xxhash_rust::xxh3::Xxh3;

/// The form that is written and read.
pub(crate) const VERSION: u64 = 2;
/// The manifest's name in its checkpoint's folder.
pub(crate) const FILE: &str = "manifest.json";
const FORMAT: &str = "slackwater checkpoint";
/// What follows the checksum's digits.
const END: &[u8] = b"\"\n}\n";

/// What a checkpoint consists of, and where its run stood.
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
    /// Whose it is. A store holds checkpoints of one job.
    pub job: String,
    /// The clock at which every shard was copied.
    pub clock: u64,
    /// Into how many shards each table is cut.
    pub shards: u32,
    /// The tables, in the order in which they are to be made again.
    pub tables: Vec<TableEntry>,
    /// Which leases are done and which are not: the caller's own.
    pub leases: Value,
    /// What codecs had still to send.
    pub residuals: Vec<ResidualsEntry>,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// Its name.
    pub name: String,
    /// How it was made: the caller's own.
    pub spec: Value,
    /// The type of its numbers.
    #[serde(with = "number")]
    pub number: NumberType,
    /// Numbers of one row.
    pub stride: u64,
    /// Its shards, 0 to P − 1, in order.
    pub shards: Vec<ShardEntry>,
}

/// A shard of a table, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// Which: 0 to P − 1.
    pub index: u32,
    /// Its rows.
    pub rows: u64,
    /// Their file.
    pub file: FileEntry,
}

/// Residuals of a worker, as they were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualsEntry {
    /// Whose.
    pub worker: String,
    /// Their file.
    pub file: FileEntry,
}

/// A file, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
    /// What its bytes come to.
    pub checksum: Checksum,
}

/// What the bytes of a file come to, by XXH3 in 64 bits: changed by any accident, though not by an
/// enemy's care.
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
    /// The file.
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

    /// Reads the file, and sees that it is as it was written and hangs together.
    ///
    /// # Errors
    /// [`Problem::Manifest`] or [`Problem::OtherVersion`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        let damaged = |problem: &str| Problem::Manifest { problem: problem.to_owned() };
        let whole = is_whole(bytes);
        let mut document = match serde_json::from_slice(bytes) {
            Ok(Value::Object(document)) => document,
            Ok(_) => return Err(damaged("it is no JSON object")),
            Err(error) if whole => return Err(damaged(&format!("it is no JSON: {error}"))),
            Err(_) => return Err(damaged("it is cut off or was changed")),
        };
        if document.shift_remove("format").as_ref().and_then(Value::as_str) != Some(FORMAT) {
            return Err(damaged("it is no manifest of a checkpoint"));
        }
        // Another version may have its checksum elsewhere.
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

    /// Every file, with what it holds in words.
    pub fn files(&self) -> impl Iterator<Item = (&FileEntry, String)> {
        let shards = self
            .tables
            .iter()
            .flat_map(|table| table.shards.iter().map(|entry| (&entry.file, shard::holds(&table.name, entry.index))));
        shards.chain(self.residuals.iter().map(|entry| (&entry.file, crate::residuals::holds(&entry.worker))))
    }

    /// That each table has each of its shards once, and that no two things have one name.
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
                return Err(format!("table `{name}` has another shard in the place of shard {at}"));
            }
        }
        let mut names = HashSet::new();
        for (file, holds) in self.files() {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            // It becomes part of a path.
            if file.name.is_empty() || file.name.starts_with('.') || !file.name.bytes().all(plain) {
                return Err(format!("`{}` cannot be the name of a file, with {holds}", file.name));
            }
            if file.name == FILE || !names.insert(&file.name) {
                return Err(format!("the file {} is named twice", file.name));
            }
        }
        let mut workers = HashSet::new();
        match self.residuals.iter().find(|entry| !workers.insert(&entry.worker)) {
            Some(entry) => Err(format!("it has two files of residuals of worker `{}`", entry.worker)),
            None => Ok(()),
        }
    }
}

/// Whether the file is as it was written: all of it but the checksum's digits comes to the
/// checksum.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(digits) = bytes.len().checked_sub(END.len() + Checksum::DIGITS) else { return false };
    let written = std::str::from_utf8(&bytes[digits..digits + Checksum::DIGITS]).ok().and_then(Checksum::parse);
    written == Some(checksum_around(bytes, digits))
}

/// What everything but the digits at that place comes to.
fn checksum_around(bytes: &[u8], digits: usize) -> Checksum {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..digits]);
    hash.update(&bytes[digits + Checksum::DIGITS..]);
    Checksum(hash.digest())
}

impl Checksum {
    const DIGITS: usize = 16;

    /// The checksum that these digits spell.
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
        Self::parse(&digits).ok_or_else(|| format!("`{digits}` is no checksum: one has 16 digits"))
    }
}

/// A type of numbers by its name.
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
        number.ok_or_else(|| Error::custom(format!("`{name}` is no type of numbers: f32, f64 or i64")))
    }
}
