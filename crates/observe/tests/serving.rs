//! Metrics as an HTTP client sees them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use observe::{
    CONNECTIONS, CONTENT_TYPE, CodecCost, DEADLINE, Exporter, ExporterSettings, Metrics, ServerState, WorkerState,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use types::{RefusalReason, Refusals};

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A client that is still sending when the exporter closes the connection gets a reset, or no
    // answer.
    stream.read_to_end(&mut answer).ok();
    String::from_utf8(answer).unwrap()
}

#[test]
fn exporter_answers_valid_requests_and_survives_others() {
    let metrics = Metrics::new();
    let worker = metrics.worker(3);
    worker.learnt(500, 0.25, 2, 1);
    worker.speed(1500.5);
    worker.state(&WorkerState {
        bytes_sent: 7,
        refused_parts: 1,
        bad_rows: 2,
        waited_seconds: [0.5, 0.0, 1.0],
        clock: 9,
        ..WorkerState::default()
    });
    let mut refused_connections = Refusals::default();
    (0..4).for_each(|_| refused_connections.count(RefusalReason::FrameTimeout));
    let down = CodecCost { ratio: Some(2.0), relative_error: Some(0.5), seconds_per_megabyte: None };
    metrics.server(
        1,
        &ServerState {
            refused_connections,
            parked_reads: 6,
            rows_held: 8,
            codecs: [CodecCost::default(), down],
            ..ServerState::default()
        },
    );
    let exporter = Exporter::start("127.0.0.1:0", metrics, ExporterSettings::default()).unwrap();
    let address = exporter.address();
    let long = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'a'; 20_000], b"\r\n\r\n"].concat();
    for (request, status) in [
        (&b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], "HTTP/1.1 200 OK"),
        (b"GET /metrics?name=a HTTP/1.0\r\nHost: 10.0.0.7:1\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404"),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 421"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400"),
        (b"\xFF\xFE nonsense\r\n\r\n", "HTTP/1.1 400"),
        (b"\r\n\r\n", "HTTP/1.1 400"),
        (&long, ""),
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with(status), "{:?}: {answer}", String::from_utf8_lossy(request));
    }
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("Content-Type: {CONTENT_TYPE}"))
            && head.contains(&format!("Content-Length: {}", body.len()))
    );
    for line in [
        "# TYPE slackwater_rows counter",
        "# UNIT slackwater_sent_bytes bytes",
        "slackwater_rows_total{worker=\"3\"} 500",
        "slackwater_refused_parts_total{worker=\"3\"} 1",
        "slackwater_parked_reads_total{worker=\"3\"} 1",
        "slackwater_bad_rows_total{worker=\"3\"} 2",
        "slackwater_sent_bytes_total{worker=\"3\"} 7",
        "slackwater_waited_seconds_total{worker=\"3\",reason=\"barrier\"} 1.0",
        "slackwater_staleness_clocks_bucket{le=\"1.0\",worker=\"3\"} 0",
        "slackwater_staleness_clocks_bucket{le=\"2.0\",worker=\"3\"} 1",
        "slackwater_staleness_clocks_count{worker=\"3\"} 1",
        "slackwater_rows_per_second{worker=\"3\"} 1500.5",
        "slackwater_loss{worker=\"3\"} 0.25",
        "slackwater_clock{worker=\"3\"} 9",
        "slackwater_parked_reads_total{server=\"1\"} 6",
        "slackwater_refused_connections_total{server=\"1\",reason=\"frame_timeout\"} 4",
        "slackwater_refused_connections_total{server=\"1\",reason=\"idle\"} 0",
        "slackwater_refused_connections_total{worker=\"3\",reason=\"bad_frame\"} 0",
        "slackwater_rows_held{server=\"1\"} 8",
        "slackwater_codec_relative_error{server=\"1\",direction=\"down\"} 0.5",
        "# EOF",
    ] {
        assert!(body.lines().any(|found| found == line), "{line} is not in\n{body}");
    }
    drop(exporter);
    assert!(TcpStream::connect(address).is_err(), "a dropped exporter still listens");
}

#[test]
fn exporter_refuses_an_address_that_is_taken() {
    let exporter = Exporter::start("127.0.0.1:0", Metrics::new(), ExporterSettings::default()).unwrap();
    assert!(Exporter::start(exporter.address(), Metrics::new(), ExporterSettings::default()).is_err());
}

#[test]
fn slow_clients_do_not_keep_others_out() {
    // Nothing ends a slow client's connection within the time of a test, except a newer one.
    let settings = ExporterSettings { deadline: Duration::from_secs(1000), ..ExporterSettings::default() };
    let exporter = Exporter::start("127.0.0.1:0", Metrics::new(), settings).unwrap();
    let address = exporter.address();
    // They say nothing, or half a request.
    let slow = |words: &'static [u8]| {
        (0..CONNECTIONS)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(words).unwrap();
                stream
            })
            .collect::<Vec<_>>()
    };
    let held = [slow(b""), slow(b"GET /metrics")];
    for _ in 0..3 * CONNECTIONS {
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "no answer while {} clients are slow: {answer}", held.len());
    }
}

#[test]
fn a_connection_ends_at_its_deadline_though_the_client_goes_on() {
    let settings = ExporterSettings { deadline: Duration::from_millis(300), ..ExporterSettings::default() };
    let exporter = Exporter::start("127.0.0.1:0", Metrics::new(), settings).unwrap();
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let begin = std::time::Instant::now();
    // A byte now and then: each read is quick, and the request never ends.
    let is_closed = |stream: &mut TcpStream| match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    };
    while stream.write_all(b"a").is_ok() && !is_closed(&mut stream) {
        assert!(begin.elapsed() < DEADLINE * 4, "the connection is never closed");
    }
}
