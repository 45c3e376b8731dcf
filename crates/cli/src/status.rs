//! `status`: how a run stands, from its coordinator.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use slackwater::{Connect, NodeId, Standing, Status, status};

/// The settings of `status`.
#[derive(clap::Args)]
pub struct Options {
    /// Where the run meets.
    #[arg(long, value_name = "HOST:PORT")]
    meet: String,
    /// How many seconds to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The command `status`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let connect = Connect { join_limit: Duration::from_secs(options.limit), ..Connect::to(&options.meet) };
    let status = status(&connect).with_context(|| format!("the run that meets at {}", options.meet))?;
    let text = if options.json { format!("{}\n", as_json(&status)) } else { as_text(&status) };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn slices_of(status: &Status, node: NodeId) -> Option<(usize, usize)> {
    let NodeId::Server(index) = node else { return None };
    let heads = status.plan.chains.iter().filter(|chain| chain.whole.first() == Some(&index)).count();
    Some((heads, status.plan.chains.iter().filter(|chain| chain.holds(index)).count()))
}

/// The clock of the slowest worker that takes part.
fn slowest(status: &Status) -> Option<u64> {
    let takes_part = status.members.iter().filter(|member| member.standing == Standing::Present);
    takes_part.filter(|member| matches!(member.node, NodeId::Worker(_))).map(|member| member.clock.0).min()
}

fn as_text(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!(
        "plan {}: {} slices, {} copies of each",
        status.plan.number.0,
        status.plan.chains.len(),
        status.copies
    ));
    if !status.adopting.is_empty() {
        let names: Vec<String> = status.adopting.iter().map(ToString::to_string).collect();
        line(format!("  not adopted yet by {}", names.join(", ")));
    }
    let short = status.plan.chains.iter().filter(|chain| chain.whole.len() < status.copies as usize).count();
    if short > 0 {
        line(format!(
            "  {short} slices have fewer copies than they should; start more servers, or wait until they are filled"
        ));
    }
    let slowest = slowest(status);
    for member in &status.members {
        let mut words = format!("{:<12} {:<22}", member.node.to_string(), member.address);
        match &member.standing {
            Standing::Joining => words.push_str(" joining"),
            Standing::Left => words.push_str(" left"),
            Standing::Lost { reason } => write!(words, " lost: {reason}").unwrap_or_default(),
            Standing::Present => {
                write!(words, " heard {:.1} s ago", member.silent.as_secs_f64()).unwrap_or_default();
                if let Some((heads, held)) = slices_of(status, member.node) {
                    write!(words, ", answers for {heads} slices, holds {held}").unwrap_or_default();
                } else {
                    write!(words, ", clock {}", member.clock.0).unwrap_or_default();
                    if slowest == Some(member.clock.0) {
                        words.push_str(", the others may wait for it");
                    }
                }
            }
        }
        line(words);
    }
    for worker in &status.awaited {
        line(format!("the barrier waits for {worker}"));
    }
    line(format!("tables: {}", if status.tables.is_empty() { "none".to_owned() } else { status.tables.join(", ") }));
    let patience = status.patience.as_secs_f64();
    match status.lease {
        None => line(format!("a node that is silent for {patience} s (patience) is lost, and the run with it")),
        Some(lease) => {
            line(format!("a worker that is silent for {patience} s (patience) is done without"));
            line(format!(
                "a server answers for {} s after a beat that is answered (its lease: patience)",
                lease.as_secs_f64()
            ));
            line(format!(
                "a server that is silent for {} s is given up (lease and a quarter: clocks differ)",
                patience * 1.25
            ));
        }
    }
    text
}

fn as_json(status: &Status) -> Value {
    let member = |member: &slackwater::MemberStatus| {
        let (standing, reason) = match &member.standing {
            Standing::Joining => ("joining", None),
            Standing::Present => ("present", None),
            Standing::Left => ("left", None),
            Standing::Lost { reason } => ("lost", Some(reason.clone())),
        };
        let slices = slices_of(status, member.node);
        json!({
            "node": member.node.to_string(), "address": member.address, "standing": standing, "reason": reason,
            "silent_s": member.silent.as_secs_f64(), "clock": member.clock.0,
            "slices_answered": slices.map(|(heads, _)| heads), "slices_held": slices.map(|(_, held)| held),
        })
    };
    json!({
        "plan": status.plan.number.0,
        "slices": status.plan.chains.len(),
        "copies": status.copies,
        "chains": status.plan.chains.iter().map(|chain| json!({"whole": chain.whole, "filling": chain.filling})).collect::<Vec<_>>(),
        "adopting": status.adopting.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "members": status.members.iter().map(member).collect::<Vec<_>>(),
        "awaited_at_the_barrier": status.awaited.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "tables": status.tables,
        "slowest_clock": slowest(status),
        "patience_s": status.patience.as_secs_f64(),
        "lease_s": status.lease.map(|lease| lease.as_secs_f64()),
    })
}
