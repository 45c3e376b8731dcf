//! The processes of a run on this host: the name of each, and its arguments for the command
//! `slackwater`.

use std::ffi::OsString;
use std::time::Duration;

use net::SameHost;

/// How processes of one host talk: the words for it on the command line.
pub const SAME_HOST_WORDS: [&str; 2] = ["shared-memory", "tcp"];

/// The setting that a word of [`SAME_HOST_WORDS`] stands for.
pub fn parse_same_host(word: &str) -> Option<SameHost> {
    [SameHost::SharedMemory, SameHost::Tcp].into_iter().find(|same_host| same_host_word(*same_host) == word)
}

fn same_host_word(same_host: SameHost) -> &'static str {
    match same_host {
        SameHost::SharedMemory => SAME_HOST_WORDS[0],
        SameHost::Tcp => SAME_HOST_WORDS[1],
    }
}

/// What a process of a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    /// Coordinates and does nothing else.
    Coordinator,
    /// Holds shards. The first server also coordinates, if the run has no separate coordinator.
    Server,
    /// Runs the program.
    Worker,
}

impl ProcessKind {
    /// The word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Server => "server",
            Self::Worker => "worker",
        }
    }
}

/// A process to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedProcess {
    /// What the process does.
    pub kind: ProcessKind,
    /// Whether it is the coordinator, alone or beside a server.
    pub coordinates: bool,
    /// The process's name in messages.
    pub name: String,
    /// The arguments of the command `slackwater`.
    pub arguments: Vec<OsString>,
}

/// A run on this host: how many processes of each kind, and their settings.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The address at which the coordinator listens.
    pub coordinator_address: String,
    /// How many servers, each a process.
    pub servers: u32,
    /// How many workers, each a process.
    pub workers: u32,
    /// Replicas of each shard, in a run that survives the loss of processes; none in a static run.
    /// With replicas, a separate process coordinates, so that any server may be lost.
    pub replicas: Option<u32>,
    /// How long each process waits for the others to join.
    pub join_limit: Duration,
    /// The silence after which a process counts as lost.
    pub failure_timeout: Duration,
    /// How the processes talk.
    pub same_host: SameHost,
    /// Additional arguments of every process.
    pub common: Vec<OsString>,
    /// Additional arguments of the process that coordinates.
    pub coordinator: Vec<OsString>,
    /// Additional arguments of every server.
    pub server: Vec<OsString>,
    /// The program that workers run, and its arguments.
    pub program: Vec<OsString>,
}

impl RunPlan {
    /// A static run, with default limits and no program yet.
    pub fn new(coordinator_address: &str, servers: u32, workers: u32) -> Self {
        Self {
            coordinator_address: coordinator_address.to_owned(),
            servers,
            workers,
            replicas: None,
            join_limit: Duration::from_secs(300),
            failure_timeout: Duration::from_secs(2),
            same_host: SameHost::default(),
            common: Vec::new(),
            coordinator: Vec::new(),
            server: Vec::new(),
            program: Vec::new(),
        }
    }

    /// Every process of the run, in starting order.
    pub fn processes(&self) -> Vec<PlannedProcess> {
        let coordinator = self.replicas.map(|_| self.coordinator());
        let servers = (0..self.servers).map(|place| self.server(Some(place)));
        let workers = (0..self.workers).map(|place| self.worker(Some(place)));
        coordinator.into_iter().chain(servers).chain(workers).collect()
    }

    /// The process that coordinates and does nothing else.
    pub fn coordinator(&self) -> PlannedProcess {
        let mut arguments = self.arguments("server", Some(0));
        arguments.push("--threads=0".into());
        arguments.extend(self.replicas.map(|replicas| format!("--replicas={replicas}").into()));
        arguments.extend(self.coordination());
        let kind = ProcessKind::Coordinator;
        PlannedProcess { kind, coordinates: true, name: kind.word().to_owned(), arguments }
    }

    /// The server of a place, or, without `place`, one that takes any free place.
    pub fn server(&self, place: Option<u32>) -> PlannedProcess {
        let mut arguments = self.arguments("server", place);
        arguments.extend(self.server.iter().cloned());
        let coordinates = place == Some(0) && self.replicas.is_none();
        if coordinates {
            arguments.extend(self.coordination());
        }
        PlannedProcess { kind: ProcessKind::Server, coordinates, name: name(ProcessKind::Server, place), arguments }
    }

    /// The worker of a place, or, without `place`, one that takes any free place.
    pub fn worker(&self, place: Option<u32>) -> PlannedProcess {
        let mut arguments = self.arguments("worker", place);
        arguments.push("--".into());
        arguments.extend(self.program.iter().cloned());
        let kind = ProcessKind::Worker;
        PlannedProcess { kind, coordinates: false, name: name(kind, place), arguments }
    }

    fn arguments(&self, command: &str, place: Option<u32>) -> Vec<OsString> {
        let mut arguments = vec![command.to_owned(), format!("--coordinator={}", self.coordinator_address)];
        arguments.extend(place.map(|place| format!("--place={place}")));
        arguments.push(format!("--join-limit={}", self.join_limit.as_secs_f64()));
        arguments.push(format!("--failure-timeout={}", self.failure_timeout.as_secs_f64()));
        arguments.push(format!("--same-host={}", same_host_word(self.same_host)));
        arguments.into_iter().map(OsString::from).chain(self.common.iter().cloned()).collect()
    }

    fn coordination(&self) -> impl Iterator<Item = OsString> {
        let shape =
            ["--coordinate".to_owned(), format!("--servers={}", self.servers), format!("--workers={}", self.workers)];
        shape.into_iter().map(OsString::from).chain(self.coordinator.iter().cloned())
    }
}

fn name(kind: ProcessKind, place: Option<u32>) -> String {
    let word = kind.word();
    place.map_or_else(|| word.to_owned(), |place| format!("{word} {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(process: &PlannedProcess) -> String {
        process.arguments.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    fn plan() -> RunPlan {
        RunPlan {
            join_limit: Duration::from_secs(7),
            same_host: SameHost::Tcp,
            common: vec!["--log-json".into()],
            server: vec!["--metrics=here:9".into()],
            program: vec!["demo".into(), "--json".into()],
            ..RunPlan::new("here:1", 2, 3)
        }
    }

    #[test]
    fn plan_has_one_coordinator_and_a_place_for_every_process() {
        let plan = plan();
        let processes = plan.processes();
        let names: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        for process in &processes {
            let line = line(process);
            let name = &process.name;
            let (kind, place) = name.split_once(' ').unwrap();
            let begins = format!(
                "{kind} --coordinator=here:1 --place={place} --join-limit=7 --failure-timeout=2 --same-host=tcp --log-json"
            );
            assert!(line.starts_with(&begins), "{line}");
            assert_eq!(line.contains("--metrics=here:9"), kind == "server", "{line}");
            assert_eq!(line.contains("--coordinate --servers=2 --workers=3"), name == "server 0", "{line}");
            assert_eq!(line.ends_with(" -- demo --json"), kind == "worker", "{line}");
            assert_eq!(process.coordinates, name == "server 0", "{line}");
        }
        let plan = RunPlan { replicas: Some(2), ..plan };
        let processes = plan.processes();
        let names: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["coordinator", "server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        let coordinator = line(&processes[0]);
        assert!(
            coordinator.ends_with("--threads=0 --replicas=2 --coordinate --servers=2 --workers=3"),
            "{coordinator}"
        );
        assert!(processes[1..].iter().all(|process| !line(process).contains("--coordinate")));
    }

    #[test]
    fn plan_gives_no_place_to_a_process_that_takes_any() {
        let common = "--coordinator=here:1 --join-limit=7 --failure-timeout=2 --same-host=tcp --log-json";
        let plan = RunPlan { replicas: Some(2), ..plan() };
        assert_eq!(line(&plan.server(None)), format!("server {common} --metrics=here:9"));
        assert_eq!(line(&plan.worker(None)), format!("worker {common} -- demo --json"));
    }

    #[test]
    fn same_host_words_are_read_back() {
        for word in SAME_HOST_WORDS {
            assert_eq!(parse_same_host(word).map(same_host_word), Some(word));
        }
        assert_eq!(parse_same_host("carrier-pigeon"), None);
    }
}
