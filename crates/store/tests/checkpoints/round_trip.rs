//! Property test: shards, residuals and manifests of a checkpoint read back bit for bit, and
//! verify. A second test compares a manifest's JSON with the documented fields.

use crate::support::{JOB, manifest};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::{CheckpointShard, Checksum, Manifest, Positions, RowNumbers, Store, TableEntry};

/// Rows of any bits, NaN included.
fn rows(numbers: usize) -> impl Strategy<Value = RowNumbers<'static>> {
    prop_oneof![
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), numbers)
            .prop_map(|rows| RowNumbers::F32(rows.into())),
        prop::collection::vec(any::<u64>().prop_map(f64::from_bits), numbers)
            .prop_map(|rows| RowNumbers::F64(rows.into())),
        prop::collection::vec(any::<i64>(), numbers).prop_map(|rows| RowNumbers::I64(rows.into())),
    ]
}

fn positions(count: usize) -> impl Strategy<Value = Positions<'static>> {
    let list = prop::collection::vec(any::<u64>(), count).prop_map(|list| Positions::List(list.into()));
    let run = (0..=u64::MAX - count as u64).prop_map(move |first| Positions::Run { first, count: count as u64 });
    prop_oneof![list, run]
}

fn shard() -> impl Strategy<Value = CheckpointShard<'static>> {
    let count = prop_oneof![Just(0_usize), Just(1), 2..200_usize];
    (count, 0..4_usize).prop_flat_map(|(count, stride)| {
        let metadata = prop::collection::vec(any::<u8>(), 0..100);
        (".{0,20}", 0..3_u32, positions(count), rows(count * stride), metadata).prop_map(
            move |(table, index, positions, rows, metadata)| CheckpointShard {
                table: table.into(),
                index,
                positions,
                stride,
                rows,
                metadata: metadata.into(),
            },
        )
    })
}

/// Any JSON of a few levels.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,8}", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Compares bits, because a NaN does not equal itself.
fn assert_same(read: &CheckpointShard, written: &CheckpointShard) {
    assert_eq!(read.rows.number(), written.rows.number());
    assert_eq!(read.rows.bytes(), written.rows.bytes());
    assert_eq!((&read.table, read.index, read.stride), (&written.table, written.index, written.stride));
    assert_eq!((&read.positions, &read.metadata), (&written.positions, &written.metadata));
}

proptest! {
    #[test]
    fn shards_residuals_and_manifests_are_read_back_bit_for_bit(
        shards in prop::collection::vec(shard(), 1..4),
        residuals in prop::collection::btree_map(".{0,9}", prop::collection::vec(any::<u8>(), 0..50), 0..5),
        worker in ".{0,9}",
        leases in value(),
        spec in value(),
        clock in any::<u64>(),
    ) {
        let store = Store::open("memory:").unwrap();
        let writing = store.begin(JOB).unwrap();
        let mut tables: BTreeMap<String, CheckpointShard> = BTreeMap::new();
        for shard in shards {
            tables.insert(shard.table.to_string(), CheckpointShard { index: 0, ..shard });
        }
        let entries = tables.values().map(|shard| TableEntry {
            name: shard.table.to_string(),
            spec: spec.clone(),
            number: shard.rows.number(),
            stride: shard.stride as u64,
            shards: vec![writing.shard(shard).unwrap()],
        });
        let mut manifest = manifest(clock, entries.collect());
        let pairs: Vec<(&str, &[u8])> = residuals.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
        manifest.residuals = vec![writing.residuals(&worker, &pairs).unwrap()];
        manifest.leases = leases;
        writing.publish(&manifest).unwrap();

        let opened = store.newest(Some(JOB)).unwrap();
        opened.verify().unwrap();
        prop_assert_eq!(opened.manifest(), &manifest);
        for shard in tables.values() {
            assert_same(&opened.shard(&shard.table, 0).unwrap(), shard);
        }
        prop_assert_eq!(opened.residuals(&worker).unwrap(), residuals);
    }
}

#[test]
fn a_manifest_reads_as_documented() {
    let mut manifest = manifest(40, Vec::new());
    manifest.shards = 1;
    let file = store::FileEntry {
        name: "table-weights-00000-1c0ffee1.safetensors".into(),
        bytes: 1234,
        checksum: Checksum(0xfeed),
    };
    manifest.tables = vec![TableEntry {
        name: "weights".into(),
        spec: json!({ "updater": "adagrad", "rate": 0.1 }),
        number: types::NumberType::F32,
        stride: 2,
        shards: vec![store::ShardEntry { index: 0, rows: 60, file }],
    }];
    let text = String::from_utf8(manifest.to_bytes()).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let fields: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        ["format", "version", "release", "job", "clock", "shards", "tables", "leases", "residuals", "checksum"]
    );
    assert_eq!(document["format"], "slackwater checkpoint");
    assert_eq!(document["version"], 2);
    assert_eq!(document["tables"][0]["number"], "f32");
    assert_eq!(document["tables"][0]["shards"][0]["file"]["checksum"], "000000000000feed");
    assert_eq!(Manifest::from_bytes(text.as_bytes()).unwrap(), manifest);
    // The same document with other whitespace has another checksum.
    assert!(Manifest::from_bytes(document.to_string().as_bytes()).is_err());
}
