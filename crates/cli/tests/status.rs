//! `slackwater status` of a run of real processes: the nodes, slow workers, workers that others
//! wait for, and each time-out with its reason.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod process;

use counting::server;
use process::{ENDLESS, LIMIT, Signal, free_address, json, start};
use serde_json::Value;
use std::time::{Duration, Instant};

fn status(coordinator_address: &str) -> Value {
    let mut asked = start("status", &["status", &format!("--coordinator={coordinator_address}"), "--json"]);
    assert!(asked.end(), "{}", asked.stderr());
    json(&asked.stdout())
}

/// Asks for the status until `found` accepts it.
fn status_when(coordinator_address: &str, what: &str, found: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let status = status(coordinator_address);
        if found(&status) {
            return status;
        }
        assert!(begin.elapsed() < LIMIT, "never {what}: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn names(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

#[test]
fn a_worker_that_is_held_up_is_named_and_every_time_out_says_why() {
    let coordinator_address = free_address();
    let failure_timeout = "--failure-timeout=8";
    let shape = [
        "--coordinate",
        "--servers=2",
        "--workers=2",
        "--replicas=2",
        "--shards-per-server=2",
        "--place=0",
        failure_timeout,
    ];
    let mut first = server(&coordinator_address, "server 0", &shape);
    let mut second = server(&coordinator_address, "server 1", &["--place=1", failure_timeout]);
    let coordinator_flag = format!("--coordinator={coordinator_address}");
    let works = [&["worker", &coordinator_flag, failure_timeout, "--"], &ENDLESS[..]].concat();
    let mut workers = ["one worker", "another worker"].map(|name| start(name, &works));
    let tables =
        |status: &Value| status["tables"].as_array().unwrap().iter().any(|table| table["frontier"].as_u64() > Some(0));
    let begun = status_when(&coordinator_address, "a frontier", tables);
    let member = |status: &Value, kind: &str| -> Vec<Value> {
        let members = status["members"].as_array().unwrap().iter();
        members.filter(|member| member["node"].as_str().unwrap().starts_with(kind)).cloned().collect()
    };
    assert_eq!((member(&begun, "server").len(), member(&begun, "worker").len()), (2, 2), "{begun}");
    let measured = status_when(&coordinator_address, "measurements", |status| {
        let has = |member: &Value| member["round_trip"]["count"].as_u64() > Some(1);
        member(status, "").iter().all(has)
            && member(status, "worker").iter().all(|worker| worker["step"]["mean_s"].is_f64())
    });
    // Each says what it is for, how long it is, and what it is derived from.
    let of = |status: &Value, words: &str| -> Value {
        let members =
            status["members"].as_array().unwrap().iter().flat_map(|member| member["timeouts"].as_array().unwrap());
        let all: Vec<&Value> = status["timeouts"].as_array().unwrap().iter().chain(members).collect();
        let found = all.iter().find(|timeout| timeout["what"].as_str().unwrap().contains(words));
        (*found.unwrap_or_else(|| panic!("nothing about '{words}' in {status}"))).clone()
    };
    let rows = [
        ("silent worker is given up", "failure timeout", 8.0),
        ("server stops answering", "four fifths of the failure timeout", 6.4),
        ("silent server is given up", "a quarter", 10.0),
        ("sends a heartbeat", "a quarter of the failure timeout", 0.5),
    ];
    for (what, why, seconds) in rows {
        let timeout = of(&measured, what);
        assert!(timeout["why"].as_str().unwrap().contains(why) && timeout["seconds"] == seconds, "{timeout}");
    }
    for what in ["asks again", "batch is resent down the chain"] {
        let timeout = of(&measured, what);
        assert!(timeout["measured"]["count"].as_u64() > Some(0), "{timeout}");
        assert!(timeout["why"].as_str().unwrap().contains("four deviations"), "{timeout}");
    }
    // The run decided which rank the second process has.
    let said = workers[1].stderr();
    let rank = said.split("node=\"worker ").nth(1).and_then(|rest| rest.split('"').next()).expect("it says its rank");
    let held_up = format!("worker {rank}");
    // A worker that is stopped for less than the failure timeout is named, and not lost.
    workers[1].signal(Signal::STOP);
    let waits = status_when(&coordinator_address, "that it is waited for", |status| {
        let silent = member(status, &held_up)[0]["silent_s"].as_f64() > Some(1.0);
        silent && names(&status["waited_for"]) == [held_up.as_str()]
    });
    workers[1].signal(Signal::CONT);
    let asked = format!("--coordinator={coordinator_address}");
    let mut text = start("status", &["status", &asked, "--verbose"]);
    assert!(text.end());
    for words in ["time-outs:", "weights, lock-step  ", "measured", "per clock"] {
        assert!(text.stdout().contains(words), "no '{words}' in {}", text.stdout());
    }
    status_when(&coordinator_address, "that it goes on", |status| {
        status["slowest_clock"].as_u64() > waits["slowest_clock"].as_u64()
    });
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        assert!(worker.end(), "{}", worker.stderr());
    }
    assert!(first.end() && second.end(), "{}\n{}", first.stderr(), second.stderr());
    assert!(!first.stderr().contains("is lost"), "{}", first.stderr());
}
