//! Embedded runs: coordinator, servers and workers are threads of one process and exchange messages
//! through mailboxes.

use crate::session::token;
use crate::{Error, Session};
use net::{Exchange, lock};
use node::{
    CoordinatorSettings, DriverSettings, JoinRequest, LeaveSignal, NodeError, Recorder, ServerSettings, WaitPolicy,
    join, run_coordinator, run_server,
};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use types::{NodeId, RunSize};
use update::Updaters;
use wire::{NodeRole, Pool};

/// A thread of an embedded run that is silent for this long counts as lost.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the nodes of an embedded run wait for each other to join.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// The coordinator's and servers' threads of an embedded run. The last session joins them.
pub(crate) struct EmbeddedThreads {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for EmbeddedThreads {
    fn drop(&mut self) {
        // The last session has left the run, so every thread is about to end.
        for thread in lock(&self.threads).drain(..) {
            thread.join().ok();
        }
    }
}

/// Starts the threads and returns the sessions, by rank.
pub(crate) fn start(
    size: RunSize,
    registry: Updaters,
    wait: WaitPolicy,
    record: Option<&Path>,
) -> Result<Vec<Session>, Error> {
    let recorder = || record.map(Recorder::in_folder).transpose();
    let exchange = Exchange::new();
    let pool = Pool::new();
    let mut threads = Vec::new();
    let (transport, waiter) = exchange.join(NodeId::Coordinator);
    let settings = CoordinatorSettings {
        join_limit: JOIN_LIMIT,
        failure_timeout: FAILURE_TIMEOUT,
        // Mailboxes lose no messages, so none has to be repeated at the end.
        farewell: Duration::ZERO,
        linger: Duration::ZERO,
        ..CoordinatorSettings::new(size)
    };
    let recording = recorder()?;
    threads.push(spawn("coordinator".to_owned(), move || {
        report(run_coordinator(transport, waiter, settings, recording));
    })?);
    for index in 0..size.servers {
        let settings = ServerSettings {
            place: Some(index),
            join_limit: JOIN_LIMIT,
            failure_timeout: FAILURE_TIMEOUT,
            wait,
            registry: registry.clone(),
            pool: pool.clone(),
            ..ServerSettings::new(token())
        };
        // A temporary node name, until the coordinator assigns one.
        let (transport, waiter) = exchange.join(NodeId::Server((1 << 29) - 1 - index));
        let recording = recorder()?;
        threads.push(spawn(format!("server {index}"), move || {
            report(run_server(transport, waiter, settings, recording));
        })?);
    }
    let joining: Vec<JoinHandle<Result<_, NodeError>>> = (0..size.workers)
        .map(|index| {
            let (mut transport, mut waiter) = exchange.join(NodeId::Worker((1 << 29) - 1 - index));
            std::thread::spawn(move || {
                let joined = join(
                    &mut transport,
                    &mut waiter,
                    JoinRequest { place: Some(index), ..JoinRequest::any(NodeRole::Worker) },
                    "",
                    token(),
                    JOIN_LIMIT,
                    &LeaveSignal::default(),
                )?;
                Ok((joined, transport, waiter))
            })
        })
        .collect();
    let threads = Arc::new(EmbeddedThreads { threads: Mutex::new(threads) });
    let mut sessions = Vec::new();
    for thread in joining {
        let (joined, transport, waiter) = match thread.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let settings = DriverSettings {
            wait,
            failure_timeout: FAILURE_TIMEOUT,
            of_several: false,
            unled: JOIN_LIMIT,
            embedded: true,
            leave: LeaveSignal::default(),
            locations: node::AllowedLocations::Any,
        };
        let threads = Some(threads.clone());
        sessions.push(Session::begin(joined, Box::new(transport), Box::new(waiter), settings, recorder()?, threads)?);
    }
    sessions.sort_by_key(Session::rank);
    Ok(sessions)
}

/// Logs why a thread ended early, unless every session reports the same failure.
fn report<R>(result: Result<R, NodeError>) {
    match result {
        Ok(_) | Err(NodeError::Lost { .. } | NodeError::GivenUp { .. }) => {}
        Err(error) => tracing::error!(%error, "the run ended early"),
    }
}

/// Starts a named thread. Debuggers and profilers show the name.
fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let failed = |error: std::io::Error| NodeError::NoThread { name: name.clone(), reason: error.to_string() };
    Ok(std::thread::Builder::new().name(name.clone()).spawn(work).map_err(failed)?)
}
