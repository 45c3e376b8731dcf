//! The guard's two decisions, row by row.

use super::*;
use identity::{JobToken, Token};
use rustls::pki_types::UnixTime;
use types::{CertificateName, KeyFingerprint};
use wire::{Control, Head, Message, NodeRole};

const KEY: KeyFingerprint = KeyFingerprint([1; 32]);
const OTHER: KeyFingerprint = KeyFingerprint([2; 32]);

fn peer(role: Role, key: KeyFingerprint) -> PeerIdentity {
    PeerIdentity { name: CertificateName::new("job", role, "host").expect("a name"), key }
}

/// The guard of a node of this role, which knows the key of server 1 and of worker 1.
fn guard(role: Role) -> Guard {
    let token = Token::Job(JobToken::create().expect("random bytes"));
    let credentials = Credentials::of_token(&token, role, "test", UnixTime::now()).expect("signed");
    let mut guard = Guard::new(Security::Tls(credentials));
    let member = |node| Member { node, address: String::new(), binding: Some(Binding::Key(KEY)) };
    guard.know(&[member(NodeId::Server(1)), member(NodeId::Worker(1))]);
    guard
}

fn frame(from: NodeId, control: Control) -> Frame {
    Frame { head: Head::plain(from, NodeId::Coordinator), message: Message::Control(control) }
}

fn join(role: NodeRole) -> Control {
    Control::Join { role, address: String::new(), token: 0, place: None, job: String::new() }
}

#[test]
fn called_peer_must_have_the_role_and_key_of_the_called_node() {
    let guard = guard(Role::Worker);
    // (node, peer, the refusal; empty for none)
    let cases = [
        (NodeId::Server(1), peer(Role::Server, KEY), ""),
        (NodeId::Server(1), peer(Role::Server, OTHER), "with key 02"),
        (NodeId::Server(1), peer(Role::Worker, KEY), "and not server 1"),
        // The first call of a node goes to the coordinator, of which it knows the role only.
        (NodeId::Coordinator, peer(Role::Coordinator, OTHER), ""),
        (NodeId::Coordinator, peer(Role::Server, OTHER), "and not coordinator"),
        (NodeId::Coordinator, peer(Role::Reader, OTHER), "and not coordinator"),
    ];
    for (node, peer, words) in cases {
        let refusal = guard.check_called(node, &peer).err().map(|refusal| refusal.words).unwrap_or_default();
        assert_eq!(refusal.is_empty(), words.is_empty(), "{node} {peer:?}: {refusal}");
        assert!(refusal.contains(words), "{node} {peer:?}: {refusal}");
    }
}

#[test]
fn frames_are_judged_by_the_peer_of_their_connection() {
    let coordinator = guard(Role::Coordinator);
    let prov = NodeId::Worker(PROVISIONAL + 5);
    // (peer, sender in the frame, message; accepted, dropped, or the words of a refusal)
    let cases = [
        (peer(Role::Worker, KEY), NodeId::Worker(1), Control::Heartbeat { heard: 0 }, "accepted"),
        (peer(Role::Worker, OTHER), NodeId::Worker(1), Control::Heartbeat { heard: 0 }, "but worker 1 has key"),
        (peer(Role::Worker, KEY), NodeId::Worker(2), Control::Heartbeat { heard: 0 }, "dropped"),
        (peer(Role::Worker, KEY), NodeId::Server(1), Control::Heartbeat { heard: 0 }, "calls itself server 1"),
        (peer(Role::Worker, KEY), NodeId::Coordinator, Control::Finish, "calls itself coordinator"),
        (peer(Role::Worker, KEY), NodeId::Worker(1), Control::Retire, "may not send"),
        (peer(Role::Server, KEY), NodeId::Server(1), Control::Retire, "accepted"),
        (peer(Role::Worker, OTHER), prov, join(NodeRole::Worker), "accepted"),
        (peer(Role::Worker, OTHER), prov, join(NodeRole::Server), "may not send"),
        (peer(Role::Worker, OTHER), prov, Control::Barrier { number: 1 }, "has no place"),
        (peer(Role::Worker, OTHER), prov, Control::Heartbeat { heard: 0 }, "has no place"),
        (peer(Role::Reader, OTHER), prov, join(NodeRole::Worker), "may not send"),
        (peer(Role::Reader, OTHER), prov, Control::AskStatus, "accepted"),
        (peer(Role::Reader, KEY), NodeId::Worker(1), Control::AskStatus, "calls itself worker 1"),
        (peer(Role::Reader, OTHER), prov, Control::Fail { reason: String::new() }, "may not send"),
    ];
    for (peer, from, control, expected) in cases {
        let said = format!("{peer:?} as {from} sends {control:?}");
        let found = match coordinator.judge(Some(&peer), &frame(from, control)) {
            Verdict::Accepted => "accepted".to_owned(),
            Verdict::NotYet => "dropped".to_owned(),
            Verdict::Refused(refusal) => refusal.words,
        };
        assert!(found.contains(expected), "{said}: {found}");
    }
    let unfinished = coordinator.judge(None, &frame(NodeId::Worker(1), Control::Heartbeat { heard: 0 }));
    assert!(matches!(unfinished, Verdict::Refused(_)), "no handshake, no frame");
    let insecure = Guard::new(Security::Insecure);
    assert_eq!(insecure.judge(None, &frame(NodeId::Coordinator, Control::Finish)), Verdict::Accepted);
}

#[test]
fn refusals_of_the_guard_have_their_reasons() {
    let coordinator = guard(Role::Coordinator);
    let heartbeat = || Control::Heartbeat { heard: 0 };
    let cases = [
        (peer(Role::Worker, OTHER), NodeId::Worker(1), heartbeat(), RefusalReason::NameTaken),
        (peer(Role::Worker, KEY), NodeId::Server(1), heartbeat(), RefusalReason::Role),
        (peer(Role::Worker, KEY), NodeId::Worker(1), Control::Retire, RefusalReason::Role),
        (peer(Role::Worker, KEY), NodeId::Worker(PROVISIONAL), heartbeat(), RefusalReason::Role),
    ];
    for (peer, from, control, reason) in cases {
        let verdict = coordinator.judge(Some(&peer), &frame(from, control));
        assert!(matches!(&verdict, Verdict::Refused(refusal) if refusal.reason == reason), "{from}: {verdict:?}");
    }
    assert!(coordinator.has_place(&peer(Role::Worker, KEY)) && !coordinator.has_place(&peer(Role::Worker, OTHER)));
    assert!(coordinator.has_place(&peer(Role::Coordinator, OTHER)), "a coordinator has a place");
}

#[test]
fn a_name_that_is_given_to_another_process_has_the_new_key() {
    let mut guard = guard(Role::Coordinator);
    let frame = frame(NodeId::Worker(1), Control::Heartbeat { heard: 0 });
    guard.know(&[Member { node: NodeId::Worker(1), address: String::new(), binding: Some(Binding::Key(OTHER)) }]);
    assert_eq!(guard.judge(Some(&peer(Role::Worker, OTHER)), &frame), Verdict::Accepted);
    assert!(matches!(guard.judge(Some(&peer(Role::Worker, KEY)), &frame), Verdict::Refused(_)));
}

#[test]
fn a_name_bound_to_a_certificate_stays_when_its_key_changes() {
    let mut guard = guard(Role::Coordinator);
    let frame = frame(NodeId::Worker(1), Control::Heartbeat { heard: 0 });
    let name = peer(Role::Worker, KEY).name;
    let member = |node| Member { node, address: String::new(), binding: Some(Binding::Certificate(name.clone())) };
    guard.know(&[member(NodeId::Worker(1))]);
    assert_eq!(guard.judge(Some(&peer(Role::Worker, KEY)), &frame), Verdict::Accepted);
    assert_eq!(guard.judge(Some(&peer(Role::Worker, OTHER)), &frame), Verdict::Accepted, "a renewed certificate");
    let another = CertificateName::new("job", Role::Worker, "another").expect("a name");
    let another = PeerIdentity { name: another, key: KEY };
    assert!(matches!(guard.judge(Some(&another), &frame), Verdict::Refused(_)), "another certificate");
}
