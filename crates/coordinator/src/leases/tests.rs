use super::*;
use crate::members::tests::begun;
use lease::{OrderIndex, WorkReport};
use types::WorkerId;
use wire::Control;

const SERVER: NodeId = NodeId::Server(0);

fn terms() -> LeaseTerms {
    LeaseTerms { ranges: 4, epochs: 1, shuffle: None, per_clock: 4, fingerprint: 7, input: "numbers".into() }
}

#[test]
fn a_data_set_has_one_name_and_the_same_terms_for_every_worker() {
    let other = LeaseTerms { fingerprint: 8, input: "letters".into(), ..terms() };
    let slower = LeaseTerms { per_clock: 2, ..terms() };
    let impossible = LeaseTerms { per_clock: 0, ..terms() };
    // (name, terms; its number or a word of the refusal)
    let cases = [
        ("a", terms(), Ok(0)),
        ("b", other.clone(), Ok(1)),
        ("a", terms(), Ok(0)),
        ("a", other, Err("others read numbers, and this worker reads letters")),
        ("a", slower, Err("others lease it with")),
        ("c", impossible, Err("numbers: ")),
        ("c", terms(), Ok(2)),
    ];
    let mut leases = Leases::default();
    for (name, terms, expected) in cases {
        match (leases.open(name, terms), expected) {
            (Ok(number), Ok(expected)) => assert_eq!(number, expected, "{name}"),
            (Err(refusal), Err(words)) => assert!(refusal.contains(words), "{name}: {refusal}"),
            (found, expected) => panic!("{name}: {found:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn data_sets_are_bounded_in_number_and_in_their_texts() {
    let mut leases = Leases::default();
    let refused = leases.open(&"n".repeat(NAME_BYTES + 1), terms()).expect_err("too long");
    assert!(refused.contains("the name of the data set has 256 bytes"), "{refused}");
    let long = LeaseTerms { input: "i".repeat(TEXT_BYTES + 1), ..terms() };
    assert!(leases.open("a", long).expect_err("too long").contains("description"));
    for number in 0..DATA_SETS {
        assert_eq!(leases.open(&number.to_string(), terms()), Ok(number as u32));
    }
    assert!(leases.open("more", terms()).expect_err("too many").contains("4096 data sets"));
    assert_eq!(leases.open("7", terms()), Ok(7), "one that is open is found");
}

fn head(rank: u32, clock: u64) -> Head {
    let head = Head::plain(NodeId::Worker(rank), NodeId::Coordinator);
    Head { source: Source(u64::from(rank) + 2), clock: Clock(clock), ..head }
}

fn said(out: &mut Outbox) -> Vec<(NodeId, Control)> {
    let control = |frame: wire::Frame| match frame.message {
        wire::Message::Control(control) => Some((frame.head.to, control)),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

#[test]
fn servers_are_told_to_forget_only_while_no_plan_is_due() {
    let members = begun(1, 2);
    let mut leases = Leases::default();
    let mut out = Outbox::new();
    let number = leases.open("a", terms()).expect("valid terms");
    let view = |is_steady| LeaseView { now: Time(0), members: &members, is_steady, checkpoint: None };
    let set = leases.spoken_of(number, &head(0, 3), &members, &mut out).expect("it was opened");
    set.ask(Time(0), &head(0, 3), 1, 2, &mut out);
    let forgets = |out: &mut Outbox| {
        let is_forget = |(_, control): &(NodeId, Control)| matches!(control, Control::ForgetLeases { .. });
        said(out).iter().filter(|said| is_forget(said)).count()
    };
    // (the lease that is committed, whether no plan is due, how often a server is told)
    for (lease, is_steady, told) in [(0, false, 0), (1, true, 1)] {
        let work = WorkReport { examples: 1, busy: Span(1) };
        set.commit(&view(is_steady), &head(0, 3), (lease, Clock(3)), work, &mut out);
        assert_eq!(forgets(&mut out), told, "lease {lease}");
    }
    assert!(!leases.tick(&view(true), Span(10), Span(10), &mut out), "the server has not answered");
    let set = leases.spoken_of(number, &head(0, 3), &members, &mut out).expect("it was opened");
    set.server_forgot(&view(true), SERVER, OrderIndex(1), &mut out);
    assert!(!leases.tick(&view(true), Span(10), Span(10), &mut out), "the server answered for an earlier place");
    leases.sets[0].server_forgot(&view(true), SERVER, OrderIndex(2), &mut out);
    assert_eq!(forgets(&mut out), 0, "there is nothing more to forget");
}

#[test]
fn a_waiting_worker_hears_the_furthest_clock_and_gets_leases_given_back() {
    let members = begun(1, 2);
    let mut leases = Leases::default();
    let mut out = Outbox::new();
    let set = leases.open("a", terms()).expect("valid terms");
    for (rank, wanted) in [(0, 4), (1, 1)] {
        let known = leases.spoken_of(set, &head(rank, 3), &members, &mut out).expect("it was opened");
        known.ask(Time(0), &head(rank, 3), 1, wanted, &mut out);
    }
    out.drain().for_each(drop);
    leases.spoken_of(set, &head(0, 4), &members, &mut out);
    let awaited = |clock, on| (NodeId::Worker(1), Control::LeasesAwaited { set, number: 1, clock: Clock(clock), on });
    assert_eq!(said(&mut out), [awaited(4, Vec::new())]);
    let view = LeaseView { now: Time(10), members: &members, is_steady: true, checkpoint: None };
    leases.tick(&view, Span(10), Span(10), &mut out);
    assert_eq!(said(&mut out), [awaited(4, vec![WorkerId(0)])]);
    leases.give_back(Time(11), head(0, 4).source, &mut out);
    let is_lease =
        |(to, control): &(NodeId, Control)| *to == NodeId::Worker(1) && matches!(control, Control::Leased { .. });
    assert!(said(&mut out).iter().any(is_lease));
}
