//! Reads any bytes as a Parquet file: the result is rows or an error. No panic leaves the reader,
//! and memory is bounded.
#![no_main]

use data::{ColumnRules, Format, Labels, ReaderSettings};
use libfuzzer_sys::fuzz_target;
use std::sync::Once;

/// The most rows that are read.
const ROWS: usize = 5000;
/// The largest allocation for a file of some thousand bytes.
const MOST_BYTES: usize = 64 << 20;

/// Removes the panic hook of the fuzzer, which would end the process at panics of the Parquet
/// library that the reader catches. A panic that is not caught still ends the process.
static LET_PANICS_PASS: Once = Once::new();

/// Whether a file may have a list or map of Booleans with a huge length.
///
/// Such Booleans take no bytes, and the library skips them one by one: two billion take a minute.
/// That finds no fault, so the target leaves out such files.
fn may_take_ages(bytes: &[u8]) -> bool {
    let long = |length: &[u8]| length.iter().all(|byte| *byte >= 0x80);
    let list = |window: &[u8]| matches!(window[0], 0xF1 | 0xF2) && long(&window[1..4]);
    let map = |window: &[u8]| long(&window[..3]) && window[3] < 0x80 && matches!(window[4], 0x11 | 0x12 | 0x21 | 0x22);
    bytes.windows(5).any(|window| list(window) || map(window))
}

fuzz_target!(|bytes: &[u8]| {
    if may_take_ages(bytes) {
        return;
    }
    LET_PANICS_PASS.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    let path = inputs::folder().join("rows.parquet");
    std::fs::write(&path, bytes).expect("a file can be written");
    inputs::within(MOST_BYTES, || {
        for labels in [Labels::Binary, Labels::Ignored] {
            let settings =
                ReaderSettings { skip_bad: 10, ..ReaderSettings::new(Format::Parquet(ColumnRules::new("y")), labels) };
            inputs::rows_of(&path, settings, ROWS).ok();
        }
    });
});
