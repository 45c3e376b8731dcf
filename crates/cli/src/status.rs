//! `status`: prints the state of a run, which its coordinator reports.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use slackwater::Connect;
use slackwater::cluster::{NodeId, WorkerId};
use slackwater::monitor::{Measured, MemberState, MemberStatus, Span, Status, Timeout, status};

/// The settings of `status`.
#[derive(clap::Args)]
pub(crate) struct StatusOptions {
    /// The address of the coordinator.
    #[arg(long = "coordinator", value_name = "HOST:PORT")]
    coordinator_address: String,
    /// How many seconds to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The command `status`.
pub(crate) fn run(options: &StatusOptions) -> anyhow::Result<()> {
    let connect =
        Connect { join_limit: Duration::from_secs(options.limit), ..Connect::to(&options.coordinator_address) };
    let status =
        status(&connect).with_context(|| format!("the run of the coordinator at {}", options.coordinator_address))?;
    let text = if options.json { format!("{}\n", as_json(&status)) } else { as_text(&status) };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn shards_of(status: &Status, node: NodeId) -> Option<(usize, usize)> {
    let NodeId::Server(index) = node else { return None };
    let heads = status.plan.chains.iter().filter(|chain| chain.replicas.first() == Some(&index)).count();
    Some((heads, status.plan.chains.iter().filter(|chain| chain.holds(index)).count()))
}

/// The clock of the slowest worker that takes part.
fn slowest(status: &Status) -> Option<u64> {
    let takes_part = status.members.iter().filter(|member| member.state == MemberState::Present);
    takes_part.filter(|member| matches!(member.node, NodeId::Worker(_))).map(|member| member.clock.0).min()
}

/// How many bytes a server holds, by the reports of the heads of its shards.
fn bytes_of(status: &Status, node: NodeId) -> Option<u64> {
    let NodeId::Server(index) = node else { return None };
    let shards = status.members.iter().flat_map(|member| &member.report.shards);
    let held = shards.filter(|(shard, _)| {
        status.plan.chains.get(shard.0 as usize).is_some_and(|chain| chain.replicas.contains(&index))
    });
    Some(held.map(|(_, bytes)| bytes).sum())
}

/// A time for people: in seconds, whole milliseconds, or hundredths of a millisecond.
fn in_words(span: Span) -> String {
    let millis = span.as_secs_f64() * 1e3;
    match millis {
        _ if millis >= 1000.0 => format!("{:.2} s", millis / 1e3),
        _ if millis >= 10.0 => format!("{millis:.0} ms"),
        _ => format!("{millis:.2} ms"),
    }
}

fn measured(measured: &Measured) -> String {
    let Measured { mean, deviation, count } = measured;
    format!("{} ± {}, measured {count} times", in_words(*mean), in_words(*deviation))
}

fn timeout(timeout: &Timeout) -> String {
    let Timeout { what, value, why, measured: from } = timeout;
    let from = from.as_ref().map(|from| format!(" ({})", measured(from))).unwrap_or_default();
    format!("{what}: after {}: {why}{from}", in_words(*value))
}

/// The line about a member that is present.
fn member(status: &Status, member: &MemberStatus) -> String {
    let mut words = format!(" heard {:.1} s ago", member.silent.as_secs_f64());
    let mut say = |more: String| words.push_str(&more);
    match (shards_of(status, member.node), member.node) {
        (Some((heads, held)), node) => {
            let bytes = bytes_of(status, node).unwrap_or(0);
            say(format!(", answers for {heads} shards, holds {held} ({bytes} bytes)"));
        }
        (None, node) => {
            say(format!(", clock {}", member.clock.0));
            if let Some(step) = &member.report.step {
                say(format!(", a clock takes it {}", in_words(step.mean)));
            }
            if let NodeId::Worker(rank) = node {
                if status.slow.contains(&WorkerId(rank)) {
                    say(", slow".to_owned());
                }
                if status.waited_for.contains(&WorkerId(rank)) {
                    say(", others wait for it".to_owned());
                }
            }
        }
    }
    words
}

fn as_text(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let names = |nodes: &[WorkerId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line(format!(
        "plan {}: {} shards, {} replicas of each",
        status.plan.number.0,
        status.plan.chains.len(),
        status.replicas
    ));
    if !status.adopting.is_empty() {
        let names: Vec<String> = status.adopting.iter().map(ToString::to_string).collect();
        line(format!("  not adopted yet by {}", names.join(", ")));
    }
    let short = status.plan.chains.iter().filter(|chain| chain.replicas.len() < status.replicas as usize).count();
    if short > 0 {
        line(format!(
            "  {short} shards have fewer replicas than they should; start more servers, or wait for the backfill to end"
        ));
    }
    for known in &status.members {
        let state = match &known.state {
            MemberState::Joining => " joining".to_owned(),
            MemberState::Left => " left".to_owned(),
            MemberState::Leaving => format!("{}, leaving: what it holds goes to others", member(status, known)),
            MemberState::Lost { reason } => format!(" lost: {reason}"),
            MemberState::Present => member(status, known),
        };
        line(format!("{:<12} {:<22}{state}", known.node.to_string(), known.address));
    }
    if status.tables.is_empty() {
        line("tables: none".to_owned());
    }
    for table in &status.tables {
        let frontier =
            table.frontier.map_or("no frontier known yet".to_owned(), |clock| format!("frontier {}", clock.0));
        line(format!("table {}: {frontier}", table.spec.name));
    }
    if !status.slow.is_empty() {
        line(format!("slow: {}: clocks take it half as long again as others, or longer", names(&status.slow)));
    }
    if !status.waited_for.is_empty() {
        line(format!("reads wait for {}", names(&status.waited_for)));
    }
    if !status.awaited.is_empty() {
        line(format!("the barrier waits for {}", names(&status.awaited)));
    }
    line("time-outs:".to_owned());
    status.timeouts.iter().for_each(|shown| line(format!("  {}", timeout(shown))));
    for known in &status.members {
        known.report.timeouts.iter().for_each(|shown| line(format!("  {}: {}", known.node, timeout(shown))));
    }
    text
}

fn measured_json(measured: &Measured) -> Value {
    let Measured { mean, deviation, count } = measured;
    json!({ "mean_s": mean.as_secs_f64(), "deviation_s": deviation.as_secs_f64(), "count": count })
}

fn timeout_json(timeout: &Timeout) -> Value {
    let Timeout { what, value, why, measured } = timeout;
    json!({ "what": what, "seconds": value.as_secs_f64(), "why": why, "measured": measured.as_ref().map(measured_json) })
}

fn as_json(status: &Status) -> Value {
    let member = |member: &MemberStatus| {
        let (state, reason) = match &member.state {
            MemberState::Joining => ("joining", None),
            MemberState::Present => ("present", None),
            MemberState::Leaving => ("leaving", None),
            MemberState::Left => ("left", None),
            MemberState::Lost { reason } => ("lost", Some(reason.clone())),
        };
        let shards = shards_of(status, member.node);
        json!({
            "node": member.node.to_string(), "address": member.address, "state": state, "reason": reason,
            "silent_s": member.silent.as_secs_f64(), "clock": member.clock.0,
            "shards_answered": shards.map(|(heads, _)| heads), "shards_held": shards.map(|(_, held)| held),
            "bytes_held": bytes_of(status, member.node),
            "step": member.report.step.as_ref().map(measured_json),
            "round_trip": member.report.round_trip.as_ref().map(measured_json),
            "timeouts": member.report.timeouts.iter().map(timeout_json).collect::<Vec<_>>(),
        })
    };
    let names = |nodes: &[WorkerId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "plan": status.plan.number.0,
        "shards": status.plan.chains.len(),
        "replicas": status.replicas,
        "chains": status.plan.chains.iter().map(|chain| json!({"replicas": chain.replicas, "backfilling": chain.backfilling})).collect::<Vec<_>>(),
        "adopting": status.adopting.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "members": status.members.iter().map(member).collect::<Vec<_>>(),
        "awaited_at_the_barrier": names(&status.awaited),
        "waited_for": names(&status.waited_for),
        "slow": names(&status.slow),
        "tables": status.tables.iter().map(|table| json!({"name": table.spec.name, "frontier": table.frontier.map(|clock| clock.0)})).collect::<Vec<_>>(),
        "slowest_clock": slowest(status),
        "failure_timeout_s": status.failure_timeout.as_secs_f64(),
        "serving_lease_s": status.lease.map(|lease| lease.as_secs_f64()),
        "timeouts": status.timeouts.iter().map(timeout_json).collect::<Vec<_>>(),
    })
}
