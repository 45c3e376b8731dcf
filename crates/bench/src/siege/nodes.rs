//! What a siege sees of the nodes from outside: their memory, and their metrics.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};

/// How long a node may take to answer a request for its metrics.
const ANSWER: Duration = Duration::from_secs(20);
/// The counter of frames that a node has handed to its machine although nobody had shown a
/// certificate.
const UNAUTHENTICATED: &str = "slackwater_unauthenticated_frames_total";
/// What the names of counters of refusals begin with.
const REFUSED: &str = "slackwater_refused_connections";

/// The largest resident memory that a process has had, in bytes.
pub(super) fn peak_memory(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel shows no peak memory")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().context("the peak memory is no number")?;
    Ok(kibibytes << 10)
}

/// Counts of nodes, from their metrics.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Frames of peers without a certificate that a machine saw.
    pub(super) unauthenticated: u64,
    /// How many nodes count them.
    pub(super) nodes: u64,
    /// Refused connections by reason.
    pub(super) refusals: BTreeMap<String, u64>,
}

impl Counts {
    /// Adds the metrics of a node.
    pub(super) fn add(&mut self, text: &str) {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut counts_them = false;
        for (series, value) in samples.filter_map(|line| line.rsplit_once(' ')) {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Ok(value) = value.parse::<f64>() else { continue };
            if name == UNAUTHENTICATED {
                self.unauthenticated += value as u64;
                counts_them = true;
            }
            if name.starts_with(REFUSED) {
                let reason = labels.split_once("reason=\"").and_then(|(_, rest)| rest.split('"').next());
                *self.refusals.entry(reason.unwrap_or("any").to_owned()).or_default() += value as u64;
            }
        }
        self.nodes += u64::from(counts_them);
    }
}

/// Reads the metrics of a node, as Prometheus does.
pub(super) fn metrics(address: SocketAddr, bearer: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER).context("a node does not serve metrics")?;
    stream.set_read_timeout(Some(ANSWER))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {bearer}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "a node refuses its metrics: {head}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_nodes_and_split_by_reason() {
        let mut counts = Counts::default();
        counts.add(
            "# TYPE slackwater_refused_connections counter\n\
             slackwater_refused_connections_total{server=\"0\",reason=\"expired\"} 3\n\
             slackwater_refused_connections_total{server=\"0\",reason=\"role\"} 2\n\
             slackwater_unauthenticated_frames_total{server=\"0\"} 1\n# EOF\n",
        );
        counts.add(
            "slackwater_refused_connections_total{reason=\"role\"} 5\nslackwater_refused_connections_total{server=\"1\"} 4\n",
        );
        let refusals = [("any", 4), ("expired", 3), ("role", 7)].map(|(reason, count)| (reason.to_owned(), count));
        assert_eq!(counts, Counts { unauthenticated: 1, nodes: 1, refusals: refusals.into() });
    }
}
