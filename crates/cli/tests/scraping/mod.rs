//! Shared by tests: scrapes the metrics of a process, as Prometheus does.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::process::{LIMIT, Process, run};

/// Where a process serves its metrics, and the bearer that it asks for.
pub struct Page {
    pub address: String,
    bearer: Option<String>,
}

/// Scrapes until some rows have been learnt from.
pub fn scrape(page: &Page) -> String {
    let has = |body: &str, name: &str| figure(body, &format!("slackwater_{name}{{worker=\"0\"}}")) > 0.0;
    scrape_until(page, |body| has(body, "rows_total") && has(body, "sent_bytes_total"))
}

/// Scrapes until `are_wanted` accepts the metrics, and returns them.
pub fn scrape_until(page: &Page, are_wanted: impl Fn(&str) -> bool) -> String {
    let mut last = String::new();
    let authorization = page.bearer.as_ref().map(|bearer| format!("Authorization: Bearer {bearer}\r\n"));
    let authorization = authorization.unwrap_or_default();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(&page.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        if are_wanted(body) {
            return body.to_owned();
        }
        last = body.to_owned();
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("these metrics never become what they should be:\n{last}");
}

pub fn figure(body: &str, name: &str) -> f64 {
    let line = body.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(f64::NAN, |line| line.trim().parse().unwrap())
}

/// Checks that every line is in the format: a comment about a metric, or a sample of the metric
/// that was last described.
pub fn check_metrics(body: &str) {
    assert!(body.ends_with("# EOF\n"));
    let mut described = (String::new(), String::new());
    for line in body.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            let [kind, name, text] = words[..] else { panic!("{line}") };
            match kind {
                "HELP" => {
                    assert!(text.ends_with('.'), "{line}");
                    described = (name.to_owned(), String::new());
                }
                "TYPE" => {
                    assert_eq!(name, described.0, "{line}");
                    described.1 = text.to_owned();
                }
                "UNIT" => assert!(name == described.0 && name.ends_with(&format!("_{text}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
        let (labels, value) = rest.split_once("} ").unwrap_or_else(|| panic!("{line}"));
        let suffix = name.strip_prefix(&described.0).unwrap_or_else(|| panic!("{line} is not of {described:?}"));
        let fits = match described.1.as_str() {
            "counter" => suffix == "_total",
            "gauge" => suffix.is_empty(),
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            _ => false,
        };
        assert!(fits && name.starts_with("slackwater_"), "{line}");
        assert!(
            labels.split(',').all(|label| label
                .split_once('=')
                .is_some_and(|(_, text)| text.starts_with('"') && text.ends_with('"'))),
            "{line}"
        );
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
}

/// The metrics of an insecure process.
pub fn served_at(process: &mut Process) -> Page {
    let address = process
        .hear("where its metrics are", |said| Some(said.split_once("http://")?.1.split_once("/metrics")?.0.to_owned()));
    Page { address, bearer: None }
}

/// The metrics of a process of a launched run, such as `worker 0`.
pub fn launched_at(launch: &mut Process, node: &str) -> Page {
    let said = |said: &str, words: &str, end: &str| {
        let words = format!("{node} | {words}");
        Some(said.split_once(&words)?.1.split_once(end)?.0.to_owned())
    };
    let address = launch.hear("where its metrics are", |log| said(log, "metrics are at http://", "/metrics"));
    let bearer = "readers send the bearer that `slackwater token http-bearer --token-file ";
    let token = launch.hear("which token its bearer is of", |log| said(log, bearer, "` prints"));
    let bearer = run(&["token", "http-bearer", "--token-file", &token]);
    Page { address, bearer: Some(bearer.trim_end().to_owned()) }
}
