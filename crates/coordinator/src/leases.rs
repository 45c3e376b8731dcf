//! Data sets that workers lease: who has which part, and what servers need not know of any more.
//!
//! A server may forget what its shards hold of a lease when nobody will push of it again: when it
//! is committed, in a clock that the frontier has passed (so that no checkpoint to come calls it
//! open), and when every server goes by a plan without those who held it before and were lost. So
//! servers are told one place of the lease order at a time, in times without changes of the plan,
//! until all have answered.
//!
//! A run that goes on from a checkpoint knows its data sets before anybody asks for them, under the
//! numbers that they had: by those, shards know what they hold. Whoever opens one first may ask for
//! more epochs, and not for another input.

use super::Coordinator;
use super::barrier::NAMED;
use lease::{GrantReply, GrantTerms, LeaseAllocator, OrderIndex, SavedLeases, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, Source, Time, WorkerId};
use wire::{Control, Field, Head, LeaseTerms, Outbox, Reader, WireError};

/// Something that workers lease, by its name.
pub(super) struct DataSet {
    name: String,
    terms: LeaseTerms,
    allocator: LeaseAllocator,
    /// Whether anybody has asked for it in this run: otherwise it is as a checkpoint knows it.
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
    /// Whether it has no answer, and since when it was not told so.
    waits: Option<Time>,
}

struct Forgetting {
    through: OrderIndex,
    clock: Clock,
    waiting: BTreeSet<NodeId>,
    said: Time,
}

impl DataSet {
    fn new(name: String, terms: LeaseTerms, allocator: LeaseAllocator) -> Self {
        let forgotten = OrderIndex::default();
        let (opened, ended_early, furthest, ended, forgetting) = (true, false, Clock(0), Clock(0), None);
        let questions = BTreeMap::new();
        Self { name, terms, allocator, opened, questions, ended_early, furthest, ended, forgotten, forgetting }
    }

    /// As a checkpoint at this clock knows it.
    fn kept(kept: &SavedLeases, clock: Clock) -> Option<Self> {
        // It was made of such terms.
        let allocator = LeaseAllocator::resume(GrantTerms::of(kept.terms()), kept.done()).ok()?;
        let set = Self::new(kept.name().to_owned(), kept.terms().clone(), allocator);
        Some(Self { opened: false, furthest: clock, ended: clock, ..set })
    }

    /// Whether a checkpoint says what of it is done. What a run keeps books by, each run begins
    /// anew, as with its tables.
    fn is_kept(&self) -> bool {
        !self.name.starts_with('.')
    }

    /// Goes on where a checkpoint's run was, if that has read the same.
    fn open(&mut self, terms: LeaseTerms) -> Result<(), String> {
        if !self.is_kept() {
            self.allocator = LeaseAllocator::new(GrantTerms::of(&terms)).map_err(|error| error.to_string())?;
            (self.terms, self.opened) = (terms, true);
            return Ok(());
        }
        if self.terms.fingerprint != terms.fingerprint {
            let (was, is) = (&self.terms.input, &terms.input);
            return Err(format!("the checkpoint is of a run that read {was}, and this worker reads {is}"));
        }
        let done = self.allocator.committed();
        self.allocator = LeaseAllocator::resume(GrantTerms::of(&terms), &done).map_err(|error| error.to_string())?;
        (self.terms, self.opened) = (terms, true);
        Ok(())
    }

    /// Why a worker that comes with these terms cannot lease it.
    fn difference(&self, terms: &LeaseTerms) -> Option<String> {
        if self.terms.fingerprint != terms.fingerprint {
            return Some(format!("others read {}, and this worker reads {}", self.terms.input, terms.input));
        }
        let (known, theirs) = (GrantTerms::of(&self.terms), GrantTerms::of(terms));
        (known != theirs).then(|| format!("others lease it by {known:?}, and this worker by {theirs:?}"))
    }
}

impl Coordinator {
    /// What nodes say of leases.
    pub(super) fn leases(&mut self, head: &Head, control: Control, out: &mut Outbox) {
        let from = head.from;
        if self.members.get(&from).is_none_or(|member| member.gone) {
            return;
        }
        if let Control::OpenLeases { name, terms } = control {
            let set = self.open_leases(&name, terms);
            return Self::say(from, Control::LeasesOpened { name, set }, out);
        }
        let (Control::AskLeases { set, .. }
        | Control::Learning { set }
        | Control::EndLeases { set }
        | Control::CommitLease { set, .. }
        | Control::LeasesForgotten { set, .. }) = control
        else {
            return;
        };
        self.reached(set, head, out);
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        #[expect(clippy::wildcard_enum_match_arm, reason = "the dispatcher lists every message")]
        match control {
            Control::AskLeases { number, wanted, .. } => self.asked_for_leases(head, set, number, wanted, out),
            Control::CommitLease { lease, clock, examples, busy, .. } => {
                let receipt = known.allocator.commit(head.source, &[lease], clock, WorkReport { examples, busy });
                if receipt.fresh > 0 {
                    known.ended = known.ended.max(clock.next());
                }
                let problem = receipt.refused.first().map(ToString::to_string);
                Self::say(from, Control::LeaseCommitted { set, lease, problem }, out);
                self.begin_to_forget(set, out);
                self.answer_waiting(set, out);
            }
            Control::EndLeases { .. } => self.end_leases(set, head.source, out),
            // It may have missed that.
            Control::Learning { .. } if known.ended_early => Self::say(from, Control::EndLeases { set }, out),
            Control::LeasesForgotten { through, .. } => self.leases_forgotten(from, set, OrderIndex(through), out),
            _ => {}
        }
    }

    fn open_leases(&mut self, name: &str, terms: LeaseTerms) -> Result<u32, String> {
        let known = self.sets.iter().position(|set| set.name == name);
        if let Some(known) = known {
            if !self.sets[known].opened {
                let goes_on = self.sets[known].open(terms);
                return goes_on.map(|()| known as u32).map_err(|difference| {
                    format!("'{name}' cannot go on: {difference}; resume with the files and settings of that run")
                });
            }
            return match self.sets[known].difference(&terms) {
                Some(difference) => Err(format!(
                    "two inputs for one name '{name}': {difference}; give every worker the same files and settings"
                )),
                None => Ok(known as u32),
            };
        }
        let allocator =
            LeaseAllocator::new(GrantTerms::of(&terms)).map_err(|error| format!("{}: {error}", terms.input))?;
        self.sets.push(DataSet::new(name.to_owned(), terms, allocator));
        Ok(self.sets.len() as u32 - 1)
    }

    fn asked_for_leases(&mut self, head: &Head, set: u32, number: u64, wanted: u64, out: &mut Outbox) {
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        let (node, waits) = (head.from, Some(self.now));
        let question = known.questions.entry(head.source).or_insert(Question { node, number: 0, wanted, waits });
        if number > question.number {
            (question.number, question.wanted, question.waits) = (number, wanted, waits);
        } else if number < question.number {
            return;
        }
        self.answer(set, head.source, out);
        // Who waits hears how far the others are, should it have missed that.
        self.say_awaited(set, head.source, false, out);
    }

    /// A worker learns no more, and nobody is to. What it holds is given back, and when nobody
    /// holds anything that is the end.
    fn end_leases(&mut self, set: u32, source: Source, out: &mut Outbox) {
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        known.allocator.expel(source);
        if !std::mem::replace(&mut known.ended_early, true) {
            for worker in self.live_workers().collect::<Vec<_>>() {
                Self::say(worker.into(), Control::EndLeases { set }, out);
            }
        }
        self.answer_waiting(set, out);
    }

    /// Answers a worker's last question, if there is an answer: again, if it has one already.
    fn answer(&mut self, set: u32, source: Source, out: &mut Outbox) {
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        let Some(question) = known.questions.get_mut(&source) else { return };
        let (node, number) = (question.node, question.number);
        let holds = !known.allocator.held_by(source).is_empty();
        let granted = match question.waits {
            // It has missed the answer.
            None if holds => GrantReply::Leases { leases: Vec::new(), share: known.allocator.share(source) },
            _ if known.ended_early => known.allocator.left_as_it_is(self.now, source),
            _ => known.allocator.grant(self.now, source, question.wanted),
        };
        let answer = match granted {
            GrantReply::Leases { share, .. } => {
                Control::Leased { set, number, leases: known.allocator.held_by(source), share }
            }
            GrantReply::Over => {
                let clock = known.furthest.max(known.ended);
                match known.ended_early && !known.allocator.is_over() {
                    true => Control::LeasesEnded { set, number, clock },
                    false => Control::LeasesOver { set, number, clock },
                }
            }
            GrantReply::Full | GrantReply::Wait { .. } => {
                question.waits.get_or_insert(self.now);
                return;
            }
        };
        question.waits = None;
        Self::say(node, answer, out);
    }

    /// Leases may have come back, or all of them may be committed.
    fn answer_waiting(&mut self, set: u32, out: &mut Outbox) {
        let Some(known) = self.sets.get(set as usize) else { return };
        let waiting = known.questions.iter().filter(|(_, question)| question.waits.is_some());
        let waiting: Vec<Source> = waiting.map(|(source, _)| *source).collect();
        waiting.into_iter().for_each(|source| self.answer(set, source, out));
    }

    /// A worker is at its head's clock. Those who wait for leases follow the furthest.
    fn reached(&mut self, set: u32, head: &Head, out: &mut Outbox) {
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        if !matches!(head.from, NodeId::Worker(_)) || head.clock <= known.furthest {
            return;
        }
        known.furthest = head.clock;
        let sources: Vec<Source> = known.questions.keys().copied().collect();
        sources.into_iter().for_each(|source| self.say_awaited(set, source, false, out));
    }

    fn say_awaited(&self, set: u32, source: Source, with_names: bool, out: &mut Outbox) {
        let Some(known) = self.sets.get(set as usize) else { return };
        let Some(question) = known.questions.get(&source).filter(|question| question.waits.is_some()) else { return };
        let holders = known.allocator.holders().filter(|(_, held)| with_names && *held > 0);
        let ranks = holders.filter_map(|(holder, _)| match known.questions.get(&holder)?.node {
            NodeId::Worker(rank) => Some(WorkerId(rank)),
            NodeId::Coordinator | NodeId::Server(_) => None,
        });
        let (number, clock) = (question.number, known.furthest);
        let on = ranks.take(NAMED).collect();
        Self::say(question.node, Control::LeasesAwaited { set, number, clock, on }, out);
    }

    /// A worker takes part no more: what it holds is for others.
    pub(super) fn give_back_leases(&mut self, node: NodeId, out: &mut Outbox) {
        let Some(source) = self.members.get(&node).map(|member| member.source) else { return };
        for set in 0..self.sets.len() {
            self.sets[set].questions.remove(&source);
            self.sets[set].allocator.expel(source);
            self.answer_waiting(set as u32, out);
        }
    }

    /// Tells servers what they may forget, if that is more than before.
    fn begin_to_forget(&mut self, set: u32, out: &mut Outbox) {
        let steady = self.adoption.is_none() && !self.changed;
        let Some(known) = self.sets.get(set as usize).filter(|known| steady && known.forgetting.is_none()) else {
            return;
        };
        let clock = known.ended;
        let through = known.allocator.through_before(clock).unwrap_or_default();
        if through <= known.forgotten {
            return;
        }
        let waiting: BTreeSet<NodeId> = self.live_servers().collect();
        self.sets[set as usize].forgetting = Some(Forgetting { through, clock, waiting, said: self.now });
        self.say_forget(set, out);
    }

    fn say_forget(&self, set: u32, out: &mut Outbox) {
        let Some(known) = self.sets.get(set as usize) else { return };
        let Some(Forgetting { through, clock, waiting, .. }) = &known.forgetting else { return };
        let LeaseTerms { ranges, shuffle, .. } = known.terms;
        for server in waiting {
            let (through, clock) = (through.0, *clock);
            Self::say(*server, Control::ForgetLeases { set, ranges, shuffle, through, clock }, out);
        }
    }

    fn leases_forgotten(&mut self, from: NodeId, set: u32, through: OrderIndex, out: &mut Outbox) {
        let known = self.sets.get_mut(set as usize).and_then(|known| known.forgetting.as_mut());
        let Some(forgetting) = known.filter(|forgetting| forgetting.through == through) else { return };
        forgetting.waiting.remove(&from);
        self.end_of_forgetting(set);
        self.begin_to_forget(set, out);
    }

    fn end_of_forgetting(&mut self, set: u32) {
        let underway = self.checkpoint_underway();
        let Some(known) = self.sets.get_mut(set as usize) else { return };
        if let Some(done) = known.forgetting.take_if(|forgetting| forgetting.waiting.is_empty()) {
            known.forgotten = done.through;
            self.touched = true;
            // Every frontier is there: nobody asks for clocks before it, but for the checkpoint
            // that is under way.
            known.allocator.settle(underway.map_or(done.clock, |underway| underway.min(done.clock)));
        }
    }

    /// The first clock in which nothing of any data set was committed, nor later.
    pub(super) fn committed_until(&self) -> Clock {
        self.sets.iter().map(|set| set.ended).max().unwrap_or_default()
    }

    /// Knows the data sets of the checkpoint that the run goes on from.
    pub(super) fn keep_leases(&mut self, kept: &[SavedLeases], clock: Clock) {
        self.sets = kept.iter().filter_map(|kept| DataSet::kept(kept, clock)).collect();
    }

    /// Every data set with the leases that were committed before a clock. None if that is not known
    /// any more.
    pub(super) fn leases_before(&self, clock: Clock) -> Option<Vec<SavedLeases>> {
        let kept = |set: &DataSet| {
            let done = match set.is_kept() {
                true => set.allocator.committed_before(clock)?,
                // It keeps its number, and nothing else.
                false => LeaseAllocator::new(GrantTerms::of(&set.terms)).ok()?.committed(),
            };
            SavedLeases::new(set.name.clone(), set.terms.clone(), done).ok()
        };
        self.sets.iter().map(kept).collect()
    }

    /// Time has passed: says again what servers have not answered, and to workers whom they wait
    /// for.
    pub(super) fn tick_leases(&mut self, out: &mut Outbox) {
        let (now, after, (notice_after, _)) = (self.now, self.ask_again_after(), self.notice_after());
        let servers: BTreeSet<NodeId> = self.live_servers().collect();
        for set in 0..self.sets.len() as u32 {
            let Some(known) = self.sets.get_mut(set as usize) else { continue };
            let overdue =
                |question: &&mut Question| question.waits.is_some_and(|since| now.since(since) >= notice_after);
            let mut told = Vec::new();
            for (source, question) in &mut known.questions {
                if let Some(question) = Some(question).filter(overdue) {
                    question.waits = Some(now);
                    told.push(*source);
                }
            }
            let mut again = false;
            if let Some(forgetting) = &mut known.forgetting {
                forgetting.waiting.retain(|server| servers.contains(server));
                again = now.since(forgetting.said) >= after;
                forgetting.said = if again { now } else { forgetting.said };
            }
            told.into_iter().for_each(|source| self.say_awaited(set, source, true, out));
            if again {
                self.say_forget(set, out);
            }
            self.end_of_forgetting(set);
            self.begin_to_forget(set, out);
        }
    }

    /// Appends what is leased, for a coordinator that takes over.
    pub fn put_leases(&self, out: &mut Vec<u8>) {
        (self.sets.len() as u32).put(out);
        for DataSet { name, terms, allocator, opened, ended_early, furthest, ended, forgotten, .. } in &self.sets {
            name.put(out);
            terms.put(out);
            (*opened, *ended_early).put(out);
            (*furthest, *ended).put(out);
            forgotten.0.put(out);
            allocator.put(out);
        }
    }

    /// Reads what [`put_leases`](Self::put_leases) has written. Workers ask again for whatever they
    /// were not told.
    pub fn get_leases(&mut self, input: &mut Reader<'_>, now: Time) -> Result<(), WireError> {
        let mut sets = Vec::new();
        for _ in 0..u32::get(input)? {
            let (name, terms) = (String::get(input)?, LeaseTerms::get(input)?);
            let (opened, ended_early) = Field::get(input)?;
            let (furthest, ended) = Field::get(input)?;
            let forgotten = OrderIndex(Field::get(input)?);
            let allocator = LeaseAllocator::get(input, now)?;
            if allocator.terms() != GrantTerms::of(&terms) {
                return Err(WireError::Malformed("leases by other terms than said"));
            }
            sets.push(DataSet {
                opened,
                ended_early,
                furthest,
                ended,
                forgotten,
                ..DataSet::new(name, terms, allocator)
            });
        }
        self.sets = sets;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;
