//! A registry in etcd 3.4 or later, through its JSON gateway.
//!
//! Under the job's path there are these keys:
//! - `leader`: the leader's address. A candidate creates it only if it does not exist, and it ends
//!   with the candidate's etcd lease. The store's revision at its creation is the term.
//! - `memory`: the memory if it is at most 1 MiB, otherwise the manifest of its chunks.
//! - `memory/TERM-SAVE/INDEX`: the chunks of a larger memory, under a name that is used once.
//!
//! Every write is a transaction (compare-and-swap) which compares the creation revision of `leader`
//! with the writer's term. A transaction that replaces `memory` also compares the revision that it
//! replaces. So a request that this registry gave up, and that etcd executes later, has no effect.
//! The same transaction removes all chunks that are no longer used.

mod access;
mod chunks;
mod gateway;
mod location;
mod request;
mod response;
mod saved;

pub use access::{ETCD_USER_VARIABLE, EtcdAccess, EtcdAccessError};
pub use location::{EtcdLocation, EtcdLocationError};

use super::stored::{self, StoredKind};
use super::{CampaignOutcome, Candidate, CoordinatorRegistry, RegistryError, check_length, lead_until};
use access::LoadedAccess;
use chunks::EtcdKeys;
use gateway::Gateway;
use response::{EtcdRefusal, EtcdResponse, GrantedLease, KeyValue};
use std::time::{Duration, Instant};

/// Attempts at an operation that another writer's change can interrupt.
const ROUNDS: usize = 4;

/// Time that a request may take, at least: etcd's disk may be slow to sync.
const LEAST_LIMIT: Duration = Duration::from_millis(250);

/// Reads an answer as every request does.
#[cfg(fuzzing)]
pub fn read_etcd_answer(status: u16, bytes: &[u8]) {
    let Ok(answer) = EtcdResponse::read(status, bytes) else { return };
    let pairs = [answer.pair(), answer.pair_at(0), answer.pair_at(1)];
    for pair in pairs.into_iter().flatten().flatten() {
        stored::open_leader(&pair.value, "job", "here").ok();
        chunks::ChunkManifest::from_bytes(&pair.value);
    }
    answer.succeeded().ok();
    answer.granted().ok();
}

/// One candidate of an [`EtcdLocation`].
///
/// Each request may take a quarter of the candidate's leader lease, over all endpoints. A leader's
/// request ends at the latest when it must stop leading. A call of this registry makes one to three
/// requests, and one more for each MiB of a memory beyond the first.
pub struct EtcdRegistry {
    gateway: Gateway,
    keys: EtcdKeys,
    candidate: Candidate,
    /// The job's path, for messages.
    place: String,
    /// Time that a request may take.
    limit: Duration,
    /// The etcd lease with which this candidate last created `leader`, or may have created it.
    lease: Option<u64>,
    leading: Option<Leadership>,
}

#[derive(Clone, Copy, Debug)]
struct Leadership {
    term: u64,
    until: Instant,
    /// The revision at which `memory` last changed, as far as is known.
    revision: u64,
    /// Number of memories that this leadership has written as chunks.
    saves: u64,
}

impl EtcdRegistry {
    fn new(location: &EtcdLocation, candidate: Candidate, access: LoadedAccess) -> Self {
        Self {
            gateway: Gateway::new(location.endpoints.clone(), access),
            keys: EtcdKeys::new(&location.path),
            place: format!("etcd path {}", location.path),
            limit: (candidate.leader_lease / 4).max(LEAST_LIMIT),
            candidate,
            lease: None,
            leading: None,
        }
    }

    /// The deadline of a request that every candidate may make.
    fn soon(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// The deadline of a leader's request: it must end before this candidate must stop leading.
    fn in_time(&self, leading: Leadership) -> Result<Instant, RegistryError> {
        let now = Instant::now();
        if now < leading.until { Ok(leading.until.min(now + self.limit)) } else { Err(not_leading(None)) }
    }

    fn led(&self, now: Instant) -> Result<Leadership, RegistryError> {
        self.leading.filter(|leading| now < leading.until).ok_or_else(|| not_leading(None))
    }

    /// Takes in that this candidate no longer leads. `pair` is the `leader` key of the one that
    /// does.
    fn superseded(&mut self, pair: Option<&KeyValue>) -> RegistryError {
        self.leading = None;
        match pair.map(|pair| self.address(pair)).transpose() {
            Ok(leader) => not_leading(leader),
            Err(error) => error,
        }
    }

    fn address(&self, pair: &KeyValue) -> Result<String, RegistryError> {
        stored::open_leader(&pair.value, &self.candidate.job, &self.place)
    }

    fn leader_pair(&mut self, by: Instant) -> Result<Option<KeyValue>, RegistryError> {
        let request = request::range(&self.keys.leader, None);
        Ok(self.gateway.call(request::RANGE, &request, by, EtcdResponse::pair)?)
    }

    fn grant(&mut self) -> Result<GrantedLease, RegistryError> {
        let seconds = self.candidate.leader_lease.as_secs_f64().ceil().max(1.0) as u64;
        let by = self.soon();
        let granted = self.gateway.call(request::GRANT, &request::grant(seconds), by, EtcdResponse::granted)?;
        granted.ok_or_else(|| not_leading(None))
    }

    /// Renews an etcd lease. Returns its new duration, or none if it has ended.
    fn renew_lease(&mut self, lease: u64, by: Instant) -> Result<Option<Duration>, RegistryError> {
        match self.gateway.call(request::RENEW, &request::lease(lease), by, EtcdResponse::granted) {
            Ok(granted) => Ok(granted.map(|granted| Duration::from_secs(granted.seconds))),
            Err(failure) if failure.refusal == Some(EtcdRefusal::NoLease) => Ok(None),
            Err(failure) => Err(failure.error),
        }
    }

    fn lead(&mut self, term: u64, until: Instant) -> CampaignOutcome {
        // A leadership that continues keeps what it knows of the memory.
        let known = self.leading.filter(|leading| leading.term == term);
        let (revision, saves) = known.map_or((0, 0), |leading| (leading.revision, leading.saves));
        self.leading = Some(Leadership { term, until, revision, saves });
        CampaignOutcome::Leading { term, until }
    }

    /// Creates `leader` under a new etcd lease.
    fn take(&mut self, now: Instant) -> Result<CampaignOutcome, RegistryError> {
        let granted = self.grant()?;
        // Stored before the request: if its response is lost, the next campaign recognizes the key
        // as its own.
        self.lease = Some(granted.lease);
        let until = lead_until(now, Duration::from_secs(granted.seconds));
        let address = stored::seal(StoredKind::Leader, &self.candidate.job, self.candidate.address.as_bytes());
        let request = request::take(&self.keys.leader, &address, granted.lease);
        let read = |response: &EtcdResponse| {
            Ok(if response.succeeded()? { Ok(response.revision) } else { Err(response.pair_at(0)?) })
        };
        match self.gateway.call(request::TXN, &request, self.soon(), read) {
            Ok(Ok(term)) => Ok(self.lead(term, until)),
            // The first endpoint created the key but its response was lost; the second found it.
            Ok(Err(Some(pair))) if pair.lease == granted.lease => Ok(self.lead(pair.created, until)),
            Ok(Err(Some(pair))) => self.address(&pair).map(|leader| CampaignOutcome::Following { leader }),
            Ok(Err(None)) => Err(not_leading(None)),
            Err(failure) => Err(failure.error),
        }
    }
}

impl CoordinatorRegistry for EtcdRegistry {
    fn campaign(&mut self, now: Instant) -> Result<CampaignOutcome, RegistryError> {
        let pair = self.leader_pair(self.soon())?;
        match (pair, self.lease) {
            (None, _) => self.take(now),
            (Some(pair), Some(lease)) if pair.lease == lease => match self.renew_lease(lease, self.soon())? {
                Some(left) => Ok(self.lead(pair.created, lead_until(now, left))),
                None => self.take(now),
            },
            (Some(pair), _) => {
                self.leading = None;
                self.address(&pair).map(|leader| CampaignOutcome::Following { leader })
            }
        }
    }

    fn renew(&mut self, now: Instant) -> Result<Instant, RegistryError> {
        let leading = self.led(now)?;
        let lease = self.lease.ok_or_else(|| not_leading(None))?;
        let Some(left) = self.renew_lease(lease, self.in_time(leading)?)? else {
            return Err(self.superseded(None));
        };
        // The etcd lease can outlive the key, if an operator removed the key by hand.
        match self.leader_pair(self.in_time(leading)?)? {
            Some(pair) if pair.created == leading.term => {
                let until = lead_until(now, left);
                self.lead(leading.term, until);
                Ok(until)
            }
            pair => Err(self.superseded(pair.as_ref())),
        }
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, RegistryError> {
        for _ in 0..ROUNDS {
            match self.try_load() {
                Err(failure) if failure.refusal == Some(EtcdRefusal::Compacted) => {}
                loaded => return Ok(loaded?),
            }
        }
        let reason = format!("its chunks were removed {ROUNDS} times while they were read");
        Err(RegistryError::Damaged { place: self.place.clone(), reason })
    }

    fn save(&mut self, now: Instant, memory: &[u8]) -> Result<(), RegistryError> {
        check_length(memory)?;
        self.replace(now, Some(memory))
    }

    fn forget(&mut self, now: Instant) -> Result<(), RegistryError> {
        self.replace(now, None)
    }

    fn resign(&mut self) -> Result<(), RegistryError> {
        self.leading = None;
        let Some(lease) = self.lease.take() else { return Ok(()) };
        let by = self.soon();
        match self.gateway.call(request::REVOKE, &request::lease(lease), by, |_| Ok(())) {
            Ok(()) => Ok(()),
            Err(failure) if failure.refusal == Some(EtcdRefusal::NoLease) => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }

    fn leader(&mut self, _: Instant) -> Result<Option<String>, RegistryError> {
        let pair = self.leader_pair(self.soon())?;
        pair.map(|pair| self.address(&pair)).transpose()
    }
}

fn not_leading(leader: Option<String>) -> RegistryError {
    RegistryError::NotLeading { leader }
}
