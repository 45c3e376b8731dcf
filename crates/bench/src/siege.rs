//! `bench siege`: a secured elastic run whose workers push and count, while a hostile process tries
//! everything that a stranger can, and everything that the holder of a restricted token should not
//! be able to.
//!
//! - **Without a token**: no frame reaches a machine. Nodes count the frames that did, and the
//!   attacker counts answers.
//! - **With a token of each role**: every kind of message with random content, but those by which
//!   the role may rightly do harm (`siege/rights.rs`).
//!
//! Throughput under attack is compared to the same run beside a process that takes as much of the
//! processors as the attacker did. In the end no push was lost or counted twice, and no process has
//! ended. Attackers that take a place in the run come last: a member may hold the frontier.

mod attacker;
mod line;
mod members;
mod nodes;
mod rights;
mod spinner;
mod strangers;
mod tokens;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use launch::{OutputTarget, Process, Start};
use serde_json::Value;
use slackwater::cluster::SameHost;
use slackwater::security::Token;

pub use attacker::SiegeAttacker;
pub(crate) use attacker::attack;
use nodes::Counts;
pub use spinner::SiegeSpinner;
pub(crate) use spinner::spin;

use crate::chaos::cluster::{ClusterOptions, LIMIT, LOOK, Node};
use crate::chaos::pushing::{Pushing, PushingOptions};
use crate::learning::Scratch;
use crate::measure::{Format, Report, median};

/// The failure timeout of the run, in seconds.
const FAILURE_TIMEOUT: u64 = 2;
/// The share of the time in which places in the run are attacked, and the share of all rounds.
const SEATED_SHARE: f64 = 0.15;
const ROUNDS_SHARE: f64 = 0.6;
/// How much memory a node may gain by the siege.
const MOST_GAINED: u64 = 512 << 20;

/// The settings of `bench siege`.
#[derive(clap::Args)]
pub struct SiegeBench {
    /// The benchmark takes no more than about this many seconds. Attacks that are not over by then
    /// end early.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    seconds: u64,
    /// Measure throughput this many times under attack, and as often beside a spinning process.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// How often the attacker tries everything in each round.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    passes: u64,
    /// The seed of random messages.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What an attacker has printed, added up over rounds.
#[derive(Default)]
struct Attacked {
    attacks: BTreeMap<String, u64>,
    /// Attempts to say something forbidden whose connection was closed, and all of them.
    refused: u64,
    forbidden: u64,
    strangers_answered: u64,
    passes: u64,
}

impl Attacked {
    fn add(&mut self, found: &Value) -> anyhow::Result<()> {
        let number = |name: &str| found[name].as_u64().with_context(|| format!("the attacker does not print {name}"));
        self.refused += number("forbidden_refused")?;
        self.forbidden += number("forbidden")?;
        self.strangers_answered += number("strangers_answered")?;
        self.passes += number("passes")?;
        for (attack, count) in found["attacks"].as_object().context("the attacker prints no attacks")? {
            *self.attacks.entry(attack.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        Ok(())
    }
}

/// A run under siege.
struct Siege<'a> {
    options: &'a SiegeBench,
    pushing: Pushing,
    scratch: Scratch,
    attacked: Attacked,
}

/// The command `bench siege`.
pub(crate) fn run(options: &SiegeBench) -> anyhow::Result<()> {
    let begin = Instant::now();
    let cluster = ClusterOptions {
        failure_timeout: FAILURE_TIMEOUT,
        has_metrics: true,
        // Each process stands for a host of its own.
        same_host: SameHost::Tcp,
        ..ClusterOptions::default()
    };
    let pushing = Pushing::start(PushingOptions { cluster, leases: None, large_mib: None })?;
    let scratch = Scratch::named("siege")?;
    let token_file = pushing.cluster().token_file().context("the run has no token")?.to_owned();
    tokens::write(&token_file, &scratch.path(""))?;
    let Token::Job(job) = Token::read(&token_file)? else { bail!("the run's token is not a job token") };
    let nodes = pushing.cluster().nodes();
    let before = memory(&nodes)?;
    let mut siege = Siege { options, pushing, scratch, attacked: Attacked::default() };

    let mut ratios = Vec::new();
    let mut rates = Vec::new();
    let mut shares = Vec::new();
    for round in 0..options.rounds {
        let limit = options.seconds as f64 * ROUNDS_SHARE / options.rounds as f64 / 2.0;
        let (found, attacked) = siege.attack(round, limit, false)?;
        let seconds = found["seconds"].as_f64().context("the attacker prints no time")?;
        let share = found["cpu_seconds"].as_f64().context("the attacker prints no processor time")? / seconds;
        let beside = siege.spin(share, seconds)?;
        ratios.push(attacked / beside);
        rates.push(attacked);
        shares.push(share);
    }
    let limit = options.seconds as f64 * SEATED_SHARE;
    siege.attack(options.rounds, limit, true)?;
    siege.pushing.wait_until_settled()?;

    let after = memory(&nodes)?;
    let mut counts = Counts::default();
    for node in &nodes {
        let address = node.metrics.context("a node serves no metrics")?;
        counts.add(&nodes::metrics(address, &job.http_bearer().text())?);
    }
    let ended = siege.pushing.ended()?;
    let acknowledged = siege.pushing.acknowledged();
    let (lost, doubled) = siege.pushing.account()?;

    let mut report = Report::default();
    report.number("seconds", begin.elapsed().as_secs_f64());
    report.number("passes", siege.attacked.passes as f64);
    for (attack, count) in &siege.attacked.attacks {
        report.number(&format!("tried_{attack}"), *count as f64);
    }
    report.number("forbidden_messages", siege.attacked.forbidden as f64);
    report.number("forbidden_messages_refused", siege.attacked.refused as f64);
    report.number("strangers_answered", siege.attacked.strangers_answered as f64);
    report.number("unauthenticated_frames", counts.unauthenticated as f64);
    report.number("nodes_that_count_them", counts.nodes as f64);
    for (reason, count) in &counts.refusals {
        report.number(&format!("refused_{}", reason.replace([' ', '-'], "_")), *count as f64);
    }
    report.number("pushes_per_s_under_attack", median(&mut rates));
    report.number("attacker_cpu_share", median(&mut shares));
    report.number("throughput_over_spinning", median(&mut ratios));
    for (node, (before, after)) in nodes.iter().zip(before.iter().zip(&after)) {
        report.number(&format!("{}_peak_mb_before", node.name), *before as f64 / 1e6);
        report.number(&format!("{}_peak_mb", node.name), *after as f64 / 1e6);
    }
    report.number("pushes_acknowledged", acknowledged as f64);
    report.number("rows_of_pushes_lost", lost as f64);
    report.number("rows_of_pushes_doubled", doubled as f64);
    report.number("processes_ended", ended as f64);
    report.print(if options.json { Format::Json } else { Format::Table })?;

    ensure!(lost == 0 && doubled == 0, "{lost} rows of pushes were lost and {doubled} counted twice");
    ensure!(ended == 0, "{ended} processes ended");
    ensure!(
        counts.nodes == nodes.len() as u64,
        "only {} of {} nodes count frames of strangers",
        counts.nodes,
        nodes.len()
    );
    ensure!(counts.unauthenticated == 0, "{} frames of strangers reached a machine", counts.unauthenticated);
    ensure!(siege.attacked.strangers_answered == 0, "nodes answered {} strangers", siege.attacked.strangers_answered);
    let accepted = siege.attacked.forbidden - siege.attacked.refused;
    ensure!(accepted == 0, "{accepted} messages were not refused although the sender's role may not send them");
    for (node, (before, after)) in nodes.iter().zip(before.iter().zip(&after)) {
        let gained = after.saturating_sub(*before);
        ensure!(gained <= MOST_GAINED, "{} gained {} MB of memory", node.name, gained / 1_000_000);
    }
    Ok(())
}

fn memory(nodes: &[Node]) -> anyhow::Result<Vec<u64>> {
    nodes.iter().map(|node| nodes::peak_memory(node.id)).collect()
}

impl Siege<'_> {
    /// Attacks once. Returns what the attacker has printed, and the pushes a second meanwhile.
    fn attack(&mut self, round: u64, limit: f64, is_seated: bool) -> anyhow::Result<(Value, f64)> {
        let options = self.options;
        let address = &self.pushing.cluster().connect().coordinator_address;
        let process = Start::this_program("the attacker")?
            .args(["bench-peer", "siege", "--coordinator", address, "--folder"])
            .args([self.scratch.path("")])
            .args([
                format!("--passes={}", if is_seated { 1 } else { options.passes }),
                format!("--seconds={limit}"),
                format!("--seed={}", options.seed.wrapping_add(round)),
            ])
            .args(is_seated.then_some("--seated"))
            .stdout(OutputTarget::Capture)
            .stderr(OutputTarget::Inherit)
            .spawn()?;
        let (printed, rate) = self.beside(process)?;
        let found = serde_json::from_str(&printed).context("the attacker prints no JSON")?;
        self.attacked.add(&found)?;
        Ok((found, rate))
    }

    /// Lets a process spin in place of the attacker. Returns the pushes a second meanwhile.
    fn spin(&mut self, share: f64, seconds: f64) -> anyhow::Result<f64> {
        let process = Start::this_program("a spinning process")?
            .args(["bench-peer", "spin", &format!("--share={share}"), &format!("--seconds={seconds}")])
            .spawn()?;
        Ok(self.beside(process)?.1)
    }

    /// Waits until a process ends. Returns what it has printed, and the pushes a second meanwhile.
    fn beside(&mut self, mut process: Process) -> anyhow::Result<(String, f64)> {
        let begin = Instant::now();
        let before = self.pushing.acknowledged();
        let longest = Duration::from_secs(self.options.seconds) + LIMIT;
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            ensure!(begin.elapsed() < longest, "{} does not end", process.name());
            std::thread::sleep(LOOK);
        };
        let rate = (self.pushing.acknowledged() - before) as f64 / begin.elapsed().as_secs_f64();
        ensure!(status.success(), "{} failed: {status}", process.name());
        process.finish_output();
        Ok((process.stdout(), rate))
    }
}
