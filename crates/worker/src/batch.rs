//! The batch, what a program writes: sorted unique keys with a row of numbers for each.

use lease::LeaseId;
use types::NumberType;
use wire::{Keys, Payload};

/// The values of a batch and their number type.
#[derive(Clone, Debug)]
pub struct Values {
    /// The type of the numbers.
    pub number: NumberType,
    /// The numbers, row after row.
    pub bytes: Payload,
}

/// Sorted unique keys and their values, row after row: the only unit of writing.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Which rows.
    pub keys: Keys,
    /// A row of values for each key.
    pub values: Values,
    /// How many examples the values were computed from.
    pub examples: u64,
    /// The data lease that the batch was computed for, if there is one.
    pub lease: Option<LeaseId>,
}
