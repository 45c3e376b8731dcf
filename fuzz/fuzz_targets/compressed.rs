//! Reads any bytes as a compressed data file, and rows that were compressed and damaged: the result
//! is rows or an error, in bounded memory. What decompresses to much is read in pieces.
#![no_main]

use data::{Format, Labels, ReaderSettings};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::io::Write;

/// The most rows that are read.
const ROWS: usize = 1000;
const MOST_BYTES: usize = 32 << 20;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

/// The content of a file: any bytes, or rows that were compressed, one member after the other.
fn content(input: &mut Unstructured) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..input.int_in_range(1..=3)? {
        if input.ratio(1, 4)? {
            let magic: &[u8] = input.choose(&[&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd]])?;
            bytes.extend_from_slice(magic);
            let length = input.int_in_range(0..=200)?;
            bytes.extend_from_slice(input.bytes(length.min(input.len()))?);
            continue;
        }
        let line = [&b"1 3:0.5 9:2\n"[..], b"0 1:1\n", b"x", b"\n", b"1 18446744073709551615:1\n"];
        let line = *input.choose(&line)?;
        // As much as the reader holds at a time, and more.
        let text = line.repeat(1 << input.int_in_range(0..=16)?);
        bytes.extend(if input.arbitrary()? { gzip(&text) } else { zstd::encode_all(&text[..], 1).expect("memory") });
    }
    for _ in 0..input.int_in_range(0..=2)? {
        let at = input.choose_index(bytes.len())?;
        bytes[at] ^= input.int_in_range(0..=255u8)?;
    }
    if input.ratio(1, 4)? {
        bytes.truncate(input.int_in_range(0..=bytes.len())?);
    }
    Ok(bytes)
}

fn read(bytes: &[u8]) {
    let path = inputs::folder().join("rows.libsvm");
    std::fs::write(&path, bytes).expect("a file can be written");
    let settings = ReaderSettings { minibatch_rows: 7, ..ReaderSettings::new(Format::LibSvm, Labels::Real) };
    inputs::within(MOST_BYTES, || inputs::rows_of(&path, settings, ROWS)).ok();
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if let Ok(bytes) = content(&mut Unstructured::new(bytes)) {
        read(&bytes);
    }
});
