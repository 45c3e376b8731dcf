//! ℓ1 logistic regression by proximal gradient steps, with given codecs: the bytes of each clock
//! and the objective over bytes.

use std::path::Path;

use apps::proximal::{Proximal, ProximalState, train, weights};
use apps::train::Go;
use data::DataReader;
use slackwater::Consistency;
use slackwater::policy::Codecs;

use super::runs::{Bytes, on_workers};
use crate::learning::open;

/// Codecs of the reference: 8 bytes a key and 4 a number, in every message.
pub(crate) const PLAIN: [&str; 1] = ["spelt"];
/// Codecs upward. Key lists are sent once and then named by signature. Only gradients of active
/// weights are sent, as numbers of 12 bits, packed.
pub(crate) const UP: [&str; 4] = ["keys", "kkt", "fixed12", "zstd"];
/// Codecs downward: only weights that are not zero are sent.
pub(crate) const DOWN: [&str; 1] = ["zeros"];

const L1: f64 = 4e-4;
const BLOCKS: usize = 4;

/// The outcome of a run.
pub(crate) struct Solved {
    /// Bytes of all workers in each clock, without `checks`.
    pub(crate) clocks: Vec<Bytes>,
    /// Bytes of the checks between passes, in which workers compute the objective.
    pub(crate) checks: Bytes,
    /// After each check: bytes of all clocks so far, and the mean loss with its penalty.
    pub(crate) curve: Vec<(f64, f64)>,
    pub(crate) objective: f64,
    pub(crate) non_zeros: usize,
}

impl Solved {
    /// Bytes of the last `fifths` fifths of the clocks.
    pub(crate) fn bytes(&self, fifths: usize) -> f64 {
        let from = self.clocks.len() * (5 - fifths) / 5;
        self.clocks[from..].iter().map(|bytes| bytes.both()).sum()
    }
}

/// Learns from a file in `passes` passes.
pub(crate) fn solve(file: &Path, codecs: Codecs, passes: u32) -> anyhow::Result<Solved> {
    let reader: DataReader = open(file, 1000)?;
    let consistency = Consistency::slack(0);
    let proximal = Proximal { l1: L1, blocks: BLOCKS, consistency, passes, tolerance: 0.0, codecs };
    let workers = on_workers(&reader, |session, share| {
        let mut clocks = Vec::new();
        let mut checks = Bytes::default();
        let mut curve = Vec::new();
        let mut spent = 0.0;
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
        let objective = solved.gap.objective / solved.gap.examples;
        let non_zeros = weights(&solved.table)?.keys.len();
        Ok(Solved { clocks, checks, curve, objective, non_zeros })
    })?;
    Ok(workers.into_iter().reduce(together).unwrap_or_else(|| unreachable!("there are workers")))
}

/// Adds the bytes of two workers.
fn together(mut one: Solved, other: Solved) -> Solved {
    one.clocks.iter_mut().zip(other.clocks).for_each(|(one, other)| *one = *one + other);
    one.curve.iter_mut().zip(other.curve).for_each(|(one, other)| one.0 += other.0);
    one.checks = one.checks + other.checks;
    one
}
