//! The driver of a worker's machine, when several threads share it.

mod nodes;

use net::{Exchange, Transport, TransportEvent, Waiter};
use node::{Driver, DriverSettings, JoinRequest, LeaveSignal, ServerSettings, WaitPolicy, join};
use nodes::{LIMIT, start_coordinator, start_driver, start_server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::spawn;
use types::{Clock, NodeId, Plan, Source};
use wire::{Control, Frame, Head, Message, NodeRole};

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

/// A coordinator that admits a worker, and answers its goodbye with the end of the run.
fn lose_the_run_at_goodbye((mut transport, mut waiter): (impl Transport, impl Waiter)) {
    loop {
        waiter.wait(Some(LIMIT));
        while let Some(TransportEvent::Frame(Frame { head, message })) = transport.next() {
            let Message::Control(control) = message else { continue };
            let is_goodbye = matches!(control, Control::Bye);
            let source = Source(1);
            let answers = match control {
                Control::Join { token, .. } => {
                    let plan = Plan::first(1, vec![source]);
                    let welcome = Control::Welcome { node: NodeId::Worker(0), source, token };
                    let members = Vec::new();
                    vec![
                        welcome,
                        Control::Begin {
                            plan,
                            members,
                            clock: Clock(0),
                            barriers: 0,
                            serving_lease: None,
                            locations: Vec::new(),
                        },
                    ]
                }
                Control::Bye => vec![Control::Lost { node: NodeId::Server(0), reason: "it was killed".to_owned() }],
                _ => Vec::new(),
            };
            for answer in answers {
                let head = Head::plain(NodeId::Coordinator, head.from);
                transport.send(Frame { head, message: Message::Control(answer) });
            }
            if is_goodbye {
                return;
            }
        }
    }
}

/// The coordinator cannot answer the goodbye any more, and the worker repeated it for seven failure
/// timeouts.
#[test]
fn worker_stops_repeating_its_goodbye_when_the_run_is_lost() {
    let exchange = Exchange::new();
    let coordinator = exchange.join(NodeId::Coordinator);
    let coordinator = spawn(move || lose_the_run_at_goodbye(coordinator));
    let (mut transport, mut waiter) = exchange.join(NodeId::Worker(99));
    let leave = LeaveSignal::default();
    let request = JoinRequest::any(NodeRole::Worker);
    let joined = join(&mut transport, &mut waiter, request, "", 2, LIMIT, &leave).expect("joined");
    let settings = DriverSettings {
        wait: WaitPolicy::BLOCKING,
        failure_timeout: LIMIT,
        of_several: true,
        unled: LIMIT,
        embedded: false,
        leave,
        locations: node::AllowedLocations::Any,
    };
    let driver = Driver::start(joined, Box::new(transport), Box::new(waiter), settings, None).expect("started");
    let (sender, left) = channel();
    spawn(move || sender.send(driver.leave()));
    left.recv_timeout(LIMIT).expect("the goodbye ends").expect("a good end");
    coordinator.join().expect("no panic");
}
