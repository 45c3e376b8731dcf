//! Tests of checkpoints in every kind of store, with and without faults.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod damage;
mod disk;
mod killed;
mod python;
mod round_trip;
mod s3;
mod support;
