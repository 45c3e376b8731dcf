//! Learning programs: each algorithm is one file, written with sessions, tables and minibatches.
//!
//! - A [`Program`](program::Program) computes the gradients of a minibatch of sparse examples, and
//!   [`train`](train::train) pulls and pushes for it. [`mlp`] learns from dense examples.
//! - [`rounds`] is the training loop that they share: read a minibatch, learn from it, end the
//!   clock.
//! - [`proximal`] solves ℓ1 logistic regression to the optimum, block by block.
//! - [`model`] and [`predict`] save what was learnt and predict with it.

pub mod figures;
pub mod fm;
pub mod gather;
pub mod leased;
pub mod linear;
pub mod logistic;
pub mod mlp;
pub mod model;
pub mod once;
mod output;
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
