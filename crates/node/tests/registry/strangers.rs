//! Servers at etcd's address that are not etcd, or that do not answer properly.

use crate::proxy::{Stand, is_request, read_until};
use crate::{etcd::Etcd, lead, stand};
use node::registry::{CoordinatorRegistry, RegistryError};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The leader lease: it allows a quarter of a second for each request.
const LEASE: Duration = Duration::from_secs(1);

/// A server that reads a request, sends `words` a number of times with pauses, and hangs up.
fn says(words: &'static [u8], times: usize, pause: Duration) -> Stand {
    Stand::new(move |mut stream: TcpStream, over: &AtomicBool| {
        read_until(&mut stream, over, is_request);
        for _ in 0..times {
            if over.load(Ordering::SeqCst) || stream.write_all(words).is_err() {
                return;
            }
            std::thread::sleep(pause);
        }
    })
}

/// The errors of a campaign, a load and a request for the leader.
fn errors(endpoint: &str) -> Vec<RegistryError> {
    let mut registry = stand(&[endpoint], "a:1", LEASE);
    let now = Instant::now();
    let campaign = registry.campaign(now).map(|standing| panic!("{standing:?}"));
    let load = registry.load().map(|memory| panic!("{memory:?}"));
    let leader = registry.leader(now).map(|leader| panic!("{leader:?}"));
    [campaign, load, leader].into_iter().map(|failed: Result<(), _>| failed.expect_err("no etcd")).collect()
}

#[test]
fn servers_that_are_not_etcd_are_named_as_such() {
    let once = |words| says(words, 1, Duration::ZERO);
    let page = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<html>Hi</html";
    let strangers = [
        (once(page), "it says `<html>Hi</html`"),
        (once(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found"), "HTTP status 404"),
        (once(b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), "HTTP status 301"),
        (once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), "its header"),
        (once(b"\xff\xfe\x00 what is this? \x01\x02\r\n\r\n"), "does not speak HTTP"),
        (once(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "does not speak HTTP"),
        (says(b"X-Endless: header\r\n", usize::MAX, Duration::ZERO), "does not speak HTTP"),
        (once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "does not speak HTTP"),
    ];
    for (stranger, words) in strangers {
        for error in errors(&stranger.endpoint()) {
            let said = error.to_string();
            let is_named = said.contains(&stranger.endpoint()) && said.contains("not the expected etcd");
            assert!(is_named && said.contains(words), "{said} should say {words}");
        }
    }
}

#[test]
fn endless_answers_are_not_read_to_the_end() {
    let head = b"HTTP/1.1 200 OK\r\n\r\n                                                      ";
    let endless = says(head, usize::MAX, Duration::ZERO);
    for error in errors(&endless.endpoint()) {
        assert!(matches!(error, RegistryError::NotEtcd { .. } | RegistryError::Unreachable { .. }), "{error}");
    }
}

#[test]
fn calls_end_in_time_if_the_server_is_slow_or_silent() {
    let pause = Duration::from_millis(10);
    let silent = Stand::new(|mut stream, over| drop(read_until(&mut stream, over, |_| false)));
    let slow_body = Stand::new(|mut stream, over| {
        read_until(&mut stream, over, is_request);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").ok();
        while !over.load(Ordering::SeqCst) && stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let slow_head = says(b"H", usize::MAX, pause);
    for (name, stranger) in [("silent", silent), ("slow body", slow_body), ("slow head", slow_head)] {
        let begin = Instant::now();
        for error in errors(&stranger.endpoint()) {
            let said = error.to_string();
            let is_clear = said.contains(&stranger.endpoint()) && said.contains("no answer within 0.25 s");
            assert!(is_clear || said.contains("does not speak HTTP"), "{name}: {said}");
        }
        assert!(begin.elapsed() < LEASE * 10, "{name}");
    }
}

#[test]
fn unreachable_errors_say_how_long_no_endpoint_has_answered() {
    // A server that is dropped leaves an address at which no process listens.
    let unused = || Stand::new(|_, _| ()).endpoint();
    let endpoints = [unused(), unused()];
    let mut registry = stand(&[&endpoints[0], &endpoints[1]], "a:1", LEASE);
    registry.load().expect_err("no server listens");
    std::thread::sleep(Duration::from_millis(300));
    let error = registry.campaign(Instant::now()).expect_err("no server listens");
    let said = error.to_string();
    assert!(endpoints.iter().all(|endpoint| said.contains(&format!("{endpoint}: connection refused"))), "{said}");
    let RegistryError::Unreachable { silent, .. } = error else { panic!("{said}") };
    assert!(silent >= Duration::from_millis(300), "{said}");
}

#[test]
fn a_server_that_hangs_up_is_unreachable() {
    let shy = Stand::new(|_, _| ());
    for error in errors(&shy.endpoint()) {
        assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    }
}

#[test]
fn the_registry_asks_the_next_endpoint_when_one_fails() {
    let Some(etcd) = Etcd::start() else { return };
    let silent = Stand::new(|mut stream, over| drop(read_until(&mut stream, over, |_| false)));
    let page = says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 1, Duration::ZERO);
    let unused = Stand::new(|_, _| ()).endpoint();
    let all = [unused, silent.endpoint(), page.endpoint(), etcd.endpoint()];
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut registry = stand(&all, "a:1", Duration::from_secs(16));
    lead(&mut registry);
    registry.save(Instant::now(), b"plan 1").expect("the last one is etcd");
    assert_eq!(registry.load(), Ok(Some(b"plan 1".to_vec())));
}

#[test]
fn endpoints_of_two_clusters_are_not_mixed() {
    let (Some(mut first), Some(second)) = (Etcd::start(), Etcd::start()) else { return };
    let mut registry = stand(&[&first.endpoint(), &second.endpoint()], "a:1", Duration::from_secs(8));
    lead(&mut registry);
    first.kill();
    let said = registry.save(Instant::now(), b"plan 1").expect_err("the other is another").to_string();
    assert!(said.contains("connection refused") && said.contains("belongs to etcd cluster"), "{said}");
}
