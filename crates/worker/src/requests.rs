//! A worker's requests to the coordinator: to make tables and to pass barriers. The worker repeats
//! a request until it has the answer, because a new coordinator may not know of it.

use std::collections::BTreeMap;
use types::{Span, TableId, TableSpec, Time};
use wire::Control;

/// Requests to the coordinator, and its answers.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorRequests {
    /// Requested tables that the coordinator has not answered for, by name.
    tables: BTreeMap<String, TableSpec>,
    /// The answers, by name: a table's number, or why it cannot be made.
    made: BTreeMap<String, Result<TableId, String>>,
    /// The last barrier that this worker has entered.
    barrier: u64,
    /// The last barrier that every worker has passed.
    passed: u64,
    /// When the worker last repeated its requests.
    repeated: Time,
}

impl CoordinatorRequests {
    /// No requests yet, in a run that has passed this many barriers.
    pub fn after_barriers(barriers: u64) -> Self {
        Self { barrier: barriers, passed: barriers, ..Self::default() }
    }

    /// Asks for a table.
    pub fn table(&mut self, spec: TableSpec) -> Control {
        self.made.remove(&spec.name);
        self.tables.insert(spec.name.clone(), spec.clone());
        Control::MakeTable { spec }
    }

    /// The coordinator has made a table. Returns its spec; `None` if this worker waits for no such
    /// table.
    pub fn table_made(&mut self, name: String, table: TableId) -> Option<TableSpec> {
        let spec = self.tables.remove(&name)?;
        self.made.insert(name, Ok(table));
        Some(spec)
    }

    /// The coordinator cannot make a table that this worker asked for.
    pub fn table_refused(&mut self, name: String, problem: String) {
        if self.tables.remove(&name).is_some() {
            self.made.insert(name, Err(problem));
        }
    }

    /// The coordinator's answer for a table of this name.
    pub fn answer(&self, name: &str) -> Option<&Result<TableId, String>> {
        self.made.get(name)
    }

    /// Enters the next barrier.
    pub fn barrier(&mut self) -> Control {
        self.barrier = self.barrier.saturating_add(1);
        Control::Barrier { number: self.barrier }
    }

    /// The number of the last barrier that the worker has entered.
    pub fn last_barrier(&self) -> u64 {
        self.barrier
    }

    /// Every worker has passed a barrier.
    pub fn barrier_passed(&mut self, number: u64) {
        self.passed = self.passed.max(number);
    }

    /// Whether every worker has passed a barrier.
    pub fn has_passed(&self, number: u64) -> bool {
        self.passed >= number
    }

    /// Whether to repeat requests now: true once in every span `after`.
    pub fn is_due(&mut self, now: Time, after: Span) -> bool {
        let due = now.since(self.repeated) >= after;
        if due {
            self.repeated = now;
        }
        due
    }

    /// Every request that the coordinator has not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = Control> + '_ {
        let tables = self.tables.values().map(|spec| Control::MakeTable { spec: spec.clone() });
        let barrier = (self.barrier > self.passed).then_some(Control::Barrier { number: self.barrier });
        tables.chain(barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_repeated_until_they_are_answered() {
        let mut requests = CoordinatorRequests::after_barriers(3);
        let one = TableSpec::dense("one", 1, 1);
        let two = TableSpec::dense("two", 1, 1);
        let asked = [requests.table(one.clone()), requests.table(two), requests.barrier()];
        assert_eq!(requests.unanswered().collect::<Vec<_>>(), asked);
        assert_eq!(requests.table_made("one".into(), TableId(5)), Some(one));
        requests.table_refused("two".into(), "no".into());
        requests.barrier_passed(4);
        assert_eq!(requests.unanswered().count(), 0);
        let answers = ["one", "two", "three"].map(|name| requests.answer(name).cloned());
        assert_eq!(answers, [Some(Ok(TableId(5))), Some(Err("no".into())), None]);
        assert_eq!([3, 4, 5].map(|number| requests.has_passed(number)), [true, true, false]);
    }

    #[test]
    fn requests_ignore_an_answer_for_a_table_that_was_not_asked_for() {
        let mut requests = CoordinatorRequests::default();
        assert_eq!(requests.table_made("t".into(), TableId(1)), None);
        requests.table_refused("t".into(), "no".into());
        assert_eq!(requests.answer("t"), None);
    }

    #[test]
    fn passed_barrier_stays_passed_and_requests_are_repeated_once_a_span() {
        let mut requests = CoordinatorRequests::default();
        requests.barrier_passed(7);
        requests.barrier_passed(2);
        assert!(requests.has_passed(7));
        let second = Span::from_secs(1);
        let due = [0, 1, 1, 2].map(|at| requests.is_due(Time(at * 1_000_000_000), second));
        assert_eq!(due, [false, true, false, true]);
    }
}
