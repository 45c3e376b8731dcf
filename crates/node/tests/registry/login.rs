//! An etcd that speaks TLS, asks for certificates and for a login: who gets in, and what those are
//! told that do not.

use crate::certificates::TestAuthority;
use crate::etcd::{Etcd, ServerFiles};
use crate::{LIMIT, insist, lead};
use node::registry::{Candidate, CoordinatorRegistry, EtcdAccess, EtcdLocation, EtcdRegistry, RegistryError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(20);

fn stand(url: &str, access: &EtcdAccess) -> EtcdRegistry {
    let location: EtcdLocation = format!("{url}/tests/clicks").parse().expect("a location");
    let candidate = Candidate { leader_lease: LEASE, ..Candidate::new("clicks", "a:1") };
    location.stand(candidate, access).expect("the files are good")
}

fn user_file(folder: &Path, line: &str) -> PathBuf {
    let path = folder.join(line.trim().replace(':', "-"));
    std::fs::write(&path, line).expect("written");
    path
}

/// The error of a campaign, which must have these words in the end: etcd may close a connection
/// before its reason has arrived.
fn refused(url: &str, access: &EtcdAccess, words: &str) -> String {
    let begin = Instant::now();
    loop {
        let error = stand(url, access).campaign(Instant::now()).expect_err("it is refused").to_string();
        if error.contains(words) {
            return error;
        }
        assert!(begin.elapsed() < LIMIT, "it should say `{words}`: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_registry_with_the_right_certificate_and_password_works_and_others_learn_what_is_wrong() {
    let authority = TestAuthority::new();
    let stranger = TestAuthority::new();
    let server = authority.sign("server", &["127.0.0.1"]);
    let files = ServerFiles { ca: &authority.file(), certificate: &server.certificate, key: &server.key };
    let Some(etcd) = Etcd::start_secured(&files, &[]) else { return };
    let own = authority.sign("own", &["coordinator"]);
    let foreign = stranger.sign("foreign", &["coordinator"]);
    let good = EtcdAccess {
        ca_file: Some(authority.file()),
        certificate_file: Some(own.certificate),
        key_file: Some(own.key),
        user_file: None,
    };
    let url = format!("etcds://{}", etcd.tls_endpoint());
    let by_name = url.replace("127.0.0.1", "localhost");

    // With certificates, and nobody asks for a login.
    let mut registry = stand(&url, &good);
    lead(&mut registry);
    registry.save(Instant::now(), &vec![7; 3 << 20]).expect("a memory in chunks");
    registry.forget(Instant::now()).expect("forgotten");
    registry.resign().expect("it resigns");
    let foreign =
        EtcdAccess { certificate_file: Some(foreign.certificate), key_file: Some(foreign.key), ..good.clone() };
    let nobody = EtcdAccess { certificate_file: None, key_file: None, ..good.clone() };
    let distrusting = EtcdAccess { ca_file: Some(stranger.file()), ..good.clone() };
    for (url, access, words) in [
        (&url, &distrusting, "--etcd-cacert does not hold the authority"),
        (&url, &nobody, "client certificate of an authority that it trusts"),
        (&url, &foreign, "client certificate of an authority that it trusts"),
        (&by_name, &good, "call it by a name or address that it holds"),
    ] {
        refused(url, access, words);
    }

    etcd.ask_for_login();
    let folder = authority.folder();
    let with = |line: &str| EtcdAccess { user_file: Some(user_file(folder, line)), ..good.clone() };
    for (access, words) in [
        (good.clone(), "--etcd-user-file"),
        (with("slackwater:wrong"), "correct name or password"),
        (with("nobody:pass:word"), "correct name or password"),
        (with("other:pass:word\n"), "readwrite"),
    ] {
        let error = refused(&url, &access, words);
        assert!(!error.contains("pass:word"), "{error}");
    }
    let named = authority.sign_with_common_name("named", &["coordinator"]);
    let good_user = with("slackwater:pass:word\n");
    let named =
        EtcdAccess { certificate_file: Some(named.certificate), key_file: Some(named.key), ..good_user.clone() };
    refused(&url, &named, "without a CommonName");
    let mut registry = stand(&url, &good_user);
    lead(&mut registry);
    registry.save(Instant::now(), b"plan 1").expect("saved");
    assert_eq!(registry.load(), Ok(Some(b"plan 1".to_vec())));
}

#[test]
fn a_registry_logs_in_again_when_its_token_has_expired_or_is_forgotten() {
    let Some(mut etcd) = Etcd::start_with(&["--auth-token-ttl=1"]) else { return };
    etcd.ask_for_login();
    let authority = TestAuthority::new();
    let user_file = Some(user_file(authority.folder(), "slackwater:pass:word"));
    let access = EtcdAccess { user_file, ..EtcdAccess::default() };
    let mut registry = stand(&format!("etcd://{}", etcd.endpoint()), &access);
    lead(&mut registry);
    registry.save(Instant::now(), b"plan 1").expect("saved");
    // Longer than tokens live, which etcd checks once a second.
    std::thread::sleep(Duration::from_secs(4));
    registry.save(Instant::now(), b"plan 2").expect("saved with a new token");
    // A restarted member has forgotten all tokens.
    etcd.restart();
    insist(|| registry.save(Instant::now(), b"plan 3")).expect("saved with another token");
    assert_eq!(registry.load(), Ok(Some(b"plan 3".to_vec())));
}

#[test]
fn a_user_is_no_harm_at_an_etcd_that_asks_for_none() {
    let Some(etcd) = Etcd::start() else { return };
    let authority = TestAuthority::new();
    let user_file = Some(user_file(authority.folder(), "slackwater:pass:word"));
    let mut registry = stand(&format!("etcd://{}", etcd.endpoint()), &EtcdAccess { user_file, ..Default::default() });
    lead(&mut registry);
    let error: Result<(), RegistryError> = registry.save(Instant::now(), b"plan 1");
    assert_eq!(error, Ok(()));
}
