//! The demonstration: one sparse logistic regression, trained with and without slack among uneven workers.

pub mod chart;
pub mod clicks;
pub mod logistic;
pub mod random;
pub mod recurrence;
