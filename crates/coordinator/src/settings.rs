//! The settings of a run: its size, membership and job. Every coordinator of a job has the same
//! ones, and they never change.

use types::RunSize;
use wire::{Field, Reader, WireError};

/// Which nodes may take part in a run.
///
/// ```
/// use coordinator::Membership;
///
/// assert_eq!(Membership::default(), Membership::Static);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// Only the nodes that it begins with. The loss of any of them ends the run.
    #[default]
    Static,
    /// Nodes may join and leave while the run lasts. The run goes on without a lost node if there
    /// are replicas of its shards. A node that joins later starts at the clock of the others.
    Elastic {
        /// How many servers hold each shard of a table.
        replicas: u32,
        /// How many shards each table is cut into for each server that the run begins with. Shards
        /// move between servers as a whole.
        shards_per_server: u32,
    },
}

/// The size of a run, its membership, and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    size: RunSize,
    membership: Membership,
    /// The job's name. If it is empty, nodes of any job may join.
    job: String,
}

impl Settings {
    pub fn new(size: RunSize, membership: Membership) -> Self {
        Self { size, membership, job: String::new() }
    }

    pub fn of_job(self, job: &str) -> Self {
        Self { job: job.to_owned(), ..self }
    }

    pub fn size(&self) -> RunSize {
        self.size
    }

    pub fn is_elastic(&self) -> bool {
        self.membership != Membership::Static
    }

    /// How many servers hold each shard.
    pub fn replicas(&self) -> usize {
        match self.membership {
            Membership::Static => 1,
            Membership::Elastic { replicas, .. } => replicas.max(1) as usize,
        }
    }

    /// The number of shards that a new run cuts its tables into. A resumed run keeps that of its
    /// checkpoint.
    pub fn shards(&self) -> u32 {
        match self.membership {
            Membership::Static => self.size.servers,
            Membership::Elastic { shards_per_server, .. } => self.size.servers * shards_per_server.max(1),
        }
    }

    /// Why a node that was started for this job cannot join. None if it can.
    pub fn refuses_job(&self, job: &str) -> Option<String> {
        (!job.is_empty() && !self.job.is_empty() && job != self.job).then(|| {
            format!(
                "this run is of job '{}', and the node was started for job '{job}'; give it its own job's coordinator address, or \
                 give all nodes the same --job",
                self.job
            )
        })
    }

    /// How the settings of another coordinator differ, in words: `theirs` first.
    pub fn difference(&self, theirs: &Self) -> Option<String> {
        let words = |settings: &Self| {
            let RunSize { servers, workers } = settings.size;
            let rule = match settings.membership {
                Membership::Static => "in a static run".to_owned(),
                Membership::Elastic { replicas, shards_per_server } => {
                    format!("with {replicas} replicas and {shards_per_server} shards a server")
                }
            };
            format!("{servers} servers and {workers} workers, {rule}")
        };
        let differs = (self.size, self.membership) != (theirs.size, theirs.membership);
        differs.then(|| format!("it had {}, and this one is for {}", words(theirs), words(self)))
    }
}

/// The job is not saved: the path under which the memory is stored names it.
impl Field for Settings {
    fn put(&self, out: &mut Vec<u8>) {
        (self.size.servers, self.size.workers).put(out);
        let elastic = match self.membership {
            Membership::Static => None,
            Membership::Elastic { replicas, shards_per_server } => Some((replicas, shards_per_server)),
        };
        elastic.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (servers, workers) = Field::get(input)?;
        let elastic: Option<(u32, u32)> = Field::get(input)?;
        let membership = elastic.map_or(Membership::Static, |(replicas, shards_per_server)| Membership::Elastic {
            replicas,
            shards_per_server,
        });
        Ok(Self::new(RunSize { servers, workers }, membership))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: RunSize = RunSize { servers: 2, workers: 3 };

    #[test]
    fn nodes_that_name_another_job_are_refused() {
        // (the run's job, the node's job, whether the node is refused)
        let cases = [("a", "a", false), ("a", "b", true), ("a", "", false), ("", "b", false)];
        for (job, named, refused) in cases {
            let settings = Settings::new(SIZE, Membership::Static).of_job(job);
            assert_eq!(settings.refuses_job(named).is_some(), refused, "'{named}' in '{job}'");
        }
    }

    #[test]
    fn replicas_and_shards_follow_from_the_membership() {
        let elastic = |replicas, shards_per_server| Membership::Elastic { replicas, shards_per_server };
        let cases = [(Membership::Static, 1, 2), (elastic(2, 4), 2, 8), (elastic(0, 0), 1, 2)];
        for (membership, replicas, shards) in cases {
            let settings = Settings::new(SIZE, membership);
            assert_eq!((settings.replicas(), settings.shards()), (replicas, shards), "{membership:?}");
        }
    }

    #[test]
    fn settings_are_read_as_written_and_differ_by_size_or_membership() {
        let elastic = Membership::Elastic { replicas: 2, shards_per_server: 4 };
        for membership in [Membership::Static, elastic] {
            let settings = Settings::new(SIZE, membership);
            let mut bytes = Vec::new();
            settings.put(&mut bytes);
            assert_eq!(Settings::get(&mut Reader(&bytes)), Ok(settings));
        }
        let settings = Settings::new(SIZE, elastic).of_job("a");
        assert_eq!(settings.difference(&Settings::new(SIZE, elastic)), None, "a job is no difference");
        assert!(settings.difference(&Settings::new(SIZE, Membership::Static)).is_some());
    }
}
