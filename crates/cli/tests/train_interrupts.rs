//! Interrupts of a training, and the metrics that it serves before.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;
mod scraping;
mod training;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use process::{Folder, LIMIT, Signal, fails, run, run_json, start};
use scraping::{check_metrics, figure, launched_at, scrape, scrape_until, served_at};
use serde_json::Value;
use training::{endless, made_up};

#[test]
fn an_interrupt_finishes_the_clock_and_writes_a_model_that_can_be_used() {
    let folder = Folder::new("interrupt");
    let data = folder.write("a.libsvm", &made_up(0..20_000));
    let out = folder.path("model");
    let mut train =
        start("train", &[&endless(&data, &out)[..], &["--workers=2", "--json", "--metrics=127.0.0.1:0"]].concat());
    let page = served_at(&mut train);
    let body = scrape(&page);
    check_metrics(&body);
    for name in ["received_bytes_total", "minibatches_total", "loss", "clock", "staleness_clocks_count"] {
        for worker in [0, 1] {
            assert!(figure(&body, &format!("slackwater_{name}{{worker=\"{worker}\"}}")) > 0.0, "{name}\n{body}");
        }
    }
    for name in [
        "bad_rows_total",
        "refused_parts_total",
        "parked_reads_total",
        "rows_waiting",
        "unacknowledged_bytes",
        "rows_per_second",
    ] {
        assert!(figure(&body, &format!("slackwater_{name}{{worker=\"1\"}}")) >= 0.0, "{name}\n{body}");
    }
    assert!(
        figure(&body, "slackwater_staleness_clocks_bucket{le=\"1.0\",worker=\"0\"}")
            == figure(&body, "slackwater_staleness_clocks_count{worker=\"0\"}")
    );
    // The port is taken, and another training fails at its start because of that.
    fails(&["train", "logistic", "--data", &data, "--metrics", &page.address], "cannot serve metrics at");
    train.signal(Signal::INT);
    assert!(train.end(), "{}", train.stderr());
    assert!(train.stderr().contains("interrupted: this clock is the last"), "{}", train.stderr());
    assert!(train.stderr().contains("the model learnt so far is written to"), "{}", train.stderr());
    let figures: Value = serde_json::from_str(&train.stdout()).unwrap();
    assert_eq!(figures["stopped"], true);
    assert!(figures["rows"].as_u64().unwrap() > 0);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!(predicted["figures"], figures["train"], "the model is there and whole");
    assert!(run(&["inspect", &out]).contains("stopped              true"));
}

#[test]
fn an_interrupt_ends_proximal_steps_after_the_clock_and_not_the_pass() {
    let folder = Folder::new("interrupt-proximal");
    let data = folder.write("a.libsvm", &made_up(0..2_000));
    let out = folder.path("model");
    // A pass of a million clocks, which the test does not wait for.
    let program = ["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.001", "--blocks=1000000"];
    for consistency in ["--slack=0", "--slack=3", "--async"] {
        let more = ["--epochs=1000", "--workers=2", "--json", "--metrics=127.0.0.1:0", "--out", &out, consistency];
        let mut train = start("train", &[&program[..], &more].concat());
        scrape_until(&served_at(&mut train), |body| figure(body, "slackwater_clock{worker=\"1\"}") > 100.0);
        train.signal(Signal::INT);
        assert!(train.end(), "{}", train.stderr());
        assert!(train.stderr().contains("interrupted: this clock is the last"), "{}", train.stderr());
        assert!(train.stderr().contains("the model learnt so far is written to"), "{}", train.stderr());
        let figures: Value = serde_json::from_str(&train.stdout()).unwrap();
        assert_eq!(figures["stopped"], true);
        assert!(figures["rows"].as_u64().unwrap() < 2_000, "less than a pass: {figures}");
        let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
        assert_eq!(predicted["figures"], figures["train"], "the model is there and whole");
        std::fs::remove_file(&out).unwrap();
    }
}

#[test]
fn a_second_interrupt_ends_a_process_at_once() {
    let folder = Folder::new("twice");
    let data = folder.write("a.libsvm", &made_up(0..100));
    // A process that joins here gets no answer, so only an interrupt can end it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator_address = listener.local_addr().unwrap().to_string();
    let mut worker =
        start("worker", &["worker", "--coordinator", &coordinator_address, "--", "train", "logistic", "--data", &data]);
    let _called = listener.accept().unwrap();
    worker.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(worker.ended().is_none(), "the first is only noted: {}", worker.stderr());
    let begin = Instant::now();
    let status = loop {
        // Repeat the signal: two that come too fast count as one.
        worker.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(50));
        if let Some(status) = worker.ended() {
            break status;
        }
        assert!(begin.elapsed() < LIMIT, "{}", worker.stderr());
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn launch_passes_an_interrupt_on_and_the_run_ends_with_its_model() {
    let folder = Folder::new("launched");
    let data = folder.write("a.libsvm", &made_up(0..20_000));
    let out = folder.path("model");
    let program = [
        &["launch", "--servers=2", "--workers=2", "--"],
        &endless(&data, &out)[..],
        &["--json", "--metrics=127.0.0.1:0"],
    ]
    .concat();
    let mut launch = start("launch", &program);
    let page = launched_at(&mut launch, "worker 0");
    check_metrics(&scrape(&page));
    launch.signal(Signal::INT);
    assert!(launch.end(), "{}", launch.stderr());
    assert!(launch.stderr().contains("worker 0 | interrupted: this clock is the last"), "{}", launch.stderr());
    let figures: Value = serde_json::from_str(&launch.stdout()).unwrap();
    assert_eq!(figures["stopped"], true);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!(predicted["figures"], figures["train"]);
}

#[test]
fn servers_of_a_launched_run_serve_metrics_of_their_own() {
    let folder = Folder::new("servers");
    let data = folder.write("a.libsvm", &made_up(0..20_000));
    let out = folder.path("model");
    let program = [
        &["launch", "--servers=2", "--workers=2", "--metrics=127.0.0.1:0", "--"],
        &endless(&data, &out)[..],
        &["--codec=bf16"],
    ]
    .concat();
    let mut launch = start("launch", &program);
    let page = launched_at(&mut launch, "server 1");
    let levels = ["rows_held", "sent_bytes_total", "received_bytes_total", "parked_reads_total"];
    let body = scrape_until(&page, |body| {
        levels.iter().all(|name| figure(body, &format!("slackwater_{name}{{server=\"1\"}}")) > 0.0)
    });
    check_metrics(&body);
    for name in ["unsent_bytes", "refused_parts_total"] {
        assert!(figure(&body, &format!("slackwater_{name}{{server=\"1\"}}")) >= 0.0, "{name}\n{body}");
    }
    let refused = "slackwater_refused_connections_total{server=\"1\",reason=\"bad_frame\"}";
    assert!(figure(&body, refused) >= 0.0, "{body}");
    assert!(figure(&body, "slackwater_codec_seconds_per_megabyte{server=\"1\",direction=\"up\"}") > 0.0, "{body}");
    launch.signal(Signal::INT);
    assert!(launch.end(), "{}", launch.stderr());
}
