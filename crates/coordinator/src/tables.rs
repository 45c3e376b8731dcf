//! Tables: every server makes a table before any worker hears of it.
//!
//! A table that is asked for while a plan is on its way waits until that plan is adopted: the plan
//! may give shards that no table has to servers that did not backfill them.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::checkpoints::Checkpoints;
use crate::members::Members;
use crate::saved::{self, get_map, put_map};
use crate::say::say;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, Span, TableId, TableSpec, Time};
use wire::{Control, Field, Outbox, Reader, TableStatus, WireError};

/// One table, and which nodes have yet to answer for it.
struct Table {
    id: TableId,
    spec: TableSpec,
    /// What servers are told of it.
    adding: Control,
    /// Servers that have not answered yet.
    pending: BTreeSet<NodeId>,
    problem: Option<String>,
    askers: BTreeSet<NodeId>,
    /// Workers that have not said that they know of it: the frontier counts all of them, whether
    /// they use it or not.
    untold: BTreeSet<NodeId>,
    asked: Time,
    /// Whether it was asked for again: then an answer does not tell how long it took.
    again: bool,
}

impl Table {
    /// Whether every server holds its shards of it.
    fn is_made(&self) -> bool {
        self.pending.is_empty() && self.problem.is_none()
    }

    fn tell(&self, node: NodeId, out: &mut Outbox) {
        say(node, Control::AddTable { table: self.id, spec: self.spec.clone() }, out);
    }

    fn tell_untold(&self, out: &mut Outbox) {
        if self.is_made() {
            self.untold.iter().for_each(|worker| self.tell(*worker, out));
        }
    }

    fn answer_askers(&mut self, out: &mut Outbox) {
        if !self.pending.is_empty() {
            return;
        }
        for asker in std::mem::take(&mut self.askers) {
            let name = self.spec.name.clone();
            let answer = match &self.problem {
                None => Control::TableMade { table: self.id, name },
                Some(problem) => Control::TableRefused { name, problem: problem.clone() },
            };
            say(asker, answer, out);
        }
    }

    /// How many shards it has, in a run of so many.
    fn shards(&self, of: usize) -> usize {
        self.spec.shape.extent().split(of).len()
    }
}

/// The tables that there are, or will be, by name.
#[derive(Default)]
pub(crate) struct Tables {
    tables: BTreeMap<String, Table>,
    /// Tables that are asked for while a plan is on its way, and by whom.
    deferred: Vec<(NodeId, TableSpec)>,
}

impl Tables {
    /// A worker asks for a table. It is made if `may_make`, and asked for again otherwise by
    /// [`take_deferred`](Self::take_deferred).
    pub fn ask(
        &mut self,
        now: Time,
        (from, spec): (NodeId, TableSpec),
        may_make: bool,
        members: &Members,
        checkpoints: &Checkpoints,
        out: &mut Outbox,
    ) {
        let name = spec.name.clone();
        if let Err(error) = codec::check_spec(&spec) {
            return say(from, Control::TableRefused { name, problem: error.to_string() }, out);
        }
        if !may_make && !self.tables.contains_key(&name) {
            if !self.deferred.contains(&(from, spec.clone())) {
                self.deferred.push((from, spec));
            }
            return;
        }
        let id = TableId(self.tables.len() as u32);
        let adding = match checkpoints.adding(id, &spec) {
            Ok(adding) => adding,
            Err(problem) => return say(from, Control::TableRefused { name, problem }, out),
        };
        let table = self.tables.entry(name.clone()).or_insert_with(|| {
            members.live_servers().for_each(|server| say(server, adding.clone(), out));
            Table {
                id,
                adding,
                spec: spec.clone(),
                pending: members.live_servers().collect(),
                problem: None,
                askers: BTreeSet::new(),
                untold: members.live_workers().map(NodeId::from).collect(),
                asked: now,
                again: false,
            }
        });
        if let Some(difference) = table.spec.difference(&spec) {
            let problem = format!("two specs for one name '{name}': {difference}; use the same spec in every worker");
            return say(from, Control::TableRefused { name, problem }, out);
        }
        table.askers.insert(from);
        table.answer_askers(out);
    }

    /// Tables that were asked for while a plan was on its way, and by whom.
    pub fn take_deferred(&mut self) -> Vec<(NodeId, TableSpec)> {
        std::mem::take(&mut self.deferred)
    }

    /// A node answers that it knows of a table, or why it cannot hold it. Returns how long a server
    /// took to make it, where that was measured.
    pub fn added(
        &mut self,
        now: Time,
        from: NodeId,
        id: TableId,
        problem: Option<String>,
        out: &mut Outbox,
    ) -> Option<Span> {
        let table = self.tables.values_mut().find(|table| table.id == id)?;
        if table.untold.remove(&from) || !table.pending.remove(&from) {
            return None;
        }
        table.problem = table.problem.take().or(problem.map(|problem| format!("{from}: {problem}")));
        table.tell_untold(out);
        table.answer_askers(out);
        // A table that is restored is read first, and that may take long.
        let is_measured = !table.again && matches!(table.adding, Control::AddTable { .. });
        is_measured.then(|| now.since(table.asked))
    }

    /// A node that came later hears of every table: a worker ends its clocks for it, a server may
    /// have to hold some of it.
    pub fn introduce(&mut self, node: NodeId, out: &mut Outbox) {
        for table in self.tables.values_mut() {
            table.untold.insert(node);
            if table.is_made() {
                table.tell(node, out);
            }
        }
    }

    /// A node is gone: no table waits for it.
    pub fn forget(&mut self, node: NodeId, out: &mut Outbox) {
        for table in self.tables.values_mut() {
            table.untold.remove(&node);
            table.askers.remove(&node);
            if table.pending.remove(&node) {
                table.tell_untold(out);
            }
            table.answer_askers(out);
        }
    }

    /// Says again what servers and workers have not answered for this long.
    pub fn ask_again(&mut self, now: Time, after: Span, out: &mut Outbox) {
        for table in self.tables.values_mut().filter(|table| now.since(table.asked) >= after) {
            table.asked = now;
            table.again = true;
            table.pending.iter().for_each(|server| say(*server, table.adding.clone(), out));
            table.tell_untold(out);
        }
    }

    /// What no server has answered is asked again counting from this time.
    pub fn take_over(&mut self, now: Time) {
        self.tables.values_mut().for_each(|table| table.asked = now);
    }

    /// The tables that checkpoints keep, in the order in which they were made; none while a table
    /// is being made.
    pub fn checkpointed(&self) -> Option<Vec<(TableId, TableSpec)>> {
        let good = || self.tables.values().filter(|table| table.problem.is_none());
        if !good().all(Table::is_made) {
            return None;
        }
        let kept = good().filter(|table| table.spec.is_checkpointed());
        let mut kept: Vec<_> = kept.map(|table| (table.id, table.spec.clone())).collect();
        kept.sort_by_key(|(id, _)| *id);
        Some(kept)
    }

    /// Tables that can be, and how many shards each has in a run of so many.
    pub fn shards(&self, of: usize) -> impl Iterator<Item = (TableId, usize)> + '_ {
        let good = self.tables.values().filter(|table| table.problem.is_none());
        good.map(move |table| (table.id, table.shards(of)))
    }

    /// The shards of a run of so many that any table has: those before this one.
    pub fn most_shards(&self, of: usize) -> usize {
        self.tables.values().map(|table| table.shards(of)).max().unwrap_or(0)
    }

    /// Each table with its frontier, where servers have said so.
    pub fn statuses(&self, frontiers: &BTreeMap<TableId, Clock>) -> Vec<TableStatus> {
        let status = |table: &Table| {
            let frontier = frontiers.get(&table.id).copied();
            TableStatus { table: table.id, spec: table.spec.clone(), frontier }
        };
        self.tables.values().map(status).collect()
    }
}

impl Field for Table {
    fn put(&self, out: &mut Vec<u8>) {
        let nodes = |nodes: &BTreeSet<NodeId>| nodes.iter().copied().collect::<Vec<_>>();
        self.id.put(out);
        self.spec.put(out);
        self.adding.put(out);
        nodes(&self.pending).put(out);
        self.problem.put(out);
        nodes(&self.askers).put(out);
        nodes(&self.untold).put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let nodes = |input: &mut Reader<'_>| Vec::get(input).map(BTreeSet::from_iter);
        Ok(Self {
            id: Field::get(input)?,
            spec: Field::get(input)?,
            adding: Field::get(input)?,
            pending: nodes(input)?,
            problem: Field::get(input)?,
            askers: nodes(input)?,
            untold: nodes(input)?,
            asked: Time(0),
            again: true,
        })
    }
}

/// Deferred requests are left out: workers ask again.
impl Field for Tables {
    fn put(&self, out: &mut Vec<u8>) {
        put_map(&self.tables, out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let tables: BTreeMap<String, Table> = get_map(input)?;
        let ids: BTreeSet<TableId> = tables.values().map(|table| table.id).collect();
        let can_be =
            |(name, table): (&String, &Table)| *name == table.spec.name && codec::check_spec(&table.spec).is_ok();
        saved::check(&[
            (ids == (0..tables.len() as u32).map(TableId).collect(), "tables that are not numbered one by one"),
            (tables.iter().all(can_be), "a table that cannot be"),
        ])?;
        Ok(Self { tables, deferred: Vec::new() })
    }
}
