//! Record and replay: a replay of a recorded node sends the same bytes. With real threads, over two
//! transports, from memory and from files.

mod nodes;

use net::{
    Exchange, Limits, LocalTransport, LocalWaiter, SameHost, Security, SocketSettings, Transport, Waiter, listen,
};
use node::{
    Driver, NodeError, RECORDING_BYTES, Recorder, Recording, RecordingError, Replayed, ServerSettings, replay,
    replay_file,
};
use nodes::{start_coordinator, start_driver, start_server};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{
    Bandwidth, Codecs, Combine, Consistency, NodeId, NumberType, PositionRange, Reduce, Setting, TableId, TableSpec,
    UpdaterSpec,
};
use update::Updaters;
use wire::{Keys, Member, Payload, Pool};
use worker::{Batch, Op, PullTarget, RowsOfPush, TicketId, TicketOutcome, Values};

const WORKERS: u32 = 3;
const CLOCKS: u64 = 25;

/// Tables of different kinds, so that every path of a server is used.
fn specs() -> [TableSpec; 7] {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    [
        TableSpec::sparse("sum", 2).consistency(Consistency::slack(2)),
        TableSpec::sparse("eager", 1).consistency(eager).cached(1_000),
        TableSpec::dense("means", 100, 1).combine(Combine::Clock(Reduce::Mean)),
        TableSpec::dense("adagrad", 100, 1)
            .updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 })
            .consistency(Consistency::Unbounded),
        TableSpec::sparse("shrunk", 2)
            .codecs(Codecs::both(["keys", "bf16", "lz4"]))
            .combine(Combine::Clock(Reduce::Sum))
            .consistency(Consistency::slack(1))
            .cached(1_000),
        TableSpec::dense("few", 100, 1).codecs(Codecs::up(["topk=10%"])),
        TableSpec::sparse("as the link says", 4).codecs(Codecs::auto()).consistency(Consistency::slack(1)),
    ]
}

fn rows(driver: &Driver, ticket: TicketId) -> Result<(), NodeError> {
    let outcome = driver.wait_until(|worker| worker.take(ticket))?.expect("not refused");
    assert!(matches!(outcome, TicketOutcome::Rows(_)));
    Ok(())
}

fn submit(driver: &Driver, table: TableId, op: Op, after: &[TicketId]) -> TicketId {
    driver.call(|worker| worker.submit(table, op, None, after)).expect("it fits")
}

fn pull(driver: &Driver, table: TableId, keys: &Keys, numbers: usize) -> Result<(), NodeError> {
    let short = PullTarget::F32(vec![0.0; numbers - 1]);
    let op = || Op::Pull { keys: keys.clone() };
    assert!(driver.call(|worker| worker.submit(table, op(), Some(short), &[])).is_err(), "no room for the rows");
    let target = PullTarget::F32(vec![0.0; numbers]);
    let ticket = driver.call(|worker| worker.submit(table, op(), Some(target), &[])).expect("it fits");
    rows(driver, ticket)
}

/// Pushes in parts, as from memory that the program keeps. Does nothing if the worker cannot begin
/// such a push now.
fn push_in_parts(driver: &Driver, table: TableId, keys: &Keys, width: usize) {
    let begun = driver.call(|worker| {
        let ticket = worker.begin_push(table, keys, 3).expect("it fits")?;
        Some((ticket, worker.parts(table, keys)))
    });
    let Some((ticket, parts)) = begun else { return };
    for rows in parts {
        let values = Payload::new(vec![0.5f32; rows.len() * width]);
        driver.call(|worker| worker.push_rows(RowsOfPush { ticket, table, keys: keys.clone(), rows, values }));
    }
    driver.call(|worker| {
        worker.end_push(ticket);
        worker.detach(ticket);
    });
}

/// A program that uses every operation.
fn work(driver: &Arc<Driver>) -> Result<(), NodeError> {
    let mut tables = Vec::new();
    for spec in specs() {
        driver.call(|worker| worker.make_table(spec.clone()));
        let made = driver.wait_until(|worker| worker.table(&spec.name).cloned())?;
        tables.push((made.expect("made"), spec));
    }
    for clock in 0..CLOCKS {
        for (table, spec) in &tables {
            let ids: Vec<u64> = (0..20 + clock % 3).map(|id| (id * 5 + clock % 4) % 100).collect();
            let keys = Keys::distinct(spec.shape.placement(), &ids);
            // In one clock the values are not finite, and the server refuses them.
            let value = if clock == 7 { f32::NAN } else { 0.1 + clock as f32 };
            let numbers = keys.len() * spec.width as usize;
            let values = Values { number: NumberType::F32, bytes: Payload::new(vec![value; numbers]) };
            let batch = Batch { keys: keys.clone(), values, examples: 1, lease: None };
            let push = submit(driver, *table, Op::Push { batch: batch.clone() }, &[]);
            driver.call(|worker| worker.detach(push));
            push_in_parts(driver, *table, &keys, spec.width as usize);
            pull(driver, *table, &keys, numbers)?;
            if clock % 5 == 1 {
                let all = Op::Scan { range: PositionRange::ALL, row_state: clock % 10 == 1 };
                let scan = submit(driver, *table, all, &[]);
                let both = submit(driver, *table, Op::PushPull { batch }, &[scan]);
                rows(driver, scan)?;
                driver.call(|worker| worker.detach(both));
            }
        }
        let active = submit(driver, tables[2].0, Op::Active { keys: Keys::run(0..10) }, &[]);
        rows(driver, active)?;
        // Limit the bandwidth for some clocks: parts wait, and those that change most go first.
        if matches!(clock, 8 | 16) {
            driver.call(|worker| worker.limit((clock == 8).then(|| Bandwidth::from_bytes_per_second(2_000_000))));
        }
        let (adagrad, _) = tables[3];
        let tune = submit(driver, adagrad, Op::Tune { setting: Setting::Rate(0.2) }, &[]);
        driver.wait_until(|worker| worker.take(tune))?.expect("not refused");
        driver.call_when(worker::Worker::is_flushed, |worker| {
            worker.end_clock();
            worker.take_unreported();
        })?;
        if clock % 10 == 3 {
            let number = driver.call(|worker| worker.barrier());
            driver.wait_until(|worker| worker.barrier_passed(number).then_some(()))?;
        }
    }
    driver.leave()
}

/// Runs three workers, one server whose shards each remember `list_bytes` of key lists, and a
/// coordinator, with recorders from `recorder`. `place` gives a node its transport, its waiter and
/// the address at which it can be called.
fn run<T, W>(
    list_bytes: usize,
    mut recorder: impl FnMut(NodeId) -> Recorder,
    mut place: impl FnMut(NodeId) -> (T, W, String),
) where
    T: Transport + 'static,
    W: Waiter + 'static,
{
    let (transport, waiter, coordinator_address) = place(NodeId::Coordinator);
    let coordinator = start_coordinator((transport, waiter), WORKERS, Some(recorder(NodeId::Coordinator)));
    let mut place_at_coordinator = |node: NodeId| {
        let (mut transport, waiter, address) = place(node);
        transport.know(&[Member { node: NodeId::Coordinator, address: coordinator_address.clone(), binding: None }]);
        (transport, waiter, address)
    };
    let (transport, waiter, address) = place_at_coordinator(NodeId::Server(99));
    let settings = ServerSettings { address, list_bytes, ..ServerSettings::new(99) };
    let server = start_server((transport, waiter), settings, Some(recorder(NodeId::Server(0))));
    let workers: Vec<_> = (0..WORKERS)
        .map(|index| {
            let (transport, waiter, address) = place_at_coordinator(NodeId::Worker(100 + index));
            let recorded = Some(recorder(NodeId::Worker(index)));
            std::thread::spawn(move || work(&start_driver((transport, waiter), &address, u64::from(index), recorded)?))
        })
        .collect();
    for worker in workers {
        worker.join().expect("no panic").expect("a good end");
    }
    let report = server.join().expect("no panic").expect("a good end");
    coordinator.join().expect("no panic").expect("a good end");
    let expected = u64::from(WORKERS) * CLOCKS * specs().len() as u64;
    assert!(report.counts.shards.parts + report.counts.shards.refused >= expected, "{:?}", report.counts);
    assert!(report.counts.shards.refused > 0 && report.counts.shards.refreshes > 0, "{:?}", report.counts);
}

/// Runs with recordings in memory; the server's and the workers' take at most `most_bytes`. Replays
/// all recordings and returns the outcomes.
fn records_and_replays<T, W>(
    list_bytes: usize,
    most_bytes: usize,
    place: impl FnMut(NodeId) -> (T, W, String),
) -> Vec<(NodeId, Replayed)>
where
    T: Transport + 'static,
    W: Waiter + 'static,
{
    let mut recordings: Vec<(NodeId, Recording)> = Vec::new();
    let recorder = |node| {
        let (recorder, recording) = match node {
            NodeId::Coordinator => Recorder::new(),
            _ => Recorder::of_at_most(most_bytes),
        };
        recordings.push((node, recording));
        recorder
    };
    run(list_bytes, recorder, place);
    let all: Vec<_> =
        recordings.into_iter().map(|(node, recording)| (node, replay(recording, &Updaters::builtin()))).collect();
    for (node, replayed) in &all {
        assert_eq!(replayed.first_difference, None, "{node}: {replayed:?}");
    }
    all
}

/// Checks that each replay covered a whole recording.
fn are_whole(all: &[(NodeId, Replayed)]) {
    for (node, replayed) in all {
        let expected = match node {
            NodeId::Coordinator => specs().len(),
            NodeId::Server(_) => WORKERS as usize * CLOCKS as usize * specs().len(),
            NodeId::Worker(_) => CLOCKS as usize * specs().len(),
        };
        assert!(replayed.inputs >= expected && replayed.frames >= expected, "{node}: {replayed:?}");
        assert!(!replayed.cut, "{node}: {replayed:?}");
    }
    assert_eq!(all.len(), WORKERS as usize + 2);
}

/// Places for nodes that are threads of one process.
fn threads() -> impl FnMut(NodeId) -> (LocalTransport, LocalWaiter, String) {
    let exchange = Exchange::new();
    move |node| {
        let (transport, waiter) = exchange.join(node);
        (transport, waiter, String::new())
    }
}

#[test]
fn replay_of_a_run_of_threads_sends_the_same_bytes() {
    are_whole(&records_and_replays(shard::LIST_BYTES, RECORDING_BYTES, threads()));
}

#[test]
fn replay_of_a_run_over_sockets_sends_the_same_bytes() {
    are_whole(&records_and_replays(shard::LIST_BYTES, RECORDING_BYTES, |node| {
        let pauses = !matches!(node, NodeId::Worker(_));
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let (transport, waiter, address) = listen(
            any_port,
            SocketSettings {
                pauses,
                pool: Pool::new(),
                same_host: SameHost::default(),
                security: Security::Insecure,
                limits: Limits::default(),
            },
        )
        .expect("a free port");
        (transport, waiter, address.to_string())
    }));
}

/// A server that has forgotten a key list sends a message that asks for it. With another limit of
/// key lists, the replay would differ.
#[test]
fn replay_of_a_server_that_forgets_key_lists_sends_the_same_bytes() {
    are_whole(&records_and_replays(300, RECORDING_BYTES, threads()));
}

#[test]
fn a_full_recording_is_marked_as_cut_and_the_run_goes_on() {
    const ROOM: usize = 50_000;
    for (node, replayed) in records_and_replays(shard::LIST_BYTES, ROOM, threads()) {
        if node != NodeId::Coordinator {
            assert!(replayed.cut && replayed.inputs > 0, "{node}: {replayed:?}");
            assert!(replayed.inputs + replayed.frames < ROOM / 100, "{node}: {replayed:?}");
        }
    }
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("slackwater-{name}-{}", std::process::id())))
    }

    fn file(&self, node: NodeId) -> PathBuf {
        self.0.join(format!("{node}.recording").replace(' ', "-"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn nodes() -> impl Iterator<Item = NodeId> {
    [NodeId::Coordinator, NodeId::Server(0)].into_iter().chain((0..WORKERS).map(NodeId::Worker))
}

fn fed_back(path: &Path) -> Result<Replayed, RecordingError> {
    replay_file(path, &Updaters::builtin())
}

#[test]
fn replay_of_files_sends_the_same_bytes_and_refuses_damaged_files() {
    let folder = Folder::new("recorded");
    let recorder = |_| Recorder::in_folder(&folder.0).expect("a folder");
    run(shard::LIST_BYTES, recorder, threads());
    let all: Vec<_> = nodes().map(|node| (node, fed_back(&folder.file(node)).expect("a recording"))).collect();
    assert!(all.iter().all(|(_, replayed)| replayed.first_difference.is_none()), "{all:?}");
    are_whole(&all);

    let damaged = folder.0.join("damaged");
    for (node, whole) in all {
        let bytes = std::fs::read(folder.file(node)).expect("it is there");
        // Flips single bits, near the beginning and throughout the file.
        let places = (0..200.min(bytes.len())).chain((1..40).map(|n| bytes.len() * n / 40)).chain([bytes.len() - 1]);
        for place in places {
            let mut other = bytes.clone();
            other[place] ^= 1 << (place % 8);
            std::fs::write(&damaged, other).expect("written");
            match fed_back(&damaged) {
                Err(_) => {}
                // An entry whose length reaches past the end looks like a file that was cut off.
                Ok(replayed) => assert!(replayed.cut && replayed.inputs < whole.inputs, "{node}, byte {place}"),
            }
        }
        for length in [bytes.len() - 1, bytes.len() / 2, 100, 12] {
            std::fs::write(&damaged, &bytes[..length]).expect("written");
            let replayed = fed_back(&damaged).expect("the beginning of a recording is one");
            assert!(replayed.cut && replayed.first_difference.is_none(), "{node}, {length} bytes: {replayed:?}");
        }
        for (bytes, words) in [(&bytes[..11], "no recording"), (b"hello world, hello", "no recording")] {
            std::fs::write(&damaged, bytes).expect("written");
            assert!(fed_back(&damaged).is_err_and(|error| error.to_string().contains(words)));
        }
        let mut older = bytes.clone();
        older[8] = 0;
        std::fs::write(&damaged, older).expect("written");
        assert!(fed_back(&damaged).is_err_and(|error| error.to_string().contains("version 0")));
        let mut longer = bytes;
        longer.push(0);
        std::fs::write(&damaged, longer).expect("written");
        assert!(fed_back(&damaged).is_err_and(|error| error.to_string().contains("follow the end")));
    }
}

#[test]
fn a_node_whose_recording_exists_already_fails_and_ends_the_run() {
    let folder = Folder::new("again");
    let exchange = Exchange::new();
    std::fs::create_dir_all(&folder.0).expect("made");
    std::fs::write(folder.file(NodeId::Server(0)), "an earlier recording").expect("written");
    let coordinator = start_coordinator(exchange.join(NodeId::Coordinator), 1, None);
    let recorder = Recorder::in_folder(&folder.0).expect("a folder");
    let server = start_server(exchange.join(NodeId::Server(99)), ServerSettings::new(1), Some(recorder));
    let driver = start_driver(exchange.join(NodeId::Worker(99)), "", 2, None).expect("a place");
    let error = server.join().expect("no panic").expect_err("it cannot be recorded").to_string();
    assert!(error.contains("server-0.recording") && error.contains("it exists already"), "{error}");
    let number = driver.call(|worker| worker.barrier());
    let lost = driver.wait_until(|worker| worker.barrier_passed(number + 1).then_some(())).expect_err("it is lost");
    assert!(lost.to_string().contains("lost server 0: it could not go on: cannot record"), "{lost}");
    assert!(coordinator.join().expect("no panic").is_err());
    assert_eq!(std::fs::read(folder.file(NodeId::Server(0))).expect("kept"), b"an earlier recording");
}
