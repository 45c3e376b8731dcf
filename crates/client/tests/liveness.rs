//! Nodes that live and do not do their part, over real sockets: a link that is down in one
//! direction, a barrier and a read that wait for each other, a program that hangs in a clock.

mod deadline;
mod proxy;

use deadline::{LIMIT, ends};
use proxy::{Proxy, Way, free_address};
use slackwater::cluster::{Membership, SameHost};
use slackwater::monitor::status;
use slackwater::policy::NumberType;
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Error, Keys, RunSize, Serve, Session, Table, TableSpec};
use std::net::SocketAddr;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Long enough that a busy machine does not count as a lost node.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(4);

fn connect(coordinator: SocketAddr) -> Connect {
    Connect {
        join_limit: LIMIT / 2,
        failure_timeout: FAILURE_TIMEOUT,
        same_host: SameHost::Tcp,
        access: Access::Insecure,
        ..Connect::to(&coordinator.to_string())
    }
}

fn serve(serve: Serve) -> JoinHandle<Result<(), Error>> {
    spawn(move || serve.run().map(drop))
}

/// An address where no node listens: servers do not call workers, so every connection between a
/// server and a worker goes through the server's proxy.
const NOWHERE: &str = "127.0.0.1:9";

/// The sessions of two workers that join at once.
fn two_workers(coordinator: SocketAddr) -> [Session; 2] {
    let joining = [0, 1].map(|place| {
        let advertise = Some(NOWHERE.to_owned());
        let connect = Connect { place: Some(place), advertise, ..connect(coordinator) };
        spawn(move || Session::connect(&connect))
    });
    joining.map(|session| session.join().expect("no panic").expect("joined"))
}

fn counts(session: &Session) -> Table<i64> {
    let spec = TableSpec::dense("counts", 64, 1).number(NumberType::I64).consistency(Consistency::slack(1));
    session.table(spec).expect("made")
}

/// No worker reaches the first server any more, in this direction, and every node reaches the
/// coordinator. The server is expelled, and the run goes on.
fn server_behind_a_one_way_link(way: Way) {
    let coordinator = free_address();
    let size = RunSize { servers: 2, workers: 2 };
    let membership = Membership::Elastic { replicas: 2, shards_per_server: 1 };
    let led = serve(Serve { threads: 0, coordinate: Some(size), membership, ..Serve::new(connect(coordinator)) });
    let addresses = [free_address(), free_address()];
    let proxies = addresses.map(|address| Proxy::before(address, SameHost::Tcp));
    let places = [0, 1].map(|place: usize| {
        let advertise = Some(proxies[place].address.to_string());
        let listen = Some(addresses[place]);
        serve(Serve::new(Connect { listen, advertise, place: Some(place as u32), ..connect(coordinator) }))
    });
    let sessions = two_workers(coordinator);
    let tables = sessions.each_ref().map(counts);
    let push = |ones: i64| {
        let tickets = tables.each_ref().map(|table| table.push(&Keys::run(0..64), vec![ones; 64]).expect("fits"));
        tickets.into_iter().for_each(|ticket| ticket.wait().expect("acknowledged"));
    };
    push(1);
    proxies[0].swallow_one_way(way);
    push(10);
    let shown = status(&connect(coordinator)).expect("it answers");
    let lost: Vec<_> = shown.members.iter().filter(|member| format!("{:?}", member.state).contains("Lost")).collect();
    assert!(
        matches!(&lost[..], [member] if member.node.to_string() == "server 0" && format!("{:?}", member.state).contains("have not reached each other")),
        "{lost:?}"
    );
    let rows = tables[0].pull(&Keys::run(0..64)).expect("asked").wait().expect("answered");
    assert_eq!(rows.into_values(), vec![22; 64], "each push counts once");
    sessions.into_iter().for_each(|session| session.close().expect("left"));
    let [first, second] = places.map(|server| server.join().expect("no panic"));
    assert!(first.expect_err("it is expelled").to_string().contains("have not reached each other"));
    second.expect("a good end");
    led.join().expect("no panic").expect("a good end");
}

#[test]
fn a_server_that_no_node_reaches_is_expelled_though_it_reaches_the_coordinator() {
    let runs = [Way::There, Way::Back]
        .map(|way| spawn(move || ends("a one-way link", move || server_behind_a_one_way_link(way))));
    runs.into_iter().for_each(|run| run.join().expect("a good end"));
}

/// A static run of one server and two workers. Its server also coordinates.
fn static_run(coordinator: SocketAddr, clock_timeout: Option<Duration>) -> JoinHandle<Result<(), Error>> {
    let coordinate = Some(RunSize { servers: 1, workers: 2 });
    serve(Serve { coordinate, clock_timeout, ..Serve::new(connect(coordinator)) })
}

#[test]
fn a_barrier_and_a_read_that_wait_for_each_other_are_named() {
    ends("a barrier against a read", || {
        let coordinator = free_address();
        let served = static_run(coordinator, None);
        let [first, second] = two_workers(coordinator);
        let tables = [counts(&first), counts(&second)];
        let waits = spawn(move || first.barrier());
        (0..3).for_each(|_| second.clock().expect("ended"));
        let [_, table] = tables;
        let read = spawn(move || table.pull(&Keys::run(0..64)).expect("asked").wait().map(drop));
        // The case is shown before the run ends.
        let named = loop {
            let shown = status(&connect(coordinator)).expect("it answers");
            if let Some(trouble) = shown.troubles.into_iter().next() {
                break trouble;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let errors = [
            named.what,
            waits.join().expect("no panic").expect_err("the run ends").to_string(),
            read.join().expect("no panic").expect_err("the run ends").to_string(),
            served.join().expect("no panic").expect_err("the run ends").to_string(),
        ];
        for error in errors {
            for words in ["worker 0", "worker 1", "'counts'", "clock 3 ", "ended clock 1", "end the clock before"] {
                assert!(error.contains(words), "{error:?} lacks {words:?}");
            }
        }
    });
}

#[test]
fn a_program_that_hangs_in_a_clock_is_given_up_with_a_clock_timeout() {
    ends("a clock timeout", || {
        let coordinator = free_address();
        let served = static_run(coordinator, Some(Duration::from_secs(4)));
        let [first, second] = two_workers(coordinator);
        let tables = [counts(&first), counts(&second)];
        first.clock().expect("ended");
        // The second worker waits for the first: that is no fault of it, however long it waits.
        (0..4).for_each(|_| second.clock().expect("ended"));
        let [_, table] = tables;
        let read = table.pull(&Keys::run(0..64)).expect("asked").wait().map(drop);
        let error = read.expect_err("the run ends").to_string();
        assert!(error.contains("lost worker 0: it was in clock 1 for "), "{error}");
        let error = served.join().expect("no panic").expect_err("the run ends").to_string();
        assert!(error.contains("lost worker 0: it was in clock 1 for "), "{error}");
    });
}
