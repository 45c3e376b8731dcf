//! Any bytes as a manifest are one that is written and read alike, or a problem with a name, and
//! never take more memory than they account for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::Manifest;
use xxhash_rust::xxh3::Xxh3;

/// What reading takes beside a few times its bytes.
const MOST_BYTES: usize = 1 << 20;
/// A value of JSON in memory, for each of its shortest spelling and a list's room to grow.
const FOR_EACH_BYTE: usize = 128;
const DIGITS: usize = 16;
const END: &[u8] = b"\"\n}\n";

fn read(bytes: &[u8]) {
    let Ok(manifest) = inputs::within(MOST_BYTES + FOR_EACH_BYTE * bytes.len(), || Manifest::from_bytes(bytes)) else {
        return;
    };
    for table in &manifest.tables {
        assert_eq!(table.shards.len(), manifest.shards as usize);
    }
    assert!(manifest.files().all(|(file, _)| !file.name.contains('/') && !file.name.starts_with('.')));
    assert_eq!(Manifest::from_bytes(&manifest.to_bytes()).as_ref(), Ok(&manifest));
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // With the checksum that it should have, which nobody guesses.
    let mut bytes = bytes.to_vec();
    let Some(digits) = bytes.len().checked_sub(END.len() + DIGITS) else { return };
    bytes[digits + DIGITS..].copy_from_slice(END);
    let mut hash = Xxh3::new();
    hash.update(&bytes[..digits]);
    hash.update(END);
    bytes[digits..digits + DIGITS].copy_from_slice(format!("{:016x}", hash.digest()).as_bytes());
    read(&bytes);
});
