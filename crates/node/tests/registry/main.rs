//! Tests of the registries: the conformance suite for both (in the process and etcd), faults of
//! etcd, and servers at its address that are not etcd. The helpers here make candidates and let
//! them lead.

mod certificates;
mod conformance;
mod etcd;
mod faults;
mod login;
mod proxy;
mod strangers;

use node::registry::{
    CampaignOutcome, Candidate, CoordinatorRegistry, EtcdAccess, EtcdLocation, EtcdRegistry, RegistryError,
};
use std::time::{Duration, Instant};

/// How long a test waits for one event before it fails. Events usually take less than a tenth of
/// this.
const LIMIT: Duration = Duration::from_secs(60);

/// A candidate for the job `clicks`, with these endpoints of etcd.
fn stand(endpoints: &[&str], address: &str, lease: Duration) -> EtcdRegistry {
    let location: EtcdLocation = format!("etcd://{}/tests/clicks", endpoints.join(",")).parse().expect("a location");
    let candidate = Candidate { leader_lease: lease, ..Candidate::new("clicks", address) };
    location.stand(candidate, &EtcdAccess::default()).expect("it needs no files")
}

/// Makes a candidate lead. Returns its term, and when it must stop.
fn lead(registry: &mut impl CoordinatorRegistry) -> (u64, Instant) {
    match registry.campaign(Instant::now()).expect("a campaign") {
        CampaignOutcome::Leading { term, until } => (term, until),
        CampaignOutcome::Following { leader } => panic!("it follows {leader}"),
    }
}

/// Repeats `attempt` while etcd does not answer.
fn insist<T>(mut attempt: impl FnMut() -> Result<T, RegistryError>) -> Result<T, RegistryError> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(RegistryError::Unreachable { .. }) if begin.elapsed() < LIMIT => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Campaigns until this candidate leads. Returns its term, and when it must stop.
fn lead_at_last(registry: &mut impl CoordinatorRegistry) -> (u64, Instant) {
    let begin = Instant::now();
    loop {
        if let Ok(CampaignOutcome::Leading { term, until }) = registry.campaign(Instant::now()) {
            return (term, until);
        }
        assert!(begin.elapsed() < LIMIT, "it never leads");
        std::thread::sleep(Duration::from_millis(50));
    }
}
