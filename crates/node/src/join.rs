//! How a node enters a run: it asks the coordinator for a place, and waits until everybody has one.

use crate::NodeError;
use net::{Event, Transport, Waiter};
use std::time::{Duration, Instant};
use types::{NodeId, Plan, Source};
use wire::{Control, Frame, Head, Member, Message, Role};

/// A join that was not answered is said again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A place in a run.
#[derive(Debug)]
pub struct Joined {
    /// The name given.
    pub node: NodeId,
    /// The incarnation, for workers.
    pub source: Source,
    /// The plan.
    pub plan: Plan,
    /// Where everybody listens.
    pub members: Vec<Member>,
    /// Frames from others who began sooner, to be handled first.
    pub early: Vec<Frame>,
}

/// Joins the run in a place of its own choice, or any, and waits, at most `limit`, until it begins. `token` must differ
/// between nodes: it names this one until the coordinator does.
pub fn join(
    transport: &mut dyn Transport,
    waiter: &mut dyn Waiter,
    (role, wanted): (Role, Option<u32>),
    address: &str,
    token: u64,
    limit: Duration,
) -> Result<Joined, NodeError> {
    let provisional = provisional_name(role, token);
    transport.rename(provisional);
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    let mut place: Option<(NodeId, Source)> = None;
    let mut early = Vec::new();
    let mut said = Instant::now();
    let mut asks = 0u32;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            asked = Some(Instant::now());
            asks += 1;
            let (from, control) = match place {
                // Joining once more brings whatever answer was lost.
                Some((node, _)) if !asks.is_multiple_of(8) => (node, Control::Beat),
                _ => (provisional, Control::Join { role, address: address.to_owned(), token, place: wanted }),
            };
            let mut head = Head::plain(from, NodeId::Coordinator);
            head.source = place.map(|(_, source)| source).unwrap_or_default();
            transport.send(Frame { head, message: Message::Control(control) });
            transport.flush();
        }
        while let Some(event) = transport.next() {
            let Event::Frame(frame) = event else {
                // The beginning may have been lost with the connection: ask for the same place again, and hear it again.
                (place, asked) = (None, asked.filter(|_| place.is_none()));
                continue;
            };
            match frame.message {
                Message::Control(Control::Welcome { node, source, token: theirs }) if theirs == token => {
                    transport.rename(node);
                    place = Some((node, source));
                    asked = None;
                }
                Message::Control(Control::Turned { reason, token: theirs }) if theirs == token => {
                    return Err(NodeError::TurnedAway { reason });
                }
                Message::Control(Control::Begin { plan, members }) => {
                    if let Some((node, source)) = place {
                        if let NodeId::Worker(rank) = node
                            && plan.workers.get(rank as usize) != Some(&source)
                        {
                            let reason = format!("{node} was silent for too long and another process took its place");
                            return Err(NodeError::TurnedAway { reason });
                        }
                        transport.know(&members);
                        return Ok(Joined { node, source, plan, members, early });
                    }
                }
                Message::Control(Control::Lost { node, reason }) => return Err(NodeError::Lost { node, reason }),
                Message::Control(Control::Beat) => {}
                _ => early.push(frame),
            }
        }
        if begin.elapsed() > limit {
            let reason = match place {
                None => "no answer from the coordinator; is the address right and is it running?",
                Some(_) => "some servers or workers have not joined; were all of them started?",
            };
            return Err(NodeError::NotBegun { seconds: limit.as_secs(), reason: reason.to_owned() });
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            let what =
                if place.is_some() { "waiting for the other nodes to join" } else { "waiting for the coordinator" };
            tracing::info!(seconds = begin.elapsed().as_secs(), "{what}");
        }
        if asked.is_some() {
            waiter.wait(Some(Duration::from_millis(20)));
        }
    }
}

/// A name out of the range that the coordinator gives out, until it gives one.
fn provisional_name(role: Role, token: u64) -> NodeId {
    let index = (token as u32 & 0x0FFF_FFFF) | 0x1000_0000;
    match role {
        Role::Server => NodeId::Server(index),
        Role::Worker => NodeId::Worker(index),
    }
}
