use super::*;
use crate::Membership;

const SECOND: Span = Span::from_secs(1);

fn settings(servers: u32, workers: u32) -> Settings {
    Settings::new(RunSize { servers, workers }, Membership::Elastic { replicas: 1, shards_per_server: 1 })
}

fn join(members: &mut Members, settings: &Settings, role: NodeRole, token: u64) -> Result<GivenPlace, String> {
    members.join(
        settings,
        JoinRequest { role, place: None, address: format!("host:{token}"), token, binding: None },
        Time(0),
    )
}

/// A run that has begun at clock 0: servers have the first sources, workers the next.
pub(crate) fn begun(servers: u32, workers: u32) -> Members {
    let settings = settings(servers, workers);
    let mut members = Members::default();
    for token in 0..u64::from(servers + workers) {
        let role = if token < u64::from(servers) { NodeRole::Server } else { NodeRole::Worker };
        let place = join(&mut members, &settings, role, token).expect("a place");
        assert!(!members.may_begin(settings.size()), "{:?} has sent no heartbeat", place.node);
        assert_eq!(members.confirm(place.node), Some(true));
    }
    assert!(members.may_begin(settings.size()));
    members.begin(Clock(0));
    members
}

#[test]
fn tokens_name_one_process_and_sources_one_incarnation() {
    let settings = settings(1, 2);
    let mut members = begun(1, 2);
    // (whether worker 0 is expelled first, a token; the rank and source given, whether the place is
    // new)
    let cases = [(false, 1, 0, 2, false), (true, 1, 2, 4, true), (false, 1, 2, 4, false), (false, 9, 3, 5, true)];
    for (is_expelled, token, rank, source, is_new) in cases {
        if is_expelled {
            members.expel(NodeId::Worker(0), "silence");
        }
        let given = join(&mut members, &settings, NodeRole::Worker, token).expect("a place");
        let expected = GivenPlace { node: NodeId::Worker(rank), source: Source(source), is_new };
        assert_eq!(given, expected, "token {token}");
    }
}

#[test]
fn frames_are_accepted_by_place_and_incarnation() {
    let mut members = begun(1, 2);
    members.expel(NodeId::Worker(1), "silence");
    let reason = "silence, and the run went on without it; start it again to join as a new node".to_owned();
    let cases = [
        (NodeId::Server(0), 0, Hearing::Accepted),
        (NodeId::Worker(0), 2, Hearing::Accepted),
        (NodeId::Worker(0), 7, Hearing::Replaced),
        (NodeId::Worker(1), 3, Hearing::Expelled(reason)),
        (NodeId::Worker(5), 7, Hearing::Accepted),
    ];
    for (from, source, expected) in cases {
        let head = Head { source: Source(source), clock: Clock(source), ..Head::plain(from, NodeId::Coordinator) };
        assert_eq!(members.hear(&head, Time(0)), expected, "{from} with source {source}");
    }
    assert_eq!(members.furthest_clock(), Clock(2), "clocks of refused frames do not count");
}

#[test]
fn silence_counts_from_the_last_frame_and_not_for_nodes_that_have_left() {
    let mut members = begun(1, 2);
    members.depart(NodeId::Worker(1));
    let head = Head::plain(NodeId::Server(0), NodeId::Coordinator);
    members.hear(&head, Time(0) + SECOND);
    let silent_at = |now: Time| members.silent(now, |_| SECOND).into_iter().map(|(node, _)| node).collect::<Vec<_>>();
    assert_eq!(silent_at(Time(0) + SECOND), []);
    assert_eq!(silent_at(Time(1) + SECOND), [NodeId::Worker(0)]);
    assert_eq!(silent_at(Time(1) + SECOND + SECOND), [NodeId::Server(0), NodeId::Worker(0)]);
}

#[test]
fn a_node_departs_once_and_the_run_is_over_without_workers() {
    let mut members = begun(1, 2);
    // (the node that departs, whether it was in the run, workers left, whether the run is over)
    let cases = [
        (NodeId::Worker(1), true, 1, false),
        (NodeId::Worker(1), false, 1, false),
        (NodeId::Server(0), true, 1, false),
        (NodeId::Worker(0), true, 0, true),
    ];
    for (node, was_there, present, is_over) in cases {
        assert_eq!(members.depart(node), was_there, "{node}");
        assert_eq!((members.present(), members.is_over()), (present, is_over), "{node}");
        assert_eq!(members.live_workers().count(), present);
    }
    assert!(members.is_finished());
}

#[test]
fn a_worker_is_planned_after_its_first_heartbeat_and_present_once_it_begins() {
    let mut members = begun(1, 1);
    let node = join(&mut members, &settings(1, 1), NodeRole::Worker, 7).expect("a place").node;
    assert_eq!(members.planned_workers(), [Some(Source(2)), None]);
    members.confirm(node);
    assert_eq!(members.planned_workers(), [Some(Source(2)), Some(Source(3))]);
    assert_eq!(members.present(), 1);
    members.admit(node, Clock(4));
    members.admit(node, Clock(5));
    assert_eq!((members.present(), members.first_clock(node)), (2, Some(Clock(4))));
    members.depart(NodeId::Worker(0));
    assert_eq!(members.planned_workers(), [None, Some(Source(3))]);
}

#[test]
fn a_server_that_asks_to_leave_is_let_and_stays_no_more() {
    let mut members = begun(2, 1);
    let node = NodeId::Server(1);
    assert_eq!(members.ask_to_leave(node, Time(3)), Some(Leave::Asked(Time(3))));
    assert_eq!(members.ask_to_leave(node, Time(9)), Some(Leave::Asked(Time(3))), "the time of its first request");
    assert_eq!(members.staying(), [0, 1]);
    members.let_leave(node);
    assert_eq!(members.ask_to_leave(node, Time(9)), Some(Leave::Leaving));
    assert_eq!((members.staying(), members.leaving().collect()), (vec![0], vec![1]));
    members.depart(node);
    assert_eq!(members.ask_to_leave(node, Time(9)), Some(Leave::Gone));
    assert_eq!(members.leaving().count(), 0);
}

#[test]
fn a_saved_form_that_contradicts_itself_is_refused() {
    type Damage = fn(&mut Members);
    let damage: [(&str, Damage); 5] = [
        ("a member with an impossible name", |members| {
            members
                .records
                .insert(NodeId::Worker(MOST_NODES), MemberRecord::new(String::new(), None, Source(4), Time(0)));
            members.given = 4;
        }),
        ("a token of a node that is no member", |members| {
            members.tokens.insert(8, NodeId::Worker(8));
        }),
        ("one source for two members", |members| {
            members.records.insert(NodeId::Worker(8), MemberRecord::new(String::new(), None, Source(2), Time(0)));
        }),
        ("a source that was never given", |members| members.given = 2),
        ("a number of places that is too large", |members| members.given = MOST_COUNT),
    ];
    let recalled = |members: &Members| {
        let mut bytes = Vec::new();
        members.put(&mut bytes);
        Members::get(&mut Reader(&bytes)).map(|members| members.present())
    };
    assert_eq!(recalled(&begun(1, 2)), Ok(2));
    for (what, damage) in damage {
        let mut members = begun(1, 2);
        damage(&mut members);
        assert_eq!(recalled(&members), Err(WireError::Malformed(what)));
    }
}

#[test]
fn forgiving_shortens_no_time_to_find_the_coordinator() {
    let mut members = begun(1, 1);
    let second = |seconds| Time(0) + Span::from_secs(seconds);
    // A successor gives nodes until second 15 to find it, and then does not run until second 12.
    members.take_over(second(15));
    members.forgive(Span::from_secs(2), second(12));
    assert_eq!(members.silent(second(16), |_| SECOND), []);
    assert_eq!(members.silent(second(17), |_| SECOND).len(), 2);
    // Later it does not run for 6 seconds.
    members.forgive(Span::from_secs(6), second(24));
    assert_eq!(members.silent(second(22), |_| SECOND), []);
    assert_eq!(members.silent(second(25), |_| SECOND).len(), 2);
}
