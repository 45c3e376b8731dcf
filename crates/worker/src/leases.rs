//! Data leases of a worker: asked for, learnt from, and committed when every push made for them is
//! acknowledged.
//!
//! Parts of pushes made for a data lease are numbered from the lease alone, which makes pushes
//! idempotent: for each shard of each table they count from 0, in the order in which the program
//! pushes. A second run of the lease by another worker gives its parts the same ids, and shards
//! skip the parts that they hold. Examples go along with the parts. Those of minibatches without a
//! part for a shard go with the next part for it, or with an empty one at the end, never with the
//! end of a clock, which another run may have elsewhere.

use super::send::message::StreamMessage;
use super::tickets::TicketPurpose;
use super::{Batch, Notice, TableFailure, TicketId, Worker};
use codec::Formats;
use lease::{LeaseId, WorkReport};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use types::{Clock, TableId, Time, WorkerId};
use wire::{Control, Keys, LeaseTerms, LeasedPart, Outbox, Payload};

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

impl DataLeases {
    /// Whether every lease that was done is committed.
    pub fn is_idle(&self) -> bool {
        self.in_progress.values().all(|progress| progress.commit.is_none())
    }

    /// A push is finished.
    pub fn finished(&mut self, lease: LeaseId) {
        if let Some(progress) = self.in_progress.get_mut(&lease) {
            progress.unfinished -= 1;
            self.ready |= progress.unfinished == 0 && progress.commit.is_some();
        }
    }

    /// A push of a lease is to be finished before it is committed.
    fn began(&mut self, lease: LeaseId) {
        self.in_progress.entry(lease).or_default().unfinished += 1;
    }
}

/// One part of a push made for a data lease.
pub(crate) struct LeasedPushPart {
    pub rows: Range<usize>,
    pub id: LeasedPart,
    pub examples: u64,
}

impl Worker {
    /// Leases a data set by name. [`Worker::leases`] tells when it is there.
    pub fn open_leases(&mut self, name: &str, terms: LeaseTerms, out: &mut Outbox) {
        self.leases.opened.remove(name);
        self.control(Control::OpenLeases { name: name.to_owned(), terms: terms.clone() }, out);
        self.leases.asked.insert(name.to_owned(), terms);
    }

    /// The number of a data set, or why it cannot be leased, once the coordinator has answered.
    #[must_use]
    pub fn leases(&self, name: &str) -> Option<&Result<u32, String>> {
        self.leases.opened.get(name)
    }

    /// Asks for leases of a data set, unless that has been asked and not answered.
    /// [`Worker::take_leases`] brings them. Meanwhile a worker without leases ends clocks as the
    /// others do, so that nobody waits for it.
    pub fn ask_leases(&mut self, set: u32, wanted: u64, out: &mut Outbox) {
        let Some(state) = self.leases.sets.get_mut(&set).filter(|state| state.asking == Asking::No) else { return };
        state.asked += 1;
        (state.wanted, state.asking, state.known) = (wanted, Asking::Yes, state.held.clone());
        let number = state.asked;
        self.control(Control::AskLeases { set, number, wanted }, out);
    }

    /// What the last question for leases brought, once it is answered.
    pub fn take_leases(&mut self, set: u32) -> Option<LeaseGrant> {
        self.leases.in_commit = false;
        let state = self.leases.sets.get_mut(&set)?;
        match std::mem::take(&mut state.asking) {
            Asking::Answered(leases) => Some(LeaseGrant { leases, share: state.share }),
            Asking::Over => {
                state.asking = Asking::Over;
                // Not before it is where everybody else will be.
                (self.clock >= state.follow).then_some(LeaseGrant { leases: Vec::new(), share: state.share })
            }
            asking => {
                state.asking = asking;
                None
            }
        }
    }

    /// Whether [`Worker::take_leases`] would bring something.
    #[must_use]
    pub fn has_leases(&self, set: u32) -> bool {
        self.leases.sets.get(&set).is_some_and(|state| match state.asking {
            Asking::Answered(_) => true,
            Asking::Over => self.clock >= state.follow,
            Asking::No | Asking::Yes => false,
        })
    }

    /// Ends a data set for all workers: the leases that this worker holds are given back, and not
    /// granted again. Call it when no lease is [uncommitted](Self::uncommitted). Then ask for
    /// leases: the answer comes when no worker holds any.
    pub fn end_leases(&mut self, set: u32, out: &mut Outbox) {
        let Some(state) = self.leases.sets.get_mut(&set) else { return };
        state.end = End::Said;
        state.held.clear();
        if matches!(state.asking, Asking::Answered(_)) {
            state.asking = Asking::No;
        }
        self.control(Control::EndLeases { set }, out);
    }

    /// Whether some worker, this one or another, has ended a data set before all of it was
    /// committed.
    #[must_use]
    pub fn leases_ended(&self, set: u32) -> bool {
        self.leases.sets.get(&set).is_some_and(|state| state.end != End::No)
    }

    /// A lease is done, in this clock: everything learnt from it was pushed. It is committed when
    /// all of that is acknowledged. `work` is what was done since the last commit.
    pub fn commit_lease(
        &mut self,
        now: Time,
        lease: LeaseId,
        work: WorkReport,
        out: &mut Outbox,
    ) -> Result<(), TableFailure> {
        self.check_lease(lease)?;
        let progress = self.leases.in_progress.entry(lease).or_default();
        let mut last: Vec<(TableId, usize, LeasedPart, u64)> = Vec::new();
        for (table, shards) in &mut progress.shards {
            for (shard, (next, untold)) in shards.iter_mut().enumerate().filter(|(_, (_, untold))| *untold > 0) {
                let id = LeasedPart { set: lease.set, lease: lease.number, part: *next };
                last.push((*table, shard, id, std::mem::take(untold)));
            }
        }
        progress.commit = Some(Commit { clock: self.clock, work, sent: false });
        for (table, shard, id, examples) in last {
            let purpose = TicketPurpose { lease: Some(lease), ..TicketPurpose::of(table) };
            let ticket = self.tickets.open(purpose, 1);
            self.tickets.detach(ticket);
            self.leases.began(lease);
            let keys = Keys::run(0..0).slice(0..0);
            let (values, formats) = (Payload::EMPTY, Formats::default());
            let writes = wire::Writes::Gradients { lease: Some(id) };
            let message = StreamMessage::Push { ticket, keys, values, formats, plain: None, writes };
            self.send_push(now, table, shard, message, Some(examples), 0.0, out);
        }
        (self.leases.ready, self.leases.in_commit) = (true, true);
        self.proceed(now, out);
        Ok(())
    }

    /// Why commits were refused, since the last time.
    pub fn take_lease_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.leases.problems)
    }

    /// Leases of a data set that are done and not yet known to be committed.
    #[must_use]
    pub fn uncommitted(&self, set: u32) -> usize {
        let in_progress = self.leases.in_progress.iter().filter(|(lease, _)| lease.set == set);
        in_progress.filter(|(_, progress)| progress.commit.is_some()).count()
    }

    /// Whether this worker may push of a lease, or commit it.
    pub(crate) fn check_lease(&self, lease: LeaseId) -> Result<(), TableFailure> {
        let held = self.leases.sets.get(&lease.set).is_some_and(|state| state.held.contains(&lease.number));
        let done = self.leases.in_progress.get(&lease).is_some_and(|progress| progress.commit.is_some());
        if held && !done { Ok(()) } else { Err(TableFailure::NotLeased { lease: lease.number }) }
    }

    /// Numbers the parts of a push made for a data lease, in the order in which pushes are asked
    /// for. They do not depend on how much may be sent.
    pub(crate) fn number_leased_parts(&mut self, table: TableId, batch: &Batch) -> Vec<LeasedPushPart> {
        let (Some(lease), Some(known)) = (batch.lease, self.tables.get(&table)) else { return Vec::new() };
        let rows = batch.keys.rows_per_part(known.spec.number, known.spec.width);
        let by_shard: Vec<Vec<Range<usize>>> =
            known.streams.iter().map(|stream| batch.keys.parts(stream.range(), rows)).collect();
        self.leases.began(lease);
        let Some(progress) = self.leases.in_progress.get_mut(&lease) else { return Vec::new() };
        let counts = progress.shards.entry(table).or_insert_with(|| vec![(0, 0); by_shard.len()]);
        let mut parts = Vec::new();
        for ((next, untold), ranges) in counts.iter_mut().zip(by_shard) {
            *untold = untold.saturating_add(batch.examples);
            for rows in ranges {
                let id = LeasedPart { set: lease.set, lease: lease.number, part: *next };
                *next += 1;
                parts.push(LeasedPushPart { rows, id, examples: std::mem::take(untold) });
            }
        }
        parts
    }

    /// The coordinator has opened a data set, or says why not.
    pub(crate) fn leases_opened(&mut self, name: String, set: Result<u32, String>) {
        if self.leases.asked.remove(&name).is_none() {
            return;
        }
        if let Ok(set) = set {
            self.leases.sets.entry(set).or_default();
        }
        self.leases.opened.insert(name, set);
    }

    /// The coordinator grants leases.
    pub(crate) fn leased(&mut self, set: u32, number: u64, leases: Vec<u64>, share: u32) {
        // A worker that has ended the data set says so again, and then gives back these leases.
        let answered = self.leases.answer(set, number).filter(|state| state.end != End::Said);
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
    pub(crate) fn leases_over(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.leases.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
    }

    /// A data set is ended, and nobody holds leases of it any more.
    pub(crate) fn leases_ended_by_all(&mut self, set: u32, number: u64, clock: Clock) {
        let Some(state) = self.leases.answer(set, number) else { return };
        state.asking = Asking::Over;
        state.follow = state.follow.max(clock);
        state.end = state.end.told();
    }

    /// Some worker has ended a data set.
    pub(crate) fn leases_ended_by_another(&mut self, set: u32) {
        if let Some(state) = self.leases.sets.get_mut(&set) {
            state.end = state.end.told();
        }
    }

    /// No lease is left: other workers hold some, and are at this clock.
    pub(crate) fn leases_awaited(&mut self, set: u32, number: u64, clock: Clock, on: Vec<WorkerId>) {
        let Some(state) = self.leases.answer(set, number) else { return };
        state.follow = state.follow.max(clock);
        if !on.is_empty() {
            self.notices.push(Notice::Leases { on });
        }
    }

    /// A lease is committed, or its commit is refused.
    pub(crate) fn lease_committed(&mut self, lease: LeaseId, problem: Option<String>) {
        let commit = self.leases.in_progress.get(&lease).and_then(|progress| progress.commit);
        if commit.is_some_and(|commit| commit.sent) {
            self.leases.in_progress.remove(&lease);
            self.leases.sets.get_mut(&lease.set).map(|state| state.held.remove(&lease.number));
            self.leases.problems.extend(problem);
        }
    }

    /// Commits what is acknowledged.
    pub(crate) fn send_commits(&mut self, out: &mut Outbox) {
        if !std::mem::take(&mut self.leases.ready) {
            return;
        }
        let mut commits = Vec::new();
        for (lease, progress) in self.leases.in_progress.iter_mut().filter(|(_, progress)| progress.unfinished == 0) {
            if let Some(commit) = progress.commit.as_mut().filter(|commit| !commit.sent) {
                // It is done when all of it is in the rows, and not before.
                commit.clock = commit.clock.max(progress.counts_in);
                commit.sent = true;
                commits.push((*lease, *commit));
            }
        }
        commits.into_iter().for_each(|(lease, commit)| self.say_commit(lease, commit, out));
    }

    /// A part made for a lease was pushed before, in this clock.
    pub(crate) fn already_held(&mut self, ticket: TicketId, clock: Clock) {
        let lease = self.tickets.purpose(ticket).and_then(|purpose| purpose.lease);
        if let Some(progress) = lease.and_then(|lease| self.leases.in_progress.get_mut(&lease)) {
            progress.counts_in = progress.counts_in.max(clock);
        }
    }

    fn say_commit(&self, lease: LeaseId, Commit { clock, work, .. }: Commit, out: &mut Outbox) {
        let WorkReport { examples, busy } = work;
        self.control(Control::CommitLease { set: lease.set, lease: lease.number, clock, examples, busy }, out);
    }

    /// A clock has ended, and with it what was done in it.
    pub(crate) fn clock_ended(&mut self, out: &mut Outbox) {
        self.leases.in_commit = false;
        self.say_learning(out);
    }

    /// Those who wait for leases follow this worker's clock.
    fn say_learning(&self, out: &mut Outbox) {
        let learning = self.leases.sets.iter().filter(|(_, state)| !state.held.is_empty());
        learning.for_each(|(set, _)| self.control(Control::Learning { set: *set }, out));
    }

    /// Ends clocks as far as the others have come, if there is nothing to do until others are done.
    pub(crate) fn follow(&mut self, now: Time, out: &mut Outbox) {
        if self.leases.in_commit || self.leases.sets.values().any(|state| !state.held.is_empty()) {
            return;
        }
        let waits = |state: &&DataSet| matches!(state.asking, Asking::Yes | Asking::Over);
        let Some(furthest) = self.leases.sets.values().filter(waits).map(|state| state.follow).max() else { return };
        while self.clock < furthest && self.is_flushed() && !self.left {
            self.close_clock(now, out);
        }
    }

    /// Says again what the coordinator has not answered.
    pub(crate) fn ask_leases_again(&self, out: &mut Outbox) {
        for (name, terms) in &self.leases.asked {
            self.control(Control::OpenLeases { name: name.clone(), terms: terms.clone() }, out);
        }
        for (set, state) in self.leases.sets.iter().filter(|(_, state)| state.asking == Asking::Yes) {
            if state.end == End::Said {
                self.control(Control::EndLeases { set: *set }, out);
            }
            self.control(Control::AskLeases { set: *set, number: state.asked, wanted: state.wanted }, out);
        }
        for (lease, progress) in &self.leases.in_progress {
            if let Some(commit) = progress.commit.filter(|commit| commit.sent) {
                self.say_commit(*lease, commit, out);
            }
        }
        self.say_learning(out);
    }
}

impl End {
    fn told(self) -> Self {
        if self == Self::No { Self::Told } else { self }
    }
}

impl DataLeases {
    /// The data set that an answer is about, if it answers the last question.
    fn answer(&mut self, set: u32, number: u64) -> Option<&mut DataSet> {
        self.sets.get_mut(&set).filter(|state| state.asking == Asking::Yes && state.asked == number)
    }
}

#[cfg(test)]
mod tests;
