//! The registries: what both promise, and what etcd's does when something is wrong with etcd.

mod conformance;
mod etcd;
mod faults;
mod proxy;
mod strangers;

use node::registry::{CampaignOutcome, Candidate, CoordinatorRegistry, EtcdLocation, EtcdRegistry, RegistryError};
use std::time::{Duration, Instant};

/// Tells done from hung: what is awaited here usually takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(60);

/// A candidate of the job `clicks` at these endpoints.
fn stand(endpoints: &[&str], address: &str, lease: Duration) -> EtcdRegistry {
    let location: EtcdLocation = format!("etcd://{}/tests/clicks", endpoints.join(",")).parse().expect("a location");
    location.stand(Candidate { leader_lease: lease, ..Candidate::new("clicks", address) })
}

/// The term of a candidate that leads, and until when it may.
fn lead(registry: &mut impl CoordinatorRegistry) -> (u64, Instant) {
    match registry.campaign(Instant::now()).expect("a campaign") {
        CampaignOutcome::Leading { term, until } => (term, until),
        CampaignOutcome::Following { leader } => panic!("it follows {leader}"),
    }
}

/// Tries until it is done, or fails for another reason than that etcd does not answer.
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

/// Waits until this candidate leads.
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
