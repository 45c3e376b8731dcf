//! Joining a run: a node asks the coordinator for a place, and waits until all nodes have one and
//! the run begins.

use crate::reminder::Reminder;
use crate::shell_control::ShellControl;
use crate::{LeaveSignal, NodeError};
use net::{Transport, TransportEvent, Waiter};
use std::time::{Duration, Instant};
use types::limits::{ADDRESS_BYTES, NAME_BYTES};
use types::{Clock, NodeId, Plan, Source, Span, WorkerId};
use wire::{Control, Frame, Head, Leader, Member, Message, NodeRole};

/// Silence of the coordinator after which the node calls its next address. A constant, because no
/// round trip is measured yet.
const ELSEWHERE_AFTER: Duration = Duration::from_millis(1500);
/// Time after which an unanswered request to join is sent again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Frames of the coordinator that are kept for the machine, at most. The coordinator repeats what
/// is not answered, so dropping more costs only time. Other nodes send nothing before this node has
/// answered the coordinator.
const EARLY_FRAMES: usize = 64;

/// What a node learns when the run begins: its name, and the state of the run.
#[derive(Debug)]
pub struct JoinedRun {
    /// The name that the coordinator gave it.
    pub node: NodeId,
    /// A worker's incarnation.
    pub source: Source,
    /// The plan.
    pub plan: Plan,
    /// The addresses at which nodes listen.
    pub members: Vec<Member>,
    /// The clock at which a worker begins.
    pub clock: Clock,
    /// Barriers that other workers passed before it joined.
    pub barriers: u64,
    /// How long a serving lease lasts, in an elastic run.
    pub serving_lease: Option<Span>,
    /// Where the run reads and writes checkpoints.
    pub locations: Vec<String>,
    /// Frames that the coordinator sent before it began the run, to be handled first.
    pub early: Vec<Frame>,
}

/// The place in a run that a node asks for.
#[derive(Clone, Copy, Debug)]
pub struct JoinRequest<'a> {
    /// A server or a worker.
    pub role: NodeRole,
    /// The number of the server or worker. None asks for the first that is free.
    pub place: Option<u32>,
    /// The job that the node was started for. Empty accepts any job.
    pub job: &'a str,
}

impl JoinRequest<'_> {
    /// Any place of a role, in any job.
    #[must_use]
    pub fn any(role: NodeRole) -> Self {
        Self { role, place: None, job: "" }
    }
}

/// Asks for the place that `request` names, and waits until the run begins, at most for `limit`.
///
/// `address` is where other nodes can call this one. `token` must differ between nodes: it
/// identifies this one until the coordinator has named it. Fails with [`NodeError::LeftEarly`] if
/// the node is told to leave meanwhile.
pub fn join(
    transport: &mut dyn Transport,
    waiter: &mut dyn Waiter,
    request: JoinRequest<'_>,
    address: &str,
    token: u64,
    limit: Duration,
    leave: &LeaveSignal,
) -> Result<JoinedRun, NodeError> {
    let JoinRequest { role, place: wanted, job } = request;
    check_lengths(address, job)?;
    let provisional = provisional_name(role, token);
    transport.rename(provisional);
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    let mut place: Option<(NodeId, Source)> = None;
    let mut was_welcomed = false;
    let mut early = Vec::new();
    let mut reminder = Reminder::default();
    let mut asks = 0u32;
    let mut heard = begin;
    let mut leader = Leader::default();
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            asked = Some(Instant::now());
            asks += 1;
            let (from, control) = match place {
                // Every eighth time, ask to join again: that repeats an answer that was lost.
                Some((node, _)) if !asks.is_multiple_of(8) => (node, Control::Heartbeat { heard: 0 }),
                _ => (
                    provisional,
                    Control::Join { role, address: address.to_owned(), token, place: wanted, job: job.to_owned() },
                ),
            };
            let mut head = Head::plain(from, NodeId::Coordinator);
            head.source = place.map(|(_, source)| source).unwrap_or_default();
            transport.send(Frame { head, message: Message::Control(control) });
            transport.flush();
        }
        while let Some(event) = transport.next() {
            let TransportEvent::Frame(frame) = event else {
                // The message that begins the run may have been lost with the connection. Asking
                // for the place again repeats it.
                (place, asked) = (None, asked.filter(|_| place.is_none()));
                continue;
            };
            let control = ShellControl::of(&frame);
            if let Some(ShellControl::Follow { leader }) = control {
                transport.call_elsewhere(NodeId::Coordinator, leader);
                continue;
            }
            if !leader.heeds(&frame.head) {
                continue;
            }
            heard = Instant::now();
            match control {
                Some(ShellControl::Welcome { node, source, token: theirs }) if theirs == token => {
                    transport.rename(node);
                    place = Some((node, source));
                    was_welcomed = true;
                    asked = None;
                }
                Some(ShellControl::JoinRefused { reason, token: theirs }) if theirs == token => {
                    return Err(NodeError::JoinRefused { reason: reason.to_owned() });
                }
                Some(ShellControl::Begin { plan, members, clock, barriers, serving_lease, locations }) => {
                    if let Some((node, source)) = place {
                        if let NodeId::Worker(rank) = node
                            && plan.source(WorkerId(rank)) != Some(source)
                        {
                            let reason = format!(
                                "{node} was silent for too long and another process took its place; start it again"
                            );
                            return Err(NodeError::JoinRefused { reason });
                        }
                        transport.know(members);
                        return Ok(JoinedRun {
                            node,
                            source,
                            plan: plan.clone(),
                            members: members.to_vec(),
                            clock,
                            barriers,
                            serving_lease,
                            locations: locations.to_vec(),
                            early,
                        });
                    }
                }
                Some(ShellControl::Lost { node, reason }) => {
                    return Err(NodeError::Lost { node, reason: reason.to_owned() });
                }
                Some(ShellControl::Heartbeat) => {}
                None
                | Some(
                    ShellControl::Bye
                    | ShellControl::Follow { .. }
                    | ShellControl::Welcome { .. }
                    | ShellControl::JoinRefused { .. }
                    | ShellControl::Adopt { .. }
                    | ShellControl::Checkpoint { .. }
                    | ShellControl::Restore { .. }
                    | ShellControl::LeaveDeferred { .. },
                ) => {
                    if frame.head.from == NodeId::Coordinator && early.len() < EARLY_FRAMES {
                        early.push(frame);
                    }
                }
            }
        }
        transport.tick(Instant::now());
        if heard.elapsed() > ELSEWHERE_AFTER {
            heard = Instant::now();
            transport.call_elsewhere(NodeId::Coordinator, "");
        }
        if leave.is_asked() {
            return Err(NodeError::LeftEarly);
        }
        if let Some(reason) = transport.incompatible().filter(|_| !was_welcomed) {
            return Err(NodeError::Incompatible { reason });
        }
        if begin.elapsed() > limit {
            let reason = match (place, was_welcomed) {
                (Some(_), _) => "some servers or workers have not joined; were all of them started?",
                (None, true) => "the coordinator gave this node a place, then stopped answering; is it still running?",
                (None, false) => "no answer from the coordinator; is the address right and is it running?",
            };
            return Err(NodeError::NotBegun { seconds: limit.as_secs(), reason: reason.to_owned() });
        }
        if reminder.is_due(begin.elapsed()) {
            let what = match (place, was_welcomed) {
                (Some(_), _) => "waiting for the other nodes to join",
                (None, true) => "waiting for the coordinator to answer again",
                (None, false) => "waiting for the coordinator",
            };
            tracing::info!(seconds = begin.elapsed().as_secs(), "{what}");
        }
        if asked.is_some() {
            waiter.wait(Some(Duration::from_millis(20)));
        }
    }
}

/// Fails if the coordinator would refuse the address or the name of the job.
fn check_lengths(address: &str, job: &str) -> Result<(), NodeError> {
    let texts = [("the address of this node", address, ADDRESS_BYTES), ("the name of its job", job, NAME_BYTES)];
    let too_long = texts.into_iter().find(|(_, text, most)| text.len() > *most);
    let reason = |(what, text, most): (&str, &str, usize)| NodeError::JoinRefused {
        reason: format!("{what} has {} bytes, and {most} are allowed: choose a shorter one", text.len()),
    };
    too_long.map_or(Ok(()), |text| Err(reason(text)))
}

/// The name that a node uses until the coordinator names it, from a range that the coordinator does
/// not use.
fn provisional_name(role: NodeRole, token: u64) -> NodeId {
    let index = (token as u32 & 0x0FFF_FFFF) | 0x1000_0000;
    match role {
        NodeRole::Server => NodeId::Server(index),
        NodeRole::Worker => NodeId::Worker(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::Exchange;

    const TOKEN: u64 = 7;
    const LIMIT: Duration = Duration::from_millis(50);

    fn say(from: NodeId, control: Control) -> TransportEvent {
        TransportEvent::Frame(Frame { head: Head::plain(from, NodeId::Worker(0)), message: Message::Control(control) })
    }

    fn welcome() -> TransportEvent {
        say(NodeId::Coordinator, Control::Welcome { node: NodeId::Worker(0), source: Source(1), token: TOKEN })
    }

    /// A transport that delivers these events and nothing more.
    struct Script(std::vec::IntoIter<TransportEvent>);

    impl Transport for Script {
        fn send(&mut self, _: Frame) {}
        fn flush(&mut self) {}
        fn next(&mut self) -> Option<TransportEvent> {
            self.0.next()
        }
        fn know(&mut self, _: &[Member]) {}
        fn rename(&mut self, _: NodeId) {}
        fn backlog(&self) -> usize {
            0
        }
        fn traffic(&self) -> net::Traffic {
            net::Traffic::default()
        }
    }

    fn join_hearing(events: Vec<TransportEvent>) -> Result<JoinedRun, NodeError> {
        let (_, mut waiter) = Exchange::new().join(NodeId::Worker(1));
        join(
            &mut Script(events.into_iter()),
            &mut waiter,
            JoinRequest::any(NodeRole::Worker),
            "",
            TOKEN,
            LIMIT,
            &LeaveSignal::default(),
        )
    }

    #[test]
    fn a_join_that_times_out_says_what_it_waited_for() {
        let disconnected = || TransportEvent::Disconnected(NodeId::Coordinator);
        let cases = [
            (vec![], "is the address right"),
            (vec![disconnected()], "is the address right"),
            (vec![welcome()], "have not joined"),
            (vec![welcome(), disconnected()], "stopped answering"),
            (vec![welcome(), disconnected(), welcome()], "have not joined"),
        ];
        for (events, words) in cases {
            let said = format!("{events:?}");
            let error = join_hearing(events).expect_err("it never begins").to_string();
            assert!(error.contains(words), "{error} after {said}");
        }
    }

    #[test]
    fn an_address_or_job_that_is_too_long_is_refused_before_the_node_asks() {
        let long = |bytes: usize| "x".repeat(bytes);
        // (address, job, a word of the refusal)
        let cases = [(long(ADDRESS_BYTES + 1), String::new(), "address"), (String::new(), long(NAME_BYTES + 1), "job")];
        for (address, job, word) in cases {
            let refused = check_lengths(&address, &job).expect_err("too long").to_string();
            assert!(refused.contains(word), "{refused}");
        }
        assert_eq!(check_lengths(&long(ADDRESS_BYTES), &long(NAME_BYTES)), Ok(()));
    }

    #[test]
    fn a_node_that_is_told_to_leave_stops_joining() {
        let (_, mut waiter) = Exchange::new().join(NodeId::Worker(1));
        let leave = LeaveSignal::default();
        leave.ask();
        let long = Duration::from_secs(1000);
        let mut script = Script(vec![welcome()].into_iter());
        let joined = join(&mut script, &mut waiter, JoinRequest::any(NodeRole::Worker), "", TOKEN, long, &leave);
        assert_eq!(joined.err(), Some(NodeError::LeftEarly));
    }

    #[test]
    fn join_keeps_a_bounded_number_of_frames_from_the_coordinator_only() {
        let finish = |from: NodeId| (0..1_000).map(move |_| say(from, Control::Finish));
        let mut events = vec![welcome()];
        events.extend(finish(NodeId::Worker(3)).chain(finish(NodeId::Coordinator)));
        let plan = Plan::first(1, vec![Source(1)]);
        events.push(say(
            NodeId::Coordinator,
            Control::Begin {
                plan,
                members: Vec::new(),
                clock: Clock(0),
                barriers: 0,
                serving_lease: None,
                locations: Vec::new(),
            },
        ));
        let joined = join_hearing(events).expect("begun");
        assert_eq!(joined.early.len(), EARLY_FRAMES);
        assert!(joined.early.iter().all(|frame| frame.head.from == NodeId::Coordinator));
    }
}
