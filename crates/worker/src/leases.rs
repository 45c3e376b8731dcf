//! The data leases of a worker. It asks for leases, learns from them, and commits each lease when
//! shards have acknowledged every push made for it.
//!
//! Pushes made for a data lease are idempotent, because the lease alone numbers their parts. For
//! each shard of each table the numbers count from 0, in the order in which the program pushes. If
//! another worker runs the lease again, its parts have the same ids, and shards skip the parts that
//! they hold.
//!
//! Examples go along with the parts. A minibatch without a part for a shard adds its examples to
//! the next part for that shard, or to an empty part at the end of the lease. They never go with
//! the end of a clock, because another run of the lease may end its clocks elsewhere.

use crate::{Notice, TableFailure};
use lease::{LeaseId, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use types::{Clock, TableId, WorkerId};
use wire::{Control, LeaseTerms, LeasedPart};

/// The coordinator's answer to a request for data leases.
///
/// ```
/// use worker::LeaseGrant;
///
/// let over = LeaseGrant { leases: Vec::new(), share: 8 };
/// assert!(over.is_over());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The new leases, in the order of granting. Empty when the data set is over: every lease is
    /// committed, or a worker ended the data set and no worker holds any of its leases.
    pub leases: Vec<u64>,
    /// Minibatches to put into each clock from now on.
    pub share: u32,
}

impl LeaseGrant {
    /// Whether the data set is over: no worker gets more leases of it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.leases.is_empty()
    }
}

/// A worker's state for one data set.
#[derive(Debug, Default)]
struct DataSet {
    /// How many requests for leases the worker has made: the number of the last one.
    asked: u64,
    /// How many leases the last request asked for.
    wanted: u64,
    asking: Asking,
    /// Leases that are granted and not committed.
    held: BTreeSet<u64>,
    /// The leases held at the last request: its answer may name them again.
    known: BTreeSet<u64>,
    /// Minibatches to put into each clock.
    share: u32,
    /// The furthest worker's clock: this worker ends clocks up to it while it has no leases.
    follow: Clock,
    end: End,
}

/// Whether a worker has ended a data set before all its leases were committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum End {
    #[default]
    No,
    /// The coordinator has told this worker that the data set is ended.
    Told,
    /// This worker has ended the data set itself.
    Said,
}

/// The state of the last request for leases of a data set.
#[derive(Debug, Default, PartialEq)]
enum Asking {
    /// No request is open.
    #[default]
    No,
    /// The request has no answer yet.
    Yes,
    /// The coordinator granted these leases, and the program has not taken them.
    Answered(Vec<u64>),
    /// The data set is over.
    Over,
}

/// The progress of a lease for which the program pushes.
#[derive(Debug, Default)]
struct LeaseProgress {
    /// By table and shard: the number of parts so far, and the examples that go with the next part.
    shards: BTreeMap<TableId, Vec<(u64, u64)>>,
    /// How many pushes are not acknowledged.
    unfinished: usize,
    /// Of parts that another worker pushed before: the last clock in which one of them counts. That
    /// worker may have been ahead of this one.
    counts_in: Clock,
    /// The commit, once the program has finished the lease.
    commit: Option<Commit>,
}

/// The commit of a lease.
#[derive(Clone, Copy, Debug)]
struct Commit {
    clock: Clock,
    work: WorkReport,
    sent: bool,
}

/// The state of a worker's data leases.
#[derive(Debug, Default)]
pub(crate) struct DataLeases {
    /// Data sets that the coordinator has not opened yet, by name.
    asked: BTreeMap<String, LeaseTerms>,
    /// The answers, by name: a data set's number, or why it cannot be leased.
    opened: BTreeMap<String, Result<u32, String>>,
    /// Open data sets, by number.
    sets: BTreeMap<u32, DataSet>,
    in_progress: BTreeMap<LeaseId, LeaseProgress>,
    /// Whether the worker may send a commit.
    ready: bool,
    /// Whether the program has finished a lease, and has neither ended its clock nor asked for
    /// other leases since. Then the program ends that clock, and the worker must not.
    in_commit: bool,
    /// Why the coordinator refused commits, for the program to take.
    problems: Vec<String>,
}

/// One part of a push made for a data lease: its rows by index, its id and its examples.
pub(crate) struct LeasedPushPart {
    pub rows: Range<usize>,
    pub id: LeasedPart,
    pub examples: u64,
}

/// The last part of a lease for a shard: it has no rows, and brings the remaining examples.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastPart {
    pub table: TableId,
    pub shard: usize,
    pub id: LeasedPart,
    pub examples: u64,
}

impl DataLeases {
    /// Opens a data set by name.
    pub fn open(&mut self, name: &str, terms: LeaseTerms) -> Control {
        self.opened.remove(name);
        self.asked.insert(name.to_owned(), terms.clone());
        Control::OpenLeases { name: name.to_owned(), terms }
    }

    /// The number of a data set, or why it cannot be leased, once the coordinator has answered.
    pub fn opened(&self, name: &str) -> Option<&Result<u32, String>> {
        self.opened.get(name)
    }

    /// Asks for leases of a data set, unless a request is open.
    pub fn ask(&mut self, set: u32, wanted: u64) -> Option<Control> {
        let state = self.sets.get_mut(&set).filter(|state| state.asking == Asking::No)?;
        state.asked += 1;
        state.wanted = wanted;
        state.asking = Asking::Yes;
        state.known = state.held.clone();
        Some(Control::AskLeases { set, number: state.asked, wanted })
    }

    /// The answer to the last request for leases, for a worker at this clock, once it is there.
    pub fn take(&mut self, set: u32, clock: Clock) -> Option<LeaseGrant> {
        self.in_commit = false;
        let state = self.sets.get_mut(&set)?;
        match std::mem::take(&mut state.asking) {
            Asking::Answered(leases) => Some(LeaseGrant { leases, share: state.share }),
            Asking::Over => {
                state.asking = Asking::Over;
                // The worker must be at the furthest worker's clock before it hears that.
                (clock >= state.follow).then_some(LeaseGrant { leases: Vec::new(), share: state.share })
            }
            asking => {
                state.asking = asking;
                None
            }
        }
    }

    /// Whether [`DataLeases::take`] would return an answer.
    pub fn has_answer(&self, set: u32, clock: Clock) -> bool {
        self.sets.get(&set).is_some_and(|state| match state.asking {
            Asking::Answered(_) => true,
            Asking::Over => clock >= state.follow,
            Asking::No | Asking::Yes => false,
        })
    }

    /// Ends a data set for all workers: gives back the held leases, and takes no more.
    pub fn end(&mut self, set: u32) -> Option<Control> {
        let state = self.sets.get_mut(&set)?;
        state.end = End::Said;
        state.held.clear();
        if matches!(state.asking, Asking::Answered(_)) {
            state.asking = Asking::No;
        }
        Some(Control::EndLeases { set })
    }

    /// Whether any worker has ended a data set before all its leases were committed.
    pub fn is_ended(&self, set: u32) -> bool {
        self.sets.get(&set).is_some_and(|state| state.end != End::No)
    }

    /// Refuses to push for a lease, or to commit it, unless this worker holds it and has not
    /// finished it.
    pub fn check(&self, lease: LeaseId) -> Result<(), TableFailure> {
        let held = self.sets.get(&lease.set).is_some_and(|state| state.held.contains(&lease.number));
        let done = self.in_progress.get(&lease).is_some_and(|progress| progress.commit.is_some());
        if held && !done { Ok(()) } else { Err(TableFailure::NotLeased { lease: lease.number }) }
    }

    /// Numbers the parts of a push made for a lease. `by_shard`: the parts that the push is cut
    /// into, for each shard. The push must be [finished](Self::finished) before the lease is
    /// committed.
    pub fn number_parts(
        &mut self,
        lease: LeaseId,
        table: TableId,
        by_shard: Vec<Vec<Range<usize>>>,
        examples: u64,
    ) -> Vec<LeasedPushPart> {
        let progress = self.in_progress.entry(lease).or_default();
        progress.unfinished += 1;
        let counts = progress.shards.entry(table).or_insert_with(|| vec![(0, 0); by_shard.len()]);
        let mut parts = Vec::new();
        for ((next, untold), ranges) in counts.iter_mut().zip(by_shard) {
            *untold = untold.saturating_add(examples);
            for rows in ranges {
                let id = LeasedPart { set: lease.set, lease: lease.number, part: *next };
                *next += 1;
                parts.push(LeasedPushPart { rows, id, examples: std::mem::take(untold) });
            }
        }
        parts
    }

    /// Shards have acknowledged a push made for a lease.
    pub fn finished(&mut self, lease: LeaseId) {
        if let Some(progress) = self.in_progress.get_mut(&lease) {
            progress.unfinished -= 1;
            self.ready |= progress.unfinished == 0 && progress.commit.is_some();
        }
    }

    /// A shard held a part of a lease already: another worker pushed it, for this clock.
    pub fn held_already(&mut self, lease: LeaseId, clock: Clock) {
        if let Some(progress) = self.in_progress.get_mut(&lease) {
            progress.counts_in = progress.counts_in.max(clock);
        }
    }

    /// The program has finished a lease in this clock. Returns parts that tell shards the remaining
    /// examples. Each is a push that must be [finished](Self::finished), too.
    pub fn done(&mut self, lease: LeaseId, clock: Clock, work: WorkReport) -> Vec<LastPart> {
        let progress = self.in_progress.entry(lease).or_default();
        let mut last = Vec::new();
        for (table, shards) in &mut progress.shards {
            for (shard, (next, untold)) in shards.iter_mut().enumerate().filter(|(_, (_, untold))| *untold > 0) {
                let id = LeasedPart { set: lease.set, lease: lease.number, part: *next };
                last.push(LastPart { table: *table, shard, id, examples: std::mem::take(untold) });
            }
        }
        progress.unfinished += last.len();
        progress.commit = Some(Commit { clock, work, sent: false });
        self.ready = true;
        self.in_commit = true;
        last
    }

    /// The commits of leases that are finished and acknowledged, each once.
    pub fn take_commits(&mut self) -> Vec<Control> {
        let mut commits = Vec::new();
        if !std::mem::take(&mut self.ready) {
            return commits;
        }
        for (lease, progress) in self.in_progress.iter_mut().filter(|(_, progress)| progress.unfinished == 0) {
            if let Some(commit) = progress.commit.as_mut().filter(|commit| !commit.sent) {
                // The lease is done in the clock in which its last part counts.
                commit.clock = commit.clock.max(progress.counts_in);
                commit.sent = true;
                commits.push(commit.control(*lease));
            }
        }
        commits
    }

    /// Whether the coordinator has confirmed every commit.
    pub fn is_idle(&self) -> bool {
        self.in_progress.values().all(|progress| progress.commit.is_none())
    }

    /// How many leases of a data set are finished but not confirmed as committed.
    pub fn uncommitted(&self, set: u32) -> usize {
        let in_progress = self.in_progress.iter().filter(|(lease, _)| lease.set == set);
        in_progress.filter(|(_, progress)| progress.commit.is_some()).count()
    }

    /// Why the coordinator refused commits, since the last call.
    pub fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// The program or the worker has ended a clock.
    pub fn clock_ended(&mut self) {
        self.in_commit = false;
    }

    /// One message for each data set of which this worker holds leases. The message's head tells
    /// the coordinator the worker's clock, for workers that wait for leases.
    pub fn learning(&self) -> impl Iterator<Item = Control> + '_ {
        let learning = self.sets.iter().filter(|(_, state)| !state.held.is_empty());
        learning.map(|(set, _)| Control::Learning { set: *set })
    }

    /// The clock up to which the worker ends clocks as the others do. `None` while it has leases to
    /// learn from, or while the program has yet to end the clock of its last lease.
    pub fn follows(&self) -> Option<Clock> {
        if self.in_commit || self.sets.values().any(|state| !state.held.is_empty()) {
            return None;
        }
        let waits = |state: &&DataSet| matches!(state.asking, Asking::Yes | Asking::Over);
        self.sets.values().filter(waits).map(|state| state.follow).max()
    }

    /// Every request that the coordinator has not answered, to send again.
    pub fn unanswered(&self) -> Vec<Control> {
        let open =
            |(name, terms): (&String, &LeaseTerms)| Control::OpenLeases { name: name.clone(), terms: terms.clone() };
        let mut unanswered: Vec<Control> = self.asked.iter().map(open).collect();
        for (&set, state) in self.sets.iter().filter(|(_, state)| state.asking == Asking::Yes) {
            if state.end == End::Said {
                unanswered.push(Control::EndLeases { set });
            }
            unanswered.push(Control::AskLeases { set, number: state.asked, wanted: state.wanted });
        }
        for (lease, progress) in &self.in_progress {
            unanswered.extend(progress.commit.filter(|commit| commit.sent).map(|commit| commit.control(*lease)));
        }
        unanswered.extend(self.learning());
        unanswered
    }
}

/// Messages of the coordinator.
impl DataLeases {
    /// The coordinator has opened a data set, or says why it cannot.
    pub fn answer_open(&mut self, name: String, set: Result<u32, String>) {
        if self.asked.remove(&name).is_none() {
            return;
        }
        if let Ok(set) = set {
            self.sets.entry(set).or_default();
        }
        self.opened.insert(name, set);
    }

    /// The coordinator grants leases.
    pub fn granted(&mut self, set: u32, number: u64, leases: Vec<u64>, share: u32) {
        // A worker that has ended the data set says so again, which gives back these leases.
        let answered = self.answer(set, number).filter(|state| state.end != End::Said);
        let Some(state) = answered else { return };
        let fresh: Vec<u64> = leases.into_iter().filter(|lease| !state.known.contains(lease)).collect();
        if fresh.is_empty() {
            return;
        }
        state.held.extend(&fresh);
        state.asking = Asking::Answered(fresh);
        state.share = share;
    }

    /// Every lease is committed. `clock`: the furthest worker's.
    pub fn over(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
    }

    /// A data set is ended, and no worker holds leases of it any more. `clock`: the furthest
    /// worker's.
    pub fn ended_by_all(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
        state.end = state.end.told();
    }

    /// Another worker has ended a data set.
    pub fn ended_by_another(&mut self, set: u32) {
        if let Some(state) = self.sets.get_mut(&set) {
            state.end = state.end.told();
        }
    }

    /// No lease is left to grant, but other workers hold some. `clock`: the furthest worker's.
    pub fn awaited(&mut self, set: u32, number: u64, clock: Clock, on: Vec<WorkerId>) -> Option<Notice> {
        let state = self.answer(set, number)?;
        state.follow = state.follow.max(clock);
        (!on.is_empty()).then_some(Notice::Leases { on })
    }

    /// The coordinator confirms a commit, or refuses it.
    pub fn committed(&mut self, lease: LeaseId, problem: Option<String>) {
        let commit = self.in_progress.get(&lease).and_then(|progress| progress.commit);
        if commit.is_some_and(|commit| commit.sent) {
            self.in_progress.remove(&lease);
            self.sets.get_mut(&lease.set).map(|state| state.held.remove(&lease.number));
            self.problems.extend(problem);
        }
    }

    /// The data set that an answer is about, if it answers the last request.
    fn answer(&mut self, set: u32, number: u64) -> Option<&mut DataSet> {
        self.sets.get_mut(&set).filter(|state| state.asking == Asking::Yes && state.asked == number)
    }
}

impl Commit {
    fn control(self, lease: LeaseId) -> Control {
        let WorkReport { examples, busy } = self.work;
        Control::CommitLease { set: lease.set, lease: lease.number, clock: self.clock, examples, busy }
    }
}

impl End {
    fn told(self) -> Self {
        if self == Self::No { Self::Told } else { self }
    }
}

#[cfg(test)]
mod tests;
