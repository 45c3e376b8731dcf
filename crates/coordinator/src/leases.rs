//! Data leases: the data sets that workers lease, by number. One data set is in
//! `leases/data_set.rs`.
//!
//! A resumed run has the data sets of its checkpoint before any worker opens them. They keep their
//! numbers, because shards record applied parts by them. The first worker that opens such a data
//! set may ask for more epochs, but not for another input.

mod data_set;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::members::Members;
pub(crate) use data_set::DataSet;
use lease::SavedLeases;
use types::limits::{DATA_SETS, NAME_BYTES, TEXT_BYTES};
use types::{Clock, NodeId, Source, Span, Time};
use wire::{Field, Head, LeaseTerms, Outbox, Reader, WireError};

/// What data sets read of the other parts.
pub(crate) struct LeaseView<'a> {
    pub now: Time,
    pub members: &'a Members,
    /// Whether every server has adopted the plan, and no other is due.
    pub is_steady: bool,
    /// The clock of the checkpoint that is under way.
    pub checkpoint: Option<Clock>,
}

/// The data sets that workers lease.
#[derive(Default)]
pub(crate) struct Leases {
    /// In the order in which they were opened: a data set's number is its index.
    sets: Vec<DataSet>,
}

impl Leases {
    /// Takes over the data sets of the checkpoint, made at this clock, that the run resumes from.
    pub fn resume(&mut self, saved: &[SavedLeases], clock: Clock) {
        self.sets.clear();
        for saved in saved {
            self.sets.extend(DataSet::resume(self.sets.len() as u32, saved, clock));
        }
    }

    /// The number of the data set of this name. Opens it if it is new. Fails, in words, if it is
    /// open with other terms.
    pub fn open(&mut self, name: &str, terms: LeaseTerms) -> Result<u32, String> {
        if let Some(set) = self.sets.iter_mut().find(|set| set.name() == name) {
            return set.open_again(terms);
        }
        if self.sets.len() >= DATA_SETS {
            return Err(format!("the run has its {DATA_SETS} data sets already; lease one of them"));
        }
        for (what, text, most) in [("name", name, NAME_BYTES), ("description", &terms.input, TEXT_BYTES)] {
            if text.len() > most {
                return Err(format!("the {what} of the data set has {} bytes, and {most} are allowed", text.len()));
            }
        }
        let number = self.sets.len() as u32;
        self.sets.push(DataSet::new(number, name.to_owned(), terms)?);
        Ok(number)
    }

    /// The data set that a message is about, if its sender is in the run. Tells workers that wait
    /// for leases if the sender is further than all others.
    pub fn spoken_of(&mut self, set: u32, head: &Head, members: &Members, out: &mut Outbox) -> Option<&mut DataSet> {
        let known = self.sets.get_mut(set as usize).filter(|_| members.is_there(head.from))?;
        known.reached(head, out);
        Some(known)
    }

    /// Takes back all leases of a worker that has left the run, for other workers.
    pub fn give_back(&mut self, now: Time, source: Source, out: &mut Outbox) {
        self.sets.iter_mut().for_each(|set| set.give_back(now, source, out));
    }

    /// Asks servers again that have not answered for `ask_again_after`, and names the holders to
    /// workers that have waited for `notice_after`. Returns whether a data set's forgotten leases
    /// advanced, which changes the memory.
    pub fn tick(&mut self, view: &LeaseView<'_>, ask_again_after: Span, notice_after: Span, out: &mut Outbox) -> bool {
        let mut changed = false;
        for set in &mut self.sets {
            set.notice(view.now, notice_after, out);
            changed |= set.tick_forgetting(view, ask_again_after, out);
        }
        changed
    }

    /// The clock after the last commit of all data sets.
    pub fn committed_until(&self) -> Clock {
        self.sets.iter().map(DataSet::committed_until).max().unwrap_or_default()
    }

    /// Every data set with the leases that were committed before a clock. None if these are no
    /// longer known.
    pub fn committed_before(&self, clock: Clock) -> Option<Vec<SavedLeases>> {
        self.sets.iter().map(|set| set.committed_before(clock)).collect()
    }

    /// Appends all data sets, for a successor.
    pub fn put(&self, out: &mut Vec<u8>) {
        (self.sets.len() as u32).put(out);
        self.sets.iter().for_each(|set| set.put(out));
    }

    /// Reads what [`put`](Self::put) wrote. Workers repeat their unanswered questions.
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
