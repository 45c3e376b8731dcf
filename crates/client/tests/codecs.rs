//! Codecs through real sessions: in one process, over TCP and through shared memory.

use slackwater::cluster::SameHost;
use slackwater::policy::{Codecs, Combine, Reduce};
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Keys, RunSize, Serve, Session, TableSpec, UpdaterSpec};
use std::thread::spawn;

/// A server and a worker in this process that talk over TCP or through shared memory.
fn pair(same_host: SameHost) -> (Session, std::thread::JoinHandle<()>) {
    let coordinator_address = slackwater::cluster::free_address().expect("a free port");
    let connect = Connect { same_host, access: Access::Insecure, ..Connect::to(&coordinator_address.to_string()) };
    let coordinate = Some(RunSize { servers: 1, workers: 1 });
    let served = connect.clone();
    let server = spawn(move || {
        Serve { coordinate, ..Serve::new(served) }.run().expect("a good end");
    });
    (Session::connect(&connect).expect("a session"), server)
}

fn layer(codecs: Codecs) -> TableSpec {
    TableSpec::dense("layer", 64, 1024)
        .updater(UpdaterSpec::Sgd { rate: 1.0 })
        .consistency(Consistency::LOCK_STEP)
        .combine(Combine::Clock(Reduce::Sum))
        .cached(64)
        .codecs(codecs)
}

/// Links within one host are fast, so `auto` encodes nothing.
#[test]
fn auto_picks_no_codec_within_one_host() {
    for same_host in [SameHost::Tcp, SameHost::SharedMemory] {
        let (session, server) = pair(same_host);
        let table = session.table::<f32>(layer(Codecs::auto())).expect("a table");
        for _ in 0..40 {
            table.push(&Keys::run(0..64), vec![1.0; 64 * 1024]).expect("sent").wait().expect("applied");
            session.clock().expect("ended");
            table.pull(&Keys::run(0..64)).expect("asked").wait().expect("read");
        }
        let used = session.codecs();
        assert_eq!(used[0].up, "", "{same_host:?}: {used:?}");
        assert_eq!(used[0].downward.ratio(), None, "{same_host:?}: reads go as they are");
        session.close().expect("a good end");
        server.join().expect("a good end");
    }
}

/// Every codec carries these values in both directions with little or no error.
#[test]
fn every_codec_carries_pushes_and_reads() {
    for pipeline in ["keys,bf16", "f16,lz4", "fixed8", "fixed12,zstd", "1bit", "2bit", "threshold=0.1", "zeros,zstd"] {
        let (session, server) = pair(SameHost::Tcp);
        let table = session.table::<f32>(layer(Codecs::both(pipeline.split(',')))).expect("a table");
        for clock in 1..=5 {
            drop(table.push(&Keys::run(0..64), vec![-1.0; 64 * 1024]).expect("sent"));
            session.clock().expect("ended");
            let rows = table.pull(&Keys::run(0..64)).expect("asked").wait().expect("read");
            let worst = rows.values().iter().map(|value| (value - clock as f32).abs()).fold(0.0, f32::max);
            assert!(worst < 0.02, "{pipeline} at {clock}: {worst} off");
        }
        let used = &session.codecs()[0];
        // `threshold` saves nothing here, because every value is above it.
        if !pipeline.starts_with("threshold") {
            assert!(used.upward.ratio().is_some_and(|ratio| ratio > 1.5), "{pipeline}: {used:?}");
        }
        assert!(used.upward.encode_ns > 0, "{pipeline}: time is counted");
        session.close().expect("a good end");
        server.join().expect("a good end");
    }
}

/// With `1bit` both ways a worker sends and receives less than 1/25 of the bytes.
#[test]
fn one_bit_both_ways_moves_less_than_a_25th_of_the_bytes() {
    let bytes = |codecs| {
        let (session, server) = pair(SameHost::Tcp);
        let table = session.table::<f32>(layer(codecs)).expect("a table");
        table.pull(&Keys::run(0..64)).expect("asked").wait().expect("read");
        let before = session.traffic();
        for clock in 0..20 {
            let values = (0..64 * 1024).map(|place| ((place * 7 + clock) % 13) as f32 - 6.0).collect::<Vec<f32>>();
            drop(table.push(&Keys::run(0..64), values).expect("sent"));
            session.clock().expect("ended");
            table.pull(&Keys::run(0..64)).expect("asked").wait().expect("read");
        }
        let after = session.traffic();
        session.close().expect("a good end");
        server.join().expect("a good end");
        [after.bytes_out - before.bytes_out, after.bytes_in - before.bytes_in]
    };
    let plain = bytes(Codecs::default());
    let one_bit = bytes(Codecs::both(["1bit"]));
    for (way, (plain, one_bit)) in ["up", "down"].iter().zip(plain.iter().zip(&one_bit)) {
        let times = *plain as f64 / *one_bit as f64;
        assert!(times > 25.0, "{way}: {plain} bytes, {one_bit} with 1bit");
    }
}

/// A table that does not fit its codecs is refused, with what to do about it.
#[test]
fn table_with_unfit_codecs_is_refused_with_a_reason() {
    let session = Session::embedded(RunSize { servers: 1, workers: 1 }).expect("a session").remove(0);
    let plain = TableSpec::dense("t", 4, 4);
    for (spec, words) in [
        (plain.clone().codecs(Codecs::up(["bf32"])), "there is no codec 'bf32'"),
        (plain.clone().codecs(Codecs::up(["lz4", "bf16"])), "bf16 cannot come after lz4"),
        (plain.clone().codecs(Codecs::both(["1bit"])), "combine by clock"),
        (plain.clone().codecs(Codecs::up(["kkt"])), "proximal"),
        (plain.clone().codecs(Codecs::up(["skip=50%"])), "unbounded"),
        (plain.number(slackwater::policy::NumberType::I64).codecs(Codecs::up(["bf16"])), "bf16 is for tables of f32"),
    ] {
        let error = if spec.number == slackwater::policy::NumberType::I64 {
            session.table::<i64>(spec).err()
        } else {
            session.table::<f32>(spec).err()
        };
        let error = error.expect(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    session.close().expect("a good end");
}

/// A worker under a bandwidth limit takes longer, and loses no push.
#[test]
fn bandwidth_limit_holds_for_pushes() {
    let (session, server) = pair(SameHost::Tcp);
    let table = session.table::<f32>(layer(Codecs::default())).expect("a table");
    let rate = 4_000_000;
    session.limit_bandwidth(Some(slackwater::cluster::Bandwidth::from_bytes_per_second(rate)));
    let began = std::time::Instant::now();
    for _ in 0..4 {
        drop(table.push(&Keys::run(0..64), vec![-1.0; 64 * 1024]).expect("sent"));
        session.clock().expect("ended");
    }
    let rows = table.pull(&Keys::run(0..64)).expect("asked").wait().expect("read");
    // The least time at this rate: a megabyte, less what the token bucket may have saved up.
    let least = (4.0 * 64.0 * 1024.0 * 4.0 - 400_000.0) / rate as f64;
    assert!(began.elapsed().as_secs_f64() > least, "{:?}", began.elapsed());
    assert_eq!(rows.values(), [4.0; 64 * 1024]);
    session.close().expect("a good end");
    server.join().expect("a good end");
}

/// Every read follows the worker's own pushes, and every key list is new, so keys take as many
/// bytes as values. All of them count.
#[test]
fn bandwidth_limit_holds_for_keys_and_reads() {
    let (session, server) = pair(SameHost::Tcp);
    let table = session.table::<f32>(TableSpec::sparse("words", 1)).expect("a table");
    let rate = 1_000_000;
    session.limit_bandwidth(Some(slackwater::cluster::Bandwidth::from_bytes_per_second(rate)));
    let began = std::time::Instant::now();
    let before = session.traffic().bytes_out;
    for round in 0..20 {
        let ids: Vec<u64> = (0..4000).map(|id| round * 4000 + id).collect();
        let keys = table.keys(&ids);
        drop(table.push(&keys, vec![1.0; 4000]).expect("sent"));
        let rows = table.pull(&keys).expect("asked").wait().expect("read");
        assert_eq!(rows.values(), [1.0; 4000], "the read reflects its own push");
        session.clock().expect("ended");
    }
    let seconds = began.elapsed().as_secs_f64();
    let bytes = session.traffic().bytes_out - before;
    assert!(bytes > 20 * 4000 * 12, "{bytes} bytes");
    // The rate, what the token bucket may have saved up, and a margin for heartbeats and estimated
    // message sizes.
    assert!(bytes as f64 <= 1.3 * rate as f64 * seconds + 65_536.0, "{bytes} bytes in {seconds} s");
    session.close().expect("a good end");
    server.join().expect("a good end");
}

/// A worker that leaves in good order first sends the residuals of its codecs.
#[test]
fn leaving_worker_sends_its_residuals() {
    for (pipeline, combine) in [
        ("topk=10%", Combine::Each),
        ("1bit", Combine::Each),
        ("topk=10%", Combine::Clock(Reduce::Sum)),
        ("threshold=100", Combine::Clock(Reduce::Mean)),
    ] {
        let mut sessions = Session::embedded(RunSize { servers: 2, workers: 2 }).expect("sessions");
        let dense = TableSpec::dense("layer", 8, 16).updater(UpdaterSpec::Sum).combine(combine);
        let sparse = TableSpec::sparse("words", 4).updater(UpdaterSpec::Sum).combine(combine);
        let specs = [dense, sparse].map(|spec| spec.consistency(Consistency::Unbounded).codecs(Codecs::up([pipeline])));
        let leaves = sessions.remove(0);
        let stays = sessions.remove(0);
        let tables = specs.clone().map(|spec| leaves.table::<f32>(spec).expect("a table"));
        let read = specs.map(|spec| stays.table::<f32>(spec).expect("a table"));
        let values = |round: usize| (0..8 * 16).map(|place| ((place * 7 + round) % 13) as f32).collect::<Vec<f32>>();
        let keys = tables[1].keys(&(0..32).map(|id| id * 1_000_003).collect::<Vec<u64>>());
        for round in 0..3 {
            drop(tables[0].push(&Keys::run(0..8), values(round)).expect("sent"));
            drop(tables[1].push(&keys, values(round)).expect("sent"));
            leaves.clock().expect("ended");
        }
        drop(tables);
        leaves.close().expect("a good end");
        (0..4).for_each(|_| stays.clock().expect("ended"));
        // The worker that stays ended the same clocks, so a mean is of two.
        let share = if combine == Combine::Clock(Reduce::Mean) { 0.5 } else { 1.0 };
        let wanted: Vec<f32> =
            (0..8 * 16).map(|place| (0..3).map(|round| values(round)[place] * share).sum()).collect();
        let dense = read[0].pull(&Keys::run(0..8)).expect("asked").wait().expect("read");
        let sparse = read[1].pull(&keys).expect("asked").wait().expect("read");
        for (name, rows) in [("dense", dense.values()), ("sparse", sparse.values())] {
            let worst = rows.iter().zip(&wanted).map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "{pipeline}, {combine:?}: {name} is {worst} off");
        }
        stays.close().expect("a good end");
    }
}
