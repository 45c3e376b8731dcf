//! Parses any text as CSV: lines are rows or errors, or the header is refused.
#![no_main]

use data::{ColumnRule, Csv, CsvHeader, FeatureHash, Labels, TextParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut csv = Csv::new("y");
    csv.columns.named = vec![("a".to_owned(), ColumnRule::Numeric), ("b".to_owned(), ColumnRule::Categorical)];
    csv.header = CsvHeader::Names(["y", "a", "b"].map(str::to_owned).into());
    let mut parser =
        TextParser::csv(&csv, Labels::Real, FeatureHash::default(), bytes).expect("all columns have names");
    inputs::lines(&mut parser, bytes);
    csv.header = CsvHeader::FirstLine;
    csv.columns.named.clear();
    for labels in [Labels::Binary, Labels::Ignored] {
        if let Ok(mut parser) = TextParser::csv(&csv, labels, FeatureHash::default(), bytes) {
            inputs::lines(&mut parser, bytes);
        }
    }
});
