//! Observers: a process that is no member of a run asks its coordinator for the status, and its
//! servers for the change feed.

use crate::addresses::{CoordinatorAddress, Endpoint};
use crate::feed::FeedSource;
use crate::session::token;
use crate::{Connect, Error};
use net::{SocketTransport, SocketWaiter, Transport, TransportEvent, Waiter};
use node::NodeError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use types::{Clock, NodeId, Plan, Position, PositionRange, Role, ShardId, TableSpec};
use wire::{
    Control, FeedCursor, FeedPage, Frame, Head, KeyPart, Member, Message, Pool, Pull, Status, TableStatus, Wants,
};

/// An unanswered question is sent again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// After this long without an answer, the observer asks the coordinator which server to ask.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A shard that fails over answers again after about two failure timeouts. The observer gives it up
/// after this many.
const LOST_AFTER_TIMEOUTS: u32 = 4;

/// A connection to the nodes of a run, of a process that is not one of them.
pub(crate) struct Observer {
    transport: SocketTransport,
    waiter: SocketWaiter,
    name: NodeId,
    /// How long to repeat a question.
    limit: Duration,
    /// How many questions were sent to shards; numbers the next one.
    asked: u64,
}

impl Observer {
    /// Observes the run whose coordinator `connect` names.
    pub fn new(connect: &Connect) -> Result<Self, Error> {
        let coordinator = CoordinatorAddress::resolve(connect)?;
        let Endpoint { mut transport, waiter, .. } =
            coordinator.listen_as_node(connect, 0, Role::Reader, &Pool::new())?;
        // A node name outside the range that the coordinator assigns.
        let name = NodeId::Worker((token() as u32 & 0x0FFF_FFFF) | 0x1000_0000);
        transport.rename(name);
        Ok(Self { transport, waiter, name, limit: connect.join_limit, asked: 0 })
    }

    /// Asks the coordinator for the run's status.
    pub fn status(&mut self) -> Result<Status, Error> {
        let refused = |transport: &SocketTransport| {
            transport.incompatible().map(|reason| NodeError::Incompatible { reason }.into())
        };
        let status = self.ask(NodeId::Coordinator, self.limit, &Message::Control(Control::AskStatus), |_, message| {
            if let Message::Control(Control::Status { status }) = message { Some(*status) } else { None }
        });
        let reason = "no answer from the coordinator; is the address right and is it running?".to_owned();
        let unanswered = || NodeError::NotBegun { seconds: self.limit.as_secs(), reason }.into();
        status.ok_or_else(|| refused(&self.transport).unwrap_or_else(unanswered))
    }

    /// Asks a node until it answers, for at most `limit`.
    fn ask<A>(
        &mut self,
        node: NodeId,
        limit: Duration,
        question: &Message,
        answer: impl Fn(&Head, Message) -> Option<A>,
    ) -> Option<A> {
        let begin = Instant::now();
        let mut asked: Option<Instant> = None;
        // A process that speaks another protocol, or belongs to another job, never answers.
        while begin.elapsed() < limit && self.transport.incompatible().is_none() {
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
    /// The shards that do not answer, and since when.
    silent: BTreeMap<ShardId, Instant>,
}

impl ObservedTable {
    /// Finds the table of that name. Fails with the names of the run's tables if there is none.
    pub fn find(connect: &Connect, name: &str) -> Result<Self, Error> {
        let mut observer = Observer::new(connect)?;
        let status = observer.status()?;
        let table = status.tables.iter().find(|table| table.spec.name == name).cloned();
        let names = || status.tables.iter().map(|table| format!("'{}'", table.spec.name)).collect::<Vec<_>>();
        let table = table.ok_or_else(|| Error::Table {
            problem: format!("the run has no table '{name}'; its tables are: {}", names().join(", ")),
        })?;
        let failure_timeout = Duration::from_nanos(status.failure_timeout.0);
        observer.limit = observer.limit.max(failure_timeout * LOST_AFTER_TIMEOUTS);
        let mut observed = Self { observer, status, table, silent: BTreeMap::new() };
        observed.know_members();
        Ok(observed)
    }

    /// The table's spec.
    pub fn spec(&self) -> &TableSpec {
        &self.table.spec
    }

    /// The run's plan, as far as the observer knows.
    pub fn plan(&self) -> &Plan {
        &self.status.plan
    }

    /// Tells the transport where the run's nodes listen.
    fn know_members(&mut self) {
        let address = |member: &wire::MemberStatus| Member {
            node: member.node,
            address: member.address.clone(),
            binding: member.binding.clone(),
        };
        self.observer.transport.know(&self.status.members.iter().map(address).collect::<Vec<_>>());
    }

    /// Asks the coordinator for the current plan and members. Fails if it does not answer, or if it
    /// leads another run now.
    fn look_again(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let status = self.observer.status().map_err(|_| {
            let reason = format!("no answer for {:.0} s; the run has ended or is lost", begin.elapsed().as_secs_f64());
            NodeError::Lost { node: NodeId::Coordinator, reason }
        })?;
        let same = |table: &TableStatus| table.table == self.table.table && table.spec == self.table.spec;
        if status.plan.number < self.status.plan.number || !status.tables.iter().any(same) {
            let name = &self.table.spec.name;
            let problem = format!("the coordinator leads another run now; follow table '{name}' again");
            return Err(Error::Table { problem });
        }
        self.status = status;
        self.know_members();
        Ok(())
    }
}

impl FeedSource for ObservedTable {
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<Option<FeedPage>, Error> {
        let shards = self.status.plan.shards(self.table.spec.shape);
        let Some(placed) = shards.iter().find(|placed| placed.range.contains(first)) else {
            // The coordinator has no plan yet.
            self.look_again()?;
            return Ok(None);
        };
        self.observer.asked += 1;
        let request = self.observer.asked;
        let keys = KeyPart::Scan { range: PositionRange { first, last: placed.range.last } };
        let shard = placed.shard;
        let pull = Pull {
            table: self.table.table,
            shard,
            request,
            after: 0,
            frontier: Clock(0),
            subscribe: false,
            deltas: None,
            wants: Wants::Changes { cursor },
            keys,
        };
        let answer = self.observer.ask(placed.owner, LOOK_AGAIN, &Message::Pull(pull), |head, message| match message {
            Message::Pulled(answer) if answer.request == request => Some(Ok(FeedPage { clock: head.clock, answer })),
            Message::PullRefused(refused) if refused.request == request => Some(Err(refused.refusal)),
            _ => None,
        });
        match answer {
            Some(Ok(page)) => {
                self.silent.remove(&shard);
                Ok(Some(page))
            }
            Some(Err(refusal)) => {
                let spec = &self.table.spec;
                let refusal = refusal.describe(&spec.name, spec.shape.placement());
                let problem = format!("{} refused to read the change feed: {refusal}", placed.owner);
                Err(Error::Table { problem })
            }
            None => {
                let silent = self.silent.entry(shard).or_insert_with(Instant::now).elapsed();
                if silent > self.observer.limit {
                    let reason = format!("it has not answered the change feed for {:.0} s", silent.as_secs_f64());
                    return Err(NodeError::Lost { node: placed.owner, reason }.into());
                }
                self.look_again()?;
                Ok(None)
            }
        }
    }
}
