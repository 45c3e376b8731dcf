//! Parses any line as Criteo text: the result is a row of 39 features or an error.
#![no_main]

use data::{FeatureHash, Labels, TextParser};
use libfuzzer_sys::fuzz_target;

/// This byte stands for five tabs: a fuzzer hardly ever writes the right number of them.
const FIVE_TABS: u8 = b'~';

fuzz_target!(|bytes: &[u8]| {
    let mut text = Vec::new();
    for &byte in bytes {
        match byte {
            FIVE_TABS => text.extend_from_slice(b"\t\t\t\t\t"),
            byte => text.push(byte),
        }
    }
    for labels in [Labels::Binary, Labels::Ignored] {
        let rows = inputs::lines(&mut TextParser::criteo(labels, FeatureHash::default()), &text);
        assert_eq!(rows.features(), 39 * rows.rows());
    }
});
