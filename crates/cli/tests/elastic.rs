//! Training in elastic runs of real processes, which are killed and join during the run. Every
//! example of every epoch counts exactly once, and a worker that is there at the end writes the
//! model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{Folder, Process, Signal, signal, start};
use serde_json::Value;

const ROWS: u64 = 10_000;
const EPOCHS: u64 = 60;

/// A folder with a file to learn from.
fn with_rows(name: &str) -> Folder {
    let folder = Folder::new(name);
    let row = |row: u64| format!("{} {}:1 {}:1\n", row % 2, 1 + row % 2, 10 + row % 50);
    folder.write("rows.libsvm", &(0..ROWS).map(row).collect::<String>());
    folder
}

/// The command line of a training that lasts some seconds.
fn train(folder: &Folder, more: &[&str]) -> Vec<String> {
    let words = ["train", "logistic", "--minibatch=100", "--json"];
    let own = [format!("--data={}", folder.path("rows.libsvm")), format!("--out={}", folder.path("model.safetensors"))];
    let epochs = format!("--epochs={EPOCHS}");
    words.iter().chain(more).map(|word| (*word).to_owned()).chain(own).chain([epochs]).collect()
}

fn words<'a>(first: &[&'a str], then: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(["--"]).chain(then.iter().map(String::as_str)).collect()
}

/// Checks that one report was printed, in which every row of every epoch counts once.
fn check_report(printed: &str) -> Value {
    let report: Value = serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
    assert_eq!(report["rows"], ROWS * EPOCHS, "{report}");
    assert_eq!(report["minibatches"].as_u64().unwrap() % EPOCHS, 0, "each epoch is cut alike");
    assert_eq!(report["stopped"], false);
    assert!(report["train"]["log_loss"].as_f64().unwrap() < 0.05, "{report}");
    report
}

fn ranks(report: &Value) -> Vec<u64> {
    report["workers"].as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap()).collect()
}

#[test]
fn workers_that_are_killed_are_replaced_and_every_row_counts_once() {
    let folder = with_rows("killed");
    let program = train(&folder, &[]);
    let launch = ["launch", "--servers=3", "--workers=3", "--replicas=2", "--failure-timeout=2"];
    let mut launch = start("launch", &words(&launch, &program));
    let ids = ["worker 0", "worker 2"].map(|name| launch.started(name));
    launch.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
    // Worker 0 shows the progress, and would have written the model.
    signal(ids[0], Signal::KILL);
    launch.hear("that another comes", |said| said.contains(r#"working node="worker 3""#).then_some(()));
    signal(ids[1], Signal::KILL);
    assert!(launch.end(), "{}", launch.stderr());
    let said = launch.stderr();
    for words in ["another is started in its place, 1 of 64 at most", "started worker in place of worker 0"] {
        assert!(said.contains(words), "'{words}' is not in\n{said}");
    }
    let report = check_report(&launch.stdout());
    let ranks = ranks(&report);
    assert!(ranks[0] == 1 && ranks.contains(&3) && !ranks.contains(&2), "{ranks:?}");
    assert!(std::fs::metadata(folder.path("model.safetensors")).unwrap().len() > 0);
}

#[test]
fn an_expelled_worker_is_replaced() {
    let folder = with_rows("stopped");
    let program = train(&folder, &[]);
    let launch = ["launch", "--servers=2", "--workers=3", "--replicas=2", "--failure-timeout=1"];
    let mut launch = start("launch", &words(&launch, &program));
    let id = launch.started("worker 1");
    launch.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
    signal(id, Signal::STOP);
    launch.hear("that it is given up", |said| said.contains("2 workers are left").then_some(()));
    signal(id, Signal::CONT);
    assert!(launch.end(), "{}", launch.stderr());
    check_report(&launch.stdout());
    let said = launch.stderr();
    assert!(said.contains("the run counts worker 1, which is this node, as lost"), "{said}");
    assert!(said.contains("started worker in place of worker 1"), "{said}");
}

fn server(coordinator_address: &str, more: &[&str]) -> Process {
    start("server", &[&["server", coordinator_address, "--failure-timeout=2", "--join-limit=50"], more].concat())
}

#[test]
fn late_workers_take_their_share_or_are_turned_away_with_a_reason() {
    let folder = with_rows("later");
    let same = train(&folder, &[]);
    let other = train(&folder, &["--rate=0.2"]);
    let proximal: Vec<String> = ["train", "logistic", "--updater=proximal", "--l1=0.01"].map(str::to_owned).into();
    let proximal = [proximal, vec![format!("--data={}", folder.path("rows.libsvm"))]].concat();
    let coordinator_address = slackwater::cluster::free_address().unwrap().to_string();
    let coordinator_address = format!("--coordinator={coordinator_address}");
    let worker = ["worker", &coordinator_address, "--failure-timeout=2", "--join-limit=50"];
    let coordinate = ["--coordinate", "--servers=2", "--workers=2", "--replicas=2", "--shards-per-server=4"];
    let mut servers = [server(&coordinator_address, &coordinate), server(&coordinator_address, &[])];
    let mut workers: Vec<Process> = (0..2).map(|_| start("worker", &words(&worker, &same))).collect();
    let shows = loop {
        // The run decides which of them is worker 0.
        let shows = workers.iter().position(|worker| worker.stderr().contains("%: loss"));
        if let Some(shows) = shows {
            break shows;
        }
        workers.iter_mut().for_each(|worker| assert!(worker.ended().is_none(), "{}", worker.stderr()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    // Start them all at once, before the training ends.
    workers.push(start("worker", &words(&worker, &same)));
    let mut turned_away = [start("other", &words(&worker, &other)), start("proximal", &words(&worker, &proximal))];
    turned_away[0].fails_saying("two specs for one name");
    turned_away[1].fails_saying("takes no workers that join late");
    for worker in &mut workers {
        assert!(worker.end(), "{}", worker.stderr());
    }
    let printed: Vec<String> = workers.iter().map(Process::stdout).collect();
    let report = check_report(&printed.concat());
    let ranks = ranks(&report);
    assert!(ranks.len() == 3 && ranks[..2] == [0, 1], "{report}");
    assert!(!printed[shows].is_empty(), "the first worker prints it where it is there");
    servers.iter_mut().for_each(|server| assert!(server.end(), "{}", server.stderr()));
}

/// Checks that a training was stopped early and wrote its report and a model.
fn check_stopped(launch: &mut Process, folder: &Folder) -> Value {
    assert!(launch.end(), "{}", launch.stderr());
    let report: Value = serde_json::from_str(&launch.stdout()).unwrap();
    assert_eq!(report["stopped"], true, "{report}");
    assert!(std::fs::metadata(folder.path("model.safetensors")).unwrap().len() > 0);
    report
}

#[test]
fn an_elastic_run_ends_with_a_model_after_an_interrupt_or_an_order_to_leave() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = with_rows("interrupted");
        let program = train(&folder, &[]);
        let launch = ["launch", "--servers=2", "--workers=2", "--replicas=2", "--failure-timeout=2"];
        let mut launch = start("launch", &words(&launch, &program));
        launch.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
        launch.signal(signal);
        let report = check_stopped(&mut launch, &folder);
        let rows = report["rows"].as_u64().unwrap();
        assert!((ROWS * EPOCHS / 20..ROWS * EPOCHS).contains(&rows), "{report}");
    }
}

const LEFT: &str = "this worker was told to leave, and the others go on without it";

#[test]
fn a_draining_worker_is_not_replaced_and_the_others_learn_the_rest() {
    let folder = with_rows("leaving");
    let program = train(&folder, &[]);
    let launch = ["launch", "--servers=2", "--workers=3", "--replicas=2", "--failure-timeout=2"];
    let mut launch = start("launch", &words(&launch, &program));
    let ids = ["worker 1", "worker 2"].map(|name| launch.started(name));
    launch.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
    signal(ids[0], Signal::TERM);
    launch.hear("that it leaves", |said| said.contains(&format!("worker 1 | {LEFT}")).then_some(()));
    signal(ids[1], Signal::KILL);
    assert!(launch.end(), "{}", launch.stderr());
    let said = launch.stderr();
    assert!(said.contains("started worker in place of worker 2"), "others are replaced as before\n{said}");
    assert!(!said.contains("in place of worker 1") && !said.contains("launch | worker 1"), "{said}");
    let ranks = ranks(&check_report(&launch.stdout()));
    assert!(ranks.contains(&0) && !ranks.contains(&1) && !ranks.contains(&2), "{ranks:?}");
}

#[test]
fn the_last_draining_worker_writes_the_model() {
    let folder = with_rows("last");
    let program = train(&folder, &[]);
    let launch = ["launch", "--servers=2", "--workers=2", "--replicas=2", "--failure-timeout=2"];
    let mut launch = start("launch", &words(&launch, &program));
    let ids = ["worker 0", "worker 1"].map(|name| launch.started(name));
    launch.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
    signal(ids[0], Signal::TERM);
    launch.hear("that it leaves", |said| said.contains(&format!("worker 0 | {LEFT}")).then_some(()));
    signal(ids[1], Signal::USR1);
    let report = check_stopped(&mut launch, &folder);
    assert!(report["rows"].as_u64().unwrap() < ROWS * EPOCHS && ranks(&report) == [1], "{report}");
}

#[test]
fn proximal_steps_end_with_a_model_when_a_worker_is_told_to_leave() {
    let folder = with_rows("proximal");
    let program =
        ["train", "logistic", "--updater=proximal", "--l1=1e-5", "--tolerance=0", "--epochs=1000000", "--json"];
    let files =
        [format!("--data={}", folder.path("rows.libsvm")), format!("--out={}", folder.path("model.safetensors"))];
    let program: Vec<String> = program.iter().map(|word| (*word).to_owned()).chain(files).collect();
    let launch = ["launch", "--servers=2", "--workers=2", "--replicas=2", "--failure-timeout=2"];
    let mut launch = start("launch", &words(&launch, &program));
    let id = launch.started("worker 1");
    launch.hear("that it works", |said| said.contains(r#"working node="worker 1""#).then_some(()));
    // So many passes take long, so any time within them serves.
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(id, Signal::TERM);
    check_stopped(&mut launch, &folder);
}

/// How many clocks a short training took, by its last checkpoint.
fn clocks_of(folder: &Folder, per_clock: &str) -> u64 {
    let checkpoints = folder.path(per_clock);
    let place = format!("--checkpoint={checkpoints}");
    let launch = ["launch", "--servers=2", "--workers=1", "--replicas=2", "--failure-timeout=2", &place];
    let data = format!("--data={}", folder.path("rows.libsvm"));
    let per_clock = format!("--per-clock={per_clock}");
    let train = ["train", "logistic", "--minibatch=100", "--epochs=2", "--json", &data, &per_clock];
    let mut launch = start("launch", &[&launch[..], &["--"], &train].concat());
    assert!(launch.end(), "{}", launch.stderr());
    let manifests = std::fs::read_dir(checkpoints).unwrap().map(|entry| entry.unwrap().path().join("manifest.json"));
    let newest = manifests.filter(|manifest| manifest.exists()).max().expect("a checkpoint");
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(newest).unwrap()).unwrap();
    manifest["clock"].as_u64().unwrap()
}

#[test]
fn per_clock_sets_how_many_minibatches_a_clock_holds() {
    let folder = with_rows("clocks");
    let minibatches = 2 * ROWS / 100;
    let single = clocks_of(&folder, "1");
    let several = clocks_of(&folder, "10");
    assert!(single >= minibatches && several >= minibatches / 10 && several <= minibatches / 5, "{single}, {several}");
}
