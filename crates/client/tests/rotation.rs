//! Certificates of the operator's, replaced while a run goes on: leaf certificates first, then the
//! authority, by way of a file with both. Connections break all the while, so handshakes happen
//! with old and new certificates on either end. No operation fails, and every push counts once.

mod deadline;
mod proxy;

use deadline::{LIMIT, ends};
use proxy::{Proxy, Way, free_address};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use slackwater::cluster::SameHost;
use slackwater::monitor::status;
use slackwater::policy::NumberType;
use slackwater::security::{Access, CertificateFiles};
use slackwater::{Connect, Consistency, Error, RunSize, Serve, Session, TableSpec};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const WORKERS: u32 = 2;
/// An address where no node listens: a worker that advertises it makes all its connections itself.
const NOWHERE: &str = "127.0.0.1:9";
/// Bytes from a worker after which its connection breaks.
const CUT_AFTER: u64 = 700;

/// An authority of the operator's.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }
}

/// The certificate files of all roles.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-rotation-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn access(&self) -> Access {
        let path = |name: &str| self.0.join(name);
        Access::Certificates(CertificateFiles {
            certificate: path("{role}.pem"),
            key: path("{role}.key"),
            authorities: path("ca.pem"),
        })
    }

    fn write(&self, name: &str, text: &str) {
        let new = self.0.join("new");
        std::fs::remove_file(&new).ok();
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("written");
        std::fs::rename(&new, self.0.join(name)).expect("renamed");
    }

    fn trust(&self, authorities: &[&Authority]) {
        self.write("ca.pem", &authorities.iter().map(|authority| &authority.pem[..]).collect::<String>());
    }

    /// Replaces the certificates and keys of all roles.
    fn renew(&self, authority: &Authority) {
        for role in ["coordinator", "server", "worker", "reader"] {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::default();
            let name = format!("slackwater://rotation/{role}/all");
            params.subject_alt_names = vec![SanType::URI(name.try_into().expect("a text"))];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let certificate = params.signed_by(&key, &authority.issuer).expect("signed");
            self.write(&format!("{role}.key"), &key.serialize_pem());
            self.write(&format!("{role}.pem"), &certificate.pem());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A run whose workers push through one proxy before the server, and pushes that have been counted.
struct Run {
    coordinator: SocketAddr,
    proxy: Arc<Proxy>,
    stop: Arc<AtomicBool>,
    exchanges: Arc<AtomicU64>,
    workers: Vec<std::thread::JoinHandle<Result<i64, Error>>>,
    serving: std::thread::JoinHandle<Result<(), Error>>,
}

fn connect(coordinator: SocketAddr, access: &Access) -> Connect {
    Connect {
        join_limit: LIMIT / 2,
        failure_timeout: LIMIT / 2,
        same_host: SameHost::Tcp,
        access: access.clone(),
        ..Connect::to(&coordinator.to_string())
    }
}

impl Run {
    fn start(access: &Access) -> Self {
        let coordinator = free_address();
        let listen = free_address();
        let proxy = Arc::new(Proxy::before(listen, SameHost::Tcp));
        let advertise = Some(proxy.address.to_string());
        let serve = Serve {
            coordinate: Some(RunSize { servers: 1, workers: WORKERS }),
            ..Serve::new(Connect { listen: Some(listen), advertise, ..connect(coordinator, access) })
        };
        let serving = std::thread::spawn(move || serve.run().map(drop));
        let stop = Arc::new(AtomicBool::new(false));
        let exchanges = Arc::new(AtomicU64::new(0));
        let work = |_| {
            let connect = Connect { advertise: Some(NOWHERE.to_owned()), ..connect(coordinator, access) };
            let stop = stop.clone();
            let exchanges = exchanges.clone();
            std::thread::spawn(move || {
                let session = Session::connect(&connect)?;
                let spec = TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::Unbounded);
                let table = session.table::<i64>(spec)?;
                let keys = table.keys(&[1, 2, 3]);
                let mut pushes = 0;
                while !stop.load(Ordering::Relaxed) {
                    table.push(&keys, vec![1; 3])?.wait()?;
                    pushes += 1;
                    session.clock()?;
                    exchanges.fetch_add(1, Ordering::Relaxed);
                }
                session.barrier()?;
                let found = table.pull(&keys)?.wait()?.into_values();
                assert!(found.iter().all(|count| *count == found[0]), "{found:?}");
                session.barrier()?;
                session.close()?;
                // What this worker pushed less its share of what the table holds.
                Ok(i64::from(WORKERS) * pushes - found[0])
            })
        };
        let workers = (0..WORKERS).map(work).collect();
        Self { coordinator, proxy, stop, exchanges, workers, serving }
    }

    /// Breaks connections until both workers have done `exchanges` more, with at least `cuts` cuts.
    fn go_on(&self, exchanges: u64, cuts: u64) {
        let until = self.exchanges.load(Ordering::Relaxed) + exchanges;
        let cut_until = self.proxy.done() + cuts;
        while self.exchanges.load(Ordering::Relaxed) < until || self.proxy.done() < cut_until {
            assert!(self.workers.iter().all(|worker| !worker.is_finished()), "an operation has failed");
            self.proxy.cut_after(Way::There, CUT_AFTER);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn certificates_and_their_authority_rotate_without_a_failed_operation() {
    ends("a run with rotations", || {
        let folder = Folder::new("all");
        let [old, new] = [Authority::new(), Authority::new()];
        folder.trust(&[&old]);
        folder.renew(&old);
        let run = Run::start(&folder.access());
        let go_on = || run.go_on(40, 20);
        go_on();
        // Leaf certificates, with other keys.
        folder.renew(&old);
        wait_for_a_look(&run);
        go_on();
        // The authority: first every process trusts both, then certificates change, then only the
        // new one is trusted.
        for (trusted, signs) in [(&[&old, &new][..], &old), (&[&old, &new], &new), (&[&new], &new)] {
            folder.trust(trusted);
            folder.renew(signs);
            wait_for_a_look(&run);
            go_on();
        }
        // A process that has started since trusts only the new authority.
        let status = status(&connect(run.coordinator, &folder.access())).expect("the coordinator has rotated, too");
        assert_eq!(status.members.len(), 1 + WORKERS as usize);
        run.proxy.cut_no_more();
        run.stop.store(true, Ordering::Relaxed);
        let cuts = run.proxy.done();
        let differences: i64 =
            run.workers.into_iter().map(|worker| worker.join().expect("no panic").expect("no failed operation")).sum();
        assert_eq!(differences, 0, "pushes were lost or counted twice");
        run.serving.join().expect("no panic").expect("a good end");
        assert!(cuts >= 100, "only {cuts} connections were cut");
    });
}

/// Goes on until every process has looked at its files again, which it does when it makes or
/// accepts a connection, at most once a second.
fn wait_for_a_look(run: &Run) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        run.go_on(1, 1);
    }
}
