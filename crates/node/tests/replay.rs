//! A recorded server or coordinator, fed back, says the same bytes: with real threads, over both transports.

use machine::{Batch, Outcome, PullTarget, Size, Values};
use net::{Exchange, LocalTransport, LocalWaiter, SameHost, SocketSettings, Transport, Waiter, listen};
use node::{
    CoordinatorSettings, Driver, DriverSettings, NodeError, RECORDING_BYTES, Recorder, Replayed, ServerSettings, Wait,
    join, replay, run_coordinator, run_server,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::{Combine, Consistency, NodeId, NumberType, Reduce, TableId, TableSpec, UpdaterSpec};
use update::Registry;
use wire::{Keys, Member, Payload, Pool, Role};

const WORKERS: u32 = 3;
const CLOCKS: u64 = 25;
const LIMIT: Duration = Duration::from_secs(30);

/// Tables of different kinds, so that every path of a server is walked.
fn specs() -> [TableSpec; 4] {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    [
        TableSpec::sparse("sum", 2).consistency(Consistency::slack(2)),
        TableSpec::sparse("eager", 1).consistency(eager).cached(1_000),
        TableSpec::dense("means", 100, 1).combine(Combine::Clock(Reduce::Mean)),
        TableSpec::dense("adagrad", 100, 1)
            .updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 })
            .consistency(Consistency::Unbounded),
    ]
}

fn pull(driver: &Driver, table: TableId, keys: &Keys, numbers: usize) -> Result<(), NodeError> {
    let target = PullTarget::F32(vec![0.0; numbers]);
    let ticket =
        driver.call(|worker, now, out| worker.pull(now, table, keys.clone(), target, &[], out)).expect("it fits");
    let outcome = driver.wait_until(|worker| worker.take(ticket))?.expect("not refused");
    assert!(matches!(outcome, Outcome::Rows(_)));
    Ok(())
}

fn work(driver: &Arc<Driver>) -> Result<(), NodeError> {
    let mut tables = Vec::new();
    for spec in specs() {
        driver.call(|worker, _, out| worker.make_table(spec.clone(), out));
        let made = driver.wait_until(|worker| worker.table(&spec.name).cloned())?;
        tables.push((made.expect("made"), spec));
    }
    for clock in 0..CLOCKS {
        for (table, spec) in &tables {
            let ids: Vec<u64> = (0..20 + clock % 3).map(|id| (id * 5 + clock % 4) % 100).collect();
            let keys = Keys::distinct(spec.shape.placement(), &ids);
            // Now and then something that is refused.
            let value = if clock == 7 { f32::NAN } else { 0.1 + clock as f32 };
            let numbers = keys.len() * spec.width as usize;
            let values = Values { number: NumberType::F32, bytes: Payload::new(vec![value; numbers]) };
            let batch = Batch { keys: keys.clone(), values, examples: 1 };
            let push = driver.call(|worker, now, out| worker.push(now, *table, batch, &[], out)).expect("it fits");
            driver.call(|worker, _, _| worker.detach(push));
            pull(driver, *table, &keys, numbers)?;
        }
        driver.call(|worker, now, out| {
            worker.end_clock(now, out);
            worker.take_unreported();
        });
    }
    driver.leave()
}

/// Runs three workers against one server, of which each shard remembers `list_bytes` of key lists, and a coordinator, both
/// recorded, the server in at most `most_bytes`. Feeds both recordings back and returns what came of the server's. `place` gives
/// a node its two halves and the address it can be called at.
fn records_and_replays<T, W>(
    list_bytes: usize,
    most_bytes: usize,
    mut place: impl FnMut(NodeId) -> (T, W, String),
) -> Replayed
where
    T: Transport + 'static,
    W: Waiter + 'static,
{
    let (transport, waiter, meet) = place(NodeId::Coordinator);
    let size = Size { servers: 1, workers: WORKERS };
    let (recorder, coordinated) = Recorder::new();
    let coordinator =
        std::thread::spawn(move || run_coordinator(transport, waiter, CoordinatorSettings::new(size), Some(recorder)));
    let mut place_at_meeting = |node: NodeId| {
        let (mut transport, waiter, address) = place(node);
        transport.know(&[Member { node: NodeId::Coordinator, address: meet.clone() }]);
        (transport, waiter, address)
    };
    let (transport, waiter, address) = place_at_meeting(NodeId::Server(99));
    let settings = ServerSettings { address, list_bytes, ..ServerSettings::new(99) };
    let (recorder, recording) = Recorder::of_at_most(most_bytes);
    let server = std::thread::spawn(move || run_server(transport, waiter, settings, Some(recorder)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|index| {
            let (mut transport, mut waiter, address) = place_at_meeting(NodeId::Worker(100 + index));
            std::thread::spawn(move || {
                let token = u64::from(index);
                let joined = join(&mut transport, &mut waiter, (Role::Worker, None), &address, token, LIMIT)?;
                let settings = DriverSettings { wait: Wait::BLOCKING, patience: LIMIT };
                work(&Driver::start(joined, Box::new(transport), Box::new(waiter), settings))
            })
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
    let again = replay(coordinated, &Registry::builtin());
    assert!(again.frames > specs().len() && again.first_difference.is_none() && !again.cut, "{again:?}");
    let replayed = replay(recording, &Registry::builtin());
    assert_eq!(replayed.first_difference, None, "{replayed:?}");
    replayed
}

/// The whole of it was fed and compared.
fn is_whole(replayed: Replayed) {
    let expected = u64::from(WORKERS) * CLOCKS * specs().len() as u64;
    assert!(replayed.inputs as u64 >= expected && replayed.frames as u64 >= expected, "{replayed:?}");
    assert!(!replayed.cut, "{replayed:?}");
}

/// Threads of one process.
fn threads() -> impl FnMut(NodeId) -> (LocalTransport, LocalWaiter, String) {
    let exchange = Exchange::new();
    move |node| {
        let (transport, waiter) = exchange.join(node);
        (transport, waiter, String::new())
    }
}

#[test]
fn a_recorded_run_of_threads_feeds_back_to_the_same_bytes() {
    is_whole(records_and_replays(machine::LIST_BYTES, RECORDING_BYTES, threads()));
}

#[test]
fn a_recorded_run_over_tcp_feeds_back_to_the_same_bytes() {
    is_whole(records_and_replays(machine::LIST_BYTES, RECORDING_BYTES, |node| {
        let pauses = !matches!(node, NodeId::Worker(_));
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let (transport, waiter, address) =
            listen(any_port, SocketSettings { pauses, pool: Pool::new(), same_host: SameHost::default() })
                .expect("a free port");
        (transport, waiter, address.to_string())
    }));
}

/// A server that forgets key lists says so in its own words: fed back with another memory it would not.
#[test]
fn a_server_that_remembers_little_feeds_back_to_the_same_bytes() {
    is_whole(records_and_replays(300, RECORDING_BYTES, threads()));
}

#[test]
fn a_recording_that_is_full_ends_and_says_so_and_the_run_goes_on() {
    const ROOM: usize = 50_000;
    let replayed = records_and_replays(machine::LIST_BYTES, ROOM, threads());
    assert!(replayed.cut && replayed.inputs > 0, "{replayed:?}");
    assert!(replayed.inputs + replayed.frames < ROOM / 100, "{replayed:?}");
}
