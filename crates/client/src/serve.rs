//! A process that holds shards, and the coordinator if it is told to.

use crate::meeting::{Meeting, Place};
use crate::session::token;
use crate::{Connect, Error, Shape};
use machine::Membership;
use node::{CoordinatorSettings, Recorder, ServerReport, ServerSettings, Watch, run_coordinator, run_server};
use update::Registry;
use wire::Pool;

/// A process that serves a run of several: servers, and the coordinator if it is told to be.
///
/// ```no_run
/// use slackwater::{Connect, Serve, Shape};
///
/// // Two of the run's three servers, and its coordinator. The third is `Serve::new(Connect::to("head:7000"))` elsewhere.
/// let mut serve = Serve::new(Connect::to("head:7000"));
/// serve.threads = 2;
/// serve.coordinate = Some(Shape { servers: 3, workers: 8 });
/// for report in serve.run()? {
///     println!("{} applied {} parts", report.node, report.counts.shards.parts);
/// }
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Serve {
    /// Where to meet, and how to be reached.
    pub connect: Connect,
    /// Servers in this process, a thread each.
    pub threads: u32,
    /// Given a shape, the coordinator of such a run is here too, at the meeting place.
    pub coordinate: Option<Shape>,
    /// Whether nodes may come and go in the run that is coordinated here, and how many copies there are of what servers hold.
    pub membership: Membership,
    /// The updaters the servers know.
    pub registry: Registry,
    /// What each shard remembers of key lists, in bytes.
    pub list_bytes: usize,
    /// Is told now and then, and in the end, how each server is doing.
    pub watch: Option<Watch>,
}

impl Serve {
    /// One server with the built-in updaters, and no coordinator.
    ///
    /// ```
    /// use slackwater::{Connect, Serve};
    ///
    /// let serve = Serve::new(Connect::to("127.0.0.1:7000"));
    /// assert_eq!((serve.threads, serve.coordinate), (1, None));
    /// ```
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        let (registry, list_bytes) = (Registry::builtin(), machine::LIST_BYTES);
        Self { connect, threads: 1, coordinate: None, membership: Membership::Fixed, registry, list_bytes, watch: None }
    }

    /// Serves until every worker has left, and blocks for as long. Returns what each server did. Fails if the shape makes no
    /// sense ([`Error::Shape`]), if an address cannot be used ([`Error::Address`]), if the run does not begin in time, or if a
    /// node is lost ([`Error::Run`], which names it).
    ///
    /// ```
    /// use slackwater::{Connect, Serve, Session, Shape};
    ///
    /// let meet = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    /// let connect = Connect::to(&meet.to_string());
    /// let nobody = Serve { coordinate: Some(Shape { servers: 1, workers: 0 }), ..Serve::new(connect.clone()) };
    /// assert!(nobody.run().is_err());
    ///
    /// let serve = Serve { threads: 2, coordinate: Some(Shape { servers: 2, workers: 1 }), ..Serve::new(connect.clone()) };
    /// let server = std::thread::spawn(move || serve.run());
    /// Session::connect(&connect)?.close()?;
    /// assert_eq!(server.join().expect("no panic")?.len(), 2);
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn run(self) -> Result<Vec<ServerReport>, Error> {
        let connect = &self.connect;
        self.coordinate.map(Shape::check).transpose()?;
        let meeting = if self.coordinate.is_some() { Meeting::hosted(connect)? } else { Meeting::of(connect)? };
        let coordinator =
            self.coordinate.map(|shape| coordinate_at(&meeting, connect, shape, self.membership)).transpose()?;
        let pool = Pool::new();
        let servers: Vec<_> = (0..self.threads)
            .map(|index| {
                let recorder = connect.record.as_ref().map(Recorder::in_folder).transpose()?;
                let Place { transport, waiter, address } = meeting.open(connect, index, true, &pool)?;
                let settings = ServerSettings {
                    address,
                    token: token(),
                    place: connect.place.map(|first| first.saturating_add(index)),
                    join_limit: connect.join_limit,
                    patience: connect.patience,
                    wait: connect.wait,
                    registry: self.registry.clone(),
                    pool: pool.clone(),
                    list_bytes: self.list_bytes,
                    watch: self.watch.clone(),
                };
                Ok(std::thread::spawn(move || run_server(transport, waiter, settings, recorder)))
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

fn coordinate_at(
    meeting: &Meeting,
    connect: &Connect,
    shape: Shape,
    membership: Membership,
) -> Result<CoordinatorThread, Error> {
    let recorder = connect.record.as_ref().map(Recorder::in_folder).transpose()?;
    let (transport, waiter) = meeting.host(connect.same_host)?;
    let Connect { join_limit, patience, .. } = *connect;
    let settings = CoordinatorSettings { membership, join_limit, patience, ..CoordinatorSettings::new(shape.into()) };
    Ok(std::thread::spawn(move || run_coordinator(transport, waiter, settings, recorder)))
}
