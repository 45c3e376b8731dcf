//! Where a coordinator's memory lives, and which coordinator leads.
//!
//! Several coordinators may stand for one job. A [`CoordinatorRegistry`] lets one of them lead at a
//! time, for as long as it keeps its leader lease, and saves the leader's memory. The next
//! leader goes on from that memory. It promises:
//! - **Terms grow.** Each new leadership has a term that no earlier one of the job had.
//! - **A save is fenced.** It is done whole, by the candidate that leads in that moment, or it is
//!   refused whole. No leader's save is ever replaced by one that an earlier leader made, nor by
//!   one that itself made earlier.
//! - **A leader stops first.** Leading is good until an [`Instant`] of the leader's own clock, and
//!   nobody else is let in before it.
//!
//! Of these the fence is what others may build on: a coordinator saves what it has decided before
//! it tells anybody. The instant only keeps a leader that is cut off from talking on; clocks that
//! run at unlike speeds can break it, and not the fence.
//!
//! There are two: [`InProcessLocation`], between threads of one process, and [`EtcdLocation`]. Both
//! give a [`CoordinatorRegistry`] to each [`Candidate`].

mod client;
mod etcd;
mod memory;
mod stored;

pub(crate) use client::{RegistryClient, RegistryEvent};
pub use etcd::{EtcdLocation, EtcdLocationError, EtcdRegistry};
pub use memory::{InProcessLocation, InProcessRegistry};

use std::time::{Duration, Instant};

/// The largest memory that is kept, in bytes.
pub const MEMORY_BYTES: usize = 64 << 20;

/// A coordinator that would lead a job.
///
/// ```
/// let candidate = node::registry::Candidate::new("clicks-17", "10.0.0.5:7070");
/// assert_eq!(candidate.leader_lease.as_secs(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The job. What another job left in the same place is refused, rather than taken for this
    /// one's.
    pub job: String,
    /// Where nodes find this coordinator: what followers are told while it leads.
    pub address: String,
    /// How long a leadership outlives its last [`renew`](CoordinatorRegistry::renew). etcd rounds
    /// up to whole seconds, and to two seconds or so at least.
    pub leader_lease: Duration,
}

impl Candidate {
    /// With a leader lease of four seconds.
    #[must_use]
    pub fn new(job: impl Into<String>, address: impl Into<String>) -> Self {
        Self { job: job.into(), address: address.into(), leader_lease: Duration::from_secs(4) }
    }
}

/// The outcome of a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CampaignOutcome {
    /// This candidate leads.
    Leading {
        /// Larger than that of every leadership before.
        term: u64,
        /// From then on it must act as one that does not lead, unless its leader lease was renewed
        /// meanwhile.
        until: Instant,
    },
    /// Another does, or a process of the same address whose leader lease has not ended.
    Following {
        /// The address of that one.
        leader: String,
    },
}

/// One candidate's way to the job's memory and to leading. Every call returns within a bounded
/// time. `now` is the caller's clock, read just before the call.
///
/// ```
/// use node::registry::{Candidate, InProcessLocation, CoordinatorRegistry, CampaignOutcome};
/// use std::time::Instant;
///
/// let place = InProcessLocation::new();
/// let mut first = place.stand(Candidate::new("clicks-17", "10.0.0.5:7070"));
/// let mut second = place.stand(Candidate::new("clicks-17", "10.0.0.6:7070"));
///
/// let now = Instant::now();
/// let CampaignOutcome::Leading { until, .. } = first.campaign(now)? else {
///     panic!("nobody else stood")
/// };
/// let leader = "10.0.0.5:7070".to_owned();
/// assert_eq!(second.campaign(now)?, CampaignOutcome::Following { leader });
/// first.save(now, b"plan 3")?;
///
/// // The first one is heard of no more. Well after it had to stop, the second one leads and goes
/// // on from its memory.
/// assert!(matches!(second.campaign(until + (until - now))?, CampaignOutcome::Leading { .. }));
/// assert_eq!(second.load()?.as_deref(), Some(&b"plan 3"[..]));
/// assert!(first.save(now, b"plan 4").is_err());
/// # Ok::<(), node::registry::RegistryError>(())
/// ```
pub trait CoordinatorRegistry: Send {
    /// Leads if nobody else does. For one that leads it does what [`renew`](Self::renew) does. A
    /// candidate that stopped because it could not keep its leader lease, and finds that nobody
    /// took its place, leads on in the same term.
    fn campaign(&mut self, now: Instant) -> Result<CampaignOutcome, RegistryError>;

    /// Renews the leader lease, and returns when leading ends. Call it several times in each leader
    /// lease.
    fn renew(&mut self, now: Instant) -> Result<Instant, RegistryError>;

    /// What was saved last, by whichever leader. Anybody may ask.
    fn load(&mut self) -> Result<Option<Vec<u8>>, RegistryError>;

    /// Replaces the memory, if this candidate leads. After [`RegistryError::Unreachable`] it may or
    /// may not have been replaced: either way the next save that succeeds is the one that counts.
    fn save(&mut self, now: Instant, memory: &[u8]) -> Result<(), RegistryError>;

    /// Removes the memory, if this candidate leads: the job is over.
    fn forget(&mut self, now: Instant) -> Result<(), RegistryError>;

    /// Leads no more, from this call on, whatever it returns. Another is let in at once or, if this
    /// could not be told, when the leader lease ends. One that does not lead has nothing to resign.
    fn resign(&mut self) -> Result<(), RegistryError>;

    /// The address of the coordinator that leads. Anybody may ask.
    fn leader(&mut self, now: Instant) -> Result<Option<String>, RegistryError>;
}

/// Why the registry did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Nothing can be known for now. Ask again, and stop leading when the time comes.
    #[error(
        "etcd does not answer ({reasons}); nothing was heard of it for {:.1} s. Until it answers nobody can be elected and nothing be \
         saved: is it running, and are the addresses right?",
        silent.as_secs_f64()
    )]
    Unreachable {
        /// Each endpoint, and what happened there.
        reasons: String,
        /// The time since any of them last answered or, if none ever did, since the first was
        /// asked.
        silent: Duration,
    },
    /// This candidate does not lead, or no longer. Follow, or campaign again and load what others
    /// may have saved.
    #[error(
        "this coordinator does not lead{}; nothing was changed: follow the one that leads, or campaign again",
        by(leader)
    )]
    NotLeading {
        /// Who does, if that is known.
        leader: Option<String>,
    },
    /// Something else than the etcd that is meant answers. Waiting does not help.
    #[error(
        "what answers at {endpoint} is not the etcd that is meant: {reason}; give the address at which an etcd, of version 3.4 or later, \
         listens for clients"
    )]
    NotEtcd {
        /// Where.
        endpoint: String,
        /// What came instead.
        reason: String,
    },
    /// etcd heard and will not. Whoever runs it must see to it.
    #[error("etcd at {endpoint} refuses: {reason}{}", advice(reason))]
    Refused {
        /// Where.
        endpoint: String,
        /// In its own words.
        reason: String,
    },
    /// Another job uses the same place.
    #[error(
        "{place} belongs to job `{found}`, not to `{expected}`: give each job a path of its own, or remove what an old one left"
    )]
    OtherJob {
        /// Where.
        place: String,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// Another version of Slackwater wrote what is there.
    #[error(
        "{place} was written in format {found}, and this Slackwater knows format {expected}: run one version everywhere"
    )]
    OtherVersion {
        /// Where.
        place: String,
        /// The number found.
        found: u16,
        /// The number known.
        expected: u16,
    },
    /// What is there was not written by Slackwater, or not whole.
    #[error(
        "{place} does not hold what Slackwater wrote there: {reason}; give the job another path, or remove what is there"
    )]
    Damaged {
        /// Where.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The memory is beyond [`MEMORY_BYTES`].
    #[error("a memory of {bytes} bytes cannot be kept: at most {limit} can")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
}

fn by(leader: &Option<String>) -> String {
    leader.as_ref().map(|leader| format!(", {leader} does")).unwrap_or_default()
}

/// What to do about refusals that people meet.
fn advice(reason: &str) -> &'static str {
    const ADVICE: [(&str, &str); 3] = [
        ("space exceeded", "; compact and defragment it, and run it with --auto-compaction-retention"),
        ("too large", "; run it with the usual --max-request-bytes"),
        ("user name", "; Slackwater does not log in to etcd: give it one that asks for no user"),
    ];
    ADVICE.iter().find(|(words, _)| reason.contains(words)).map_or("", |(_, advice)| advice)
}

/// How long a leader may lead after renewing its leader lease at `now`. The last quarter is left
/// for clocks that differ, and for an etcd that has chosen a new leader of its own while an old one
/// still renewed leases.
fn lead_until(now: Instant, lease: Duration) -> Instant {
    now + lease / 4 * 3
}

fn check_length(memory: &[u8]) -> Result<(), RegistryError> {
    let (bytes, limit) = (memory.len(), MEMORY_BYTES);
    if bytes > limit { Err(RegistryError::TooLarge { bytes, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_comes_with_what_to_do_about_it() {
        let refused = |reason: &str| {
            RegistryError::Refused { endpoint: "10.0.0.1:2379".into(), reason: reason.into() }.to_string()
        };
        let rows = [
            ("etcdserver: mvcc: database space exceeded", "compact and defragment it"),
            ("etcdserver: request is too large", "--max-request-bytes"),
            ("etcdserver: user name is empty", "does not log in"),
        ];
        for (reason, advice) in rows {
            let said = refused(reason);
            assert!(said.starts_with("etcd at 10.0.0.1:2379 refuses: etcdserver") && said.contains(advice), "{said}");
        }
        assert_eq!(refused("it does not like you"), "etcd at 10.0.0.1:2379 refuses: it does not like you");
    }
}
