//! The driver of a worker's machine, when several threads share it.

mod nodes;

use net::Exchange;
use node::{Driver, ServerSettings};
use nodes::{start_coordinator, start_driver, start_server};
use std::sync::atomic::{AtomicBool, Ordering};
use types::NodeId;

/// Runs `program` with the only worker of a run whose nodes are threads.
fn with_driver(program: impl FnOnce(&Driver)) {
    let exchange = Exchange::new();
    let coordinator = start_coordinator(exchange.join(NodeId::Coordinator), 1, None);
    let server = start_server(exchange.join(NodeId::Server(99)), ServerSettings::new(1), None);
    let driver = start_driver(exchange.join(NodeId::Worker(99)), "", 2, None).expect("joined");
    program(&driver);
    driver.leave().expect("a good end");
    server.join().expect("no panic").expect("a good end");
    coordinator.join().expect("no panic").expect("a good end");
}

#[test]
fn call_when_runs_the_call_before_another_thread_can_intervene() {
    const CALLS: usize = 50_000;
    with_driver(|driver| {
        let ready = AtomicBool::new(false);
        let over = AtomicBool::new(false);
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
