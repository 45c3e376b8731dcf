//! Learning programs: one algorithm in one file, in terms of sessions, tables and minibatches alone.
//!
//! A [`Program`](program::Program) says what a minibatch teaches; [`train`](train::train) is the loop that all of them share.

pub mod figures;
pub mod fm;
pub mod gather;
pub mod linear;
pub mod logistic;
pub mod model;
pub mod program;
pub mod proximal;
pub mod scaling;
pub mod softmax;
pub mod train;
