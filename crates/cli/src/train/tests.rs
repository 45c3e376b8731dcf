//! Tests of the metrics of a training, scraped while it runs and after it has ended.

use super::*;
use clap::{Args, FromArgMatches};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Ten times what any of this takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A file of rows whose label one feature decides, and of malformed lines. Dropping it removes the
/// file.
struct Rows(PathBuf);

impl Rows {
    fn new(name: &str, good: u64, bad: u64) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-metrics-{name}-{}.libsvm", std::process::id()));
        let good = (0..good).map(|row| format!("{} {}:1 {}:1\n", row % 2, 1 + row % 2, 10 + row % 50));
        let text: String = good.chain((0..bad).map(|_| "1 nonsense\n".to_owned())).collect();
        std::fs::write(&path, text).expect("a file can be written");
        Self(path)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// A training of two workers in this process. Its metrics are still served when it is over.
struct Served {
    job: Job,
    interrupt: Interrupt,
    metrics: Metrics,
    exporter: Exporter,
}

impl Served {
    fn new(rows: &Rows, arguments: &[&str]) -> Self {
        let file = rows.0.to_str().expect("a path in UTF-8");
        let all = [&["train"], arguments, &["--data", file, "--workers=2", "--servers=2"]].concat();
        let matches = InProcess::augment_args(clap::Command::new("train")).try_get_matches_from(all);
        let given = InProcess::from_arg_matches(&matches.expect("these arguments can be")).expect("they can be").0;
        let job = prepare(&given, None).expect("the job makes sense").expect("there is one");
        let options = MetricsOptions { address: "127.0.0.1:0".to_owned(), step: 0, hosts: Vec::new() };
        let insecure = SecurityOptions { insecure: true, ..SecurityOptions::default() };
        let (metrics, exporter) = options.serve(&insecure, Role::Worker).expect("a port is free");
        Self { job, interrupt: Interrupt::unheard(), metrics, exporter }
    }

    /// Trains to the end, while `meanwhile` runs. Returns the result of each worker.
    fn train(&self, meanwhile: impl FnOnce() + Send) -> Vec<anyhow::Result<()>> {
        let Self { job, interrupt, metrics, .. } = self;
        let learnt = &AtomicU64::new(0);
        let sessions = Session::embedded(job.size()).expect("a cluster in this process");
        std::thread::scope(|scope| {
            let work = |session: Session| {
                scope.spawn(move || {
                    let worked = work_on(&session, job, interrupt, Some(metrics), learnt);
                    session.close().ok();
                    worked.map(drop)
                })
            };
            let workers: Vec<_> = sessions.into_iter().map(work).collect();
            scope.spawn(meanwhile);
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        })
    }

    /// Scrapes the metrics.
    fn scrape(&self) -> Scraped {
        let mut stream = TcpStream::connect(self.exporter.address()).expect("metrics are served");
        stream.set_read_timeout(Some(LIMIT)).expect("a time can be set");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request can be sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("there is an answer");
        let samples = answer.lines().filter(|line| line.starts_with("slackwater_"));
        let split = |line: &str| {
            let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
            (name.to_owned(), value.parse().expect("a value is a number"))
        };
        Scraped(samples.map(split).collect())
    }
}

/// Samples, by their names and labels.
struct Scraped(BTreeMap<String, f64>);

impl Scraped {
    /// A worker's sample. Panics if it is missing.
    fn of(&self, name: &str, worker: u32) -> f64 {
        self.exactly(&format!("{name}{{worker=\"{worker}\"}}"))
    }

    fn exactly(&self, sample: &str) -> f64 {
        let sample = format!("slackwater_{sample}");
        *self.0.get(&sample).unwrap_or_else(|| panic!("{sample} is not in {:#?}", self.0))
    }

    /// The samples whose names and labels start like this.
    fn starting(&self, with: &str) -> Vec<f64> {
        let with = format!("slackwater_{with}");
        self.0.iter().filter(|(sample, _)| sample.starts_with(&with)).map(|(_, value)| *value).collect()
    }

    /// The sum over both workers.
    fn sum(&self, name: &str) -> f64 {
        self.of(name, 0) + self.of(name, 1)
    }
}

#[test]
fn metrics_after_a_training_are_its_totals() {
    let rows = Rows::new("over", 5_000, 3);
    let arguments = ["logistic", "--epochs=4", "--minibatch=50", "--skip-bad=3"];
    let served = Served::new(&rows, &arguments);
    assert!(served.train(|| ()).into_iter().all(|worked| worked.is_ok()));
    let metrics = served.scrape();
    assert_eq!(metrics.sum("rows_total"), 4.0 * 5_000.0);
    assert_eq!(metrics.sum("bad_rows_total"), 4.0 * 3.0);
    assert_eq!(metrics.sum("refused_parts_total"), 0.0);
    let refused = metrics.starting("refused_connections_total{");
    assert!(refused.len() > 2, "one for each reason and worker");
    assert_eq!(refused.iter().sum::<f64>(), 0.0);
    assert!(metrics.sum("parked_reads_total") > 0.0, "in lock-step, workers wait for each other now and then");
    let minibatches = metrics.sum("minibatches_total");
    assert!((400.0..=408.0).contains(&minibatches), "{minibatches} of 50 rows, the last of an epoch fewer");
    for worker in [0, 1] {
        let of = |name: &str| metrics.of(name, worker);
        assert!(of("rows_total") > 5_000.0, "each has about half");
        assert_eq!(of("staleness_clocks_count"), of("minibatches_total"), "a read a minibatch");
        let in_step = metrics.exactly(&format!("staleness_clocks_bucket{{le=\"0.0\",worker=\"{worker}\"}}"));
        assert_eq!(in_step, of("staleness_clocks_count"), "lock-step");
        assert!(of("clock") >= of("minibatches_total"));
        // A minibatch has 20 features or more, 4 bytes each, both ways; keys and frames come on
        // top.
        let least = of("minibatches_total") * 20.0 * 4.0;
        for name in ["sent_bytes_total", "received_bytes_total"] {
            assert!((least..100.0 * least).contains(&of(name)), "{name} {} and {least}", of(name));
        }
        assert!((1e-4..0.1).contains(&of("loss")), "{} where one feature decides", of("loss"));
        let over = ["rows_per_second", "rows_waiting", "unacknowledged_bytes"].map(of);
        assert_eq!(over, [0.0; 3], "nothing goes on");
        for reason in ["bound", "network", "barrier"] {
            let waited = format!("waited_seconds_total{{worker=\"{worker}\",reason=\"{reason}\"}}");
            assert!((0.0..LIMIT.as_secs_f64()).contains(&metrics.exactly(&waited)));
        }
    }
}

#[test]
fn metrics_change_during_a_training() {
    let rows = Rows::new("lasts", 5_000, 0);
    let served = Served::new(&rows, &["logistic", "--epochs=1000000", "--minibatch=50", "--slack=1"]);
    let trained = served.train(|| {
        // A figure may be zero at any one time, so wait until each was seen above zero. The
        // interrupt ends the training in any case.
        let all = ["rows_per_second", "rows_waiting", "unacknowledged_bytes", "clock", "loss", "parked_reads_total"];
        let begin = Instant::now();
        let mut unseen = all.to_vec();
        let mut rows = 0.0;
        let mut growth = 0;
        while !(unseen.is_empty() && growth >= 3) && begin.elapsed() < LIMIT {
            // Before a worker has begun, it is not shown.
            if served.metrics.text().contains("slackwater_clock{worker=\"1\"}") {
                let metrics = served.scrape();
                unseen.retain(|name| metrics.of(name, 0).max(metrics.of(name, 1)) <= 0.0);
                growth += u32::from(metrics.sum("rows_total") > rows);
                rows = metrics.sum("rows_total");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        served.interrupt.tell();
        assert!(unseen.is_empty() && growth >= 3, "never more than nothing: {unseen:?}; rows grew {growth} times");
    });
    assert!(trained.into_iter().all(|worked| worked.is_ok()));
    let metrics = served.scrape();
    for worker in [0, 1] {
        let within = metrics.exactly(&format!("staleness_clocks_bucket{{le=\"1.0\",worker=\"{worker}\"}}"));
        assert_eq!(within, metrics.of("staleness_clocks_count", worker), "slack 1");
    }
}

#[test]
fn parts_that_a_server_refuses_are_counted() {
    let rows = Rows::new("refused", 2_000, 0);
    let served = Served::new(&rows, &["linear", "--updater=sgd", "--rate=1e30", "--minibatch=50", "--epochs=5"]);
    let trained = served.train(|| ());
    assert!(trained.iter().any(|worked| worked.is_err()), "weights that are no numbers are refused");
    let metrics = served.scrape();
    assert!(metrics.sum("refused_parts_total") > 0.0);
    assert!(metrics.sum("rows_total") < 5.0 * 2_000.0);
}
