//! Decodes any bytes as a shard's file of a checkpoint, and as a file of residuals. The result is
//! consistent rows or an error, and memory stays within a few times the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::{CheckpointShard, residuals_from_bytes};

/// Memory that reading takes besides a few times the input's bytes.
const MOST_BYTES: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    inputs::within(MOST_BYTES + 16 * bytes.len(), || {
        if let Ok(shard) = CheckpointShard::from_bytes("weights", 3, bytes) {
            assert_eq!(shard.positions.count() as usize * shard.stride, shard.rows.len());
            let numbers = shard.rows.len() * shard.rows.number().bytes();
            assert!(shard.rows.bytes().len() == numbers && numbers + shard.metadata.len() < bytes.len());
        }
        if let Ok(residuals) = residuals_from_bytes("3", bytes) {
            assert!(residuals.values().map(Vec::len).sum::<usize>() < bytes.len());
        }
    });
});
