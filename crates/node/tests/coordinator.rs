//! A coordinator that is started to resume from a checkpoint while the registry still holds the
//! memory of the run.

use coordinator::{Coordinator, Membership, Resume, RunSize};
use net::{Exchange, LocalTransport, Transport, Waiter};
use node::registry::{Candidate, CoordinatorRegistry, InProcessLocation};
use node::{CoordinatorSettings, JoinRequest, JoinedRun, LeaveSignal, NodeError, join, run_candidate};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Control, Frame, Head, Message, NodeRole, Outbox};

const SIZE: RunSize = RunSize { servers: 1, workers: 1 };
const ELASTIC: Membership = Membership::Elastic { replicas: 1, shards_per_server: 1 };
const FAILURE_TIMEOUT: Duration = Duration::from_millis(400);

/// A registry that holds the memory of a run which had begun, and the source of the run's worker.
fn remembering() -> (InProcessLocation, Source) {
    let mut machine = Coordinator::new(SIZE, ELASTIC, Span(FAILURE_TIMEOUT.as_nanos() as u64));
    let mut out = Outbox::new();
    let mut says = |head: Head, control: Control| {
        machine.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut out);
        out.drain().map(|frame| frame.message).collect::<Vec<_>>()
    };
    let mut welcomed = Vec::new();
    for (token, role) in [(1, NodeRole::Server), (2, NodeRole::Worker)] {
        let asks = Control::Join { role, address: String::new(), token, place: None, job: String::new() };
        let answers = says(Head::plain(NodeId::Worker(1 << 28), NodeId::Coordinator), asks);
        let Some(Message::Control(Control::Welcome { node, source, .. })) = answers.first() else {
            panic!("{answers:?}")
        };
        welcomed.push((*node, *source));
    }
    for (node, source) in &welcomed {
        says(Head { source: *source, ..Head::plain(*node, NodeId::Coordinator) }, Control::Heartbeat { heard: 0 });
    }
    assert!(machine.has_begun());
    let place = InProcessLocation::new();
    let mut led = place.stand(Candidate::new("clicks", "a:1"));
    let now = Instant::now();
    led.campaign(now).expect("no other candidate");
    led.save(now, &machine.memory()).expect("it leads");
    led.resign().expect("it leads");
    (place, welcomed[1].1)
}

/// Starts a coordinator that resumes from a checkpoint at clock 5.
fn resuming(place: &InProcessLocation, exchange: &Exchange) -> (LeaveSignal, JoinHandle<Result<(), NodeError>>) {
    let resume = Some(Resume {
        location: String::new(),
        name: "checkpoint-1".to_owned(),
        clock: Clock(5),
        shards: 1,
        tables: Vec::new(),
        leases: Vec::new(),
    });
    let usual = CoordinatorSettings::new(SIZE);
    let settings = CoordinatorSettings {
        membership: ELASTIC,
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
    let wanted = JoinRequest::any(role);
    let limit = Duration::from_secs(20);
    let leave = leave.clone();
    spawn(move || join(&mut transport, &mut waiter, wanted, "", token, limit, &leave))
}

#[test]
fn a_run_without_surviving_nodes_begins_anew_from_the_checkpoint() {
    let (place, _) = remembering();
    let exchange = Exchange::new();
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
fn a_run_with_a_surviving_node_continues_where_it_was() {
    let (place, source) = remembering();
    let exchange = Exchange::new();
    let (leave, coordinator) = resuming(&place, &exchange);
    let (mut transport, mut waiter) = exchange.join(NodeId::Worker(0));
    // A node of another run waits until the coordinator knows which run it leads.
    let other = joins(&exchange, NodeRole::Worker, 13, &leave);
    let mut number = 0;
    let mut answer = |transport: &mut LocalTransport| {
        number += 1;
        let head = Head { source, number, ..Head::plain(NodeId::Worker(0), NodeId::Coordinator) };
        transport.send(Frame { head, message: Message::Control(Control::Heartbeat { heard: number - 1 }) });
        transport.flush();
        while let Some(event) = transport.next() {
            if let net::TransportEvent::Frame(Frame { message: Message::Control(Control::Heartbeat { .. }), .. }) =
                event
            {
                return true;
            }
        }
        false
    };
    let begin = Instant::now();
    let mut answered = None;
    // Call for longer than the coordinator would take to begin anew.
    while answered.is_none_or(|answered: Instant| answered.elapsed() < FAILURE_TIMEOUT * 2) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is not answered");
        if answer(&mut transport) {
            answered.get_or_insert_with(Instant::now);
        }
        waiter.wait(Some(Duration::from_millis(20)));
    }
    // The run's server never calls, and no other node may join before it.
    assert!(!other.is_finished(), "the run did not begin anew");
    leave.ask();
    coordinator.join().expect("no panic").expect("another may lead");
    assert_eq!(other.join().expect("no panic").err(), Some(NodeError::LeftEarly));
}
