//! Exactly-once pushes over real sockets and through shared memory: connections break at every byte
//! of an exchange, and at random in longer runs. Afterwards the tables hold every push once, and no
//! node waits for ever.

mod deadline;
mod proxy;

use deadline::{LIMIT, ends};
use proxy::{Proxy, Way, free_address};
use slackwater::cluster::SameHost;
use slackwater::policy::NumberType;
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Error, RunSize, Serve, Session, Table, TableSpec};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An address where no node listens. A node that advertises it can be answered only on connections
/// that it made itself.
const NOWHERE: &str = "127.0.0.1:9";

/// The transports between nodes of one host.
const WAYS: [SameHost; 2] = [SameHost::Tcp, SameHost::SharedMemory];

/// Runs all of these at once. Each must end, and together they must have cut connections more than
/// `least` times.
fn cuts_of_all<F: FnOnce() -> u64 + Send + 'static>(what: &'static str, least: u64, runs: impl Iterator<Item = F>) {
    let runs: Vec<_> = runs.map(|run| std::thread::spawn(move || ends(what, run))).collect();
    let cuts: u64 = runs.into_iter().map(|run| run.join().expect("a good end")).sum();
    println!("{what}: {cuts} cuts");
    assert!(cuts > least, "{what}: only {cuts} cuts happened");
}

fn connect(coordinator_address: SocketAddr, same_host: SameHost) -> Connect {
    // Long, so that a busy machine does not count as a lost node.
    Connect {
        join_limit: LIMIT / 2,
        failure_timeout: LIMIT / 2,
        same_host,
        access: Access::Insecure,
        ..Connect::to(&coordinator_address.to_string())
    }
}

/// A coordinator, and servers with a proxy before each. `served` tells how the servers ended.
struct Cluster {
    coordinator_address: SocketAddr,
    same_host: SameHost,
    proxies: Vec<Proxy>,
    served: Vec<std::thread::JoinHandle<Result<(), Error>>>,
}

impl Cluster {
    fn start(size: RunSize, same_host: SameHost) -> Self {
        let coordinator_address = free_address();
        let mut cluster = Self { coordinator_address, same_host, proxies: Vec::new(), served: Vec::new() };
        for index in 0..size.servers {
            let listen = free_address();
            let proxy = Proxy::before(listen, same_host);
            let advertise = Some(proxy.address.to_string());
            let connect = Connect { listen: Some(listen), advertise, ..connect(coordinator_address, same_host) };
            let coordinate = (index == 0).then_some(size);
            cluster.proxies.push(proxy);
            cluster
                .served
                .push(std::thread::spawn(move || Serve { coordinate, ..Serve::new(connect) }.run().map(|_| ())));
        }
        cluster
    }

    fn worker(&self) -> Connect {
        connect(self.coordinator_address, self.same_host)
    }

    /// Checks that all servers ended well: every worker has left, and no node counted as lost.
    fn ended_well(self) {
        for served in self.served {
            served.join().expect("no panic").expect("a good end");
        }
    }
}

fn counts(session: &Session, name: &str) -> Table<i64> {
    let spec = TableSpec::sparse(name, 1).number(NumberType::I64).consistency(Consistency::slack(1));
    session.table(spec).expect("a table")
}

/// One push, the end of a clock and a read: the frames that must not be lost or doubled.
fn exchange(session: &Session, table: &Table<i64>, times: i64) {
    let keys = table.keys(&[1, 2, 3]);
    let push = table.push(&keys, vec![1, 10, 100]).expect("sent");
    session.clock().expect("ended");
    let rows = table.pull(&keys).expect("asked").wait().expect("read");
    push.wait().expect("pushed");
    let mut found = rows.into_values();
    found.sort_unstable();
    assert_eq!(found, [times, times * 10, times * 100], "after {times} pushes");
}

/// Counts of all bytes, and of the bytes that went through shared memory.
#[derive(Default)]
struct Bytes {
    all: AtomicU64,
    shared: AtomicU64,
}

impl Bytes {
    fn count(&self, same_host: SameHost, session: &Session) {
        let traffic = session.traffic();
        assert_eq!(traffic.bytes_shared > 0, same_host == SameHost::SharedMemory, "{traffic:?}");
        self.all.fetch_add(traffic.bytes_in + traffic.bytes_out, Ordering::Relaxed);
        self.shared.fetch_add(traffic.bytes_shared, Ordering::Relaxed);
    }

    /// Checks that the intended transport carried the bytes. A connection that is cut while it
    /// passes shared memory falls back to TCP until it is cut again. That may happen to one worker,
    /// but not to all.
    fn went_by(&self, same_host: SameHost) {
        let [all, shared] = [&self.all, &self.shared].map(|bytes| bytes.load(Ordering::Relaxed));
        assert!(same_host == SameHost::Tcp || shared > all / 10, "only {shared} of {all} bytes");
    }
}

/// Whether the server can call its worker after the worker's own connection has broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callback {
    Possible,
    Impossible,
}

/// Cuts an exchange between one worker and one server at every `step`-th byte from `first` on.
/// Returns how many cuts happened.
fn cut_everywhere(first: u64, step: usize, callback: Callback, same_host: SameHost, bytes: &Bytes) -> u64 {
    let cluster = Cluster::start(RunSize { servers: 1, workers: 1 }, same_host);
    let listen = free_address();
    let back = Proxy::before(listen, same_host);
    let advertise = match callback {
        Callback::Possible => back.address.to_string(),
        Callback::Impossible => NOWHERE.to_owned(),
    };
    let there = &cluster.proxies[0];
    let session = Session::connect(&Connect { listen: Some(listen), advertise: Some(advertise), ..cluster.worker() })
        .expect("joined");
    let table = counts(&session, "counts");
    exchange(&session, &table, 1);
    let before = there.carried();
    exchange(&session, &table, 2);
    let after = there.carried();
    let mut times = 2;
    for way in [Way::There, Way::Back] {
        for offset in (first..after[way as usize] - before[way as usize]).step_by(step) {
            // Count bytes from the worker's side, for connections of either direction.
            there.cut_after(way, offset);
            back.cut_after(way.reverse(), offset);
            times += 1;
            exchange(&session, &table, times);
        }
    }
    there.cut_no_more();
    back.cut_no_more();
    bytes.count(same_host, &session);
    session.close().expect("left");
    let cuts = there.done() + back.done();
    cluster.ended_well();
    // The last bytes of an exchange may travel with the next one, whose cut then replaces this
    // one's.
    assert!(cuts * 2 > times as u64, "only {cuts} of {times} cuts happened");
    cuts
}

#[test]
fn push_counts_once_when_the_connection_breaks_at_any_byte() {
    const RUNS: u64 = 8;
    for same_host in WAYS {
        let bytes = Arc::new(Bytes::default());
        let run = |first: u64| {
            let callback = if first.is_multiple_of(2) { Callback::Possible } else { Callback::Impossible };
            let bytes = bytes.clone();
            move || cut_everywhere(first, RUNS as usize, callback, same_host, &bytes)
        };
        cuts_of_all("an exchange", 300, (0..RUNS).map(run));
        bytes.went_by(same_host);
    }
}

#[test]
fn a_longer_run_survives_random_cuts_on_every_connection() {
    const WORKERS: u32 = 3;
    const CLOCKS: i64 = 60;
    const KEYS: u64 = 2_000;
    let cut_runs = |seed: u64, same_host: SameHost, bytes: Arc<Bytes>| {
        let cluster = Cluster::start(RunSize { servers: 2, workers: WORKERS }, same_host);
        let coordinator_address = Proxy::before(cluster.coordinator_address, same_host);
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let connect =
                    Connect { advertise: Some(NOWHERE.to_owned()), ..connect(coordinator_address.address, same_host) };
                let bytes = bytes.clone();
                std::thread::spawn(move || {
                    let session = Session::connect(&connect).expect("joined");
                    let table = counts(&session, "counts");
                    // Key lists of several lengths, used in turn.
                    let lists: Vec<_> = (1..5).map(|n| table.keys(&(0..KEYS / n).collect::<Vec<_>>())).collect();
                    let mut own = 0;
                    for clock in 0..CLOCKS {
                        let keys = &lists[clock as usize % lists.len()];
                        drop(table.push(keys, vec![1; keys.len()]).expect("sent"));
                        own += 1;
                        let least = own + (clock - 1).max(0) * (i64::from(WORKERS) - 1);
                        let rows = table.pull(&table.keys(&[0])).expect("asked").wait().expect("read");
                        assert!(rows.values()[0] >= least, "{} at clock {clock} of at least {least}", rows.values()[0]);
                        session.clock().expect("ended");
                    }
                    // One clock more than the slack, so that the read reflects every push.
                    session.clock().expect("ended");
                    session.barrier().expect("all done");
                    let all = table.keys(&(0..KEYS).collect::<Vec<_>>());
                    let rows = table.pull(&all).expect("asked").wait().expect("read");
                    let of = |id: u64| (0..CLOCKS).filter(|clock| id < KEYS / (*clock as u64 % 4 + 1)).count() as i64;
                    let expected: Vec<i64> = all.ids().map(|id| of(id) * i64::from(WORKERS)).collect();
                    assert_eq!(rows.values(), expected);
                    bytes.count(same_host, &session);
                    session.close().expect("left");
                })
            })
            .collect();
        for (proxy, span) in cluster.proxies.iter().zip([8_000, 20_000]) {
            proxy.cut_at_random(seed + span, 30, span);
        }
        coordinator_address.cut_at_random(seed, 12, 1_500);
        workers.into_iter().for_each(|worker| worker.join().expect("exactly once"));
        let cuts = cluster.proxies.iter().map(Proxy::done).sum::<u64>() + coordinator_address.done();
        cluster.ended_well();
        cuts
    };
    for same_host in WAYS {
        let bytes = Arc::new(Bytes::default());
        let runs =
            (0..3).map(|seed| (seed, bytes.clone())).map(|(seed, bytes)| move || cut_runs(seed, same_host, bytes));
        cuts_of_all("three longer runs", 60, runs);
        bytes.went_by(same_host);
    }
}

#[test]
fn tables_and_barriers_survive_cuts_to_the_coordinator() {
    const RUNS: u64 = 6;
    let cut_runs = |first: u64| {
        let cluster = Cluster::start(RunSize { servers: 1, workers: 1 }, SameHost::Tcp);
        let coordinator_address = Proxy::before(cluster.coordinator_address, SameHost::Tcp);
        let session = Session::connect(&connect(coordinator_address.address, SameHost::Tcp)).expect("joined");
        let mut tables = 0;
        for way in [Way::There, Way::Back] {
            // The requests for a table and a barrier take about 300 bytes, their answers 200, with
            // heartbeats in between.
            for offset in (first..if way == Way::There { 320 } else { 220 }).step_by(RUNS as usize) {
                coordinator_address.cut_after(way, offset);
                tables += 1;
                counts(&session, &format!("table {tables}"));
                session.barrier().expect("passed");
            }
        }
        let cuts = coordinator_address.done();
        session.close().expect("left");
        cluster.ended_well();
        cuts
    };
    cuts_of_all("tables and barriers", 60, (0..RUNS).map(|first| move || cut_runs(first)));
}

#[test]
fn joining_and_leaving_survive_cuts_to_the_coordinator() {
    let run = |way: Way, at_join: Option<u64>, at_leave: Option<u64>| {
        let cluster = Cluster::start(RunSize { servers: 1, workers: 1 }, SameHost::Tcp);
        let coordinator_address = Proxy::before(cluster.coordinator_address, SameHost::Tcp);
        if let Some(offset) = at_join {
            coordinator_address.cut_after(way, offset);
        }
        let session = Session::connect(&connect(coordinator_address.address, SameHost::Tcp)).expect("joined");
        let table = counts(&session, "counts");
        exchange(&session, &table, 1);
        if let Some(offset) = at_leave {
            coordinator_address.cut_after(way, offset);
        }
        session.close().expect("left");
        let cuts = coordinator_address.done();
        cluster.ended_well();
        cuts
    };
    let offsets = |length: u64| (0..length).step_by(23);
    let mut runs = Vec::new();
    for way in [Way::There, Way::Back] {
        runs.extend(offsets(320).map(|offset| (way, Some(offset), None)));
        runs.extend(offsets(90).map(|offset| (way, None, Some(offset))));
    }
    let runs = runs.into_iter().map(|(way, join, leave)| move || run(way, join, leave));
    cuts_of_all("joining and leaving", 20, runs);
}

#[test]
fn a_server_that_missed_a_goodbye_hears_it_again() {
    let run = |offset: u64| {
        let size = RunSize { servers: 1, workers: 2 };
        let coordinator_address = free_address();
        let coordinator = connect(coordinator_address, SameHost::Tcp);
        let coordinating =
            std::thread::spawn(move || Serve { threads: 0, coordinate: Some(size), ..Serve::new(coordinator) }.run());
        let proxy = Proxy::before(coordinator_address, SameHost::Tcp);
        let server = connect(proxy.address, SameHost::Tcp);
        let serving = std::thread::spawn(move || Serve::new(server).run());
        let join = move || Session::connect(&connect(coordinator_address, SameHost::Tcp)).expect("joined");
        let first = std::thread::spawn(join);
        let second = join();
        let first = first.join().expect("joined");
        let tables = [counts(&first, "counts"), counts(&second, "counts")];
        proxy.cut_after(Way::Back, offset);
        first.close().expect("left");
        // Two clocks ahead of the worker that left: only its goodbye releases this read.
        second.clock().expect("ended");
        second.clock().expect("ended");
        tables[1].pull(&tables[1].keys(&[1])).expect("asked").wait().expect("read");
        second.close().expect("left");
        serving.join().expect("no panic").expect("a good end");
        coordinating.join().expect("no panic").expect("a good end");
        proxy.done()
    };
    cuts_of_all("goodbyes", 6, (0..12).map(|index| move || run(index * 16)));
}

/// Waits until `holds` returns true, and fails if that takes too long.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT / 2, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn worker_reconnects_when_the_server_has_not_seen_the_old_connection_end() {
    ends("a worker that calls anew", || {
        let cluster = Cluster::start(RunSize { servers: 1, workers: 1 }, SameHost::Tcp);
        let proxy = &cluster.proxies[0];
        // The server cannot call the worker, so the worker makes all connections.
        let connect = Connect { advertise: Some(NOWHERE.to_owned()), ..cluster.worker() };
        let session = Session::connect(&connect).expect("joined");
        let table = counts(&session, "counts");
        let mut abandoned = 0;
        for times in 1..=20 {
            // This makes a new connection, and resends what was under way on the last one.
            exchange(&session, &table, times);
            eventually("the server closes what the worker gave up", || proxy.given_up() == abandoned);
            let reading = table.pull(&table.keys(&[1])).expect("asked");
            abandoned += proxy.abandon();
            assert_eq!(reading.wait().expect("read").values(), [times]);
        }
        assert_eq!(abandoned, 20, "one connection each time");
        session.close().expect("left");
        cluster.ended_well();
    });
}

#[test]
fn silent_server_is_named_in_the_error() {
    ends("a silent server", || {
        let cluster = Cluster::start(RunSize { servers: 1, workers: 1 }, SameHost::Tcp);
        let connect = Connect {
            advertise: Some(NOWHERE.to_owned()),
            failure_timeout: Duration::from_secs(2),
            ..cluster.worker()
        };
        let session = Session::connect(&connect).expect("joined");
        let table = counts(&session, "counts");
        exchange(&session, &table, 1);
        // The coordinator is not behind this proxy: it still hears from both nodes, and counts
        // neither as lost.
        cluster.proxies[0].swallow();
        let read = table.pull(&table.keys(&[1])).expect("asked").wait();
        let Err(Error::Run(lost)) = read else { panic!("{read:?}") };
        assert!(lost.to_string().starts_with("lost server 0"), "{lost}");
        drop(session);
        // The lost worker ends the static run.
        for served in cluster.served {
            served.join().expect("no panic").expect_err("a worker was lost");
        }
    });
}
