//! Starts the nodes of a run in this process, each on a thread of its own.

use coordinator::RunSize;
use net::{Transport, Waiter};
use node::{
    CoordinatorSettings, Driver, DriverSettings, JoinRequest, LeaveSignal, NodeError, Recorder, ServerReport,
    ServerSettings, WaitPolicy, join, run_coordinator, run_server,
};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;
use wire::NodeRole;

/// A test that waits longer for one event hangs.
pub const LIMIT: Duration = Duration::from_secs(30);

pub fn start_coordinator(
    (transport, waiter): (impl Transport + 'static, impl Waiter + 'static),
    workers: u32,
    recorder: Option<Recorder>,
) -> JoinHandle<Result<(), NodeError>> {
    let settings = CoordinatorSettings::new(RunSize { servers: 1, workers });
    spawn(move || run_coordinator(transport, waiter, settings, recorder))
}

pub fn start_server(
    (transport, waiter): (impl Transport + 'static, impl Waiter + 'static),
    settings: ServerSettings,
    recorder: Option<Recorder>,
) -> JoinHandle<Result<ServerReport, NodeError>> {
    spawn(move || run_server(transport, waiter, settings, recorder))
}

/// Joins as a worker on this thread, and returns its driver.
pub fn start_driver(
    (mut transport, mut waiter): (impl Transport + 'static, impl Waiter + 'static),
    address: &str,
    token: u64,
    recorder: Option<Recorder>,
) -> Result<Arc<Driver>, NodeError> {
    let leave = LeaveSignal::default();
    let request = JoinRequest::any(NodeRole::Worker);
    let joined = join(&mut transport, &mut waiter, request, address, token, LIMIT, &leave)?;
    let settings = DriverSettings {
        wait: WaitPolicy::BLOCKING,
        failure_timeout: LIMIT,
        of_several: false,
        unled: Duration::from_secs(60),
        embedded: false,
        leave,
        locations: node::AllowedLocations::Any,
    };
    Driver::start(joined, Box::new(transport), Box::new(waiter), settings, recorder)
}
