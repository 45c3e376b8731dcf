use super::*;
use net::{Traffic, TransportEvent};
use std::collections::VecDeque;
use types::{Source, Span};
use wire::{Member, NodeRole};

/// A transport that delivers the frames of its inbox and keeps what is sent.
#[derive(Default)]
struct Script {
    inbox: VecDeque<Frame>,
    sent: Vec<Frame>,
}

impl Transport for Script {
    fn send(&mut self, frame: Frame) {
        self.sent.push(frame);
    }
    fn flush(&mut self) {}
    fn next(&mut self) -> Option<TransportEvent> {
        self.inbox.pop_front().map(TransportEvent::Frame)
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

fn from(node: NodeId, source: Source, control: Control) -> Frame {
    let head = Head { source, ..Head::plain(node, NodeId::Coordinator) };
    Frame { head, message: Message::Control(control) }
}

/// The coordinator of a run of one server and one worker, which has begun at time zero.
fn begun(failure_timeout: Duration) -> (Candidacy, Script, [(NodeId, Source); 2]) {
    let settings = CoordinatorSettings {
        membership: Membership::Elastic { replicas: 1, shards_per_server: 1 },
        failure_timeout,
        ..CoordinatorSettings::new(RunSize { servers: 1, workers: 1 })
    };
    let registry = RegistryClient::inline("", failure_timeout);
    let mut candidacy = Candidacy::new(settings, registry, None);
    let mut script = Script::default();
    for (token, role) in [(1, NodeRole::Server), (2, NodeRole::Worker)] {
        let join = Control::Join { role, address: String::new(), token, place: None, job: String::new() };
        script.inbox.push_back(from(NodeId::Worker(1 << 28), Source(0), join));
    }
    // In the first turn it is elected.
    while script.sent.len() < 2 {
        assert!(candidacy.turn(Time(0), &mut script).is_continue());
    }
    let mut welcomed = Vec::new();
    for frame in script.sent.drain(..) {
        if let Message::Control(Control::Welcome { node, source, .. }) = frame.message {
            welcomed.push((node, source));
        }
    }
    let nodes = [welcomed[0], welcomed[1]];
    script.inbox.extend(nodes.map(|(node, source)| from(node, source, Control::Heartbeat { heard: 0 })));
    assert!(candidacy.turn(Time(0), &mut script).is_continue());
    assert!(candidacy.leading.as_ref().is_some_and(|leading| leading.missing().is_none()), "the run has begun");
    (candidacy, script, nodes)
}

fn expels(script: &Script) -> bool {
    script.sent.iter().any(|frame| matches!(frame.message, Message::Control(Control::Lost { .. })))
}

/// A coordinator that was not scheduled for less than half the failure timeout forgives nothing, so
/// it must not judge before it has read what arrived meanwhile.
#[test]
fn coordinator_drains_its_inbox_before_it_judges_others() {
    for (is_heard, is_lost) in [(true, false), (false, true)] {
        let (mut candidacy, mut script, nodes) = begun(Duration::from_secs(1));
        for millis in [400, 800, 1_200, 1_600] {
            if is_heard && millis == 1_200 {
                // Both waited in the inbox behind many other frames.
                let other = || from(nodes[0].0, nodes[0].1, Control::Heartbeat { heard: 0 });
                script.inbox.extend((0..1_000).map(|_| other()));
                script.inbox.extend(nodes.map(|(node, source)| from(node, source, Control::Heartbeat { heard: 0 })));
            }
            let now = Time(0) + Span::from_millis(millis);
            let ended = candidacy.turn(now, &mut script);
            assert!(is_lost || ended.is_continue(), "{millis} ms");
        }
        assert_eq!(expels(&script), is_lost, "heard: {is_heard}");
    }
}
