//! Checkpoints beside a run: threads that write and read them, so that no server waits for a disk.
//!
//! A server's thread copies its shards and hands the copies over; [`CheckpointWriter`] writes them.
//! The coordinator's thread decides and gathers; [`CheckpointPublisher`] begins checkpoints,
//! publishes them and removes old ones. A failure is logged, with what to do about it: that
//! checkpoint is given up, and the run goes on.

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
    CheckpointName, CheckpointShard, Opened, Positions, Problem, RowNumbers, Store, StoreError, StoreSettings,
};
use types::{Clock, NumberType, TableSpec};
use wire::{Field, Payload, Reader};

/// Where checkpoints are kept, and how many.
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
    /// A folder, or an object store: every server's process must reach it under this name.
    pub location: String,
    /// Whose checkpoints they are: those of one job are kept at one location.
    pub job: String,
    /// How long after one the next is begun.
    pub every: Duration,
    /// How many are kept.
    pub keep: NonZeroUsize,
    /// Whether one more is made when every worker has left, of a run that ends well.
    pub last: bool,
}

impl CheckpointSettings {
    /// One a minute and one at the end, of which the last three are kept.
    #[must_use]
    pub fn new(location: &str, job: &str) -> Self {
        let keep = NonZeroUsize::MIN.saturating_add(2);
        Self { location: absolute(location), job: job.to_owned(), every: Duration::from_secs(60), keep, last: true }
    }

    /// Sees that checkpoints can be written there: better known before a run than at its first
    /// checkpoint.
    ///
    /// # Errors
    /// [`NodeError::Checkpoint`], in the store's words.
    pub fn probe(&self) -> Result<(), NodeError> {
        if self.location.starts_with("memory:") {
            let reason = "checkpoints in memory are gone with the process; name a folder or an s3:// location";
            return Err(NodeError::Checkpoint { reason: reason.to_owned() });
        }
        let store = Store::open(&self.location)?;
        store.probe()?;
        // Said now if another job's are there.
        match store.newest(Some(&self.job)) {
            Err(StoreError::Damaged { problem, location, .. }) if matches!(*problem, Problem::OtherJob { .. }) => {
                let job = &self.job;
                let reason = format!(
                    "{location} is not for job '{job}': {problem}; say whose they are (--job), or name another place"
                );
                Err(NodeError::Checkpoint { reason })
            }
            _ => Ok(()),
        }
    }
}

impl From<store::StoreError> for NodeError {
    fn from(error: store::StoreError) -> Self {
        Self::Checkpoint { reason: error.to_string() }
    }
}

/// A folder by its whole name, for processes that were started elsewhere; anything else as it is.
fn absolute(location: &str) -> String {
    if location.contains("://") || location.starts_with("memory:") {
        return location.to_owned();
    }
    std::path::absolute(location).ok().and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(location.to_owned())
}

/// Opens the checkpoint that a run is to go on from: the newest at a location, or the one whose own
/// folder is named. Every byte of it is read once, so that damage is known before anybody joins.
///
/// ```
/// let refused = node::open_resume("no/such/folder", "clicks").expect_err("there is none");
/// assert!(refused.to_string().contains("no/such/folder"));
/// ```
///
/// # Errors
/// [`NodeError::Checkpoint`]: there is none, it is damaged (the one before is named), or it is
/// another job's.
pub fn open_resume(location: &str, job: &str) -> Result<Resume, NodeError> {
    let location = absolute(location);
    let opened = Opened::at(&location, &StoreSettings::from_environment())?;
    let manifest = opened.manifest();
    if manifest.job != job {
        let (name, found) = (opened.name(), &manifest.job);
        let reason = format!(
            "{name} in {location} is of job '{found}', not of '{job}': say --job {found}, or name another place"
        );
        return Err(NodeError::Checkpoint { reason });
    }
    opened.verify()?;
    let tables = manifest.tables.iter().map(|table| {
        let spec = table.spec.get("wire").and_then(serde_json::Value::as_str).and_then(spec_of);
        let other = || format!("{}: the spec of table '{}' is none that this release knows", opened.name(), table.name);
        spec.filter(|spec| spec.name == table.name).ok_or_else(|| NodeError::Checkpoint { reason: other() })
    });
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let leases = leases_of(&manifest.leases).ok_or_else(|| {
        let reason = format!("{}: what it says of leases is nothing that this release knows", opened.name());
        NodeError::Checkpoint { reason }
    })?;
    let last = location.trim_end_matches('/').rsplit_once('/');
    let folder = last.filter(|(_, name)| name.parse::<CheckpointName>().is_ok()).map(|(folder, _)| folder.to_owned());
    let (clock, shards, name) = (Clock(manifest.clock), manifest.shards, opened.name().to_string());
    Ok(Resume { location: folder.unwrap_or(location), name, clock, shards, tables, leases })
}

/// What a checkpoint holds, in lines for people: the newest at a location, or the one whose own
/// folder is named.
///
/// ```
/// let refused = node::describe_checkpoint("no/such/folder").expect_err("there is none");
/// assert!(refused.to_string().contains("no/such/folder"));
/// ```
///
/// # Errors
/// [`NodeError::Checkpoint`]: there is none, or it is damaged (the one before is named).
pub fn describe_checkpoint(location: &str) -> Result<String, NodeError> {
    Ok(Opened::at(location, &StoreSettings::from_environment())?.summary())
}

/// A spec as the manifest keeps it: for people, and byte for byte.
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

/// And back.
fn spec_of(wire: &str) -> Option<TableSpec> {
    from_digits(wire)
}

/// What is leased as the manifest keeps it, by the numbers of the data sets: for people, and byte
/// for byte.
fn leases_entry(leases: &[SavedLeases]) -> serde_json::Value {
    let entry = |kept: &SavedLeases| {
        let done: &FinishedLeases = kept.done();
        let beyond = done.beyond().iter().map(|run| [run.start, run.end]);
        let runs: Vec<[u64; 2]> = std::iter::once([0, done.through().0]).chain(beyond).collect();
        serde_json::json!({
            "name": kept.name(),
            "input": kept.terms().input,
            "ranges": kept.terms().ranges,
            "epochs": kept.terms().epochs,
            "done": runs,
            "wire": digits_of(kept),
        })
    };
    leases.iter().map(entry).collect()
}

/// And back. A manifest of a run without leases has none.
fn leases_of(entry: &serde_json::Value) -> Option<Vec<SavedLeases>> {
    if entry.is_null() {
        return Some(Vec::new());
    }
    entry.as_array()?.iter().map(|entry| from_digits(entry.get("wire")?.as_str()?)).collect()
}

/// Its bytes as they travel, in hexadecimal.
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

/// A copy as the store writes it.
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
    let (table, metadata) = (image.name[..].into(), image.metadata[..].into());
    Some(CheckpointShard { table, index: image.shard.0, positions, stride: image.stride, rows, metadata })
}

/// And back, of a table of this run.
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
    fn a_spec_is_kept_byte_for_byte() {
        let spec = TableSpec::sparse("ratings", 3).ordered();
        let entry = spec_entry(&spec);
        let wire = entry["wire"].as_str().expect("text");
        assert_eq!(spec_of(wire), Some(spec));
        assert_eq!((spec_of(&wire[2..]), spec_of("xy"), spec_of(&format!("{wire}00"))), (None, None, None));
    }

    #[test]
    fn leases_are_kept_byte_for_byte_and_for_people() {
        let order = lease::LeaseOrder { ranges: 10, shuffle: Some(1) };
        let (epochs, per_clock, fingerprint, input) = (2, 8, u128::MAX, "a9a".to_owned());
        let terms =
            wire::LeaseTerms { ranges: order.ranges, epochs, shuffle: order.shuffle, per_clock, fingerprint, input };
        let kept = SavedLeases::new("train".into(), terms, FinishedLeases::none(order)).expect("such leases");
        let entry = leases_entry(std::slice::from_ref(&kept));
        assert_eq!((&entry[0]["name"], &entry[0]["done"][0][1]), (&"train".into(), &0.into()));
        assert_eq!(leases_of(&entry), Some(vec![kept]));
        let none = serde_json::Value::Null;
        assert_eq!((leases_of(&none), leases_of(&"x".into())), (Some(Vec::new()), None));
        assert_eq!(leases_of(&serde_json::json!([{ "wire": "00" }])), None);
    }

    #[test]
    fn places_are_known_by_their_whole_names() {
        assert!(CheckpointSettings::new("runs/clicks", "clicks").location.starts_with('/'));
        assert_eq!(CheckpointSettings::new("s3://bucket/clicks", "clicks").location, "s3://bucket/clicks");
        let refused = CheckpointSettings::new("memory:", "clicks").probe().expect_err("no place for a run's");
        assert!(refused.to_string().contains("gone with the process"), "{refused}");
    }
}
