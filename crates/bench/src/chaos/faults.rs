//! What goes wrong: each kind of fault, how often it is drawn, and how long it took until things
//! went on.

use crate::measure::{Report, median};
use types::SplitMix64;

/// Whom something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Worker,
}

/// Something that goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process is killed.
    Kill(Role),
    /// A process falls silent for longer than the failure timeout, and then comes back.
    Silence(Role, Silence),
}

/// Why nothing is heard of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is stopped.
    Stop,
    /// Its host is cut off.
    Cut,
}

/// Every kind, and how many of ten or so are of it: silence takes longer, and is drawn less often.
const KINDS: [(Fault, u64); 6] = [
    (Fault::Kill(Role::Server), 3),
    (Fault::Kill(Role::Worker), 3),
    (Fault::Silence(Role::Server, Silence::Stop), 1),
    (Fault::Silence(Role::Worker, Silence::Stop), 1),
    (Fault::Silence(Role::Server, Silence::Cut), 1),
    (Fault::Silence(Role::Worker, Silence::Cut), 1),
];

impl Fault {
    /// One of them; hosts are cut off only where that can be.
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

    /// As it is called in figures.
    fn name(self) -> String {
        let (role, what) = match self {
            Self::Kill(role) => (role, "kill"),
            Self::Silence(role, Silence::Stop) => (role, "stop"),
            Self::Silence(role, Silence::Cut) => (role, "cut"),
        };
        format!("{}_{what}", if role == Role::Server { "server" } else { "worker" })
    }
}

/// The faults of a run: of each, how many seconds it took until things went on.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(Fault, f64)>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault, seconds: f64) {
        self.0.push((fault, seconds));
    }

    fn seconds(&self, kind: Fault) -> Vec<f64> {
        self.0.iter().filter(|(fault, _)| *fault == kind).map(|(_, seconds)| *seconds).collect()
    }

    /// Reports how many there were of each kind, under names that begin so.
    pub(crate) fn report_counts(&self, report: &mut Report, begin: &str, cuts: bool) {
        for (kind, _) in KINDS.iter().filter(|(kind, _)| cuts || !kind.is_cut()) {
            report.number(&format!("{begin}{}s", kind.name()), self.seconds(*kind).len() as f64);
        }
    }

    /// Reports how many there were, and how long each kind took.
    pub(crate) fn report(&self, report: &mut Report, cuts: bool) {
        self.report_counts(report, "", cuts);
        for (kind, _) in KINDS.iter().filter(|(kind, _)| cuts || !kind.is_cut()) {
            let (mut seconds, name) = (self.seconds(*kind), kind.name());
            let worst = seconds.iter().copied().fold(f64::NAN, f64::max);
            let middle = if seconds.is_empty() { f64::NAN } else { median(&mut seconds) };
            report.number(&format!("{name}_to_next_ack_median_s"), middle);
            report.number(&format!("{name}_to_next_ack_worst_s"), worst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn_and_cuts_only_where_they_can_be() {
        let mut random = SplitMix64::new(1);
        let mut draw = |cuts| (0..300).map(|_| Fault::draw(&mut random, cuts)).collect::<Vec<_>>();
        let (with, without) = (draw(true), draw(false));
        for (kind, _) in KINDS {
            assert!(with.contains(&kind), "{kind:?}");
            assert_eq!(without.contains(&kind), !kind.is_cut(), "{kind:?}");
        }
    }
}
