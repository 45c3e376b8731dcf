//! A property over many seeds, with a seed that fails named so that it can be run again; and broken
//! machines, each with the checker that has to notice.

use crate::faults::FaultCounts;
use crate::{Checker, Cluster, Faults, Violation};
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use types::Span;

/// Seeds that count for each property, unless the variable `SLACKWATER_SEEDS` says otherwise.
const SEEDS: u64 = 200;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One line that is seen though the test passes: what is printed is kept from whoever runs it, what
/// is written is not.
fn say(line: fmt::Arguments<'_>) {
    // Nobody may be listening, which is no reason to fail.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Runs a property over seeds until enough of them count: those in which every kind of fault asked
/// for has fired, and every fault that was planned has happened. Says how often each did.
/// `SLACKWATER_SEED=17` runs that seed alone.
///
/// The property builds a cluster, runs it, checks it, and hands it back. Returns how many seeds
/// there were, those that do not count among them, so that it can be asked what share of them came
/// to something; none where one was run alone, which shares say nothing of.
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
        assert!(seed < 4 * wanted + 16, "{name}: the faults fired in {counted} of {seed} seeds alone; fault more");
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

/// Whether everything that was to go wrong did.
fn counts(cluster: &Cluster) -> bool {
    cluster.faults().fired(&cluster.fault_counts()) && cluster.all_happened()
}

/// Whether any of a few seeds shows what is looked for: a broken machine need not be caught by each
/// of them.
#[must_use]
pub fn some_seed<T>(mut look: impl FnMut(u64) -> Option<T>) -> Option<T> {
    const FEW: u64 = 50;
    (0..FEW).find_map(&mut look)
}

/// What this checker has against a machine that `build` breaks where it is asked to, in the first
/// seed of many in which it has something. It judges what there was until the run ended or was
/// given up, so that a run that hangs is no catch by itself. In the same seed the sound machine
/// comes to the end and stands the same checker. Panics where either is not so.
#[track_caller]
pub fn caught_by(
    checker: impl Fn() -> Checker,
    what: impl fmt::Debug,
    build: impl Fn(u64, bool) -> Cluster,
) -> Violation {
    const MANY: u64 = 200;
    // Sound runs of a few clocks take less.
    const LONG: Span = Span::from_secs(10);
    let found = (0..MANY).find_map(|seed| {
        let mut cluster = build(seed, true);
        // Whether it ends is for another to judge.
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

    /// How often each of them happened so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.network.counts
    }
}
