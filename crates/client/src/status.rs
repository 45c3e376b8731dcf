//! How a run stands, for somebody who takes no part in it.

use crate::addresses::{CoordinatorAddress, Endpoint};
use crate::session::token;
use crate::{Connect, Error};
use net::{Transport, TransportEvent, Waiter};
use node::NodeError;
use std::time::{Duration, Instant};
use types::NodeId;
use wire::{Control, Frame, Head, Message, Pool, Status};

/// What was not answered is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Asks the coordinator how the run stands, and waits at most `connect.join_limit` for the answer.
/// Fails if the address is none ([`Error::Address`]) or nobody answers there ([`Error::Run`]).
///
/// ```
/// use slackwater::{Connect, RunSize, Serve, Session};
/// use slackwater::monitor::status;
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let connect = Connect::to(&coordinator.to_string());
/// let serve = Serve { coordinate: Some(RunSize { servers: 1, workers: 1 }), ..Serve::new(connect.clone()) };
/// let server = std::thread::spawn(move || serve.run());
/// let session = Session::connect(&connect)?;
/// let status = status(&connect)?;
/// assert_eq!((status.members.len(), status.plan.live_workers().count()), (2, 1));
/// session.close()?;
/// # server.join().expect("no panic")?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub fn status(connect: &Connect) -> Result<Status, Error> {
    let coordinator = CoordinatorAddress::resolve(connect)?;
    let Endpoint { mut transport, mut waiter, .. } = coordinator.listen_as_node(connect, 0, false, &Pool::new())?;
    // A name that the coordinator gives nobody.
    let name = NodeId::Worker((token() as u32 & 0x0FFF_FFFF) | 0x1000_0000);
    transport.rename(name);
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    while begin.elapsed() < connect.join_limit {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            asked = Some(Instant::now());
            let head = Head::plain(name, NodeId::Coordinator);
            transport.send(Frame { head, message: Message::Control(Control::AskStatus) });
            transport.flush();
        }
        while let Some(event) = transport.next() {
            match event {
                TransportEvent::Frame(Frame { message: Message::Control(Control::Status { status }), .. }) => {
                    return Ok(*status);
                }
                TransportEvent::Frame(Frame { message: Message::Control(Control::Follow { leader }), .. }) => {
                    transport.call_elsewhere(NodeId::Coordinator, &leader);
                }
                _ => {}
            }
        }
        waiter.wait(Some(Duration::from_millis(20)));
    }
    let reason = "no answer from the coordinator; is the address right and is it running?".to_owned();
    Err(NodeError::NotBegun { seconds: connect.join_limit.as_secs(), reason }.into())
}
