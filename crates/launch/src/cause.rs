//! Root cause of a failed run: which of the processes that failed is named, and what is said of it.
//!
//! When one process fails, the others fail after it, and may end before it. The coordinator knows
//! which node failed first, so its last error decides. If the coordinator was killed or says
//! nothing, a process that was killed is the cause, or one whose last error blames no other.

use std::collections::BTreeMap;

/// A process that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The process's name.
    pub name: String,
    /// Which process, and how it ended.
    pub what: String,
    /// Whether a signal killed it.
    pub by_signal: bool,
    /// Whether it is the coordinator.
    pub coordinates: bool,
    /// Whether the run was expected to go on without it.
    pub is_survived: bool,
    /// Whether the process replaced another. Such a process may have started when the run was
    /// already over; if the run went well, its failure does not count.
    pub is_replacement: bool,
}

/// What is said of the process that caused the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Which process, and how it ended.
    pub what: String,
    /// The last error that it printed.
    pub words: Option<String>,
}

/// The cause of a failure, from all losses in the order in which they were noticed and the last
/// error of each process by its name. `None` if the run survived every loss.
pub(crate) fn cause(losses: &[Loss], last_errors: &BTreeMap<String, String>) -> Option<Cause> {
    let words = |loss: &Loss| last_errors.get(&loss.name).map(String::as_str);
    let fatal = || losses.iter().filter(|loss| !loss.is_survived);
    let first = fatal().next()?;
    let own = |loss: &Loss| Cause { what: loss.what.clone(), words: words(loss).map(str::to_owned) };
    let coordinator = fatal().find(|loss| loss.coordinates && !loss.by_signal);
    if let Some((coordinator, verdict)) = coordinator.and_then(|loss| Some((loss, words(loss)?))) {
        let Some(named) = losses.iter().find(|loss| verdict.contains(&format!("lost {}:", loss.name))) else {
            return Some(own(coordinator));
        };
        if words(named).is_some_and(|words| !blames_another(words)) {
            return Some(own(named));
        }
        let what = format!("{}; the coordinator says: {verdict}", named.what);
        return Some(Cause { what, words: None });
    }
    let blames_none = |loss: &&Loss| !words(loss).is_some_and(blames_another);
    let cause = fatal().find(|loss| loss.by_signal).or_else(|| fatal().find(blames_none));
    Some(own(cause.unwrap_or(first)))
}

/// Whether a process's last error says that another process failed before it.
fn blames_another(words: &str) -> bool {
    words.contains("lost ") || words.contains("another worker could not go on")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(name: &str) -> Loss {
        Loss {
            name: name.to_owned(),
            what: format!("{name} failed"),
            by_signal: false,
            coordinates: name == "coordinator",
            is_survived: false,
            is_replacement: false,
        }
    }

    fn killed(name: &str) -> Loss {
        Loss { by_signal: true, what: format!("{name} died"), ..loss(name) }
    }

    fn survived(name: &str) -> Loss {
        Loss { is_survived: true, ..killed(name) }
    }

    const FIRST: &str = "lost worker 1: it could not go on: no file";
    const KILLED: &str = "lost server 1: its process has ended";

    #[test]
    fn cause_is_what_the_coordinator_names_or_else_who_was_killed_or_blames_no_other() {
        let own =
            |what: &str, words: Option<&str>| Some(Cause { what: what.to_owned(), words: words.map(str::to_owned) });
        // (losses in order; last errors; the cause)
        let cases = [
            (vec![], vec![], None),
            (vec![survived("server 1")], vec![], None),
            // Without a word from the coordinator.
            (vec![loss("a"), loss("b"), killed("c")], vec![], own("c died", None)),
            (
                vec![loss("a"), loss("b")],
                vec![("a", "lost b: gone"), ("b", "no file")],
                own("b failed", Some("no file")),
            ),
            (
                vec![loss("a"), loss("b")],
                vec![("a", "lost x: gone"), ("b", "lost x: gone")],
                own("a failed", Some("lost x: gone")),
            ),
            (
                vec![loss("worker 0"), killed("coordinator")],
                vec![("worker 0", "lost coordinator: gone")],
                own("coordinator died", None),
            ),
            // The coordinator names the first, whoever ended first.
            (
                vec![loss("worker 0"), loss("coordinator"), loss("worker 1")],
                vec![("worker 0", "cannot read"), ("coordinator", FIRST), ("worker 1", "no file")],
                own("worker 1 failed", Some("no file")),
            ),
            (
                vec![loss("worker 11"), loss("coordinator"), loss("worker 1")],
                vec![("worker 11", "cannot read"), ("coordinator", FIRST)],
                own(&format!("worker 1 failed; the coordinator says: {FIRST}"), None),
            ),
            (
                vec![survived("server 1"), survived("server 0"), loss("worker 0"), loss("coordinator")],
                vec![("worker 0", KILLED), ("coordinator", KILLED)],
                own(&format!("server 1 died; the coordinator says: {KILLED}"), None),
            ),
            // A process of another name has that place.
            (
                vec![survived("server in place of server 0"), loss("worker 0"), loss("coordinator")],
                vec![("worker 0", KILLED), ("coordinator", KILLED)],
                own("coordinator failed", Some(KILLED)),
            ),
            (
                vec![loss("worker 0"), loss("coordinator")],
                vec![("worker 0", "lost coordinator: gone"), ("coordinator", "the disk is full")],
                own("coordinator failed", Some("the disk is full")),
            ),
        ];
        for (losses, said, expected) in cases {
            let last_errors = said.iter().map(|(name, words)| ((*name).to_owned(), (*words).to_owned())).collect();
            assert_eq!(cause(&losses, &last_errors), expected, "{losses:?} {said:?}");
        }
    }
}
