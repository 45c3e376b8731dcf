//! A registry in memory, which the threads of one process share: the default of a run with one
//! coordinator. It ends with the process.

use super::stored::{self, StoredKind};
use super::{CampaignOutcome, Candidate, CoordinatorRegistry, RegistryError, check_length, lead_until};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The registry's name in messages.
const PLACE: &str = "this process's registry";

/// A place that the candidates of one process share. It holds one job. Its time is what candidates
/// pass to its calls.
///
/// ```
/// use node::registry::{Candidate, InProcessLocation, CoordinatorRegistry};
///
/// let place = InProcessLocation::new();
/// let mut alone = place.stand(Candidate::new("clicks-17", ""));
/// assert_eq!(alone.load()?, None);
/// # Ok::<(), node::registry::RegistryError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct InProcessLocation(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The term of the last leadership.
    term: u64,
    leader: Option<Leader>,
    /// Labelled by [`stored::seal`].
    memory: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Leader {
    term: u64,
    /// Labelled by [`stored::seal`].
    address: Vec<u8>,
    /// When its leader lease ends, and another candidate can be elected.
    ends: Instant,
}

/// One candidate of an [`InProcessLocation`].
#[derive(Debug)]
pub struct InProcessRegistry {
    place: InProcessLocation,
    candidate: Candidate,
    /// The term in which it leads, and when it must stop.
    leading: Option<(u64, Instant)>,
}

impl InProcessLocation {
    /// A place without leader and memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry for this candidate.
    #[must_use]
    pub fn stand(&self, candidate: Candidate) -> InProcessRegistry {
        InProcessRegistry { place: self.clone(), candidate, leading: None }
    }

    /// Locks the state, also after a candidate has panicked: every change is one assignment, so the
    /// state is consistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The current leadership, if its leader lease has not ended.
    fn leader(&mut self, now: Instant) -> Option<&mut Leader> {
        self.leader.take_if(|leader| now >= leader.ends);
        self.leader.as_mut()
    }
}

impl InProcessRegistry {
    /// The leadership of this candidate, if it still leads.
    fn led<'a>(&self, state: &'a mut State, now: Instant) -> Result<&'a mut Leader, RegistryError> {
        let term = self.leading.filter(|(_, until)| now < *until).map(|(term, _)| term);
        match state.leader(now) {
            Some(leader) if term == Some(leader.term) => Ok(leader),
            Some(leader) => {
                let leader = Some(stored::open_leader(&leader.address, &self.candidate.job, PLACE)?);
                Err(RegistryError::NotLeading { leader })
            }
            None => Err(RegistryError::NotLeading { leader: None }),
        }
    }

    /// Replaces the job's memory. Fails if the place holds another job's memory.
    fn replace(&mut self, now: Instant, memory: Option<Vec<u8>>) -> Result<(), RegistryError> {
        let mut state = self.place.state();
        self.led(&mut state, now)?;
        if let Some(held) = &state.memory {
            stored::open(held, &self.candidate.job, PLACE)?;
        }
        state.memory = memory;
        Ok(())
    }
}

impl CoordinatorRegistry for InProcessRegistry {
    fn campaign(&mut self, now: Instant) -> Result<CampaignOutcome, RegistryError> {
        let place = self.place.clone();
        let mut state = place.state();
        let Candidate { job, address, leader_lease } = &self.candidate;
        let term = match (state.leader(now), self.leading) {
            (Some(leader), Some((term, _))) if leader.term == term => {
                leader.ends = now + *leader_lease;
                term
            }
            (Some(leader), _) => {
                let leader = stored::open_leader(&leader.address, job, PLACE)?;
                self.leading = None;
                return Ok(CampaignOutcome::Following { leader });
            }
            (None, _) => {
                state.term += 1;
                let term = state.term;
                let address = stored::seal(StoredKind::Leader, job, address.as_bytes());
                state.leader = Some(Leader { term, address, ends: now + *leader_lease });
                term
            }
        };
        let until = lead_until(now, *leader_lease);
        self.leading = Some((term, until));
        Ok(CampaignOutcome::Leading { term, until })
    }

    fn renew(&mut self, now: Instant) -> Result<Instant, RegistryError> {
        let place = self.place.clone();
        let mut state = place.state();
        let leader_lease = self.candidate.leader_lease;
        let leader = self.led(&mut state, now)?;
        leader.ends = now + leader_lease;
        let until = lead_until(now, leader_lease);
        self.leading = Some((leader.term, until));
        Ok(until)
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, RegistryError> {
        let state = self.place.state();
        let Some(memory) = &state.memory else { return Ok(None) };
        let (_, memory) = stored::open(memory, &self.candidate.job, PLACE)?;
        Ok(Some(memory.to_vec()))
    }

    fn save(&mut self, now: Instant, memory: &[u8]) -> Result<(), RegistryError> {
        check_length(memory)?;
        let memory = stored::seal(StoredKind::Memory, &self.candidate.job, memory);
        self.replace(now, Some(memory))
    }

    fn forget(&mut self, now: Instant) -> Result<(), RegistryError> {
        self.replace(now, None)
    }

    fn resign(&mut self) -> Result<(), RegistryError> {
        if let Some((term, _)) = self.leading.take() {
            self.place.state().leader.take_if(|leader| leader.term == term);
        }
        Ok(())
    }

    fn leader(&mut self, now: Instant) -> Result<Option<String>, RegistryError> {
        let mut state = self.place.state();
        let Some(leader) = state.leader(now) else { return Ok(None) };
        stored::open_leader(&leader.address, &self.candidate.job, PLACE).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_leader_that_stopped_leads_on_in_its_term_if_no_other_led() {
        let place = InProcessLocation::new();
        let mut alone = place.stand(Candidate::new("clicks", "a:1"));
        let now = Instant::now();
        let Ok(CampaignOutcome::Leading { term, until }) = alone.campaign(now) else { panic!("it is alone") };
        alone.save(until - Duration::from_nanos(1), b"plan 1").expect("it leads to the last");
        assert_eq!(alone.save(until, b"plan 2"), Err(RegistryError::NotLeading { leader: Some("a:1".to_owned()) }));
        assert!(alone.renew(until).is_err());
        let again = alone.campaign(until).expect("a campaign");
        assert_eq!(again, CampaignOutcome::Leading { term, until: until + (until - now) });
        alone.save(until, b"plan 2").expect("it leads");
    }
}
