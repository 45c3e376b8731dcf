//! What a head sends down its chain, and what the chain says to that.

use crate::Payload;
use crate::field::{fields, fields_and_payloads, variants};
use types::{Clock, ShardId, TableId};

/// One piece of a window: what has changed at the head since the window before; or of a filling: what a copy that is new has to have.
/// The last piece is the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The window's number; in a filling, the one up to which the copy holds everything with the last piece.
    pub window: u64,
    /// The piece's place, from 0.
    pub piece: u32,
    /// Which filling this is of; none for a window.
    pub filling: Option<u64>,
    /// What the payloads are.
    pub what: Piece,
    /// Which rows.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// What a piece of a window holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Rows with their updater's state.
    Rows,
    /// Sums of contributions that are held for a clock.
    Held {
        /// Which.
        clock: Clock,
    },
    /// Everything else that a shard knows, and the end of the window.
    Ledger {
        /// As the core writes it.
        bytes: Vec<u8>,
    },
}

/// Every copy from here to the tail holds every window up to this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicated {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The last such window.
    pub through: u64,
    /// If the sender is being filled: by which filling, and how many pieces of it have come.
    pub filling: Option<(u64, u32)>,
}

variants!(Piece { 0 => Rows, 1 => Held { clock }, 2 => Ledger { bytes } });
fields!(Replicated { table, shard, through, filling });
fields_and_payloads!(Replica { table, shard, window, piece, filling, what }, |input, [positions, values]| {
    positions,
    values,
});
