//! `train --codec` as users run it: how much smaller messages are, which settings are refused, and
//! which notes are printed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use process::start;
use serde_json::Value;

/// A file of rows with 16 features of 2,000. Dropping it removes the file.
struct Data(PathBuf);

impl Data {
    fn new(name: &str, rows: u64) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-codecs-{name}-{}.libsvm", std::process::id()));
        let mut text = String::new();
        for row in 0..rows {
            let mut mixed = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5EED;
            let mut next = || {
                mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed >> 33
            };
            let mut features: Vec<u64> = (0..16).map(|_| 1 + next() % 2000).collect();
            features.sort_unstable();
            features.dedup();
            let weight: i64 = features.iter().map(|feature| if feature % 2 == 0 { 1 } else { -1 }).sum();
            write!(text, "{}", if weight > 0 { 1 } else { -1 }).unwrap();
            features.iter().for_each(|feature| write!(text, " {feature}:1").unwrap());
            text.push('\n');
        }
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn train(data: &Data, more: &[&str]) -> Value {
    let arguments = [&["train", "logistic", "--data", data.path(), "--json"], more].concat();
    let mut process = start(&arguments.join(" "), &arguments);
    assert!(process.end(), "{}", process.stderr());
    serde_json::from_str(&process.stdout()).unwrap()
}

/// Two workers, so that bytes between workers and servers are counted as in a run of processes.
const WORKERS: [&str; 4] = ["--workers=2", "--servers=1", "--updater=adagrad", "--epochs=3"];

#[test]
fn codecs_send_fewer_bytes_and_learn_the_same() {
    let data = Data::new("fewer", 4000);
    let plain = train(&data, &WORKERS);
    let with = |more: &[&str]| train(&data, &[&WORKERS, more].concat());
    let shrunk = with(&["--codec=keys,fixed8", "--codec-down=none"]);
    let sent = |run: &Value| run["bytes_sent_by_workers"].as_f64().unwrap();
    let loss = |run: &Value| run["train"]["log_loss"].as_f64().unwrap();
    // Keys that are spread over all 64 bits hardly shrink; values do.
    assert!(sent(&shrunk) < 0.75 * sent(&plain), "{} of {}", sent(&shrunk), sent(&plain));
    assert!((loss(&shrunk) - loss(&plain)).abs() < 0.05 * loss(&plain), "{} and {}", loss(&shrunk), loss(&plain));
    let codecs = &shrunk["codecs"][0];
    assert_eq!(codecs["up"], "keys, fixed8");
    assert!(codecs["ratio_up"].as_f64().unwrap() > 3.0, "{codecs}");
    let error = codecs["relative_error_up"].as_f64().unwrap();
    assert!(error > 0.0 && error < 0.1, "{codecs}");
    assert!(codecs["encode_ns_per_megabyte"].as_f64().unwrap() > 0.0, "{codecs}");
    assert_eq!(plain["codecs"], Value::Array(Vec::new()));
    // `spelt` sends all keys in every message: the baseline of the other codecs of keys.
    let spelt = with(&["--codec=spelt"]);
    assert!(sent(&spelt) > 1.2 * sent(&plain), "{} and {}", sent(&spelt), sent(&plain));
}

#[test]
fn lossy_codecs_both_ways_learn() {
    let data = Data::new("lossy", 4000);
    let plain = train(&data, &WORKERS);
    let both = train(&data, &[&WORKERS[..], &["--codec=keys,fixed12"]].concat());
    let loss = |run: &Value| run["train"]["log_loss"].as_f64().unwrap();
    // Lossy reads do not send a worker rows that it does not read, so it receives hardly more.
    let received = |run: &Value| run["bytes_received_by_workers"].as_f64().unwrap();
    assert!(received(&both) < 1.1 * received(&plain), "{} and {}", received(&both), received(&plain));
    assert!(loss(&both) < 1.2 * loss(&plain), "{} and {}", loss(&both), loss(&plain));
}

/// Weights that stay at zero are not sent, and the optimum is the same.
#[test]
fn the_kkt_filter_leaves_out_weights_that_stay_at_zero() {
    let data = Data::new("kkt", 3000);
    let steps = ["--updater=proximal", "--l1=0.004", "--epochs=300", "--blocks=2", "--tolerance=1e-6", "--workers=2"];
    let run = |codec: &str| train(&data, &[&steps[..], &[codec]].concat());
    let plain = run("--codec=spelt");
    let filtered = run("--codec=keys,kkt");
    let figure = |run: &Value, name: &str| run[name].as_f64().unwrap();
    let apart = figure(&plain, "objective") - figure(&filtered, "objective");
    assert!(apart.abs() < 1e-4 * figure(&plain, "objective"), "{apart} apart");
    assert_eq!(plain["features"], filtered["features"]);
    let sent = "bytes_sent_by_workers";
    assert!(
        figure(&filtered, sent) < 0.5 * figure(&plain, sent),
        "{} of {}",
        figure(&filtered, sent),
        figure(&plain, sent)
    );
}

#[test]
fn wrong_codecs_are_refused_or_noted() {
    let data = Data::new("refused", 50);
    for (more, words) in [
        (&["--codec=bf32"][..], "there is no codec 'bf32'"),
        (&["--codec=lz4,bf16"], "bf16 cannot come after lz4"),
        (&["--codec-down=1bit"], "ftrl's weights change with every example"),
        (&["--updater=sgd", "--slack=async", "--codec-down=1bit"], "asynchronous workers do not wait for clocks"),
        (&["--bandwidth=quick"], "100mbit"),
    ] {
        let arguments = [&["train", "logistic", "--data", data.path()], more].concat();
        start(&arguments.join(" "), &arguments).fails_saying(words);
    }
    let arguments = ["train", "logistic", "--data", data.path(), "--codec=fixed8"];
    let mut process = start("train", &arguments);
    assert!(process.end());
    assert!(process.stderr().contains("note: lossy codecs encode only what workers push"), "{}", process.stderr());
    let arguments = ["train", "logistic", "--data", data.path(), "--updater=adagrad", "--codec=1bit"];
    let mut process = start("train", &arguments);
    assert!(process.end());
    assert!(process.stderr().contains("1bit sends late what it leaves out"), "{}", process.stderr());
}

#[test]
fn a_job_file_lists_codecs_and_metrics_show_what_they_do() {
    let data = Data::new("metrics", 20_000);
    let job = data.0.with_extension("toml");
    let text = format!(
        "program = \"logistic\"\ndata = {:?}\nupdater = \"sgd\"\nworkers = 2\nepochs = 1000\ncodecs = [\"keys\", \"fixed8\"]\n\
         metrics = \"127.0.0.1:0\"\njson = true\n",
        data.path()
    );
    std::fs::write(&job, text).unwrap();
    let mut process = start("train", &["train", job.to_str().unwrap()]);
    let address = process
        .hear("where its metrics are", |said| Some(said.split_once("http://")?.1.split_once("/metrics")?.0.to_owned()));
    let figure = |body: &str, name: &str, direction: &str| -> Option<f64> {
        let line = body.lines().find(|line| {
            line.starts_with(name)
                && line.contains(&format!("direction=\"{direction}\""))
                && line.contains("worker=\"0\"")
        })?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let mut last = String::new();
    let shown = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let Ok(mut stream) = TcpStream::connect(&address) else { return false };
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        last.clear();
        stream.read_to_string(&mut last).ok();
        let ratio = |direction| figure(&last, "slackwater_codec_ratio", direction);
        let error = figure(&last, "slackwater_codec_relative_error", "up");
        let time = figure(&last, "slackwater_codec_seconds_per_megabyte", "up");
        ratio("up").is_some_and(|ratio| ratio > 3.0)
            && error.is_some_and(|error| error > 0.0 && error < 0.1)
            && time.is_some_and(|time| time > 0.0)
    });
    std::fs::remove_file(&job).ok();
    assert!(shown, "{last}");
}
