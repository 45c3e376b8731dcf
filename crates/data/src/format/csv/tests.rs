//! Tests of the CSV parser: cells, quotes, headings and guessed columns.

use super::{Csv, CsvHeader};
use crate::format::testing::{check, read};
use crate::{ColumnRule, FeatureHash, Labels, Minibatch, TextParser};
use proptest::prelude::*;

fn hash() -> FeatureHash {
    FeatureHash::new(0, 16).unwrap()
}

fn number(column: &str) -> u64 {
    hash().key_of_space(hash().space(column.as_bytes()))
}

fn category(column: &str, cell: &str) -> u64 {
    hash().key(hash().space(column.as_bytes()), cell.as_bytes())
}

/// Columns `age` (numeric), `y` (label), `city` (categorical).
fn parser(labels: Labels) -> TextParser {
    TextParser::csv(&Csv::new("y"), labels, hash(), b"age,y,city\n1,0,a\n,1,2\n").unwrap()
}

#[test]
fn csv_parses_rows_and_names_faults() {
    let age = number("age");
    let city = |cell: &str| category("city", cell);
    let table = [
        ("30,1,Delft", format!("1 0:{age}:30 2:{}:1", city("Delft"))),
        (" 2.5 , -1 ,Delft\r", format!("0 0:{age}:2.5 2:{}:1", city("Delft"))),
        (",1,", format!("1 2:{}:1", city(""))),
        ("0,1,\"a, \"\"b\"\"\"", format!("1 0:{age}:0 2:{}:1", city("a, \"b\""))),
        ("\"7\",\"1\",\"\"", format!("1 0:{age}:7 2:{}:1", city(""))),
        ("1,1,\"\"\"\"", format!("1 0:{age}:1 2:{}:1", city("\""))),
        ("", String::new()),
        ("30,1", "1: expected 3 columns, found 2".to_owned()),
        ("30,1,a,b,", "1: expected 3 columns, found 5".to_owned()),
        ("x,1,a", "1: expected a finite number in column `age`, found `x`".to_owned()),
        ("30,1e40,a", "4: expected a label of -1, 0 or 1, found `1e40`".to_owned()),
        ("30,,a", "4: expected a label of -1, 0 or 1, found nothing".to_owned()),
        ("nan,1,a", "1: expected a finite number in column `age`, found `nan`".to_owned()),
        ("30,1,\"a", "8: expected `\"` at the end of a quoted cell, found nothing".to_owned()),
        ("30,1,\"a\"b", "9: expected the end of the cell after its `\"`, found `b`".to_owned()),
    ];
    let table: Vec<(&str, &str)> = table.iter().map(|(line, expected)| (*line, expected.as_str())).collect();
    check(&mut parser(Labels::Binary), &table);
    let unlabelled = format!("- 0:{age}:30 2:{}:1", city("Delft"));
    check(&mut parser(Labels::Ignored), &[("30,x,Delft", &unlabelled)]);
}

#[test]
fn csv_guesses_a_column_numeric_if_all_its_sample_cells_are_numbers() {
    let head = b"a,b,c,d,y\n1,,5d877109,,0\n-2.5,1e3,44956024,,1\n";
    let mut parser = TextParser::csv(&Csv::new("y"), Labels::Binary, hash(), head).unwrap();
    let expected =
        format!("1 0:{}:4 1:{}:5 2:{}:1 3:{}:1", number("a"), number("b"), category("c", "6"), category("d", "7"));
    assert_eq!(read(&mut parser, "4,5,6,7,1"), expected);
    let mut csv = Csv::new("y");
    csv.columns.others = ColumnRule::Ignored;
    csv.columns.named = vec![("a".to_owned(), ColumnRule::Categorical), ("d".to_owned(), ColumnRule::Numeric)];
    let mut parser = TextParser::csv(&csv, Labels::Binary, hash(), head).unwrap();
    assert_eq!(read(&mut parser, "4,5,6,7,1"), format!("1 0:{}:1 3:{}:7", category("a", "4"), number("d")));
}

#[test]
fn csv_tells_headings_from_rows() {
    let with = parser(Labels::Binary);
    assert_eq!(with.is_heading(b"age,y,city\r"), Ok(true));
    assert_eq!(with.is_heading(b"age,\"y\",city"), Ok(true));
    let fault = with.is_heading(b"30,1,a").unwrap_err();
    assert_eq!(fault.to_string(), "expected the heading `age,y,city`, as in the first file, found `30,1,a`");
    let mut csv = Csv::new("y");
    csv.separator = b'\t';
    csv.header = CsvHeader::Names(vec!["a".to_owned(), "y".to_owned()]);
    let mut without = TextParser::csv(&csv, Labels::Binary, hash(), b"a\ty\n3\t1\n").unwrap();
    assert_eq!(without.is_heading(b"a\ty"), Ok(true));
    assert_eq!(without.is_heading(b"3\t1"), Ok(false));
    assert_eq!(read(&mut without, "3\t1"), format!("1 0:{}:3", number("a")), "the heading was not sampled as a row");
}

#[test]
fn csv_rejects_headings_that_do_not_fit() {
    for (head, problem) in [
        ("", "the first line is not a heading: it is empty"),
        ("a,b\n1,2\n", "there is no column `y`; the columns are a, b"),
        ("y,a,a\n", "there are two columns `a`"),
        ("y,\"a\n", "the first line is not a heading: expected `\"` at the end of a quoted cell, found nothing"),
    ] {
        let error = TextParser::csv(&Csv::new("y"), Labels::Binary, hash(), head.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), problem, "{head:?}");
    }
    let marked = b"\xEF\xBB\xBFy,a\n1,2\n";
    assert!(
        TextParser::csv(&Csv::new("y"), Labels::Binary, hash(), marked).is_ok(),
        "a byte order mark is not part of the heading"
    );
    assert!(
        TextParser::csv(&Csv::new("y"), Labels::Ignored, hash(), b"a\n1\n").is_ok(),
        "labels are ignored, so their column may be missing"
    );
}

proptest! {
    #[test]
    fn csv_reads_back_written_rows(age in -1e30f32..1e30, city in "[ -~é]{0,12}") {
        let line = format!("{age},1,\"{}\"", city.replace('"', "\"\""));
        let mut rows = Minibatch::new();
        parser(Labels::Binary).line(line.as_bytes(), &mut rows).unwrap();
        prop_assert_eq!(rows.keys(), [number("age"), category("city", &city)]);
        prop_assert_eq!(rows.values(), [age, 1.0]);
    }
}
