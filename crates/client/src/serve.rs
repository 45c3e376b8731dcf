//! A process that holds shards, and the coordinator if it is told to.

use crate::meeting::{Meeting, Place};
use crate::session::token;
use crate::{Connect, Error, Shape};
use node::{ServerReport, ServerSettings, run_coordinator, run_server};
use types::Span;
use update::Registry;
use wire::Pool;

/// A process that serves a run over TCP.
#[derive(Clone)]
pub struct Serve {
    /// Where to meet, and how to be reached.
    pub connect: Connect,
    /// Servers in this process, a thread each.
    pub threads: u32,
    /// Given a shape, the coordinator of such a run is here too, at the meeting place.
    pub coordinate: Option<Shape>,
    /// The updaters the servers know.
    pub registry: Registry,
    /// What each shard remembers of key lists, in bytes.
    pub list_bytes: usize,
}

impl Serve {
    /// One server with the built-in updaters.
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        let (registry, list_bytes) = (Registry::builtin(), machine::LIST_BYTES);
        Self { connect, threads: 1, coordinate: None, registry, list_bytes }
    }

    /// Serves until the run ends. Returns what each server did.
    pub fn run(self) -> Result<Vec<ServerReport>, Error> {
        let connect = &self.connect;
        let meeting = if self.coordinate.is_some() { Meeting::hosted(connect)? } else { Meeting::of(connect)? };
        let coordinator = self.coordinate.map(|shape| coordinate_at(&meeting, connect, shape)).transpose()?;
        let pool = Pool::new();
        let servers: Vec<_> = (0..self.threads)
            .map(|index| {
                let Place { transport, waiter, address } = meeting.open(connect, index, true, &pool)?;
                let settings = ServerSettings {
                    address,
                    token: token(),
                    place: connect.place.map(|first| first + index),
                    join_limit: connect.join_limit,
                    patience: connect.patience,
                    wait: connect.wait,
                    registry: self.registry.clone(),
                    pool: pool.clone(),
                    list_bytes: self.list_bytes,
                };
                Ok(std::thread::spawn(move || run_server(transport, waiter, settings, None)))
            })
            .collect::<Result<_, Error>>()?;
        let mut reports = Vec::new();
        let mut first_error = None;
        for server in servers {
            match server.join() {
                Ok(Ok(report)) => reports.push(report),
                Ok(Err(error)) => first_error = first_error.or(Some(Error::Run(error))),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if let Some(coordinator) = coordinator {
            match coordinator.join() {
                // The coordinator knows best what went wrong.
                Ok(result) => first_error = result.err().map(Error::Run).or(first_error),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        first_error.map_or(Ok(reports), Err)
    }
}

type CoordinatorThread = std::thread::JoinHandle<Result<(), node::NodeError>>;

fn coordinate_at(meeting: &Meeting, connect: &Connect, shape: Shape) -> Result<CoordinatorThread, Error> {
    let (transport, waiter) = meeting.host()?;
    let (limit, patience) = (connect.join_limit, Span(connect.patience.as_nanos() as u64));
    Ok(std::thread::spawn(move || run_coordinator(transport, waiter, shape.into(), limit, patience, None)))
}
