//! A short siege: every attack is tried, no stranger is heard, and nothing is lost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::bench;

#[test]
fn bench_siege_tries_every_attack_and_loses_nothing() {
    let (figures, _) = bench(&["siege", "--seconds=30", "--rounds=1", "--passes=1"]);
    let number = |name: &str| figures[name].as_f64();
    for attack in [
        "plaintext_frame",
        "plaintext_long_header",
        "long_tls_record",
        "garbage",
        "half_handshake",
        "slow_loris_byte",
        "connections_without_a_byte",
        "tls_without_certificate",
        "tls_with_expired_certificate",
        "tls_with_certificate_of_another_job",
        "tls_with_certificate_of_another_authority",
        "reader_message",
        "worker_message",
        "server_message",
        "coordinator_message",
        "seated_worker_message",
        "seated_server_message",
        "unread_status_question",
        "name_of_one_connection",
        "join",
    ] {
        assert!(number(&format!("tried_{attack}")) > Some(0.0), "{attack} in {figures}");
    }
    for nothing in [
        "strangers_answered",
        "unauthenticated_frames",
        "rows_of_pushes_lost",
        "rows_of_pushes_doubled",
        "processes_ended",
    ] {
        assert_eq!(number(nothing), Some(0.0), "{nothing} in {figures}");
    }
    assert!(number("forbidden_messages") > Some(100.0), "{figures}");
    assert_eq!(number("forbidden_messages_refused"), number("forbidden_messages"), "{figures}");
    // The coordinator and three servers.
    assert_eq!(number("nodes_that_count_them"), Some(4.0), "{figures}");
    assert!(number("pushes_acknowledged") > Some(0.0), "{figures}");
}
