//! Learning programs: one algorithm in one file, in terms of sessions, tables and minibatches
//! alone.
//!
//! A [`Program`](program::Program) says what a minibatch of sparse examples teaches;
//! [`train`](train::train) pulls and pushes for it, and
//! [`rounds`] are what all that learn by minibatches share.

pub mod figures;
pub mod fm;
pub mod gather;
pub mod leased;
pub mod linear;
pub mod logistic;
pub mod mlp;
pub mod model;
pub mod once;
pub mod predict;
pub mod product;
pub mod program;
pub mod proximal;
pub mod rounds;
pub mod scaling;
pub mod shrink;
pub mod softmax;
pub mod tally;
pub mod train;
