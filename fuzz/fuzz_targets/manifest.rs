//! Decodes any bytes as a manifest. The result is a manifest that survives writing and reading, or
//! an error, and memory stays in proportion to the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::Manifest;
use xxhash_rust::xxh3::Xxh3;

/// Memory that reading takes besides [`FOR_EACH_BYTE`].
const MOST_BYTES: usize = 1 << 20;
/// The most memory for each byte of input: a JSON value of one byte, in a list with spare capacity.
const FOR_EACH_BYTE: usize = 128;
/// Hexadecimal digits of the checksum, which stands before [`END`].
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
    // Again with the right checksum, which a fuzzer cannot guess.
    let mut bytes = bytes.to_vec();
    let Some(digits) = bytes.len().checked_sub(END.len() + DIGITS) else { return };
    bytes[digits + DIGITS..].copy_from_slice(END);
    let mut hash = Xxh3::new();
    hash.update(&bytes[..digits]);
    hash.update(END);
    bytes[digits..digits + DIGITS].copy_from_slice(format!("{:016x}", hash.digest()).as_bytes());
    read(&bytes);
});
