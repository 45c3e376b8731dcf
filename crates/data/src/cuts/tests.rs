//! Tests of ranges: together they have every row once and in order, for every format.

use super::*;
use crate::parquet::tests::{columns, write};
use crate::testing::Folder;
use crate::{Csv, Labels, Minibatch, ReaderSettings, Shuffle};
use ::parquet::basic::Compression;
use proptest::prelude::*;
use std::io::{Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Rows of a minibatch in these tests.
const BATCH: usize = 3;

fn settings(format: Format, labels: Labels) -> ReaderSettings {
    ReaderSettings { minibatch_rows: BATCH, ..ReaderSettings::new(format, labels) }
}

fn open(files: &[PathBuf], settings: ReaderSettings) -> DataReader {
    let names: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    DataReader::open(&names, settings).unwrap()
}

/// All minibatches of a reader. Checks that at the end the reader has counted all of its bytes as
/// read, and no others.
fn batches(reader: &DataReader) -> Result<Vec<Minibatch>, String> {
    let mut batches = Vec::new();
    let mut source = reader.source();
    let mut batch = Minibatch::new();
    while source.fill(&mut batch).map_err(|error| error.to_string())? {
        batches.push(batch.clone());
    }
    // In a compressed IDX file the checksum at the end may stay unread, because the header says how
    // long the data is.
    let progress = source.progress();
    assert!(progress.bytes <= progress.bytes_total && progress.bytes_total - progress.bytes <= 8, "{progress:?}");
    Ok(batches)
}

/// All rows of some minibatches, as one.
fn together<'a>(batches: impl IntoIterator<Item = &'a Minibatch>) -> Minibatch {
    let mut all = Minibatch::new();
    batches.into_iter().for_each(|batch| batch.iter().for_each(|row| all.copy_row(row)));
    all
}

/// Checks that all ranges, one after another, give what the files give: the same rows in the same
/// order, or the same fault. Also that each range has minibatches of its own, the same when it is
/// read again.
fn check(reader: &DataReader, target_bytes: u64) -> Cuts {
    let whole = batches(reader).map(|batches| together(&batches));
    let cuts = Cuts::of(reader, target_bytes).unwrap();
    let mut ranges = Vec::new();
    let mut fault = None;
    for index in 0..cuts.ranges() {
        let range = cuts.open(index).unwrap();
        let first = batches(&range);
        assert_eq!(first, batches(&range), "range {index} of {cuts}, read again");
        match first {
            Ok(batches) => {
                let (last, full) = batches.split_last().map_or((0, &[][..]), |(last, full)| (last.rows(), full));
                assert!(last <= BATCH && full.iter().all(|batch| batch.rows() == BATCH), "range {index} of {cuts}");
                ranges.extend(batches);
            }
            Err(problem) => {
                fault = Some(problem);
                break;
            }
        }
    }
    match (whole, fault) {
        (whole, None) => assert_eq!(Ok(together(&ranges)), whole, "{cuts}"),
        (whole, Some(fault)) => assert_eq!(Err(fault), whole, "{cuts}"),
    }
    cuts
}

/// The text: plain for 0, gzip for 1, else zstd.
fn packed(packing: u8, text: &[u8]) -> Vec<u8> {
    match packing {
        0 => text.to_vec(),
        1 => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(text).unwrap();
            out.finish().unwrap()
        }
        _ => zstd::encode_all(text, 1).unwrap(),
    }
}

/// A format, the heading of its files, lines that it accepts, and one that it rejects.
fn format(which: u8) -> (Format, &'static str, Vec<String>, &'static str) {
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<String>>();
    match which {
        0 => {
            let taken =
                lines(&["+1 3:1 11:0.5", "-1", "", " \t", "# a comment", "1 5 7:2 # more", "0 18446744073709551613:1"]);
            (Format::LibSvm, "", taken, "1 3:1 x")
        }
        1 => (Format::LibFfm, "", lines(&["1 0:3:1 1:11:0.5", "", "#", "0 4:4:4 # more"]), "1 0:3"),
        2 => {
            let taken = lines(&["1 2.5 'first|user age:0.3 male |item:0.5 shoe", "-1 |a b", "", "1 | x:2"]);
            (Format::VowpalWabbit, "", taken, "1 |a b:x")
        }
        3 => {
            let row = |label: u8, cells: &dyn Fn(usize) -> String| {
                std::iter::once(label.to_string()).chain((0..39).map(cells)).collect::<Vec<_>>().join("\t")
            };
            let some = row(1, &|cell| if cell % 3 == 0 { String::new() } else { format!("{cell}") });
            (Format::Criteo, "", vec![some, row(0, &|_| String::new()), String::new()], "1\t2")
        }
        _ => {
            let taken = lines(&["1,2.5,Delft", "0,,\"Gouda, \"\"G\"\"\"", "", "1,3,"]);
            (Format::Csv(Csv::new("y")), "y,size,town\n", taken, "1,2")
        }
    }
}

/// The text of one file: which lines, each with whether it ends in `\r\n`; whether the last one has
/// a line end; and how the file is compressed, as `write_texts` reads it.
type Text = (Vec<(prop::sample::Index, bool)>, bool, u8);

fn texts() -> impl Strategy<Value = Vec<Text>> {
    let text = (prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..24), any::<bool>(), 0u8..6);
    prop::collection::vec(text, 1..4)
}

/// Writes the files; `bad` chooses a line to be malformed. A file without lines has no bytes,
/// unless it is the first and its format needs a heading.
fn write_texts(folder: &Folder, which: u8, texts: &[Text], bad: Option<prop::sample::Index>) -> (Vec<PathBuf>, Format) {
    let (format, heading, taken, not_taken) = format(which);
    let bad = bad.map(|bad| bad.index(texts.iter().map(|(lines, _, _)| lines.len()).sum::<usize>().max(1)));
    let mut seen = 0;
    let files = (0..).zip(texts).map(|(number, (lines, ends, packing))| {
        let mut text = if lines.is_empty() && number > 0 { String::new() } else { heading.to_owned() };
        for (line, returns) in lines {
            text += if bad == Some(seen) { not_taken } else { &taken[line.index(taken.len())] };
            text += if *returns { "\r\n" } else { "\n" };
            seen += 1;
        }
        if !ends && !lines.is_empty() {
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
        }
        let path = folder.path(&format!("{number}"));
        // Most files are plain. A compressed file always has some bytes.
        std::fs::write(&path, packed(packing.saturating_sub(3), text.as_bytes())).unwrap();
        path
    });
    (files.collect(), format)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ranges_of_text_have_every_row_once_and_in_order(
        which in 0u8..5,
        texts in texts(),
        bad in prop::option::weighted(0.3, any::<prop::sample::Index>()),
        target_bytes in 1u64..300,
    ) {
        let folder = Folder::new(&format!("cuts-{which}"));
        let (files, format) = write_texts(&folder, which, &texts, bad);
        let reader = open(&files, settings(format, Labels::Binary));
        let cuts = check(&reader, target_bytes);
        let plain = texts.iter().all(|(_, _, packing)| *packing <= 3);
        if plain {
            let fewest = files.iter().map(|path| std::fs::metadata(path).unwrap().len().div_ceil(target_bytes)).sum::<u64>();
            prop_assert_eq!(cuts.ranges(), fewest);
        }
        for rank in 0..2 {
            let of_one = Cuts::of(&reader.for_worker(rank, 2).unwrap(), target_bytes).unwrap();
            prop_assert_eq!(of_one.fingerprint(), cuts.fingerprint());
        }
    }
}

#[test]
fn a_text_can_be_cut_at_every_size() {
    let folder = Folder::new("cuts-every");
    let path = folder.path("rows");
    let text =
        "\u{FEFF}# first\r\n+1 1:1\n\n\n-1 2:1 3:1\r\n \n+1 4:1 # more\n0\n+1 5:1 6:1 7:1 8:1 9:1 10:1\n\n-1 11:1";
    for text in [text, &text.replace('\n', "\r\n"), &format!("{text}\n"), &format!("{text}\n\n"), "\n", "x", "1", ""] {
        std::fs::write(&path, text).unwrap();
        let reader = open(std::slice::from_ref(&path), settings(Format::LibSvm, Labels::Binary));
        (1..text.len() as u64 + 3).for_each(|target_bytes| drop(check(&reader, target_bytes)));
    }
}

#[test]
fn a_fault_is_named_with_its_line_in_every_range() {
    let folder = Folder::new("cuts-faults");
    let path = folder.path("rows");
    let mut lines: Vec<String> = (0..200).map(|n| format!("+1 {n}:1")).collect();
    lines[150] = "+1 1:1 2:1 abc".to_owned();
    lines[180] = format!("+1 {}", "7:1 ".repeat(60));
    std::fs::write(&path, lines.join("\n")).unwrap();
    let limited = ReaderSettings { line_limit_bytes: 100, ..settings(Format::LibSvm, Labels::Binary) };
    let reader = open(std::slice::from_ref(&path), limited);
    let name = path.display();
    for target_bytes in [1, 7, 64, 1000, 10_000] {
        let cuts = check(&reader, target_bytes);
        let read = |skip_bad| {
            let ranges = (0..cuts.ranges()).map(|range| batches(&cuts.open(range).unwrap().allowing(skip_bad)));
            ranges
                .collect::<Result<Vec<_>, String>>()
                .map(|ranges| ranges.concat().iter().map(Minibatch::rows).sum::<usize>())
        };
        assert_eq!(read(0), Err(format!("{name}:151:12: expected `index:value`, found `abc`")));
        assert_eq!(read(2), Ok(198), "both, if they are in one range");
        let long = (0..cuts.ranges()).rev().find_map(|range| batches(&cuts.open(range).unwrap()).err()).unwrap();
        let expected = format!("{name}:181:1: expected a line of at most 100 bytes, found a longer one");
        assert!(long == expected || target_bytes > 64, "{long}");
    }
}

#[test]
fn ranges_of_parquet_are_row_groups() {
    let folder = Folder::new("cuts-parquet");
    let many = folder.path("many");
    let few = folder.path("few");
    write(&many, &[0..400, 400..401, 401..700, 700..1500, 1500..1600], Compression::SNAPPY);
    write(&few, std::slice::from_ref(&(1600..1700)), Compression::UNCOMPRESSED);
    let none = folder.path("none");
    write(&none, &[], Compression::UNCOMPRESSED);
    let reader = open(&[many.clone(), none, few.clone()], settings(Format::Parquet(columns()), Labels::Binary));
    assert_eq!(check(&reader, 1).ranges(), 6, "a range for each group");
    assert_eq!(check(&reader, u64::MAX).ranges(), 2, "one for each file that has rows");
    let mut counts: Vec<u64> = (1..60).map(|part| check(&reader, part * 300).ranges()).collect();
    counts.dedup();
    assert!(counts.len() > 3 && counts.is_sorted_by(|one, next| one > next), "{counts:?}");
    // The `id` of row 2 is not a label.
    let ids = open(&[few], settings(Format::Parquet(crate::ColumnRules::new("id")), Labels::Binary));
    check(&ids, 1);
    let ids = open(&[many], settings(Format::Parquet(crate::ColumnRules::new("id")), Labels::Binary)).allowing(200);
    let problem = batches(&Cuts::of(&ids, 1).unwrap().open(3).unwrap()).unwrap_err();
    assert!(problem.contains("many:901:4: expected a label of -1, 0 or 1 in column `id`, found `900`"), "{problem}");
}

fn idx(path: &Path, count: u32, packing: u8) {
    let head = [&[0, 0, 8, 2][..], &count.to_be_bytes(), &2u32.to_be_bytes()].concat();
    let image = |image: u32| [1 + (image / 250) as u8, 1 + (image % 250) as u8];
    let images = (0..count).fold(head, |file, number| [&file[..], &image(number)].concat());
    std::fs::write(path, packed(packing, &images)).unwrap();
    let labels =
        [&[0, 0, 8, 1][..], &count.to_be_bytes(), &(0..count).map(|n| (n % 10) as u8).collect::<Vec<_>>()].concat();
    let name = path.file_name().unwrap().to_str().unwrap().replace("images", "labels");
    std::fs::write(path.with_file_name(name), packed(packing, &labels)).unwrap();
}

#[test]
fn ranges_of_images_are_images() {
    let folder = Folder::new("cuts-idx");
    let files = [folder.path("a-images"), folder.path("b-images"), folder.path("c-images"), folder.path("d-images")];
    for (path, (count, packing)) in files.iter().zip([(1000, 0), (0, 0), (70, 1), (1, 0)]) {
        idx(path, count, packing);
    }
    for labels in [Labels::Classes { first: 0, count: 10 }, Labels::Ignored] {
        let reader = open(&files, settings(Format::Idx, labels));
        for (target_bytes, ranges) in [(1, 1002), (2, 1002), (3, 669), (64, 34), (2000, 3), (u64::MAX, 3)] {
            assert_eq!(check(&reader, target_bytes).ranges(), ranges, "{target_bytes} bytes");
        }
    }
    let reader = open(&files, settings(Format::Idx, Labels::Classes { first: 0, count: 9 }));
    let problem = batches(&Cuts::of(&reader, 4).unwrap().open(8).unwrap().allowing(0));
    assert!(problem.is_ok(), "images 16 and 17");
    let problem = batches(&Cuts::of(&reader, 4).unwrap().open(9).unwrap()).unwrap_err();
    assert!(problem.contains("a-labels:20:1: expected a class from 0 to 8, found `9`"), "{problem}");
}

#[test]
fn a_lease_of_a_later_epoch_is_the_same_range_in_another_order() {
    let folder = Folder::new("cuts-epochs");
    let path = folder.path("rows");
    std::fs::write(&path, (0..300).map(|n| format!("+1 {n}:1\n")).collect::<String>()).unwrap();
    let shuffled =
        ReaderSettings { shuffle: Some(Shuffle { minibatches: 40 }), ..settings(Format::LibSvm, Labels::Binary) };
    let cuts = Cuts::of(&open(std::slice::from_ref(&path), shuffled), 1000).unwrap();
    assert_eq!(cuts.ranges(), 3);
    let order = |lease: u64| {
        let batches = batches(&cuts.open(lease).unwrap()).unwrap();
        assert!(batches.iter().all(|batch| u64::from(batch.epoch()) == lease / 3), "lease {lease}");
        together(&batches).keys().to_vec()
    };
    for index in 0..3 {
        let orders = [order(index), order(index + 3), order(index + 30)];
        let sorted = orders.clone().map(|mut order| {
            order.sort_unstable();
            order
        });
        assert!(sorted[0] == sorted[1] && sorted[0] == sorted[2]);
        assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != sorted[0]);
        assert_eq!(orders[1], order(index + 3), "the same once more");
    }
    let problem = cuts.open(3 << 32).unwrap_err().to_string();
    assert_eq!(
        problem,
        format!("there is no lease {} of rows ({} bytes in 3 ranges of at most 1000)", 3u64 << 32, 2590)
    );
}

#[test]
fn fingerprint_differs_for_other_files_settings_and_cuts() {
    let here = Folder::new("cuts-here");
    let there = Folder::new("cuts-there");
    let rows = |folder: &Folder, name: &str, text: &str| {
        let path = folder.path(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = [rows(&here, "a", "1 1:1\n"), rows(&here, "b", "1 1:1\n0 2:1\n")];
    let plain = || settings(Format::LibSvm, Labels::Binary);
    let of = |files: &[PathBuf], settings, target_bytes| {
        Cuts::of(&open(files, settings), target_bytes).unwrap().fingerprint()
    };
    let fingerprint = of(&files, plain(), 8);
    let elsewhere = [rows(&there, "a", "1 2:1\n"), rows(&there, "b", "1 1:1\n0 2:1\n")];
    assert_eq!(of(&elsewhere, plain(), 8), fingerprint, "folders differ between hosts");
    let others = [
        of(&files, plain(), 9),
        of(&files[..1], plain(), 8),
        of(&[files[1].clone(), files[0].clone()], plain(), 8),
        of(&[rows(&there, "c", "1 1:1\n"), files[1].clone()], plain(), 8),
        of(&[rows(&there, "a", "1 1:10\n"), files[1].clone()], plain(), 8),
        of(&files, settings(Format::LibFfm, Labels::Binary), 8),
        of(&files, ReaderSettings { minibatch_rows: 4, ..plain() }, 8),
        of(&files, ReaderSettings { shuffle: Some(Shuffle { minibatches: 4 }), ..plain() }, 8),
        of(&files, ReaderSettings { shuffle: Some(Shuffle { minibatches: 4 }), seed: 1, ..plain() }, 8),
    ];
    let mut all = [&[fingerprint][..], &others].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 10);
}

#[test]
fn bad_cuts_and_changed_files_are_refused_with_the_cause() {
    let folder = Folder::new("cuts-refused");
    let path = folder.path("rows");
    std::fs::write(&path, "1 1:1\n").unwrap();
    let reader = open(std::slice::from_ref(&path), settings(Format::LibSvm, Labels::Binary));
    assert_eq!(Cuts::of(&reader, 0).unwrap_err().to_string(), "a range's bytes cannot be 0");
    let cuts = Cuts::of(&reader, 4).unwrap();
    std::fs::write(&path, "1 1:1\n0 2:1\n").unwrap();
    let problem = cuts.open(0).unwrap_err().to_string();
    let expected = "has changed: it had 6 bytes when the run began and has 12; start the run again";
    assert_eq!(problem, format!("{}: {expected}", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert!(cuts.open(0).unwrap_err().to_string().contains("rows: cannot be read"));
    std::fs::write(&path, "").unwrap();
    let empty = Cuts::of(&reader, 4).unwrap();
    assert_eq!((empty.ranges(), empty.to_string().as_str()), (0, "rows (0 bytes in 0 ranges of at most 4)"));
    assert!(empty.open(0).unwrap_err().to_string().starts_with("there is no lease 0 of rows"));
}

#[test]
fn ten_million_ranges_take_no_time() {
    let folder = Folder::new("cuts-many");
    let path = folder.path("rows");
    let mut file = std::fs::File::create(&path).unwrap();
    // A sparse file: a hole, except for its end.
    file.seek(SeekFrom::Start(39_999_999_993)).unwrap();
    file.write_all(b"\n1 7:1\n").unwrap();
    let reader = open(std::slice::from_ref(&path), settings(Format::LibSvm, Labels::Binary));
    let cuts = Cuts::of(&reader, 4000).unwrap();
    assert_eq!(cuts.ranges(), 10_000_000);
    let last = batches(&cuts.open(9_999_999).unwrap()).unwrap();
    assert_eq!(together(&last).keys(), [7]);
}
