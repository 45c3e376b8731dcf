//! The kinds of faults, how often each is drawn, and how long the run took to recover from each.

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
}

/// How a process falls silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is stopped by a signal.
    Stop,
    /// Its host is cut off from the network.
    Cut,
}

/// Every kind of fault and its weight in drawing. Silence takes longer, so it is drawn less often.
const KINDS: [(Fault, u64); 6] = [
    (Fault::Kill(Role::Server), 3),
    (Fault::Kill(Role::Worker), 3),
    (Fault::Silence(Role::Server, Silence::Stop), 1),
    (Fault::Silence(Role::Worker, Silence::Stop), 1),
    (Fault::Silence(Role::Server, Silence::Cut), 1),
    (Fault::Silence(Role::Worker, Silence::Cut), 1),
];

impl Fault {
    /// Draws a fault by weight; without `cuts`, one that cuts off no host.
    pub(crate) fn draw(random: &mut SplitMix64, cuts: bool) -> Self {
        let kinds = || KINDS.iter().filter(|(fault, _)| cuts || !fault.is_cut());
        let mut drawn = random.below(kinds().map(|(_, weight)| weight).sum());
        for (fault, weight) in kinds() {
            match drawn.checked_sub(*weight) {
                Some(rest) => drawn = rest,
                None => return *fault,
            }
        }
        KINDS[0].0
    }

    fn is_cut(self) -> bool {
        matches!(self, Self::Silence(_, Silence::Cut))
    }

    /// The fault's name in figures.
    fn name(self) -> String {
        let (role, what) = match self {
            Self::Kill(role) => (role, "kill"),
            Self::Silence(role, Silence::Stop) => (role, "stop"),
            Self::Silence(role, Silence::Cut) => (role, "cut"),
        };
        format!("{}_{what}", if role == Role::Server { "server" } else { "worker" })
    }
}

/// The faults of a run: each with the seconds until the run went on.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(Fault, f64)>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault, seconds: f64) {
        self.0.push((fault, seconds));
    }

    fn seconds(&self, kind: Fault) -> Vec<f64> {
        self.0.iter().filter(|(fault, _)| *fault == kind).map(|(_, seconds)| *seconds).collect()
    }

    /// Reports how many faults there were of each kind, under names that begin with `begin`.
    pub(crate) fn report_counts(&self, report: &mut Report, begin: &str, cuts: bool) {
        for (kind, _) in KINDS.iter().filter(|(kind, _)| cuts || !kind.is_cut()) {
            report.number(&format!("{begin}{}s", kind.name()), self.seconds(*kind).len() as f64);
        }
    }

    /// Reports how many faults there were of each kind, and the median and worst seconds until the
    /// run went on.
    pub(crate) fn report(&self, report: &mut Report, cuts: bool) {
        self.report_counts(report, "", cuts);
        for (kind, _) in KINDS.iter().filter(|(kind, _)| cuts || !kind.is_cut()) {
            let mut seconds = self.seconds(*kind);
            let name = kind.name();
            let worst = seconds.iter().copied().fold(f64::NAN, f64::max);
            let typical = if seconds.is_empty() { f64::NAN } else { median(&mut seconds) };
            report.number(&format!("{name}_to_next_ack_median_s"), typical);
            report.number(&format!("{name}_to_next_ack_worst_s"), worst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_gives_every_kind_and_cuts_only_if_allowed() {
        let mut random = SplitMix64::new(1);
        let mut draw = |cuts| (0..300).map(|_| Fault::draw(&mut random, cuts)).collect::<Vec<_>>();
        let with = draw(true);
        let without = draw(false);
        for (kind, _) in KINDS {
            assert!(with.contains(&kind), "{kind:?}");
            assert_eq!(without.contains(&kind), !kind.is_cut(), "{kind:?}");
        }
    }
}
