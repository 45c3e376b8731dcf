//! Data leases of a worker: asked for, learnt from, and committed when every push made for them is
//! acknowledged.
//!
//! Parts of pushes made for a data lease are numbered from the lease alone, which makes pushes
//! idempotent: for each shard of each table they count from 0, in the order in which the program
//! pushes. A second run of the lease by another worker gives its parts the same ids, and shards
//! skip the parts that they hold. Examples go along with the parts. Those of minibatches without a
//! part for a shard go with the next part for it, or with an empty one at the end, never with the
//! end of a clock, which another run may have elsewhere.

use crate::{Notice, TableFailure};
use lease::{LeaseId, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use types::{Clock, TableId, WorkerId};
use wire::{Control, LeaseTerms, LeasedPart};

/// Data leases that a worker was granted.
///
/// ```
/// use worker::LeaseGrant;
///
/// let over = LeaseGrant { leases: Vec::new(), share: 8 };
/// assert!(over.is_over());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Those that are new, in the order of granting; none when every lease of the data set is
    /// committed.
    pub leases: Vec<u64>,
    /// Minibatches to put into each clock from now on.
    pub share: u32,
}

impl LeaseGrant {
    /// Whether every lease of the data set is committed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.leases.is_empty()
    }
}

/// Where a worker stands with a data set.
#[derive(Debug, Default)]
struct DataSet {
    /// How often it has asked, and for how many leases.
    asked: u64,
    wanted: u64,
    asking: Asking,
    /// Granted and not committed.
    held: BTreeSet<u64>,
    /// Those that it knew of when it asked last.
    known: BTreeSet<u64>,
    share: u32,
    /// As far as this it ends clocks while it waits.
    follow: Clock,
    end: End,
}

/// Whether a data set is ended before all of it is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum End {
    #[default]
    No,
    /// Some worker has ended it, and this one is to learn no more.
    Told,
    /// This worker learns no more.
    Said,
}

#[derive(Debug, Default, PartialEq)]
enum Asking {
    #[default]
    No,
    /// And has not been answered.
    Yes,
    Answered(Vec<u64>),
    Over,
}

/// A lease that is being learnt from.
#[derive(Debug, Default)]
struct LeaseProgress {
    /// By table and shard: parts so far, and examples that the shard will be told of with the next.
    shards: BTreeMap<TableId, Vec<(u64, u64)>>,
    /// Pushes that are not acknowledged.
    unfinished: usize,
    /// The last clock in which a part of it counts that another worker, ahead of this one, had
    /// pushed.
    counts_in: Clock,
    /// When it is done.
    commit: Option<Commit>,
}

#[derive(Clone, Copy, Debug)]
struct Commit {
    clock: Clock,
    work: WorkReport,
    sent: bool,
}

/// The state of a worker's data leases.
#[derive(Debug, Default)]
pub(crate) struct DataLeases {
    asked: BTreeMap<String, LeaseTerms>,
    opened: BTreeMap<String, Result<u32, String>>,
    sets: BTreeMap<u32, DataSet>,
    in_progress: BTreeMap<LeaseId, LeaseProgress>,
    /// Whether some commit may be sent by now.
    ready: bool,
    /// Whether the program has said that a lease is done, and has neither ended its clock nor
    /// looked for others since: that clock is the program's to end.
    in_commit: bool,
    problems: Vec<String>,
}

/// One part of a push made for a data lease.
pub(crate) struct LeasedPushPart {
    pub rows: Range<usize>,
    pub id: LeasedPart,
    pub examples: u64,
}

/// The last part of a lease for a shard: it has no rows, and brings examples.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastPart {
    pub table: TableId,
    pub shard: usize,
    pub id: LeasedPart,
    pub examples: u64,
}

impl DataLeases {
    /// Leases a data set by name.
    pub fn open(&mut self, name: &str, terms: LeaseTerms) -> Control {
        self.opened.remove(name);
        self.asked.insert(name.to_owned(), terms.clone());
        Control::OpenLeases { name: name.to_owned(), terms }
    }

    /// The number of a data set, or why it cannot be leased, once that is answered.
    pub fn opened(&self, name: &str) -> Option<&Result<u32, String>> {
        self.opened.get(name)
    }

    /// Asks for leases of a data set, unless that has been asked and not answered.
    pub fn ask(&mut self, set: u32, wanted: u64) -> Option<Control> {
        let state = self.sets.get_mut(&set).filter(|state| state.asking == Asking::No)?;
        state.asked += 1;
        state.wanted = wanted;
        state.asking = Asking::Yes;
        state.known = state.held.clone();
        Some(Control::AskLeases { set, number: state.asked, wanted })
    }

    /// What the last question for leases brought to a worker at this clock, once it is answered.
    pub fn take(&mut self, set: u32, clock: Clock) -> Option<LeaseGrant> {
        self.in_commit = false;
        let state = self.sets.get_mut(&set)?;
        match std::mem::take(&mut state.asking) {
            Asking::Answered(leases) => Some(LeaseGrant { leases, share: state.share }),
            Asking::Over => {
                state.asking = Asking::Over;
                // Not before it is where everybody else will be.
                (clock >= state.follow).then_some(LeaseGrant { leases: Vec::new(), share: state.share })
            }
            asking => {
                state.asking = asking;
                None
            }
        }
    }

    /// Whether [`DataLeases::take`] would bring something.
    pub fn has_answer(&self, set: u32, clock: Clock) -> bool {
        self.sets.get(&set).is_some_and(|state| match state.asking {
            Asking::Answered(_) => true,
            Asking::Over => clock >= state.follow,
            Asking::No | Asking::Yes => false,
        })
    }

    /// Ends a data set for all workers: gives back what is held, and takes no more.
    pub fn end(&mut self, set: u32) -> Option<Control> {
        let state = self.sets.get_mut(&set)?;
        state.end = End::Said;
        state.held.clear();
        if matches!(state.asking, Asking::Answered(_)) {
            state.asking = Asking::No;
        }
        Some(Control::EndLeases { set })
    }

    /// Whether some worker, this one or another, has ended a data set before all of it was
    /// committed.
    pub fn is_ended(&self, set: u32) -> bool {
        self.sets.get(&set).is_some_and(|state| state.end != End::No)
    }

    /// Whether this worker may push of a lease, or commit it.
    pub fn check(&self, lease: LeaseId) -> Result<(), TableFailure> {
        let held = self.sets.get(&lease.set).is_some_and(|state| state.held.contains(&lease.number));
        let done = self.in_progress.get(&lease).is_some_and(|progress| progress.commit.is_some());
        if held && !done { Ok(()) } else { Err(TableFailure::NotLeased { lease: lease.number }) }
    }

    /// Numbers the parts of a push made for a lease, which its rows are cut into shard by shard.
    /// The push is to be [finished](Self::finished) before the lease is committed.
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

    /// A push made for a lease is finished.
    pub fn finished(&mut self, lease: LeaseId) {
        if let Some(progress) = self.in_progress.get_mut(&lease) {
            progress.unfinished -= 1;
            self.ready |= progress.unfinished == 0 && progress.commit.is_some();
        }
    }

    /// A part made for a lease was pushed before, by another worker, in this clock.
    pub fn held_already(&mut self, lease: LeaseId, clock: Clock) {
        if let Some(progress) = self.in_progress.get_mut(&lease) {
            progress.counts_in = progress.counts_in.max(clock);
        }
    }

    /// A lease is done, in this clock. Returns the parts that bring shards the examples they were
    /// not told of: each is a push that is to be [finished](Self::finished), too.
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

    /// Commits of those that are done and acknowledged, once.
    pub fn take_commits(&mut self) -> Vec<Control> {
        let mut commits = Vec::new();
        if !std::mem::take(&mut self.ready) {
            return commits;
        }
        for (lease, progress) in self.in_progress.iter_mut().filter(|(_, progress)| progress.unfinished == 0) {
            if let Some(commit) = progress.commit.as_mut().filter(|commit| !commit.sent) {
                // It is done when all of it is in the rows, and not before.
                commit.clock = commit.clock.max(progress.counts_in);
                commit.sent = true;
                commits.push(commit.control(*lease));
            }
        }
        commits
    }

    /// Whether every lease that was done is committed.
    pub fn is_idle(&self) -> bool {
        self.in_progress.values().all(|progress| progress.commit.is_none())
    }

    /// Leases of a data set that are done and not yet known to be committed.
    pub fn uncommitted(&self, set: u32) -> usize {
        let in_progress = self.in_progress.iter().filter(|(lease, _)| lease.set == set);
        in_progress.filter(|(_, progress)| progress.commit.is_some()).count()
    }

    /// Why commits were refused, since the last time.
    pub fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// A clock has ended, and with it what was done in it.
    pub fn clock_ended(&mut self) {
        self.in_commit = false;
    }

    /// Tells those who wait for leases that this worker is learning, and so where its clock is.
    pub fn learning(&self) -> impl Iterator<Item = Control> + '_ {
        let learning = self.sets.iter().filter(|(_, state)| !state.held.is_empty());
        learning.map(|(set, _)| Control::Learning { set: *set })
    }

    /// The clock as far as which to end clocks as the others do, where there is nothing to do until
    /// others are done.
    pub fn follows(&self) -> Option<Clock> {
        if self.in_commit || self.sets.values().any(|state| !state.held.is_empty()) {
            return None;
        }
        let waits = |state: &&DataSet| matches!(state.asking, Asking::Yes | Asking::Over);
        self.sets.values().filter(waits).map(|state| state.follow).max()
    }

    /// Everything that the coordinator has not answered, once more.
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

/// What the coordinator says.
impl DataLeases {
    /// It has opened a data set, or says why not.
    pub fn answer_open(&mut self, name: String, set: Result<u32, String>) {
        if self.asked.remove(&name).is_none() {
            return;
        }
        if let Ok(set) = set {
            self.sets.entry(set).or_default();
        }
        self.opened.insert(name, set);
    }

    /// It grants leases.
    pub fn granted(&mut self, set: u32, number: u64, leases: Vec<u64>, share: u32) {
        // A worker that has ended the data set says so again, and then gives back these leases.
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

    /// Every lease is committed, up to this clock.
    pub fn over(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
    }

    /// A data set is ended, and nobody holds leases of it any more.
    pub fn ended_by_all(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
        state.end = state.end.told();
    }

    /// Some worker has ended a data set.
    pub fn ended_by_another(&mut self, set: u32) {
        if let Some(state) = self.sets.get_mut(&set) {
            state.end = state.end.told();
        }
    }

    /// No lease is left: other workers hold some, and are at this clock.
    pub fn awaited(&mut self, set: u32, number: u64, clock: Clock, on: Vec<WorkerId>) -> Option<Notice> {
        let state = self.answer(set, number)?;
        state.follow = state.follow.max(clock);
        (!on.is_empty()).then_some(Notice::Leases { on })
    }

    /// A lease is committed, or its commit is refused.
    pub fn committed(&mut self, lease: LeaseId, problem: Option<String>) {
        let commit = self.in_progress.get(&lease).and_then(|progress| progress.commit);
        if commit.is_some_and(|commit| commit.sent) {
            self.in_progress.remove(&lease);
            self.sets.get_mut(&lease.set).map(|state| state.held.remove(&lease.number));
            self.problems.extend(problem);
        }
    }

    /// The data set that an answer is about, if it answers the last question.
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
