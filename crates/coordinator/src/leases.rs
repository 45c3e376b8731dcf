//! Data leases: the data sets that workers lease, by number. What one data set does is in
//! `leases/data_set.rs`.
//!
//! A run that goes on from a checkpoint knows its data sets before any worker asks for them, under
//! the numbers that they had: shards know by those what they hold. The first worker that opens one
//! may ask for more epochs, and not for another input.

mod data_set;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::members::Members;
pub(crate) use data_set::DataSet;
use lease::SavedLeases;
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Field, Head, LeaseTerms, Outbox, Reader, WireError};

/// What data sets need to know of the other parts.
pub(crate) struct LeaseView<'a> {
    pub now: Time,
    pub members: &'a Members,
    /// Whether every server goes by the plan, and no other is due.
    pub is_steady: bool,
    /// The clock of the checkpoint that is under way.
    pub checkpoint: Option<Clock>,
}

/// What is leased, in the order of opening.
#[derive(Default)]
pub(crate) struct Leases {
    sets: Vec<DataSet>,
}

impl Leases {
    /// Knows the data sets of the checkpoint that the run goes on from, which is of this clock.
    pub fn resume(&mut self, saved: &[SavedLeases], clock: Clock) {
        self.sets.clear();
        for saved in saved {
            self.sets.extend(DataSet::resume(self.sets.len() as u32, saved, clock));
        }
    }

    /// The number of a data set, which is opened if it is not known. Fails in words if it is known
    /// by other terms.
    pub fn open(&mut self, name: &str, terms: LeaseTerms) -> Result<u32, String> {
        if let Some(set) = self.sets.iter_mut().find(|set| set.name() == name) {
            return set.open_again(terms);
        }
        let number = self.sets.len() as u32;
        self.sets.push(DataSet::new(number, name.to_owned(), terms)?);
        Ok(number)
    }

    /// The data set of which a node speaks, if it is there. Workers that wait for leases follow the
    /// clock of its head.
    pub fn spoken_of(&mut self, set: u32, head: &Head, members: &Members, out: &mut Outbox) -> Option<&mut DataSet> {
        let known = self.sets.get_mut(set as usize).filter(|_| members.is_there(head.from))?;
        known.reached(head, out);
        Some(known)
    }

    /// A worker takes part no more: what it holds is for others.
    pub fn give_back(&mut self, now: Time, source: Source, out: &mut Outbox) {
        self.sets.iter_mut().for_each(|set| set.give_back(now, source, out));
    }

    /// Time has passed: says again what servers have not answered for `ask_again_after`, and names
    /// the holders to workers that have waited for `notice_after`. Returns whether servers have
    /// forgotten more.
    pub fn tick(&mut self, view: &LeaseView<'_>, ask_again_after: Span, notice_after: Span, out: &mut Outbox) -> bool {
        let mut changed = false;
        for set in &mut self.sets {
            set.notice(view.now, notice_after, out);
            changed |= set.tick_forgetting(view, ask_again_after, out);
        }
        changed
    }

    /// The first clock in which nothing of any data set was committed, nor later.
    pub fn committed_until(&self) -> Clock {
        self.sets.iter().map(DataSet::committed_until).max().unwrap_or_default()
    }

    /// Every data set with the leases that were committed before a clock. None if that is not known
    /// any more.
    pub fn committed_before(&self, clock: Clock) -> Option<Vec<SavedLeases>> {
        self.sets.iter().map(|set| set.committed_before(clock)).collect()
    }

    /// Appends what is leased, for a coordinator that takes over.
    pub fn put(&self, out: &mut Vec<u8>) {
        (self.sets.len() as u32).put(out);
        self.sets.iter().for_each(|set| set.put(out));
    }

    /// Reads what [`put`](Self::put) has written. Workers repeat questions that were not answered.
    pub fn get(input: &mut Reader<'_>, now: Time) -> Result<Self, WireError> {
        let mut sets = Vec::new();
        for number in 0..u32::get(input)? {
            sets.push(DataSet::get(number, input, now)?);
        }
        Ok(Self { sets })
    }
}

/// The rank of a worker.
fn rank(node: NodeId) -> Option<types::WorkerId> {
    match node {
        NodeId::Worker(rank) => Some(types::WorkerId(rank)),
        NodeId::Coordinator | NodeId::Server(_) => None,
    }
}
