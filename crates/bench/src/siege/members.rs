//! Attacks of a peer with a token: every message of its role, in its own name and in the names of
//! others, without a place in the run and with one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use types::{NodeId, Role, Source, SplitMix64};
use wire::{Control, Frame, Head, Message, NodeRole, Sample, may_send, sample_frame, sample_of_each_kind};

use super::attacker::{Run, Tally};
use super::line::{Line, Mask};
use super::rights::right_of;
use super::strangers::ask_status;

/// The coordinator gives no node an index from this on, so processes without a place use them.
const PROVISIONAL: u32 = 0x1000_0000;
/// How long a node may take to close a connection on which something was said that is forbidden.
const REFUSAL: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How long it looks for answers that do not matter.
const GLANCE: Duration = Duration::from_millis(1);
/// Questions of a flood whose answers nobody reads.
const UNREAD: usize = 2_000;
/// Names and requests to join of a flood.
const NAMES: u32 = 500;
const JOINS: usize = 40;
/// How often a node with a place says that it lives.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// A name of a process that has no place in the run.
pub(super) fn provisional(role: Role, random: &mut SplitMix64) -> NodeId {
    let index = PROVISIONAL + random.below(1 << 16) as u32;
    match role {
        Role::Worker | Role::Reader => NodeId::Worker(index),
        Role::Server => NodeId::Server(index),
        Role::Coordinator => NodeId::Coordinator,
    }
}

/// Whether a process without a place may not send this, whatever it calls itself.
fn is_forbidden(role: Role, message: &Message, to: Role) -> bool {
    !may_send(role, message, to)
}

/// Sends every kind of message once, in the role of a token and without a place in the run.
pub(super) fn say_everything(role: Role, mask: &Mask, run: &Run, random: &mut SplitMix64, tally: &mut Tally) {
    let mut line: Option<(SocketAddr, Line)> = None;
    for message in sample_of_each_kind(random) {
        let may_join = matches!(message, Message::Control(Control::Join { .. }));
        // A coordinator needs no place: what it says counts at once.
        let is_right = role == Role::Coordinator && right_of(role, &message, run.honest).is_some();
        let target = *run.any(random);
        let address = target.address;
        if (may_join && !is_forbidden(role, &message, target.role())) || is_right {
            continue;
        }
        let from = match random.below(3) {
            0 => run.any(random).node,
            1 if role != Role::Coordinator => NodeId::sample(random),
            _ => provisional(role, random),
        };
        let frame = sample_frame(message, from, target.node, random);
        let mut kept = line.take().filter(|(at, _)| *at == address).map(|(_, line)| line);
        if kept.is_none() {
            kept = Line::call(address, mask).ok();
        }
        let Some(mut open) = kept else { continue };
        tally.tried(&format!("{role}_message"));
        if open.send(&frame).is_err() {
            continue;
        }
        if is_forbidden(role, &frame.message, target.role()) {
            tally.forbidden(open.find(REFUSAL, |_| None::<()>).is_none() && is_closed(&mut open));
        } else if open.next(GLANCE).is_ok() {
            line = Some((address, open));
        }
    }
}

/// Whether the node has closed a connection.
fn is_closed(line: &mut Line) -> bool {
    line.next(GLANCE).is_err()
}

/// Asks for the status again and again without reading an answer, and under many names.
pub(super) fn flood(mask: &Mask, run: &Run, random: &mut SplitMix64, tally: &mut Tally) {
    let from = provisional(Role::Reader, random);
    if let Ok(mut unread) = Line::call(run.coordinator, mask) {
        for _ in 0..UNREAD {
            tally.tried("unread_status_question");
            if unread.send(&ask_status(from)).is_err() {
                break;
            }
        }
    }
    if let Ok(mut named) = Line::call(run.coordinator, mask) {
        for index in 0..NAMES {
            tally.tried("name_of_one_connection");
            if named.send(&ask_status(NodeId::Worker(PROVISIONAL + (1 << 20) + index))).is_err() {
                break;
            }
            named.next(GLANCE).ok();
        }
    }
}

/// Asks for a place as many processes at once would, and takes none of them.
pub(super) fn join_and_vanish(role: NodeRole, mask: &Mask, run: &Run, random: &mut SplitMix64, tally: &mut Tally) {
    let Ok(mut line) = Line::call(run.coordinator, mask) else { return };
    for _ in 0..JOINS {
        tally.tried("join");
        let join = Control::Join {
            role,
            address: String::sample(random),
            token: random.draw(),
            place: None,
            job: String::new(),
        };
        let head = Head::plain(provisional(role_of(role), random), NodeId::Coordinator);
        if line.send(&Frame { head, message: Message::Control(join) }).is_err() {
            return;
        }
        line.next(GLANCE).ok();
    }
}

/// The role of a node's certificate.
pub(super) fn role_of(role: NodeRole) -> Role {
    match role {
        NodeRole::Worker => Role::Worker,
        NodeRole::Server => Role::Server,
    }
}

/// A hostile node that the coordinator has given a place.
struct Seat<'a> {
    role: Role,
    mask: &'a Mask,
    run: &'a Run,
    node: NodeId,
    source: Source,
    coordinator: Line,
    heartbeats: u64,
    last_heartbeat: Instant,
}

impl<'a> Seat<'a> {
    /// Joins the run.
    fn take(role: NodeRole, mask: &'a Mask, run: &'a Run, random: &mut SplitMix64) -> anyhow::Result<Self> {
        let mut coordinator = Line::call(run.coordinator, mask)?;
        let token = random.draw();
        // Nobody listens there.
        let address = "127.0.0.1:1".to_owned();
        let join = Control::Join { role, address, token, place: None, job: String::new() };
        let role = role_of(role);
        let head = Head::plain(provisional(role, random), NodeId::Coordinator);
        coordinator.send(&Frame { head, message: Message::Control(join) })?;
        let welcome = coordinator.find(ANSWER, |frame| match &frame.message {
            Message::Control(Control::Welcome { node, source, token: theirs }) if *theirs == token => {
                Some((*node, *source))
            }
            _ => None,
        });
        let (node, source) = welcome.with_context(|| format!("the coordinator gives a {role} no place"))?;
        let mut seat =
            Self { role, mask, run, node, source, coordinator, heartbeats: 0, last_heartbeat: Instant::now() };
        seat.send_heartbeat()?;
        Ok(seat)
    }

    fn control(&self, control: Control) -> Frame {
        let head = Head { source: self.source, number: self.heartbeats, ..Head::plain(self.node, NodeId::Coordinator) };
        Frame { head, message: Message::Control(control) }
    }

    /// Says that it lives.
    fn send_heartbeat(&mut self) -> std::io::Result<()> {
        self.heartbeats += 1;
        self.last_heartbeat = Instant::now();
        let heard = self.heartbeats - 1;
        let frame = self.control(Control::Heartbeat { heard });
        self.coordinator.send(&frame)
    }

    /// Reads what the coordinator says, and goes on living.
    fn live(&mut self) -> std::io::Result<()> {
        while self.coordinator.next(GLANCE)?.is_some() {}
        if self.last_heartbeat.elapsed() >= HEARTBEAT { self.send_heartbeat() } else { Ok(()) }
    }

    /// Sends a message as the node that it is, to any node.
    fn say(&mut self, message: Message, random: &mut SplitMix64) -> std::io::Result<()> {
        let target = *self.run.any(random);
        let mut frame = sample_frame(message, self.node, target.node, random);
        if random.below(4) > 0 {
            frame.head.source = self.source;
        }
        if target.node == NodeId::Coordinator {
            self.coordinator.send(&frame)
        } else {
            let mut line = Line::call(target.address, self.mask)?;
            line.send(&frame)?;
            line.next(GLANCE).map(drop)
        }
    }
}

/// Takes a place in the run, sends every kind of message but those by which its role may rightly do
/// harm, and leaves.
pub(super) fn misbehave(
    role: NodeRole,
    mask: &Mask,
    run: &Run,
    random: &mut SplitMix64,
    tally: &mut Tally,
    until: Instant,
) -> anyhow::Result<()> {
    let mut seat = Seat::take(role, mask, run, random)?;
    for message in sample_of_each_kind(random) {
        if Instant::now() >= until {
            break;
        }
        if right_of(seat.role, &message, run.honest).is_some() {
            continue;
        }
        tally.tried(&format!("seated_{}_message", seat.role));
        let said = seat.say(message, random);
        // A node that hears something forbidden closes the connection. The place is kept.
        if seat.live().is_err() || said.is_err() {
            seat.coordinator = Line::call(run.coordinator, mask)?;
            seat.send_heartbeat()?;
        }
    }
    let bye = seat.control(Control::Bye);
    seat.coordinator.send(&bye)?;
    seat.coordinator.next(ANSWER).ok();
    Ok(())
}
