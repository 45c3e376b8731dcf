use super::*;
use net::Exchange;
use std::collections::VecDeque;
use types::{Plan, Source};
use wire::Member;

/// How long the transport takes to deliver a frame.
const EACH: Duration = Duration::from_millis(1);

/// A transport that delivers these frames slowly.
struct Script(VecDeque<Frame>);

impl Transport for Script {
    fn send(&mut self, _: Frame) {}
    fn flush(&mut self) {}
    fn next(&mut self) -> Option<TransportEvent> {
        let frame = self.0.pop_front()?;
        std::thread::sleep(EACH);
        Some(TransportEvent::Frame(frame))
    }
    fn know(&mut self, _: &[Member]) {}
    fn rename(&mut self, _: NodeId) {}
    fn backlog(&self) -> usize {
        0
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

fn say(from: NodeId, control: Control) -> Frame {
    Frame { head: Head::plain(from, NodeId::Server(0)), message: Message::Control(control) }
}

/// What the coordinator says lies in the inbox behind more frames than the server handles in one
/// turn, and in more time than the failure timeout. The turns in between are shorter than half of
/// it, so the server does not notice that it was late.
#[test]
fn server_drains_its_inbox_before_it_judges_the_coordinator() {
    const TOKEN: u64 = 7;
    let plan = Plan::first(1, vec![Source(1)]);
    let begin = Control::Begin {
        plan,
        members: Vec::new(),
        clock: types::Clock(0),
        barriers: 0,
        serving_lease: None,
        locations: Vec::new(),
    };
    let welcome = Control::Welcome { node: NodeId::Server(0), source: Source(0), token: TOKEN };
    let lost = Control::Lost { node: NodeId::Worker(0), reason: "it was killed".to_owned() };
    let mut inbox: VecDeque<Frame> = [welcome, begin].map(|control| say(NodeId::Coordinator, control)).into();
    inbox.extend((0..6 * TURN).map(|_| say(NodeId::Worker(0), Control::Heartbeat { heard: 0 })));
    inbox.push_back(say(NodeId::Coordinator, lost));
    let failure_timeout = 3 * EACH * TURN as u32;
    let (_, waiter) = Exchange::new().join(NodeId::Server(0));
    let settings = ServerSettings { failure_timeout, ..ServerSettings::new(TOKEN) };
    let ended = run_server(Script(inbox), waiter, settings, None).expect_err("the run has lost a worker");
    assert!(matches!(ended, NodeError::Lost { node: NodeId::Worker(0), .. }), "{ended}");
}

/// A transport that delivers these frames, and keeps what is sent.
struct Spied(VecDeque<Frame>, std::sync::mpsc::Sender<Control>);

impl Transport for Spied {
    fn send(&mut self, frame: Frame) {
        if let Message::Control(control) = frame.message {
            self.1.send(control).ok();
        }
    }
    fn flush(&mut self) {}
    fn next(&mut self) -> Option<TransportEvent> {
        self.0.pop_front().map(TransportEvent::Frame)
    }
    fn know(&mut self, _: &[Member]) {}
    fn rename(&mut self, _: NodeId) {}
    fn backlog(&self) -> usize {
        0
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

#[test]
fn a_server_refuses_a_run_with_other_checkpoint_locations_and_ends_it_only_at_its_beginning() {
    const TOKEN: u64 = 7;
    // The first plan names the server; a plan without it is that of a run which it joins late.
    for (servers, ends_the_run) in [(1, true), (0, false)] {
        let begin = Control::Begin {
            plan: Plan::first(servers, vec![Source(1)]),
            members: Vec::new(),
            clock: types::Clock(0),
            barriers: 0,
            serving_lease: None,
            locations: vec!["/etc/cron.d".to_owned()],
        };
        let welcome = Control::Welcome { node: NodeId::Server(0), source: Source(0), token: TOKEN };
        let inbox: VecDeque<Frame> = [welcome, begin].map(|control| say(NodeId::Coordinator, control)).into();
        let (sent, said) = std::sync::mpsc::channel();
        let (_, waiter) = Exchange::new().join(NodeId::Server(0));
        let locations = AllowedLocations::within(["/runs"]);
        let settings = ServerSettings { locations, ..ServerSettings::new(TOKEN) };
        let error = run_server(Spied(inbox, sent), waiter, settings, None).expect_err("not allowed").to_string();
        assert!(error.contains("--checkpoint-location /etc/cron.d"), "{error}");
        let failed: Vec<String> = said
            .into_iter()
            .filter_map(|control| if let Control::Fail { reason } = control { Some(reason) } else { None })
            .collect();
        assert_eq!(failed, if ends_the_run { vec![error] } else { Vec::new() });
    }
}
