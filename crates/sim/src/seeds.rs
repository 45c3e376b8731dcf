//! Property testing over seeds: runs a property over many seeds, and names a seed that fails so
//! that it can be run again. Also runs sabotaged machines until their checker notices.

use crate::faults::FaultCounts;
use crate::{Checker, Cluster, Faults, Violation};
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use types::Span;

/// How many seeds must count for each property, unless the variable `SLACKWATER_SEEDS` is set.
const SEEDS: u64 = 200;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Writes a line that people see even if the test passes: the test harness hides the output of
/// `println!`, but not of a write to stdout.
fn say(line: fmt::Arguments<'_>) {
    // Stdout may be closed, which is no reason to fail.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Runs a property over seeds until enough of them count, and writes how often each fault happened.
///
/// A seed counts if every kind of fault with a probability above zero and every planned fault
/// happened. `SLACKWATER_SEED=17` runs that seed alone.
///
/// The property builds a cluster, runs it, checks it, and returns it. Returns how many seeds were
/// run, including those that do not count, so that tests can require a share of them. Returns 0 if
/// one seed was run alone: shares mean nothing then.
pub fn for_seeds(name: &str, property: impl Fn(u64) -> Cluster) -> u64 {
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
        let counts = if counts(&cluster) { "counts" } else { "does not count" };
        say(format_args!("{name}: seed {seed} holds and {counts}; {}", cluster.fault_counts()));
        return 0;
    }
    let wanted = variable("SLACKWATER_SEEDS").unwrap_or(SEEDS);
    let mut counted = 0;
    let mut fired = FaultCounts::default();
    let mut seed = 0;
    while counted < wanted {
        assert!(
            seed < 4 * wanted + 16,
            "{name}: all faults happened in only {counted} of {seed} seeds; make faults more frequent"
        );
        let cluster = run(seed);
        if counts(&cluster) {
            counted += 1;
            fired += cluster.fault_counts();
        }
        seed += 1;
    }
    say(format_args!("{name}: {counted} seeds of {seed} count; {fired}"));
    seed
}

/// Whether every fault of the cluster happened.
fn counts(cluster: &Cluster) -> bool {
    cluster.faults().fired(&cluster.fault_counts()) && cluster.all_happened()
}

/// The first result of `look` over a few seeds. A sabotaged machine need not be caught in every
/// seed.
#[must_use]
pub fn some_seed<T>(mut look: impl FnMut(u64) -> Option<T>) -> Option<T> {
    const FEW: u64 = 50;
    (0..FEW).find_map(&mut look)
}

/// The first violation that the checker finds in runs of a broken machine.
///
/// `build` returns a cluster of a seed, broken if its second argument is true. The checker judges
/// the history until the run ended or was given up: a run that hangs is no violation by itself. In
/// the seed of the violation, the sound machine must end its run and pass the same checker. Panics
/// if no seed shows a violation, or if the sound machine does not pass.
#[track_caller]
pub fn caught_by(
    checker: impl Fn() -> Checker,
    what: impl fmt::Debug,
    build: impl Fn(u64, bool) -> Cluster,
) -> Violation {
    const MANY: u64 = 200;
    // Longer than sound runs of a few clocks take, in virtual time.
    const LONG: Span = Span::from_secs(10);
    let found = (0..MANY).find_map(|seed| {
        let mut cluster = build(seed, true);
        // Another checker judges whether the run ends.
        let _ = cluster.run_within(LONG);
        cluster.violation(checker())
    });
    let violation = found.unwrap_or_else(|| panic!("{what:?} goes unnoticed in {MANY} seeds"));
    println!("{what:?}: {violation}");
    let mut sound = build(violation.seed, false);
    sound.run();
    sound.check(checker());
    violation
}

impl Cluster {
    /// The faults this cluster was built with.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.network.faults
    }

    /// How often each fault happened so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.network.counts
    }
}
