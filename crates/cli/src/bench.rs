//! Benchmarks. Each prints what the machine itself can do beside what Slackwater does with it.

pub mod bytes;
pub mod chaos;
pub mod clicks;
pub mod cluster;
pub mod codec;
pub mod cold;
pub mod core;
pub mod embedded;
pub mod learning;
pub mod lists;
pub mod logistic;
pub mod measure;
pub mod peer;
pub mod raw;
pub mod scale;
pub mod server;
pub mod wire;
