//! Questions to a run from somebody who takes no part in it.

use crate::addresses::{CoordinatorAddress, Endpoint};
use crate::feed::{FeedPage, FeedSource};
use crate::session::token;
use crate::table::TargetNumber;
use crate::{Connect, Error};
use net::{SocketTransport, SocketWaiter, Transport, TransportEvent, Waiter};
use node::NodeError;
use std::time::{Duration, Instant};
use types::{Clock, NodeId, Position, PositionRange};
use wire::{Control, FeedCursor, Frame, Head, KeyPart, Member, Message, Pool, Pull, Status, TableStatus, Wants};

/// What was not answered is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A server that has not answered for this long may not be the one to ask any more.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A process that asks the nodes of a run, and is none.
pub(crate) struct Observer {
    transport: SocketTransport,
    waiter: SocketWaiter,
    name: NodeId,
    /// For how long a question is asked.
    limit: Duration,
    /// Numbers questions to shards.
    asked: u64,
}

impl Observer {
    /// Of the run of that coordinator.
    pub fn new(connect: &Connect) -> Result<Self, Error> {
        let coordinator = CoordinatorAddress::resolve(connect)?;
        let Endpoint { mut transport, waiter, .. } = coordinator.listen_as_node(connect, 0, false, &Pool::new())?;
        // A name that the coordinator gives nobody.
        let name = NodeId::Worker((token() as u32 & 0x0FFF_FFFF) | 0x1000_0000);
        transport.rename(name);
        Ok(Self { transport, waiter, name, limit: connect.join_limit, asked: 0 })
    }

    /// How the run stands.
    pub fn status(&mut self) -> Result<Status, Error> {
        let status = self.ask(NodeId::Coordinator, self.limit, &Message::Control(Control::AskStatus), |_, message| {
            if let Message::Control(Control::Status { status }) = message { Some(*status) } else { None }
        });
        let reason = "no answer from the coordinator; is the address right and is it running?".to_owned();
        status.ok_or_else(|| NodeError::NotBegun { seconds: self.limit.as_secs(), reason }.into())
    }

    /// Asks a node until it answers, or until so long has passed.
    fn ask<A>(
        &mut self,
        node: NodeId,
        limit: Duration,
        question: &Message,
        answer: impl Fn(&Head, Message) -> Option<A>,
    ) -> Option<A> {
        let begin = Instant::now();
        let mut asked: Option<Instant> = None;
        while begin.elapsed() < limit {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                self.transport.send(Frame { head: Head::plain(self.name, node), message: question.clone() });
                self.transport.flush();
            }
            while let Some(event) = self.transport.next() {
                let TransportEvent::Frame(Frame { head, message }) = event else { continue };
                if let Message::Control(Control::Follow { leader }) = &message {
                    self.transport.call_elsewhere(NodeId::Coordinator, leader);
                } else if head.from == node
                    && let Some(answer) = answer(&head, message)
                {
                    return Some(answer);
                }
            }
            self.waiter.wait(Some(Duration::from_millis(20)));
        }
        None
    }
}

/// Follows a table from outside of its run.
pub(crate) struct ObservedTable {
    observer: Observer,
    status: Status,
    table: TableStatus,
}

impl ObservedTable {
    /// The table of that name.
    pub fn find(connect: &Connect, name: &str) -> Result<Self, Error> {
        let mut observer = Observer::new(connect)?;
        let status = observer.status()?;
        let table = status.tables.iter().find(|table| table.spec.name == name).cloned();
        let names = || status.tables.iter().map(|table| format!("'{}'", table.spec.name)).collect::<Vec<_>>();
        let table = table.ok_or_else(|| Error::Table {
            problem: format!("the run has no table '{name}'; its tables are: {}", names().join(", ")),
        })?;
        Ok(Self { observer, status, table })
    }

    /// What it is.
    pub fn table(&self) -> &TableStatus {
        &self.table
    }

    /// The ranges of its shards.
    pub fn ranges(&self) -> Vec<PositionRange> {
        self.status.plan.shards(self.table.spec.shape).iter().map(|placed| placed.range).collect()
    }
}

impl<T: TargetNumber> FeedSource<T> for ObservedTable {
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<FeedPage<T>, Error> {
        let Self { observer, status, table } = self;
        let begin = Instant::now();
        loop {
            let address = |member: &wire::MemberStatus| Member { node: member.node, address: member.address.clone() };
            observer.transport.know(&status.members.iter().map(address).collect::<Vec<_>>());
            let shards = status.plan.shards(table.spec.shape);
            let placed = shards.iter().find(|placed| placed.range.contains(first)).expect("ranges cover all positions");
            observer.asked += 1;
            let (request, wants) = (observer.asked, Wants::Changes { cursor });
            let keys = KeyPart::Scan { range: PositionRange { first, last: placed.range.last } };
            let (after, frontier, subscribe, deltas) = (0, Clock(0), false, None);
            let (table, shard) = (table.table, placed.shard);
            let pull = Pull { table, shard, request, after, frontier, subscribe, deltas, wants, keys };
            let page = observer.ask(placed.owner, LOOK_AGAIN, &Message::Pull(pull), |head, message| match message {
                Message::Pulled(pulled) if pulled.request == request => FeedPage::read(head.clock, &pulled),
                _ => None,
            });
            if let Some(page) = page {
                return Ok(page);
            }
            if begin.elapsed() > observer.limit {
                let reason = format!("no answer to what changed for {:.0} s", begin.elapsed().as_secs_f64());
                return Err(NodeError::Lost { node: placed.owner, reason }.into());
            }
            *status = observer.status()?;
        }
    }
}
