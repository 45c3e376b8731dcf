//! Gives a program's tables codecs, and sets what else lossy codecs for reads need: combining by
//! clock, and a cache. Leaves out those codecs for tables that cannot use them.

use slackwater::policy::{Codecs, Combine, Reduce, is_lossy};
use slackwater::{TableSpec, UpdaterSpec};

/// At most so many rows in a worker's cache, for tables whose changes servers send as deltas.
const COPIES: u64 = 1 << 26;

/// Whether reads of such a table can use lossy codecs: its rows must change only when the clock
/// does, and be stored as they are read.
#[must_use]
pub fn can_shrink_reads(spec: &TableSpec) -> bool {
    spec.consistency.bound().is_some() && !matches!(spec.updater, UpdaterSpec::Ftrl { .. })
}

/// The table with these codecs. Lossy codecs for reads send the deltas of each clock, which caches
/// add up; so pushes are then combined by clock. If the table cannot do that, reads use only the
/// exact codecs.
#[must_use]
pub fn shrunk(spec: TableSpec, codecs: &Codecs) -> TableSpec {
    if !is_lossy(&codecs.down) {
        return spec.codecs(codecs.clone());
    }
    if can_shrink_reads(&spec) {
        return spec.combine(Combine::Clock(Reduce::Sum)).cached(COPIES).codecs(codecs.clone());
    }
    let exact = codecs.down.iter().filter(|name| !is_lossy(std::slice::from_ref(name))).cloned();
    let codecs = Codecs::up(codecs.up.clone()).down(exact.collect::<Vec<_>>());
    spec.codecs(codecs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::Consistency;
    use slackwater::policy::CacheSpec;

    #[test]
    fn shrunk_sets_codecs_combining_and_cache() {
        let lock_step = TableSpec::dense("t", 1, 1).updater(UpdaterSpec::Sgd { rate: 0.1 });
        let unbounded = lock_step.clone().consistency(Consistency::Unbounded);
        let ftrl = lock_step.clone().updater(UpdaterSpec::Ftrl { rate: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 });
        // (table, codecs both ways, codecs left for reads, whether pushes are combined by clock)
        let cases: [(&TableSpec, &[&str], &[&str], bool); 6] = [
            (&lock_step, &["keys", "lz4"], &["keys", "lz4"], false),
            (&lock_step, &["1bit"], &["1bit"], true),
            (&lock_step, &["auto"], &["auto"], true),
            (&unbounded, &["keys", "1bit", "lz4"], &["keys", "lz4"], false),
            (&ftrl, &["fixed8"], &[], false),
            (&ftrl, &["auto"], &[], false),
        ];
        for (spec, names, down, by_clock) in cases {
            let spec = shrunk(spec.clone(), &Codecs::both(names.iter().copied()));
            assert_eq!(spec.codecs.up, names, "{names:?}");
            assert_eq!(spec.codecs.down, down, "{names:?}");
            assert_eq!(matches!(spec.combine, Combine::Clock(_)), by_clock, "{names:?}");
            assert_eq!(spec.cache != CacheSpec::Off, by_clock, "{names:?}");
        }
    }
}
