use super::*;
use crate::members::tests::begun;

const SERVERS: [NodeId; 2] = [NodeId::Server(0), NodeId::Server(1)];

/// The nodes that are told of the plan, and whether they are told that it is enacted.
fn told(out: &mut Outbox) -> Vec<(NodeId, bool)> {
    let adopt = |frame: wire::Frame| match frame.message {
        wire::Message::Control(Control::Adopt { enacted, .. }) => Some((frame.head.to, enacted)),
        _ => None,
    };
    out.drain().filter_map(adopt).collect()
}

/// The plans of a run of two servers and a worker: the second plan is being adopted since time 0.
fn second(members: &Members) -> Plans {
    let mut plans = Plans::default();
    plans.begin(&[Chain::default()], members);
    assert!(plans.is_known_to_all() && !plans.may_make());
    plans.request();
    assert!(plans.is_adopted() && !plans.is_steady() && plans.may_make());
    plans.make(Time(0), &[Chain::default()], members);
    plans
}

#[test]
fn a_plan_is_enacted_once_when_every_server_has_adopted_it() {
    let members = begun(2, 1);
    let mut out = Outbox::new();
    let mut plans = second(&members);
    assert_eq!(plans.plan().number, PlanNumber(2));
    plans.say(&members, &mut out);
    assert_eq!(told(&mut out), SERVERS.map(|server| (server, false)));
    assert_eq!(plans.adopted(Time(3), SERVERS[0], false, Clock(9)), Some(Span(3)));
    assert_eq!(plans.adopted(Time(4), SERVERS[0], false, Clock(9)), None, "it is measured once");
    assert_eq!(plans.enact(), None);
    assert_eq!(plans.adopting(), [SERVERS[1]]);
    plans.adopted(Time(5), SERVERS[1], false, Clock(7));
    assert_eq!(plans.enact(), Some(Clock(9)), "new workers begin at the highest frontier");
    assert_eq!(plans.enact(), None);
}

#[test]
fn every_node_is_told_of_the_enactment_until_it_confirms() {
    let members = begun(2, 1);
    let mut out = Outbox::new();
    let mut plans = second(&members);
    for server in SERVERS {
        plans.adopted(Time(1), server, false, Clock(0));
    }
    plans.enact();
    plans.tell(SERVERS);
    plans.adopted(Time(2), SERVERS[1], true, Clock(0));
    assert!(plans.is_steady() && !plans.is_known_to_all());
    plans.say(&members, &mut out);
    assert_eq!(told(&mut out), [(SERVERS[0], true)]);
    plans.forget(SERVERS[0]);
    assert!(plans.is_known_to_all());
}

#[test]
fn a_plan_that_was_sent_again_measures_no_answer() {
    let members = begun(2, 1);
    let mut out = Outbox::new();
    let mut plans = second(&members);
    assert!(!plans.say_again(Time(9), Span(10), &members, &mut out));
    assert!(plans.say_again(Time(10), Span(10), &members, &mut out));
    assert_eq!(told(&mut out).len(), 2);
    assert!(!plans.say_again(Time(19), Span(10), &members, &mut out));
    assert_eq!(plans.adopted(Time(20), SERVERS[0], false, Clock(0)), None);
}

#[test]
fn no_plan_is_made_while_one_is_being_adopted_unless_a_server_of_it_is_lost() {
    let members = begun(2, 1);
    let mut plans = second(&members);
    plans.request();
    assert!(!plans.may_make());
    plans.replace_without(SERVERS[0]);
    assert!(plans.may_make());
    assert_eq!(plans.adopting(), []);
}

#[test]
fn a_successor_knows_the_plan_and_whether_another_is_due() {
    for is_due in [false, true] {
        let mut plans = second(&begun(2, 1));
        if is_due {
            plans.request();
        }
        let mut bytes = Vec::new();
        plans.put(&mut bytes);
        let recalled = Plans::get(&mut Reader(&bytes)).expect("its own");
        assert_eq!((recalled.plan(), recalled.may_make()), (plans.plan(), is_due));
    }
}
