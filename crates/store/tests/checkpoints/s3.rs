//! Faults of a real S3 server: it closes connections, answers errors, loses answers, is gone. Only
//! whole checkpoints are published.

use crate::support::proxy::{Fault, Matches, Proxy};
use crate::support::{JOB, assert_holds, manifest, moto, publish, shard, table};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use store::{CheckpointShard, Problem, Store, StoreError, StoreSettings};

/// Ten times what the slowest of these tests takes.
const HUNG: Duration = Duration::from_secs(100);

/// Settings that give up soon.
fn hasty(endpoint: &str) -> StoreSettings {
    StoreSettings {
        retry_for: Duration::from_secs(1),
        request_timeout: Duration::from_millis(500),
        ..moto::settings(endpoint)
    }
}

/// Each kind of request that a store makes.
const REQUESTS: [(&str, Matches); 9] = [
    ("begin a file of parts", |it| it.method == "POST" && it.target.contains("uploads")),
    ("a part", |it| it.method == "PUT" && it.target.contains("partNumber")),
    ("end a file of parts", |it| it.method == "POST" && it.target.contains("uploadId")),
    ("a small file", |it| it.method == "PUT" && it.target.contains("safetensors") && !it.target.contains("partNumber")),
    ("the manifest", |it| it.method == "PUT" && it.target.contains("manifest.json")),
    ("a list", |it| it.method == "GET" && it.target.contains("list-type")),
    ("a look", |it| it.method == "HEAD"),
    ("reading", |it| it.method == "GET" && it.target.contains("safetensors")),
    ("removing", |it| it.method == "POST" && it.target.contains("delete")),
];

const FAULTS: [Fault; 5] =
    [Fault::CutRequest, Fault::LoseAnswer, Fault::CutAnswer, Fault::Answer(503), Fault::Answer(500)];

#[test]
fn a_checkpoint_is_whole_though_any_request_fails_twice() {
    let Some(server) = moto::address("faults of S3") else { return };
    // Two parts, the second one small.
    let large = shard("large", 0, 600_000, 9);
    let try_all = |name: &str, matches: Matches| {
        for fault in FAULTS {
            let proxy = Proxy::start(server);
            let store = moto::store(proxy.address(), &moto::bucket(server));
            let fired = proxy.inject(matches, fault, 2);
            exercise(&store, &large).unwrap_or_else(|error| panic!("{name}, {fault:?}: {error}"));
            // The store does not repeat a request with a lost answer if a look shows that it was
            // done.
            assert!(fired.load(Ordering::SeqCst) >= 1, "{name}, {fault:?} never came");
        }
    };
    // Most of the time passes in pauses before retries, so run them side by side.
    thread::scope(|scope| REQUESTS.map(|(name, matches)| scope.spawn(move || try_all(name, matches))).map(drop));
}

#[test]
fn a_store_survives_dead_kept_connections() {
    let Some(server) = moto::address("dead connections to S3") else { return };
    let proxy = Proxy::start(server);
    let store = moto::store(proxy.address(), &moto::bucket(server));
    proxy.inject(|_| true, Fault::CloseUnannounced, usize::MAX);
    exercise(&store, &shard("large", 0, 600_000, 9)).unwrap();
}

/// Writes two checkpoints, reads one, removes the other.
fn exercise(store: &Store, large: &CheckpointShard) -> Result<(), StoreError> {
    publish(store, 1)?;
    let writing = store.begin(JOB)?;
    let tables = vec![table("large", std::slice::from_ref(large), &writing)?];
    writing.publish(&manifest(2, tables))?;
    store.prune(NonZeroUsize::MIN)?;
    let opened = store.newest(Some(JOB))?;
    opened.verify()?;
    assert!(opened.shard("large", 0)? == *large);
    assert_eq!(store.list()?.len(), 1);
    Ok(())
}

#[test]
fn a_server_lost_during_a_write_leaves_the_checkpoint_before() {
    let Some(server) = moto::address("an S3 server that goes away") else { return };
    let bucket = moto::bucket(server);
    let direct = moto::store(server, &bucket);
    let first = publish(&direct, 1).unwrap();
    for (name, matches) in &REQUESTS[..5] {
        let proxy = Proxy::start(server);
        let location = format!("s3://{bucket}/runs/one");
        let store = Store::open_with(&location, &hasty(&format!("http://{}", proxy.address()))).unwrap();
        let fired = proxy.inject(*matches, Fault::CutRequest, usize::MAX);
        let begun = Instant::now();
        let writing = store.begin(JOB).unwrap();
        let written = table("weights", &[shard("weights", 0, 5, 1), shard("weights", 1, 600_000, 1)], &writing);
        let published = written.and_then(|table| writing.publish(&manifest(2, vec![table])));
        let error = published.expect_err(name);
        assert!(matches!(&error, StoreError::Unavailable { .. }), "{name}: {error}");
        assert!(fired.load(Ordering::SeqCst) > 1 && begun.elapsed() < HUNG, "{name}");
        // A reader now finds the checkpoint before it.
        let newest = direct.newest(None).unwrap();
        assert_eq!(newest.name(), first, "{name}");
        assert_holds(&newest, 1);
        direct.remove_unfinished().unwrap();
    }
    assert_eq!(direct.list().unwrap().len(), 1);
}

#[test]
fn a_missing_server_is_reported_in_good_time() {
    // The port was bound and given back: nobody listens there.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for scheme in ["http", "https"] {
        let endpoint = format!("{scheme}://{nobody}");
        let store = Store::open_with("s3://bucket/runs", &hasty(&endpoint)).unwrap();
        let begun = Instant::now();
        for error in [store.newest(None).unwrap_err(), store.probe().unwrap_err(), publish(&store, 1).unwrap_err()] {
            let text = error.to_string();
            assert!(matches!(error, StoreError::Unavailable { .. }), "{text}");
            assert!(
                text.contains(&endpoint) && text.contains("refused") && text.contains("after trying for"),
                "{text}"
            );
        }
        assert!(begun.elapsed() < HUNG);
    }
}

#[test]
fn a_silent_or_failing_server_is_reported() {
    let Some(server) = moto::address("an S3 server that fails") else { return };
    let bucket = moto::bucket(server);
    for (fault, words) in
        [(Fault::Silence, "timed out"), (Fault::Answer(503), "503 Service Unavailable: Injected: By the proxy.")]
    {
        let proxy = Proxy::start(server);
        proxy.inject(|_| true, fault, usize::MAX);
        let settings = hasty(&format!("http://{}", proxy.address()));
        let store = Store::open_with(&format!("s3://{bucket}"), &settings).unwrap();
        let begun = Instant::now();
        let error = store.newest(None).unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }) && error.to_string().contains(words), "{error}");
        assert!(begun.elapsed() < HUNG);
        // The same store works again when its server does.
        proxy.behave();
        publish(&store, 1).unwrap();
        store.newest(None).unwrap().verify().unwrap();
        store.prune(NonZeroUsize::MIN).unwrap();
    }
}

#[test]
fn a_missing_bucket_is_reported() {
    let Some(server) = moto::address("an S3 server without the bucket") else { return };
    let store = moto::store(server, "no-such-bucket");
    let name = "checkpoint-00000001-00000001".parse().unwrap();
    let written = store.join(name).shard(&shard("weights", 0, 5, 1)).unwrap_err();
    let written_in_parts = store.join(name).shard(&shard("weights", 0, 600_000, 1)).unwrap_err();
    for error in [store.newest(None).unwrap_err(), store.begin(JOB).unwrap_err(), written, written_in_parts] {
        assert!(matches!(&error, StoreError::NoBucket { bucket, .. } if bucket == "no-such-bucket"), "{error}");
        assert!(error.to_string().contains(&format!("http://{server} has no bucket `no-such-bucket`")), "{error}");
    }
}

#[test]
fn a_request_that_is_forbidden_is_not_sent_again() {
    let Some(server) = moto::address("an S3 server that forbids") else { return };
    let bucket = moto::bucket(server);
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let proxy = Proxy::start(server);
        let fired = proxy.inject(|it| it.method == "PUT", Fault::Answer(status[..3].parse().unwrap()), usize::MAX);
        let store = moto::store(proxy.address(), &bucket);
        let error = store.probe().unwrap_err();
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
        assert!(error.to_string().contains(&format!("({status}: Injected: By the proxy.)")), "{error}");
        assert_eq!(fired.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn missing_credentials_are_reported_with_the_variables_to_set() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = hasty(&format!("http://{nobody}"));
    settings.variables.retain(|(name, _)| !name.contains("KEY"));
    settings.variables.push(("AWS_METADATA_ENDPOINT".into(), format!("http://{nobody}")));
    let error = Store::open_with("s3://bucket", &settings).unwrap().newest(None).unwrap_err();
    assert!(matches!(error, StoreError::NoCredentials { .. }), "{error}");
    assert!(error.to_string().contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{error}");
    // Half a pair of keys is refused before any request.
    settings.variables.push(("AWS_ACCESS_KEY_ID".into(), "key".into()));
    let error = Store::open_with("s3://bucket", &settings).unwrap_err();
    assert!(matches!(error, StoreError::Location { .. }), "{error}");
}

#[test]
fn damage_in_a_bucket_is_named() {
    let Some(server) = moto::address("damage in a bucket") else { return };
    let bucket = moto::bucket(server);
    let store = moto::store(server, &bucket);
    let first = publish(&store, 1).unwrap();
    let second = publish(&store, 2).unwrap();
    let opened = store.newest(None).unwrap();
    let path = |file: &str| format!("/{bucket}/runs/one/{second}/{file}");
    let files: Vec<String> = opened.manifest().files().map(|(file, _)| file.name.clone()).collect();
    let (status, whole) = moto::request(server, "GET", &path(&files[0]), b"");
    assert_eq!(status, 200);
    let put = |file: &str, bytes: &[u8]| assert_eq!(moto::request(server, "PUT", &path(file), bytes).0, 200);
    let problem = |error: StoreError| {
        let StoreError::Damaged { name, problem, previous, .. } = error else { panic!("{error}") };
        assert_eq!((name, previous), (second, Some(first)));
        *problem
    };

    let mut changed = whole.clone();
    changed[100] ^= 1;
    put(&files[0], &changed);
    assert!(matches!(problem(opened.verify().unwrap_err()), Problem::Checksum { file, .. } if file == files[0]));
    assert!(matches!(problem(opened.shard("weights", 0).unwrap_err()), Problem::Checksum { .. }));
    put(&files[0], &whole[..whole.len() - 1]);
    assert!(matches!(problem(store.newest(None).unwrap_err()), Problem::Length { .. }));
    assert!(matches!(problem(opened.shard("weights", 0).unwrap_err()), Problem::Length { .. }));
    assert_eq!(moto::request(server, "DELETE", &path(&files[0]), b"").0, 204);
    assert!(matches!(problem(store.newest(None).unwrap_err()), Problem::Missing { .. }));
    assert!(matches!(problem(opened.shard("weights", 0).unwrap_err()), Problem::Missing { .. }));
    put("manifest.json", b"{ \"format\": \"slackwater checkpoint\", \"version\": 3 }");
    assert_eq!(problem(store.newest(None).unwrap_err()), Problem::OtherVersion { found: 3 });
}

/// Shows users a wrong address in their variables.
#[test]
fn a_location_shows_its_endpoint() {
    let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let store = moto::store(address, "bucket");
    assert_eq!(store.location(), "s3://bucket/runs/one (http://127.0.0.1:9)");
}
