//! A process that holds shards, and the coordinator if it is told to.

use crate::addresses::CoordinatorAddress;
use crate::session::{check_size, token};
use crate::{Connect, Error};
use coordinator::Membership;
use node::registry::{Candidate, EtcdLocation};
use node::{
    CheckpointSettings, CoordinatorSettings, Recorder, ReportCallback, ServerReport, ServerSettings, open_resume,
    run_candidate, run_coordinator, run_server,
};
use types::RunSize;
use update::Updaters;
use wire::Pool;

/// A process that serves a run of several: servers, and the coordinator if it is told to be.
///
/// ```no_run
/// use slackwater::{Connect, RunSize, Serve};
///
/// // Two of the run's three servers, and its coordinator. The third is `Serve::new(Connect::to("head:7000"))` elsewhere.
/// let mut serve = Serve::new(Connect::to("head:7000"));
/// serve.threads = 2;
/// serve.coordinate = Some(RunSize { servers: 3, workers: 8 });
/// for report in serve.run()? {
///     println!("{} applied {} parts", report.node, report.counts.shards.parts);
/// }
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Serve {
    /// The coordinator's address, and how to be reached.
    pub connect: Connect,
    /// Servers in this process, a thread each.
    pub threads: u32,
    /// Given a size, the coordinator of such a run is here too, at its address.
    pub coordinate: Option<RunSize>,
    /// Whether nodes may come and go in the run that is coordinated here, and how many replicas
    /// each shard has.
    pub membership: Membership,
    /// Whether the coordinator that is here is one of several, and where they find out which of
    /// them leads.
    pub election: Option<ElectionSettings>,
    /// The updaters the servers know.
    pub registry: Updaters,
    /// What each shard remembers of key lists, in bytes.
    pub list_bytes: usize,
    /// Is told now and then, and in the end, how each server is doing.
    pub on_report: Option<ReportCallback>,
    /// Where checkpoints of the run that is coordinated here are kept, if any are to be made.
    pub checkpoints: Option<CheckpointSettings>,
    /// The checkpoint that it goes on from, if it is not to begin anew.
    pub resume: Option<ResumeFrom>,
}

/// The checkpoint that a run goes on from.
///
/// ```
/// use slackwater::{Connect, Error, RunSize, Serve};
/// use slackwater::cluster::ResumeFrom;
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let resume = ResumeFrom { location: "no/such/folder".into(), job: "clicks".into() };
/// let size = RunSize { servers: 1, workers: 1 };
/// let serve = Serve { coordinate: Some(size), resume: Some(resume), ..Serve::new(Connect::to(&coordinator.to_string())) };
/// assert!(matches!(serve.run(), Err(Error::Run(_))), "there is none");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeFrom {
    /// Where checkpoints are kept, of which the newest is taken; or the place of one of them.
    pub location: String,
    /// Whose it has to be.
    pub job: String,
}

/// How one of several coordinators comes to lead a run: by what etcd says.
///
/// ```
/// use slackwater::{Connect, RunSize, Serve};
/// use slackwater::cluster::{ElectionSettings, Membership};
///
/// // A process that is one of two coordinators, and nothing else.
/// let election = ElectionSettings { registry: "etcd://10.0.0.1:2379/slackwater/clicks-17".to_owned(), job: "clicks-17".to_owned() };
/// let serve = Serve {
///     threads: 0,
///     coordinate: Some(RunSize { servers: 3, workers: 8 }),
///     membership: Membership::Elastic { replicas: 2, shards_per_server: 8 },
///     election: Some(election),
///     ..Serve::new(Connect::to("a:7000,b:7000"))
/// };
/// assert!(serve.election.is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Where the leader's memory is kept: `etcd://host:port,…/path`, with a path for this job
    /// alone.
    pub registry: String,
    /// The job. Another job's memory in the same place is refused.
    pub job: String,
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
        let (registry, list_bytes) = (Updaters::builtin(), shard::LIST_BYTES);
        let (membership, election) = (Membership::Static, None);
        let (on_report, checkpoints, resume) = (None, None, None);
        let (threads, coordinate) = (1, None);
        Self {
            connect,
            threads,
            coordinate,
            membership,
            election,
            registry,
            list_bytes,
            on_report,
            checkpoints,
            resume,
        }
    }

    /// Serves until every worker has left, or until it is told to leave (`connect.leave`) and
    /// others hold what it held, and blocks for as long. Returns what each server did. Fails if a
    /// run of that size is impossible ([`Error::RunSize`]), if an address cannot be used
    /// ([`Error::Address`]), if checkpoints cannot be written where they are to be kept or the one
    /// to go on from cannot be read, if the run does not begin in time, or if a node is lost
    /// ([`Error::Run`], which names it).
    ///
    /// ```
    /// use slackwater::{Connect, RunSize, Serve, Session};
    ///
    /// let coordinator = slackwater::cluster::free_address().expect("a free port");
    /// let connect = Connect::to(&coordinator.to_string());
    /// let nobody = Serve { coordinate: Some(RunSize { servers: 1, workers: 0 }), ..Serve::new(connect.clone()) };
    /// assert!(nobody.run().is_err());
    ///
    /// let serve = Serve { threads: 2, coordinate: Some(RunSize { servers: 2, workers: 1 }), ..Serve::new(connect.clone()) };
    /// let server = std::thread::spawn(move || serve.run());
    /// Session::connect(&connect)?.close()?;
    /// assert_eq!(server.join().expect("no panic")?.len(), 2);
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn run(self) -> Result<Vec<ServerReport>, Error> {
        let connect = &self.connect;
        self.coordinate.map(check_size).transpose()?;
        let (checkpoints, resume) = self.open_checkpoints()?;
        let address = match self.coordinate {
            Some(_) => CoordinatorAddress::resolve_own(connect)?,
            None => CoordinatorAddress::resolve(connect)?,
        };
        let coordinator = self.coordinate.map(|size| {
            let membership = self.membership;
            let settings = CoordinatorSettings { membership, checkpoints, resume, ..CoordinatorSettings::new(size) };
            self.coordinate_at(&address, settings)
        });
        let coordinator = coordinator.transpose()?;
        let pool = Pool::new();
        let servers: Vec<_> = (0..self.threads)
            .map(|index| {
                let recorder = connect.record.as_ref().map(Recorder::in_folder).transpose()?;
                let endpoint = address.listen_as_node(connect, index, true, &pool)?;
                let settings = ServerSettings {
                    address: endpoint.address,
                    token: token(),
                    place: connect.place.map(|first| first.saturating_add(index)),
                    job: connect.job.clone(),
                    join_limit: connect.join_limit,
                    failure_timeout: connect.failure_timeout,
                    of_several: address.is_of_several(),
                    wait: connect.wait,
                    registry: self.registry.clone(),
                    pool: pool.clone(),
                    list_bytes: self.list_bytes,
                    on_report: self.on_report.clone(),
                    leave: connect.leave.clone(),
                };
                Ok(std::thread::spawn(move || run_server(endpoint.transport, endpoint.waiter, settings, recorder)))
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

    /// What cannot be written or read is known before anybody waits for the run.
    fn open_checkpoints(&self) -> Result<(Option<CheckpointSettings>, Option<coordinator::Resume>), Error> {
        if self.coordinate.is_none() {
            return Ok((None, None));
        }
        let resume = self.resume.as_ref().map(|from| open_resume(&from.location, &from.job)).transpose()?;
        self.checkpoints.as_ref().map(CheckpointSettings::probe).transpose()?;
        Ok((self.checkpoints.clone(), resume))
    }
}

type CoordinatorThread = std::thread::JoinHandle<Result<(), node::NodeError>>;

impl Serve {
    fn coordinate_at(
        &self,
        address: &CoordinatorAddress,
        settings: CoordinatorSettings,
    ) -> Result<CoordinatorThread, Error> {
        let Connect { join_limit, failure_timeout, .. } = self.connect;
        let leave = self.connect.leave.clone();
        let job = self.election.as_ref().map_or_else(|| self.connect.job.clone(), |election| election.job.clone());
        let settings = CoordinatorSettings { join_limit, failure_timeout, job, leave, ..settings };
        let Some(ElectionSettings { registry, job }) = &self.election else {
            if address.is_of_several() {
                let reason =
                    "several coordinators need a registry that says which of them leads (--registry, Serve::election)";
                return Err(Error::Address {
                    address: self.connect.coordinator_address.clone(),
                    reason: reason.to_owned(),
                });
            }
            let recorder = self.connect.record.as_ref().map(Recorder::in_folder).transpose()?;
            let (transport, waiter, _) = address.listen_as_coordinator(self.connect.same_host)?;
            return Ok(std::thread::spawn(move || run_coordinator(transport, waiter, settings, recorder)));
        };
        let location: EtcdLocation = registry.parse().map_err(|error: node::registry::EtcdLocationError| {
            Error::Address { address: registry.clone(), reason: error.to_string() }
        })?;
        let (transport, waiter, own) = address.listen_as_coordinator(self.connect.same_host)?;
        // Whoever leads is taken to be gone after twice as long as any other node: its successor
        // has to be found, too.
        let candidate =
            Candidate { leader_lease: self.connect.failure_timeout * 2, ..Candidate::new(job.clone(), own) };
        let stands = Box::new(location.stand(candidate));
        Ok(std::thread::spawn(move || run_candidate(transport, waiter, settings, stands)))
    }
}
