//! `slackwater tail` beside a run of real processes: its lines, applied in order, give the table,
//! even when the servers that answer it are killed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod process;

use counting::server;
use process::{LIMIT, Process, free_address, json, start, until};
use slackwater::policy::NumberType;
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Session, Table, TableSpec};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const WIDTH: usize = 2;
const ROWS: u64 = 500;

fn tail(coordinator_address: &str, more: &[&str]) -> Process {
    let coordinator = format!("--coordinator={coordinator_address}");
    start("tail", &[&["tail", "followed", &coordinator, "--json"], more].concat())
}

fn session(coordinator_address: &str) -> Session {
    let connect = Connect {
        failure_timeout: Duration::from_secs(2),
        join_limit: Duration::from_secs(100),
        access: Access::Insecure,
        ..Connect::to(coordinator_address)
    };
    Session::connect(&connect).unwrap()
}

fn table(session: &Session) -> Table<i64> {
    let spec = TableSpec::sparse("followed", WIDTH as u32).number(NumberType::I64).consistency(Consistency::slack(0));
    session.table(spec).unwrap()
}

/// Applies each line in order. Returns the rows, and how often a shard started over.
fn applied(printed: &str) -> (BTreeMap<u64, Vec<i64>>, usize) {
    let mut shards: BTreeMap<u64, BTreeMap<u64, Vec<i64>>> = BTreeMap::new();
    let mut started_over = 0;
    // The last line may not be whole yet.
    for line in printed.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let line = json(line);
        let rows = shards.entry(line["shard"].as_u64().unwrap()).or_default();
        if line["starts_over"] == true {
            started_over += 1;
            rows.clear();
        } else if line["deleted"] == true {
            rows.remove(&line["id"].as_u64().unwrap());
        } else {
            let values = line["values"].as_array().unwrap().iter().map(|value| value.as_i64().unwrap()).collect();
            rows.insert(line["id"].as_u64().unwrap(), values);
        }
    }
    (shards.into_values().flatten().collect(), started_over)
}

fn scanned(table: &Table<i64>) -> BTreeMap<u64, Vec<i64>> {
    let rows = table.scan(..).unwrap().wait().unwrap();
    rows.ids().iter().copied().zip(rows.values().chunks_exact(WIDTH).map(<[i64]>::to_vec)).collect()
}

/// Adds to some rows and deletes others.
fn change(table: &Table<i64>, round: u64) {
    let pushed: Vec<u64> = (0..ROWS).filter(|id| !(id + round).is_multiple_of(3)).collect();
    let deleted: Vec<u64> = (0..ROWS).filter(|id| (id + round).is_multiple_of(5)).collect();
    table.push(&table.keys(&pushed), vec![1; pushed.len() * WIDTH]).unwrap().wait().unwrap();
    table.delete(&table.keys(&deleted)).unwrap().wait().unwrap();
}

/// Waits until the lines give the table, and returns how often a shard started over.
fn follows(tail: &Process, table: &Table<i64>) -> usize {
    let begin = Instant::now();
    loop {
        let (rows, started_over) = applied(&tail.stdout());
        let there = scanned(table);
        if rows == there {
            return started_over;
        }
        let different = there.iter().filter(|(id, row)| rows.get(id) != Some(row)).count();
        let have = rows.len();
        let want = there.len();
        let said = tail.stderr();
        assert!(begin.elapsed() < LIMIT, "{have} rows instead of {want}, {different} of them not as they are:\n{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn tail_prints_every_change_when_the_servers_that_answer_it_are_killed() {
    let coordinator_address = free_address();
    let shape = ["--coordinate", "--servers=3", "--workers=1", "--replicas=2", "--shards-per-server=2", "--place=0"];
    let mut first = server(&coordinator_address, "server 0", &shape);
    let mut second = server(&coordinator_address, "server 1", &["--place=1"]);
    let mut third = server(&coordinator_address, "server 2", &["--place=2"]);
    let session = session(&coordinator_address);
    let table = table(&session);
    change(&table, 0);
    let tail = tail(&coordinator_address, &["--rows", "--limit=60"]);
    assert_eq!(follows(&tail, &table), 0, "nothing has happened to any server");
    (1..20).for_each(|round| change(&table, round));
    assert_eq!(follows(&tail, &table), 0);

    second.kill();
    (20..40).for_each(|round| change(&table, round));
    let started_over = follows(&tail, &table);
    assert!((1..=6).contains(&started_over), "{started_over} of six shards had their head on the lost server");

    // Every shard has two replicas again before the next loss.
    first.says("has its replicas");
    third.kill();
    (40..60).for_each(|round| change(&table, round));
    assert!(follows(&tail, &table) > started_over);
    session.close().unwrap();
    assert!(first.end(), "{}", first.stderr());
}

#[test]
fn tail_ends_after_a_count_and_names_the_tables_that_there_are() {
    let coordinator_address = free_address();
    let mut server = server(&coordinator_address, "server", &["--coordinate", "--servers=1", "--workers=1"]);
    let session = session(&coordinator_address);
    let table = table(&session);
    table.push(&table.keys(&[7]), vec![1, 2]).unwrap().wait().unwrap();
    let coordinator = format!("--coordinator={coordinator_address}");
    start("tail", &["tail", "other", &coordinator]).fails_saying("its tables are: 'followed'");

    let mut all = start("tail", &["tail", "followed", &coordinator, "--rows", "--count=1"]);
    assert!(all.end(), "{}", all.stderr());
    assert_eq!(all.stdout(), "clock 0: 7: 1 2\n");

    let mut later = tail(&coordinator_address, &["--count=2"]);
    // Push until the reader has begun and printed two rows.
    until("tail has seen two changes", || {
        table.push(&table.keys(&[8]), vec![1, 1]).unwrap().wait().unwrap();
        later.ended().is_some()
    });
    assert!(later.end(), "{}", later.stderr());
    assert_eq!(later.stdout().lines().count(), 2);
    assert_eq!(json(later.stdout().lines().next().unwrap())["id"], 8);
    session.close().unwrap();
    assert!(server.end());
    start("tail", &["tail", "followed", &coordinator, "--limit=1"]).fails_saying("is it running?");
}
