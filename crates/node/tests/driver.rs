//! A worker's machine that several threads share.

use coordinator::RunSize;
use net::Exchange;
use node::{
    CoordinatorSettings, Driver, DriverSettings, ServerSettings, WaitPolicy, join, run_coordinator, run_server,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::NodeId;
use wire::Role;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `program` with the one worker of a run of threads.
fn with_driver(program: impl FnOnce(&Driver)) {
    let exchange = Exchange::new();
    let (transport, waiter) = exchange.join(NodeId::Coordinator);
    let size = RunSize { servers: 1, workers: 1 };
    let coordinator =
        std::thread::spawn(move || run_coordinator(transport, waiter, CoordinatorSettings::new(size), None));
    let (transport, waiter) = exchange.join(NodeId::Server(99));
    let settings = ServerSettings::new(1);
    let server = std::thread::spawn(move || run_server(transport, waiter, settings, None));
    let (mut transport, mut waiter) = exchange.join(NodeId::Worker(99));
    let joined = join(
        &mut transport,
        &mut waiter,
        node::JoinRequest::any(Role::Worker),
        "",
        2,
        LIMIT,
        &node::LeaveSignal::default(),
    )
    .expect("joined");
    let settings = DriverSettings {
        wait: WaitPolicy::BLOCKING,
        patience: LIMIT,
        of_several: false,
        unled: Duration::from_secs(60),
        embedded: false,
        leave: node::LeaveSignal::default(),
    };
    let driver: Arc<Driver> =
        Driver::start(joined, Box::new(transport), Box::new(waiter), settings, None).expect("nothing to record");
    program(&driver);
    driver.leave().expect("a good end");
    server.join().expect("no panic").expect("a good end");
    coordinator.join().expect("no panic").expect("a good end");
}

#[test]
fn no_other_thread_comes_between_being_ready_and_the_call() {
    const CALLS: usize = 50_000;
    with_driver(|driver| {
        let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let came_between = std::thread::scope(|scope| {
            let others: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut came_between = 0;
                        while !over.load(Ordering::SeqCst) {
                            came_between += usize::from(driver.call(|_| ready.load(Ordering::SeqCst)));
                        }
                        came_between
                    })
                })
                .collect();
            for _ in 0..CALLS {
                let is_ready = |_: &worker::Worker| {
                    ready.store(true, Ordering::SeqCst);
                    true
                };
                driver.call_when(is_ready, |_| ready.store(false, Ordering::SeqCst)).expect("a live run");
            }
            over.store(true, Ordering::SeqCst);
            others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(came_between, 0);
    });
}
