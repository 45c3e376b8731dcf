//! Tests with real processes: their output, their ends, and signals to them.

use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use launch::{OutputTarget, Process, ProcessError, Signal, Start, signal_process};

/// How long a test waits for a process before it fails.
const LIMIT: Duration = Duration::from_secs(60);

fn shell(script: &str) -> Start {
    Start::program("a shell", "sh").args(["-c", script])
}

/// Whether a process has this id and has not ended. A zombie has ended.
fn is_running(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn process_output_goes_where_it_is_sent() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = lines.clone();
    let each = move |line: &[u8]| heard.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
    let start = shell("echo $WORD; echo one >&2; printf two >&2; exit 3").env("WORD", "printed");
    let mut process = start.stdout(OutputTarget::Capture).stderr(OutputTarget::Lines(Box::new(each))).spawn().unwrap();
    assert_eq!(process.wait_for(LIMIT).unwrap().and_then(|status| status.code()), Some(3));
    assert_eq!((process.stdout(), process.stderr()), ("printed\n".to_owned(), String::new()));
    assert_eq!(*lines.lock().unwrap(), ["one", "two"]);
}

#[test]
fn process_that_does_not_end_is_killed_after_its_limit() {
    let mut process = shell("exec sleep 1000").spawn().unwrap();
    assert_eq!(process.wait_for(Duration::from_millis(20)).unwrap(), None);
    process.end_within(Duration::from_millis(20));
    assert_eq!(process.wait().unwrap().signal(), Some(9));
    // The process has ended, and its id may belong to another one: the signal must go nowhere.
    process.signal(Signal::KILL).unwrap();
}

#[test]
fn process_is_killed_when_it_is_dropped() {
    let process = shell("exec sleep 1000").spawn().unwrap();
    let id = process.id();
    drop(process);
    assert!(!is_running(id));
}

#[test]
fn process_gets_signals() {
    let script = "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut process = shell(script).stdout(OutputTarget::Capture).own_session().spawn().unwrap();
    while process.stdout().is_empty() {
        assert_eq!(process.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::TERM).unwrap();
    assert_eq!(process.wait_for(LIMIT).unwrap().and_then(|status| status.code()), Some(5));
    assert_eq!(process.stdout(), "ready\nheard\n");
}

#[cfg(target_os = "linux")]
#[test]
fn process_ends_with_the_thread_that_started_it() {
    let mut process: Process = std::thread::spawn(|| shell("exec sleep 1000").spawn().unwrap()).join().unwrap();
    assert_eq!(process.wait_for(LIMIT).unwrap().and_then(|status| status.signal()), Some(9));
}

#[test]
fn process_start_errors_name_the_program_and_its_role() {
    let error = Start::program("server 0", "/no/such/program").spawn().map(drop).unwrap_err();
    assert_eq!(error.to_string(), "cannot start /no/such/program as server 0");
}

#[test]
fn signal_process_refuses_ids_that_name_a_group() {
    for id in [0, u32::MAX] {
        let error = signal_process(id, Signal::KILL).unwrap_err();
        assert!(matches!(error, ProcessError::Signal { signal: 9, .. }), "{error}");
    }
}
