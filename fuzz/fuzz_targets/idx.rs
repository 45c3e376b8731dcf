//! Reads any two files as IDX images and labels: the result is rows or an error, never a panic, and
//! memory stays within that of the largest image.
#![no_main]

use data::{Format, Labels, ReaderSettings};
use libfuzzer_sys::fuzz_target;

/// The most rows that are read.
const ROWS: usize = 1000;
/// The most memory: 16 MiB for the largest image that is accepted, and 1 MiB for reading it.
const MOST_BYTES: usize = (16 << 20) + (1 << 20);

fuzz_target!(|bytes: &[u8]| {
    // Two bytes say where the second file begins.
    let Some((&[low, high], files)) = bytes.split_first_chunk() else { return };
    let (images, labels) = files.split_at(usize::from(u16::from_le_bytes([low, high])).min(files.len()));
    let folder = inputs::folder();
    let path = folder.join("images-idx3-ubyte");
    std::fs::write(&path, images).expect("a file can be written");
    std::fs::write(folder.join("labels-idx1-ubyte"), labels).expect("a file can be written");
    inputs::within(MOST_BYTES, || {
        let shape = data::image_shape(&path);
        for kind in [Labels::Classes { first: 0, count: 10 }, Labels::Ignored] {
            let settings = ReaderSettings { minibatch_rows: 7, ..ReaderSettings::new(Format::Idx, kind) };
            if let (Ok(shape), Ok(rows)) = (&shape, inputs::rows_of(&path, settings, ROWS)) {
                assert!(rows.keys().iter().all(|key| *key < shape.pixels));
                assert!(
                    kind == Labels::Ignored
                        || rows.labels().iter().all(|label| *label <= f32::from(shape.largest_label))
                );
            }
        }
    });
});
