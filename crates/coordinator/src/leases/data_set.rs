//! One data set that workers lease: which worker holds what, and what servers need not know of any
//! more.
//!
//! A server may forget what its shards hold of a lease when no worker will push of it again:
//! - the lease is committed, in a clock that the frontier has passed, so that no later checkpoint
//!   calls it open;
//! - every server goes by a plan without the workers that held it before and were lost.
//!
//! So servers are told one place of the lease order at a time, while no plan is on its way or due,
//! and the next one when all have answered.

use super::{LeaseView, rank};
use crate::barriers::NAMED;
use crate::say::say;
use lease::{GrantReply, GrantTerms, LeaseAllocator, OrderIndex, SavedLeases, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Control, Field, Head, LeaseTerms, Outbox, Reader, WireError};

/// Something that workers lease.
pub(crate) struct DataSet {
    number: u32,
    name: String,
    terms: LeaseTerms,
    allocator: LeaseAllocator,
    /// Whether a worker has asked for it in this run: otherwise it is as a checkpoint knows it.
    opened: bool,
    questions: BTreeMap<Source, Question>,
    /// Whether a worker has ended it early: nothing is granted any more.
    ended_early: bool,
    /// The clock that the furthest worker is at.
    furthest: Clock,
    /// After the last clock in which a lease was committed: where its worker goes next.
    ended: Clock,
    /// Servers know nothing of leases before this place, and are being told to forget more.
    forgotten: OrderIndex,
    forgetting: Option<Forgetting>,
}

/// What a worker asked last.
struct Question {
    node: NodeId,
    number: u64,
    wanted: u64,
    /// While it has no answer: since when the worker was not told whom it waits for.
    waits: Option<Time>,
}

/// What servers are being told to forget.
struct Forgetting {
    through: OrderIndex,
    clock: Clock,
    /// Servers that have not answered.
    waiting: BTreeSet<NodeId>,
    said: Time,
}

/// Opening and saving.
impl DataSet {
    /// A new one. Fails in words if no leases can have such terms.
    pub fn new(number: u32, name: String, terms: LeaseTerms) -> Result<Self, String> {
        let allocator =
            LeaseAllocator::new(GrantTerms::of(&terms)).map_err(|error| format!("{}: {error}", terms.input))?;
        Ok(Self::of(number, name, terms, allocator))
    }

    fn of(number: u32, name: String, terms: LeaseTerms, allocator: LeaseAllocator) -> Self {
        Self {
            number,
            name,
            terms,
            allocator,
            opened: true,
            questions: BTreeMap::new(),
            ended_early: false,
            furthest: Clock(0),
            ended: Clock(0),
            forgotten: OrderIndex::default(),
            forgetting: None,
        }
    }

    /// As a checkpoint at this clock knows it.
    pub fn resume(number: u32, saved: &SavedLeases, clock: Clock) -> Option<Self> {
        // It was made of such terms.
        let allocator = LeaseAllocator::resume(GrantTerms::of(saved.terms()), saved.done()).ok()?;
        let set = Self::of(number, saved.name().to_owned(), saved.terms().clone(), allocator);
        Some(Self { opened: false, furthest: clock, ended: clock, ..set })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a checkpoint saves what of it is done. A data set whose name begins with a dot is
    /// the run's own book-keeping, which each run begins anew.
    fn is_checkpointed(&self) -> bool {
        !self.name.starts_with('.')
    }

    /// Another worker opens it, or the first one after a checkpoint.
    pub fn open_again(&mut self, terms: LeaseTerms) -> Result<u32, String> {
        let name = &self.name;
        if self.opened {
            return match self.difference(&terms) {
                Some(difference) => Err(format!(
                    "two inputs for one name '{name}': {difference}; give every worker the same files and settings"
                )),
                None => Ok(self.number),
            };
        }
        let allocator = self.go_on(&terms).map_err(|difference| {
            format!("'{name}' cannot go on: {difference}; resume with the files and settings of that run")
        })?;
        self.allocator = allocator;
        self.terms = terms;
        self.opened = true;
        Ok(self.number)
    }

    /// Goes on where a checkpoint's run was, if that has read the same.
    fn go_on(&self, terms: &LeaseTerms) -> Result<LeaseAllocator, String> {
        let grants = GrantTerms::of(terms);
        if !self.is_checkpointed() {
            return LeaseAllocator::new(grants).map_err(|error| error.to_string());
        }
        if self.terms.fingerprint != terms.fingerprint {
            let was = &self.terms.input;
            let is = &terms.input;
            return Err(format!("the checkpoint is of a run that read {was}, and this worker reads {is}"));
        }
        LeaseAllocator::resume(grants, &self.allocator.committed()).map_err(|error| error.to_string())
    }

    /// Why a worker that comes with these terms cannot lease it.
    fn difference(&self, terms: &LeaseTerms) -> Option<String> {
        if self.terms.fingerprint != terms.fingerprint {
            return Some(format!("others read {}, and this worker reads {}", self.terms.input, terms.input));
        }
        let known = GrantTerms::of(&self.terms);
        let theirs = GrantTerms::of(terms);
        (known != theirs).then(|| format!("others lease it by {known:?}, and this worker by {theirs:?}"))
    }

    /// The first clock in which nothing was committed, nor later.
    pub fn committed_until(&self) -> Clock {
        self.ended
    }

    /// The leases that were committed before a clock. None if that is not known any more.
    pub fn committed_before(&self, clock: Clock) -> Option<SavedLeases> {
        let done = match self.is_checkpointed() {
            true => self.allocator.committed_before(clock)?,
            // It keeps its number, and nothing else.
            false => LeaseAllocator::new(GrantTerms::of(&self.terms)).ok()?.committed(),
        };
        SavedLeases::new(self.name.clone(), self.terms.clone(), done).ok()
    }

    /// Appends it, without questions and what servers are being told: those are said again.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.terms.put(out);
        (self.opened, self.ended_early).put(out);
        (self.furthest, self.ended).put(out);
        self.forgotten.0.put(out);
        self.allocator.put(out);
    }

    /// Reads what [`put`](Self::put) has written. Leases count as held since `now`.
    pub fn get(number: u32, input: &mut Reader<'_>, now: Time) -> Result<Self, WireError> {
        let name = String::get(input)?;
        let terms = LeaseTerms::get(input)?;
        let (opened, ended_early) = Field::get(input)?;
        let (furthest, ended) = Field::get(input)?;
        let forgotten = OrderIndex(Field::get(input)?);
        let allocator = LeaseAllocator::get(input, now)?;
        if allocator.terms() != GrantTerms::of(&terms) {
            return Err(WireError::Malformed("leases by other terms than said"));
        }
        let set = Self::of(number, name, terms, allocator);
        Ok(Self { opened, ended_early, furthest, ended, forgotten, ..set })
    }
}

/// What workers ask and are answered.
impl DataSet {
    /// A worker is at its head's clock. Those that wait for leases follow the furthest.
    pub fn reached(&mut self, head: &Head, out: &mut Outbox) {
        if rank(head.from).is_none() || head.clock <= self.furthest {
            return;
        }
        self.furthest = head.clock;
        self.questions.values().for_each(|question| self.say_awaited(question, false, out));
    }

    /// A worker asks for leases.
    pub fn ask(&mut self, now: Time, head: &Head, number: u64, wanted: u64, out: &mut Outbox) {
        let waits = Some(now);
        let asked = Question { node: head.from, number, wanted, waits };
        let question = self.questions.entry(head.source).or_insert(Question { number: 0, ..asked });
        if number > question.number {
            (question.number, question.wanted, question.waits) = (number, wanted, waits);
        } else if number < question.number {
            return;
        }
        self.answer(now, head.source, out);
        // A worker that waits hears how far the others are, should it have missed that.
        if let Some(question) = self.questions.get(&head.source) {
            self.say_awaited(question, false, out);
        }
    }

    /// A worker commits a lease.
    pub fn commit(
        &mut self,
        view: &LeaseView<'_>,
        head: &Head,
        (lease, clock): (u64, Clock),
        work: WorkReport,
        out: &mut Outbox,
    ) {
        let receipt = self.allocator.commit(head.source, &[lease], clock, work);
        if receipt.fresh > 0 {
            self.ended = self.ended.max(clock.next());
        }
        let problem = receipt.refused.first().map(ToString::to_string);
        say(head.from, Control::LeaseCommitted { set: self.number, lease, problem }, out);
        self.begin_to_forget(view, out);
        self.answer_waiting(view.now, out);
    }

    /// A worker learns no more, and no other is to. What it holds is given back, and the data set
    /// ends when no worker holds anything.
    pub fn end(&mut self, view: &LeaseView<'_>, source: Source, out: &mut Outbox) {
        self.allocator.expel(source);
        if !std::mem::replace(&mut self.ended_early, true) {
            let set = self.number;
            let workers = view.members.live_workers();
            workers.for_each(|worker| say(worker.into(), Control::EndLeases { set }, out));
        }
        self.answer_waiting(view.now, out);
    }

    /// A worker goes on learning: it may have missed that the data set was ended.
    pub fn learning(&self, from: NodeId, out: &mut Outbox) {
        if self.ended_early {
            say(from, Control::EndLeases { set: self.number }, out);
        }
    }

    /// A worker takes part no more: what it holds is for others.
    pub fn give_back(&mut self, now: Time, source: Source, out: &mut Outbox) {
        self.questions.remove(&source);
        self.allocator.expel(source);
        self.answer_waiting(now, out);
    }

    /// Answers a worker's last question, if there is an answer: again, if it has one already.
    fn answer(&mut self, now: Time, source: Source, out: &mut Outbox) {
        let Some(question) = self.questions.get_mut(&source) else { return };
        let number = question.number;
        let set = self.number;
        let holds = !self.allocator.held_by(source).is_empty();
        let granted = match question.waits {
            // It has missed the answer.
            None if holds => GrantReply::Leases { leases: Vec::new(), share: self.allocator.share(source) },
            _ if self.ended_early => self.allocator.left_as_it_is(now, source),
            _ => self.allocator.grant(now, source, question.wanted),
        };
        let answer = match granted {
            GrantReply::Leases { share, .. } => {
                Control::Leased { set, number, leases: self.allocator.held_by(source), share }
            }
            GrantReply::Over => {
                let clock = self.furthest.max(self.ended);
                match self.ended_early && !self.allocator.is_over() {
                    true => Control::LeasesEnded { set, number, clock },
                    false => Control::LeasesOver { set, number, clock },
                }
            }
            GrantReply::Full | GrantReply::Wait { .. } => {
                question.waits.get_or_insert(now);
                return;
            }
        };
        question.waits = None;
        say(question.node, answer, out);
    }

    /// Leases may have come back, or all of them may be committed.
    fn answer_waiting(&mut self, now: Time, out: &mut Outbox) {
        let waiting = self.questions.iter().filter(|(_, question)| question.waits.is_some());
        let waiting: Vec<Source> = waiting.map(|(source, _)| *source).collect();
        waiting.into_iter().for_each(|source| self.answer(now, source, out));
    }

    /// Tells a worker, if it waits, how far the others are, and who holds leases.
    fn say_awaited(&self, question: &Question, with_names: bool, out: &mut Outbox) {
        if question.waits.is_none() {
            return;
        }
        let holders = self.allocator.holders().filter(|(_, held)| with_names && *held > 0);
        let ranks = holders.filter_map(|(holder, _)| rank(self.questions.get(&holder)?.node));
        let on = ranks.take(NAMED).collect();
        let awaited = Control::LeasesAwaited { set: self.number, number: question.number, clock: self.furthest, on };
        say(question.node, awaited, out);
    }

    /// Names the holders to workers that have waited this long since they were last told.
    pub fn notice(&mut self, now: Time, after: Span, out: &mut Outbox) {
        let mut told = Vec::new();
        for (source, question) in &mut self.questions {
            if question.waits.is_some_and(|since| now.since(since) >= after) {
                question.waits = Some(now);
                told.push(*source);
            }
        }
        told.iter().for_each(|source| self.say_awaited(&self.questions[source], true, out));
    }
}

/// What servers forget.
impl DataSet {
    /// Tells servers what they may forget, if that is more than before.
    fn begin_to_forget(&mut self, view: &LeaseView<'_>, out: &mut Outbox) {
        if !view.is_steady || self.forgetting.is_some() {
            return;
        }
        let through = self.allocator.through_before(self.ended).unwrap_or_default();
        if through <= self.forgotten {
            return;
        }
        let waiting = view.members.live_servers().collect();
        self.forgetting = Some(Forgetting { through, clock: self.ended, waiting, said: view.now });
        self.say_forget(out);
    }

    fn say_forget(&self, out: &mut Outbox) {
        let Some(Forgetting { through, clock, waiting, .. }) = &self.forgetting else { return };
        let LeaseTerms { ranges, shuffle, .. } = self.terms;
        for server in waiting {
            let (set, through, clock) = (self.number, through.0, *clock);
            say(*server, Control::ForgetLeases { set, ranges, shuffle, through, clock }, out);
        }
    }

    /// A server has forgotten the leases before this place.
    pub fn server_forgot(&mut self, view: &LeaseView<'_>, from: NodeId, through: OrderIndex, out: &mut Outbox) {
        let forgetting = self.forgetting.as_mut().filter(|forgetting| forgetting.through == through);
        let Some(forgetting) = forgetting else { return };
        forgetting.waiting.remove(&from);
        self.end_forgetting(view);
        self.begin_to_forget(view, out);
    }

    /// Ends the step if every server has answered, and returns whether it did.
    fn end_forgetting(&mut self, view: &LeaseView<'_>) -> bool {
        let Some(done) = self.forgetting.take_if(|forgetting| forgetting.waiting.is_empty()) else { return false };
        self.forgotten = done.through;
        // Every frontier has passed that clock. Nothing needs to know apart what was committed
        // before it, except the checkpoint that is under way.
        self.allocator.settle(view.checkpoint.map_or(done.clock, |underway| underway.min(done.clock)));
        true
    }

    /// Says again to servers what they have not answered for this long, and goes on if all have.
    /// Returns whether servers have forgotten more.
    pub fn tick_forgetting(&mut self, view: &LeaseView<'_>, after: Span, out: &mut Outbox) -> bool {
        if let Some(forgetting) = &mut self.forgetting {
            forgetting.waiting.retain(|server| view.members.is_there(*server));
            if view.now.since(forgetting.said) >= after {
                forgetting.said = view.now;
                self.say_forget(out);
            }
        }
        let changed = self.end_forgetting(view);
        self.begin_to_forget(view, out);
        changed
    }
}
