//! Whether all cores that this process may run on share their last-level cache, as Linux reports it
//! under `/sys`.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder in which Linux describes its cores.
const CORES: &str = "/sys/devices/system/cpu";

/// Whether all cores that this process may run on share their last-level cache. Looked up once.
/// False if the system does not say.
pub fn are_shared() -> bool {
    static SHARED: OnceLock<bool> = OnceLock::new();
    *SHARED.get_or_init(|| {
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        share_last(Path::new(CORES), &cores)
    })
}

/// Whether all of `cores` share the last-level cache of the first one.
fn share_last(folder: &Path, cores: &[usize]) -> bool {
    let Some(first) = cores.first() else { return false };
    let Ok(caches) = folder.join(format!("cpu{first}/cache")).read_dir() else { return false };
    let level = |cache: &PathBuf| std::fs::read_to_string(cache.join("level")).ok()?.trim().parse::<u32>().ok();
    let levels = caches.filter_map(Result::ok).map(|entry| entry.path()).filter_map(|path| Some((level(&path)?, path)));
    // Without a third level there is no last-level cache that cores share.
    let Some((3.., last)) = levels.max() else { return false };
    let Ok(list) = std::fs::read_to_string(last.join("shared_cpu_list")) else { return false };
    let sharing = members(list.trim());
    cores.iter().all(|core| sharing.iter().any(|(from, to)| (*from..=*to).contains(core)))
}

/// Parses a list such as `0-3,8` into inclusive ranges. Skips items that it cannot parse.
fn members(list: &str) -> Vec<(usize, usize)> {
    let run = |run: &str| {
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    list.split(',').filter_map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Level and `shared_cpu_list` of each cache of core 0; cores; whether they share a cache.
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [usize], bool);

    #[test]
    fn cores_share_a_cache_if_the_last_one_names_them_all() {
        let folder = std::env::temp_dir().join(format!("slackwater-caches-{}", std::process::id()));
        let cases: [Case<'_>; 7] = [
            (&[("1", "0"), ("2", "0"), ("3", "0-1")], &[0, 1], true),
            (&[("1", "0"), ("2", "0"), ("3", "0,1,4-7")], &[0, 5, 7], true),
            (&[("1", "0"), ("2", "0"), ("3", "0-1")], &[0, 1, 2], false),
            (&[("1", "0-1"), ("2", "0-1")], &[0, 1], false),
            (&[("3", "nonsense")], &[0], false),
            (&[], &[0], false),
            (&[("3", "0-1")], &[], false),
        ];
        for (caches, cores, expected) in cases {
            for (index, (level, list)) in caches.iter().enumerate() {
                let cache = folder.join(format!("cpu0/cache/index{index}"));
                std::fs::create_dir_all(&cache).expect("a folder");
                std::fs::write(cache.join("level"), format!("{level}\n")).expect("a file");
                std::fs::write(cache.join("shared_cpu_list"), format!("{list}\n")).expect("a file");
            }
            assert_eq!(share_last(&folder, cores), expected, "{caches:?}, {cores:?}");
            std::fs::remove_dir_all(&folder).ok();
        }
    }
}
