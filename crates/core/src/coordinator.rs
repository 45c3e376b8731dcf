//! The coordinator machine: who is there, which tables exist, who stands at the barrier, and who has gone silent.

use crate::Outbox;
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, Plan, PlanNumber, Source, Span, TableId, TableSpec, Time, WorkerId};
use wire::{Control, Frame, Head, Member, Message, Role};

/// A waiting worker is told whom it waits for after this long, and again each time it has passed.
const NOTICE_AFTER: Span = Span::from_secs(3);
/// Workers named in a notice: each that waits is told of these few, not of all that are missing.
const NAMED: usize = 8;
/// What was not answered is asked again after this long.
const ASK_AGAIN_AFTER: Span = Span::from_millis(500);

/// How many parties a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Threads that hold shards.
    pub servers: u32,
    /// Programs that compute.
    pub workers: u32,
}

struct Seat {
    address: String,
    /// The incarnation that sits here. Every seat that is given has one of its own, for ever.
    source: Source,
    /// Whether the node has spoken under the name it was given.
    ready: bool,
    heard: Time,
    gone: bool,
}

struct Table {
    id: TableId,
    spec: TableSpec,
    /// Servers that have not answered yet.
    pending: BTreeSet<NodeId>,
    problem: Option<String>,
    askers: BTreeSet<NodeId>,
    /// Workers that have not said that they know of it: the frontier counts all of them, whether they use it or not.
    untold: BTreeSet<NodeId>,
    asked: Time,
}

/// Keeps membership, tables and barriers.
pub struct Coordinator {
    size: Size,
    /// A node that is silent for this long is lost.
    patience: Span,
    seats: BTreeMap<NodeId, Seat>,
    tokens: BTreeMap<u64, NodeId>,
    /// Seats given so far: the last source.
    given: u64,
    begun: bool,
    tables: BTreeMap<String, Table>,
    /// The barrier each live worker has reached, where that is not passed, and when it was last told whom it waits for.
    barriers: BTreeMap<WorkerId, (u64, Time)>,
    /// Workers that have left.
    departed: u32,
    passed: u64,
    /// Who left, to be said to each server until it has heard.
    unheard: BTreeSet<(NodeId, WorkerId)>,
    said_again: Time,
    lost: Option<(NodeId, String)>,
}

impl Coordinator {
    /// Waits for a run of this size.
    #[must_use]
    pub fn new(size: Size, patience: Span) -> Self {
        Self {
            size,
            patience,
            seats: BTreeMap::new(),
            tokens: BTreeMap::new(),
            given: 0,
            begun: false,
            tables: BTreeMap::new(),
            barriers: BTreeMap::new(),
            departed: 0,
            passed: 0,
            unheard: BTreeSet::new(),
            said_again: Time(0),
            lost: None,
        }
    }

    /// The first node that was lost, and how that was noticed.
    #[must_use]
    pub fn lost(&self) -> Option<(NodeId, &str)> {
        self.lost.as_ref().map(|(node, reason)| (*node, reason.as_str()))
    }

    /// Whether everybody has said goodbye.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.begun && self.seats.values().all(|seat| seat.gone)
    }

    /// Whether everybody has joined.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Who has not joined yet, in words, for people who wait for the run to begin.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let count = |role: fn(&NodeId) -> bool| self.seats.keys().filter(|node| role(node)).count() as u32;
        let servers = self.size.servers - count(|node| matches!(node, NodeId::Server(_)));
        let workers = self.size.workers - count(|node| matches!(node, NodeId::Worker(_)));
        (servers + workers > 0).then(|| format!("{servers} servers and {workers} workers have yet to join"))
    }

    /// The plan of this run, once everybody has joined.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let is_worker = |node: &NodeId| matches!(node, NodeId::Worker(_));
        let workers = self.seats.iter().filter(|(node, _)| is_worker(node)).map(|(_, seat)| seat.source).collect();
        Plan { number: PlanNumber(1), servers: self.size.servers, workers }
    }

    fn say(to: NodeId, control: Control, out: &mut Outbox) {
        out.send(Frame { head: Head::plain(NodeId::Coordinator, to), message: Message::Control(control) });
    }

    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let from = frame.head.from;
        let Message::Control(control) = frame.message else { return };
        if let Some(seat) = self.seats.get_mut(&from) {
            // A process that lost its seat to another still goes by the seat's name, but not by its source.
            if matches!(from, NodeId::Worker(_)) && frame.head.source != seat.source {
                return;
            }
            seat.heard = now;
        }
        match control {
            Control::Join { role, address, token, place } => {
                self.join(now, from, (role, place), address, token, out);
            }
            Control::Beat => self.beat(from, out),
            Control::MakeTable { spec } => self.make_table(now, from, spec, out),
            Control::TableAdded { table, problem } => self.table_added(from, table, problem, out),
            Control::Barrier { number } => self.barrier(now, from, number, out),
            Control::Bye => self.bye(from, out),
            Control::Fail { reason } => self.declare_lost(from, format!("it could not go on: {reason}"), out),
            Control::Left { worker } => {
                self.unheard.remove(&(from, worker));
            }
            _ => {}
        }
    }

    fn join(
        &mut self,
        now: Time,
        from: NodeId,
        (role, place): (Role, Option<u32>),
        address: String,
        token: u64,
        out: &mut Outbox,
    ) {
        if let Some((node, reason)) = &self.lost {
            let reason = format!("the run has lost {node} ({reason}); start a new one");
            return Self::say(from, Control::Turned { reason, token }, out);
        }
        let node = match self.tokens.get(&token) {
            // It missed an answer: its next beat is taken for the first again.
            Some(node) => {
                if let Some(seat) = self.seats.get_mut(node) {
                    seat.ready = false;
                }
                *node
            }
            None => {
                let node = match self.free_place(role, place) {
                    Ok(node) => node,
                    Err(reason) => return Self::say(from, Control::Turned { reason, token }, out),
                };
                self.tokens.insert(token, node);
                self.given += 1;
                let source = Source(self.given);
                self.seats.insert(node, Seat { address, source, ready: false, heard: now, gone: false });
                node
            }
        };
        let Some(source) = self.seats.get(&node).map(|seat| seat.source) else { return };
        Self::say(from, Control::Welcome { node, source, token }, out);
    }

    /// The place asked for, or the first that is free; otherwise why there is none.
    fn free_place(&self, role: Role, place: Option<u32>) -> Result<NodeId, String> {
        let (name, most): (fn(u32) -> NodeId, u32) = match role {
            Role::Server => (NodeId::Server, self.size.servers),
            Role::Worker => (NodeId::Worker, self.size.workers),
        };
        let is_free = |node: &NodeId| !self.seats.contains_key(node);
        match place {
            None => {
                let full = || format!("the run has its {most} already; start it with room for more");
                (0..most).map(name).find(is_free).ok_or_else(full)
            }
            Some(place) if place >= most => Err(format!("there is no {}: the run has {most}, from 0", name(place))),
            Some(place) if is_free(&name(place)) => Ok(name(place)),
            Some(place) => Err(format!("another process is {} already; give each its own place, or none", name(place))),
        }
    }

    fn beat(&mut self, from: NodeId, out: &mut Outbox) {
        let Some(seat) = self.seats.get_mut(&from) else { return };
        let first = !std::mem::replace(&mut seat.ready, true);
        if let Some((node, reason)) = &self.lost {
            // Said again to whoever missed it.
            return Self::say(from, Control::Lost { node: *node, reason: reason.clone() }, out);
        }
        let complete = self.seats.len() as u32 == self.size.servers + self.size.workers;
        if complete && !self.begun && self.seats.values().all(|seat| seat.ready) {
            self.begun = true;
            self.seats.keys().for_each(|node| self.begin(*node, out));
        } else if self.begun && first {
            self.begin(from, out);
        } else {
            Self::say(from, Control::Beat, out);
        }
    }

    fn begin(&self, to: NodeId, out: &mut Outbox) {
        let member = |(node, seat): (&NodeId, &Seat)| Member { node: *node, address: seat.address.clone() };
        let members = self.seats.iter().map(member).collect();
        Self::say(to, Control::Begin { plan: self.plan(), members }, out);
    }

    fn make_table(&mut self, now: Time, from: NodeId, spec: TableSpec, out: &mut Outbox) {
        let name = spec.name.clone();
        if let Err(error) = spec.check() {
            return Self::say(from, Control::TableRefused { name, problem: error.to_string() }, out);
        }
        let id = TableId(self.tables.len() as u32);
        let servers: BTreeSet<NodeId> = (0..self.size.servers).map(NodeId::Server).collect();
        let workers = self.live_workers().map(NodeId::from).collect();
        let table = self.tables.entry(name.clone()).or_insert_with(|| {
            for server in &servers {
                Self::say(*server, Control::AddTable { table: id, spec: spec.clone() }, out);
            }
            Table {
                id,
                spec: spec.clone(),
                pending: servers,
                problem: None,
                askers: BTreeSet::new(),
                untold: workers,
                asked: now,
            }
        });
        if let Some(difference) = table.spec.difference(&spec) {
            let problem = format!("two specs for one name '{name}': {difference}; use the same spec in every worker");
            return Self::say(from, Control::TableRefused { name, problem }, out);
        }
        table.askers.insert(from);
        Self::answer_askers(&name, table, out);
    }

    fn table_added(&mut self, from: NodeId, id: TableId, problem: Option<String>, out: &mut Outbox) {
        let Some((name, table)) = self.tables.iter_mut().find(|(_, table)| table.id == id) else { return };
        if table.untold.remove(&from) || !table.pending.remove(&from) {
            return;
        }
        table.problem = table.problem.take().or(problem.map(|problem| format!("{from}: {problem}")));
        if table.pending.is_empty() && table.problem.is_none() {
            Self::tell_workers(table, out);
        }
        Self::answer_askers(name, table, out);
    }

    fn tell_workers(table: &Table, out: &mut Outbox) {
        for worker in &table.untold {
            Self::say(*worker, Control::AddTable { table: table.id, spec: table.spec.clone() }, out);
        }
    }

    fn answer_askers(name: &str, table: &mut Table, out: &mut Outbox) {
        if !table.pending.is_empty() {
            return;
        }
        for asker in std::mem::take(&mut table.askers) {
            let name = name.to_owned();
            let answer = match &table.problem {
                None => Control::TableMade { table: table.id, name },
                Some(problem) => Control::TableRefused { name, problem: problem.clone() },
            };
            Self::say(asker, answer, out);
        }
    }

    fn live_workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.seats.iter().filter(|(_, seat)| !seat.gone).filter_map(|(node, _)| match node {
            NodeId::Worker(rank) => Some(WorkerId(*rank)),
            _ => None,
        })
    }

    fn live(&self) -> usize {
        (self.size.workers - self.departed) as usize
    }

    fn barrier(&mut self, now: Time, from: NodeId, number: u64, out: &mut Outbox) {
        let NodeId::Worker(rank) = from else { return };
        if number <= self.passed {
            return Self::say(from, Control::BarrierPassed { number }, out);
        }
        if self.seats.get(&from).is_none_or(|seat| seat.gone) {
            return;
        }
        let entry = self.barriers.entry(WorkerId(rank)).or_insert((number, now));
        entry.0 = entry.0.max(number);
        self.pass_barrier(out);
    }

    fn pass_barrier(&mut self, out: &mut Outbox) {
        // Whoever stands here stands at the next one, or further: counting is enough.
        if self.barriers.is_empty() || self.barriers.len() < self.live() {
            return;
        }
        let next = self.passed + 1;
        self.passed = next;
        let waiting: Vec<WorkerId> = self.live_workers().collect();
        for worker in waiting {
            Self::say(worker.into(), Control::BarrierPassed { number: next }, out);
        }
        self.barriers.retain(|_, (number, _)| *number > next);
    }

    fn bye(&mut self, from: NodeId, out: &mut Outbox) {
        let Some(seat) = self.seats.get_mut(&from) else { return };
        let again = std::mem::replace(&mut seat.gone, true);
        Self::say(from, Control::Bye, out);
        let NodeId::Worker(rank) = from else { return };
        if again {
            return;
        }
        self.departed += 1;
        let servers = (0..self.size.servers).map(NodeId::Server);
        let worker = WorkerId(rank);
        for server in servers.clone() {
            self.unheard.insert((server, worker));
            Self::say(server, Control::Left { worker }, out);
        }
        self.barriers.remove(&worker);
        self.pass_barrier(out);
        if self.live() == 0 {
            servers.for_each(|server| Self::say(server, Control::Finish, out));
        }
    }

    /// Time has passed: asks again, names who is waited for, and notices who has gone silent.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        for table in self.tables.values_mut().filter(|table| now.since(table.asked) >= ASK_AGAIN_AFTER) {
            table.asked = now;
            for server in &table.pending {
                Self::say(*server, Control::AddTable { table: table.id, spec: table.spec.clone() }, out);
            }
            if table.pending.is_empty() && table.problem.is_none() {
                Self::tell_workers(table, out);
            }
        }
        if now.since(self.said_again) >= ASK_AGAIN_AFTER {
            self.said_again = now;
            self.say_departures_again(out);
        }
        self.notice_barrier(now, out);
        if !self.begun {
            // People may take their time to start every process, but a place is kept only for those who are there.
            let patience = self.patience;
            self.seats.retain(|_, seat| now.since(seat.heard) <= patience);
            self.tokens.retain(|_, node| self.seats.contains_key(node));
            return;
        }
        if self.lost.is_some() {
            return;
        }
        let silent = |(_, seat): &(&NodeId, &Seat)| !seat.gone && now.since(seat.heard) > self.patience;
        if let Some((node, seat)) = self.seats.iter().find(silent) {
            let reason = format!("nothing heard from it for {:.1} s", now.since(seat.heard).as_secs_f64());
            let node = *node;
            self.declare_lost(node, reason, out);
        }
    }

    /// A server that missed who left would hold its frontier for ever, and one that missed the end would never stop.
    fn say_departures_again(&self, out: &mut Outbox) {
        for (server, worker) in &self.unheard {
            Self::say(*server, Control::Left { worker: *worker }, out);
        }
        if self.begun && self.live() == 0 {
            let staying = |(node, seat): &(&NodeId, &Seat)| matches!(node, NodeId::Server(_)) && !seat.gone;
            self.seats.iter().filter(staying).for_each(|(server, _)| Self::say(*server, Control::Finish, out));
        }
    }

    fn notice_barrier(&mut self, now: Time, out: &mut Outbox) {
        let missing: Vec<WorkerId> =
            self.live_workers().filter(|worker| !self.barriers.contains_key(worker)).take(NAMED).collect();
        for (worker, (number, noticed)) in &mut self.barriers {
            if now.since(*noticed) >= NOTICE_AFTER {
                *noticed = now;
                Self::say((*worker).into(), Control::BarrierWaiting { number: *number, on: missing.clone() }, out);
            }
        }
    }

    /// The run cannot go on without `node`: everybody is told.
    fn declare_lost(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        if self.lost.is_some() || self.seats.get(&node).is_none_or(|seat| seat.gone) {
            return;
        }
        for other in self.seats.keys().filter(|other| **other != node) {
            Self::say(*other, Control::Lost { node, reason: reason.clone() }, out);
        }
        self.lost = Some((node, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_asked_for_is_given_if_there_is_one_and_it_is_free() {
        // (who asks, the place asked for, the name given or a word of the refusal)
        let (server, worker) = (Role::Server, Role::Worker);
        let cases: [(Role, Option<u32>, Result<NodeId, &str>); 8] = [
            (worker, Some(1), Ok(NodeId::Worker(1))),
            (worker, None, Ok(NodeId::Worker(0))),
            (worker, None, Ok(NodeId::Worker(2))),
            (worker, None, Err("has its 3 already")),
            (worker, Some(1), Err("another process is worker 1")),
            (worker, Some(3), Err("there is no worker 3")),
            (server, Some(0), Ok(NodeId::Server(0))),
            (server, None, Err("has its 1 already")),
        ];
        let mut coordinator = Coordinator::new(Size { servers: 1, workers: 3 }, Span::from_secs(1));
        for (token, (role, place, expected)) in (0u64..).zip(cases) {
            let mut out = Outbox::new();
            let from = NodeId::Worker(1000 + token as u32);
            let message = Message::Control(Control::Join { role, address: String::new(), token, place });
            let frame = Frame { head: Head::plain(from, NodeId::Coordinator), message };
            coordinator.handle(Time(0), frame, &mut out);
            let answer = out.drain().next().unwrap().message;
            match (answer, expected) {
                (Message::Control(Control::Welcome { node, .. }), Ok(expected)) => assert_eq!(node, expected),
                (Message::Control(Control::Turned { reason, .. }), Err(words)) => {
                    assert!(reason.contains(words), "{reason}");
                }
                (answer, expected) => panic!("{expected:?} became {answer:?}"),
            }
        }
    }

    fn said(coordinator: &mut Coordinator, now: Time, from: NodeId, source: Source, control: Control) -> Vec<Control> {
        let mut out = Outbox::new();
        let mut head = Head::plain(from, NodeId::Coordinator);
        head.source = source;
        coordinator.handle(now, Frame { head, message: Message::Control(control) }, &mut out);
        controls(&mut out)
    }

    fn controls(out: &mut Outbox) -> Vec<Control> {
        let control = |frame: Frame| match frame.message {
            Message::Control(control) => Some(control),
            _ => None,
        };
        out.drain().filter_map(control).collect()
    }

    /// Joins as a worker; the name and the source given, if there is a place.
    fn join(coordinator: &mut Coordinator, now: Time, role: Role, token: u64) -> Option<(NodeId, Source)> {
        let control = Control::Join { role, address: String::new(), token, place: None };
        let answer = said(coordinator, now, NodeId::Worker(1000), Source(0), control);
        answer.into_iter().find_map(|answer| match answer {
            Control::Welcome { node, source, .. } => Some((node, source)),
            _ => None,
        })
    }

    #[test]
    fn no_two_incarnations_share_a_source() {
        let mut coordinator = Coordinator::new(Size { servers: 1, workers: 2 }, Span::from_secs(5));
        let (_, server) = join(&mut coordinator, Time(0), Role::Server, 10).expect("a place");
        let (name, old) = join(&mut coordinator, Time(0), Role::Worker, 1).expect("a place");
        assert_eq!(
            join(&mut coordinator, Time(0), Role::Worker, 1),
            Some((name, old)),
            "the same process, the same one"
        );
        let (_, other) = join(&mut coordinator, Time(0), Role::Worker, 2).expect("a place");
        // The first falls silent; whoever comes next gets its rank, and a source of its own.
        let later = Time(0) + Span::from_secs(4);
        for (node, source) in [(NodeId::Server(0), server), (NodeId::Worker(1), other)] {
            said(&mut coordinator, later, node, source, Control::Beat);
        }
        let much_later = Time(0) + Span::from_secs(6);
        coordinator.tick(much_later, &mut Outbox::new());
        let (again, new) = join(&mut coordinator, much_later, Role::Worker, 3).expect("a place");
        assert_eq!(again, name);
        assert!(new != old && new != other && other != old);
        assert_eq!(coordinator.plan().workers, [new, other]);
        // The old one is not taken for the new one, whatever it says.
        let begins = |said: Vec<Control>| said.iter().any(|control| matches!(control, Control::Begin { .. }));
        assert!(!begins(said(&mut coordinator, much_later, name, old, Control::Beat)));
        assert!(begins(said(&mut coordinator, much_later, name, new, Control::Beat)));
        assert!(said(&mut coordinator, much_later, name, old, Control::Bye).is_empty());
        assert!(!coordinator.seats[&name].gone);
    }

    /// A run of one server and this many workers that has begun.
    fn begun(workers: u32) -> Coordinator {
        let mut coordinator = Coordinator::new(Size { servers: 1, workers }, Span::from_secs(1_000));
        let server = join(&mut coordinator, Time(0), Role::Server, 0);
        let others = (1..=u64::from(workers)).map(|token| join(&mut coordinator, Time(0), Role::Worker, token));
        let members: Vec<_> = others.chain([server]).map(|member| member.expect("a place")).collect();
        for (node, source) in members {
            said(&mut coordinator, Time(0), node, source, Control::Beat);
        }
        assert!(coordinator.has_begun());
        coordinator
    }

    #[test]
    fn what_is_said_of_a_barrier_grows_with_the_workers_and_not_with_their_square() {
        let workers = 1_000;
        let mut coordinator = begun(workers);
        for rank in 0..workers / 2 {
            let node = NodeId::Worker(rank);
            let source = coordinator.seats[&node].source;
            assert!(said(&mut coordinator, Time(0), node, source, Control::Barrier { number: 1 }).is_empty());
        }
        let mut out = Outbox::new();
        coordinator.tick(Time(0) + NOTICE_AFTER, &mut out);
        let told: Vec<_> = controls(&mut out);
        assert_eq!(told.len(), workers as usize / 2);
        let expected: Vec<_> = (workers / 2..).map(WorkerId).take(NAMED).collect();
        assert!(told.iter().all(|told| matches!(told, Control::BarrierWaiting { on, .. } if *on == expected)));
    }

    #[test]
    fn a_barrier_counts_those_who_have_not_left() {
        let mut coordinator = begun(3);
        let mut say = |rank: u32, control: Control| {
            let source = coordinator.seats[&NodeId::Worker(rank)].source;
            let said = said(&mut coordinator, Time(0), NodeId::Worker(rank), source, control);
            said.iter().filter(|said| matches!(said, Control::BarrierPassed { .. })).count()
        };
        // (who, what, how many hear that it is passed)
        let cases = [
            (0, Control::Barrier { number: 1 }, 0),
            (0, Control::Barrier { number: 1 }, 0), // said twice
            (1, Control::Bye, 0),
            (1, Control::Barrier { number: 1 }, 0), // late
            (2, Control::Barrier { number: 1 }, 2),
            (2, Control::Barrier { number: 1 }, 1), // the answer was lost
            (0, Control::Barrier { number: 2 }, 0),
            (2, Control::Bye, 1),
        ];
        for (step, (rank, control, expected)) in cases.into_iter().enumerate() {
            assert_eq!(say(rank, control), expected, "step {step}");
        }
    }

    #[test]
    fn a_place_whose_node_fell_silent_before_the_run_began_is_free_again() {
        let mut coordinator = Coordinator::new(Size { servers: 1, workers: 1 }, Span::from_secs(5));
        let mut out = Outbox::new();
        let mut join = |coordinator: &mut Coordinator, now: Time, token: u64| {
            let control = Control::Join { role: Role::Worker, address: String::new(), token, place: None };
            let head = Head::plain(NodeId::Worker(1000), NodeId::Coordinator);
            coordinator.handle(now, Frame { head, message: Message::Control(control) }, &mut out);
            out.drain().next().map(|frame| frame.message)
        };
        let welcomed = |answer| matches!(answer, Some(Message::Control(Control::Welcome { .. })));
        assert!(welcomed(join(&mut coordinator, Time(0), 1)));
        let later = Time(0) + Span::from_secs(4);
        coordinator.tick(later, &mut Outbox::new());
        assert!(!welcomed(join(&mut coordinator, later, 2)), "the first may still be there");
        let much_later = Time(0) + Span::from_secs(6);
        coordinator.tick(much_later, &mut Outbox::new());
        assert!(welcomed(join(&mut coordinator, much_later, 2)));
    }
}
