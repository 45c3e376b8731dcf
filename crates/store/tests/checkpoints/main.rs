//! Checkpoints in every kind of store, on good days and on bad ones.

#![expect(clippy::unwrap_used, reason = "a test says so by falling over")]

mod conformance;
mod damage;
mod disk;
mod killed;
mod python;
mod round_trip;
mod s3;
mod support;
