//! Learning programs: one algorithm in one file, in terms of sessions, tables and minibatches alone.

pub mod fm;
pub mod gather;
pub mod linear;
pub mod logistic;
pub mod program;
pub mod softmax;
