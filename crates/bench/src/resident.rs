//! Resident memory of a process, as the kernel counts it.

use anyhow::Context;

/// The resident bytes of a process, by its id or `self`.
pub(crate) fn resident_bytes(process: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/statm");
    let statm = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let pages: u64 = statm.split(' ').nth(1).with_context(|| format!("{path} has no second number"))?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_of_this_process_are_those_that_its_status_shows() {
        let counted = resident_bytes("self").expect("Linux counts them");
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux shows them");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for them");
        let shown: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        // Other tests of the process run meanwhile, and the kernel counts in batches.
        assert!((shown * 512..shown * 2048).contains(&counted), "{counted} of {shown} KiB");
    }
}
