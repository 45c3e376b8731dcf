//! The kinds of faults, the schedule that deals them from a seed, and how long the run took to
//! recover from each.

use std::collections::VecDeque;
use std::mem::discriminant;

use crate::measure::{Report, median};
use types::SplitMix64;

/// The kind of process that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Worker,
}

/// A fault that is injected into a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process is killed.
    Kill(Role),
    /// A process falls silent for longer than the failure timeout, and then comes back.
    Silence(Role, Silence),
    /// The coordinator is stopped for longer than the failure timeout, and then goes on.
    Stall,
    /// Busy processes compete with all nodes for the processors.
    Starve,
    /// A link loses all frames in one direction for longer than the failure timeout.
    OneWay(Direction),
    /// A process is killed while servers do long work.
    KillAmid(LongWork),
}

/// How a process falls silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is stopped by a signal.
    Stop,
    /// Its host is cut off from the network.
    Cut,
}

/// The direction of a link that loses its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToCoordinator(Role),
    FromCoordinator(Role),
    ServerToServer,
    ServerToWorker,
    WorkerToServer,
}

/// Work on the large table that servers do in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongWork {
    /// The table is made. A server is killed meanwhile.
    Making,
    /// The shards of a killed server are backfilled. A worker is killed meanwhile.
    Backfill,
    /// A checkpoint is made. A server or a worker is killed meanwhile.
    Checkpoint,
}

/// Every kind of fault and how often it is among the dealt ones. Silence takes longer than a kill,
/// so it is dealt less often. The table can be made only once: see [`Schedule::first`].
const KINDS: [(Fault, usize); 18] = [
    (Fault::Kill(Role::Server), 2),
    (Fault::Kill(Role::Worker), 2),
    (Fault::Silence(Role::Server, Silence::Stop), 1),
    (Fault::Silence(Role::Worker, Silence::Stop), 1),
    (Fault::Silence(Role::Server, Silence::Cut), 1),
    (Fault::Silence(Role::Worker, Silence::Cut), 1),
    (Fault::Stall, 1),
    (Fault::Starve, 1),
    (Fault::OneWay(Direction::ToCoordinator(Role::Server)), 1),
    (Fault::OneWay(Direction::ToCoordinator(Role::Worker)), 1),
    (Fault::OneWay(Direction::FromCoordinator(Role::Server)), 1),
    (Fault::OneWay(Direction::FromCoordinator(Role::Worker)), 1),
    (Fault::OneWay(Direction::ServerToServer), 1),
    (Fault::OneWay(Direction::ServerToWorker), 1),
    (Fault::OneWay(Direction::WorkerToServer), 1),
    (Fault::KillAmid(LongWork::Making), 0),
    (Fault::KillAmid(LongWork::Backfill), 1),
    (Fault::KillAmid(LongWork::Checkpoint), 2),
];

/// Which faults a run can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    /// Whether hosts can be cut off.
    pub(crate) network: bool,
    /// Whether the run has a large table and makes checkpoints.
    pub(crate) large: bool,
}

impl Fault {
    /// The fault of this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = KINDS.into_iter().map(|(kind, _)| kind).find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("not one of {}", KINDS.map(|(kind, _)| kind.name()).join(", ")))
    }

    /// Whether a run with these means can have the fault.
    fn is_possible(self, means: Means) -> bool {
        match self {
            Self::Kill(_) | Self::Silence(_, Silence::Stop) | Self::Stall | Self::Starve => true,
            Self::Silence(_, Silence::Cut) | Self::OneWay(_) => means.network,
            Self::KillAmid(_) => means.large,
        }
    }

    /// The fault's name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill(Role::Server) => "server_kill",
            Self::Kill(Role::Worker) => "worker_kill",
            Self::Silence(Role::Server, Silence::Stop) => "server_stop",
            Self::Silence(Role::Worker, Silence::Stop) => "worker_stop",
            Self::Silence(Role::Server, Silence::Cut) => "server_cut",
            Self::Silence(Role::Worker, Silence::Cut) => "worker_cut",
            Self::Stall => "coordinator_stall",
            Self::Starve => "starvation",
            Self::OneWay(direction) => match direction {
                Direction::ToCoordinator(Role::Server) => "server_to_coordinator_drop",
                Direction::ToCoordinator(Role::Worker) => "worker_to_coordinator_drop",
                Direction::FromCoordinator(Role::Server) => "coordinator_to_server_drop",
                Direction::FromCoordinator(Role::Worker) => "coordinator_to_worker_drop",
                Direction::ServerToServer => "server_to_server_drop",
                Direction::ServerToWorker => "server_to_worker_drop",
                Direction::WorkerToServer => "worker_to_server_drop",
            },
            Self::KillAmid(LongWork::Making) => "making_kill",
            Self::KillAmid(LongWork::Backfill) => "backfill_kill",
            Self::KillAmid(LongWork::Checkpoint) => "checkpoint_kill",
        }
    }
}

/// Deals faults in an order that follows from the seed alone, like cards: every round has each
/// possible kind as often as its weight says, and begins with one kind of each variant.
pub(crate) struct Schedule {
    means: Means,
    /// The only kinds to deal, if there are any; they are dealt if the run can have them.
    only: Vec<Fault>,
    random: SplitMix64,
    dealt: VecDeque<Fault>,
}

impl Schedule {
    pub(crate) fn new(means: Means, seed: u64) -> Self {
        Self { means, only: Vec::new(), random: SplitMix64::new(seed), dealt: VecDeque::new() }
    }

    /// Deals these kinds only, if the run can have any of them.
    pub(crate) fn only(mut self, kinds: &[Fault]) -> Self {
        let means = self.means;
        let is_dealt = |kind: &&Fault| KINDS.iter().any(|(dealt, weight)| dealt == *kind && *weight > 0);
        self.only = kinds.iter().filter(is_dealt).filter(|kind| kind.is_possible(means)).copied().collect();
        self
    }

    /// As [`Schedule::new`], for a run that has yet to make its large table, if it has one: that is
    /// disturbed first.
    pub(crate) fn first(means: Means, seed: u64) -> Self {
        let making = Fault::KillAmid(LongWork::Making);
        let dealt = means.large.then_some(making).into_iter().collect();
        Self { dealt, ..Self::new(means, seed) }
    }

    pub(crate) fn next_fault(&mut self) -> Fault {
        loop {
            match self.dealt.pop_front() {
                Some(fault) => return fault,
                None => self.deal(),
            }
        }
    }

    /// A random number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn deal(&mut self) {
        let possible = KINDS.into_iter().filter(|(fault, _)| {
            if self.only.is_empty() { fault.is_possible(self.means) } else { self.only.contains(fault) }
        });
        let mut faults: Vec<Fault> = possible.flat_map(|(fault, weight)| std::iter::repeat_n(fault, weight)).collect();
        // Fisher–Yates.
        for last in (1..faults.len()).rev() {
            let chosen = self.below(last + 1);
            faults.swap(chosen, last);
        }
        let is_first = |at: usize| faults[..at].iter().all(|before| discriminant(before) != discriminant(&faults[at]));
        let (first, rest): (Vec<usize>, Vec<usize>) = (0..faults.len()).partition(|at| is_first(*at));
        self.dealt.extend(first.into_iter().chain(rest).map(|at| faults[at]));
    }
}

/// The faults of a run: each with the seconds until the run went on.
#[derive(Debug)]
pub(crate) struct Faults {
    means: Means,
    happened: Vec<(Fault, f64)>,
}

impl Faults {
    pub(crate) fn new(means: Means) -> Self {
        Self { means, happened: Vec::new() }
    }

    pub(crate) fn add(&mut self, fault: Fault, seconds: f64) {
        self.happened.push((fault, seconds));
    }

    fn seconds(&self, kind: Fault) -> Vec<f64> {
        self.happened.iter().filter(|(fault, _)| *fault == kind).map(|(_, seconds)| *seconds).collect()
    }

    fn possible(&self) -> impl Iterator<Item = Fault> {
        let means = self.means;
        KINDS.into_iter().map(|(kind, _)| kind).filter(move |kind| kind.is_possible(means))
    }

    /// Reports how many faults there were of each kind, under names that begin with `begin`.
    /// One-way links are counted in total, too: zero where the run has no network.
    pub(crate) fn report_counts(&self, report: &mut Report, begin: &str) {
        for kind in self.possible() {
            report.number(&format!("{begin}{}s", kind.name()), self.seconds(kind).len() as f64);
        }
        let one_way = self.happened.iter().filter(|(fault, _)| matches!(fault, Fault::OneWay(_))).count();
        report.number(&format!("{begin}one_way_links"), one_way as f64);
    }

    /// Reports how many faults there were of each kind, and the median and worst seconds until the
    /// run went on.
    pub(crate) fn report(&self, report: &mut Report) {
        self.report_counts(report, "");
        for kind in self.possible() {
            let mut seconds = self.seconds(kind);
            let name = kind.name();
            let worst = seconds.iter().copied().fold(f64::NAN, f64::max);
            let typical = if seconds.is_empty() { f64::NAN } else { median(&mut seconds) };
            report.number(&format!("{name}_to_next_ack_median_s"), typical);
            report.number(&format!("{name}_to_next_ack_worst_s"), worst);
        }
    }
}

/// What faults did that kill no process by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Nodes that were expelled or gave up while they were starved.
    pub(crate) expelled_by_starvation: u64,
    /// Nodes that were expelled or gave up because of a one-way link.
    pub(crate) expelled_by_one_way_links: u64,
    /// Segments that hosts sent over one-way links and had to send again.
    pub(crate) segments_on_one_way_links: u64,
}

impl Tally {
    /// Reports the counts, under names that begin with `begin`.
    pub(crate) fn report(self, report: &mut Report, begin: &str) {
        let Self { expelled_by_starvation, expelled_by_one_way_links, segments_on_one_way_links } = self;
        report.number(&format!("{begin}expelled_by_starvation"), expelled_by_starvation as f64);
        report.number(&format!("{begin}expelled_by_one_way_links"), expelled_by_one_way_links as f64);
        report.number(&format!("{begin}segments_resent_on_one_way_links"), segments_on_one_way_links as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Means = Means { network: true, large: true };

    fn dealt(means: Means, seed: u64) -> Vec<Fault> {
        let mut schedule = Schedule::first(means, seed);
        (0..100).map(|_| schedule.next_fault()).collect()
    }

    #[test]
    fn schedule_deals_every_possible_kind_and_no_other() {
        for means in [(true, true), (true, false), (false, true), (false, false)] {
            let means = Means { network: means.0, large: means.1 };
            let faults = dealt(means, 1);
            for (kind, _) in KINDS {
                assert_eq!(faults.contains(&kind), kind.is_possible(means), "{kind:?} with {means:?}");
            }
        }
    }

    #[test]
    fn schedule_deals_chosen_kinds_only() {
        let mut schedule = Schedule::new(ALL, 1).only(&[Fault::Stall, Fault::Starve]);
        let faults: Vec<_> = (0..20).map(|_| schedule.next_fault()).collect();
        assert!(faults.iter().all(|fault| [Fault::Stall, Fault::Starve].contains(fault)), "{faults:?}");
        let without = Means { network: false, large: false };
        let mut schedule = Schedule::new(without, 1).only(&[Fault::OneWay(Direction::ServerToServer)]);
        assert!(schedule.next_fault().is_possible(without), "another kind, because this one is impossible");
    }

    #[test]
    fn schedule_follows_from_the_seed_alone() {
        assert_eq!(dealt(ALL, 7), dealt(ALL, 7));
        assert_ne!(dealt(ALL, 7), dealt(ALL, 8));
    }

    #[test]
    fn schedule_makes_the_table_once_and_then_has_each_variant_early() {
        for seed in 0..20 {
            let faults = dealt(ALL, seed);
            let making = Fault::KillAmid(LongWork::Making);
            assert_eq!(faults[0], making);
            assert!(!faults[1..].contains(&making));
            for (kind, _) in KINDS {
                assert!(faults[1..7].iter().any(|fault| discriminant(fault) == discriminant(&kind)), "{kind:?}");
            }
        }
    }

    #[test]
    fn names_of_faults_differ() {
        let names: std::collections::BTreeSet<_> = KINDS.iter().map(|(kind, _)| kind.name()).collect();
        assert_eq!(names.len(), KINDS.len());
        assert!(KINDS.iter().all(|(kind, _)| Fault::named(kind.name()) == Ok(*kind)));
        assert!(Fault::named("flood").is_err());
    }
}
