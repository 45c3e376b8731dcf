//! What TLS costs: pushes, pulls and round trips of a secured run over those of an insecure one, in
//! turn. Over TCP every byte is encrypted; through shared memory only the handshake is.

use std::sync::Arc;

use indicatif::ProgressBar;
use slackwater::cluster::SameHost;
use slackwater::{Keys, Session, Table, TableSpec};

use crate::core;
use crate::lists::pull;
use crate::measure::{Columns, Report, gbs, median, timed};
use crate::peer::BULK_BYTES;
use crate::server::{Kind, ServerProcess};

/// Round trips of one measurement.
const ROUND_TRIPS: u32 = 1_000;

/// A server and a session with it.
struct Run {
    /// The names of its figures: push, pull, round trip.
    names: [&'static str; 3],
    session: Session,
    table: Table<f32>,
    small: Table<f32>,
    _server: ServerProcess,
}

impl Run {
    fn start(names: [&'static str; 3], same_host: SameHost, is_secured: bool) -> anyhow::Result<Self> {
        let kind = Kind { same_host, is_secured, core: Some(core::PEERS), ..Kind::default() };
        let server = ServerProcess::start(kind)?;
        let session = server.session()?;
        let numbers = BULK_BYTES as u64 / 4;
        let table = session.table::<f32>(TableSpec::dense("dense", numbers / 16, 16))?;
        let small = session.table::<f32>(TableSpec::dense("small", 16, 1))?;
        Ok(Self { names, session, table, small, _server: server })
    }

    fn measure(&self, source: &Arc<[f32]>, columns: &mut Columns) -> anyhow::Result<()> {
        let [push, pulled, round_trip] = self.names;
        let keys = Keys::run(0..BULK_BYTES as u64 / 64);
        let (seconds, ()) = timed(|| Ok(self.table.push(&keys, source.clone())?.wait()?))?;
        columns.put(push, gbs(BULK_BYTES, seconds));
        let (seconds, _) = timed(|| pull(&self.table, &keys, vec![1.0; source.len()]))?;
        columns.put(pulled, gbs(BULK_BYTES, seconds));
        let one: Arc<[f32]> = vec![1.0].into();
        let key = Keys::run(3..4);
        let mut trips = (0..ROUND_TRIPS)
            .map(|_| timed(|| Ok(self.small.push(&key, one.clone())?.wait()?)).map(|(seconds, ())| seconds))
            .collect::<anyhow::Result<Vec<f64>>>()?;
        columns.put(round_trip, median(&mut trips));
        Ok(())
    }
}

/// Measures all runs in turn, `rounds` times, and reports ratios of medians.
pub(super) fn secured(rounds: u32, report: &mut Report, progress: &ProgressBar) -> anyhow::Result<()> {
    let runs = [
        Run::start(["plain_push", "plain_pull", "plain_rtt"], SameHost::Tcp, false)?,
        Run::start(["tls_push", "tls_pull", "tls_rtt"], SameHost::Tcp, true)?,
        Run::start(["shm_plain_push", "shm_plain_pull", "shm_plain_rtt"], SameHost::SharedMemory, false)?,
        Run::start(["shm_secured_push", "shm_secured_pull", "shm_secured_rtt"], SameHost::SharedMemory, true)?,
    ];
    let source: Arc<[f32]> = vec![0.5; BULK_BYTES / 4].into();
    let mut columns = Columns::default();
    for round in 0..rounds + 1 {
        let mut warm_up = Columns::default();
        for run in &runs {
            run.measure(&source, if round == 0 { &mut warm_up } else { &mut columns })?;
        }
        progress.inc(1);
    }
    for (secured, plain) in [("tls", "plain"), ("shm_secured", "shm_plain")] {
        for what in ["push", "pull"] {
            let ours = columns.median(&format!("{secured}_{what}"));
            report.number(&format!("{secured}_{what}_gbs"), ours);
            report.number(&format!("{secured}_{what}_over_plain"), ours / columns.median(&format!("{plain}_{what}")));
        }
        let ours = columns.median(&format!("{secured}_rtt"));
        report.number(&format!("{secured}_rtt_us"), ours * 1e6);
        report.number(&format!("{secured}_rtt_over_plain"), ours / columns.median(&format!("{plain}_rtt")));
    }
    for run in runs {
        run.session.close()?;
    }
    Ok(())
}
