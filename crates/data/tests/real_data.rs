//! Tests of the readers on real data sets: every row is read, and the counts are the published
//! ones. A test whose data set is missing prints that it is skipped, and passes.
//!
//! `SLACKWATER_DATA` names the folder of the data sets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use data::{
    ColumnRule, Csv, CsvHeader, DataReader, FeatureHash, Format, Labels, Minibatch, ReaderSettings, Weighting,
    bag_of_words, data_set,
};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// The folder of a data set, if it is there.
fn folder(set: &str) -> Option<PathBuf> {
    data_set(set).inspect_err(|why| eprintln!("SKIPPED: {why}")).ok()
}

/// Counts of a data set: rows, features, rows with label 1, the largest key, and different keys.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    rows: usize,
    features: usize,
    positive: usize,
    largest: u64,
    different: usize,
}

fn count(files: &[PathBuf], settings: ReaderSettings) -> Counts {
    let names: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let reader = DataReader::open(&names, settings).unwrap();
    let mut counts = Counts::default();
    let mut keys = HashSet::new();
    for batch in reader.batches().unwrap() {
        let batch = batch.unwrap();
        counts.rows += batch.rows();
        counts.features += batch.features();
        counts.positive += batch.labels().iter().filter(|&&label| label == 1.0).count();
        keys.extend(batch.keys().iter().copied());
    }
    counts.largest = keys.iter().copied().max().unwrap_or_default();
    counts.different = keys.len();
    // Every row goes to exactly one worker.
    let parts = (0..3).map(|rank| {
        let mut source = reader.for_worker(rank, 3).unwrap().source();
        let mut rows = 0;
        let mut batch = Minibatch::new();
        while source.fill(&mut batch).unwrap() {
            rows += batch.rows();
        }
        rows
    });
    assert_eq!(parts.sum::<usize>(), counts.rows);
    counts
}

#[test]
fn libsvm_sets_have_their_published_counts() {
    // Set, file, rows, non-zeros, positive rows, largest index; 0 stands for a number that is not
    // published.
    for (set, file, rows, features, positive, largest) in [
        ("a9a", "a9a.gz", 32_561, 451_592, 7_841, 123),
        ("a9a", "a9a.t.gz", 16_281, 225_731, 3_846, 122),
        ("census", "census_148d_train.libsvm.gz", 22_792, 13 * 22_792, 5_437, 148),
        ("census", "census_148d_train.dummy.gz", 22_792, 13 * 22_792, 5_437, 147),
        ("census", "census_148d_test.dummy.gz", 9_769, 13 * 9_769, 2_404, 0),
        ("imdb", "imdb.train.libsvm.zst", 25_000, 3_416_334, 12_500, 27_911),
        ("imdb", "imdb.test.libsvm.zst", 25_000, 3_325_073, 12_500, 27_911),
        ("rcv1-sample", "rcv1_small.train.libsvm.gz", 1_000, 77_739, 459, 47_117),
        ("rcv1-sample", "rcv1_small.test.libsvm.gz", 500, 0, 245, 0),
        ("ipinyou-sample", "train.fm.txt.gz", 26_773, 16 * 26_773, 255, 0),
        ("ipinyou-sample", "test.fm.txt.gz", 21_150, 16 * 21_150, 50, 0),
    ] {
        let Some(folder) = folder(set) else { continue };
        let counts = count(&[folder.join(file)], ReaderSettings::new(Format::LibSvm, Labels::Binary));
        assert_eq!((counts.rows, counts.positive), (rows, positive), "{file}");
        assert!(features == 0 || counts.features == features, "{file}: {counts:?}");
        assert!(largest == 0 || counts.largest == largest, "{file}: {counts:?}");
    }
}

#[test]
fn criteo_has_39_features_a_row() {
    let Some(folder) = folder("criteo-sample") else { return };
    for (file, rows, positive) in [("train.tsv.gz", 7_200, 1_549), ("dev.tsv.gz", 409, 93), ("test.tsv.gz", 391, 86)] {
        let mut settings = ReaderSettings::new(Format::Criteo, Labels::Binary);
        settings.hash = FeatureHash::new(0, 18).unwrap();
        let counts = count(&[folder.join(file)], settings);
        assert_eq!((counts.rows, counts.features, counts.positive), (rows, 39 * rows, positive), "{file}");
        assert!(counts.largest < 1 << 18);
    }
}

#[test]
fn avazu_has_22_features_a_row_with_and_without_a_heading() {
    let Some(folder) = folder("avazu-sample") else { return };
    let names = "id click hour C1 banner_pos site_id site_domain site_category app_id app_domain app_category device_id \
                 device_ip device_model device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21";
    let mut csv = Csv::new("click");
    csv.header = CsvHeader::Names(names.split_whitespace().map(str::to_owned).collect());
    csv.columns.others = ColumnRule::Categorical;
    csv.columns.named = vec![("id".to_owned(), ColumnRule::Ignored)];
    let settings = ReaderSettings::new(Format::Csv(csv.clone()), Labels::Binary);
    let files = ["train.csv.gz", "dev.csv.gz", "test.csv.gz"].map(|file| folder.join(file));
    let counts = count(&files, settings);
    let rows = 8_087 + 480 + 432;
    assert_eq!((counts.rows, counts.features, counts.positive), (rows, 22 * rows, 1_397 + 86 + 80));
    csv.header = CsvHeader::FirstLine;
    let counts = count(&files[..1], ReaderSettings::new(Format::Csv(csv), Labels::Binary));
    assert_eq!((counts.rows, counts.features, counts.positive), (8_087, 22 * 8_087, 1_397));
}

#[test]
fn housing_has_eight_numbers_a_row() {
    let Some(folder) = folder("cal-housing") else { return };
    for (file, features) in [("cal_housing_full.data.gz", 8), ("cal_housing.data.gz", 5)] {
        let csv = Csv::new("medianHouseValue");
        let counts = count(&[folder.join(file)], ReaderSettings::new(Format::Csv(csv), Labels::Real));
        assert_eq!((counts.rows, counts.features, counts.different), (20_640, features * 20_640, features), "{file}");
    }
}

#[test]
fn newsgroups_are_rows_of_twenty_classes() {
    let Some(folder) = folder("20news") else { return };
    let [docword, labels] = ["docword.20news.txt.zst", "labels.20news.tsv.zst"].map(|file| folder.join(file));
    let mut rows = 0;
    let mut features = 0;
    let mut empty = 0;
    for part in ["train", "test"] {
        let path = std::env::temp_dir().join(format!("slackwater-20news-{}-{part}", std::process::id()));
        let mut file = BufWriter::new(File::create(&path).unwrap());
        bag_of_words(&docword, &labels, part, Weighting::Counts, &mut file).unwrap();
        file.flush().unwrap();
        let mut source = DataReader::open(
            &[path.to_str().unwrap()],
            ReaderSettings::new(Format::LibSvm, Labels::Classes { first: 0, count: 20 }),
        )
        .unwrap()
        .source();
        let mut batch = Minibatch::new();
        let before = rows;
        while source.fill(&mut batch).unwrap() {
            rows += batch.rows();
            features += batch.features();
            empty += batch.iter().filter(|row| row.keys.is_empty()).count();
        }
        assert_eq!(rows - before, if part == "train" { 11_314 } else { 7_532 });
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!((rows, features, empty), (18_846, 1_387_805, 47));
}
