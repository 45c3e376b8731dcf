//! Recordings of runs of real processes, and their replays.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use process::{ENDLESS, Folder, Process, Signal, signal, start};

const SMALL: [&str; 10] = [
    "demo",
    "--rows=600",
    "--features=500",
    "--minibatch=20",
    "--base-ms=2",
    "--clocks=9",
    "--out",
    "/dev/null",
    "--json",
    "--slack=2",
];

fn replay(arguments: &[&str]) -> (bool, Process) {
    let mut replay = start("replay", &[&["replay"], arguments].concat());
    (replay.end(), replay)
}

/// The start and the length of the body of the first entry of this kind.
fn first_entry(recording: &[u8], wanted: u8) -> (usize, usize) {
    let mut at = 12;
    loop {
        let length = u64::from_le_bytes(recording[at..at + 8].try_into().unwrap()) as usize;
        if recording[at + 8] == wanted {
            return (at + 9, length);
        }
        at += 17 + length;
    }
}

/// Writes the right checksum behind an entry, as a deliberate change would.
fn seal(recording: &mut [u8], (body, length): (usize, usize)) {
    let check = xxhash_rust::xxh3::xxh3_64(&recording[body - 1..body + length]);
    recording[body + length..body + length + 8].copy_from_slice(&check.to_le_bytes());
}

fn with_a_bit_turned(file: &Path, place: usize) -> Vec<u8> {
    let mut recording = std::fs::read(file).unwrap();
    recording[place] ^= 4;
    recording
}

#[test]
fn a_recorded_run_replays_to_the_same_bytes_and_a_changed_byte_is_found() {
    let folder = Folder::new("launched");
    let recorded = folder.path("");
    let line = [&["launch", "--servers=2", "--workers=2", "--record", &recorded, "--"][..], &SMALL].concat();
    let mut launch = start("launch", &line);
    assert!(launch.end(), "{}", launch.stderr());

    let (same, fed_back) = replay(&[&recorded]);
    assert!(same, "{}{}", fed_back.stdout(), fed_back.stderr());
    let nodes = ["coordinator", "server-0", "server-1", "worker-0", "worker-1"];
    let said = fed_back.stdout();
    assert_eq!(said.lines().count(), nodes.len(), "{said}");
    for (line, node) in said.lines().zip(nodes) {
        assert!(line.contains(&format!("{node}.recording: ")) && line.ends_with("frames, identical"), "{line}");
        let counts: Vec<usize> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        assert!(counts.len() == 2 && counts.iter().all(|count| *count > 10), "{line}");
    }

    // Change one bit of a frame that was sent: first by accident, then with the right checksum.
    let of_worker = folder.0.join("worker-1.recording");
    let mode = std::fs::metadata(&of_worker).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a recording is for its user only");
    let (body, length) = first_entry(&std::fs::read(&of_worker).unwrap(), 2);
    let mut changed = with_a_bit_turned(&of_worker, body + length / 2);
    std::fs::write(&of_worker, &changed).unwrap();
    let (same, fed_back) = replay(&[&recorded]);
    assert!(!same && fed_back.stdout().contains("worker-1.recording is damaged"), "{}", fed_back.stdout());
    assert!(fed_back.stderr().contains("1 of 5 recordings could not be replayed"), "{}", fed_back.stderr());
    seal(&mut changed, (body, length));
    std::fs::write(&of_worker, &changed).unwrap();
    let (same, fed_back) = replay(&[of_worker.to_str().unwrap(), "--json"]);
    assert!(!same);
    let found: serde_json::Value = serde_json::from_str(&fed_back.stdout()).unwrap();
    assert_eq!(found["first_difference"], 0, "{found}");
    assert!(found["frames"].as_u64() > Some(10), "{found}");

    // A second run does not overwrite the recordings.
    let mut again = start("launch", &line);
    again.fails_saying("name a folder without recordings");
    assert_eq!(std::fs::read(&of_worker).unwrap(), changed);
}

#[test]
fn a_recording_of_a_killed_process_is_compared_to_its_end() {
    let folder = Folder::new("killed");
    let recorded = folder.path("");
    let line =
        [&["launch", "--servers=1", "--workers=2", "--failure-timeout=1", "--record", &recorded, "--"][..], &ENDLESS]
            .concat();
    let mut launch = start("launch", &line);
    let process = launch.started("worker 1");
    let of_worker = folder.0.join("worker-1.recording");
    let has_much = |_: &str| of_worker.metadata().is_ok_and(|file| file.len() > 50_000).then_some(());
    launch.hear("anything while the recording grew", has_much);
    signal(process, Signal::KILL);
    launch.fails_saying("worker 1");

    let (same, fed_back) = replay(&[&recorded]);
    let said = fed_back.stdout();
    assert!(same, "{said}{}", fed_back.stderr());
    let of = |node: &str| said.lines().find(|line| line.contains(node)).unwrap_or_default().to_owned();
    assert!(of("worker-1").ends_with("identical, and the recording ends before the run did"), "{said}");
    for node in ["coordinator", "server-0", "worker-0"] {
        assert!(of(node).ends_with("identical"), "{said}");
    }
}

#[test]
fn training_in_one_process_can_be_recorded() {
    let folder = Folder::new("trained");
    let data = folder.0.join("rows.libsvm");
    let rows: String = (0..200).map(|row| format!("{} {}:1 {}:0.5\n", row % 2, row % 7 + 1, 10 + row % 11)).collect();
    std::fs::write(&data, rows).unwrap();
    let recorded = folder.0.join("recorded");
    let words = ["logistic", "--data", data.to_str().unwrap(), "--minibatch=10", "--workers=2", "--servers=2"];
    let record = ["--record", recorded.to_str().unwrap()];
    let mut train = start("train", &[&["train"], &words[..], &record].concat());
    assert!(train.end(), "{}", train.stderr());
    let (same, fed_back) = replay(&[recorded.to_str().unwrap()]);
    assert!(same && fed_back.stdout().lines().count() == 5, "{}{}", fed_back.stdout(), fed_back.stderr());

    // (the command line, words of the refusal)
    let job = folder.0.join("job.toml");
    std::fs::write(&job, "program = \"logistic\"\ndata = [\"rows.libsvm\"]\nrecord = \"there\"\n").unwrap();
    let nothing = folder.0.join("nothing");
    let cases: [(&[&str], &str); 4] = [
        (&["worker", "--coordinator=127.0.0.1:1", "--", "train", job.to_str().unwrap()], "before the `--`"),
        (
            &["worker", "--coordinator=127.0.0.1:1", "--record", data.to_str().unwrap(), "--", "demo"],
            "cannot record to",
        ),
        (&["replay", &folder.path("")], "there are no recordings in"),
        (&["replay", nothing.to_str().unwrap()], "1 of 1"),
    ];
    for (line, words) in cases {
        start(&line.join(" "), line).fails_saying(words);
    }
}
