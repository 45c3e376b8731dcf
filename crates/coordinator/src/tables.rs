//! Which tables exist: made on all servers before any worker hears of them.

use super::Coordinator;
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, TableId, TableSpec, Time};
use wire::{Control, Field, Outbox, Reader, WireError};

pub(super) struct Table {
    id: TableId,
    spec: TableSpec,
    /// What servers are told of it.
    adding: Control,
    /// Servers that have not answered yet.
    pending: BTreeSet<NodeId>,
    pub(super) problem: Option<String>,
    askers: BTreeSet<NodeId>,
    /// Workers that have not said that they know of it: the frontier counts all of them, whether
    /// they use it or not.
    untold: BTreeSet<NodeId>,
    asked: Time,
    /// Whether it was asked for again: then an answer does not tell how long it took.
    again: bool,
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

impl Table {
    /// A node is gone: it is not waited for.
    fn forget(&mut self, node: NodeId) {
        self.untold.remove(&node);
        self.askers.remove(&node);
        self.pending.remove(&node);
    }

    /// It was asked for at this time.
    pub fn asked_at(&mut self, now: Time) {
        self.asked = now;
    }

    /// What is taken for granted of tables: that each has a number and a name of its own, and can
    /// be made.
    pub fn all_make_sense(tables: &BTreeMap<String, Self>) -> Result<(), &'static str> {
        let ids: BTreeSet<TableId> = tables.values().map(|table| table.id).collect();
        if ids != (0..tables.len() as u32).map(TableId).collect() {
            return Err("tables that are not numbered one by one");
        }
        let can_be =
            |(name, table): (&String, &Self)| *name == table.spec.name && codec::check_spec(&table.spec).is_ok();
        if tables.iter().all(can_be) { Ok(()) } else { Err("a table that cannot be") }
    }

    /// Its number.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Its number, and how many shards it has of so many.
    pub fn shards(&self, of: usize) -> (TableId, usize) {
        (self.id, self.spec.shape.extent().split(of).len())
    }
}

impl Coordinator {
    pub(super) fn make_table(&mut self, now: Time, from: NodeId, spec: TableSpec, out: &mut Outbox) {
        let name = spec.name.clone();
        if let Err(error) = codec::check_spec(&spec) {
            return Self::say(from, Control::TableRefused { name, problem: error.to_string() }, out);
        }
        if self.adoption.is_some() && !self.tables.contains_key(&name) {
            // Shards that no table has are given to whoever is to have them, by that plan: they
            // must stay empty until it is adopted.
            if !self.deferred.contains(&(from, spec.clone())) {
                self.deferred.push((from, spec));
            }
            return;
        }
        let id = TableId(self.tables.len() as u32);
        let adding = match self.adding(id, &spec) {
            Ok(adding) => adding,
            Err(problem) => return Self::say(from, Control::TableRefused { name, problem }, out),
        };
        let servers: BTreeSet<NodeId> = self.live_servers().collect();
        let workers = self.live_workers().map(NodeId::from).collect();
        let table = self.tables.entry(name.clone()).or_insert_with(|| {
            for server in &servers {
                Self::say(*server, adding.clone(), out);
            }
            Table {
                id,
                adding,
                spec: spec.clone(),
                pending: servers,
                problem: None,
                askers: BTreeSet::new(),
                untold: workers,
                asked: now,
                again: false,
            }
        });
        if let Some(difference) = table.spec.difference(&spec) {
            let problem = format!("two specs for one name '{name}': {difference}; use the same spec in every worker");
            return Self::say(from, Control::TableRefused { name, problem }, out);
        }
        table.askers.insert(from);
        Self::answer_askers(&name, table, out);
    }

    pub(super) fn table_added(&mut self, from: NodeId, id: TableId, problem: Option<String>, out: &mut Outbox) {
        let Some((name, table)) = self.tables.iter_mut().find(|(_, table)| table.id == id) else { return };
        if table.untold.remove(&from) || !table.pending.remove(&from) {
            return;
        }
        // One that is restored is read first, however long that takes.
        if !table.again && matches!(table.adding, Control::AddTable { .. }) {
            self.answers.observe(self.now.since(table.asked));
        }
        table.problem = table.problem.take().or(problem.map(|problem| format!("{from}: {problem}")));
        if table.pending.is_empty() && table.problem.is_none() {
            Self::tell_workers(table, out);
        }
        Self::answer_askers(name, table, out);
    }

    /// The tables that there are, in the order in which they were made; none while one is being
    /// made.
    pub(super) fn made_tables(&self) -> Option<Vec<(TableId, TableSpec)>> {
        let tables = self.tables.values().filter(|table| table.problem.is_none());
        let mut made = Vec::new();
        for table in tables {
            if !table.pending.is_empty() {
                return None;
            }
            made.push((table.id, table.spec.clone()));
        }
        made.sort_by_key(|(id, _)| *id);
        Some(made)
    }

    /// Makes the tables that were asked for while a plan was on its way.
    pub(super) fn make_deferred(&mut self, out: &mut Outbox) {
        for (from, spec) in std::mem::take(&mut self.deferred) {
            self.make_table(self.now, from, spec, out);
        }
    }

    /// A node that came later hears of every table: a worker ends its clocks for it, a server may
    /// have to hold some of it.
    pub(super) fn tell_tables(&mut self, worker: NodeId, out: &mut Outbox) {
        for table in self.tables.values_mut() {
            table.untold.insert(worker);
            if table.pending.is_empty() && table.problem.is_none() {
                Self::say(worker, Control::AddTable { table: table.id, spec: table.spec.clone() }, out);
            }
        }
    }

    /// A node is gone: no table waits for it.
    pub(super) fn forget_at_tables(&mut self, node: NodeId, out: &mut Outbox) {
        for (name, table) in &mut self.tables {
            let waited = table.pending.contains(&node);
            table.forget(node);
            if waited && table.pending.is_empty() && table.problem.is_none() {
                Self::tell_workers(table, out);
            }
            Self::answer_askers(name, table, out);
        }
    }

    fn tell_workers(table: &Table, out: &mut Outbox) {
        for worker in &table.untold {
            Self::say(*worker, Control::AddTable { table: table.id, spec: table.spec.clone() }, out);
        }
    }

    fn answer_askers(name: &str, table: &mut Table, out: &mut Outbox) {
        if !table.pending.is_empty() {
            return;
        }
        for asker in std::mem::take(&mut table.askers) {
            let name = name.to_owned();
            let answer = match &table.problem {
                None => Control::TableMade { table: table.id, name },
                Some(problem) => Control::TableRefused { name, problem: problem.clone() },
            };
            Self::say(asker, answer, out);
        }
    }

    /// Says again what servers and workers have not answered.
    pub(super) fn ask_servers_again(&mut self, now: Time, out: &mut Outbox) {
        let after = self.ask_again_after();
        for table in self.tables.values_mut().filter(|table| now.since(table.asked) >= after) {
            (table.asked, table.again) = (now, true);
            for server in &table.pending {
                Self::say(*server, table.adding.clone(), out);
            }
            if table.pending.is_empty() && table.problem.is_none() {
                Self::tell_workers(table, out);
            }
        }
    }
}
