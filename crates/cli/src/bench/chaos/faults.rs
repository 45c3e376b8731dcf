//! What goes wrong: each kind of fault, how often it is drawn, and how long it took until things went on.

use crate::bench::measure::{Report, median};
use crate::demo::random::Random;

/// Something that goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A server's process is killed.
    KillServer,
    /// A server's process is stopped for longer than anybody has patience, and then goes on.
    StopServer,
    /// A worker's process is killed.
    KillWorker,
    /// A worker's process is stopped for longer than anybody has patience, and then goes on.
    StopWorker,
}

impl Fault {
    /// One of them. What is stopped takes longer than what is killed, and is drawn less often.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0..=2 => Self::KillServer,
            3 => Self::StopServer,
            4..=6 => Self::KillWorker,
            _ => Self::StopWorker,
        }
    }
}

/// The faults of a run: of each, how many seconds it took until every worker went on.
#[derive(Debug, Default)]
pub struct Faults(Vec<(Fault, f64)>);

impl Faults {
    pub fn add(&mut self, fault: Fault, seconds: f64) {
        self.0.push((fault, seconds));
    }

    /// How many there were of a kind.
    pub fn count(&self, kind: Fault) -> usize {
        self.seconds(kind).len()
    }

    fn seconds(&self, kind: Fault) -> Vec<f64> {
        self.0.iter().filter(|(fault, _)| *fault == kind).map(|(_, seconds)| *seconds).collect()
    }

    /// Reports how many there were, and how long each kind took.
    pub fn report(&self, report: &mut Report) {
        let worst = |kind| self.seconds(kind).into_iter().fold(f64::NAN, f64::max);
        let mut kills = self.seconds(Fault::KillServer);
        report.number("server_kills", kills.len() as f64);
        let middle = if kills.is_empty() { f64::NAN } else { median(&mut kills) };
        report.number("server_kill_to_next_ack_median_s", middle);
        report.number("server_kill_to_next_ack_worst_s", worst(Fault::KillServer));
        report.number("server_stops", self.count(Fault::StopServer) as f64);
        report.number("server_stop_to_next_ack_worst_s", worst(Fault::StopServer));
        report.number("worker_kills", self.count(Fault::KillWorker) as f64);
        report.number("worker_kill_to_next_ack_worst_s", worst(Fault::KillWorker));
        report.number("worker_stops", self.count(Fault::StopWorker) as f64);
        report.number("worker_stop_to_next_ack_worst_s", worst(Fault::StopWorker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn() {
        let mut random = Random::new(1);
        let drawn: Vec<Fault> = (0..200).map(|_| Fault::draw(&mut random)).collect();
        for kind in [Fault::KillServer, Fault::StopServer, Fault::KillWorker, Fault::StopWorker] {
            assert!(drawn.contains(&kind), "{kind:?}");
        }
    }
}
