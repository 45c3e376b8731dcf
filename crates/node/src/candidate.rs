//! A coordinator of several: it stands for election, leads while it may, and tells everybody where to go while another does.
//!
//! What it has decided it has kept before it tells anybody: frames wait until the memory that explains them is. Only answers to beats do
//! not, for they say nothing but that it leads. One whose lease has ended forgets all that it knows, and goes on from what was kept.

use crate::NodeError;
use crate::checkpoints::Keeper;
use crate::coordinator::{CoordinatorSettings, say_news};
use crate::office::{Office, Word};
use crate::probe::Probes;
use crate::registry::Registry;
use machine::{Coordinator, Outbox};
use net::{Event, Transport, Waiter};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use types::{NodeId, Source, Span, Time};
use wire::{Control, Frame, Head, Message};

/// How often it looks around.
const LOOK: Duration = Duration::from_millis(50);

const LED: &str = "this coordinator has led for as long as it may, and waits for the registry to let one lead again";

/// One that leads.
struct Leading {
    term: u64,
    until: Instant,
    machine: Coordinator,
    /// The memory that was last given to the registry, its number, and the last number that is kept.
    memory: Vec<u8>,
    number: u64,
    kept: u64,
    /// What may be said when a memory is kept.
    held: VecDeque<(u64, Frame)>,
    probes: Probes,
    /// Keeps checkpoints, if any are made. One that was under way when the leader changed is given up, and the next is made.
    keeper: Option<Keeper>,
    ending: Option<Instant>,
}

/// Runs one of several coordinators until the run that they coordinate is over, or lost. `registry` says which of them leads.
pub fn run_candidate(
    mut transport: impl Transport,
    mut waiter: impl Waiter,
    settings: CoordinatorSettings,
    registry: Box<dyn Registry>,
) -> Result<(), NodeError> {
    let office = Office::open(registry, waiter.waker(), settings.patience)?;
    let start = Instant::now();
    let mut leading: Option<Leading> = None;
    let mut leader = String::new();
    let mut was_there = false;
    // When the registry was last heard of, and what it said when it was not.
    let (mut answered, mut silence) = (start, None);
    let mut said = start;
    loop {
        waiter.wait(Some(LOOK));
        for word in office.words() {
            if !matches!(word, Word::Unreachable(_) | Word::Ended) {
                (answered, silence) = (Instant::now(), None);
            }
            match word {
                Word::Leads { term, until, memory } => {
                    let now = Time(start.elapsed().as_nanos() as u64);
                    let machine = machine(&settings, now, memory, was_there)?;
                    let begun = machine.has_begun();
                    tracing::warn!(term, begun, "this coordinator leads");
                    let no_thread = |error: std::io::Error| NodeError::NoThread {
                        name: "checkpoints".to_owned(),
                        reason: error.to_string(),
                    };
                    let checkpoints = settings.checkpoints.clone();
                    let keeper = checkpoints
                        .map(|kept| Keeper::start(kept, settings.resume.as_ref(), !begun))
                        .transpose()
                        .map_err(no_thread)?;
                    let probes = Probes::within(settings.patience);
                    leading = Some(Leading::new(term, until, machine, probes, keeper));
                }
                Word::Over => {
                    tracing::warn!("the run is over: whoever led has removed its memory");
                    return Ok(());
                }
                Word::Until(until) => leading.iter_mut().for_each(|leading| leading.until = until),
                Word::Kept(number) => leading.iter_mut().for_each(|leading| leading.kept = leading.kept.max(number)),
                Word::Follows(other) => {
                    if leading.take().is_some() || !was_there || leader != other {
                        tracing::warn!(leader = other, "this coordinator follows; another leads");
                    }
                    (leader, was_there) = (other, true);
                }
                Word::Ended => {
                    if leading.take().is_some() {
                        (leader, was_there) = (String::new(), true);
                        tracing::warn!("{LED}");
                    }
                }
                Word::Unreachable(reason) => {
                    let waits = match &leading {
                        Some(leading) if leading.held.is_empty() => "the run goes on while nothing changes",
                        None if !leader.is_empty() => "this coordinator could not take over",
                        _ => "the run waits",
                    };
                    tracing::warn!("{waits}: {reason}");
                    silence = Some(reason);
                }
                Word::Hopeless(error) => return Err(NodeError::Registry { reason: error.to_string() }),
            }
        }
        if leading.take_if(|leading| Instant::now() >= leading.until).is_some() {
            (leader, was_there) = (String::new(), true);
            tracing::warn!("{LED}");
            office.stand();
        }
        if settings.leave.is_asked() {
            // Whoever is told to go elsewhere need not wait until this one is silent; the office lets another lead when it is dropped.
            let nodes = leading.iter().flat_map(|leading| leading.machine.everybody());
            for node in nodes {
                let message = Message::Control(Control::Follow { leader: String::new() });
                transport.send(Frame { head: Head::plain(NodeId::Coordinator, node), message });
            }
            tracing::warn!(led = leading.is_some(), "this coordinator was told to leave, and does; another may lead");
            drop(office);
            transport.flush();
            return Ok(());
        }
        let now = Time(start.elapsed().as_nanos() as u64);
        while let Some(event) = transport.next() {
            match (&mut leading, event) {
                (Some(leading), event) => leading.take(now, event, &mut transport),
                (None, Event::Frame(frame)) => {
                    let head = Head::plain(NodeId::Coordinator, frame.head.from);
                    let message = Message::Control(Control::Follow { leader: leader.clone() });
                    transport.send(Frame { head, message });
                }
                (None, Event::Disconnected(_)) => {}
            }
        }
        if let Some(leading) = &mut leading {
            leading.tick(now, &mut transport);
            leading.keep(&office, &mut transport);
            if let Some(ended) = leading.ended(&settings) {
                // Nobody goes on from it; those who follow end, too, when they find it gone.
                office.forget();
                transport.flush();
                return ended;
            }
            if let Some(missing) = leading.machine.missing().filter(|_| said.elapsed() > Duration::from_secs(5)) {
                said = Instant::now();
                tracing::info!(seconds = start.elapsed().as_secs(), "{missing}");
            }
            if !leading.machine.has_begun() && start.elapsed() > settings.join_limit {
                let missing = leading.machine.missing();
                let reason = missing.unwrap_or_else(|| "a node went away before the others had come".to_owned());
                return Err(NodeError::NotBegun { seconds: settings.join_limit.as_secs(), reason });
            }
        }
        transport.flush();
        if let Some(reason) = silence.take_if(|_| answered.elapsed() > settings.join_limit) {
            return Err(NodeError::Registry { reason });
        }
    }
}

/// What a new leader goes on from: what was kept, unless that is of a run that ended before this process was there.
fn machine(
    settings: &CoordinatorSettings,
    now: Time,
    memory: Option<Vec<u8>>,
    was_there: bool,
) -> Result<Coordinator, NodeError> {
    let CoordinatorSettings { size, membership, patience, ref job, .. } = *settings;
    let patience = Span(patience.as_nanos() as u64);
    let new = || {
        let mut machine = Coordinator::new(size, membership, patience).of_job(job);
        settings.resume.iter().for_each(|resume| machine.resume(resume.clone()));
        machine
    };
    let Some(memory) = memory else { return Ok(new()) };
    let recalled = Coordinator::recall(now, &memory, size, membership, patience);
    let recalled = recalled.map_err(|error| NodeError::Registry { reason: error.to_string() })?;
    if !was_there && (recalled.is_finished() || recalled.lost().is_some()) {
        tracing::warn!("the registry remembers a run of this job that has ended; this is a new one");
        return Ok(new());
    }
    if settings.resume.is_some() && !was_there {
        tracing::warn!(
            "the registry remembers this run, which is taken up where it was, and not from a checkpoint; \
             if none of its processes is left, remove its memory first (etcdctl del --prefix PATH)"
        );
    }
    Ok(recalled.of_job(job))
}

impl Leading {
    fn new(term: u64, until: Instant, machine: Coordinator, probes: Probes, keeper: Option<Keeper>) -> Self {
        let (memory, held) = (Vec::new(), VecDeque::new());
        Self { term, until, machine, memory, number: 0, kept: 0, held, probes, keeper, ending: None }
    }

    fn take(&mut self, now: Time, event: Event, transport: &mut impl Transport) {
        match event {
            Event::Disconnected(node) => {
                if let Some(address) = self.machine.address(node) {
                    self.probes.ask(node, address);
                }
            }
            Event::Frame(frame) => {
                let mut out = Outbox::new();
                self.machine.handle(now, frame, &mut out);
                self.hold(out, transport);
            }
        }
    }

    fn tick(&mut self, now: Time, transport: &mut impl Transport) {
        let mut out = Outbox::new();
        for node in self.probes.ended() {
            self.machine.gone(node, &mut out);
        }
        self.machine.tick(now, &mut out);
        // What it tells the machine is not recorded.
        self.keeper.iter_mut().for_each(|keeper| drop(keeper.turn(now, &mut self.machine, &mut out)));
        self.hold(out, transport);
        say_news(&mut self.machine);
    }

    /// What was said waits for the next memory to be kept, but for beats.
    fn hold(&mut self, mut out: Outbox, transport: &mut impl Transport) {
        for mut frame in out.drain() {
            frame.head.source = Source(self.term);
            if matches!(frame.message, Message::Control(Control::Beat)) && Instant::now() < self.until {
                transport.send(frame);
            } else {
                // Of which number, is known when all of this turn has been taken.
                self.held.push_back((self.number + 1, frame));
            }
        }
    }

    /// Has the memory kept if it is another than before, and says what may be said.
    fn keep(&mut self, office: &Office, transport: &mut impl Transport) {
        let memory = self.machine.memory();
        if memory != self.memory {
            self.number += 1;
            office.keep(self.number, memory.clone());
            self.memory = memory;
        }
        let (number, kept) = (self.number, self.kept);
        while self.held.front().is_some_and(|(after, _)| (*after).min(number) <= kept) {
            self.held.pop_front().into_iter().for_each(|(_, frame)| transport.send(frame));
        }
    }

    /// How the run has ended, if it has and everybody had time to hear of it.
    fn ended(&mut self, settings: &CoordinatorSettings) -> Option<Result<(), NodeError>> {
        let lost = self.machine.lost();
        if !(self.machine.is_finished() || lost.is_some()) || self.kept < self.number {
            return None;
        }
        let ending = *self.ending.get_or_insert_with(Instant::now);
        let stay = if lost.is_some() { settings.linger } else { settings.farewell };
        let result = lost.map(|(node, reason)| NodeError::Lost { node, reason: reason.to_owned() });
        if ending.elapsed() < stay {
            return None;
        }
        self.keeper.take().into_iter().for_each(|keeper| keeper.finish(&mut self.machine));
        Some(result.map_or(Ok(()), Err))
    }
}
