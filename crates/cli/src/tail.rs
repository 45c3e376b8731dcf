//! `tail`: prints the rows of a table as they change, while the run goes on.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use slackwater::Connect;
use slackwater::feed::{Changes, Feed, FollowFrom, FollowOptions, follow_bytes};
use slackwater::policy::NumberType;
use slackwater::table::{Clock, TargetNumber};

use crate::security::SecurityOptions;

/// How long one call of the feed waits for changes.
const TURN: Duration = Duration::from_secs(1);

/// The settings of `tail`.
#[derive(clap::Args)]
pub(crate) struct TailOptions {
    /// The name of the table.
    table: String,
    /// The address of the coordinator.
    #[arg(long = "coordinator", value_name = "HOST:PORT")]
    coordinator_address: String,
    /// Print all rows first, and then each change.
    #[arg(long)]
    rows: bool,
    /// Print the changes since this clock. Servers remember changes while a reader follows the
    /// table, and for a minute after that.
    #[arg(long, value_name = "CLOCK", conflicts_with = "rows")]
    from_clock: Option<u64>,
    /// Exit after this many rows.
    #[arg(long, value_name = "ROWS")]
    count: Option<u64>,
    /// How many seconds to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Print a JSON object for each row, rather than text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: SecurityOptions,
}

/// The command `tail`.
pub(crate) fn run(options: &TailOptions) -> anyhow::Result<()> {
    let connect = Connect {
        join_limit: Duration::from_secs(options.limit),
        access: options.security.access(),
        ..Connect::to(&options.coordinator_address)
    };
    let from = match options.from_clock {
        Some(clock) => FollowFrom::Clock(Clock(clock)),
        None if options.rows => FollowFrom::Rows,
        None => FollowFrom::Now,
    };
    let tail = || {
        let feed = follow_bytes(&connect, &options.table, FollowOptions { from })?;
        match feed.spec().number {
            NumberType::F32 => tail::<f32>(feed.into_numbers()?, options),
            NumberType::F64 => tail::<f64>(feed.into_numbers()?, options),
            NumberType::I64 => tail::<i64>(feed.into_numbers()?, options),
        }
    };
    tail().with_context(|| format!("the run of the coordinator at {}", options.coordinator_address))
}

fn tail<T: TargetNumber + Display + Into<Value>>(mut feed: Feed<T>, options: &TailOptions) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut left = options.count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    while left > 0 {
        let Some(changes) = feed.next(TURN)? else { continue };
        let lines = lines(&changes, options.json);
        lines.iter().take(left).try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()?;
        left -= left.min(changes.ids.len() + changes.deleted.len());
    }
    Ok(())
}

/// The lines to print for some changes.
fn lines<T: TargetNumber + Display + Into<Value>>(changes: &Changes<T>, as_json: bool) -> Vec<String> {
    let Changes { clock: Clock(clock), shard, .. } = *changes;
    let width = changes.values.len().checked_div(changes.ids.len()).unwrap_or(1).max(1);
    let start = changes.starts_over.then(|| match as_json {
        true => json!({ "clock": clock, "shard": shard, "starts_over": true }).to_string(),
        false => format!("clock {clock}: shard {shard} starts over: drop its rows; all its rows follow"),
    });
    let rows = changes.ids.iter().zip(changes.values.chunks_exact(width)).map(|(id, row)| match as_json {
        true => {
            let values: Vec<Value> = row.iter().map(|value| (*value).into()).collect();
            json!({ "clock": clock, "shard": shard, "id": id, "values": values }).to_string()
        }
        false => format!("clock {clock}: {id}: {}", row.iter().map(T::to_string).collect::<Vec<_>>().join(" ")),
    });
    let deleted = changes.deleted.iter().map(|id| match as_json {
        true => json!({ "clock": clock, "shard": shard, "id": id, "deleted": true }).to_string(),
        false => format!("clock {clock}: {id}: deleted"),
    });
    start.into_iter().chain(rows).chain(deleted).collect()
}
