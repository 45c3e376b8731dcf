//! What a program writes: sorted unique keys with a row of numbers for each.

use lease::LeaseId;
use types::NumberType;
use wire::{Keys, Payload};

/// Values of a batch and what they are.
#[derive(Clone, Debug)]
pub struct Values {
    /// The type of the numbers.
    pub number: NumberType,
    /// Row after row.
    pub bytes: Payload,
}

/// Sorted unique keys and their values, row after row: the only unit of writing.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Which rows.
    pub keys: Keys,
    /// What for each of them.
    pub values: Values,
    /// How many examples the values were computed from.
    pub examples: u64,
    /// The data lease that it is made for, if there is one.
    pub lease: Option<LeaseId>,
}
