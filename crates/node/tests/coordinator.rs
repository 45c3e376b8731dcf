//! A coordinator that is to resume from a checkpoint, and finds a registry that remembers the run.

use coordinator::{Coordinator, Membership, Resume, RunSize};
use net::{Exchange, LocalTransport, Transport, Waiter};
use node::registry::{Candidate, CoordinatorRegistry, InProcessLocation};
use node::{CoordinatorSettings, JoinRequest, JoinedRun, LeaveSignal, NodeError, join, run_candidate};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Control, Frame, Head, Message, NodeRole, Outbox};

const SIZE: RunSize = RunSize { servers: 1, workers: 1 };
const OPEN: Membership = Membership::Elastic { replicas: 1, shards_per_server: 1 };
const FAILURE_TIMEOUT: Duration = Duration::from_millis(400);

/// A registry that remembers a run which had begun, and the worker of it.
fn remembering() -> (InProcessLocation, Source) {
    let mut machine = Coordinator::new(SIZE, OPEN, Span(FAILURE_TIMEOUT.as_nanos() as u64));
    let mut out = Outbox::new();
    let mut says = |head: Head, control: Control| {
        machine.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut out);
        out.drain().map(|frame| frame.message).collect::<Vec<_>>()
    };
    let mut welcomed = Vec::new();
    for (token, role) in [(1, NodeRole::Server), (2, NodeRole::Worker)] {
        let (address, job) = (String::new(), String::new());
        let asks = Control::Join { role, address, token, place: None, job };
        let answers = says(Head::plain(NodeId::Worker(1 << 28), NodeId::Coordinator), asks);
        let Some(Message::Control(Control::Welcome { node, source, .. })) = answers.first() else {
            panic!("{answers:?}")
        };
        welcomed.push((*node, *source));
    }
    for (node, source) in &welcomed {
        says(Head { source: *source, ..Head::plain(*node, NodeId::Coordinator) }, Control::Heartbeat);
    }
    assert!(machine.has_begun());
    let place = InProcessLocation::new();
    let mut led = place.stand(Candidate::new("clicks", "a:1"));
    let now = Instant::now();
    led.campaign(now).expect("nobody else stands");
    led.save(now, &machine.memory()).expect("it leads");
    led.resign().expect("it leads");
    (place, welcomed[1].1)
}

/// A coordinator that resumes, at clock 5.
fn resuming(place: &InProcessLocation, exchange: &Exchange) -> (LeaveSignal, JoinHandle<Result<(), NodeError>>) {
    let (location, name, clock, shards) = (String::new(), "checkpoint-1".to_owned(), Clock(5), 1);
    let resume = Some(Resume { location, name, clock, shards, tables: Vec::new(), leases: Vec::new() });
    let usual = CoordinatorSettings::new(SIZE);
    let settings = CoordinatorSettings {
        membership: OPEN,
        failure_timeout: FAILURE_TIMEOUT,
        resume,
        job: "clicks".into(),
        ..usual
    };
    let leave = settings.leave.clone();
    let stands = Box::new(place.stand(Candidate::new("clicks", "b:1")));
    let (transport, waiter) = exchange.join(NodeId::Coordinator);
    (leave, spawn(move || run_candidate(transport, waiter, settings, stands)))
}

fn joins(
    exchange: &Exchange,
    role: NodeRole,
    token: u64,
    leave: &LeaveSignal,
) -> JoinHandle<Result<JoinedRun, NodeError>> {
    let (mut transport, mut waiter) = exchange.join(NodeId::Worker((1 << 29) - token as u32));
    let (wanted, limit, leave) = (JoinRequest::any(role), Duration::from_secs(20), leave.clone());
    spawn(move || join(&mut transport, &mut waiter, wanted, "", token, limit, &leave))
}

#[test]
fn a_run_of_which_nobody_is_left_begins_anew_from_the_checkpoint() {
    let ((place, _), exchange) = (remembering(), Exchange::new());
    let (leave, coordinator) = resuming(&place, &exchange);
    let nodes =
        [(NodeRole::Server, 11), (NodeRole::Worker, 12)].map(|(role, token)| joins(&exchange, role, token, &leave));
    for node in nodes {
        let joined = node.join().expect("no panic").expect("a place");
        assert_eq!((joined.clock, joined.plan.number.0), (Clock(5), 1), "{} is of the new run", joined.node);
    }
    leave.ask();
    coordinator.join().expect("no panic").expect("another may lead");
}

#[test]
fn a_run_of_which_somebody_calls_is_taken_up_where_it_was() {
    let ((place, source), exchange) = (remembering(), Exchange::new());
    let (leave, coordinator) = resuming(&place, &exchange);
    let (mut transport, mut waiter) = exchange.join(NodeId::Worker(0));
    // Whoever came from another run waits until that is known.
    let other = joins(&exchange, NodeRole::Worker, 13, &leave);
    let answer = |transport: &mut LocalTransport| {
        let head = Head { source, ..Head::plain(NodeId::Worker(0), NodeId::Coordinator) };
        transport.send(Frame { head, message: Message::Control(Control::Heartbeat) });
        transport.flush();
        while let Some(event) = transport.next() {
            if let net::TransportEvent::Frame(Frame { message: Message::Control(Control::Heartbeat), .. }) = event {
                return true;
            }
        }
        false
    };
    let (begin, mut answered) = (Instant::now(), None);
    // For longer than it would take to begin anew.
    while answered.is_none_or(|answered: Instant| answered.elapsed() < FAILURE_TIMEOUT * 2) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is not answered");
        if answer(&mut transport) {
            answered.get_or_insert_with(Instant::now);
        }
        waiter.wait(Some(Duration::from_millis(20)));
    }
    // The server of the run that is remembered never calls, and nobody comes in before it.
    assert!(!other.is_finished(), "the run did not begin anew");
    leave.ask();
    coordinator.join().expect("no panic").expect("another may lead");
    assert_eq!(other.join().expect("no panic").err(), Some(NodeError::LeftEarly));
}
