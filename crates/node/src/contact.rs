//! A node's contact with the coordinator: which coordinator it obeys, when it looks for another
//! one, and how long it waits for one before the run counts as lost.
//!
//! If the connection to the only coordinator of a run breaks, the node asks the coordinator's host
//! whether the process has ended. If so, the run is lost at once.

use crate::NodeError;
use crate::probe::{HostAnswer, Probe, ask_host};
use crate::reminder::Reminder;
use net::Transport;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use types::{Measured, NodeId, Source, Span};
use wire::{Control, Frame, Head, Leader, Message, Timeout};

/// The longest time between two heartbeats to the coordinator.
const LONGEST_HEARTBEAT: Duration = Duration::from_millis(500);

/// Time from the loss of a connection to the call that makes a new one. A node whose call fails
/// calls again after this time, until the coordinator is heard.
pub(crate) const CALL_AGAIN: Duration = Duration::from_millis(50);

/// Characters of a failure's reason that other nodes are told, at most.
pub(crate) const REASON_CHARS: usize = 500;

/// Time between two heartbeats to the coordinator: a quarter of the failure timeout, 0.5 s at most.
pub(crate) fn heartbeat_interval(failure_timeout: Duration) -> Duration {
    (failure_timeout / 4).min(LONGEST_HEARTBEAT)
}

pub(crate) fn span(duration: Duration) -> Span {
    Span(duration.as_nanos() as u64)
}

/// A node's view of the coordinator, and the times at which it last heard from it and called it.
pub(crate) struct CoordinatorContact {
    leader: Leader,
    /// When the coordinator was last heard.
    heard: Instant,
    /// The question to the coordinator's host whether the process has ended, and when it was asked.
    probe: Option<(Instant, Probe)>,
    /// When [`mind`](Self::mind) was last called.
    minded: Instant,
    /// When `mind` was first called again after this process was not running for a while.
    woke: Instant,
    /// When the node last turned to another address of the coordinator.
    moved: Instant,
    /// When to log that no coordinator answers.
    reminder: Reminder,
    /// When the oldest unanswered heartbeat was sent.
    asked: Option<Instant>,
    /// When the next heartbeat is due.
    heartbeat_due: Instant,
    /// From a heartbeat to its answer.
    round_trip: Measured,
    /// Silence after which the only coordinator of a run is lost, unless its process lives.
    failure_timeout: Duration,
    /// Whether this node was given several coordinators.
    of_several: bool,
    /// How long to wait for a coordinator if there may be another one, or if its process lives.
    unled: Duration,
    /// What is known of the process of a silent coordinator.
    process: SilentProcess,
}

/// What a node knows of the process of its silent only coordinator.
enum SilentProcess {
    /// Its host was not asked.
    Unknown,
    /// Its host was asked, and has yet to answer.
    Asked(Receiver<HostAnswer>),
    /// It lives. Its host is asked again after this silence.
    Lives { ask_again_after: Duration },
}

impl CoordinatorContact {
    pub fn new(now: Instant, failure_timeout: Duration, of_several: bool, unled: Duration) -> Self {
        Self {
            leader: Leader::default(),
            heard: now,
            probe: None,
            minded: now,
            woke: now,
            moved: now,
            reminder: Reminder::default(),
            asked: None,
            heartbeat_due: now,
            round_trip: Measured::default(),
            failure_timeout,
            of_several,
            unled,
            process: SilentProcess::Unknown,
        }
    }

    /// Takes in that a heartbeat was sent.
    pub fn asked(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
        self.heartbeat_due = now + self.heartbeat_interval();
    }

    /// Whether to send the next heartbeat. The first is due at once.
    pub fn is_heartbeat_due(&self, now: Instant) -> bool {
        now >= self.heartbeat_due
    }

    /// Time between two heartbeats.
    pub fn heartbeat_interval(&self) -> Duration {
        heartbeat_interval(self.failure_timeout)
    }

    /// Time from a heartbeat to its answer, once one was answered.
    pub fn round_trip(&self) -> Option<Measured> {
        (self.round_trip.count > 0).then_some(self.round_trip)
    }

    /// Time after which an answer is late: the measured round-trip limit, clamped to between a
    /// tenth of a heartbeat interval and a whole one.
    pub fn late_after(&self) -> Duration {
        let heartbeat = self.heartbeat_interval();
        Duration::from_nanos(self.round_trip.limit(span(heartbeat / 10), span(heartbeat)).0)
    }

    /// Silence after which the node looks for another coordinator: three heartbeats and the time in
    /// which the last one should have been answered.
    fn elsewhere_after(&self) -> Duration {
        self.heartbeat_interval() * 3 + self.late_after()
    }

    /// The time-outs of this node towards the coordinator, with their reasons, for the status.
    pub fn timeouts(&self) -> Vec<Timeout> {
        let heartbeat = Timeout::new(
            "it sends a heartbeat",
            span(self.heartbeat_interval()),
            "a quarter of the failure timeout, 0.5 s at most",
            None,
        );
        if !self.may_change() {
            let lost = Timeout::new(
                "a silent coordinator is lost",
                span(self.failure_timeout),
                "the failure timeout, a setting",
                None,
            );
            let stopped = Timeout::new(
                "a silent coordinator is lost whose process lives",
                span(self.unled.max(self.failure_timeout)),
                "the join limit, a setting",
                None,
            );
            return vec![heartbeat, lost, stopped];
        }
        let why = "three heartbeats, and the mean and four deviations of the time in which they are answered";
        let elsewhere = span(self.elsewhere_after());
        vec![heartbeat, Timeout::new("it looks for another coordinator", elsewhere, why, self.round_trip())]
    }

    /// Takes in an arriving frame. Returns whether the node should handle it: not if it comes from
    /// a coordinator that does not lead.
    pub fn hears(&mut self, now: Instant, frame: &Frame, transport: &mut dyn Transport) -> bool {
        if frame.head.from != NodeId::Coordinator {
            return true;
        }
        if let Message::Control(Control::Follow { leader }) = &frame.message {
            self.moved = now;
            transport.call_elsewhere(NodeId::Coordinator, leader);
            return false;
        }
        if !self.leader.heeds(&frame.head) {
            return false;
        }
        if std::mem::take(&mut self.reminder).was_due() {
            let seconds = (now - self.heard).as_secs_f64();
            tracing::warn!(seconds, "a coordinator answers again; the run goes on");
        }
        if matches!(frame.message, Message::Control(Control::Heartbeat { .. }))
            && let Some(asked) = self.asked.take()
        {
            self.round_trip.observe(span(now.saturating_duration_since(asked)));
        }
        self.heard = now;
        self.process = SilentProcess::Unknown;
        true
    }

    /// Whether another coordinator may take this one's place.
    pub fn may_change(&self) -> bool {
        self.of_several || self.leader.may_change()
    }

    /// Takes in that the connection to the coordinator broke, or could not be made. The next
    /// heartbeat makes a new one soon: the coordinator may take this node for ended. Asks its host
    /// whether the process has ended, unless another coordinator may take over.
    pub fn disconnected(&mut self, now: Instant, transport: &dyn Transport) {
        self.heartbeat_due = self.heartbeat_due.min(now + CALL_AGAIN);
        if !self.may_change() && self.probe.is_none() {
            let addresses = transport.addresses(NodeId::Coordinator);
            self.probe = Some((now, Probe::at(addresses, self.heartbeat_interval())));
        }
    }

    /// Whether the coordinator's host has said that the process has ended.
    fn has_ended(&mut self) -> bool {
        let Some((asked, probe)) = &self.probe else { return false };
        let Some(ended) = probe.answer() else { return false };
        // A coordinator that was heard since then lives.
        let ended = ended && self.heard <= *asked;
        self.probe = None;
        ended && !self.may_change()
    }

    /// Checks whether the coordinator's process has ended, and how long it has been silent. Looks
    /// for another one after a while, logs that, and fails when the time to wait is over.
    pub fn mind(&mut self, now: Instant, transport: &mut dyn Transport) -> Result<(), NodeError> {
        if now.saturating_duration_since(self.minded) > self.failure_timeout / 2 {
            // This process was not running for a while, and frames that arrived are still unread.
            self.woke = now;
        }
        self.minded = now;
        if self.has_ended() {
            let reason = "its process has ended".to_owned();
            return Err(NodeError::Lost { node: NodeId::Coordinator, reason });
        }
        let silent = now.saturating_duration_since(self.heard);
        let longest = self.unled.max(self.failure_timeout);
        let limit = if self.may_change() { longest } else { self.failure_timeout };
        let is_late = silent > limit && now.saturating_duration_since(self.woke) >= self.failure_timeout;
        if is_late && (silent > longest || self.may_change() || !self.process_may_live(silent, transport)) {
            let reason = format!("nothing heard from it for {:.1} s", silent.as_secs_f64());
            return Err(NodeError::Lost { node: NodeId::Coordinator, reason });
        }
        if !self.may_change() {
            if matches!(self.process, SilentProcess::Lives { .. }) && self.reminder.is_due(silent) {
                let seconds = silent.as_secs_f64();
                let limit = longest.as_secs();
                tracing::warn!(seconds, "the coordinator's process lives and says nothing; waiting, {limit} s at most");
            }
            return Ok(());
        }
        if silent <= self.elsewhere_after() {
            return Ok(());
        }
        if now.saturating_duration_since(self.moved) > self.elsewhere_after() {
            self.moved = now;
            transport.call_elsewhere(NodeId::Coordinator, "");
        }
        if self.reminder.is_due(silent) {
            let seconds = silent.as_secs_f64();
            let limit = limit.as_secs();
            tracing::warn!(seconds, "no coordinator answers; the run waits for one, {limit} s at most");
        }
        Ok(())
    }
}

impl CoordinatorContact {
    /// Whether the process of the only coordinator may live, which has been silent for so long. A
    /// process that was stopped or starved lives, and forgives the silence when it goes on. Asks
    /// its host when that is due, and waits for the answer.
    fn process_may_live(&mut self, silent: Duration, transport: &mut dyn Transport) -> bool {
        if let SilentProcess::Asked(answer) = &self.process {
            match answer.try_recv() {
                Ok(HostAnswer::Accepted) => self.process = SilentProcess::Lives { ask_again_after: silent * 2 },
                Ok(HostAnswer::Refused | HostAnswer::Nothing) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => {}
            }
        }
        let is_due = match &self.process {
            SilentProcess::Unknown => true,
            SilentProcess::Asked(_) => false,
            SilentProcess::Lives { ask_again_after } => silent >= *ask_again_after,
        };
        if is_due {
            let addresses = transport.addresses(NodeId::Coordinator);
            if addresses.is_empty() {
                return false;
            }
            self.process = SilentProcess::Asked(ask_host(addresses, self.heartbeat_interval()));
        }
        true
    }
}

/// Tells the coordinator that this node has joined but cannot go on, so that no node waits for it.
pub(crate) fn say_failed(transport: &mut dyn Transport, (node, source): (NodeId, Source), error: &NodeError) {
    let head = Head { source, ..Head::plain(node, NodeId::Coordinator) };
    let reason = error.to_string().chars().take(REASON_CHARS).collect();
    transport.send(Frame { head, message: Message::Control(Control::Fail { reason }) });
    transport.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::{Traffic, TransportEvent};
    use std::net::{SocketAddr, TcpListener};
    use wire::Member;

    /// A transport that records the addresses at which the coordinator was looked for, and knows
    /// where it listens.
    #[derive(Default)]
    struct Looked(Vec<String>, Vec<SocketAddr>);

    impl Transport for Looked {
        fn send(&mut self, _: Frame) {}
        fn flush(&mut self) {}
        fn next(&mut self) -> Option<TransportEvent> {
            None
        }
        fn know(&mut self, _: &[Member]) {}
        fn call_elsewhere(&mut self, _: NodeId, address: &str) {
            self.0.push(address.to_owned());
        }
        fn addresses(&self, _: NodeId) -> Vec<SocketAddr> {
            self.1.clone()
        }
        fn rename(&mut self, _: NodeId) {}
        fn backlog(&self) -> usize {
            0
        }
        fn traffic(&self) -> Traffic {
            Traffic::default()
        }
    }

    fn said(term: u64, control: Control) -> Frame {
        let head = Head { source: Source(term), ..Head::plain(NodeId::Coordinator, NodeId::Worker(0)) };
        Frame { head, message: Message::Control(control) }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_only_coordinator_is_lost_after_the_failure_timeout() {
        let (start, mut looked) = (Instant::now(), Looked::default());
        let mut contact = CoordinatorContact::new(start, 5 * SECOND, false, 60 * SECOND);
        assert!(contact.hears(start + SECOND, &said(0, Control::Heartbeat { heard: 0 }), &mut looked));
        (2..7).for_each(|second| assert_eq!(contact.mind(start + second * SECOND, &mut looked), Ok(())));
        let lost = contact.mind(start + 7 * SECOND, &mut looked).expect_err("silent for 6 s").to_string();
        assert!(lost.contains("lost coordinator: nothing heard from it for 6.0 s"), "{lost}");
        assert!(looked.0.is_empty());
    }

    /// Calls `mind` until the coordinator's host has answered, at most until this instant. Returns
    /// what `mind` said then.
    fn minded(contact: &mut CoordinatorContact, looked: &mut Looked, now: Instant) -> Result<(), NodeError> {
        while contact.probe.is_some() {
            contact.mind(now, looked)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        contact.mind(now, looked)
    }

    #[test]
    fn the_only_coordinator_is_lost_when_its_host_says_that_it_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut looked = Looked(Vec::new(), vec![listener.local_addr().expect("bound")]);
        let start = Instant::now();
        let mut contact = CoordinatorContact::new(start, 60 * SECOND, false, 60 * SECOND);
        contact.disconnected(start, &looked);
        assert_eq!(minded(&mut contact, &mut looked, start), Ok(()), "a connection broke, and the process listens");
        drop(listener);
        contact.disconnected(start, &looked);
        assert!(contact.hears(start + SECOND, &said(0, Control::Heartbeat { heard: 0 }), &mut looked));
        assert_eq!(minded(&mut contact, &mut looked, start + SECOND), Ok(()), "it was heard since");
        contact.disconnected(start + SECOND, &looked);
        let lost = minded(&mut contact, &mut looked, start + SECOND).expect_err("it has ended").to_string();
        assert!(lost.contains("lost coordinator: its process has ended"), "{lost}");
    }

    #[test]
    fn the_end_of_one_of_several_coordinators_loses_nothing() {
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
        for (term, of_several) in [(0, true), (7, false)] {
            let start = Instant::now();
            let mut looked = Looked(Vec::new(), vec![nobody]);
            let mut contact = CoordinatorContact::new(start, 60 * SECOND, of_several, 60 * SECOND);
            assert!(contact.hears(start, &said(term, Control::Heartbeat { heard: 0 }), &mut looked));
            contact.disconnected(start, &looked);
            assert!(contact.probe.is_none());
            assert_eq!(contact.mind(start, &mut looked), Ok(()));
        }
    }

    /// A node with nothing to ask did not call again before its next heartbeat. The coordinator may
    /// believe before that time that the process has ended.
    #[test]
    fn node_calls_again_soon_until_the_coordinator_is_heard() {
        let looked = Looked::default();
        let start = Instant::now();
        let mut contact = CoordinatorContact::new(start, 60 * SECOND, true, 60 * SECOND);
        assert!(contact.is_heartbeat_due(start), "the first one");
        contact.asked(start);
        let next = start + contact.heartbeat_interval();
        let mut now = start + SECOND / 10;
        // The connection breaks, and two calls fail.
        for _ in 0..3 {
            contact.disconnected(now, &looked);
            assert!(!contact.is_heartbeat_due(now));
            now += CALL_AGAIN;
            assert!(contact.is_heartbeat_due(now));
            assert!(now < next, "a heartbeat was not due anyway");
            contact.asked(now);
        }
        assert!(!contact.is_heartbeat_due(now + CALL_AGAIN), "this call succeeds");
        assert!(contact.is_heartbeat_due(now + contact.heartbeat_interval()));
    }

    /// A coordinator that was stopped for longer than the failure timeout ended every run.
    #[test]
    fn a_silent_coordinator_is_waited_for_while_its_process_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut looked = Looked(Vec::new(), listener.local_addr().into_iter().collect());
        let start = Instant::now();
        let second = |seconds: u32| start + seconds * SECOND;
        let mut contact = CoordinatorContact::new(start, 5 * SECOND, false, 60 * SECOND);
        assert!(contact.hears(start, &said(0, Control::Heartbeat { heard: 0 }), &mut looked));
        (1..=6).for_each(|now| assert_eq!(contact.mind(second(now), &mut looked), Ok(())));
        // The host is asked, and its kernel accepts the call.
        drop(listener.accept().expect("a call"));
        (7..=11).for_each(|now| assert_eq!(contact.mind(second(now), &mut looked), Ok(())));
        // It is heard again, and then silent again.
        assert!(contact.hears(second(12), &said(0, Control::Heartbeat { heard: 0 }), &mut looked));
        (13..=18).for_each(|now| assert_eq!(contact.mind(second(now), &mut looked), Ok(())));
        drop(listener.accept().expect("another call"));
        // Waits for the answer, which is under way.
        while matches!(contact.process, SilentProcess::Asked(_)) {
            assert_eq!(contact.mind(second(18), &mut looked), Ok(()));
        }
        // When the silence has doubled, the host is asked again. By now the process has ended.
        drop(listener);
        (19..=23).for_each(|now| assert_eq!(contact.mind(second(now), &mut looked), Ok(())));
        let begin = Instant::now();
        while contact.mind(second(24), &mut looked).is_ok() {
            assert!(begin.elapsed() < 30 * SECOND, "nobody listens any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_silent_coordinator_whose_process_lives_is_lost_after_the_join_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut looked = Looked(Vec::new(), listener.local_addr().into_iter().collect());
        let start = Instant::now();
        let mut contact = CoordinatorContact::new(start, 5 * SECOND, false, 60 * SECOND);
        assert!(contact.hears(start, &said(0, Control::Heartbeat { heard: 0 }), &mut looked));
        (1..=60).for_each(|now| assert_eq!(contact.mind(start + now * SECOND, &mut looked), Ok(()), "second {now}"));
        let lost = contact.mind(start + 61 * SECOND, &mut looked).expect_err("not for ever").to_string();
        assert!(lost.contains("nothing heard from it for 61.0 s"), "{lost}");
    }

    #[test]
    fn a_node_looks_for_other_coordinators_and_waits_if_there_may_be_some() {
        for (term, of_several) in [(0, true), (7, false)] {
            let (start, mut looked) = (Instant::now(), Looked::default());
            let mut contact = CoordinatorContact::new(start, SECOND, of_several, 60 * SECOND);
            assert!(contact.hears(start, &said(term, Control::Heartbeat { heard: 0 }), &mut looked));
            for second in 1..50 {
                assert_eq!(contact.mind(start + second * SECOND, &mut looked), Ok(()));
            }
            assert_eq!(looked.0, [""; 24], "every other second");
            assert!(contact.hears(start + 50 * SECOND, &said(term, Control::Heartbeat { heard: 0 }), &mut looked));
            assert_eq!(contact.mind(start + 51 * SECOND, &mut looked), Ok(()));
            let late = start + 1000 * SECOND;
            assert_eq!(contact.mind(late, &mut looked), Ok(()), "the process was stopped, and may have unread frames");
            assert_eq!(contact.mind(late + SECOND / 2, &mut looked), Ok(()));
            assert!(contact.mind(late + SECOND, &mut looked).is_err(), "not for ever");
        }
    }

    #[test]
    fn measured_answers_decide_when_a_node_looks_for_another_coordinator() {
        let (start, mut looked) = (Instant::now(), Looked::default());
        let mut contact = CoordinatorContact::new(start, 2 * SECOND, true, 60 * SECOND);
        assert_eq!(contact.elsewhere_after(), 2 * SECOND, "before anything was measured: a fourth heartbeat");
        let answered = |contact: &mut CoordinatorContact, looked: &mut Looked, after: Duration| {
            contact.asked(start);
            // With two unanswered heartbeats, the round trip counts from the first one.
            contact.asked(start + after / 2);
            assert!(contact.hears(start + after, &said(0, Control::Heartbeat { heard: 0 }), looked));
        };
        (0..50).for_each(|_| answered(&mut contact, &mut looked, Duration::from_millis(1)));
        assert_eq!(contact.elsewhere_after(), Duration::from_millis(1_550), "a tenth of a heartbeat at least");
        (0..50).for_each(|_| answered(&mut contact, &mut looked, Duration::from_millis(200)));
        let late = contact.late_after();
        assert!(late >= Duration::from_millis(199) && late < Duration::from_millis(260), "{late:?}");
        let shown = contact.timeouts();
        assert!(
            shown.iter().any(|timeout| timeout.measured == contact.round_trip() && timeout.why.contains("deviations"))
        );
    }

    #[test]
    fn a_follower_redirects_the_node_and_former_leaders_are_ignored() {
        let (start, mut looked) = (Instant::now(), Looked::default());
        let mut contact = CoordinatorContact::new(start, SECOND, false, 60 * SECOND);
        assert!(contact.hears(start, &said(2, Control::Heartbeat { heard: 0 }), &mut looked));
        assert!(!contact.hears(start, &said(1, Control::Finish), &mut looked));
        assert!(!contact.hears(start, &said(0, Control::Follow { leader: "b:7".to_owned() }), &mut looked));
        assert_eq!(looked.0, ["b:7"]);
        assert!(contact.hears(start, &said(3, Control::Heartbeat { heard: 0 }), &mut looked));
    }
}
