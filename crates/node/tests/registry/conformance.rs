//! The conformance suite of registries: each rule is a function over a [`Fixture`], and each
//! registry runs them all.

use crate::etcd::Etcd;
use node::registry::{
    CampaignOutcome, Candidate, CoordinatorRegistry, EtcdAccess, EtcdLocation, InProcessLocation, MEMORY_BYTES,
    RegistryError,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The leader lease of candidates that must not lose it.
const LONG: Duration = Duration::from_secs(20);
/// The leader lease of candidates that must lose it. Long enough to be renewed on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

/// A registry under test.
trait Fixture: Sized {
    /// A registry of its own, or none if it is not available.
    fn new() -> Option<Self>;
    fn stand(&self, candidate: Candidate) -> Box<dyn CoordinatorRegistry>;
    fn now(&self) -> Instant;
    /// Lets time go by.
    fn pass(&self, time: Duration);

    fn candidate(&self, address: &str, lease: Duration) -> Box<dyn CoordinatorRegistry> {
        self.stand(Candidate { leader_lease: lease, ..Candidate::new("clicks", address) })
    }

    fn lead(&self, registry: &mut dyn CoordinatorRegistry) -> (u64, Instant) {
        match registry.campaign(self.now()).expect("a campaign") {
            CampaignOutcome::Leading { term, until } => (term, until),
            CampaignOutcome::Following { leader } => panic!("it follows {leader}"),
        }
    }
}

/// The registry between threads, with a clock that the test moves.
struct Threads(InProcessLocation, Cell<Instant>);

impl Fixture for Threads {
    fn new() -> Option<Self> {
        Some(Self(InProcessLocation::new(), Cell::new(Instant::now())))
    }
    fn stand(&self, candidate: Candidate) -> Box<dyn CoordinatorRegistry> {
        Box::new(self.0.stand(candidate))
    }
    fn now(&self) -> Instant {
        self.1.get()
    }
    fn pass(&self, time: Duration) {
        self.1.set(self.1.get() + time);
    }
}

/// A real etcd, in real time.
struct RealEtcd(EtcdLocation, #[expect(dead_code, reason = "it runs for as long as this is here")] Etcd);

impl Fixture for RealEtcd {
    fn new() -> Option<Self> {
        let etcd = Etcd::start()?;
        let location = format!("etcd://{}/tests/clicks", etcd.endpoint()).parse().expect("a location");
        Some(Self(location, etcd))
    }
    fn stand(&self, candidate: Candidate) -> Box<dyn CoordinatorRegistry> {
        Box::new(self.0.stand(candidate, &EtcdAccess::default()).expect("it needs no files"))
    }
    fn now(&self) -> Instant {
        Instant::now()
    }
    fn pass(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn following(leader: &str) -> CampaignOutcome {
    CampaignOutcome::Following { leader: leader.to_owned() }
}

fn not_leading(leader: Option<&str>) -> RegistryError {
    RegistryError::NotLeading { leader: leader.map(str::to_owned) }
}

fn the_first_candidate_leads_and_others_follow<F: Fixture>(fixture: &F) {
    let [mut a, mut b, mut c] = ["a:1", "b:1", "c:1"].map(|address| fixture.candidate(address, LONG));
    assert_eq!(c.leader(fixture.now()), Ok(None));
    let (_, until) = fixture.lead(&mut *a);
    assert!(until > fixture.now());
    for other in [&mut b, &mut c] {
        assert_eq!(other.campaign(fixture.now()), Ok(following("a:1")));
        assert_eq!(other.leader(fixture.now()), Ok(Some("a:1".to_owned())));
    }
    assert_eq!(a.leader(fixture.now()), Ok(Some("a:1".to_owned())));
}

fn concurrent_campaigns_elect_one_leader<F: Fixture>(fixture: &F) {
    let now = fixture.now();
    let stand = |number: u32| fixture.candidate(&format!("host:{number}"), LONG);
    let candidates: Vec<_> = (0..6).map(stand).collect();
    let threads = candidates.into_iter().map(|mut candidate| std::thread::spawn(move || candidate.campaign(now)));
    let standings = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().expect("no panic"));
    let standings: Vec<_> = standings.map(|standing| standing.expect("a campaign")).collect();
    let leads = |standing: &&CampaignOutcome| matches!(standing, CampaignOutcome::Leading { .. });
    assert_eq!(standings.iter().filter(leads).count(), 1, "{standings:?}");
    let leader = fixture.candidate("", LONG).leader(fixture.now()).expect("an answer").expect("a leader");
    let others = standings.iter().filter(|standing| !leads(standing));
    others.for_each(|standing| assert_eq!(*standing, following(&leader)));
}

fn load_returns_the_last_saved_memory<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, LONG));
    assert_eq!(a.load(), Ok(None));
    fixture.lead(&mut *a);
    assert_eq!(a.load(), Ok(None));
    for memory in [&b"plan 1"[..], b"", b"plan 2", &[0, 255, 10, 34]] {
        a.save(fixture.now(), memory).expect("a leader saves");
        assert_eq!(a.load(), Ok(Some(memory.to_vec())));
        assert_eq!(b.load(), Ok(Some(memory.to_vec())));
    }
}

fn memories_of_any_length_are_saved_whole<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, LONG));
    fixture.lead(&mut *a);
    let mebibyte = 1 << 20;
    for (turn, length) in
        [3_000_000, 10, mebibyte, mebibyte + 1, 2 * mebibyte, 3_000_000, 3_000_001].into_iter().enumerate()
    {
        let memory: Vec<u8> = (0..length).map(|index| (index / 7 + turn) as u8).collect();
        a.save(fixture.now(), &memory).expect("a leader saves");
        assert!(b.load() == Ok(Some(memory)), "of {length} bytes");
    }
    a.forget(fixture.now()).expect("a leader forgets");
    assert_eq!(b.load(), Ok(None));
    let bytes = MEMORY_BYTES + 1;
    let too_large = RegistryError::TooLarge { bytes, limit: MEMORY_BYTES };
    assert_eq!(a.save(fixture.now(), &vec![0; bytes]), Err(too_large));
}

fn only_the_leader_changes_anything<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, LONG));
    assert_eq!(b.save(fixture.now(), b"mine"), Err(not_leading(None)));
    fixture.lead(&mut *a);
    a.save(fixture.now(), b"plan 1").expect("a leader saves");
    assert_eq!(b.campaign(fixture.now()), Ok(following("a:1")));
    assert!(matches!(b.save(fixture.now(), b"mine"), Err(RegistryError::NotLeading { .. })));
    assert!(matches!(b.save(fixture.now(), &vec![1; 3_000_000]), Err(RegistryError::NotLeading { .. })));
    assert!(matches!(b.forget(fixture.now()), Err(RegistryError::NotLeading { .. })));
    assert!(matches!(b.renew(fixture.now()), Err(RegistryError::NotLeading { .. })));
    b.resign().expect("nothing to resign");
    assert_eq!(b.load(), Ok(Some(b"plan 1".to_vec())));
    assert_eq!(b.leader(fixture.now()), Ok(Some("a:1".to_owned())));
    a.save(fixture.now(), b"plan 2").expect("it leads as before");
}

fn another_candidate_leads_when_the_leader_stops_renewing<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, SHORT));
    let (first, until) = fixture.lead(&mut *a);
    a.save(fixture.now(), b"plan 1").expect("a leader saves");
    let begin = Instant::now();
    let second = loop {
        match b.campaign(fixture.now()).expect("a campaign") {
            CampaignOutcome::Leading { term, .. } => break term,
            standing => assert_eq!(standing, following("a:1")),
        }
        assert!(begin.elapsed() < crate::LIMIT, "no other candidate is elected");
        fixture.pass(Duration::from_millis(50));
    };
    // The new leader was elected after the old one had to stop by its own clock.
    assert!(fixture.now() > until);
    assert!(second > first, "{second} {first}");
    assert_eq!(b.load(), Ok(Some(b"plan 1".to_vec())));
    b.save(fixture.now(), b"plan 2").expect("the new leader saves");
    // The registry refuses the old leader for any time on the old leader's clock.
    for now in [fixture.now(), until - Duration::from_millis(1)] {
        assert!(matches!(a.save(now, b"plan 1 again"), Err(RegistryError::NotLeading { .. })));
        assert!(matches!(a.renew(now), Err(RegistryError::NotLeading { .. })));
    }
    assert_eq!(a.load(), Ok(Some(b"plan 2".to_vec())));
    assert_eq!(a.campaign(fixture.now()), Ok(following("b:1")));
}

fn a_renewed_lease_does_not_end<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, SHORT));
    let (term, mut until) = fixture.lead(&mut *a);
    let end = fixture.now() + SHORT * 2;
    while fixture.now() < end {
        fixture.pass(SHORT / 8);
        let renewed = a.renew(fixture.now()).expect("it is renewed in time");
        assert!(renewed > until);
        until = renewed;
        assert_eq!(b.campaign(fixture.now()), Ok(following("a:1")));
    }
    a.save(fixture.now(), b"plan 9").expect("it leads");
    let (same, later) = fixture.lead(&mut *a);
    assert!(same == term && later >= until, "a leader that campaigns leads on");
}

fn resigning_lets_another_candidate_lead_at_once<F: Fixture>(fixture: &F) {
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| fixture.candidate(address, LONG));
    let (first, _) = fixture.lead(&mut *a);
    a.save(fixture.now(), b"plan 1").expect("a leader saves");
    a.resign().expect("it is told");
    assert_eq!(a.save(fixture.now(), b"too late"), Err(not_leading(None)));
    assert_eq!(b.leader(fixture.now()), Ok(None));
    let (second, _) = fixture.lead(&mut *b);
    assert!(second > first);
    assert_eq!(b.load(), Ok(Some(b"plan 1".to_vec())));
    a.resign().expect("nothing to resign");
    assert_eq!(a.campaign(fixture.now()), Ok(following("b:1")));
    b.resign().expect("it is told");
    let (third, _) = fixture.lead(&mut *a);
    assert!(third > second);
}

fn another_jobs_data_is_neither_read_nor_replaced<F: Fixture>(fixture: &F) {
    let mut clicks = fixture.candidate("a:1", LONG);
    let mut ratings = fixture.stand(Candidate { leader_lease: LONG, ..Candidate::new("ratings", "b:1") });
    fixture.lead(&mut *clicks);
    clicks.save(fixture.now(), b"plan 1").expect("a leader saves");
    let is_others = |error: RegistryError| match error {
        RegistryError::OtherJob { found, expected, .. } => found == "clicks" && expected == "ratings",
        _ => false,
    };
    assert!(is_others(ratings.campaign(fixture.now()).expect_err("another's leader")));
    assert!(is_others(ratings.leader(fixture.now()).expect_err("another's leader")));
    assert!(is_others(ratings.load().expect_err("another's memory")));
    clicks.resign().expect("it is told");
    fixture.lead(&mut *ratings);
    assert!(is_others(ratings.load().expect_err("another's memory")));
    assert!(is_others(ratings.save(fixture.now(), b"mine").expect_err("another's memory")));
    assert!(is_others(ratings.forget(fixture.now()).expect_err("another's memory")));
    assert_eq!(clicks.load(), Ok(Some(b"plan 1".to_vec())));
}

macro_rules! conform {
    ($registry:ident, $fixture:ident: $($rule:ident),* $(,)?) => {
        mod $registry {
            use super::Fixture as _;
            $(#[test]
            fn $rule() {
                if let Some(fixture) = super::$fixture::new() {
                    super::$rule(&fixture);
                }
            })*
        }
    };
    ($($registry:ident: $fixture:ident),*) => {$(
        conform!($registry, $fixture:
            the_first_candidate_leads_and_others_follow,
            concurrent_campaigns_elect_one_leader,
            load_returns_the_last_saved_memory,
            memories_of_any_length_are_saved_whole,
            only_the_leader_changes_anything,
            another_candidate_leads_when_the_leader_stops_renewing,
            a_renewed_lease_does_not_end,
            resigning_lets_another_candidate_lead_at_once,
            another_jobs_data_is_neither_read_nor_replaced,
        );
    )*};
}
conform!(threads: Threads, real_etcd: RealEtcd);
