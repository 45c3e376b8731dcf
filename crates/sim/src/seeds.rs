//! A property over many seeds, with a seed that fails named so that it can be run again.

use crate::faults::FaultCounts;
use crate::{Cluster, Faults};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Seeds that count for each property, unless the variable `SLACKWATER_SEEDS` says otherwise.
const SEEDS: u64 = 200;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a property over seeds until enough of them count: those in which every kind of fault asked for has fired. Prints
/// how often each fault did. `SLACKWATER_SEED=17` runs that seed alone.
///
/// The property builds a cluster, runs it, checks it, and hands it back.
pub fn for_seeds(name: &str, property: impl Fn(u64) -> Cluster) {
    let run = |seed: u64| {
        catch_unwind(AssertUnwindSafe(|| property(seed))).unwrap_or_else(|panic| {
            eprintln!(
                "{name}: seed {seed} fails; to run it alone: SLACKWATER_SEED={seed} cargo test -p slackwater-sim"
            );
            resume_unwind(panic)
        })
    };
    if let Some(seed) = variable("SLACKWATER_SEED") {
        let cluster = run(seed);
        return println!("{name}: seed {seed} holds; {}", cluster.fault_counts());
    }
    let wanted = variable("SLACKWATER_SEEDS").unwrap_or(SEEDS);
    let mut counted = 0;
    let mut fired = FaultCounts::default();
    let mut seed = 0;
    while counted < wanted {
        assert!(seed < 4 * wanted + 16, "{name}: the faults fired in {counted} of {seed} seeds alone; fault more");
        let cluster = run(seed);
        if cluster.faults().fired(&cluster.fault_counts()) && cluster.all_happened() {
            counted += 1;
            fired += cluster.fault_counts();
        }
        seed += 1;
    }
    println!("{name}: {counted} seeds of {seed} count; {fired}");
}

/// Whether any of a few seeds shows what is looked for: a broken machine need not be caught by each of them.
#[must_use]
pub fn some_seed<T>(mut look: impl FnMut(u64) -> Option<T>) -> Option<T> {
    const FEW: u64 = 50;
    (0..FEW).find_map(&mut look)
}

impl Cluster {
    /// The faults this cluster was built with.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.network.faults
    }

    /// How often each of them happened so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.network.counts
    }
}
