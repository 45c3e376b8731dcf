//! The hostile process of a siege. It finds the nodes by itself, tries everything a fixed number of
//! times, and prints what it has done.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use types::{NodeId, Role, SplitMix64, TableId};
use wire::{Control, Message, NodeRole};

use super::cpu_seconds;
use super::line::{Line, Mask};
use super::members::{flood, join_and_vanish, misbehave, provisional, role_of, say_everything};
use super::strangers::{Stranger, ask_status};
use super::tokens::mask_of;

/// How long the coordinator may take to answer before the attack begins.
const ANSWER: Duration = Duration::from_secs(10);
/// Threads that attack at the same time.
const THREADS: usize = 4;
/// How long an attacker with a place goes on.
const SEATED: Duration = Duration::from_secs(4);

/// The settings of the hidden attacker process.
#[derive(clap::Args)]
pub struct SiegeAttacker {
    /// The address of the coordinator.
    #[arg(long = "coordinator")]
    coordinator_address: SocketAddr,
    /// The folder with its tokens.
    #[arg(long)]
    folder: PathBuf,
    /// How often each of its threads tries everything.
    #[arg(long)]
    passes: u64,
    /// It ends after this many seconds, even if passes are left.
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    seed: u64,
    /// Take places in the run, in place of the attacks that need none.
    #[arg(long)]
    seated: bool,
}

/// How often each attack was tried, and what came of it.
#[derive(Default)]
pub(super) struct Tally {
    attacks: BTreeMap<String, u64>,
    passes: u64,
    strangers_answered: u64,
    forbidden: u64,
    forbidden_refused: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        for (attack, count) in other.attacks {
            *self.attacks.entry(attack).or_default() += count;
        }
        self.passes += other.passes;
        self.strangers_answered += other.strangers_answered;
        self.forbidden += other.forbidden;
        self.forbidden_refused += other.forbidden_refused;
    }

    /// Counts an attempt.
    pub(super) fn tried(&mut self, attack: &str) {
        *self.attacks.entry(attack.to_owned()).or_default() += 1;
    }

    /// Notes whether a node has answered a stranger by a frame.
    pub(super) fn answered_stranger(&mut self, answered: bool) {
        self.strangers_answered += u64::from(answered);
    }

    /// Notes whether a node has closed the connection on which something was said that the role of
    /// the sender may not say.
    pub(super) fn forbidden(&mut self, refused: bool) {
        self.forbidden += 1;
        self.forbidden_refused += u64::from(refused);
    }
}

/// A node that is attacked.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
}

impl Target {
    pub(super) fn role(self) -> Role {
        match self.node {
            NodeId::Coordinator => Role::Coordinator,
            NodeId::Server(_) => Role::Server,
            NodeId::Worker(_) => Role::Worker,
        }
    }
}

/// The run that is attacked.
pub(super) struct Run {
    pub(super) coordinator: SocketAddr,
    targets: Vec<Target>,
    /// The table that honest workers write.
    pub(super) honest: TableId,
}

impl Run {
    /// Finds the nodes and the table of honest workers, as a reader may.
    fn find(coordinator: SocketAddr, reader: &Mask, random: &mut SplitMix64) -> anyhow::Result<Self> {
        let mut line = Line::call(coordinator, reader)?;
        line.send(&ask_status(provisional(Role::Reader, random)))?;
        let status = line.find(ANSWER, |frame| match &frame.message {
            Message::Control(Control::Status { status }) => Some(status.clone()),
            _ => None,
        });
        let status = status.context("the coordinator does not answer a reader")?;
        let honest = status.tables.first().context("the run has no table")?.table;
        let mut targets = vec![Target { node: NodeId::Coordinator, address: coordinator }];
        let members = status.members.iter();
        targets.extend(
            members.filter_map(|member| Some(Target { node: member.node, address: member.address.parse().ok()? })),
        );
        Ok(Self { coordinator, targets, honest })
    }

    /// Any node.
    pub(super) fn any(&self, random: &mut SplitMix64) -> &Target {
        &self.targets[random.below(self.targets.len() as u64) as usize]
    }
}

/// Tries everything that needs no place in the run, `passes` times.
fn storm(options: &SiegeAttacker, run: &Run, until: Instant, mut random: SplitMix64) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut stranger = Stranger::new(&options.folder)?;
    while tally.passes < options.passes && Instant::now() < until {
        let target = *run.any(&mut random);
        stranger.try_everything(target.address, run.coordinator, &mut random, &mut tally)?;
        for role in Role::ALL {
            say_everything(role, &mask_of(&options.folder, role)?, run, &mut random, &mut tally);
        }
        flood(&mask_of(&options.folder, Role::Reader)?, run, &mut random, &mut tally);
        tally.passes += 1;
    }
    Ok(tally)
}

/// Takes places in the run, misbehaves there, and asks for more places than it takes.
fn misbehave_in_places(
    options: &SiegeAttacker,
    run: &Run,
    until: Instant,
    random: &mut SplitMix64,
) -> anyhow::Result<Tally> {
    let mut tally = Tally { passes: 1, ..Tally::default() };
    for role in [NodeRole::Worker, NodeRole::Server] {
        let mask = mask_of(&options.folder, role_of(role))?;
        misbehave(role, &mask, run, random, &mut tally, until.min(Instant::now() + SEATED))?;
        join_and_vanish(role, &mask, run, random, &mut tally);
    }
    Ok(tally)
}

/// Attacks, and prints what it has done as JSON.
pub(crate) fn attack(options: &SiegeAttacker) -> anyhow::Result<()> {
    let begin = Instant::now();
    let until = begin + Duration::from_secs_f64(options.seconds);
    let mut random = SplitMix64::new(options.seed);
    let run = Run::find(options.coordinator_address, &mask_of(&options.folder, Role::Reader)?, &mut random)?;
    let tally = if options.seated {
        misbehave_in_places(options, &run, until, &mut random)?
    } else {
        std::thread::scope(|scope| {
            let seeds: Vec<u64> = (0..THREADS).map(|_| random.draw()).collect();
            let storm = |seed: u64| storm(options, &run, until, SplitMix64::new(seed));
            let threads: Vec<_> = seeds.into_iter().map(|seed| scope.spawn(move || storm(seed))).collect();
            threads.into_iter().try_fold(Tally::default(), |mut sum, thread| {
                sum.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
                Ok::<_, anyhow::Error>(sum)
            })
        })?
    };
    let found = json!({
        "passes": tally.passes,
        "seconds": begin.elapsed().as_secs_f64(),
        "cpu_seconds": cpu_seconds(),
        "attacks": tally.attacks,
        "strangers_answered": tally.strangers_answered,
        "forbidden": tally.forbidden,
        "forbidden_refused": tally.forbidden_refused,
    });
    Ok(writeln!(std::io::stdout(), "{found}")?)
}
