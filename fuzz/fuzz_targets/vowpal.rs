//! Parses any line as Vowpal Wabbit text: the result is a row or an error.
#![no_main]

use data::{FeatureHash, Labels, TextParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for labels in [Labels::Real, Labels::Ignored] {
        inputs::lines(&mut TextParser::vowpal_wabbit(labels, FeatureHash::default()), bytes);
    }
});
