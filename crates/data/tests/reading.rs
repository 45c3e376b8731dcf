//! Tests of reading files as a program does: compressed, truncated, shared among workers, shuffled,
//! malformed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use data::{
    AHEAD, ColumnRule, Csv, DataError, DataReader, FeatureHash, Format, Labels, Minibatch, ReaderSettings, Shuffle,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A folder for a test's files, which is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("slackwater-reading-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn pattern(&self, pattern: &str) -> String {
        self.0.join(pattern).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 3).unwrap()
}

/// Rows with different first keys: `+1 n:1 …`, of many lengths.
fn text(rows: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    for n in rows {
        write!(text, "{} {n}:1", if n % 3 == 0 { "+1" } else { "-1" }).unwrap();
        for feature in 0..n % 17 {
            write!(text, " {}:0.{n}", 1_000_000 + feature).unwrap();
        }
        text.push('\n');
    }
    text
}

fn settings() -> ReaderSettings {
    let mut settings = ReaderSettings::new(Format::LibSvm, Labels::Binary);
    settings.minibatch_rows = 64;
    settings
}

/// The first key of every row, and how many rows each minibatch had.
fn read(reader: &DataReader) -> Result<(Vec<u64>, Vec<usize>), DataError> {
    let mut names = Vec::new();
    let mut sizes = Vec::new();
    for batch in reader.batches()? {
        let batch = batch?;
        names.extend(batch.iter().map(|row| row.keys[0]));
        sizes.push(batch.rows());
    }
    Ok((names, sizes))
}

/// The first key of every row of one file.
fn names(file: &str, settings: ReaderSettings) -> Result<Vec<u64>, String> {
    DataReader::open(&[file], settings)
        .and_then(|reader| read(&reader))
        .map(|(names, _)| names)
        .map_err(|e| e.to_string())
}

#[test]
fn compression_is_detected_by_the_first_bytes() {
    let folder = Folder::new("packing");
    let first = text(0..3000);
    let second = text(3000..5000);
    let both = format!("{first}{second}");
    let mut skippable = vec![0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
    skippable.extend(zstd(both.as_bytes()));
    for (name, bytes) in [
        ("plain.gz", both.clone().into_bytes()),
        ("without-last-line-end", both.trim_end().as_bytes().to_vec()),
        ("returns", both.replace('\n', "\r\n").into_bytes()),
        ("gzip.txt", gzip(both.as_bytes())),
        ("members.gz", [gzip(first.as_bytes()), gzip(b""), gzip(second.as_bytes())].concat()),
        ("cut-in-a-line.gz", [gzip(&both.as_bytes()[..12_345]), gzip(&both.as_bytes()[12_345..])].concat()),
        ("zstd.gz", zstd(both.as_bytes())),
        ("frames.zst", [zstd(first.as_bytes()), zstd(second.as_bytes())].concat()),
        ("skippable.zst", skippable),
    ] {
        let file = folder.write(name, bytes);
        let (names, sizes) = read(&DataReader::open(&[&file], settings()).unwrap()).unwrap();
        assert_eq!(names, (0..5000).collect::<Vec<_>>(), "{name}");
        assert_eq!(sizes, [vec![64; 78], vec![8]].concat(), "{name}");
    }
    assert_eq!(names(&folder.write("empty", ""), settings()), Ok(vec![]));
}

#[test]
fn files_are_read_in_the_order_given_and_patterns_in_alphabetical_order() {
    let folder = Folder::new("names");
    for (name, rows) in [("b", 20..30), ("a", 0..10), ("c[1]", 30..40)] {
        folder.write(name, text(rows));
    }
    std::fs::create_dir(folder.0.join("a-folder")).unwrap();
    let read = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|pattern| folder.pattern(pattern)).collect();
        DataReader::open(&patterns, settings()).and_then(|reader| read(&reader)).map(|(names, _)| names)
    };
    assert_eq!(read(&["*"]).unwrap(), (0..10).chain(20..40).collect::<Vec<_>>());
    assert_eq!(read(&["c[1]", "[ab]"]).unwrap(), (30..40).chain(0..10).chain(20..30).collect::<Vec<_>>());
    let missing = folder.pattern("d*");
    assert_eq!(read(&["a", "d*"]).unwrap_err().to_string(), format!("there is no file `{missing}`"));
    let wrong = folder.pattern("a***");
    assert!(read(&["a***"]).unwrap_err().to_string().starts_with(&format!("`{wrong}` is not a valid file pattern: ")));
    let none: [&str; 0] = [];
    assert_eq!(DataReader::open(&none, settings()).unwrap_err().to_string(), "the number of files cannot be 0");
}

#[test]
fn a_truncated_or_damaged_file_is_named_with_the_place() {
    let folder = Folder::new("damage");
    let text = text(0..20_000);
    for (name, packed, packing) in
        [("rows.gz", gzip(text.as_bytes()), "gzip"), ("rows.zst", zstd(text.as_bytes()), "zstd")]
    {
        for length in [packed.len() - 1, packed.len() - 8, packed.len() / 2, 20] {
            let file = folder.write(name, &packed[..length]);
            let expected = format!(
                "{file}: is truncated: its {packing} data is incomplete after {length} bytes; get the whole file"
            );
            assert_eq!(names(&file, settings()), Err(expected));
        }
        let mut damaged = packed.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 64].fill(0x5A);
        let file = folder.write(name, &damaged);
        // A damaged part may decompress to a malformed line before the decoder notices the damage.
        let problem = names(&file, settings()).unwrap_err();
        assert!(problem.starts_with(&file), "{problem}");
        let garbage = [&packed[..], b"and then something else"].concat();
        let problem = names(&folder.write(name, garbage), settings()).unwrap_err();
        assert!(problem.contains(": cannot be read at byte "), "{problem}");
    }
    let parquet = folder.write("rows.libsvm", b"PAR1 and so on");
    assert_eq!(
        names(&parquet, settings()),
        Err(format!("{parquet}: is a Parquet file, but is opened as another format; read it as Parquet"))
    );
}

#[test]
fn a_malformed_line_is_named_with_file_line_and_column() {
    let folder = Folder::new("malformed");
    let mut lines: Vec<String> = text(0..5000).lines().map(str::to_owned).collect();
    lines[16] = "+1 1:1 2:1 abc".to_owned();
    lines[4000] = "+1 1:nan".to_owned();
    lines[4999] = "what".to_owned();
    let text = lines.join("\n");
    for (name, bytes) in [("rows", text.clone().into_bytes()), ("rows.gz", gzip(text.as_bytes()))] {
        let file = folder.write(name, bytes);
        let allowing = |skip_bad| names(&file, ReaderSettings { skip_bad, ..settings() });
        assert_eq!(allowing(0), Err(format!("{file}:17:12: expected `index:value`, found `abc`")));
        let last = "expected a label of -1, 0 or 1, found `what` (after 2 skipped malformed lines)";
        assert_eq!(allowing(2), Err(format!("{file}:5000:1: {last}")));
        assert_eq!(allowing(3).unwrap().len(), 4997);
        // A worker that reads only its share of a plain file gives the right line number, too.
        let problems: Vec<String> = (0..8)
            .filter_map(|rank| {
                read(&DataReader::open(&[&file], settings()).unwrap().for_worker(rank, 8).unwrap()).err()
            })
            .map(|error| error.to_string())
            .collect();
        assert!(problems.iter().all(|problem| problem.contains(": expected ")), "{problems:?}");
        let all: Vec<&str> = problems.iter().map(|problem| problem[file.len()..].split(' ').next().unwrap()).collect();
        assert!(all.contains(&":17:12:"), "{all:?}");
        assert!(all.iter().all(|place| [":17:12:", ":4001:6:", ":5000:1:"].contains(place)), "{all:?}");
    }
    let file = folder.write("rows", &text);
    let reader = DataReader::open(&[&file], ReaderSettings { skip_bad: 3, epochs: 2, ..settings() }).unwrap();
    let mut batches = reader.batches().unwrap();
    assert_eq!(batches.by_ref().map(|batch| batch.unwrap().rows()).sum::<usize>(), 2 * 4997);
    let progress = batches.progress();
    assert_eq!((progress.bad_rows, progress.rows), (6, 2 * 4997));
    assert_eq!((progress.bytes, progress.bytes_total), (2 * reader.bytes(), 2 * reader.bytes()));
}

#[test]
fn a_line_above_the_limit_is_malformed_at_any_place() {
    let folder = Folder::new("long");
    let long = format!("+1 {}", "7:1 ".repeat(200_000));
    for (place, text) in [
        (1, format!("{long}\n{}", text(0..100))),
        (51, format!("{}{long}\n{}", text(0..50), text(50..100))),
        (101, format!("{}{long}", text(0..100))),
    ] {
        for (name, bytes) in [("rows", text.clone().into_bytes()), ("rows.zst", zstd(text.as_bytes()))] {
            let file = folder.write(name, bytes);
            // Less than is read at a time, and more.
            for line_limit_bytes in [5_000, 700_000] {
                let limited = ReaderSettings { line_limit_bytes, ..settings() };
                let expected = format!("expected a line of at most {line_limit_bytes} bytes, found a longer one");
                assert_eq!(names(&file, limited.clone()), Err(format!("{file}:{place}:1: {expected}")));
                let skipping = ReaderSettings { skip_bad: 1, ..limited };
                assert_eq!(names(&file, skipping), Ok((0..100).collect()));
            }
            assert_eq!(names(&file, settings()).unwrap().len(), 101);
        }
    }
}

#[test]
fn every_row_goes_to_one_worker_and_to_the_same_one_for_the_same_seed() {
    let folder = Folder::new("shares");
    // Some lines are much longer than a block.
    let long = format!("+1 9000:1 {}\n", "7:1 ".repeat(20_000));
    let texts = [text(0..4000), format!("{}{long}{long}{}", text(4000..4500), text(4500..6000)), text(6000..6010)];
    for packed in [false, true] {
        let files: Vec<String> = texts
            .iter()
            .enumerate()
            .map(|(number, text)| {
                folder
                    .write(&format!("{number}"), if packed { gzip(text.as_bytes()) } else { text.clone().into_bytes() })
            })
            .collect();
        for of in [1, 2, 3, 7] {
            let mut shares = Vec::new();
            for seed in [1, 1, 2] {
                let reader = DataReader::open(&files, ReaderSettings { seed, ..settings() }).unwrap();
                let parts: Vec<Vec<u64>> =
                    (0..of).map(|rank| read(&reader.for_worker(rank, of).unwrap()).unwrap().0).collect();
                let mut all = parts.concat();
                all.sort_unstable();
                let expected: Vec<u64> = (0..6010).chain([9000, 9000]).collect();
                assert_eq!(all, expected, "{of} workers, seed {seed}, packed: {packed}");
                let most = parts.iter().map(Vec::len).max().unwrap();
                assert!(most < 6012 / of as usize * 2, "{most} of 6012 rows for one of {of}");
                shares.push(parts);
            }
            assert_eq!(shares[0], shares[1]);
            assert!(of == 1 || shares[0] != shares[2], "another seed deals otherwise");
        }
    }
}

#[test]
fn epochs_follow_each_other_and_share_no_minibatch() {
    let folder = Folder::new("epochs");
    let file = folder.write("rows", text(0..100));
    let reader = DataReader::open(&[&file], ReaderSettings { epochs: 3, ..settings() }).unwrap();
    let seen: Vec<(u32, usize)> =
        reader.batches().unwrap().map(|batch| batch.map(|batch| (batch.epoch(), batch.rows())).unwrap()).collect();
    assert_eq!(seen, [(0, 64), (0, 36), (1, 64), (1, 36), (2, 64), (2, 36)]);
    let none = DataReader::open(&[&file], ReaderSettings { epochs: 0, ..settings() }).unwrap();
    assert_eq!(none.batches().unwrap().count(), 0);
}

#[test]
fn shuffle_moves_rows_within_its_buffer_and_loses_none() {
    let folder = Folder::new("shuffle");
    let file = folder.write("rows", text(0..1000));
    let shuffled = |seed| {
        let shuffle = Some(Shuffle { minibatches: 4 });
        let reader = DataReader::open(&[&file], ReaderSettings { seed, shuffle, epochs: 2, ..settings() }).unwrap();
        read(&reader).unwrap()
    };
    let (names, sizes) = shuffled(5);
    assert_eq!(sizes, [vec![64; 15], vec![40], vec![64; 15], vec![40]].concat());
    let (first, second) = names.split_at(1000);
    assert_ne!(first, second, "each epoch has an order of its own");
    for epoch in [first, second] {
        let mut all = epoch.to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        let stayed = epoch.iter().zip(0..).filter(|(name, place)| *name == place).count();
        assert!(stayed < 30, "{stayed} rows are where they were");
        assert!(epoch.iter().zip(0..).all(|(name, place)| name / 256 == place / 256));
    }
    assert_eq!(shuffled(5).0, names);
    assert_ne!(shuffled(6).0, names);
    let shuffle = Some(Shuffle { minibatches: 4 });
    let mut source = DataReader::open(&[&file], ReaderSettings { shuffle, ..settings() }).unwrap().source();
    source.fill(&mut Minibatch::new()).unwrap();
    assert_eq!((source.progress().rows, source.progress().rows_read), (64, 256));
}

#[test]
fn reading_ahead_is_bounded() {
    let folder = Folder::new("ahead");
    let file = folder.write("rows", text(0..64 * 200));
    let mut batches = DataReader::open(&[&file], settings()).unwrap().batches().unwrap();
    let first = batches.next().unwrap().unwrap();
    // One minibatch is received, `AHEAD` wait, and the thread holds one more.
    assert!(batches.progress().rows <= 64 * (AHEAD as u64 + 2));
    drop(first);
    // Dropping it before the end must end its thread; otherwise this hangs.
    drop(batches);
}

#[test]
fn a_line_that_starts_with_a_block_goes_to_exactly_one_worker() {
    let folder = Folder::new("boundaries");
    // A block of 16 KiB has exactly 1,024 of these lines.
    let text: String = (0..8 * 1024).map(|n| format!("+1 {n:08}:1.0\n")).collect();
    assert_eq!(text.len(), 8 * 16 * 1024);
    for bytes in [text.clone().into_bytes(), zstd(text.as_bytes())] {
        let reader = DataReader::open(&[&folder.write("rows", bytes)], settings()).unwrap();
        let parts: Vec<Vec<u64>> = (0..4).map(|rank| read(&reader.for_worker(rank, 4).unwrap()).unwrap().0).collect();
        assert!(parts.iter().all(|part| part.len() == 2 * 1024));
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..8 * 1024).collect::<Vec<_>>());
    }
}

#[test]
fn a_source_fills_minibatches_in_the_callers_thread() {
    let folder = Folder::new("source");
    let file = folder.write("rows", format!("{}bad\n", text(0..100)));
    let mut source = DataReader::open(&[&file], settings()).unwrap().source();
    let mut batch = Minibatch::new();
    assert!(source.fill(&mut batch).unwrap());
    assert_eq!(batch.rows(), 64);
    let problem = source.fill(&mut batch).unwrap_err().to_string();
    assert_eq!(problem, format!("{file}:101:1: expected a label of -1, 0 or 1, found `bad`"));
    assert!(!source.fill(&mut batch).unwrap(), "after an error there are no more");
    assert_eq!(batch.rows(), 0);
}

#[test]
fn a_heading_is_expected_in_every_file() {
    let folder = Folder::new("headings");
    let first = folder.write("1.csv", "\u{FEFF}y,a\n1,2\n0,3\n");
    let second = folder.write("2.csv", gzip(b"y,a\r\n1,4\r\n"));
    let third = folder.write("3.csv", "a,y\n1,4\n");
    let settings = ReaderSettings::new(Format::Csv(data::Csv::new("y")), Labels::Binary);
    let mut source = DataReader::open(&[&first, &second], settings.clone()).unwrap().source();
    let mut batch = Minibatch::new();
    assert!(source.fill(&mut batch).unwrap());
    assert_eq!((batch.labels(), batch.values()), (&[1.0, 0.0, 1.0][..], &[2.0, 3.0, 4.0][..]));
    let problem = problem_of(&[&first, &third], settings.clone());
    assert_eq!(problem, format!("{third}:1:1: expected the heading `y,a`, as in the first file, found `a,y`"));
    let wrong = ReaderSettings { format: Format::Csv(data::Csv::new("z")), ..settings };
    let problem = DataReader::open(&[&first], wrong).unwrap_err().to_string();
    assert_eq!(problem, format!("{first}: there is no column `z`; the columns are y, a"));
    assert!(Path::new(&first).exists());
}

fn problem_of(files: &[&String], settings: ReaderSettings) -> String {
    read(&DataReader::open(files, settings).unwrap()).unwrap_err().to_string()
}

#[test]
fn settled_columns_also_hold_for_other_files() {
    let folder = Folder::new("settled");
    let train = folder.write("train.csv", "y,size,town,id\n1,2.5,Delft,7\n0,3,Gouda,8\n");
    // In this file towns look like numbers, and there is a new column.
    let test = folder.write("test.csv", "town,new,y,size,id\n12,a,1,4,9\n");
    let mut csv = Csv::new("y");
    csv.columns.named = vec![("id".to_owned(), ColumnRule::Ignored)];
    let open = |file: &str, csv: &Csv| {
        DataReader::open(&[file], ReaderSettings::new(Format::Csv(csv.clone()), Labels::Binary)).expect("it is there")
    };
    let settled = open(&train, &csv).columns().expect("it can be read").expect("CSV has columns");
    let rules: Vec<(&str, ColumnRule)> = settled.named.iter().map(|(name, rule)| (name.as_str(), *rule)).collect();
    assert_eq!(rules, [("size", ColumnRule::Numeric), ("town", ColumnRule::Categorical), ("id", ColumnRule::Ignored)]);
    csv.columns = settled;
    let mut batch = Minibatch::new();
    open(&test, &csv).source().fill(&mut batch).expect("it can be read");
    let hash = FeatureHash::default();
    let keys = [hash.key(hash.space(b"town"), b"12"), hash.key_of_space(hash.space(b"size"))];
    assert_eq!((batch.keys(), batch.values()), (&keys[..], &[1.0, 4.0][..]));
}

#[test]
fn read_text_reads_whole_files_in_every_compression() {
    let folder = Folder::new("names");
    let text = "the\nfilm\n".repeat(50_000);
    for (name, bytes) in
        [("plain", text.clone().into_bytes()), ("a.gz", gzip(text.as_bytes())), ("a.zst", zstd(text.as_bytes()))]
    {
        assert!(data::read_text(folder.write(name, bytes).as_ref()).expect("it is there") == text, "{name}");
    }
}
