//! Parses any line as libffm text: the result is a row or an error. Rows that are written as text
//! are parsed to the same rows again.
#![no_main]

use data::{Labels, TextParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parser = TextParser::libffm(Labels::Real);
    let rows = inputs::lines(&mut parser, bytes);
    let mut text = String::new();
    for row in rows.iter() {
        text += &format!("{}", row.label.unwrap_or_default());
        for ((field, key), value) in row.fields.iter().zip(row.keys).zip(row.values) {
            text += &format!(" {field}:{key}:{value}");
        }
        text.push('\n');
    }
    assert_eq!(inputs::lines(&mut parser, text.as_bytes()), rows);
});
