//! What a worker pushes and pulls of each block of features: all of them, or those that the shards
//! call active.

use super::columns::ExampleColumns;
use slackwater::table::ActiveRows;
use slackwater::{Error, Keys, Table, Ticket};
use std::sync::Arc;

/// Features of a block, cheap to clone.
#[derive(Clone)]
pub struct BlockFeatures {
    /// Their keys in the table's order.
    pub keys: Keys,
    /// The column of each key.
    pub columns: Arc<[usize]>,
}

/// Which features of a block a step is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All.
    All,
    /// Those that were active when the block was last read; all where nobody says.
    Active,
}

/// The blocks of a table.
pub struct Blocks<'a> {
    table: &'a Table<f32>,
    all: Vec<BlockFeatures>,
    /// Of each block, as far as it is known.
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

    /// What the next step of a block is made with.
    pub fn part(&self, block: usize, take: Take) -> BlockFeatures {
        match take {
            Take::All => self.all[block].clone(),
            Take::Active => self.active[block].clone(),
        }
    }

    /// Asks which features of a block are active, where the table's shards say.
    pub fn ask(&self, block: usize) -> Result<Option<Ticket<ActiveRows>>, Error> {
        let filters = self.table.spec().codecs.filters_by_kkt();
        filters.then(|| self.table.active(&self.all[block].keys)).transpose()
    }

    /// Keeps the answer for the steps to come.
    pub fn keep(&mut self, block: usize, asked: Option<Ticket<ActiveRows>>) -> Result<(), Error> {
        let Some(active) = asked.map(Ticket::wait).transpose()? else { return Ok(()) };
        let BlockFeatures { keys, columns } = &self.all[block];
        let chosen = active.bits().indices().map(|index| columns[index]).collect();
        self.active[block] = BlockFeatures { keys: keys.choose(active.bits()), columns: chosen };
        Ok(())
    }
}
