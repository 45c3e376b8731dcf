//! `status` as text: nodes, tables and waits, as an operator wants to see them at a glance.

use super::{bytes_of, shards_of};
use crate::totals::bytes_in_words;
use slackwater::cluster::{NodeId, WorkerId};
use slackwater::monitor::{Measured, MemberState, MemberStatus, Span, Status, Timeout, Trouble};
use types::Clock;

/// A worker's time in its clock is shown from here on.
const LONG_CLOCK: Span = Span::from_secs(10);

/// The run as text, and whether strangers may control it. With `verbose`, also its time-outs, and
/// tables that Slackwater's own programs make beside their models.
pub(super) fn as_text(status: &Status, is_insecure: bool, verbose: bool) -> String {
    let mut lines = run(status);
    if is_insecure {
        lines.push(
            "this run is insecure: any process that can reach a node may control it; start it with a token".to_owned(),
        );
    }
    lines.push(String::new());
    lines.extend(columns(
        ["NODE", "STATE", "HEARD", "ADDRESS", ""],
        status.members.iter().map(|known| node(status, known)),
    ));
    let tables: Vec<_> = status.tables.iter().filter(|table| verbose || !table.spec.name.starts_with('.')).collect();
    if !tables.is_empty() {
        lines.push(String::new());
        let frontier = |known: Option<Clock>| known.map_or("none yet".to_owned(), |clock| clock.0.to_string());
        let rows = tables.iter().map(|table| [table.spec.name.clone(), frontier(table.frontier)]);
        lines.extend(columns(["TABLE", "FRONTIER"], rows));
    }
    lines.push(String::new());
    lines.extend(waits(status));
    lines.extend(status.troubles.iter().map(trouble));
    if verbose {
        lines.push(String::new());
        lines.extend(timeouts(status));
    }
    lines.join("\n") + "\n"
}

/// The plan, and how far it is carried out.
fn run(status: &Status) -> Vec<String> {
    let chains = &status.plan.chains;
    let count = |counts: fn(&NodeId) -> bool| {
        let nodes = status.members.iter().filter(|member| is_there(member)).map(|member| member.node);
        nodes.filter(counts).count()
    };
    let servers = counted(count(|node| matches!(node, NodeId::Server(_))), "server");
    let workers = counted(count(|node| matches!(node, NodeId::Worker(_))), "worker");
    let replicas = counted(status.replicas as usize, "replica");
    let shards = counted(chains.len(), "shard");
    let mut lines = vec![format!("plan {}: {servers}, {workers}, {shards} with {replicas} each", status.plan.number.0)];
    if !status.adopting.is_empty() {
        let names: Vec<String> = status.adopting.iter().map(ToString::to_string).collect();
        lines.push(format!("plan {} is not adopted yet by {}", status.plan.number.0, names.join(", ")));
    }
    let backfilling = chains.iter().filter(|chain| !chain.backfilling.is_empty()).count();
    if backfilling > 0 {
        lines.push(format!("{} being backfilled to a new replica", counted_are(backfilling, "shard")));
    }
    let short = chains.iter().filter(|chain| chain.replicas.len() < status.replicas as usize).count();
    if short > backfilling {
        lines.push(format!("{} short of replicas; start more servers", counted_are(short, "shard")));
    }
    lines
}

fn is_there(member: &MemberStatus) -> bool {
    matches!(member.state, MemberState::Present | MemberState::Leaving)
}

/// One node: name, state, when it was heard, address, and what it does.
fn node(status: &Status, known: &MemberStatus) -> [String; 5] {
    let (state, does) = match &known.state {
        MemberState::Joining => ("joining", String::new()),
        MemberState::Present => ("present", work(status, known)),
        MemberState::Leaving => ("leaving", work(status, known)),
        MemberState::Left => ("left", String::new()),
        MemberState::Lost { reason } => ("lost", reason.clone()),
    };
    let heard = if is_there(known) { format!("{:.1} s ago", known.silent.as_secs_f64()) } else { "-".to_owned() };
    [known.node.to_string(), state.to_owned(), heard, known.address.clone(), does]
}

/// What a node that takes part does.
fn work(status: &Status, member: &MemberStatus) -> String {
    let NodeId::Worker(rank) = member.node else {
        let (heads, held) = shards_of(status, member.node).unwrap_or_default();
        let bytes = bytes_in_words(bytes_of(status, member.node).unwrap_or(0) as f64);
        return format!("head of {}, holds {held} ({bytes})", counted(heads, "shard"));
    };
    let mut words = match member.in_clock {
        Some(span) if span >= LONG_CLOCK => format!("in clock {} for {:.0} s", member.clock.0, span.as_secs_f64()),
        Some(_) | None => format!("clock {}", member.clock.0),
    };
    if let Some(step) = &member.report.step {
        words += &format!(", {} per clock", in_words(step.mean));
    }
    if status.slow.contains(&WorkerId(rank)) {
        words += ", slow";
    }
    if status.waited_for.contains(&WorkerId(rank)) || status.awaited.contains(&WorkerId(rank)) {
        words += ", waited for";
    }
    words
}

/// Who waits for whom.
fn waits(status: &Status) -> Vec<String> {
    let names = |nodes: &[WorkerId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    if !status.waited_for.is_empty() {
        lines.push(format!("reads wait for {}", names(&status.waited_for)));
    }
    if !status.awaited.is_empty() {
        lines.push(format!("a barrier waits for {}", names(&status.awaited)));
    }
    if lines.is_empty() {
        lines.push("no worker is waited for".to_owned());
    }
    if !status.slow.is_empty() {
        lines.push(format!("slow: {} (1.5 times the median time per clock, or more)", names(&status.slow)));
    }
    lines
}

/// A node that sends heartbeats and does not do its part.
fn trouble(trouble: &Trouble) -> String {
    let Trouble { node, what, lasted, limit } = trouble;
    let limit = limit.map(|limit| format!(", of {} at most", in_words(limit))).unwrap_or_default();
    format!("trouble: {node} {what}: for {}{limit}", in_words(*lasted))
}

fn timeouts(status: &Status) -> Vec<String> {
    let mut lines = vec!["time-outs:".to_owned()];
    lines.extend(status.timeouts.iter().map(|shown| format!("  {}", timeout(shown))));
    for known in &status.members {
        lines.extend(known.report.timeouts.iter().map(|shown| format!("  {}: {}", known.node, timeout(shown))));
    }
    lines
}

fn timeout(timeout: &Timeout) -> String {
    let Timeout { what, value, why, measured: from } = timeout;
    let from = from.as_ref().map(|from| format!(" ({})", measured(from))).unwrap_or_default();
    format!("{what}: after {}: {why}{from}", in_words(*value))
}

fn measured(measured: &Measured) -> String {
    let Measured { mean, deviation, count } = measured;
    format!("{} ± {}, measured {count} times", in_words(*mean), in_words(*deviation))
}

/// In seconds or milliseconds, with about three digits.
fn in_words(span: Span) -> String {
    let millis = span.as_secs_f64() * 1e3;
    match millis {
        _ if millis >= 1000.0 => format!("{:.2} s", millis / 1e3),
        _ if millis >= 10.0 => format!("{millis:.0} ms"),
        _ => format!("{millis:.2} ms"),
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn counted_are(count: usize, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}

/// A table whose columns are as wide as their widest cell; no blanks end a line.
fn columns<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Vec<String> {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::TableSpec;
    use slackwater::monitor::{NodeReport, TableStatus};
    use types::{Plan, TableId};

    fn member(node: NodeId, state: MemberState) -> MemberStatus {
        let (silent, clock, report) = (Span::from_millis(120), Clock(17), NodeReport::default());
        MemberStatus {
            node,
            address: "10.0.0.1:7001".to_owned(),
            binding: None,
            state,
            silent,
            clock,
            in_clock: None,
            report,
        }
    }

    fn example() -> Status {
        let timeout = Timeout::new("a silent worker is lost", Span::from_secs(2), "the failure timeout", None);
        let table = |number, name: &str, frontier| TableStatus {
            table: TableId(number),
            spec: TableSpec::dense(name, 1, 1),
            frontier,
        };
        Status {
            plan: Plan::first(1, Vec::new()),
            adopting: Vec::new(),
            members: vec![
                member(NodeId::Server(0), MemberState::Present),
                member(NodeId::Worker(0), MemberState::Present),
                member(NodeId::Worker(11), MemberState::Lost { reason: "its process has ended".to_owned() }),
            ],
            awaited: Vec::new(),
            tables: vec![table(0, "weights", Some(Clock(9))), table(1, ".accounts", None)],
            waited_for: vec![WorkerId(0)],
            slow: vec![WorkerId(0)],
            failure_timeout: Span::from_secs(2),
            lease: None,
            replicas: 1,
            timeouts: vec![timeout],
            troubles: Vec::new(),
        }
    }

    #[test]
    fn text_shows_nodes_tables_and_waits_and_nothing_internal() {
        let expected = "\
plan 1: 1 server, 1 worker, 1 shard with 1 replica each

NODE       STATE    HEARD      ADDRESS
server 0   present  0.1 s ago  10.0.0.1:7001  head of 1 shard, holds 1 (0 bytes)
worker 0   present  0.1 s ago  10.0.0.1:7001  clock 17, slow, waited for
worker 11  lost     -          10.0.0.1:7001  its process has ended

TABLE    FRONTIER
weights  9

reads wait for worker 0
slow: worker 0 (1.5 times the median time per clock, or more)
";
        assert_eq!(as_text(&example(), false, false), expected);
    }

    #[test]
    fn verbose_text_adds_timeouts_and_internal_tables() {
        let text = as_text(&example(), false, true);
        assert!(text.contains("\n.accounts  none yet\n"), "{text}");
        assert!(text.ends_with("time-outs:\n  a silent worker is lost: after 2.00 s: the failure timeout\n"), "{text}");
    }

    #[test]
    fn text_shows_long_clocks_and_nodes_that_do_not_do_their_part() {
        let mut status = example();
        status.members[1].in_clock = Some(Span::from_secs(73));
        let what = "sends heartbeats and does not adopt plan 2".to_owned();
        let [lasted, limit] = [3_200, 10_000].map(Span::from_millis);
        status.troubles = vec![Trouble { node: NodeId::Server(0), what, lasted, limit: Some(limit) }];
        let text = as_text(&status, false, false);
        assert!(text.contains("  in clock 17 for 73 s, slow, waited for\n"), "{text}");
        let trouble = "trouble: server 0 sends heartbeats and does not adopt plan 2: for 3.20 s, of 10.00 s at most\n";
        assert!(text.ends_with(trouble), "{text}");
    }

    #[test]
    fn text_says_what_is_not_as_planned() {
        let mut status = example();
        status.adopting = vec![NodeId::Server(0)];
        status.replicas = 2;
        let text = as_text(&status, false, false);
        assert!(text.contains("plan 1 is not adopted yet by server 0\n"), "{text}");
        assert!(text.contains("1 shard is short of replicas; start more servers\n"), "{text}");
        status.plan.chains[0].backfilling = vec![1];
        let text = as_text(&status, false, false);
        assert!(text.contains("1 shard is being backfilled to a new replica\n") && !text.contains("short"), "{text}");
    }
}
