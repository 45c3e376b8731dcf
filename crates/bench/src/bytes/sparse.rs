//! ℓ1 logistic regression by proximal steps: the same passes with plain messages and with shrunk
//! ones.

use std::path::Path;

use apps::proximal::{Proximal, ProximalState, train, weights};
use apps::train::Go;
use data::DataReader;
use slackwater::Consistency;
use slackwater::policy::Codecs;

use super::runs::{Bytes, on_workers};
use crate::learning::open;

/// 8 bytes a key and 4 a number, in every message.
pub(crate) const PLAIN: [&str; 1] = ["spelt"];
/// Lists once, then by name; what is active alone; numbers of few bits, packed.
pub(crate) const UP: [&str; 4] = ["keys", "kkt", "fixed12", "zstd"];
/// Weights that are not zero.
pub(crate) const DOWN: [&str; 1] = ["zeros"];

const L1: f64 = 4e-4;
const BLOCKS: usize = 4;

/// What came of a run.
pub(crate) struct Solved {
    /// Of all workers, in each clock. What they tell each other between passes, to know how far
    /// they are, is not among them.
    pub(crate) clocks: Vec<Bytes>,
    /// That.
    pub(crate) checks: Bytes,
    /// Bytes of all clocks so far, and the mean loss with its penalty, after each check.
    pub(crate) curve: Vec<(f64, f64)>,
    pub(crate) objective: f64,
    pub(crate) non_zeros: usize,
}

impl Solved {
    /// Bytes of the last so many parts of five of the clocks.
    pub(crate) fn bytes(&self, fifths: usize) -> f64 {
        let from = self.clocks.len() * (5 - fifths) / 5;
        self.clocks[from..].iter().map(|bytes| bytes.both()).sum()
    }
}

/// So many passes over a file.
pub(crate) fn solve(file: &Path, codecs: Codecs, passes: u32) -> anyhow::Result<Solved> {
    let reader: DataReader = open(file, 1000)?;
    let consistency = Consistency::slack(0);
    let proximal = Proximal { l1: L1, blocks: BLOCKS, consistency, passes, tolerance: 0.0, codecs };
    let workers = on_workers(&reader, |session, share| {
        let (mut clocks, mut checks, mut curve, mut spent) = (Vec::new(), Bytes::default(), Vec::new(), 0.0);
        let mut before = Bytes::of(session);
        let solved = train(session, &proximal, share, |state: Option<ProximalState>| {
            let now = Bytes::of(session);
            match state {
                None => {
                    spent += now.since(before).both();
                    clocks.push(now.since(before));
                }
                Some(state) => {
                    checks = checks + now.since(before);
                    curve.push((spent, state.gap.objective / state.gap.examples));
                }
            }
            before = now;
            Go::On
        })?;
        let (objective, non_zeros) = (solved.gap.objective / solved.gap.examples, weights(&solved.table)?.keys.len());
        Ok(Solved { clocks, checks, curve, objective, non_zeros })
    })?;
    Ok(workers.into_iter().reduce(together).unwrap_or_else(|| unreachable!("there are workers")))
}

fn together(mut one: Solved, other: Solved) -> Solved {
    one.clocks.iter_mut().zip(other.clocks).for_each(|(one, other)| *one = *one + other);
    one.curve.iter_mut().zip(other.curve).for_each(|(one, other)| one.0 += other.0);
    one.checks = one.checks + other.checks;
    one
}
