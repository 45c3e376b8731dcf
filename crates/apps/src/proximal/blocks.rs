//! Which features of each block a worker pushes and pulls: all of them, or the active set that the
//! shards report.

use super::columns::ExampleColumns;
use slackwater::table::ActiveRows;
use slackwater::{Error, Keys, Table, Ticket};
use std::sync::Arc;

/// Some features of a block, cheap to clone.
#[derive(Clone)]
pub struct BlockFeatures {
    /// Their keys, in the table's order.
    pub keys: Keys,
    /// The column of each key.
    pub columns: Arc<[usize]>,
}

/// Which features of a block a step uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All.
    All,
    /// Those that were active when the block was last read. All features, if the table has no KKT
    /// filter.
    Active,
}

/// The blocks of a table.
pub struct Blocks<'a> {
    table: &'a Table<f32>,
    all: Vec<BlockFeatures>,
    /// The active features of each block, as last read.
    active: Vec<BlockFeatures>,
}

impl<'a> Blocks<'a> {
    pub fn new(table: &'a Table<f32>, columns: &ExampleColumns, blocks: usize) -> Self {
        let part = |block: usize| {
            let span = columns.block(block);
            let keys = table.keys(&columns.keys[span.clone()]);
            let column = |key: u64| span.start + columns.keys[span.clone()].partition_point(|other| *other < key);
            let columns = keys.ids().map(column).collect();
            BlockFeatures { keys, columns }
        };
        let all: Vec<BlockFeatures> = (0..blocks).map(part).collect();
        Self { table, active: all.clone(), all }
    }

    /// The features that the next step of a block uses.
    pub fn part(&self, block: usize, take: Take) -> BlockFeatures {
        match take {
            Take::All => self.all[block].clone(),
            Take::Active => self.active[block].clone(),
        }
    }

    /// Asks the shards which features of a block are active, if the table has the KKT filter.
    pub fn ask(&self, block: usize) -> Result<Option<Ticket<ActiveRows>>, Error> {
        let filters = self.table.spec().codecs.filters_by_kkt();
        filters.then(|| self.table.active(&self.all[block].keys)).transpose()
    }

    /// Waits for the answer, and keeps it for the next steps.
    pub fn keep(&mut self, block: usize, asked: Option<Ticket<ActiveRows>>) -> Result<(), Error> {
        let Some(active) = asked.map(Ticket::wait).transpose()? else { return Ok(()) };
        let BlockFeatures { keys, columns } = &self.all[block];
        let chosen = active.bits().indices().map(|index| columns[index]).collect();
        self.active[block] = BlockFeatures { keys: keys.choose(active.bits()), columns: chosen };
        Ok(())
    }
}
