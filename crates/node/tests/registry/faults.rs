//! Faults of etcd: it stops, dies, comes back, is full, executes requests late, or holds foreign
//! data.

use crate::etcd::Etcd;
use crate::proxy::Proxy;
use crate::{LIMIT, insist, lead, lead_at_last, stand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use node::registry::{CampaignOutcome, CoordinatorRegistry, RegistryError};
use std::time::{Duration, Instant};

/// The leader lease of candidates that must not lose it.
const LONG: Duration = Duration::from_secs(12);
/// The leader lease of candidates that must lose it.
const SHORT: Duration = Duration::from_secs(3);

const LEADER: &str = "/tests/clicks/leader";
const MEMORY: &str = "/tests/clicks/memory";

fn put(etcd: &Etcd, key: &str, value: &[u8]) {
    let said =
        etcd.post("/v3/kv/put", &format!(r#"{{"key":"{}","value":"{}"}}"#, BASE64.encode(key), BASE64.encode(value)));
    assert!(said.contains("200 OK"), "{said}");
}

fn delete(etcd: &Etcd, key: &str) {
    let said = etcd.post("/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, BASE64.encode(key)));
    assert!(said.contains(r#""deleted":"1""#), "{said}");
}

/// The keys of the chunks that etcd holds.
fn chunks(etcd: &Etcd) -> Vec<String> {
    let from = BASE64.encode(format!("{MEMORY}/"));
    let to = BASE64.encode(format!("{MEMORY}0"));
    let request = format!(r#"{{"key":"{from}","range_end":"{to}","keys_only":true}}"#);
    let said = etcd.post("/v3/kv/range", &request);
    let keys = said.split(r#""key":""#).skip(1).map(|rest| rest.split('"').next().expect("a key"));
    keys.map(|key| String::from_utf8(BASE64.decode(key).expect("base64")).expect("text")).collect()
}

#[test]
fn a_leader_leads_on_after_etcd_stopped_for_less_than_its_lease() {
    let Some(etcd) = Etcd::start() else { return };
    let mut a = stand(&[&etcd.endpoint()], "a:1", LONG / 2);
    let mut b = stand(&[&etcd.endpoint()], "b:1", LONG / 2);
    let (term, _) = lead(&mut a);
    a.save(Instant::now(), b"plan 1").expect("a leader saves");
    etcd.stop();
    let said = a.save(Instant::now(), b"plan 2, given up").expect_err("it stands still").to_string();
    assert!(said.contains(&format!("{}: no answer within", etcd.endpoint())), "{said}");
    etcd.go_on();
    insist(|| a.renew(Instant::now())).expect("it is renewed in time");
    assert_eq!(lead(&mut a).0, term);
    insist(|| a.save(Instant::now(), b"plan 3")).expect("it leads as before");
    assert_eq!(b.load(), Ok(Some(b"plan 3".to_vec())));
    assert_eq!(b.campaign(Instant::now()), Ok(CampaignOutcome::Following { leader: "a:1".to_owned() }));
}

#[test]
fn a_leader_stops_in_time_while_etcd_is_stopped_and_another_leads_afterwards() {
    let Some(etcd) = Etcd::start() else { return };
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| stand(&[&etcd.endpoint()], address, SHORT));
    let (first, until) = lead(&mut a);
    a.save(Instant::now(), b"plan 1").expect("a leader saves");
    etcd.stop();
    let stopped = loop {
        match a.renew(Instant::now()) {
            Err(RegistryError::Unreachable { .. }) => assert!(Instant::now() < until + LIMIT, "it goes on for ever"),
            other => break other,
        }
    };
    assert_eq!(stopped, Err(RegistryError::NotLeading { leader: None }));
    assert!(Instant::now() >= until);
    assert_eq!(a.save(Instant::now(), b"plan 2"), Err(RegistryError::NotLeading { leader: None }));
    assert!(matches!(b.campaign(Instant::now()), Err(RegistryError::Unreachable { .. })));
    // etcd's clock has gone on: for etcd the lease has ended.
    std::thread::sleep(SHORT);
    etcd.go_on();
    let (second, _) = lead_at_last(&mut b);
    assert!(second > first);
    assert_eq!(b.load(), Ok(Some(b"plan 1".to_vec())));
    assert_eq!(a.campaign(Instant::now()), Ok(CampaignOutcome::Following { leader: "b:1".to_owned() }));
}

#[test]
fn a_restarted_etcd_still_has_the_leader_and_the_memory() {
    let Some(mut etcd) = Etcd::start() else { return };
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| stand(&[&etcd.endpoint()], address, LONG));
    let memory = vec![7; 3_000_000];
    let (term, _) = lead(&mut a);
    a.save(Instant::now(), &memory).expect("a leader saves");
    etcd.kill();
    let said = a.save(Instant::now(), b"plan 2").expect_err("it is dead").to_string();
    assert!(said.contains(&format!("{}: connection refused", etcd.endpoint())), "{said}");
    assert!(matches!(b.load(), Err(RegistryError::Unreachable { .. })));
    etcd.restart();
    assert!(insist(|| b.load()) == Ok(Some(memory)));
    assert_eq!(insist(|| b.campaign(Instant::now())), Ok(CampaignOutcome::Following { leader: "a:1".to_owned() }));
    assert_eq!(
        insist(|| a.campaign(Instant::now())).map(|standing| matches!(standing, CampaignOutcome::Leading { .. })),
        Ok(true)
    );
    assert_eq!(lead(&mut a).0, term);
    a.save(Instant::now(), b"plan 2").expect("it leads as before");
    assert_eq!(b.load(), Ok(Some(b"plan 2".to_vec())));
}

#[test]
fn the_registry_survives_the_loss_of_one_of_three_members_and_waits_without_a_majority() {
    let Some(mut members) = Etcd::start_cluster(3, &[]) else { return };
    let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| stand(&endpoints, address, LONG));
    let (term, _) = lead(&mut a);
    a.save(Instant::now(), b"plan 1").expect("a leader saves");
    // Kills the member that was asked. It may be the one that leads the others.
    members[0].kill();
    insist(|| a.save(Instant::now(), b"plan 2")).expect("two of three are there");
    insist(|| a.renew(Instant::now())).expect("two of three are there");
    assert_eq!(lead(&mut a).0, term);
    assert_eq!(insist(|| b.campaign(Instant::now())), Ok(CampaignOutcome::Following { leader: "a:1".to_owned() }));
    members[1].kill();
    let said = b.load().expect_err("one of three is there").to_string();
    assert!(endpoints.iter().all(|endpoint| said.contains(endpoint)), "{said}");
    assert!(matches!(a.save(Instant::now(), b"plan 3"), Err(RegistryError::Unreachable { .. })));
    members[1].restart();
    // etcd may have executed the save that was given up, or not.
    let memory = insist(|| b.load()).expect("two of three are there").expect("a memory");
    assert!(memory == b"plan 2" || memory == b"plan 3", "{memory:?}");
    let (same, _) = lead_at_last(&mut a);
    assert_eq!(same, term);
    insist(|| a.save(Instant::now(), b"plan 4")).expect("it leads as before");
    assert_eq!(b.load(), Ok(Some(b"plan 4".to_vec())));
}

#[test]
fn a_save_that_etcd_comes_to_late_does_not_replace_a_later_one() {
    let Some(etcd) = Etcd::start() else { return };
    // The first save, one that replaces another, and one that replaces an earlier leader's.
    for turns in [0, 1, 0] {
        let proxy = Proxy::new(etcd.endpoint());
        // When the proxy keeps a request and does not answer, the registry asks etcd itself.
        let mut a = stand(&[&proxy.endpoint(), &etcd.endpoint()], "a:1", LONG / 2);
        lead(&mut a);
        (0..turns).for_each(|_| a.save(Instant::now(), b"plan 0").expect("a leader saves"));
        proxy.keep_transactions();
        a.save(Instant::now(), b"plan 1").expect("etcd itself is there");
        a.save(Instant::now(), b"plan 2").expect("a leader saves");
        let late = proxy.release();
        assert!(late.len() == 1 && late[0].contains("200 OK") && !late[0].contains("succeeded"), "{late:?}");
        assert_eq!(a.load(), Ok(Some(b"plan 2".to_vec())));
        a.resign().expect("it is told");
    }
}

#[test]
fn a_save_that_etcd_comes_to_when_another_leads_is_not_done() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::new(etcd.endpoint());
    let [mut a, mut b] = [(&proxy.endpoint(), "a:1"), (&etcd.endpoint(), "b:1")]
        .map(|(endpoint, address)| stand(&[endpoint], address, LONG / 2));
    lead(&mut a);
    proxy.keep_transactions();
    for memory in [b"plan 1".to_vec(), vec![1; 3_000_000]] {
        assert!(matches!(a.save(Instant::now(), &memory), Err(RegistryError::Unreachable { .. })));
    }
    lead_at_last(&mut b);
    let late = proxy.release();
    assert!(
        late.len() == 2 && late.iter().all(|said| said.contains("200 OK") && !said.contains("succeeded")),
        "{late:?}"
    );
    assert_eq!(b.load(), Ok(None));
    assert_eq!(chunks(&etcd).len(), 0);
}

#[test]
fn a_chunk_that_etcd_comes_to_late_does_no_harm() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::new(etcd.endpoint());
    let mut a = stand(&[&proxy.endpoint(), &etcd.endpoint()], "a:1", LONG / 2);
    lead(&mut a);
    proxy.keep_transactions();
    a.save(Instant::now(), &[1; 3_000_000]).expect("etcd itself is there");
    let memory = vec![2; 3_000_000];
    a.save(Instant::now(), &memory).expect("a leader saves");
    assert_eq!(proxy.release().len(), 1);
    assert_eq!(chunks(&etcd).len(), 4);
    assert!(a.load() == Ok(Some(memory)));
    a.save(Instant::now(), b"plan 3").expect("a leader saves");
    assert_eq!(chunks(&etcd).len(), 0);
}

#[test]
fn a_campaign_recognizes_its_own_key_after_a_lost_answer() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::new(etcd.endpoint());
    let mut a = stand(&[&proxy.endpoint()], "a:1", LONG);
    proxy.keep_transactions();
    assert!(matches!(a.campaign(Instant::now()), Err(RegistryError::Unreachable { .. })));
    assert!(proxy.release().last().is_some_and(|said| said.contains(r#""succeeded":true"#)));
    assert_eq!(a.leader(Instant::now()), Ok(Some("a:1".to_owned())));
    lead(&mut a);
    a.save(Instant::now(), b"plan 1").expect("a leader saves");
}

#[test]
fn the_next_endpoint_finds_what_one_did_without_an_answer() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::new(etcd.endpoint());
    proxy.swallow_answers();
    let mut a = stand(&[&proxy.endpoint(), &etcd.endpoint()], "a:1", LONG);
    lead(&mut a);
    a.resign().expect("it is told");

    let proxy = Proxy::new(etcd.endpoint());
    let mut b = stand(&[&proxy.endpoint(), &etcd.endpoint()], "b:1", LONG);
    lead(&mut b);
    proxy.swallow_answers();
    b.save(Instant::now(), b"plan 1").expect("a leader saves");
    b.save(Instant::now(), b"plan 2").expect("a leader saves");
    assert_eq!(b.load(), Ok(Some(b"plan 2".to_vec())));
}

#[test]
fn a_leader_notices_that_its_key_was_removed_by_hand() {
    let Some(etcd) = Etcd::start() else { return };
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| stand(&[&etcd.endpoint()], address, LONG));
    lead(&mut a);
    delete(&etcd, LEADER);
    lead(&mut b);
    let superseded = RegistryError::NotLeading { leader: Some("b:1".to_owned()) };
    assert_eq!(a.save(Instant::now(), b"plan 1"), Err(superseded));
    delete(&etcd, LEADER);
    assert_eq!(b.renew(Instant::now()), Err(RegistryError::NotLeading { leader: None }));
}

#[test]
fn unused_chunks_of_any_leader_are_removed() {
    let Some(etcd) = Etcd::start() else { return };
    let [mut a, mut b] = ["a:1", "b:1"].map(|address| stand(&[&etcd.endpoint()], address, LONG));
    lead(&mut a);
    a.save(Instant::now(), &[1; 3_000_000]).expect("a leader saves");
    let first = chunks(&etcd);
    assert_eq!(first.len(), 3);
    // Chunks of leaders that died before they had written all of them.
    put(&etcd, &format!("{MEMORY}/00000000000000000001-0000000000/00000"), b"litter");
    put(&etcd, &format!("{MEMORY}/99999999999999999999-0000000000/00000"), b"litter");
    a.save(Instant::now(), &[2; 2_000_000]).expect("a leader saves");
    let second = chunks(&etcd);
    assert!(second.len() == 2 && second.iter().all(|key| !first.contains(key)), "{first:?} {second:?}");
    a.resign().expect("it is told");
    lead(&mut b);
    b.save(Instant::now(), b"plan 1").expect("a leader saves");
    assert_eq!(chunks(&etcd), Vec::<String>::new());
}

#[test]
fn foreign_or_damaged_data_at_the_memorys_key_is_refused() {
    let Some(etcd) = Etcd::start() else { return };
    let mut a = stand(&[&etcd.endpoint()], "a:1", LONG);
    put(&etcd, MEMORY, b"foreign notes");
    let said = a.load().expect_err("no memory").to_string();
    assert!(said.starts_with("etcd path /tests/clicks does not hold what Slackwater wrote"), "{said}");
    put(&etcd, MEMORY, b"slackmem\x09\x00\x02\x06\x00\x00\x00clicksplan");
    let said = a.load().expect_err("a later format").to_string();
    assert!(said.contains("format 9, and this Slackwater knows format 1"), "{said}");
    put(&etcd, LEADER, b"foreign notes");
    assert!(matches!(a.campaign(Instant::now()), Err(RegistryError::Damaged { .. })));
    delete(&etcd, LEADER);
    delete(&etcd, MEMORY);
    lead(&mut a);
    a.save(Instant::now(), &[1; 3_000_000]).expect("a leader saves");
    delete(&etcd, &chunks(&etcd)[1]);
    let said = a.load().expect_err("a chunk is missing").to_string();
    assert!(said.contains("its chunks are not those that were written together"), "{said}");
}

#[test]
fn a_full_etcd_is_reported_with_what_to_do() {
    let Some(etcd) = Etcd::start_with(&["--quota-backend-bytes", "4194304"]) else { return };
    let mut a = stand(&[&etcd.endpoint()], "a:1", LONG);
    lead(&mut a);
    let refused =
        (0..20).find_map(|turn| a.save(Instant::now(), &vec![turn; 1_000_000]).err()).expect("4 MiB hold no 20 MB");
    let said = refused.to_string();
    assert!(said.contains("refuses: etcdserver: mvcc: database space exceeded; compact"), "{said}");
}
