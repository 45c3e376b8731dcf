//! Tables: every server makes a table before any worker hears of it.
//!
//! A worker's request for a new table waits while a plan is being adopted: that plan may give
//! shards that no table has yet to servers that have not backfilled them.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::checkpoints::Checkpoints;
use crate::members::Members;
use crate::saved::{self, get_map, put_map};
use crate::say::say;
use std::collections::{BTreeMap, BTreeSet};
use types::limits::TABLES;
use types::{Clock, NodeId, Span, TableId, TableSpec, Time};
use wire::{Control, Field, Outbox, Reader, TableStatus, WireError};

/// One table, and the nodes that have yet to answer for it.
struct Table {
    id: TableId,
    spec: TableSpec,
    /// The message that makes servers add or restore it.
    adding: Control,
    /// The servers that have not answered yet.
    pending: BTreeSet<NodeId>,
    /// Why a server cannot hold it, if one cannot.
    problem: Option<String>,
    /// The workers that asked for it and have no answer yet.
    askers: BTreeSet<NodeId>,
    /// The nodes that have not confirmed that they know of it. Every worker must know of it: the
    /// frontier counts all workers, whether they use the table or not.
    untold: BTreeSet<NodeId>,
    /// When nodes were last asked.
    asked: Time,
    /// Whether servers were asked again: then an answer does not show how long it took.
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

    /// How many shards it has, in a run of `of` shards. A small table has fewer.
    fn shards(&self, of: usize) -> usize {
        self.spec.shape.extent().split(of).len()
    }
}

/// The run's tables.
#[derive(Default)]
pub(crate) struct Tables {
    /// Tables that are made or being made, by name.
    tables: BTreeMap<String, Table>,
    /// Workers' requests for new tables that wait for a plan to be adopted.
    deferred: Vec<(NodeId, TableSpec)>,
}

impl Tables {
    /// Takes a worker's request for a table. Makes a new table if `may_make`. Otherwise the request
    /// waits for [`take_deferred`](Self::take_deferred).
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
        let is_new = !self.tables.contains_key(&name);
        if is_new && self.tables.len() >= TABLES {
            let problem = format!("the run has its {TABLES} tables already; put rows of several tables into one");
            return say(from, Control::TableRefused { name, problem }, out);
        }
        if !may_make && is_new {
            // A worker whose request is not kept asks again.
            if self.deferred.len() < TABLES && !self.deferred.contains(&(from, spec.clone())) {
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

    /// Takes the requests that waited for a plan to be adopted.
    pub fn take_deferred(&mut self) -> Vec<(NodeId, TableSpec)> {
        std::mem::take(&mut self.deferred)
    }

    /// Takes a node's answer: it knows of a table, or a server cannot hold it for this reason.
    /// Returns how long a server took to make it, where that was measured.
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
        // Restoring a table reads it from a store, which may take long, so it is not measured.
        let is_measured = !table.again && matches!(table.adding, Control::AddTable { .. });
        is_measured.then(|| now.since(table.asked))
    }

    /// Tells a node that has joined of every table: a worker must end its clocks in it, and a
    /// server may have to hold shards of it.
    pub fn introduce(&mut self, node: NodeId, out: &mut Outbox) {
        for table in self.tables.values_mut() {
            table.untold.insert(node);
            if table.is_made() {
                table.tell(node, out);
            }
        }
    }

    /// Forgets a node that has left or is lost: no table waits for it.
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

    /// Asks servers and workers again that have not answered for this long.
    pub fn ask_again(&mut self, now: Time, after: Span, out: &mut Outbox) {
        for table in self.tables.values_mut().filter(|table| now.since(table.asked) >= after) {
            table.asked = now;
            table.again = true;
            table.pending.iter().for_each(|server| say(*server, table.adding.clone(), out));
            table.tell_untold(out);
        }
    }

    /// Counts the time until nodes are asked again from `now`, for a new leader.
    pub fn take_over(&mut self, now: Time) {
        self.tables.values_mut().for_each(|table| table.asked = now);
    }

    /// The tables that checkpoints save, in the order in which they were made. None while a table
    /// is being made.
    pub fn checkpointed(&self) -> Option<Vec<(TableId, TableSpec)>> {
        let good = || self.tables.values().filter(|table| table.problem.is_none());
        if !good().all(Table::is_made) {
            return None;
        }
        let saved = good().filter(|table| table.spec.is_checkpointed());
        let mut saved: Vec<_> = saved.map(|table| (table.id, table.spec.clone())).collect();
        saved.sort_by_key(|(id, _)| *id);
        Some(saved)
    }

    /// The tables that no server refused, and how many shards each has in a run of `of` shards.
    pub fn shards(&self, of: usize) -> impl Iterator<Item = (TableId, usize)> + '_ {
        let good = self.tables.values().filter(|table| table.problem.is_none());
        good.map(move |table| (table.id, table.shards(of)))
    }

    /// How many of a run's `of` shards are in some table: the shards from this one on are empty.
    pub fn most_shards(&self, of: usize) -> usize {
        self.tables.values().map(|table| table.shards(of)).max().unwrap_or(0)
    }

    /// The name of a table.
    pub fn name(&self, table: TableId) -> Option<&str> {
        self.tables.values().find(|known| known.id == table).map(|known| known.spec.name.as_str())
    }

    /// The status of each table, with its frontier where servers have reported one.
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

/// Deferred requests are not saved: workers ask again.
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
            (ids == (0..tables.len() as u32).map(TableId).collect(), "tables without consecutive numbers"),
            (tables.iter().all(can_be), "a table with an invalid name or spec"),
        ])?;
        Ok(Self { tables, deferred: Vec::new() })
    }
}
