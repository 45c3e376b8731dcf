//! The registry: leader election among the coordinators of a job, and the storage of the leader's
//! memory.
//!
//! Several coordinators may campaign for one job. A [`CoordinatorRegistry`] lets one of them lead
//! at a time, while it renews its leader lease, and saves the leader's memory. The next leader
//! continues from that memory. A registry guarantees:
//! - **Terms grow.** Each new leadership has a larger term than every earlier one of the job.
//! - **Saves are fenced.** The registry accepts a save only from the candidate that leads at that
//!   moment, and applies it whole or not at all. A save never replaces a later save, neither of
//!   another leader nor of the same one.
//! - **A leader stops first.** A leader may lead until an [`Instant`] of its own clock. The
//!   registry elects no other candidate before it.
//!
//! Correctness depends on the fence alone: a coordinator saves a decision before a node learns of
//! it. The instant only silences a leader that is cut off. Clocks that run at different speeds can
//! break the instant, but not the fence.
//!
//! There are two registries: [`InProcessLocation`], between threads of one process, and
//! [`EtcdLocation`]. Both give each [`Candidate`] a [`CoordinatorRegistry`].

mod client;
mod etcd;
mod memory;
mod stored;

pub(crate) use client::{RegistryClient, RegistryEvent};
#[cfg(fuzzing)]
#[doc(hidden)]
pub use etcd::read_etcd_answer;
pub use etcd::{ETCD_USER_VARIABLE, EtcdAccess, EtcdAccessError, EtcdLocation, EtcdLocationError, EtcdRegistry};
pub use memory::{InProcessLocation, InProcessRegistry};

use std::time::{Duration, Instant};

/// Bytes of the largest memory that a registry saves.
pub const MEMORY_BYTES: usize = 64 << 20;

/// A coordinator that campaigns to lead a job.
///
/// ```
/// let candidate = node::registry::Candidate::new("clicks-17", "10.0.0.5:7070");
/// assert_eq!(candidate.leader_lease.as_secs(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The job. The registry refuses data that another job has left in the same place.
    pub job: String,
    /// The address at which nodes find this coordinator. Followers learn it while this one leads.
    pub address: String,
    /// How long a leadership lasts after its last [`renew`](CoordinatorRegistry::renew). etcd
    /// rounds up to whole seconds, and to about two seconds at least.
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
        /// The term, larger than that of every earlier leadership.
        term: u64,
        /// When it must stop leading, unless it renews its leader lease before.
        until: Instant,
    },
    /// Another candidate leads. It may be a former process of the same address, whose leader lease
    /// has not ended.
    Following {
        /// The leader's address.
        leader: String,
    },
}

/// One candidate's access to the election and to the job's memory. Every call returns within a
/// bounded time. `now` is the caller's clock, read just before the call.
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
///     panic!("no other candidate")
/// };
/// let leader = "10.0.0.5:7070".to_owned();
/// assert_eq!(second.campaign(now)?, CampaignOutcome::Following { leader });
/// first.save(now, b"plan 3")?;
///
/// // The first one falls silent. Well after it had to stop, the second one leads and continues
/// // from its memory.
/// assert!(matches!(second.campaign(until + (until - now))?, CampaignOutcome::Leading { .. }));
/// assert_eq!(second.load()?.as_deref(), Some(&b"plan 3"[..]));
/// assert!(first.save(now, b"plan 4").is_err());
/// # Ok::<(), node::registry::RegistryError>(())
/// ```
pub trait CoordinatorRegistry: Send {
    /// Becomes the leader if no candidate leads. For the leader it does what [`renew`](Self::renew)
    /// does. A candidate that stopped because it could not renew its leader lease leads on in the
    /// same term, if no other has led since.
    fn campaign(&mut self, now: Instant) -> Result<CampaignOutcome, RegistryError>;

    /// Renews the leader lease, and returns when leading ends. Call it several times in each leader
    /// lease.
    fn renew(&mut self, now: Instant) -> Result<Instant, RegistryError>;

    /// The memory that was saved last, by any leader. Every candidate may load it.
    fn load(&mut self) -> Result<Option<Vec<u8>>, RegistryError>;

    /// Replaces the memory, if this candidate leads. After [`RegistryError::Unreachable`] the
    /// memory may have been replaced or not. Either way the next save that succeeds replaces it.
    fn save(&mut self, now: Instant, memory: &[u8]) -> Result<(), RegistryError>;

    /// Removes the memory, if this candidate leads: the job is over.
    fn forget(&mut self, now: Instant) -> Result<(), RegistryError>;

    /// Stops leading with this call, whether it succeeds or fails. Another candidate can be elected
    /// at once or, if the registry could not be told, when the leader lease ends. Does nothing for
    /// a candidate that does not lead.
    fn resign(&mut self) -> Result<(), RegistryError>;

    /// The address of the coordinator that leads. Every candidate may ask.
    fn leader(&mut self, now: Instant) -> Result<Option<String>, RegistryError>;
}

/// Why the registry did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No endpoint of etcd answers. Ask again, and stop leading when the leader lease ends.
    #[error(
        "etcd does not answer ({reasons}); nothing was heard of it for {:.1} s. Until it answers, no coordinator can \
         be elected and nothing can be saved: is it running, and are the addresses right?",
        silent.as_secs_f64()
    )]
    Unreachable {
        /// Each endpoint, and its error.
        reasons: String,
        /// Time since an endpoint last answered or, if none ever did, since the first request.
        silent: Duration,
    },
    /// This candidate does not lead, or no longer. Follow the leader, or campaign again and then
    /// load the memory, which another leader may have saved.
    #[error(
        "this coordinator does not lead{}; nothing was changed: follow the one that leads, or campaign again",
        by(leader)
    )]
    NotLeading {
        /// The address of the leader, if it is known.
        leader: Option<String>,
    },
    /// Something other than the expected etcd answers. Waiting does not help.
    #[error(
        "the server at {endpoint} is not the expected etcd: {reason}; give the address at which an etcd, version 3.4 \
         or later, listens for clients"
    )]
    NotEtcd {
        /// The endpoint.
        endpoint: String,
        /// What it answered instead.
        reason: String,
    },
    /// The connection to etcd cannot be secured. An operator must remove the cause.
    #[error("cannot secure the connection to etcd at {endpoint}: {reason}{}", advice_on_tls(reason))]
    Tls {
        /// The endpoint.
        endpoint: String,
        /// The TLS library's words.
        reason: String,
    },
    /// etcd refuses the request. Its operator must remove the cause.
    #[error("etcd at {endpoint} refuses: {reason}{}", advice(reason))]
    Refused {
        /// The endpoint.
        endpoint: String,
        /// etcd's message.
        reason: String,
    },
    /// Another job uses the same place.
    #[error(
        "{place} belongs to job `{found}`, not to `{expected}`: give each job a path of its own, or remove what an \
         old job left"
    )]
    OtherJob {
        /// The place.
        place: String,
        /// The job that owns it.
        found: String,
        /// The candidate's job.
        expected: String,
    },
    /// Another version of Slackwater wrote the data.
    #[error(
        "{place} was written in format {found}, and this Slackwater knows format {expected}: run one version everywhere"
    )]
    OtherVersion {
        /// The place.
        place: String,
        /// The format number that was found.
        found: u16,
        /// The format number of this release.
        expected: u16,
    },
    /// Slackwater did not write the data, or not all of it.
    #[error(
        "{place} does not hold what Slackwater wrote there: {reason}; give the job another path, or remove what is \
         there"
    )]
    Damaged {
        /// The place.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The memory is larger than [`MEMORY_BYTES`].
    #[error("cannot save the coordinator's memory: it is {bytes} bytes, and a registry stores at most {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

fn by(leader: &Option<String>) -> String {
    leader.as_ref().map(|leader| format!(", {leader} does")).unwrap_or_default()
}

/// What to do about the common refusals of etcd.
fn advice(reason: &str) -> &'static str {
    const ADVICE: [(&str, &str); 6] = [
        ("space exceeded", "; compact and defragment it, and run it with --auto-compaction-retention"),
        ("too large", "; run it with the default --max-request-bytes, or a larger one"),
        ("user name", "; this etcd asks for a user: give --etcd-user-file FILE"),
        ("authentication failed", "; correct name or password in the file of --etcd-user-file"),
        (
            "permission denied",
            "; grant the user's role readwrite to all keys that begin with the job's path (etcdctl role grant-permission \
             --prefix)",
        ),
        ("password-based authentication", "; give the user a password, or take --etcd-user-file away"),
    ];
    ADVICE.iter().find(|(words, _)| reason.contains(words)).map_or("", |(_, advice)| advice)
}

/// What to do about the common failures of a TLS handshake.
fn advice_on_tls(reason: &str) -> &'static str {
    const WANTS_CERTIFICATE: &str =
        "; etcd wants a client certificate of an authority that it trusts: give --etcd-cert and --etcd-key";
    const ADVICE: [(&str, &str); 7] = [
        ("CommonName", "; give the coordinator a certificate without a CommonName, as etcd asks for a login"),
        ("UnknownIssuer", "; --etcd-cacert does not hold the authority that signed etcd's certificate"),
        // Another authority of the same name.
        ("BadSignature", "; --etcd-cacert does not hold the authority that signed etcd's certificate"),
        ("CertificateRequired", WANTS_CERTIFICATE),
        ("not valid for name", "; etcd's certificate is not for this host: call it by a name or address that it holds"),
        ("BadCertificate", WANTS_CERTIFICATE),
        ("UnknownCA", WANTS_CERTIFICATE),
    ];
    ADVICE.iter().find(|(words, _)| reason.contains(words)).map_or("", |(_, advice)| advice)
}

/// When a leader that renews its leader lease at `now` must stop leading. The last quarter of the
/// lease is a margin for clocks that differ, and for an etcd that has elected a new leader of its
/// own while an old one still renewed leases.
fn lead_until(now: Instant, lease: Duration) -> Instant {
    now + lease / 4 * 3
}

fn check_length(memory: &[u8]) -> Result<(), RegistryError> {
    let bytes = memory.len();
    let limit = MEMORY_BYTES;
    if bytes > limit { Err(RegistryError::TooLarge { bytes, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_to_do() {
        let refused = |reason: &str| {
            RegistryError::Refused { endpoint: "10.0.0.1:2379".into(), reason: reason.into() }.to_string()
        };
        let rows = [
            ("etcdserver: mvcc: database space exceeded", "compact and defragment it"),
            ("etcdserver: request is too large", "--max-request-bytes"),
            ("etcdserver: user name is empty", "--etcd-user-file"),
            ("etcdserver: authentication failed, invalid user ID or password", "name or password"),
            ("etcdserver: permission denied", "readwrite"),
        ];
        for (reason, advice) in rows {
            let said = refused(reason);
            assert!(said.starts_with("etcd at 10.0.0.1:2379 refuses: etcdserver") && said.contains(advice), "{said}");
        }
        assert_eq!(refused("it does not like you"), "etcd at 10.0.0.1:2379 refuses: it does not like you");
    }
}
