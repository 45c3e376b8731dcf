//! One data set that workers lease: which worker holds which leases, and which leases servers may
//! forget.
//!
//! A server may forget the applied parts of a lease when no worker will push parts of it again:
//! - The lease is committed, in a clock that the frontier has passed. So every later checkpoint
//!   counts it as done.
//! - Every server has adopted a plan without the lost workers that held the lease before.
//!
//! So the coordinator tells servers up to which place in the lease order they may forget. It does
//! so while no plan is under way or due, and sends the next place when all servers have answered.

use super::{LeaseView, rank};
use crate::barriers::NAMED;
use crate::say::say;
use lease::{GrantReply, GrantTerms, LeaseAllocator, OrderIndex, SavedLeases, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Control, Field, Head, LeaseTerms, Outbox, Reader, WireError};

/// One data set that workers lease.
pub(crate) struct DataSet {
    number: u32,
    name: String,
    terms: LeaseTerms,
    allocator: LeaseAllocator,
    /// Whether a worker has opened it in this run. Otherwise it is as the checkpoint has it.
    opened: bool,
    /// The last question of each worker.
    questions: BTreeMap<Source, Question>,
    /// Whether a worker has ended it early: then nothing more is granted.
    ended_early: bool,
    /// The clock of the furthest worker.
    furthest: Clock,
    /// The clock after the last one in which a lease was committed.
    ended: Clock,
    /// Every server has forgotten the leases before this place.
    forgotten: OrderIndex,
    /// The step of forgetting that is under way.
    forgetting: Option<Forgetting>,
}

/// The last question of a worker.
struct Question {
    node: NodeId,
    number: u64,
    /// How many leases it wants.
    wanted: u64,
    /// While it is unanswered: when the worker asked, or was last told whom it waits for.
    waits: Option<Time>,
}

/// One step of forgetting: servers forget leases up to one place.
struct Forgetting {
    through: OrderIndex,
    /// A shard forgets once its frontier has reached this clock.
    clock: Clock,
    /// Servers that have not answered.
    waiting: BTreeSet<NodeId>,
    /// When servers were last told.
    said: Time,
}

/// Opening and saving.
impl DataSet {
    /// A new data set. Fails, in words, if its terms are invalid.
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

    /// The data set as a checkpoint at this clock has it.
    pub fn resume(number: u32, saved: &SavedLeases, clock: Clock) -> Option<Self> {
        // Saved leases have valid terms, so this does not fail.
        let allocator = LeaseAllocator::resume(GrantTerms::of(saved.terms()), saved.done()).ok()?;
        let set = Self::of(number, saved.name().to_owned(), saved.terms().clone(), allocator);
        Some(Self { opened: false, furthest: clock, ended: clock, ..set })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a checkpoint saves which of its leases are done. A data set whose name begins with a
    /// dot is the run's own bookkeeping, which each run begins anew.
    fn is_checkpointed(&self) -> bool {
        !self.name.starts_with('.')
    }

    /// Opens it for another worker, or for the first one of a resumed run. Fails, in words, if the
    /// terms differ.
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

    /// The allocator that continues the checkpoint's leases with these terms. Fails, in words, if
    /// the checkpoint's run read another input.
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

    /// Why a worker with these terms cannot lease it. None if the worker can.
    fn difference(&self, terms: &LeaseTerms) -> Option<String> {
        if self.terms.fingerprint != terms.fingerprint {
            return Some(format!("others read {}, and this worker reads {}", self.terms.input, terms.input));
        }
        let known = GrantTerms::of(&self.terms);
        let theirs = GrantTerms::of(terms);
        (known != theirs).then(|| format!("others lease it with {known:?}, and this worker with {theirs:?}"))
    }

    /// The clock after the last commit.
    pub fn committed_until(&self) -> Clock {
        self.ended
    }

    /// The leases that were committed before a clock. None if these are no longer known.
    pub fn committed_before(&self, clock: Clock) -> Option<SavedLeases> {
        let done = match self.is_checkpointed() {
            true => self.allocator.committed_before(clock)?,
            // The data set keeps its number and nothing else.
            false => LeaseAllocator::new(GrantTerms::of(&self.terms)).ok()?.committed(),
        };
        SavedLeases::new(self.name.clone(), self.terms.clone(), done).ok()
    }

    /// Appends it, without questions and the step of forgetting under way: both are repeated.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.terms.put(out);
        (self.opened, self.ended_early).put(out);
        (self.furthest, self.ended).put(out);
        self.forgotten.0.put(out);
        self.allocator.put(out);
    }

    /// Reads what [`put`](Self::put) wrote. Leases count as held since `now`.
    pub fn get(number: u32, input: &mut Reader<'_>, now: Time) -> Result<Self, WireError> {
        let name = String::get(input)?;
        let terms = LeaseTerms::get(input)?;
        let (opened, ended_early) = Field::get(input)?;
        let (furthest, ended) = Field::get(input)?;
        let forgotten = OrderIndex(Field::get(input)?);
        let allocator = LeaseAllocator::get(input, now)?;
        if allocator.terms() != GrantTerms::of(&terms) {
            return Err(WireError::Malformed("an allocator with other terms than its data set"));
        }
        let set = Self::of(number, name, terms, allocator);
        Ok(Self { opened, ended_early, furthest, ended, forgotten, ..set })
    }
}

/// Questions of workers, and answers.
impl DataSet {
    /// Notes the clock of a worker's message. If the worker is further than all others, tells
    /// workers that wait for leases, which end their clocks up to there.
    pub fn reached(&mut self, head: &Head, out: &mut Outbox) {
        if rank(head.from).is_none() || head.clock <= self.furthest {
            return;
        }
        self.furthest = head.clock;
        self.questions.values().for_each(|question| self.say_awaited(question, false, out));
    }

    /// Takes a worker's question for leases.
    pub fn ask(&mut self, now: Time, head: &Head, number: u64, wanted: u64, out: &mut Outbox) {
        let waits = Some(now);
        let asked = Question { node: head.from, number, wanted, waits };
        let question = self.questions.entry(head.source).or_insert(Question { number: 0, ..asked });
        if number > question.number {
            question.number = number;
            question.wanted = wanted;
            question.waits = waits;
        } else if number < question.number {
            return;
        }
        self.answer(now, head.source, out);
        // Tells a waiting worker how far the others are: it may have missed that.
        if let Some(question) = self.questions.get(&head.source) {
            self.say_awaited(question, false, out);
        }
    }

    /// Takes a worker's commit of a lease.
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

    /// Ends the data set early, as a worker asks: takes back the worker's leases and tells all
    /// workers to stop. The data set is over when no worker holds leases.
    pub fn end(&mut self, view: &LeaseView<'_>, source: Source, out: &mut Outbox) {
        self.allocator.expel(source);
        if !std::mem::replace(&mut self.ended_early, true) {
            let set = self.number;
            let workers = view.members.live_workers();
            workers.for_each(|worker| say(worker.into(), Control::EndLeases { set }, out));
        }
        self.answer_waiting(view.now, out);
    }

    /// Answers a worker that goes on learning: it may have missed that the data set was ended.
    pub fn learning(&self, from: NodeId, out: &mut Outbox) {
        if self.ended_early {
            say(from, Control::EndLeases { set: self.number }, out);
        }
    }

    /// Takes back the leases of a worker that has left the run, for other workers.
    pub fn give_back(&mut self, now: Time, source: Source, out: &mut Outbox) {
        self.questions.remove(&source);
        self.allocator.expel(source);
        self.answer_waiting(now, out);
    }

    /// Answers a worker's last question if it can be answered now. Repeats an answer given before.
    fn answer(&mut self, now: Time, source: Source, out: &mut Outbox) {
        let Some(question) = self.questions.get_mut(&source) else { return };
        let number = question.number;
        let set = self.number;
        let holds = !self.allocator.held_by(source).is_empty();
        let granted = match question.waits {
            // The worker has missed the answer.
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

    /// Answers waiting workers where it can: leases may have come back, or all may be committed.
    fn answer_waiting(&mut self, now: Time, out: &mut Outbox) {
        let waiting = self.questions.iter().filter(|(_, question)| question.waits.is_some());
        let waiting: Vec<Source> = waiting.map(|(source, _)| *source).collect();
        waiting.into_iter().for_each(|source| self.answer(now, source, out));
    }

    /// Tells a worker, if it waits, how far the others are and, `with_names`, who holds leases.
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

    /// Names the holders to workers that have waited this long since their last notice.
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

/// Which leases servers forget.
impl DataSet {
    /// Begins a step of forgetting, if servers may forget more than before.
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
            let forget = Control::ForgetLeases { set: self.number, ranges, shuffle, through: through.0, clock: *clock };
            say(*server, forget, out);
        }
    }

    /// Notes that a server has forgotten the leases before this place.
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
        // Every frontier has passed that clock. Only a checkpoint under way still needs to know in
        // which clocks before it leases were committed.
        self.allocator.settle(view.checkpoint.map_or(done.clock, |underway| underway.min(done.clock)));
        true
    }

    /// Tells servers again that have not answered for this long, and goes on if all have. Returns
    /// whether a step has ended.
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
