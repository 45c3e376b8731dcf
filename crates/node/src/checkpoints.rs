//! Checkpoints: threads of their own write and read them, so that no server waits for a disk.
//!
//! - A server copies its shards; [`CheckpointWriter`] writes the copies.
//! - The coordinator decides when to make a checkpoint and collects its parts;
//!   [`CheckpointPublisher`] begins checkpoints, publishes their manifests and removes old ones.
//!
//! A checkpoint that cannot be written is logged with its cause and given up. The run goes on.

mod publisher;
mod writer;

pub(crate) use publisher::CheckpointPublisher;
pub(crate) use writer::{CheckpointWriter, WriterEvent};

use crate::NodeError;
use coordinator::Resume;
use lease::{FinishedLeases, SavedLeases};
use shard::{ImagePositions, ShardImage};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::time::Duration;
use store::{
    AllowedLocations, CheckpointName, CheckpointShard, Opened, Positions, Problem, RowNumbers, Store, StoreError,
    StoreSettings, absolute,
};
use types::{Clock, NumberType, TableSpec};
use wire::{Field, Payload, Reader};

/// Where checkpoints are kept, how often they are made, and how many are kept.
///
/// ```
/// use node::CheckpointSettings;
/// use std::time::Duration;
///
/// let settings = CheckpointSettings::new("runs/clicks", "clicks");
/// assert_eq!((settings.every, settings.keep.get()), (Duration::from_secs(60), 3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSettings {
    /// A folder or an object store. The process of every server must reach it under this name.
    pub location: String,
    /// The job. A location holds the checkpoints of one job.
    pub job: String,
    /// Time from the beginning of one checkpoint to the next.
    pub every: Duration,
    /// How many checkpoints are kept.
    pub keep: NonZeroUsize,
    /// Whether a run that ends well makes one more when every worker has left.
    pub last: bool,
}

impl CheckpointSettings {
    /// A checkpoint each minute and one at the end. The last three are kept.
    #[must_use]
    pub fn new(location: &str, job: &str) -> Self {
        let keep = NonZeroUsize::MIN.saturating_add(2);
        Self { location: absolute(location), job: job.to_owned(), every: Duration::from_secs(60), keep, last: true }
    }

    /// Checks that checkpoints can be written to the location, so that a mistake shows before the
    /// run and not at its first checkpoint.
    ///
    /// # Errors
    /// [`NodeError::Checkpoint`], with the store's error.
    pub fn probe(&self) -> Result<(), NodeError> {
        if self.location.starts_with("memory:") {
            let reason = "checkpoints in memory are gone with the process; name a folder or an s3:// location";
            return Err(NodeError::Checkpoint { reason: reason.to_owned() });
        }
        let store = Store::open(&self.location)?;
        store.probe()?;
        // Fails now if the location holds checkpoints of another job.
        match store.newest(Some(&self.job)) {
            Err(StoreError::Damaged { problem, location, .. }) if matches!(*problem, Problem::OtherJob { .. }) => {
                let job = &self.job;
                let reason =
                    format!("{location} is not for job '{job}': {problem}; name that job (--job), or another location");
                Err(NodeError::Checkpoint { reason })
            }
            _ => Ok(()),
        }
    }
}

/// Refuses, in words, if this node may not use one of the locations of its run.
pub(crate) fn check_locations(allowed: &AllowedLocations, locations: &[String]) -> Result<(), NodeError> {
    locations.iter().try_for_each(|location| Ok(allowed.resolve(location).map(drop)?))
}

impl From<store::StoreError> for NodeError {
    fn from(error: store::StoreError) -> Self {
        Self::Checkpoint { reason: error.to_string() }
    }
}

/// Opens the checkpoint that a run resumes from: the newest at a location, or the one whose own
/// folder is named. Reads every byte of it once, so that damage shows before any node joins.
///
/// ```
/// let refused = node::open_resume("no/such/folder", "clicks").expect_err("there is none");
/// assert!(refused.to_string().contains("no/such/folder"));
/// ```
///
/// # Errors
/// [`NodeError::Checkpoint`]: there is none, it is damaged (the error names the one before), or it
/// is another job's.
pub fn open_resume(location: &str, job: &str) -> Result<Resume, NodeError> {
    let location = absolute(location);
    let opened = Opened::at(&location, &StoreSettings::from_environment())?;
    let manifest = opened.manifest();
    if manifest.job != job {
        let name = opened.name();
        let found = &manifest.job;
        let reason = format!(
            "{name} in {location} is of job '{found}', not of '{job}': give --job {found}, or name another location"
        );
        return Err(NodeError::Checkpoint { reason });
    }
    opened.verify()?;
    let tables = manifest.tables.iter().map(|table| {
        let spec = table.spec.get("wire").and_then(serde_json::Value::as_str).and_then(spec_of);
        let other = || {
            format!(
                "{}: this release cannot read the spec of table '{}'; resume with the release that wrote it",
                opened.name(),
                table.name
            )
        };
        spec.filter(|spec| spec.name == table.name).ok_or_else(|| NodeError::Checkpoint { reason: other() })
    });
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let leases = leases_of(&manifest.leases).ok_or_else(|| {
        let reason = format!(
            "{}: this release cannot read its data leases; resume with the release that wrote it",
            opened.name()
        );
        NodeError::Checkpoint { reason }
    })?;
    let last = location.trim_end_matches('/').rsplit_once('/');
    let folder = last.filter(|(_, name)| name.parse::<CheckpointName>().is_ok()).map(|(folder, _)| folder.to_owned());
    Ok(Resume {
        location: folder.unwrap_or(location),
        name: opened.name().to_string(),
        clock: Clock(manifest.clock),
        shards: manifest.shards,
        tables,
        leases,
    })
}

/// Describes the contents of a checkpoint in lines of text: of the newest at a location, or of the
/// one whose own folder is named.
///
/// ```
/// let refused = node::describe_checkpoint("no/such/folder").expect_err("there is none");
/// assert!(refused.to_string().contains("no/such/folder"));
/// ```
///
/// # Errors
/// [`NodeError::Checkpoint`]: there is none, or it is damaged (the error names the one before).
pub fn describe_checkpoint(location: &str) -> Result<String, NodeError> {
    Ok(Opened::at(location, &StoreSettings::from_environment())?.summary())
}

/// A table's spec as the manifest holds it: as readable fields, and as its exact bytes.
fn spec_entry(spec: &TableSpec) -> serde_json::Value {
    let wire = digits_of(spec);
    serde_json::json!({
        "shape": format!("{:?}", spec.shape),
        "width": spec.width,
        "combine": format!("{:?}", spec.combine),
        "consistency": format!("{:?}", spec.consistency),
        "updater": format!("{:?}", spec.updater),
        "wire": wire,
    })
}

/// The spec that [`spec_entry`] wrote.
fn spec_of(wire: &str) -> Option<TableSpec> {
    from_digits(wire)
}

/// The data leases as the manifest holds them, in the order of the data sets' numbers: as readable
/// fields, and as their exact bytes.
fn leases_entry(leases: &[SavedLeases]) -> serde_json::Value {
    let entry = |saved: &SavedLeases| {
        let done: &FinishedLeases = saved.done();
        let beyond = done.beyond().iter().map(|run| [run.start, run.end]);
        let runs: Vec<[u64; 2]> = std::iter::once([0, done.through().0]).chain(beyond).collect();
        serde_json::json!({
            "name": saved.name(),
            "input": saved.terms().input,
            "ranges": saved.terms().ranges,
            "epochs": saved.terms().epochs,
            "done": runs,
            "wire": digits_of(saved),
        })
    };
    leases.iter().map(entry).collect()
}

/// The data leases that [`leases_entry`] wrote. The manifest of a run without leases has no entry.
fn leases_of(entry: &serde_json::Value) -> Option<Vec<SavedLeases>> {
    if entry.is_null() {
        return Some(Vec::new());
    }
    entry.as_array()?.iter().map(|entry| from_digits(entry.get("wire")?.as_str()?)).collect()
}

/// The wire encoding of a field, in hexadecimal.
fn digits_of(field: &impl Field) -> String {
    let mut bytes = Vec::new();
    field.put(&mut bytes);
    let mut digits = String::new();
    bytes.iter().for_each(|byte| write!(digits, "{byte:02x}").unwrap_or_default());
    digits
}

fn from_digits<F: Field>(digits: &str) -> Option<F> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = pairs.map(byte).collect::<Option<_>>()?;
    let mut reader = Reader(&bytes);
    let field = F::get(&mut reader).ok()?;
    reader.0.is_empty().then_some(field)
}

/// A shard's copy in the store's form. None if its bytes are not a whole number of rows' numbers.
fn shard_of(image: &ShardImage) -> Option<CheckpointShard<'_>> {
    let rows = match image.number {
        NumberType::F32 => RowNumbers::F32(image.rows.numbers()?.into()),
        NumberType::F64 => RowNumbers::F64(image.rows.numbers()?.into()),
        NumberType::I64 => RowNumbers::I64(image.rows.numbers()?.into()),
    };
    let positions = match &image.places {
        ImagePositions::Run { first, count } => Positions::Run { first: *first, count: *count },
        ImagePositions::List(list) => Positions::List(list[..].into()),
    };
    Some(CheckpointShard {
        table: image.name[..].into(),
        index: image.shard.0,
        positions,
        stride: image.stride,
        rows,
        metadata: image.metadata[..].into(),
    })
}

/// A shard of a checkpoint as the copy that a server restores, for table `table` of this run.
fn image_of(shard: CheckpointShard<'static>, table: types::TableId, clock: Clock) -> ShardImage {
    let number = shard.rows.number();
    let places = match shard.positions {
        Positions::Run { first, count } => ImagePositions::Run { first, count },
        Positions::List(list) => ImagePositions::List(list.into_owned()),
    };
    let rows = match shard.rows {
        RowNumbers::F32(numbers) => Payload::new(numbers.into_owned()),
        RowNumbers::F64(numbers) => Payload::new(numbers.into_owned()),
        RowNumbers::I64(numbers) => Payload::new(numbers.into_owned()),
    };
    ShardImage {
        checkpoint: 0,
        clock,
        table,
        name: shard.table.into_owned(),
        shard: types::ShardId(shard.index),
        number,
        stride: shard.stride,
        places,
        rows,
        metadata: shard.metadata.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_keeps_specs_byte_for_byte() {
        let spec = TableSpec::sparse("ratings", 3).ordered();
        let entry = spec_entry(&spec);
        let wire = entry["wire"].as_str().expect("text");
        assert_eq!(spec_of(wire), Some(spec));
        assert_eq!((spec_of(&wire[2..]), spec_of("xy"), spec_of(&format!("{wire}00"))), (None, None, None));
    }

    #[test]
    fn manifest_keeps_leases_byte_for_byte_and_readable() {
        let order = lease::LeaseOrder { ranges: 10, shuffle: Some(1) };
        let terms = wire::LeaseTerms {
            ranges: order.ranges,
            epochs: 2,
            shuffle: order.shuffle,
            per_clock: 8,
            fingerprint: u128::MAX,
            input: "a9a".to_owned(),
        };
        let kept = SavedLeases::new("train".into(), terms, FinishedLeases::none(order)).expect("such leases");
        let entry = leases_entry(std::slice::from_ref(&kept));
        assert_eq!((&entry[0]["name"], &entry[0]["done"][0][1]), (&"train".into(), &0.into()));
        assert_eq!(leases_of(&entry), Some(vec![kept]));
        let none = serde_json::Value::Null;
        assert_eq!((leases_of(&none), leases_of(&"x".into())), (Some(Vec::new()), None));
        assert_eq!(leases_of(&serde_json::json!([{ "wire": "00" }])), None);
    }

    #[test]
    fn locations_of_folders_become_absolute() {
        assert!(CheckpointSettings::new("runs/clicks", "clicks").location.starts_with('/'));
        assert_eq!(CheckpointSettings::new("s3://bucket/clicks", "clicks").location, "s3://bucket/clicks");
        let refused =
            CheckpointSettings::new("memory:", "clicks").probe().expect_err("memory holds no checkpoints of a run");
        assert!(refused.to_string().contains("gone with the process"), "{refused}");
    }
}
