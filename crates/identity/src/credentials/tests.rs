//! Handshakes between two processes, in memory.

use super::*;
use crate::authority::Lifetime;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, HandshakeKind, ServerConnection};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn job() -> JobToken {
    JobToken::create().expect("random bytes")
}

fn member(token: &JobToken, role: Role, name: &str) -> Credentials {
    Credentials::of_job(token, role, name, UnixTime::now()).expect("signed")
}

fn restricted(token: &JobToken, role: Role, lifetime: Lifetime) -> Credentials {
    let restricted = token.restrict(role, "limited", lifetime).expect("signed");
    Credentials::of_restricted(&restricted, role).expect("the same role")
}

/// Moves bytes both ways until nothing moves any more. Returns the first error of each end.
fn shake(client: &mut Connection, server: &mut Connection) -> (Option<String>, Option<String>) {
    let mut errors: [Option<String>; 2] = [None, None];
    for _ in 0..16 {
        let step = |from: &mut Connection, to: &mut Connection, error: &mut Option<String>| {
            let mut bytes = Vec::new();
            while from.wants_write() {
                from.write_tls(&mut bytes).expect("a vector takes everything");
            }
            let mut bytes = &bytes[..];
            while !bytes.is_empty() && to.read_tls(&mut bytes).expect("a slice can be read") > 0 {
                if let Err(problem) = to.process_new_packets() {
                    error.get_or_insert(problem.to_string());
                }
            }
        };
        let [of_client, of_server] = &mut errors;
        step(client, server, of_server);
        step(server, client, of_client);
    }
    let [of_client, of_server] = errors;
    (of_client, of_server)
}

fn connect(caller: &Credentials, called: &Credentials) -> (Connection, Connection, Option<String>, Option<String>) {
    let name = ServerName::try_from("slackwater").expect("a name");
    let mut client: Connection = ClientConnection::new(caller.client(), name).expect("a client").into();
    let mut server: Connection = ServerConnection::new(called.server()).expect("a server").into();
    let (of_client, of_server) = shake(&mut client, &mut server);
    (client, server, of_client, of_server)
}

#[test]
fn members_of_a_job_learn_each_others_names_and_keys() {
    let token = job();
    let worker = member(&token, Role::Worker, "w-1");
    let server = member(&token, Role::Server, "s-1");
    for _ in 0..2 {
        let (caller, called, of_client, of_server) = connect(&worker, &server);
        assert_eq!((of_client, of_server), (None, None));
        assert_eq!(caller.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(caller.handshake_kind(), Some(HandshakeKind::Full), "nothing is resumed");
        let seen = |end: &Connection| PeerIdentity::of(&end.peer_certificates().expect("a certificate")[0]);
        assert_eq!(seen(&called), Ok(worker.own()));
        assert_eq!(seen(&caller), Ok(server.own()));
    }
    let another = member(&token, Role::Worker, "w-1");
    assert_ne!(another.own().key, worker.own().key, "each process has its own key");
}

#[test]
fn strangers_are_refused_with_a_reason() {
    let token = job();
    let now = UnixTime::now();
    let ago = |time: Duration| UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) - time);
    let expired = Lifetime { now: ago(3 * DAY), length: DAY };
    let valid = Lifetime { now, length: DAY };
    let server = member(&token, Role::Server, "s");
    let stranger = member(&job(), Role::Worker, "w");
    // (caller, called, what the end that refuses says)
    let cases = [
        (stranger.clone(), server.clone(), "UnknownIssuer"),
        (member(&token, Role::Worker, "w"), member(&job(), Role::Server, "s"), "UnknownIssuer"),
        (restricted(&token, Role::Worker, expired), server.clone(), "Expired"),
        (member(&token, Role::Worker, "w"), restricted(&token, Role::Reader, valid), "a reader cannot be called"),
    ];
    for (caller, called, words) in cases {
        let (_, _, of_client, of_server) = connect(&caller, &called);
        let said = format!("{of_client:?} {of_server:?}");
        assert!(said.contains(words), "{caller:?} calls {called:?}: {said}");
    }
    let (_, _, of_client, of_server) = connect(&restricted(&token, Role::Reader, valid), &server);
    assert_eq!((of_client, of_server), (None, None), "a reader may call");
}

#[test]
fn a_restricted_token_serves_its_own_role_only() {
    let token = job();
    let restricted = token.restrict(Role::Worker, "w", Lifetime::of_process(UnixTime::now())).expect("signed");
    for role in Role::ALL {
        let made = Credentials::of_restricted(&restricted, role);
        assert_eq!(made.is_ok(), role == Role::Worker, "{role}");
    }
}

#[test]
fn a_caller_without_a_certificate_is_refused() {
    let token = job();
    let server = member(&token, Role::Server, "s");
    let anonymous = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(
            JobVerifier::new(&token.job(), &[token.authority().expect("an authority").certificate().clone()])
                .expect("an authority"),
        ))
        .with_no_client_auth();
    let name = ServerName::try_from("slackwater").expect("a name");
    let mut caller: Connection = ClientConnection::new(Arc::new(anonymous), name).expect("a client").into();
    let mut called: Connection = ServerConnection::new(server.server()).expect("a server").into();
    let (_, of_server) = shake(&mut caller, &mut called);
    assert!(of_server.as_deref().is_some_and(|error| error.contains("no certificate")), "{of_server:?}");
}
