//! `slackwater status`: asks the coordinator of a run for nodes, shards, tables and waits.

mod json;
mod text;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context;
use slackwater::Connect;
use slackwater::cluster::NodeId;
use slackwater::monitor::{Status, status};

use json::as_json;
use text::as_text;

use crate::security::SecurityOptions;

/// The settings of `status`.
#[derive(clap::Args)]
pub(crate) struct StatusOptions {
    /// The address of the coordinator.
    #[arg(long = "coordinator", value_name = "HOST:PORT")]
    coordinator_address: String,
    /// How many seconds to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Also show every time-out with its reason, and tables that programs keep for themselves.
    #[arg(long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON rather than text: everything, always.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: SecurityOptions,
}

/// The command `status`.
pub(crate) fn run(options: &StatusOptions) -> anyhow::Result<()> {
    let access = options.security.access();
    // A process without a token hears from insecure nodes only.
    let is_insecure = access.is_insecure();
    let connect =
        Connect { join_limit: Duration::from_secs(options.limit), access, ..Connect::to(&options.coordinator_address) };
    let status =
        status(&connect).with_context(|| format!("the run of the coordinator at {}", options.coordinator_address))?;
    let text = match options.json {
        true => format!("{}\n", as_json(&status, is_insecure)),
        false => as_text(&status, is_insecure, options.verbose),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// How many shards a server is the head of, and how many it holds.
fn shards_of(status: &Status, node: NodeId) -> Option<(usize, usize)> {
    let NodeId::Server(index) = node else { return None };
    let heads = status.plan.chains.iter().filter(|chain| chain.replicas.first() == Some(&index)).count();
    Some((heads, status.plan.chains.iter().filter(|chain| chain.holds(index)).count()))
}

/// Bytes that a server holds, as the heads of its shards report them.
fn bytes_of(status: &Status, node: NodeId) -> Option<u64> {
    let NodeId::Server(index) = node else { return None };
    let shards = status.members.iter().flat_map(|member| &member.report.shards);
    let held = shards.filter(|(shard, _)| {
        status.plan.chains.get(shard.0 as usize).is_some_and(|chain| chain.replicas.contains(&index))
    });
    Some(held.map(|(_, bytes)| bytes).sum())
}
