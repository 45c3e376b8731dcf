//! Server processes: one or more servers, a thread each, and the run's coordinator if the program
//! asks for it.

use crate::addresses::CoordinatorAddress;
use crate::session::{check_size, token};
use crate::{Connect, Error};
use coordinator::Membership;
use node::registry::{Candidate, EtcdAccess, EtcdLocation};
use node::{
    CheckpointSettings, CoordinatorReportCallback, CoordinatorSettings, Recorder, ReportCallback, ServerReport,
    ServerSettings, open_resume, run_candidate, run_coordinator, run_server,
};
use std::time::Duration;
use types::{Role, RunSize};
use update::Updaters;
use wire::Pool;

/// A process that serves a run of several processes: its servers, and the coordinator if
/// `coordinate` is set.
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
    /// The coordinator's address, and how other nodes reach this process.
    pub connect: Connect,
    /// How many servers this process runs, a thread each.
    pub threads: u32,
    /// If set, this process also runs the coordinator of a run of that size, at its address.
    pub coordinate: Option<RunSize>,
    /// For the coordinator: whether nodes may join and leave while the run lasts, and how many
    /// replicas each shard has.
    pub membership: Membership,
    /// For the coordinator: set if it is one of several. Names the registry that elects the leader.
    pub election: Option<ElectionSettings>,
    /// The updaters that the servers know by name.
    pub registry: Updaters,
    /// Memory for key lists, per shard, in bytes.
    pub list_bytes: usize,
    /// Called now and then, and at the end, with a report of each server.
    pub on_report: Option<ReportCallback>,
    /// For the coordinator: called now and then, and at the end, with what its transport has done.
    pub on_coordinator_report: Option<CoordinatorReportCallback>,
    /// For the coordinator: where and how often to write checkpoints. `None` writes none.
    pub checkpoints: Option<CheckpointSettings>,
    /// For the coordinator: the checkpoint to resume from. `None` begins anew.
    pub resume: Option<ResumeFrom>,
    /// For the coordinator: for how long a worker may be in one clock, without waiting for others,
    /// before it is given up. `None` for any time.
    pub clock_timeout: Option<Duration>,
}

/// The checkpoint that a run resumes from.
///
/// ```
/// use slackwater::{Connect, Error, RunSize, Serve};
/// use slackwater::cluster::ResumeFrom;
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let resume = ResumeFrom { location: "no/such/folder".into(), job: "clicks".into() };
/// let size = RunSize { servers: 1, workers: 1 };
/// let serve = Serve { coordinate: Some(size), resume: Some(resume), ..Serve::new(Connect::to(&coordinator.to_string())) };
/// assert!(matches!(serve.run(), Err(Error::Run(_))), "there is no checkpoint");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeFrom {
    /// The location of the checkpoints, of which the newest is taken; or the location of one of
    /// them.
    pub location: String,
    /// The job that the checkpoint must belong to.
    pub job: String,
}

/// Leader election among several coordinators, through etcd.
///
/// ```
/// use slackwater::{Connect, RunSize, Serve};
/// use slackwater::cluster::{ElectionSettings, EtcdAccess, Membership};
///
/// // A process that is one of two coordinators, and nothing else.
/// let election = ElectionSettings {
///     registry: "etcd://10.0.0.1:2379/slackwater/clicks-17".to_owned(),
///     access: EtcdAccess::default(),
///     job: "clicks-17".to_owned(),
/// };
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
    /// The registry that stores the leader's memory: `etcd://host:port,…/path`, or `etcds://` for
    /// an etcd with TLS. Every job needs a path of its own.
    pub registry: String,
    /// The files by which the coordinator gets access to etcd.
    pub access: EtcdAccess,
    /// The job. The coordinator refuses the memory of another job at the same path.
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
        Self {
            connect,
            threads: 1,
            coordinate: None,
            membership: Membership::Static,
            election: None,
            registry: Updaters::builtin(),
            list_bytes: shard::LIST_BYTES,
            on_report: None,
            on_coordinator_report: None,
            checkpoints: None,
            resume: None,
            clock_timeout: None,
        }
    }

    /// Serves, and blocks, until every worker has left. If the program asks it to leave
    /// (`connect.leave`), it serves until other servers hold its shards. Returns a report of each
    /// server.
    ///
    /// Fails if a run of that size is impossible ([`Error::RunSize`]) or an address cannot be used
    /// ([`Error::Address`]). Fails with [`Error::Run`] if checkpoints cannot be written, the
    /// checkpoint to resume from cannot be read, the run does not begin in time, or a node is lost,
    /// which the error names.
    ///
    /// ```
    /// use slackwater::security::{Access, JobToken};
    /// use slackwater::{Connect, RunSize, Serve, Session};
    ///
    /// let coordinator = slackwater::cluster::free_address().expect("a free port");
    /// let access = Access::Job(JobToken::create()?);    // every process of a run has the same token
    /// let connect = Connect { access, ..Connect::to(&coordinator.to_string()) };
    /// let no_workers = Serve { coordinate: Some(RunSize { servers: 1, workers: 0 }), ..Serve::new(connect.clone()) };
    /// assert!(no_workers.run().is_err());
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
            let clock_timeout = self.clock_timeout;
            let settings = CoordinatorSettings {
                membership,
                checkpoints,
                resume,
                clock_timeout,
                on_report: self.on_coordinator_report.clone(),
                ..CoordinatorSettings::new(size)
            };
            self.coordinate_at(&address, settings)
        });
        let coordinator = coordinator.transpose()?;
        let pool = Pool::new();
        let locations = crate::locations::allowed(connect, &self.own_locations());
        let servers: Vec<_> = (0..self.threads)
            .map(|index| {
                let recorder = connect.record.as_ref().map(Recorder::in_folder).transpose()?;
                let endpoint = address.listen_as_node(connect, index, Role::Server, &pool)?;
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
                    locations: locations.clone(),
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
                // The coordinator's error names the cause; a server's may be a consequence.
                Ok(result) => first_error = result.err().map(Error::Run).or(first_error),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        first_error.map_or(Ok(reports), Err)
    }

    /// The locations that this process itself names as coordinator.
    fn own_locations(&self) -> Vec<String> {
        let checkpoints = self.checkpoints.iter().map(|checkpoints| checkpoints.location.clone());
        let resume = self.resume.iter().map(|resume| resume.location.clone());
        checkpoints.chain(resume).filter(|_| self.coordinate.is_some()).collect()
    }

    /// Opens the checkpoint to resume from, and checks that checkpoints can be written, before the
    /// run begins.
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
    /// Starts the coordinator's thread, as the only coordinator or as one of several.
    fn coordinate_at(
        &self,
        address: &CoordinatorAddress,
        settings: CoordinatorSettings,
    ) -> Result<CoordinatorThread, Error> {
        let Connect { join_limit, failure_timeout, .. } = self.connect;
        let leave = self.connect.leave.clone();
        let job = self.election.as_ref().map_or_else(|| self.connect.job.clone(), |election| election.job.clone());
        let settings = CoordinatorSettings { join_limit, failure_timeout, job, leave, ..settings };
        let Some(ElectionSettings { registry, access, job }) = &self.election else {
            if address.is_of_several() {
                let reason =
                    "several coordinators need a registry that says which of them leads (--registry, Serve::election)";
                return Err(Error::Address {
                    address: self.connect.coordinator_address.clone(),
                    reason: reason.to_owned(),
                });
            }
            let recorder = self.connect.record.as_ref().map(Recorder::in_folder).transpose()?;
            let (transport, waiter, _) = address.listen_as_coordinator(&self.connect)?;
            return Ok(std::thread::spawn(move || run_coordinator(transport, waiter, settings, recorder)));
        };
        let unusable = |reason: String| Error::Address { address: registry.clone(), reason };
        let location: EtcdLocation =
            registry.parse().map_err(|error: node::registry::EtcdLocationError| unusable(error.to_string()))?;
        let (transport, waiter, own) = address.listen_as_coordinator(&self.connect)?;
        // The leader lease is two failure timeouts: a new leader must also have time to be elected.
        let candidate =
            Candidate { leader_lease: self.connect.failure_timeout * 2, ..Candidate::new(job.clone(), own) };
        let stands = location.stand(candidate, access).map_err(|error| unusable(error.to_string()))?;
        let stands = Box::new(stands);
        Ok(std::thread::spawn(move || run_candidate(transport, waiter, settings, stands)))
    }
}
