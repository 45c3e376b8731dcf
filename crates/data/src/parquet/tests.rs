//! Tests of the Parquet reader, on files that they write: every column type, shares, faults and
//! damage.

use super::*;
use crate::{ColumnRule, DataReader, Format, Labels, ReaderSettings};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

const SCHEMA: &str = "message rows {
    required int32 y;
    optional double age;
    optional binary city (UTF8);
    required int64 id;
    required boolean old;
    optional float size;
    required int32 count (UINT_32);
}";

/// Writes a file with a row group for each range of row numbers. Some cells are missing.
pub fn write(path: &Path, groups: &[std::ops::Range<i64>], compression: Compression) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let numbers: Vec<i64> = rows.clone().collect();
        let present = |every: i64| numbers.iter().map(|n| i16::from(n % every != 0)).collect::<Vec<i16>>();
        macro_rules! column {
            ($type:ty, $levels:expr, $values:expr) => {{
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<$type>().write_batch(&$values, $levels, None).unwrap();
                column.close().unwrap();
            }};
        }
        let some = |every: i64| numbers.iter().copied().filter(move |n| n % every != 0);
        column!(Int32Type, None, numbers.iter().map(|n| (n % 2) as i32).collect::<Vec<_>>());
        column!(DoubleType, Some(&present(3)), some(3).map(|n| n as f64 / 2.0).collect::<Vec<_>>());
        let cities: Vec<ByteArray> = some(5).map(|n| ByteArray::from(format!("city {}", n % 7).into_bytes())).collect();
        column!(ByteArrayType, Some(&present(5)), cities);
        column!(Int64Type, None, numbers);
        column!(BoolType, None, numbers.iter().map(|n| n % 4 == 0).collect::<Vec<_>>());
        column!(FloatType, Some(&present(1)), Vec::<f32>::new());
        column!(Int32Type, None, numbers.iter().map(|_| -1).collect::<Vec<_>>());
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn settings(columns: ColumnRules) -> ReaderSettings {
    let mut settings = ReaderSettings::new(Format::Parquet(columns), Labels::Binary);
    settings.minibatch_rows = 100;
    settings
}

fn rows(reader: &DataReader) -> Minibatch {
    let mut all = Minibatch::new();
    let mut source = reader.source();
    let mut batch = Minibatch::new();
    while source.fill(&mut batch).unwrap() {
        batch.iter().for_each(|row| all.copy_row(row));
    }
    all
}

/// Adds to `into` the row that number `n` must become.
fn expected(n: i64, hash: FeatureHash, into: &mut Minibatch) {
    let number = |name: &str| hash.key_of_space(hash.space(name.as_bytes()));
    if n % 3 != 0 {
        into.push_in_field(1, number("age"), n as f32 / 2.0);
    }
    let city = if n % 5 != 0 { format!("city {}", n % 7) } else { String::new() };
    into.push_in_field(2, hash.key(hash.space(b"city"), city.as_bytes()), 1.0);
    into.push_in_field(3, hash.key(hash.space(b"id"), n.to_string().as_bytes()), 1.0);
    into.push_in_field(4, number("old"), f32::from(u8::from(n % 4 == 0)));
    into.push_in_field(6, number("count"), u32::MAX as f32);
    into.end_row((n % 2) as f32);
}

pub fn columns() -> ColumnRules {
    let mut columns = ColumnRules::new("y");
    columns.named = vec![("id".to_owned(), ColumnRule::Categorical)];
    columns
}

#[test]
fn parquet_reads_columns_of_every_type() {
    let folder = crate::testing::Folder::new("parquet-types");
    for (name, compression) in [
        ("plain", Compression::UNCOMPRESSED),
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(parquet::basic::GzipLevel::default())),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
    ] {
        let path = folder.path(name);
        write(&path, &[0..2500, 2500..2501, 2501..3300], compression);
        let reader = DataReader::open(&[path.to_str().unwrap()], settings(columns())).unwrap();
        let mut wanted = Minibatch::new();
        (0..3300).for_each(|n| expected(n, FeatureHash::default(), &mut wanted));
        assert_eq!(rows(&reader), wanted, "{name}");
    }
}

#[test]
fn every_row_goes_to_exactly_one_worker() {
    let folder = crate::testing::Folder::new("parquet-shares");
    let path = folder.path("rows");
    write(&path, &[0..1000, 1000..1100, 1100..5000], Compression::UNCOMPRESSED);
    let reader = DataReader::open(&[path.to_str().unwrap()], settings(columns())).unwrap();
    let all = rows(&reader);
    let mut seen: Vec<u64> = Vec::new();
    for rank in 0..3 {
        let part = rows(&reader.for_worker(rank, 3).unwrap());
        assert!(part.rows() > 1200, "worker {rank} has {} rows", part.rows());
        // The key of `id` is second in a row, or third after an age.
        seen.extend(part.iter().map(|row| row.keys[row.fields.iter().position(|&field| field == 3).unwrap()]));
    }
    let mut ids: Vec<u64> =
        all.iter().map(|row| row.keys[row.fields.iter().position(|&field| field == 3).unwrap()]).collect();
    seen.sort_unstable();
    ids.sort_unstable();
    assert_eq!(seen, ids);
}

#[test]
fn parquet_names_unfit_files_columns_and_rows() {
    let folder = crate::testing::Folder::new("parquet-bad");
    let path = folder.path("rows");
    write(&path, &[0..4, 4..10], Compression::UNCOMPRESSED);
    let name = path.to_str().unwrap().to_owned();
    let open =
        |columns: ColumnRules| DataReader::open(&[&name], settings(columns)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        open(ColumnRules::new("label")),
        format!("{name}: there is no column `label`; the columns are y, age, city, id, old, size, count")
    );
    assert_eq!(
        open(ColumnRules::new("city")),
        format!("{name}: column `city` is text and cannot be the label: give it the rule `Ignored` to leave it out")
    );
    let mut bad = settings(ColumnRules::new("id"));
    let read = |settings: ReaderSettings| {
        let mut batch = Minibatch::new();
        let mut source = DataReader::open(&[&name], settings).unwrap().source();
        source.fill(&mut batch).map(|_| batch.rows()).map_err(|error| error.to_string())
    };
    let malformed = "expected a label of -1, 0 or 1 in column `id`, found";
    assert_eq!(read(bad.clone()), Err(format!("{name}:3:4: {malformed} `2`")));
    bad.skip_bad = 7;
    assert_eq!(read(bad.clone()), Err(format!("{name}:10:4: {malformed} `9` (after 7 skipped malformed lines)")));
    bad.skip_bad = 8;
    assert_eq!(read(bad), Ok(2));
    let whole = std::fs::read(&path).unwrap();
    for length in [4, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let problem = open(ColumnRules::new("y"));
        assert!(problem.starts_with(&format!("{name}: is not a readable Parquet file: ")), "{problem}");
    }
    std::fs::write(&path, b"1 2:3\n").unwrap();
    assert_eq!(open(ColumnRules::new("y")), format!("{name}: is not a Parquet file: it does not start with `PAR1`"));
}

#[test]
fn parquet_never_panics_on_damaged_bytes() {
    let folder = crate::testing::Folder::new("parquet-damage");
    let path = folder.path("rows");
    write(&path, &[0..200, 200..300], Compression::SNAPPY);
    let whole = std::fs::read(&path).unwrap();
    for at in (4..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        std::fs::write(&path, &damaged).unwrap();
        let Ok(reader) = DataReader::open(&[path.to_str().unwrap()], settings(columns())) else { continue };
        let mut source = reader.source();
        let mut batch = Minibatch::new();
        while let Ok(true) = source.fill(&mut batch) {}
    }
}
